#include "reshard/format/safetensors/data_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "reshard/catalog/wire.h"
#include "reshard/format/safetensors/header.h"
#include "reshard/format/safetensors/json_walk_internal.h"

namespace reshard::safetensors {
namespace {

/// Keys of `__metadata__` that every writer sets, or that are read here.
constexpr std::array<std::string_view, 3> kKnownKeys = {"format", "DCP_VERSION", kShardingKey};

using Places = std::unordered_map<std::string, Index>;

/// DCP_SHARDING_INFO: {"name": {"saved_offsets": [0, 3]}, ...}
class ShardingHandler final : public JsonWalk {
 public:
  Places places;

 private:
  bool in_offsets() const { return keys().size() == 3 && keys()[1] == "saved_offsets"; }

  bool OnText(std::string& /*text*/) override { return OnOther(); }

  bool OnNumber(std::uint64_t number) override {
    if (!in_offsets()) {
      return OnOther();
    }
    current_->push_back(number);
    return current_->size() <= kMaxAxes || OnOther();
  }

  bool OnOther() override {
    // Unknown facts of a tensor are passed over.
    return (keys().size() >= 2 && keys()[1] != "saved_offsets") ||
           Fail(kBadMetadata, fmt::format("{} is no map from names to offsets", kShardingKey));
  }

  bool OnBegin(bool object) override {
    if (keys().size() <= 2) {
      return object || OnOther();
    }
    if (keys()[1] != "saved_offsets") {
      return true;
    }
    const auto [at, added] = places.try_emplace(keys()[0]);
    current_ = &at->second;
    return (!object && keys().size() == 3 && added) ||
           Fail(kBadMetadata,
                fmt::format("{}: odd or repeated offsets of '{}'", kShardingKey, keys()[0]));
  }

  std::string_view syntax_reason() const override { return kBadMetadata; }

  Index* current_ = nullptr;
};

Result<Places> ParseSharding(std::string_view text) {
  ShardingHandler handler;
  if (!handler.Run(text)) {
    return handler.error ? Result<Places>(tl::unexpect, std::move(*handler.error))
                         : MakeError(ErrorCode::kCorruption, kBadMetadata,
                                     fmt::format("{} is no JSON", kShardingKey));
  }
  return std::move(handler.places);
}

bool ReadTensor(WireReader& reader, StoredTensor& tensor) {
  ByteSpan name;
  std::uint8_t dtype = 0;
  std::uint8_t axes = 0;
  std::uint8_t placed = 0;
  if (!reader.ReadCounted(name) || !reader.Read(dtype) || !reader.Read(axes) ||
      !reader.Read(placed) || !reader.Read(tensor.offset) || !IsDType(dtype) || axes > kMaxAxes) {
    return false;
  }
  tensor.name = AsText(name);
  tensor.dtype = static_cast<DType>(dtype);
  tensor.shape.resize(axes);
  if (!reader.ReadNumbers(tensor.shape)) {
    return false;
  }
  if (placed != 0) {
    tensor.place.emplace(axes);
    return reader.ReadNumbers(*tensor.place);
  }
  return true;
}

}  // namespace

Result<DataFile> ReadDataFile(ByteSource& source) {
  RESHARD_TRY_ASSIGN(Header header, ReadHeader(source));
  DataFile file;
  Places places;
  for (const auto& [key, text] : header.metadata) {
    if (key == kShardingKey) {
      file.has_sharding = true;
      RESHARD_TRY_ASSIGN(places, ParseSharding(text));
    } else if (std::find(kKnownKeys.begin(), kKnownKeys.end(), key) == kKnownKeys.end()) {
      file.metadata_keys.push_back(key);
    }
  }
  file.tensors.reserve(header.entries.size());
  for (Entry& entry : header.entries) {
    StoredTensor tensor{std::move(entry.name), entry.dtype, std::move(entry.shape),
                        entry.bytes.offset, std::nullopt};
    if (const auto at = places.find(tensor.name); at != places.end()) {
      if (at->second.size() != tensor.shape.size()) {
        return MakeError(ErrorCode::kCorruption, kBadMetadata,
                         fmt::format("tensor '{}': {} offsets for {} axes in {}", tensor.name,
                                     at->second.size(), tensor.shape.size(), kShardingKey));
      }
      tensor.place = std::move(at->second);
    }
    file.tensors.push_back(std::move(tensor));
  }
  return file;
}

Bytes EncodeDataFile(const DataFile& file) {
  Bytes out;
  out.push_back(std::byte{file.has_sharding});
  AppendTexts(out, file.metadata_keys);
  for (const StoredTensor& tensor : file.tensors) {
    AppendCounted(out, AsBytes(tensor.name));
    AppendLittle(out, static_cast<std::uint8_t>(tensor.dtype));
    AppendLittle(out, static_cast<std::uint8_t>(tensor.shape.size()));
    out.push_back(std::byte{tensor.place.has_value()});
    AppendLittle(out, tensor.offset);
    AppendNumbers(out, tensor.shape);
    if (tensor.place) {
      AppendNumbers(out, *tensor.place);
    }
  }
  return out;
}

Result<DataFile> DecodeDataFile(ByteSpan bytes) {
  WireReader reader(bytes);
  DataFile file;
  std::uint8_t sharding = 0;
  if (!reader.Read(sharding) || !ReadTexts(reader, file.metadata_keys)) {
    return BadMessage("safetensors file");
  }
  file.has_sharding = sharding != 0;
  while (!reader.AtEnd()) {
    if (!ReadTensor(reader, file.tensors.emplace_back())) {
      return BadMessage("safetensors file");
    }
  }
  return file;
}

}  // namespace reshard::safetensors
