#pragma once

// Saves in foreign formats: a state dict that is cut in every way, and checks of all that a
// directory holds of it by our index.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "reshard/codec/crc64.h"
#include "reshard/engine/foreign.h"
#include "tests/support/states.h"

namespace reshard::testing {

inline SaveOptions ForeignOptionsOf(const std::string& format, bool overwrite = false) {
  SaveOptions options;
  options.format = format;
  options.overwrite = overwrite;
  options.threads = 1;
  return options;
}

/// One tensor cut by rows, one by columns into two boxes per rank, one that all have.
inline StateDict StateOf(std::uint64_t salt, int rank, int size) {
  const Shape columns = {6, 40};
  StateDict state;
  const Shape rows = {23, 8};
  state["model"]["rows"] =
      PatternTensor(DType::kFloat32, rows, {CutBox(rows, 0, rank, size)}, salt + 1);
  state["model"]["columns"] = PatternTensor(
      DType::kBfloat16, columns,
      {CutBox(columns, 1, rank, 2 * size), CutBox(columns, 1, rank + size, 2 * size)}, salt + 2);
  state["opt"]["same"] = PatternTensor(DType::kInt64, {31}, {WholeBox(Shape{31})}, salt + 3);
  state["step"] = PatternTensor(DType::kUint8, {}, {WholeBox(Shape{})}, salt + 4);
  return state;
}

/// The result of rank 0; all have one outcome.
inline Result<SaveResult> SaveOn(int ranks, Storage& storage, std::uint64_t salt,
                                 const SaveOptions& options) {
  auto results = OnRanks(ranks, [&](ProcessGroup& group) {
    return Save(StateOf(salt, group.rank(), ranks), storage, group, options);
  });
  ExpectOneOutcome(results);
  return std::move(results[0]);
}

/// Saves `state` on one rank.
inline Result<SaveResult> SaveOne(const StateDict& state, Storage& storage,
                                  const SaveOptions& options) {
  const auto group = SingleProcessGroup();
  return Save(state, storage, *group, options);
}

inline Catalog IndexOf(Storage& storage, const ForeignRef& ref) {
  auto index = ReadIndex(storage, ref);
  EXPECT_OK(index);
  EXPECT_TRUE(index->catalog.has_value()) << "no index that fits";
  return std::move(*index->catalog);
}

/// Checks every element of a tensor against its pattern, by the index.
inline void CheckTensor(Storage& storage, const Catalog& catalog, std::string_view key,
                        std::uint64_t salt) {
  const TensorId t = catalog.Find(key).value();
  const auto shape = catalog.shape(t);
  Tensor whole = TargetTensor(catalog.dtype(t), Shape(shape.begin(), shape.end()), {});
  for (std::size_t c = 0; c < catalog.num_chunks(t); ++c) {
    const Chunk chunk = catalog.chunk(t, c);
    whole.shards.push_back(AllocateShard(whole.dtype, chunk.box.ToBox()));
    const Bytes file = ReadObject(storage, catalog.files()[chunk.file].name);
    std::copy_n(file.begin() + static_cast<std::ptrdiff_t>(chunk.byte_offset),
                catalog.chunk_bytes(t, c), whole.shards.back().view.data);
  }
  EXPECT_EQ(CountWrong(whole, salt), 0U) << key;
  EXPECT_OK(catalog.CheckCoverage(t));
  Tensor dense =
      PatternTensor(whole.dtype, whole.global_shape, {WholeBox(whole.global_shape)}, salt);
  EXPECT_EQ(catalog.digest(t), Crc64({dense.shards[0].view.data, catalog.num_bytes(t)})) << key;
}

inline void CheckAll(Storage& storage, const ForeignRef& ref, std::uint64_t salt) {
  const Catalog catalog = IndexOf(storage, ref);
  CheckTensor(storage, catalog, "model.rows", salt + 1);
  CheckTensor(storage, catalog, "model.columns", salt + 2);
  CheckTensor(storage, catalog, "opt.same", salt + 3);
  CheckTensor(storage, catalog, "step", salt + 4);
  for (std::uint32_t f = 0; f < catalog.files().size(); ++f) {
    const FileEntry& file = catalog.files()[f];
    const Bytes bytes = ReadObject(storage, file.name);
    EXPECT_EQ(file.size, bytes.size());
    EXPECT_EQ(file.payload_offset, 0U);
    for (std::uint64_t b = 0; b < file.num_blocks(); ++b) {
      const ByteRange range = file.Block(b);
      EXPECT_EQ(catalog.BlockChecksum(f, b),
                Crc64(ByteSpan(bytes).subspan(range.offset, range.size)));
    }
  }
}

/// Loads on `ranks` ranks into columns and compares.
inline void ExpectLoads(int ranks, Storage& storage, std::uint64_t salt) {
  const auto results = OnRanks(ranks, [&](ProcessGroup& group) {
    const int rank = group.rank();
    const Shape rows = {23, 8};
    const Shape columns = {6, 40};
    StateDict state;
    state["model"]["rows"] = TargetTensor(DType::kFloat32, rows, {CutBox(rows, 1, rank, ranks)});
    state["model"]["columns"] =
        TargetTensor(DType::kBfloat16, columns, {CutBox(columns, 0, rank, ranks)});
    state["opt"]["same"] = TargetTensor(DType::kInt64, {31}, {WholeBox(Shape{31})});
    state["step"] = TargetTensor(DType::kUint8, {}, {WholeBox(Shape{})});
    auto report = Load(state, storage, group);
    const auto wrong = [&state](const char* outer, const char* key, std::uint64_t s) {
      const Value* at = outer == nullptr ? &state : state.Find(outer);
      return CountWrong(*at->Find(key)->get_if<Tensor>(), s);
    };
    EXPECT_EQ(wrong("model", "rows", salt + 1), 0U);
    EXPECT_EQ(wrong("model", "columns", salt + 2), 0U);
    EXPECT_EQ(wrong("opt", "same", salt + 3), 0U);
    EXPECT_EQ(wrong(nullptr, "step", salt + 4), 0U);
    return report;
  });
  ExpectOneOutcome(results);
  EXPECT_OK(results[0]);
}

}  // namespace reshard::testing
