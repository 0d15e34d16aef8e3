#pragma once

// A Paddle checkpoint held in memory, opened as the engine opens one, without an engine.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>

#include "reshard/format/foreign.h"
#include "reshard/format/paddle/data_file.h"
#include "reshard/format/paddle/format.h"
#include "reshard/tensor/strided.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {

/// Names and bytes of one directory.
using PaddleFiles = std::map<std::string, Bytes>;

/// What Format() makes of the checkpoint `ref`.
inline Result<Assembled> OpenPaddle(const PaddleFiles& files, const ForeignRef& ref) {
  const ForeignFormat& format = paddle::Format();
  MemorySource source(files.at(ref.metadata_name));
  RESHARD_TRY_ASSIGN(const std::unique_ptr<ForeignMetadata> metadata,
                     format.ReadMetadata(ref, std::array<ByteSource*, 1>{&source}));
  std::vector<ExaminedFile> examined;
  for (const std::string& name : metadata->files()) {
    ExaminedFile& file = examined.emplace_back();
    const auto found = files.find(name);
    if (found == files.end()) {
      file.found = MakeError(ErrorCode::kNotFound, "FILE_MISSING", "there is no such file");
      continue;
    }
    MemorySource data(found->second);
    file.size = data.size();
    file.mtime_ns = 17;
    file.found = format.Examine(name, data, {});
  }
  return format.Assemble(ref, *metadata, examined);
}

/// The bytes of a chunk as they stand in its file, dense and in the chunk's order.
inline Bytes ChunkBytes(const Catalog& catalog, const PaddleFiles& files, TensorId tensor,
                        std::size_t index) {
  const Chunk chunk = catalog.chunk(tensor, index);
  const FileEntry& entry = catalog.files()[chunk.file];
  MemorySource raw(files.at(entry.name));
  Bytes out(catalog.chunk_bytes(tensor, index));
  if (entry.encoding == FileEncoding::kRaw) {
    EXPECT_OK(raw.ReadAt(chunk.byte_offset, out));
    return out;
  }
  Result<std::unique_ptr<ByteSource>> decoded = paddle::DecodePickleText(raw);
  EXPECT_OK(decoded);
  EXPECT_EQ((*decoded)->size(), entry.size);
  EXPECT_OK((*decoded)->ReadAt(chunk.byte_offset, out));
  return out;
}

/// The whole tensor, row-major, gathered element by element.
inline Bytes PaddleTensorBytes(const Catalog& catalog, const PaddleFiles& files, TensorId tensor) {
  const std::span<const std::uint64_t> shape = catalog.shape(tensor);
  const std::uint64_t item = Info(catalog.dtype(tensor)).unit_bytes;
  Bytes out(catalog.num_bytes(tensor));
  for (std::size_t c = 0; c < catalog.num_chunks(tensor); ++c) {
    const Chunk chunk = catalog.chunk(tensor, c);
    const Bytes bytes = ChunkBytes(catalog, files, tensor, c);
    const std::vector<std::size_t> axes = AxesInFile(chunk.order, shape.size());
    std::vector<std::uint64_t> file_stride(shape.size());
    std::uint64_t dense = 1;
    for (std::size_t i = axes.size(); i-- > 0;) {
      file_stride[axes[i]] = dense;
      dense *= chunk.box.extent[axes[i]];
    }
    for (std::uint64_t i = 0; i < NumElements(chunk.box); ++i) {
      std::uint64_t rest = i;
      std::uint64_t place = 0;  // in the tensor
      std::uint64_t from = 0;   // in the chunk
      std::uint64_t stride = 1;
      for (std::size_t a = shape.size(); a-- > 0;) {
        const std::uint64_t at = rest % chunk.box.extent[a];
        rest /= chunk.box.extent[a];
        place += (chunk.box.offset[a] + at) * stride;
        stride *= shape[a];
        from += at * file_stride[a];
      }
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(from * item), item,
                  out.begin() + static_cast<std::ptrdiff_t>(place * item));
    }
  }
  return out;
}

}  // namespace reshard::testing
