#pragma once

// The pickled value of a torch.save file as a state dict: containers and plain values as they are,
// tensors as leaves that remember their node, everything else opaque.

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"
#include "reshard/catalog/value.h"
#include "reshard/format/pickle/document.h"
#include "reshard/format/torch/tensor_pickle.h"

namespace reshard::torch {

/// The names that these files may use beside unknown ones: TensorGlobals and plain containers.
std::span<const pickle::GlobalRule> SavedGlobals();

/// Converts nodes. A shared node is copied at each use, so that memory has a budget: 64 MiB and 8
/// times the pickle. Not thread-safe.
class SavedValues {
 public:
  SavedValues(const pickle::Document& document, ByteSource& source, std::uint64_t pickle_bytes);

  /// The outermost value, as a map. Errors: kCorruption LIMIT, BAD_STRING; kUnsupported DEPTH,
  /// LIMIT (a text or byte string larger than kMaxObjectBytes).
  Result<Value> ReadRoot();

  /// The node of a tensor of ReadRoot's.
  pickle::NodeId NodeOf(const Tensor& tensor) const;

  /// Which classes were entered although they are not known.
  std::vector<std::string> TakeNotes() { return std::move(notes_); }

 private:
  Result<Value> Read(pickle::NodeId node, std::size_t depth);
  Result<Value> ReadList(std::span<const pickle::NodeId> items, std::size_t depth);
  Result<Value> ReadMap(std::span<const pickle::NodeId> entries, std::size_t depth);
  Result<Value> ReadObject(pickle::NodeId node, std::size_t depth);
  Result<Value> ReadEncoded(pickle::NodeId node, std::span<const pickle::NodeId> args);
  Result<Value> ReadUnknown(pickle::NodeId node, std::size_t depth);
  Result<Value> ReadName(pickle::NodeId node);
  Result<Value> ReadLongInt(pickle::NodeId node);
  Result<Value> ReadText(pickle::NodeId node);
  Result<Bytes> Load(pickle::NodeId node);
  std::string NameOf(std::uint16_t global) const;
  bool HoldsTensors(pickle::NodeId node);
  Status Charge(pickle::NodeId node, std::uint64_t bytes);

  const pickle::Document& document_;
  ByteSource& source_;
  std::uint64_t memory_left_;
  std::vector<std::uint8_t> holds_tensors_;  // per node: 0 not known, 1 no, 2 yes
  std::vector<std::string> notes_;
};

}  // namespace reshard::torch
