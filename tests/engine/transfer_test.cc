// How the bytes of a load move: direct or by exchange, verified by blocks or digests, within the
// memory bound, and while the snapshot is being replaced.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>

#include "reshard/storage/fault_storage.h"
#include "tests/support/states.h"

namespace reshard::testing {
namespace {

using ::testing::HasSubstr;

constexpr DType kF32 = DType::kFloat32;

/// Saves one tensor that every rank holds as rows.
void SaveRows(Storage& storage, const Shape& shape, int ranks, std::uint64_t salt,
              const SaveOptions& options = {}) {
  RunRanks(ranks, [&](ProcessGroup& group) {
    StateDict state;
    state["w"] = PatternTensor(kF32, shape, {CutBox(shape, 0, group.rank(), ranks)}, salt);
    ASSERT_OK(Save(state, storage, group, options));
  });
}

/// Loads "w" cut along `axis`, checked against the pattern.
Result<LoadReport> LoadCut(ProcessGroup& group, Storage& storage, const Shape& shape,
                           std::size_t axis, std::uint64_t salt, const LoadOptions& options = {}) {
  StateDict state;
  state["w"] = TargetTensor(kF32, shape, {CutBox(shape, axis, group.rank(), group.size())});
  auto report = Load(state, storage, group, options);
  if (report.ok()) {
    EXPECT_EQ(CountWrong(*state.Find("w")->get_if<Tensor>(), salt), 0U);
  }
  return report;
}

TEST(TransferTest, ExchangeReadsEachByteOnce) {
  const Shape shape = {512, 2000};  // 4 MB
  const auto storage = NewMemoryStorage();
  SaveRows(*storage, shape, 4, 1);
  LoadOptions options;
  options.transfer = Transfer::kExchange;
  for (const bool apart : {false, true}) {
    std::uint64_t received = 0;
    for (const int ranks : {1, 2, 4, 7}) {
      const auto reports = OnRanks(
          ranks,
          [&](ProcessGroup& group) { return LoadCut(group, *storage, shape, 1, 1, options); }, {},
          apart);
      std::uint64_t read = 0;
      for (const auto& report : reports) {
        ASSERT_OK(report);
        EXPECT_TRUE(report->exchanged);
        read += report->bytes_read;
        received += ranks == 2 ? report->bytes_received : 0;
      }
      EXPECT_EQ(read, 512U * 2000 * 4) << ranks;
    }
    EXPECT_EQ(received, 512U * 2000 * 4 / 2) << "half of each rank's columns was read by the other";
  }
}

TEST(TransferTest, ReplicasAreReadOnceInAuto) {
  const Shape shape = {1024, 2048};  // 8 MB on every rank
  const auto storage = NewMemoryStorage();
  SaveRows(*storage, shape, 2, 1);
  const auto reports = OnRanks(4, [&](ProcessGroup& group) {
    StateDict state;
    state["w"] = TargetTensor(kF32, shape, {WholeBox(shape)});
    auto report = Load(state, *storage, group);
    EXPECT_EQ(CountWrong(*state.Find("w")->get_if<Tensor>(), 1), 0U);
    return report;
  });
  std::uint64_t read = 0;
  for (const auto& report : reports) {
    ASSERT_OK(report);
    EXPECT_TRUE(report->exchanged);
    read += report->bytes_read;
  }
  EXPECT_EQ(read, 8U << 20);
}

/// Columns of whole multiples of 4 KiB, so that a rank reads parts of blocks and the tensors'
/// digests verify them.
const Shape kColumns = {200, 4096};  // 16 KiB rows

TEST(TransferTest, ColumnsAreVerifiedByDigestWithoutReadingMore) {
  const auto storage = NewMemoryStorage();
  SaveRows(*storage, kColumns, 4, 1);
  const auto reports =
      OnRanks(4, [&](ProcessGroup& group) { return LoadCut(group, *storage, kColumns, 1, 1); });
  for (const auto& report : reports) {
    ASSERT_OK(report);
    EXPECT_FALSE(report->exchanged);
    EXPECT_EQ(report->bytes_read, report->bytes_needed);
  }
}

TEST(TransferTest, DamageUnderADigestIsFoundByTheSecondLook) {
  const auto storage = NewMemoryStorage();
  SaveRows(*storage, kColumns, 4, 1);
  const Bytes whole = ReadObject(*storage, "2_0.safetensors");
  for (const std::size_t at : {whole.size() - 1, whole.size() / 2, std::size_t{4096}}) {
    Bytes damaged = whole;
    damaged[at] ^= std::byte{4};
    PutObject(*storage, "2_0.safetensors", damaged);
    const auto results =
        OnRanks(4, [&](ProcessGroup& group) { return LoadCut(group, *storage, kColumns, 1, 1); });
    ExpectOneOutcome(results);
    ASSERT_THAT(results[0], FailsWith("BLOCK_CHECKSUM"));
    EXPECT_EQ(results[0].error().code, ErrorCode::kCorruption);
    EXPECT_TRUE(results[0].error().data_loss);
    EXPECT_THAT(results[0].error().message, HasSubstr("2_0.safetensors"));
    EXPECT_THAT(results[0].error().message, HasSubstr("'w'"));
  }
}

TEST(TransferTest, DamageInTransitUnderADigestIsRetryable) {
  const auto storage = NewMemoryStorage();
  SaveRows(*storage, kColumns, 4, 1);
  const auto results = OnRanks(4, [&](ProcessGroup& group) {
    // One read of payload on rank 1 is wrong; the second look is right.
    std::atomic<int> reads = 0;
    const auto faulty =
        NewFaultStorage(*storage, [&](std::uint64_t, StorageOp op, std::string_view name) {
          const bool data = op == StorageOp::kRead && name.ends_with("safetensors");
          return data && group.rank() == 1 && reads++ == 10 ? FaultAction::kFlip
                                                            : FaultAction::kNone;
        });
    return LoadCut(group, *faulty, kColumns, 1, 1);
  });
  ExpectOneOutcome(results);
  ASSERT_THAT(results[0], FailsWith("TENSOR_DIGEST"));
  EXPECT_TRUE(results[0].error().retryable);
}

TEST(TransferTest, ReplicaThatDiffersUnderADigestIsFound) {
  // Ranks 0, 2 and 1, 3 want the same columns: the flip on rank 3 hides in no XOR.
  const auto storage = NewMemoryStorage();
  SaveRows(*storage, kColumns, 4, 1);
  const auto results = OnRanks(4, [&](ProcessGroup& group) {
    std::atomic<int> reads = 0;
    const auto faulty =
        NewFaultStorage(*storage, [&](std::uint64_t, StorageOp op, std::string_view name) {
          const bool data = op == StorageOp::kRead && name.ends_with("safetensors");
          return data && group.rank() == 3 && reads++ == 10 ? FaultAction::kFlip
                                                            : FaultAction::kNone;
        });
    StateDict state;
    state["w"] = TargetTensor(kF32, kColumns, {CutBox(kColumns, 1, group.rank() % 2, 2)});
    LoadOptions options;
    options.transfer = Transfer::kDirect;
    return Load(state, *faulty, group, options);
  });
  ExpectOneOutcome(results);
  ASSERT_FALSE(results[0].ok());
  EXPECT_EQ(results[0].error().code, ErrorCode::kIo) << results[0].error().ToString();
}

TEST(TransferTest, StagedPartsOfNearlyWholeRowsKeepTheirDigest) {
  // 94 of 100 KiB of each row: the request as a whole is read run by run, parts of two rows have
  // so little between them that they could be read in one go.
  const Shape shape = {60, 25600};
  const auto storage = NewMemoryStorage();
  SaveRows(*storage, shape, 1, 1);
  const auto results = OnRanks(2, [&](ProcessGroup& group) {
    Box box = WholeBox(shape);
    box.offset[1] = group.rank() == 0 ? 0 : 24064;
    box.extent[1] = group.rank() == 0 ? 24064 : 1536;
    Bytes out(NumBytes(box, kF32));
    StateDict state;
    Tensor tensor{kF32, shape, {}};
    tensor.shards.push_back({box,
                             {},
                             [&out](std::uint64_t offset, ByteSpan bytes) {
                               std::copy(bytes.begin(), bytes.end(),
                                         out.begin() + static_cast<std::ptrdiff_t>(offset));
                               return OkStatus();
                             },
                             {}});
    state["w"] = std::move(tensor);
    LoadOptions options;
    options.transfer = Transfer::kDirect;
    options.memory_bytes = 4 << 20;
    auto report = Load(state, *storage, group, options);
    if (report.ok()) {
      Tensor seen{kF32, shape, {}};
      seen.shards.push_back({box, DenseView(out.data(), kF32, box.extent), {}, {}});
      EXPECT_EQ(CountWrong(seen, 1), 0U);
    }
    return report;
  });
  for (const auto& result : results) {
    EXPECT_OK(result);
  }
}

TEST(TransferTest, SliceIsVerifiedByTheBlocksThatHoldIt) {
  const Shape shape = {4096, 256};  // 4 MiB, rows of 1 KiB
  const auto storage = NewMemoryStorage();
  SaveRows(*storage, shape, 1, 1);
  const auto load = [&](std::uint64_t row) {
    const auto group = SingleProcessGroup();
    StateDict state;
    state["w"] = TargetTensor(kF32, shape, {{{row, 0}, {1, 256}}});
    auto report = Load(state, *storage, *group);
    if (report.ok()) {
      EXPECT_EQ(CountWrong(*state.Find("w")->get_if<Tensor>(), 1), 0U);
    }
    return report;
  };
  const auto report = load(300);
  ASSERT_OK(report);
  EXPECT_EQ(report->bytes_read, kBlockBytes);
  // Damage in the same block, outside the slice, is found; in another block it is not looked for.
  Bytes damaged = ReadObject(*storage, "0_0.safetensors");
  const std::size_t payload = damaged.size() - NumBytes(WholeBox(shape), kF32);
  damaged[payload + 260 * 1024] ^= std::byte{1};
  PutObject(*storage, "0_0.safetensors", damaged);
  EXPECT_THAT(load(300), FailsWith("BLOCK_CHECKSUM"));
  EXPECT_OK(load(600));
}

TEST(TransferTest, SinkLoadOfManyTimesTheMemoryStaysInBounds) {
  // 24 MiB through 1 MiB; the sum of what is alive at once cannot be measured from outside, but the
  // largest piece can, and a sink that fails half way must not be called again.
  const Shape shape = {6144, 1024};
  const auto storage = NewMemoryStorage();
  SaveRows(*storage, shape, 2, 1);
  for (const Movement& movement : Movements()) {
    const auto load = [&](ProcessGroup& group) {
      const Box box = CutBox(shape, 0, group.rank(), 3);
      int calls_after_error = -1;
      StateDict state;
      Tensor tensor{kF32, shape, {}};
      tensor.shards.push_back({box,
                               {},
                               [&](std::uint64_t offset, ByteSpan bytes) -> Status {
                                 EXPECT_LE(bytes.size(), 1U << 18);
                                 if (group.rank() == 1 && offset > (3 << 20)) {
                                   ++calls_after_error;
                                   return MakeError(ErrorCode::kUnavailable, "DEVICE", "no device");
                                 }
                                 return OkStatus();
                               },
                               {}});
      state["w"] = std::move(tensor);
      LoadOptions options;
      options.transfer = movement.transfer;
      options.memory_bytes = 1 << 20;
      auto report = Load(state, *storage, group, options);
      EXPECT_LE(calls_after_error, 0);
      return report;
    };
    const auto results = OnRanks(3, load, {}, movement.apart);
    ExpectOneOutcome(results);
    ASSERT_THAT(results[0], FailsWith("DEVICE"));
    EXPECT_THAT(results[0].error().message, HasSubstr("rank 1: "));
    EXPECT_THAT(results[0].error().message, HasSubstr("'w'"));
  }
}

TEST(TransferTest, RankWithAFailedSmallPhaseSurvivesALargerOne) {
  // In an exchange a rank whose sink failed in a phase with little staging stays in the rounds of
  // later phases, whose bytes do not fit there.
  const auto storage = NewMemoryStorage();
  const Shape small = {64};
  const Shape big = {1 << 20};
  RunRanks(2, [&](ProcessGroup& group) {
    StateDict state;
    state["a"] = PatternTensor(kF32, small, {WholeBox(small)}, 1);
    for (int i = 0; i < 4; ++i) {
      state[fmt::format("b{}", i)] = PatternTensor(kF32, big, {CutBox(big, 0, group.rank(), 2)}, 2);
    }
    ASSERT_OK(Save(state, *storage, group));
  });
  const auto load = [&](ProcessGroup& group) {
    const auto sink = [&group](std::uint64_t, ByteSpan) -> Status {
      if (group.rank() == 0) {
        return MakeError(ErrorCode::kUnavailable, "DEVICE", "no device");
      }
      return OkStatus();
    };
    StateDict state;
    const auto add = [&](const std::string& key, const Shape& shape) {
      Tensor tensor{kF32, shape, {}};
      tensor.shards.push_back({WholeBox(shape), {}, sink, {}});
      state[key] = std::move(tensor);
    };
    add("a", small);
    for (int i = 0; i < 4; ++i) {
      add(fmt::format("b{}", i), big);
    }
    LoadOptions options;
    options.transfer = Transfer::kExchange;
    options.memory_bytes = 4 * ((1 << 20) - 100);  // the first 256 KiB part does not fit beside "a"
    return Load(state, *storage, group, options);
  };
  for (const bool apart : {false, true}) {
    const auto results = OnRanks(2, load, {}, apart);
    ExpectOneOutcome(results);
    EXPECT_THAT(results[0], FailsWith("DEVICE"));
  }
}

Bytes BytesOfShard(const StateDict& state) {
  const TensorView& view = state.Find("w")->get_if<Tensor>()->shards[0].view;
  const ByteSpan bytes(view.data, NumElements(view.shape) * sizeof(float));
  return {bytes.begin(), bytes.end()};
}

// Ranks of one process write into each other's memory; one that gave up on the others may free it.
TEST(TransferTest, NobodyWritesToARankThatLeft) {
  const Shape shape = {512, 1024};  // 2 MiB, in units of 256 KiB
  const auto storage = NewMemoryStorage();
  SaveRows(*storage, shape, 1, 1);
  const Deadlines brief = {std::chrono::milliseconds(300), std::chrono::milliseconds(300)};
  std::promise<void> left;
  const auto gone = left.get_future().share();
  RunRanks(
      2,
      [&](ProcessGroup& group) {
        std::atomic<int> reads = 0;
        const auto slow =
            NewFaultStorage(*storage, [&](std::uint64_t, StorageOp op, std::string_view name) {
              // In the midst of what rank 1 reads.
              if (group.rank() == 1 && op == StorageOp::kRead && name.ends_with("safetensors") &&
                  reads++ == 3) {
                gone.wait_for(std::chrono::seconds(1));
              }
              return FaultAction::kNone;
            });
        StateDict state;
        state["w"] = TargetTensor(kF32, shape, {CutBox(shape, 1, group.rank(), 2)});
        LoadOptions options;
        options.transfer = Transfer::kExchange;
        options.memory_bytes = 1 << 20;
        options.threads = 1;
        const auto report = Load(state, *slow, group, options);
        ASSERT_FALSE(report.ok());
        EXPECT_EQ(report.error().code, ErrorCode::kPeerFailed);
        if (group.rank() == 0) {
          const Bytes before = BytesOfShard(state);
          left.set_value();
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          EXPECT_EQ(BytesOfShard(state), before);
          EXPECT_GT(CountWrong(*state.Find("w")->get_if<Tensor>(), 1), 0U);
        }
      },
      brief);
}

/// Lets `hook` run before the first opening of a data file.
std::unique_ptr<FaultStorage> BeforeDataFiles(Storage& base, std::function<void()> hook) {
  auto once = std::make_shared<std::once_flag>();
  return NewFaultStorage(base, [once, hook](std::uint64_t, StorageOp op, std::string_view name) {
    if (op == StorageOp::kOpen && name.ends_with("safetensors")) {
      std::call_once(*once, hook);
    }
    return FaultAction::kNone;
  });
}

class OverwrittenTest : public ::testing::TestWithParam<Transfer> {};

TEST_P(OverwrittenTest, CatalogIsReadAgainWhenFilesAreGone) {
  const Shape shape = {60, 50};
  const auto storage = NewMemoryStorage();
  SaveRows(*storage, shape, 2, 1);
  const auto racing = BeforeDataFiles(*storage, [&] {
    SaveOptions over;
    over.unique_id = 0;
    over.overwrite = true;
    SaveRows(*storage, shape, 2, 2, over);
  });
  LoadOptions options;
  options.transfer = GetParam();
  const auto results = OnRanks(
      3, [&](ProcessGroup& group) { return LoadCut(group, *racing, shape, 1, 2, options); });
  for (const auto& result : results) {
    EXPECT_OK(result);
  }
}

INSTANTIATE_TEST_SUITE_P(Transfers, OverwrittenTest,
                         ::testing::Values(Transfer::kAuto, Transfer::kDirect,
                                           Transfer::kExchange));

TEST(TransferTest, ManyShardsOfOneTensorInAnyOrder) {
  const Shape shape = {8, 2};
  const auto storage = NewMemoryStorage();
  RunRanks(1, [&](ProcessGroup& group) {
    StateDict state;
    std::vector<Box> boxes;
    for (const std::uint64_t row : {6, 0, 4, 2}) {
      boxes.push_back({{row, 0}, {2, 2}});
    }
    state["w"] = PatternTensor(kF32, shape, boxes, 1);
    ASSERT_OK(Save(state, *storage, group));
  });
  for (const int ranks : {1, 2, 4}) {
    RunRanks(ranks, [&](ProcessGroup& group) { EXPECT_OK(LoadCut(group, *storage, shape, 0, 1)); });
  }
}

TEST(TransferTest, SixtyFourAxes) {
  Shape shape(64, 1);
  shape[3] = 5;
  shape[60] = 7;
  const auto storage = NewMemoryStorage();
  RunRanks(2, [&](ProcessGroup& group) {
    StateDict state;
    state["w"] = PatternTensor(kF32, shape, {CutBox(shape, 3, group.rank(), 2)}, 1);
    ASSERT_OK(Save(state, *storage, group));
  });
  for (const Movement& movement : Movements()) {
    const auto load = [&](ProcessGroup& group) {
      LoadOptions options;
      options.transfer = movement.transfer;
      EXPECT_OK(LoadCut(group, *storage, shape, 60, 1, options));
    };
    RunRanks(3, load, {}, movement.apart);
  }
}

}  // namespace
}  // namespace reshard::testing
