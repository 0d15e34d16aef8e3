#pragma once

// Pickled plain values (numbers, texts, lists, dicts) as Values.

#include <cstdint>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"
#include "reshard/catalog/value.h"
#include "reshard/format/pickle/document.h"

namespace reshard::paddle {

/// Converts nodes. A shared node is copied at each use, so that memory has a budget: 64 MiB and 8
/// times the source. Not thread-safe.
class PlainValues {
 public:
  PlainValues(const pickle::Document& document, ByteSource& source)
      : document_(document), source_(source), memory_left_((64ULL << 20) + 8 * source.size()) {}

  /// `depth`: containers around it. Errors: kUnsupported BAD_ARRAY (a value of another kind), DEPTH
  /// (more than kMaxNesting levels), BAD_KEY; kCorruption LIMIT.
  Result<Value> Read(pickle::NodeId node, std::size_t depth);

  /// A key of a dict. Errors: kUnsupported BAD_KEY unless it is a text or an integer.
  Result<MapKey> Key(pickle::NodeId node);

  /// Takes from the budget. Errors: kCorruption LIMIT.
  Status Charge(pickle::NodeId node, std::uint64_t bytes);

 private:
  Result<Value> ReadList(pickle::NodeId node, std::size_t depth);
  Result<Value> ReadMap(std::span<const pickle::NodeId> entries, std::size_t depth);
  Result<Value> ReadBytes(pickle::NodeId node);
  Result<Value> ReadObject(pickle::NodeId node, std::size_t depth);
  Result<Value> ReadScalar(pickle::NodeId node);
  Result<Bytes> Load(pickle::NodeId node, std::uint64_t limit);

  const pickle::Document& document_;
  ByteSource& source_;
  std::uint64_t memory_left_;
};

}  // namespace reshard::paddle
