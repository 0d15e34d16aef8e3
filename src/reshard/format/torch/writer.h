#pragma once

// The records that we write for torch: torch.save archives, of a tensor as literal bytes around its
// payload, of an object whole. docs/format/torch_dcp.md, "What we write".

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/catalog/value.h"
#include "reshard/tensor/dtype.h"

namespace reshard::torch {

/// Payloads of this many bytes and more begin at a multiple of it in their file...
inline constexpr std::uint64_t kPayloadAlignment = 4096;

/// ...and smaller ones at a multiple of this.
inline constexpr std::uint64_t kSmallAlignment = 64;

/// The oldest and the newest release of torch whose reader is known to accept what we write, as
/// 100 * major + minor.
inline constexpr int kOldestRelease = 206;
inline constexpr int kNewestRelease = 214;

/// "2.6" or "2.13.0" as 206 or 213. Errors: kInvalidArgument BAD_RELEASE.
Result<int> ParseRelease(std::string_view release);

/// Whether that release of torch has tensors of `dtype`.
bool HasDType(DType dtype, int release);

/// The archive of one tensor: `head`, the payload (dense, row-major), `tail`.
struct EncodedTensor {
  Bytes head;
  Bytes tail;
  std::uint64_t payload_bytes = 0;

  std::uint64_t size() const { return head.size() + payload_bytes + tail.size(); }
};

/// The record of a dense tensor of a dtype that torch has. Checksums of payloads are left out
/// (zero), as torch's own writer does on demand. Deterministic.
EncodedTensor EncodeTensorRecord(DType dtype, std::span<const std::uint64_t> shape);

/// Why a value cannot be written; nothing when it can: plain values, and opaque ones that are a
/// record of torch.save, where they stand alone.
std::optional<std::string> WhyNoRecord(const Value& value);

/// The record of such a value. Deterministic.
Bytes EncodeObjectRecord(const Value& value);

/// Where the records of a data file lie, one after the other with gaps of zeros.
class FileLayout {
 public:
  /// Places a record without a payload at the next byte.
  ByteRange AddObject(std::uint64_t size);

  /// Places a tensor's record such that its payload is aligned.
  ByteRange AddTensor(const EncodedTensor& record);

  std::uint64_t size() const { return size_; }

 private:
  std::uint64_t size_ = 0;
};

}  // namespace reshard::torch
