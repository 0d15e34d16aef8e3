#pragma once

// Ordinary `torch.save` files (`.pt`, `.pth`, `.bin`, `.ckpt`), in the zip form that torch writes
// since 1.6 and in the older one, a stream of pickles and then storages. Only their structure is
// read. docs/format/torch_save.md.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"
#include "reshard/catalog/flatten.h"
#include "reshard/catalog/value.h"
#include "reshard/format/torch/tensor_pickle.h"

namespace reshard::torch {

/// Reasons of this decoder, beside those of the pickle machine, zip archives and tensors.
inline constexpr std::string_view kBigEndian = "BIG_ENDIAN";
inline constexpr std::string_view kBadStorage = "BAD_STORAGE";
inline constexpr std::string_view kBadStream = "BAD_STREAM";

/// Longest text or byte string in an object.
inline constexpr std::uint64_t kMaxObjectBytes = std::uint64_t{16} << 20;

/// A tensor of the file.
struct SavedTensor {
  Path path;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<DensePart> parts;  ///< Offsets in the file. Unused when it is an alias.
  std::string alias_of;          ///< The flat key of an earlier one with the same elements.
};

/// A tensor that cannot be read.
struct SavedFault {
  Error error;
  std::string key;
};

/// What a file holds.
struct SavedFile {
  std::vector<SavedTensor> tensors;  ///< By flat key.
  std::vector<std::pair<Path, Value>> objects;
  std::vector<SavedFault> faults;
  std::vector<std::string> notes;
};

/// Whether a file that begins so is one.
bool LooksSaved(ByteSpan first_bytes);

/// Reads the structure. Dicts are entered, lists where tensors are in them; an outermost value that
/// is no dict gets the key "data". Values of classes that are not known are Opaque, but those that
/// hold tensors are entered as if they were dicts, with a note. Tensors that view one storage share
/// its bytes.
/// Errors: kUnsupported KIND_NOT_SUPPORTED (a zip archive of something else),
///         BIG_ENDIAN; kCorruption BAD_STORAGE (two tensors disagree on a storage, or the file on
///         its size), BAD_STREAM; those of zip::Archive, pickle::Parse and Flatten. What concerns
///         one tensor is a fault. Memory: that of the pickle, and 64 MiB and 8 times its size for
///         what shared parts expand to. Cost: kilobytes per hundred tensors; of the older form 8
///         bytes per storage more.
/// Thread-safe.
Result<SavedFile> ReadSavedFile(ByteSource& source);

}  // namespace reshard::torch
