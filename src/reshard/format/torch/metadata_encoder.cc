// The encoding half of metadata.h. docs/format/torch_dcp.md, "What we write".

#include <limits>
#include <unordered_map>

#include "reshard/base/check.h"
#include "reshard/format/pickle/emitter.h"
#include "reshard/format/torch/metadata.h"

namespace reshard::torch {
namespace {

/// Python fills its containers in such batches too; a reader's stack stays small.
constexpr std::size_t kBatch = 1000;

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFilesModule = "torch.distributed.checkpoint.filesystem";

class MetadataEncoder {
 public:
  MetadataEncoder(const Metadata& metadata, Bytes& out) : metadata_(metadata), emit_(out) {}

  void Run() {
    BeginObject(kMetadataModule, "Metadata");
    Text("state_dict_metadata");
    StateDictMetadata();
    Text("planner_data");
    PlannerData();
    Text("storage_data");
    StorageData();
    EndObject();
    emit_.Stop();
  }

 private:
  /// What stands in the memo once it was emitted.
  template <typename Emit>
  void Once(std::optional<std::uint32_t>& memo, const Emit& emit) {
    if (memo) {
      emit_.Get(*memo);
      return;
    }
    emit();
    memo = emit_.Memoize();
  }

  /// A text, which is spelt out once.
  void Text(std::string_view text) {
    Once(texts_[std::string(text)], [this, text] { emit_.Text(text); });
  }

  void Global(std::string_view module, std::string_view name) {
    Once(globals_[name], [this, module, name] { emit_.Global(module, name); });
  }

  void NewObject(std::string_view module, std::string_view name) {
    Global(module, name);
    emit_.EmptyTuple();
    emit_.NewObject();
  }

  /// An object whose fields follow.
  void BeginObject(std::string_view module, std::string_view name) {
    NewObject(module, name);
    emit_.EmptyDict();
    emit_.Mark();
  }

  void EndObject() {
    emit_.SetItems();
    emit_.Build();
  }

  /// Emits `count` elements of a container that is filled in batches by `end`.
  template <typename Element>
  void InBatches(std::size_t count, void (pickle::Emitter::*end)(), const Element& element) {
    for (std::size_t i = 0; i < count; ++i) {
      if (i % kBatch == 0) {
        emit_.Mark();
      }
      element(i);
      if ((i + 1) % kBatch == 0 || i + 1 == count) {
        (emit_.*end)();
      }
    }
  }

  void Number(std::uint64_t number) {
    RESHARD_CHECK(number <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
    emit_.Int(static_cast<std::int64_t>(number));
  }

  /// torch.Size((...))
  void Size(std::span<const std::uint64_t> numbers) {
    Global("torch", "Size");
    if (numbers.empty()) {
      emit_.EmptyTuple();
    } else {
      emit_.Mark();
      for (const std::uint64_t number : numbers) {
        Number(number);
      }
      emit_.Tuple();
    }
    emit_.TupleOf(1);
    emit_.Reduce();
  }

  /// Says what the tensor's dtype is, and the defaults of the rest.
  void Properties(DType dtype) {
    Once(properties_[dtype], [this, dtype] {
      NewObject(kMetadataModule, "TensorProperties");
      emit_.Mark();
      Global("torch", Info(dtype).name);
      Once(layout_, [this] {
        Global("torch.serialization", "_get_layout");
        emit_.Text("torch.strided");
        emit_.TupleOf(1);
        emit_.Reduce();
      });
      emit_.Bool(false);  // requires_grad
      Once(memory_format_, [this] {
        Global(kMetadataModule, "_MEM_FORMAT_ENCODING");
        emit_.Int(0);  // contiguous
        emit_.TupleOf(1);
        emit_.Reduce();
      });
      emit_.Bool(false);  // pin_memory
      emit_.Tuple();
      emit_.Build();
    });
  }

  void StateDictMetadata() {
    emit_.EmptyDict();
    const auto& tensors = metadata_.tensors;
    InBatches(tensors.size(), &pickle::Emitter::SetItems, [this, &tensors](std::size_t i) {
      Text(tensors[i].key);
      TensorStorage(tensors[i]);
    });
    InBatches(metadata_.bytes.size(), &pickle::Emitter::SetItems, [this](std::size_t i) {
      Text(metadata_.bytes[i].key);
      NewObject(kMetadataModule, "BytesStorageMetadata");
    });
  }

  void TensorStorage(const MetadataTensor& tensor) {
    BeginObject(kMetadataModule, "TensorStorageMetadata");
    Text("properties");
    Properties(tensor.dtype);
    Text("size");
    Size(tensor.shape);
    Text("chunks");
    emit_.EmptyList();
    InBatches(tensor.chunks.size(), &pickle::Emitter::Appends, [this, &tensor](std::size_t i) {
      BeginObject(kMetadataModule, "ChunkStorageMetadata");
      Text("offsets");
      Size(tensor.chunks[i].box.offset);
      Text("sizes");
      Size(tensor.chunks[i].box.extent);
      EndObject();
    });
    EndObject();
  }

  void PlannerData() {
    emit_.EmptyDict();
    const auto entry = [this](const std::string& key, const std::optional<Path>& path) {
      RESHARD_CHECK(path.has_value());
      Text(key);
      emit_.Mark();
      for (const PathPart& part : *path) {
        if (const auto* index = std::get_if<ListIndex>(&part)) {
          Number(index->position);
        } else {
          Text(FlatKey({part}));  // torch has integer keys as text
        }
      }
      emit_.Tuple();
    };
    InBatches(metadata_.tensors.size(), &pickle::Emitter::SetItems,
              [&](std::size_t i) { entry(metadata_.tensors[i].key, metadata_.tensors[i].path); });
    InBatches(metadata_.bytes.size(), &pickle::Emitter::SetItems,
              [&](std::size_t i) { entry(metadata_.bytes[i].key, metadata_.bytes[i].path); });
  }

  void StorageData() {
    emit_.EmptyDict();
    for (const MetadataTensor& tensor : metadata_.tensors) {
      InBatches(tensor.chunks.size(), &pickle::Emitter::SetItems, [this, &tensor](std::size_t i) {
        BeginIndex(tensor.key);
        Number(i);
        Text("offset");
        Size(tensor.chunks[i].box.offset);
        EndObject();
        StorageInfo(tensor.chunks[i].place);
      });
    }
    InBatches(metadata_.bytes.size(), &pickle::Emitter::SetItems, [this](std::size_t i) {
      BeginIndex(metadata_.bytes[i].key);
      emit_.None();
      EndObject();
      StorageInfo(metadata_.bytes[i].place);
    });
  }

  /// Up to the value of `index`.
  void BeginIndex(const std::string& key) {
    BeginObject(kMetadataModule, "MetadataIndex");
    Text("fqn");
    Text(key);
    Text("index");
  }

  void StorageInfo(const RecordPlace& place) {
    RESHARD_CHECK(!place.zstd);
    BeginObject(kFilesModule, "_StorageInfo");
    Text("relative_path");
    Text(metadata_.files[place.file]);
    Text("offset");
    Number(place.bytes.offset);
    Text("length");
    Number(place.bytes.size);
    EndObject();
  }

  const Metadata& metadata_;
  pickle::Emitter emit_;
  std::unordered_map<std::string, std::optional<std::uint32_t>> texts_;
  std::unordered_map<std::string_view, std::optional<std::uint32_t>> globals_;
  std::unordered_map<DType, std::optional<std::uint32_t>> properties_;
  std::optional<std::uint32_t> layout_;
  std::optional<std::uint32_t> memory_format_;
};

}  // namespace

Bytes EncodeMetadata(const Metadata& metadata) {
  Bytes out;
  MetadataEncoder(metadata, out).Run();
  return out;
}

}  // namespace reshard::torch
