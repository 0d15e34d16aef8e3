#include "reshard/engine/payload_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "reshard/base/mutex.h"
#include "reshard/catalog/catalog.h"
#include "reshard/codec/crc64.h"
#include "tests/support/states.h"

namespace reshard {
namespace {

using testing::CountWrong;
using testing::ExpectOneOutcome;
using testing::FailsWith;
using testing::FillPattern;
using testing::OnRanks;
using testing::PatternTensor;
using testing::ReadObject;
using testing::TargetTensor;

/// A shard that gives the elements of `memory`, which is dense and lies at `box`.
TensorShard SourceOf(const Tensor& memory) {
  TensorShard shard;
  shard.box = memory.shards[0].box;
  shard.source = [&memory](const Box& box, MutableByteSpan out) -> Status {
    const TensorShard& from = memory.shards[0];
    if (!Contains(from.box, box) || NumBytes(box, memory.dtype) != out.size()) {
      return MakeError(ErrorCode::kInternal, "BAD_MESSAGE", ToString(box));
    }
    const Box units = ToUnits(box, memory.dtype);
    const Box all = ToUnits(from.box, memory.dtype);
    const std::vector<std::int64_t> strides = StrideBytes(from.view);
    const std::uint32_t unit = Info(memory.dtype).unit_bytes;
    std::byte* to = out.data();
    for (std::uint64_t i = 0; i < NumElements(units); ++i, to += unit) {
      std::uint64_t rest = i;
      std::int64_t at = 0;
      for (std::size_t a = units.extent.size(); a-- > 0;) {
        at += static_cast<std::int64_t>(units.offset[a] + rest % units.extent[a] - all.offset[a]) *
              strides[a];
        rest /= units.extent[a];
      }
      std::copy_n(from.view.data + at, unit, to);
    }
    return OkStatus();
  };
  return shard;
}

/// Writes literals of odd lengths around tensors and compares bytes, blocks and digests with the
/// plain concatenation.
void CheckLiterals(bool sources) {
  auto storage = NewMemoryStorage("m");
  const std::vector<std::pair<DType, Shape>> kinds = {{DType::kFloat32, {300, 401}},
                                                      {DType::kFloat64, {7, 5000, 3}},
                                                      {DType::kBfloat16, {}},
                                                      {DType::kFloat6E2m3, {1000, 400}},
                                                      {DType::kComplex128, {40001}}};
  std::vector<Tensor> tensors;
  std::vector<Bytes> literals;
  for (const auto& [dtype, shape] : kinds) {
    tensors.push_back(PatternTensor(dtype, shape, {WholeBox(shape)}, tensors.size()));
    literals.emplace_back(tensors.size() * 37 + 2, static_cast<std::byte>(tensors.size()));
  }
  literals.emplace_back(kBlockBytes * 2 + 1, std::byte{0x5a});
  std::vector<TensorShard> shards;
  for (const Tensor& tensor : tensors) {
    shards.push_back(sources ? SourceOf(tensor) : tensor.shards[0]);
  }
  std::vector<PayloadSegment> segments;
  Bytes expected;
  std::vector<std::uint64_t> digests;
  for (std::size_t i = 0; i < literals.size(); ++i) {
    segments.push_back({{}, nullptr, {}, {}, {}, literals[i]});
    expected.insert(expected.end(), literals[i].begin(), literals[i].end());
    if (i == tensors.size()) {
      break;
    }
    const Tensor& t = tensors[i];
    segments.push_back({"t", &shards[i], t.dtype, t.global_shape, WholeBox(t.global_shape), {}});
    const ByteSpan bytes(t.shards[0].view.data, NumBytes(t.global_shape, t.dtype));
    expected.insert(expected.end(), bytes.begin(), bytes.end());
    digests.push_back(Crc64(bytes));
  }
  ASSERT_OK_AND_ASSIGN(auto file, storage->Create("0_0.distcp", {}));
  PayloadOptions options;
  options.buffer_bytes = kBlockBytes * 3;  // so that elements lie across its edges
  ASSERT_OK_AND_ASSIGN(const PayloadChecksums sums, WritePayload(*file, 0, segments, options));
  ASSERT_OK(file->Finish(expected.size()));
  EXPECT_TRUE(ReadObject(*storage, "0_0.distcp") == expected);
  ASSERT_EQ(sums.digest_parts.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = NumBytes(tensors[i].global_shape, tensors[i].dtype);
    EXPECT_EQ(sums.digest_parts[i] ^ Crc64Constant(bytes), digests[i]) << i;
  }
  ASSERT_EQ(sums.blocks.size(), (expected.size() + kBlockBytes - 1) / kBlockBytes);
  for (std::size_t b = 0; b < sums.blocks.size(); ++b) {
    const std::size_t begin = b * kBlockBytes;
    const std::size_t size = std::min<std::size_t>(kBlockBytes, expected.size() - begin);
    EXPECT_EQ(sums.blocks[b], Crc64(ByteSpan(expected).subspan(begin, size))) << b;
  }
}

TEST(PayloadWriterTest, PutsLiteralsBetweenTensors) { CheckLiterals(false); }

TEST(PayloadWriterTest, PutsLiteralsBetweenSources) { CheckLiterals(true); }

TEST(PayloadWriterTest, AsksASourceInFewLargeBoxes) {
  auto storage = NewMemoryStorage("m");
  const Tensor tensor =
      PatternTensor(DType::kUint8, {3, 1000, 1001}, {WholeBox(Shape{3, 1000, 1001})}, 1);
  TensorShard shard = SourceOf(tensor);
  std::atomic<int> calls = 0;
  shard.source = [&calls, inner = shard.source](const Box& box, MutableByteSpan out) {
    ++calls;
    return inner(box, out);
  };
  const std::vector<PayloadSegment> segments = {
      {"t", &shard, tensor.dtype, tensor.global_shape, WholeBox(tensor.global_shape), {}}};
  ASSERT_OK_AND_ASSIGN(auto file, storage->Create("x", {}));
  ASSERT_OK(WritePayload(*file, 0, segments, {}));
  EXPECT_EQ(calls, 1);
}

/// Ranks hold column shards that are sources, and a replicated tensor that one rank has in memory.
TEST(PayloadWriterTest, ASaveOfSourcesIsThatOfTheirMemory) {
  for (const int ranks : {1, 2, 3}) {
    auto from_memory = NewMemoryStorage("memory");
    auto from_sources = NewMemoryStorage("sources");
    for (const bool sources : {false, true}) {
      const auto results = OnRanks(ranks, [&](ProcessGroup& group) {
        const Shape shape = {129, 700};
        const Tensor cut = PatternTensor(DType::kFloat32, shape,
                                         {testing::CutBox(shape, 1, group.rank(), ranks)}, 1);
        const Tensor all = PatternTensor(DType::kInt16, shape, {WholeBox(shape)}, 2);
        Tensor given_cut = cut;
        Tensor given_all = all;
        if (sources) {
          given_cut.shards = {SourceOf(cut)};
          if (group.rank() != 0) {
            given_all.shards = {SourceOf(all)};
          }
        }
        StateDict state;
        state["cut"] = given_cut;
        state["all"] = given_all;
        SaveOptions options;
        options.plan.min_cut_bytes = 1000;
        return Save(state, sources ? *from_sources : *from_memory, group, options);
      });
      ExpectOneOutcome(results);
      ASSERT_OK(results[0]);
    }
    EXPECT_TRUE(testing::ReadAll(*from_memory) == testing::ReadAll(*from_sources)) << ranks;
  }
}

TEST(PayloadWriterTest, ASourceThatFailsEndsTheSaveEverywhere) {
  for (const bool throws : {false, true}) {
    auto storage = NewMemoryStorage("m");
    const auto results = OnRanks(2, [&](ProcessGroup& group) {
      const Shape shape = {4, 4};
      Tensor tensor{DType::kFloat32, shape, {}};
      const Tensor memory =
          PatternTensor(DType::kFloat32, shape, {testing::CutBox(shape, 0, group.rank(), 2)}, 1);
      tensor.shards = {SourceOf(memory)};
      if (group.rank() == 1) {
        tensor.shards[0].source = [throws](const Box&, MutableByteSpan) -> Status {
          if (throws) {
            throw std::runtime_error("no such page");
          }
          return MakeError(ErrorCode::kIo, "READ", "no such page");
        };
      }
      StateDict state;
      state["layer.w"] = tensor;
      return Save(state, *storage, group, {});
    });
    ExpectOneOutcome(results);
    EXPECT_THAT(results[0], FailsWith(throws ? "CALLBACK" : "READ"));
    EXPECT_NE(results[0].error().message.find("layer.w"), std::string::npos);
    EXPECT_NE(results[0].error().message.find("no such page"), std::string::npos);
    EXPECT_TRUE(testing::Names(*storage).empty());
  }
}

TEST(PayloadWriterTest, ASourceIsNoTarget) {
  auto storage = NewMemoryStorage("m");
  auto group = SingleProcessGroup();
  const Tensor memory = PatternTensor(DType::kFloat32, {4}, {WholeBox(Shape{4})}, 1);
  StateDict state;
  state["w"] = Tensor{DType::kFloat32, {4}, {SourceOf(memory)}};
  ASSERT_OK(Save(state, *storage, *group, {}));
  EXPECT_THAT(Load(state, *storage, *group, {}), FailsWith("SOURCE_ON_LOAD"));
}

}  // namespace
}  // namespace reshard
