#pragma once

// Nested state dict <-> flat keys. A flat key is the path's parts joined with '.'; the parts
// themselves are kept (the flat mapping), so integer keys, list positions and keys with dots come
// back.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/value.h"

namespace reshard {

/// A position in a list, as a part of a path.
struct ListIndex {
  std::uint64_t position = 0;
  bool operator==(const ListIndex&) const = default;
};

/// One step from the root towards a leaf.
using PathPart = std::variant<std::string, std::int64_t, ListIndex>;
using Path = std::vector<PathPart>;

/// Deepest nesting of a state dict and of objects in it.
inline constexpr std::size_t kMaxNesting = 64;

/// The parts joined with '.'.
std::string FlatKey(const Path& path);

/// "['model'][0]['w.x']", for messages that must tell paths apart.
std::string ToString(const Path& path);

/// A leaf: a tensor, a per-rank value or a plain object.
template <typename ValueType>
struct FlatEntryOf {
  std::string key;
  Path path;
  ValueType* leaf = nullptr;
};

using FlatEntry = FlatEntryOf<const Value>;
using MutableFlatEntry = FlatEntryOf<Value>;

/// All leaves, sorted by flat key. Maps are entered; a list is entered when a tensor or a per-rank
/// value is somewhere in it, otherwise it is one object; empty maps and lists are objects.
/// The pointers stay valid while the state dict is not changed in structure.
/// Errors: kInvalidArgument NOT_A_MAP, DUPLICATE_FLAT_KEY (names both paths; also a map inside an
/// object with a key twice), NESTING (of the state dict or of an object), BAD_KEY (empty flat key,
/// NUL), BAD_VALUE (an integer beyond int64), PER_RANK_TENSOR.
Result<std::vector<FlatEntry>> Flatten(const StateDict& state);
Result<std::vector<MutableFlatEntry>> Flatten(StateDict& state);

/// Puts a leaf back at its path; containers on the way are made; list positions that were skipped
/// become null. Errors: kCorruption PATH_CONFLICT when a path runs through a leaf or mixes list and
/// map.
Status InsertAtPath(StateDict& state, const Path& path, Value leaf);

}  // namespace reshard
