#include "reshard/format/torch/tensor_pickle.h"

#include <fmt/format.h>

#include "reshard/base/checked.h"

namespace reshard::torch {
namespace {

using pickle::Document;
using pickle::GlobalRule;
using pickle::Kind;
using pickle::NodeId;

struct StorageClass {
  std::string_view name;
  DType dtype;
};

constexpr StorageClass kStorageClasses[] = {
    {"DoubleStorage", DType::kFloat64},
    {"FloatStorage", DType::kFloat32},
    {"HalfStorage", DType::kFloat16},
    {"BFloat16Storage", DType::kBfloat16},
    {"CharStorage", DType::kInt8},
    {"ByteStorage", DType::kUint8},
    {"ShortStorage", DType::kInt16},
    {"IntStorage", DType::kInt32},
    {"LongStorage", DType::kInt64},
    {"BoolStorage", DType::kBool},
    {"ComplexFloatStorage", DType::kComplex64},
    {"ComplexDoubleStorage", DType::kComplex128},
};

/// Storages of elements that are numbers only together with a scale.
struct QuantizedStorage {
  std::string_view name;  // as the pickle names it
  std::uint64_t unit_bytes;
};

constexpr QuantizedStorage kQuantizedStorages[] = {
    {"torch.QInt8Storage", 1},    {"torch.QUInt8Storage", 1},   {"torch.QInt32Storage", 4},
    {"torch.QUInt4x2Storage", 1}, {"torch.QUInt2x4Storage", 1},
};

/// Calls that rebuild tensors of which we cannot read the elements.
struct OtherTensor {
  std::string_view name;
  std::string_view what;
};

constexpr OtherTensor kOtherTensors[] = {
    {"torch._utils._rebuild_qtensor", "a quantized tensor"},
    {"torch._utils._rebuild_sparse_tensor", "a sparse tensor"},
    {"torch._utils._rebuild_sparse_csr_tensor", "a sparse tensor"},
    {"torch._utils._rebuild_nested_tensor", "a nested tensor"},
    {"torch._utils._rebuild_meta_tensor_no_storage", "a meta tensor, which has no elements"},
    {"torch._utils._rebuild_wrapper_subclass", "a tensor that wraps others"},
};

std::vector<GlobalRule> MakeGlobals() {
  constexpr std::uint8_t kDict = pickle::kReduce | pickle::kDictLike | pickle::kBuild;
  constexpr std::uint8_t kText = pickle::kReduce | pickle::kRawText;
  std::vector<GlobalRule> rules = {
      {"torch._utils", "_rebuild_tensor_v2", kRebuildTensorV2, pickle::kReduce},
      {"torch._utils", "_rebuild_tensor_v3", kRebuildTensorV3, pickle::kReduce},
      {"torch._utils", "_rebuild_parameter", kRebuildParameter, pickle::kReduce},
      {"collections", "OrderedDict", kOrderedDict, kDict},
      {"torch", "Size", kSize, pickle::kReduce},
      {"_codecs", "encode", kEncodeText, kText},
      {"__builtin__", "bytes", kBytesType, pickle::kReduce},
      {"builtins", "bytes", kBytesType, pickle::kReduce},
      {"torch.storage", "UntypedStorage", kUntypedStorage, pickle::kValueOnly},
      {"torch", "UntypedStorage", kUntypedStorage, pickle::kValueOnly},
  };
  for (const StorageClass& storage : kStorageClasses) {
    const int number = kStorageGlobal + static_cast<int>(storage.dtype);
    rules.push_back({"torch", storage.name, static_cast<std::uint16_t>(number)});
  }
  for (const DTypeInfo& info : AllDTypes()) {
    if (info.unit_elements == 1) {  // torch counts sub-byte elements in another way
      const int number = kDTypeGlobal + static_cast<int>(info.dtype);
      rules.push_back({"torch", info.name, static_cast<std::uint16_t>(number)});
    }
  }
  return rules;
}

tl::unexpected<Error> Bad(const Document& document, NodeId node, std::string_view what) {
  return MakeError(ErrorCode::kCorruption, kBadTensor,
                   fmt::format("byte {}: {}", document.offset(node), what));
}

bool IsCall(const Document& document, NodeId node, std::uint16_t global) {
  return document.kind(node) == Kind::kObject && document.callable(node) == global;
}

Result<std::uint64_t> Number(const Document& document, NodeId node, std::string_view what) {
  if (document.kind(node) != Kind::kInt || document.AsInt(node) < 0) {
    return Bad(document, node, fmt::format("{} is no number from 0 on", what));
  }
  return static_cast<std::uint64_t>(document.AsInt(node));
}

/// A tuple, a list or a torch.Size of numbers.
Result<Shape> Numbers(const Document& document, NodeId node, std::string_view what) {
  if (IsCall(document, node, kSize)) {
    const std::span<const NodeId> args = document.items(document.args(node));
    if (args.size() == 1) {
      node = args[0];
    }
  }
  if (document.kind(node) != Kind::kTuple && document.kind(node) != Kind::kList) {
    return Bad(document, node, fmt::format("the {} is no tuple", what));
  }
  const std::span<const NodeId> items = document.items(node);
  if (items.size() > kMaxAxes) {
    return Bad(document, node, fmt::format("a {} of {} axes", what, items.size()));
  }
  Shape out;
  out.reserve(items.size());
  for (const NodeId item : items) {
    RESHARD_TRY_ASSIGN(const std::uint64_t number, Number(document, item, what));
    out.push_back(number);
  }
  return out;
}

std::optional<DType> DTypeOfNumber(std::uint16_t number, std::uint16_t base) {
  const bool in_range = number > base && number < base + 0x100;
  return in_range && IsDType(static_cast<std::uint8_t>(number - base))
             ? std::optional(static_cast<DType>(number - base))
             : std::nullopt;
}

/// The dict of marks at the end of a tensor's arguments.
Status ReadMarks(const Document& document, NodeId node, TensorRef& tensor) {
  if (document.kind(node) == Kind::kNone) {
    return OkStatus();
  }
  if (document.kind(node) != Kind::kDict) {
    return Bad(document, node, "the marks of a tensor are no dict");
  }
  for (const auto& [name, mark] :
       {std::pair("conj", &tensor.conj), std::pair("neg", &tensor.neg)}) {
    const NodeId value = document.Find(node, name);
    if (value != pickle::kNoNode) {
      if (document.kind(value) != Kind::kBool) {
        return Bad(document, value, fmt::format("the mark {} is no boolean", name));
      }
      *mark = document.AsBool(value);
    }
  }
  return OkStatus();
}

/// The name of a call outside of the closed list, "module.name"; else empty.
std::string_view OtherName(const Document& document, std::uint16_t callable) {
  return callable >= pickle::kFirstUnknown ? document.UnknownName(callable) : std::string_view();
}

bool IsRebuild(const Document& document, std::uint16_t callable) {
  switch (callable) {
    case kRebuildTensorV2:
    case kRebuildTensorV3:
    case kRebuildParameter:
    case kRebuildFromType:
      return true;
    default: {
      const std::string_view name = OtherName(document, callable);
      return name.starts_with("torch._utils._rebuild_") ||
             name.starts_with("torch._tensor._rebuild_");
    }
  }
}

/// A call, whether it is a node of its own or lies in the arguments of another one.
struct Call {
  std::uint16_t callable = 0;
  std::span<const NodeId> args;
};

/// The call inside of one that makes a parameter, or a tensor with a class or attributes; nothing
/// when it has other arguments than torch writes.
std::optional<Call> InnerCall(const Document& document, const Call& call) {
  if (call.callable == kRebuildParameter) {  // (tensor, requires_grad, hooks[, attributes])
    const bool good =
        (call.args.size() == 3 || call.args.size() == 4) && IsTensor(document, call.args[0]);
    return good ? std::optional(Call{document.callable(call.args[0]),
                                     document.items(document.args(call.args[0]))})
                : std::nullopt;
  }
  // (call, class, arguments, attributes)
  const bool good = call.args.size() == 4 && document.kind(call.args[0]) == Kind::kGlobal &&
                    IsRebuild(document, document.global(call.args[0])) &&
                    document.kind(call.args[2]) == Kind::kTuple;
  return good ? std::optional(Call{document.global(call.args[0]), document.items(call.args[2])})
              : std::nullopt;
}

tl::unexpected<Error> CannotRead(const Document& document, NodeId node, std::string_view what) {
  return MakeError(ErrorCode::kUnsupported, kUnsupportedTensor,
                   fmt::format("byte {}: this is {}; only dense tensors of known dtypes are read",
                               document.offset(node), what));
}

/// A call that rebuilds no dense tensor.
tl::unexpected<Error> OtherKind(const Document& document, NodeId node, const Call& call) {
  const std::string_view name = OtherName(document, call.callable);
  for (const OtherTensor& other : kOtherTensors) {
    if (other.name == name) {
      return CannotRead(document, node, other.what);
    }
  }
  return CannotRead(document, node, fmt::format("a tensor that torch rebuilds with {}", name));
}

/// The dtype that a tensor names, or has from its storage. Errors: BAD_TENSOR, UNSUPPORTED_TENSOR.
Result<DType> ReadDType(const Document& document, NodeId node, const Call& call,
                        const StorageRef& storage) {
  const bool typed = call.callable == kRebuildTensorV2;
  const std::optional<DType> dtype = typed ? storage.dtype : DTypeOfGlobal(document, call.args[6]);
  if (dtype) {
    return *dtype;
  }
  if (typed && storage.quantized) {
    return CannotRead(document, node, "a quantized tensor");
  }
  if (!typed && document.kind(call.args[6]) == Kind::kGlobal) {
    const std::string_view name = OtherName(document, document.global(call.args[6]));
    if (name.starts_with("torch.")) {
      return CannotRead(document, node, fmt::format("a tensor of dtype {}", name));
    }
  }
  return Bad(document, node, "a tensor without dtype");
}

/// Offset and strides against the storage.
Status CheckView(const Document& document, NodeId node, const TensorRef& tensor) {
  if (Status status = CheckShape(tensor.size, tensor.dtype); !status.ok()) {
    return MakeError(ErrorCode::kCorruption, status.error().reason,
                     fmt::format("byte {}: {}", document.offset(node), status.error().message));
  }
  const std::uint64_t itemsize = Info(tensor.dtype).unit_bytes;
  if (tensor.storage.bytes % itemsize != 0) {
    return Bad(document, node,
               fmt::format("a storage of {} bytes does not hold whole elements of {}",
                           tensor.storage.bytes, Info(tensor.dtype).name));
  }
  const std::uint64_t numel = tensor.storage.bytes / itemsize;
  const bool empty = NumElements(tensor.size) == 0;
  std::optional<std::uint64_t> last = tensor.offset;
  for (std::size_t a = 0; last && !empty && a < tensor.size.size(); ++a) {
    const std::optional<std::uint64_t> reach = CheckedMul(tensor.size[a] - 1, tensor.stride[a]);
    last = reach ? CheckedAdd(*last, *reach) : std::nullopt;
  }
  if (!last || (empty ? *last > numel : *last >= numel)) {
    return MakeError(
        ErrorCode::kCorruption, kViewOutOfStorage,
        fmt::format("byte {}: a tensor of shape {}, strides {} and offset {} does not lie in its "
                    "storage of {} elements",
                    document.offset(node), ToString(tensor.size), ToString(tensor.stride),
                    tensor.offset, numel));
  }
  return OkStatus();
}

}  // namespace

std::string_view StorageClassOf(DType dtype) {
  for (const StorageClass& storage : kStorageClasses) {
    if (storage.dtype == dtype) {
      return storage.name;
    }
  }
  return {};
}

std::span<const GlobalRule> TensorGlobals() {
  static const std::vector<GlobalRule> rules = MakeGlobals();
  return rules;
}

std::optional<DType> DTypeOfGlobal(const Document& document, NodeId node) {
  return document.kind(node) == Kind::kGlobal ? DTypeOfNumber(document.global(node), kDTypeGlobal)
                                              : std::nullopt;
}

bool IsTensor(const Document& document, NodeId node) {
  return document.kind(node) == Kind::kObject && IsRebuild(document, document.callable(node));
}

Result<StorageRef> ReadStorage(const Document& document, NodeId node) {
  if (document.kind(node) != Kind::kPersistent) {
    return Bad(document, node, "a tensor's storage is no persistent id");
  }
  const std::span<const NodeId> id = document.items(document.items(node)[0]);
  // The older form of torch.save has a sixth part, the view of a storage, which is always None.
  const bool has_view = id.size() == 6 && document.kind(id[5]) != Kind::kNone;
  const bool good = (id.size() == 5 || id.size() == 6) && !has_view &&
                    document.kind(id[0]) == Kind::kText && document.Text(id[0]) == "storage" &&
                    document.kind(id[1]) == Kind::kGlobal && document.kind(id[2]) == Kind::kText &&
                    document.kind(id[3]) == Kind::kText;
  if (!good) {
    return Bad(document, node,
               "a persistent id that is not ('storage', class, key, device, numel)");
  }
  StorageRef storage;
  storage.key = document.Text(id[2]);
  const std::uint16_t storage_class = document.global(id[1]);
  storage.dtype = DTypeOfNumber(storage_class, kStorageGlobal);
  std::uint64_t unit_bytes = storage.dtype ? Info(*storage.dtype).unit_bytes : 1;
  for (const QuantizedStorage& quantized : kQuantizedStorages) {
    if (quantized.name == OtherName(document, storage_class)) {
      storage.quantized = true;
      unit_bytes = quantized.unit_bytes;
    }
  }
  if (storage_class >= pickle::kFirstUnknown && !storage.quantized) {
    return CannotRead(document, node,
                      fmt::format("a storage of class {}", OtherName(document, storage_class)));
  }
  if (!storage.dtype && !storage.quantized && storage_class != kUntypedStorage) {
    return Bad(document, id[1], "what should be the class of a storage is another name");
  }
  RESHARD_TRY_ASSIGN(storage.numel, Number(document, id[4], "a storage's number of elements"));
  const std::optional<std::uint64_t> bytes = CheckedMul(storage.numel, unit_bytes);
  if (!bytes) {
    return Bad(document, id[4], fmt::format("a storage of {} elements", storage.numel));
  }
  storage.bytes = *bytes;
  return storage;
}

Result<TensorRef> ReadTensor(const Document& document, NodeId node) {
  if (!IsTensor(document, node)) {
    return Bad(document, node, "this is no tensor");
  }
  Call call = {document.callable(node), document.items(document.args(node))};
  // Ends: each call lies below the one before.
  while (call.callable == kRebuildParameter || call.callable == kRebuildFromType) {
    const std::optional<Call> inner = InnerCall(document, call);
    if (!inner) {
      return Bad(document, node, "a parameter, or a tensor with attributes, that holds no tensor");
    }
    call = *inner;
  }
  if (call.callable != kRebuildTensorV2 && call.callable != kRebuildTensorV3) {
    return OtherKind(document, node, call);
  }
  const std::span<const NodeId> args = call.args;
  const std::size_t marks = call.callable == kRebuildTensorV2 ? 6 : 7;
  if (args.size() != marks && args.size() != marks + 1) {
    return Bad(document, node, fmt::format("a tensor is rebuilt from {} arguments", args.size()));
  }
  TensorRef tensor;
  RESHARD_TRY_ASSIGN(tensor.storage, ReadStorage(document, args[0]));
  RESHARD_TRY_ASSIGN(tensor.offset, Number(document, args[1], "a tensor's offset"));
  RESHARD_TRY_ASSIGN(tensor.size, Numbers(document, args[2], "tensor's size"));
  RESHARD_TRY_ASSIGN(tensor.stride, Numbers(document, args[3], "tensor's stride"));
  RESHARD_TRY_ASSIGN(tensor.dtype, ReadDType(document, node, call, tensor.storage));
  const Kind hooks = document.kind(args[5]);
  if (tensor.stride.size() != tensor.size.size() || document.kind(args[4]) != Kind::kBool ||
      (hooks != Kind::kNone && !IsCall(document, args[5], kOrderedDict))) {
    return Bad(document, node, "a tensor whose arguments are of other kinds than torch writes");
  }
  if (args.size() > marks) {
    RESHARD_TRY(ReadMarks(document, args[marks], tensor));
  }
  RESHARD_TRY(CheckView(document, node, tensor));
  return tensor;
}

Status CheckNotLazy(const TensorRef& tensor) {
  if (!tensor.conj && !tensor.neg) {
    return OkStatus();
  }
  return MakeError(
      ErrorCode::kUnsupported, kLazyView,
      fmt::format("it was saved as a {} view: the file holds other values than the "
                  "tensor has; save it from torch with .resolve_{}()",
                  tensor.conj ? "conjugated" : "negated", tensor.conj ? "conj" : "neg"));
}

}  // namespace reshard::torch
