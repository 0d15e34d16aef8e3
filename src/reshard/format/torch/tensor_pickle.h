#pragma once

// The tensors in torch's pickles (`data.pkl` of torch.save, records of DCP): what a call of
// `_rebuild_tensor_v2` and its relatives says, as data. docs/format/torch_dcp.md section 3.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/format/pickle/document.h"
#include "reshard/format/pickle/machine.h"
#include "reshard/tensor/box.h"
#include "reshard/tensor/dtype.h"

namespace reshard::torch {

/// Reasons of this decoder, beside those of the pickle machine.
inline constexpr std::string_view kBadTensor = "BAD_TENSOR";
inline constexpr std::string_view kViewOutOfStorage = "VIEW_OUT_OF_STORAGE";
inline constexpr std::string_view kLazyView = "LAZY_VIEW";
inline constexpr std::string_view kUnsupportedTensor = "UNSUPPORTED_TENSOR";

/// Numbers of the names in TensorGlobals.
enum TensorGlobal : std::uint16_t {
  kRebuildTensorV2 = 1,
  kRebuildTensorV3,
  kRebuildParameter,
  kOrderedDict,
  kSize,
  kEncodeText,
  kBytesType,
  kUntypedStorage,
  kRebuildFromType,        ///< Of torch.save alone: a tensor with a class and attributes.
  kDTypeGlobal = 0x100,    ///< + number of a DType: torch.float32
  kStorageGlobal = 0x200,  ///< + number of a DType: torch.FloatStorage
  kFirstFreeGlobal = 0x300,
};

/// The names that tensors need, for pickle::ParseOptions (with persistent_ids). OrderedDict takes
/// items and a state; `_codecs.encode` raw text.
std::span<const pickle::GlobalRule> TensorGlobals();

/// The dtype of a kGlobal node such as torch.float32; nothing when it is another name.
std::optional<DType> DTypeOfGlobal(const pickle::Document& document, pickle::NodeId node);

/// torch's class of a typed storage, such as FloatStorage; empty for a dtype that has none and lies
/// in untyped ones.
std::string_view StorageClassOf(DType dtype);

/// What a persistent id says: a storage, which lies in the archive's member `data/{key}`.
struct StorageRef {
  std::string_view key;        ///< In the document.
  std::optional<DType> dtype;  ///< Nothing: untyped, or quantized.
  bool quantized = false;      ///< Of torch's quantized numbers.
  std::uint64_t numel = 0;     ///< Elements; of an untyped storage bytes.
  std::uint64_t bytes = 0;
};

/// A view of a storage.
struct TensorRef {
  StorageRef storage;
  DType dtype = DType::kFloat32;
  std::uint64_t offset = 0;  ///< In the storage, in elements of `dtype`.
  Shape size;
  Shape stride;  ///< In elements, one per axis.
  bool conj = false;
  bool neg = false;

  /// Where element [0, ..., 0] begins in the storage.
  std::uint64_t byte_offset() const { return offset * Info(dtype).unit_bytes; }
};

/// Whether a node is a call that rebuilds a tensor or a parameter, be it one that cannot be read:
/// any name `_rebuild_...` of torch counts (with ParseOptions::keep_unknown).
bool IsTensor(const pickle::Document& document, pickle::NodeId node);

/// Reads such a call. The view lies in its storage: offset and strides are not negative and no
/// element lies outside. Device names are passed over, and so are the class and the attributes of a
/// tensor that has such.
/// Errors: kCorruption BAD_TENSOR (arguments of other kinds or numbers, a storage that does not
/// hold whole elements), VIEW_OUT_OF_STORAGE, those of CheckShape; kUnsupported UNSUPPORTED_TENSOR
/// (quantized, sparse, a dtype that is not known, ...); all with the byte offset.
Result<TensorRef> ReadTensor(const pickle::Document& document, pickle::NodeId node);

/// A storage: a kPersistent node of ('storage', class, key, device, numel).
/// Errors: kCorruption BAD_TENSOR.
Result<StorageRef> ReadStorage(const pickle::Document& document, pickle::NodeId node);

/// Whether the bytes of the storage are those of the elements. Errors: kUnsupported LAZY_VIEW for
/// conjugated and negated views, whose elements are computed when they are read.
Status CheckNotLazy(const TensorRef& tensor);

/// A part of a strided tensor that is dense in its file.
struct DensePart {
  Box box;
  std::uint64_t byte_offset = 0;
  ChunkOrder order = ChunkOrder::kRowMajor;
};

/// Most parts that one strided tensor may fall into.
inline constexpr std::uint64_t kMostParts = 65536;

/// Cuts the elements of `box`, which lie at `byte_offset` with `stride` (elements, one per axis),
/// into parts that are dense in some order of axes: one for a dense tensor or a permuted one, more
/// for views with gaps or repeated elements. Nothing for an empty box.
/// Errors: kUnsupported LIMIT when there would be more than `most`.
Result<std::vector<DensePart>> StridedToChunks(BoxView box, std::span<const std::uint64_t> stride,
                                               std::uint64_t byte_offset, DType dtype,
                                               std::uint64_t most = kMostParts);

}  // namespace reshard::torch
