// Tensors larger than this machine wants to hold: a data file that is computed as it is read.

#include <gtest/gtest.h>

#include <fstream>
#include <mutex>

#include "reshard/codec/crc64.h"
#include "reshard/format/native/catalog_codec.h"
#include "tests/support/sanitizers.h"
#include "tests/support/states.h"

namespace reshard::testing {
namespace {

constexpr std::uint64_t kPayload = 4096;

/// A byte of the tensor; cheap, and different everywhere.
std::byte ByteAt(std::uint64_t at) {
  return static_cast<std::byte>((at * 0x9e3779b97f4a7c15ULL) >> 56);
}

class ComputedFile final : public ReadableObject {
 public:
  explicit ComputedFile(std::uint64_t size) : size_(size) {}

  const std::string& name() const override { return name_; }

  std::uint64_t size() const override { return size_; }

  std::int64_t mtime_ns() const override { return 0; }

  Status ReadAt(std::uint64_t offset, MutableByteSpan out) override {
    EXPECT_LE(offset + out.size(), size_);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = offset + i < kPayload ? std::byte{0} : ByteAt(offset + i - kPayload);
    }
    return OkStatus();
  }

 private:
  std::string name_ = "0_0.safetensors";
  std::uint64_t size_;
};

/// One snapshot of one uint8 tensor "w" in one computed file.
class ComputedStorage final : public Storage {
 public:
  /// Only blocks that `checked` names get a true checksum.
  ComputedStorage(const Shape& shape, const std::function<bool(std::uint64_t)>& checked)
      : size_(kPayload + NumElements(shape)) {
    CatalogInfo info;
    info.kind = CatalogKind::kSnapshot;
    info.world_size = 1;
    CatalogBuilder builder(info);
    FileEntry file;
    file.name = "0_0.safetensors";
    file.size = size_;
    file.payload_offset = kPayload;
    file.head_checksum = Crc64(Bytes(kPayload));
    std::vector<std::uint64_t> blocks(file.num_blocks());
    ComputedFile content(size_);
    Bytes data(kBlockBytes);
    for (std::uint64_t b = 0; b < blocks.size(); ++b) {
      const ByteRange range = file.Block(b);
      if (checked(b)) {
        EXPECT_OK(content.ReadAt(range.offset, MutableByteSpan(data).first(range.size)));
        blocks[b] = Crc64(ByteSpan(data).first(range.size));
      }
    }
    const std::uint32_t number = builder.AddFile(std::move(file), blocks);
    builder.AddTensor("w", {std::string("w")}, DType::kUint8, shape, std::nullopt);
    builder.AddChunk(WholeBox(shape), number, kPayload);
    const auto catalog = std::move(builder).Build();
    EXPECT_OK(catalog);
    PutObject(*small_, "0.reshard", native::EncodeCatalog(*catalog));
  }

  const std::string& description() const override { return small_->description(); }

  Result<std::vector<ObjectInfo>> List() override {
    RESHARD_TRY_ASSIGN(std::vector<ObjectInfo> objects, small_->List());
    objects.push_back({"0_0.safetensors", size_, 0, true});
    return objects;
  }

  Result<std::unique_ptr<ReadableObject>> Open(std::string_view name) override {
    if (name == "0_0.safetensors") {
      return std::make_unique<ComputedFile>(size_);
    }
    return small_->Open(name);
  }

  Result<std::unique_ptr<WritableObject>> Create(std::string_view name,
                                                 const CreateOptions& options) override {
    return small_->Create(name, options);
  }

  Result<Published> Publish(std::string_view from, std::string_view to, PublishMode mode) override {
    return small_->Publish(from, to, mode);
  }

  Status Rename(std::string_view from, std::string_view to) override {
    return small_->Rename(from, to);
  }

  Status Remove(std::string_view name) override { return small_->Remove(name); }

  Status SyncNames() override { return small_->SyncNames(); }

  Result<std::unique_ptr<StorageLock>> TryLock(std::string_view name) override {
    return small_->TryLock(name);
  }

  std::uint64_t Identity() const override { return small_->Identity(); }

 private:
  std::uint64_t size_;
  std::unique_ptr<Storage> small_ = NewMemoryStorage();
};

TEST(HugeTest, SlicesBeyondFourGibiElementsAreRight) {
  const std::uint64_t row = 1ULL << 30;
  const Shape shape = {9, row};  // 9 GiB
  // The slices: the end of row 3, over the 2^32nd element into row 4, and the very end.
  const std::vector<Box> boxes = {{{3, row - 300000}, {1, 300000}},
                                  {{4, 0}, {1, 70000}},
                                  {{8, row - 5}, {1, 5}},
                                  {{2, 77}, {6, 3}}};
  ComputedStorage storage(shape, [&](std::uint64_t block) {
    return std::any_of(boxes.begin(), boxes.end(), [&](const Box& box) {
      for (std::uint64_t r = box.offset[0]; r < box.offset[0] + box.extent[0]; ++r) {
        const std::uint64_t begin = r * row + box.offset[1];
        if (block >= begin / kBlockBytes && block <= (begin + box.extent[1] - 1) / kBlockBytes) {
          return true;
        }
      }
      return false;
    });
  });
  for (const Transfer transfer : {Transfer::kDirect, Transfer::kExchange}) {
    RunRanks(2, [&](ProcessGroup& group) {
      std::vector<Bytes> got(boxes.size());
      StateDict state;
      Tensor tensor{DType::kUint8, shape, {}};
      for (std::size_t i = 0; i < boxes.size(); ++i) {
        got[i].resize(NumElements(boxes[i].extent));
        // Half of them into memory, half through sinks.
        if (i % 2 == static_cast<std::size_t>(group.rank())) {
          tensor.shards.push_back(
              {boxes[i], DenseView(got[i].data(), DType::kUint8, boxes[i].extent), {}, {}});
        } else {
          const auto sink = [&got, i](std::uint64_t offset, ByteSpan bytes) {
            std::copy(bytes.begin(), bytes.end(),
                      got[i].begin() + static_cast<std::ptrdiff_t>(offset));
            return OkStatus();
          };
          tensor.shards.push_back({boxes[i], {}, sink, {}});
        }
      }
      state["w"] = std::move(tensor);
      LoadOptions options;
      options.transfer = transfer;
      const auto report = Load(state, storage, group, options);
      ASSERT_OK(report);
      // The blocks that hold the slices: 3, 1, 1, and one for each of the six short runs.
      EXPECT_LE(report->bytes_read, 11 * kBlockBytes);
      for (std::size_t i = 0; i < boxes.size(); ++i) {
        const Box& box = boxes[i];
        for (std::uint64_t at = 0; at < got[i].size(); ++at) {
          const std::uint64_t r = box.offset[0] + at / box.extent[1];
          const std::uint64_t c = box.offset[1] + at % box.extent[1];
          ASSERT_EQ(got[i][at], ByteAt(r * row + c)) << i << " " << at;
        }
      }
    });
  }
}

/// Resident bytes of this process.
std::uint64_t Resident() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

class MemoryBoundTest : public ::testing::TestWithParam<Transfer> {};

TEST_P(MemoryBoundTest, SinkLoadOfManyTimesTheBudgetStaysSmall) {
  const Shape shape = {192, 1 << 20};  // 192 MiB through 8 MiB on each of two ranks
  ComputedStorage storage(shape, [](std::uint64_t) { return true; });
  constexpr std::uint64_t kBudget = 8 << 20;
  const std::uint64_t before = Resident();
  std::mutex mutex;
  std::uint64_t most = 0;
  std::atomic<std::uint64_t> bytes = 0;
  RunRanks(2, [&](ProcessGroup& group) {
    StateDict state;
    Tensor tensor{DType::kUint8, shape, {}};
    const auto sink = [&](std::uint64_t, ByteSpan data) {
      bytes += data.size();
      const std::lock_guard lock(mutex);
      most = std::max(most, Resident());
      return OkStatus();
    };
    tensor.shards.push_back({CutBox(shape, 1, group.rank(), 2), {}, sink, {}});
    state["w"] = std::move(tensor);
    LoadOptions options;
    options.transfer = GetParam();
    options.memory_bytes = kBudget;
    ASSERT_OK(Load(state, storage, group, options));
  });
  EXPECT_EQ(bytes.load(), NumElements(shape));
  if (testing::kSanitized) {
    GTEST_SKIP() << "resident memory is not measured under a sanitizer";
  }
  // Beside the budget: stacks and staging of the threads.
  EXPECT_LE(most, before + 2 * kBudget + (16 << 20));
  RecordProperty("resident_bytes", std::to_string(most - before));
}

INSTANTIATE_TEST_SUITE_P(Transfers, MemoryBoundTest,
                         ::testing::Values(Transfer::kDirect, Transfer::kExchange));

}  // namespace
}  // namespace reshard::testing
