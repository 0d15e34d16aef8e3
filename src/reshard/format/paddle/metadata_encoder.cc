// The encoding half of metadata.h. docs/format/paddle.md, "What we write".

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "reshard/base/check.h"
#include "reshard/format/paddle/metadata.h"
#include "reshard/format/pickle/emitter.h"
#include "reshard/format/release_internal.h"

namespace reshard::paddle {
namespace {

/// Python fills its containers in such batches too; a reader's stack stays small.
constexpr std::size_t kBatch = 1000;

std::string_view ModuleOf(Flavour flavour) {
  return flavour == Flavour::kLegacy ? "paddle.distributed.checkpoint.metadata"
                                     : "paddle.distributed.flex_checkpoint.dcp.metadata";
}

class MetadataEncoder {
 public:
  MetadataEncoder(const Metadata& metadata, Flavour flavour, Bytes& out)
      : metadata_(metadata), module_(ModuleOf(flavour)), emit_(out) {
    for (const MetadataTensor& tensor : metadata.tensors) {
      has_replicas_ = has_replicas_ || std::any_of(tensor.pieces.begin(), tensor.pieces.end(),
                                                   [](const Piece& p) { return p.replica != 0; });
    }
  }

  void Run() {
    NewObject("Metadata");
    emit_.EmptyDict();
    emit_.Mark();
    Text("state_dict_metadata");
    Shards();
    Text("storage_metadata");
    Storage();
    Text("flat_mapping");
    FlatMapping();
    emit_.SetItems();
    emit_.Build();
    emit_.Stop();
  }

 private:
  /// A text, which is spelt out once.
  void Text(std::string_view text) {
    const auto [at, fresh] = texts_.try_emplace(std::string(text), 0);
    if (!fresh) {
      emit_.Get(at->second);
      return;
    }
    emit_.Text(text);
    at->second = emit_.Memoize();
  }

  void NewObject(std::string_view name) {
    const auto [at, fresh] = classes_.try_emplace(name, 0);
    if (fresh) {
      emit_.Global(module_, name);
      at->second = emit_.Memoize();
    } else {
      emit_.Get(at->second);
    }
    emit_.EmptyTuple();
    emit_.NewObject();
  }

  void Numbers(std::span<const std::uint64_t> numbers) {
    if (numbers.empty()) {
      emit_.EmptyTuple();
      return;
    }
    if (numbers.size() > 3) {
      emit_.Mark();
    }
    for (const std::uint64_t number : numbers) {
      RESHARD_CHECK(number <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
      emit_.Int(static_cast<std::int64_t>(number));
    }
    if (numbers.size() > 3) {
      emit_.Tuple();
    } else {
      emit_.TupleOf(static_cast<int>(numbers.size()));
    }
  }

  /// Begins the next element of a container that is filled in batches.
  void BeginElement(std::size_t index) {
    if (index % kBatch == 0) {
      emit_.Mark();
    }
  }

  /// Whether element `index` of `count` ends its batch.
  static bool EndsBatch(std::size_t index, std::size_t count) {
    return (index + 1) % kBatch == 0 || index + 1 == count;
  }

  void Flattening(const Piece& piece) {
    Text("is_flattened");
    emit_.Bool(piece.flat.has_value());
    Text("flattened_range");
    if (!piece.flat) {
      emit_.None();
      return;
    }
    const std::uint64_t range[] = {piece.flat->begin, piece.flat->end};
    Numbers(range);
  }

  void Shards() {
    emit_.EmptyDict();
    const auto& tensors = metadata_.tensors;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      BeginElement(t);
      Text(tensors[t].key);
      ShardList(tensors[t]);
      if (EndsBatch(t, tensors.size())) {
        emit_.SetItems();
      }
    }
  }

  void ShardList(const MetadataTensor& tensor) {
    emit_.EmptyList();
    const auto main = [](const Piece& piece) { return piece.replica == 0; };
    const auto count =
        static_cast<std::size_t>(std::count_if(tensor.pieces.begin(), tensor.pieces.end(), main));
    std::size_t i = 0;
    for (const Piece& piece : tensor.pieces) {
      if (!main(piece)) {
        continue;
      }
      BeginElement(i);
      Shard(tensor, piece);
      if (EndsBatch(i++, count)) {
        emit_.Appends();
      }
    }
  }

  void Shard(const MetadataTensor& tensor, const Piece& piece) {
    NewObject("LocalTensorMetadata");
    emit_.EmptyDict();
    emit_.Mark();
    Text("global_offset");
    Numbers(piece.global_offset);
    Text("local_shape");
    Numbers(piece.local_shape);
    Text("dtype");
    Text(Info(*tensor.dtype).name);
    Text("global_shape");
    Numbers(*tensor.shape);
    Flattening(piece);
    emit_.SetItems();
    emit_.Build();
  }

  void Storage() {
    emit_.EmptyDict();
    std::size_t count = 0;
    for (const MetadataTensor& tensor : metadata_.tensors) {
      count += tensor.pieces.size();
    }
    std::size_t i = 0;
    for (const MetadataTensor& tensor : metadata_.tensors) {
      for (const Piece& piece : tensor.pieces) {
        BeginElement(i);
        PieceIndex(tensor, piece);
        Text(metadata_.files[piece.file]);
        if (EndsBatch(i++, count)) {
          emit_.SetItems();
        }
      }
    }
  }

  void PieceIndex(const MetadataTensor& tensor, const Piece& piece) {
    NewObject("LocalTensorIndex");
    emit_.EmptyDict();
    emit_.Mark();
    Text("tensor_key");
    Text(tensor.key);
    Text("global_offset");
    Numbers(piece.global_offset);
    Flattening(piece);
    Text("replica_id");
    if (has_replicas_) {
      emit_.Int(static_cast<std::int64_t>(piece.replica));
    } else {
      emit_.None();
    }
    Text("local_shape");
    Numbers(piece.local_shape);
    emit_.SetItems();
    emit_.Build();
  }

  void FlatMapping() {
    if (!metadata_.has_flat_mapping) {
      emit_.None();
      return;
    }
    emit_.EmptyDict();
    const auto& mapping = metadata_.flat_mapping;
    for (std::size_t i = 0; i < mapping.size(); ++i) {
      BeginElement(i);
      Text(mapping[i].first);
      emit_.Mark();
      for (const PathPart& part : mapping[i].second) {
        Text(FlatKey({part}));
      }
      emit_.Tuple();
      if (EndsBatch(i, mapping.size())) {
        emit_.SetItems();
      }
    }
  }

  const Metadata& metadata_;
  std::string_view module_;
  pickle::Emitter emit_;
  bool has_replicas_ = false;
  std::unordered_map<std::string, std::uint32_t> texts_;
  std::unordered_map<std::string_view, std::uint32_t> classes_;
};

}  // namespace

Result<Flavour> FlavourOfRelease(std::string_view release) {
  const std::optional<int> number = ReleaseNumber(release);
  if (number == 206 || number == 300 || number == 301) {
    return Flavour::kLegacy;
  }
  if (number && *number >= 302 && *number <= 304) {
    return Flavour::kFlex;
  }
  return MakeError(ErrorCode::kInvalidArgument, "BAD_RELEASE",
                   fmt::format("'{}' is no release of Paddle whose format is known; choose 2.6, "
                               "3.0, 3.1, 3.2, 3.3 or 3.4",
                               release));
}

Bytes EncodeMetadata(const Metadata& metadata, Flavour flavour) {
  Bytes out;
  MetadataEncoder(metadata, flavour, out).Run();
  return out;
}

}  // namespace reshard::paddle
