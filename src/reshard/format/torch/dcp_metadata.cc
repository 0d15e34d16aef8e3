// What the engine needs to know of DCP's metadata.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "reshard/base/check.h"
#include "reshard/format/torch/assemble_internal.h"
#include "reshard/format/zip/archive.h"

namespace reshard::torch {
namespace {

/// A tensor's archive has little beside its elements.
constexpr std::uint64_t kArchiveOverhead = kMaxTensorPickle + (std::uint64_t{1} << 20);

Status CheckRecords(const std::string& file, std::span<const WantedRecord> records) {
  for (std::size_t i = 1; i < records.size(); ++i) {
    const ByteRange& before = records[i - 1].bytes;
    const ByteRange& record = records[i].bytes;
    if (record.offset < before.end() || record.offset == before.offset) {
      return MakeError(ErrorCode::kCorruption, zip::kOverlap,
                       fmt::format("file '{}': the records at bytes [{}, {}) and [{}, {}) overlap",
                                   file, before.offset, before.end(), record.offset, record.end()));
    }
    if (records[i - 1].zstd != records[i].zstd) {
      return MakeError(ErrorCode::kUnsupported, kBadMetadata,
                       fmt::format("file '{}': some of its records are compressed and others are "
                                   "not; save the checkpoint anew from torch with one setting",
                                   file));
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<DcpMetadata>> DcpMetadata::Create(Metadata metadata) {
  auto out = std::make_unique<DcpMetadata>();
  std::vector<std::uint32_t> order(metadata.files.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&metadata](std::uint32_t a, std::uint32_t b) {
    return metadata.files[a] < metadata.files[b];
  });
  out->places_.resize(order.size());
  for (const std::uint32_t number : order) {
    out->places_[number] = static_cast<std::uint32_t>(out->files_.size());
    out->files_.push_back(metadata.files[number]);
  }
  out->wanted_.resize(out->files_.size());
  for (const MetadataTensor& tensor : metadata.tensors) {
    for (const MetadataChunk& chunk : tensor.chunks) {
      if (!IsEmpty(chunk.box)) {
        out->wanted_[out->places_[chunk.place.file]].push_back(
            {chunk.place.bytes, false, chunk.place.zstd,
             NumBytes(chunk.box, tensor.dtype) + kArchiveOverhead});
      }
    }
  }
  for (const MetadataBytes& value : metadata.bytes) {
    out->wanted_[out->places_[value.place.file]].push_back(
        {value.place.bytes, true, value.place.zstd, kMaxValueBytes});
  }
  for (std::size_t i = 0; i < out->files_.size(); ++i) {
    std::sort(out->wanted_[i].begin(), out->wanted_[i].end(),
              [](const WantedRecord& a, const WantedRecord& b) {
                return a.bytes.offset < b.bytes.offset;
              });
    RESHARD_TRY(CheckRecords(out->files_[i], out->wanted_[i]));
  }
  out->metadata_ = std::move(metadata);
  return out;
}

std::size_t DcpMetadata::RecordNumber(const RecordPlace& place) const {
  const std::vector<WantedRecord>& records = wanted_[places_[place.file]];
  const auto found = std::partition_point(
      records.begin(), records.end(),
      [&place](const WantedRecord& r) { return r.bytes.offset < place.bytes.offset; });
  RESHARD_CHECK(found != records.end() && found->bytes == place.bytes);
  return static_cast<std::size_t>(found - records.begin());
}

Result<Metadata> UniteMetadata(std::vector<Metadata> ranks) {
  Metadata out;
  std::unordered_map<std::string, std::size_t> tensor_of;
  std::unordered_map<std::string, std::size_t> value_of;
  std::unordered_map<std::string, std::uint32_t> file_of;
  for (Metadata& rank : ranks) {
    std::vector<std::uint32_t> files;
    files.reserve(rank.files.size());
    for (const std::string& file : rank.files) {
      const auto [at, is_new] =
          file_of.try_emplace(file, static_cast<std::uint32_t>(out.files.size()));
      if (is_new) {
        out.files.push_back(file);
      }
      files.push_back(at->second);
    }
    for (MetadataTensor& tensor : rank.tensors) {
      for (MetadataChunk& chunk : tensor.chunks) {
        chunk.place.file = files[chunk.place.file];
      }
      const auto [at, is_new] = tensor_of.try_emplace(tensor.key, out.tensors.size());
      if (is_new) {
        out.tensors.push_back(std::move(tensor));
        continue;
      }
      MetadataTensor& have = out.tensors[at->second];
      if (have.dtype != tensor.dtype || have.shape != tensor.shape) {
        return MakeError(ErrorCode::kCorruption, kBadMetadata,
                         fmt::format("two ranks disagree on dtype or shape of tensor '{}'",
                                     have.key));
      }
      have.chunks.insert(have.chunks.end(), std::make_move_iterator(tensor.chunks.begin()),
                         std::make_move_iterator(tensor.chunks.end()));
    }
    for (MetadataBytes& value : rank.bytes) {
      value.place.file = files[value.place.file];
      if (value_of.try_emplace(value.key, out.bytes.size()).second) {
        out.bytes.push_back(std::move(value));
      }
    }
  }
  for (MetadataTensor& tensor : out.tensors) {  // equal boxes once: the first rank's
    std::stable_sort(tensor.chunks.begin(), tensor.chunks.end(),
                     [](const MetadataChunk& a, const MetadataChunk& b) {
                       return std::tie(a.box.offset, a.box.extent) <
                              std::tie(b.box.offset, b.box.extent);
                     });
    const auto last = std::unique(
        tensor.chunks.begin(), tensor.chunks.end(),
        [](const MetadataChunk& a, const MetadataChunk& b) { return a.box == b.box; });
    tensor.chunks.erase(last, tensor.chunks.end());
  }
  return out;
}

}  // namespace reshard::torch
