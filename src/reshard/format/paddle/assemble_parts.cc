// What both kinds of Paddle checkpoints need to become a catalog.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "reshard/base/check.h"
#include "reshard/format/paddle/assemble_internal.h"
#include "reshard/tensor/mesh.h"

namespace reshard::paddle {
namespace {

/// As Paddle itself reads it: the number before the first '_' of what stands before the first '.'.
std::uint64_t RankOf(std::string_view name) {
  const std::string_view number = name.substr(0, name.find('.'));
  const std::string_view digits = number.substr(0, number.find('_'));
  std::uint64_t rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  return error == std::errc() && end == digits.data() + digits.size() ? rank : 0;
}

}  // namespace

PaddleMetadata::PaddleMetadata(Metadata metadata) : metadata_(std::move(metadata)) {
  std::vector<std::uint32_t> order(metadata_.files.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
    return metadata_.files[a] < metadata_.files[b];
  });
  places_.resize(order.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    places_[order[i]] = i;
    files_.push_back(metadata_.files[order[i]]);
  }
}

FileEntry MakeFileEntry(const std::string& name, const ExaminedFile& examined,
                        const DataFile& file) {
  FileEntry entry;
  entry.name = name;
  entry.rank = RankOf(name);
  entry.size = file.encoding == FileEncoding::kRaw ? examined.size : file.decoded_bytes;
  entry.mtime_ns = examined.mtime_ns;
  entry.has_blocks = false;
  entry.encoding = file.encoding;
  return entry;
}

Status Chunks::Add(const Shape& offset, const Shape& shape, DType dtype, const StoredRun& run,
                   std::uint32_t file) {
  const Box local{offset, shape};
  std::vector<Box> parts = {local};
  if (!run.whole) {
    Result<std::vector<Box>> boxes_of_range = FlattenedRangeToBoxes(local, run.begin, run.end);
    if (!boxes_of_range.ok()) {
      return FromFile(tl::unexpected<Error>(std::move(boxes_of_range).error()));
    }
    parts = std::move(*boxes_of_range);
  }
  std::uint64_t at = run.byte_offset;
  for (Box& part : parts) {
    if (IsEmpty(part)) {
      continue;
    }
    offsets.push_back(at);
    at += NumBytes(part, dtype);
    boxes.push_back(std::move(part));
    files.push_back(file);
    orders.push_back(run.order);
  }
  return OkStatus();
}

Status AddTensorTo(CatalogBuilder& builder, const std::string& key, const Path& path, DType dtype,
                   const Shape& shape, const Chunks& chunks) {
  if (key.empty()) {
    return MakeError(ErrorCode::kCorruption, "BAD_KEY", "a tensor has an empty key");
  }
  RESHARD_TRY(FromFile(CheckShape(shape, dtype)));
  const std::uint64_t total = NumBytes(shape, dtype);
  std::uint64_t bytes = 0;
  for (const Box& box : chunks.boxes) {
    RESHARD_TRY(FromFile(CheckBox(box, shape, dtype)));
    bytes += NumBytes(box, dtype);
    if (bytes > total) {
      break;
    }
  }
  if (bytes != total) {
    return MakeError(ErrorCode::kCorruption, "COVERAGE",
                     fmt::format("its pieces hold {}{} bytes, its shape {} needs {}",
                                 bytes > total ? "more than " : "", std::min(bytes, total),
                                 ToString(shape), total));
  }
  builder.AddTensor(key, path, dtype, shape, std::nullopt);
  for (std::size_t i = 0; i < chunks.boxes.size(); ++i) {
    builder.AddChunk(chunks.boxes[i], chunks.files[i], chunks.offsets[i], chunks.orders[i]);
  }
  return OkStatus();
}

}  // namespace reshard::paddle
