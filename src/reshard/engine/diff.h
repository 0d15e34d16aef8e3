#pragma once

// Diff: whether two checkpoints hold the same, whatever their formats and the ranks that saved
// them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/value.h"
#include "reshard/engine/diff_read.h"
#include "reshard/format/foreign.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// An open checkpoint to compare. References must outlive the call.
struct DiffSource {
  const Catalog& catalog;
  Storage& storage;
  std::vector<ForeignFault> faults;  ///< Found when it was opened.
};

/// Choices of Diff.
struct DiffOptions {
  /// Shell patterns (MatchesKey) over flat keys: only these tensors and objects. Empty: all.
  std::vector<std::string> keys;
  /// Compare tensors that differ element by element.
  bool values = false;
  DiffReadOptions reading;
};

/// In what two checkpoints differ at a key.
enum class DiffKind {
  kOnlyInA,
  kOnlyInB,
  kKind,     ///< A tensor on one side, an object on the other.
  kDType,    ///< Of a tensor.
  kShape,    ///< Of a tensor; its elements are not compared.
  kPath,     ///< Of a tensor or an object in the nested state dict.
  kContent,  ///< A tensor's bytes.
  kObject,   ///< An object's value, or for which ranks there are values.
};

/// "only in A", "only in B", "kind", "dtype", "shape", "path", "content", "object".
std::string_view ToString(DiffKind kind);

/// One difference. A key may have several.
struct Difference {
  std::string key;
  DiffKind kind = DiffKind::kContent;
  std::string a;  ///< What A has: a dtype, a shape, a path, a digest in hex where one is known.
  std::string b;
  std::optional<Value> object_a;  ///< kObject: the values; of a value per rank a map by rank.
  std::optional<Value> object_b;
  std::optional<ValueDifference> values;  ///< With DiffOptions::values, where they were compared.
};

/// A key that could not be compared.
struct DiffFault {
  std::string key;
  Error error;
};

/// The answer.
struct DiffReport {
  std::uint64_t tensors = 0;     ///< Keys of tensors on both sides.
  std::uint64_t objects = 0;     ///< Keys of objects on both sides.
  std::uint64_t bytes = 0;       ///< Of those tensors, in A.
  std::uint64_t by_digest = 0;   ///< Of them, compared by the digests of both catalogs alone.
  std::uint64_t by_reading = 0;  ///< Of them, by reading a side or both, or for their values.
  std::uint64_t bytes_read = 0;
  std::vector<Difference> differences;  ///< By key.
  std::vector<DiffFault> faults;        ///< By key.

  /// Whether everything could be compared and nothing differs.
  bool equal() const { return differences.empty() && faults.empty(); }
};

/// Compares. Tensors of one dtype and shape differ if their digests do: no data file is opened
/// where both catalogs have them, so that damage which `Verify` would find goes unseen. Without
/// one, the side that lacks it is read, or both. What lies in files is not compared: chunks, ranks,
/// and which tensors share their bytes.
///
/// Paths: a flat one says nothing of the nesting, so it differs from none; between two formats a
/// list position is the same as an integer key.
/// Memory: options.reading.memory_bytes of buffers, where something is read; the report.
/// Errors: kNotFound NO_SUCH_KEY (patterns that match nothing on either side); those of
///         ReadAndCompare; kCorruption BAD_OBJECT.
/// Collective: no.
Result<DiffReport> Diff(const DiffSource& a, const DiffSource& b, const DiffOptions& options = {});

}  // namespace reshard
