#include "reshard/engine/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/engine/snapshot.h"
#include "reshard/format/native/catalog_codec.h"
#include "tests/engine/memory_places.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class VerifyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(SaveSmall(*storage_, 0));
    Result<Catalog> catalog = ReadCatalog(*storage_, 0);
    ASSERT_OK(catalog);
    catalog_ = std::make_unique<Catalog>(std::move(*catalog));
  }

  /// Flips one bit of a file.
  void Flip(const std::string& name, std::uint64_t at) {
    Result<Bytes> bytes = ReadWhole(*storage_, name);
    ASSERT_OK(bytes);
    (*bytes)[at] ^= std::byte{4};
    Rewrite(*storage_, name, *bytes);
  }

  /// Where chunk `index` of a tensor lies.
  std::pair<std::string, std::uint64_t> PlaceOf(std::string_view key, std::size_t index) {
    const Chunk chunk = catalog_->chunk(*catalog_->Find(key), index);
    return {catalog_->files()[chunk.file].name, chunk.byte_offset};
  }

  std::vector<std::string> Reasons(const VerifyOptions& options = {}) {
    Result<VerifyReport> report = Verify(*storage_, options);
    std::vector<std::string> out;
    if (!report.ok()) {
      return {report.error().ToString()};
    }
    for (const SnapshotVerdict& verdict : report->snapshots) {
      for (const VerifyFault& fault : verdict.faults) {
        out.push_back(fault.error.reason);
      }
    }
    return out;
  }

  std::unique_ptr<Storage> storage_ = NewMemoryStorage();
  std::unique_ptr<Catalog> catalog_;
};

TEST_F(VerifyTest, AWholeSnapshotHasNoFaultAndEveryDigestIsRecomputed) {
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, Verify(*storage_));
  ASSERT_EQ(report.snapshots.size(), 1U);
  const SnapshotVerdict& verdict = report.snapshots[0];
  for (const VerifyFault& fault : verdict.faults) {
    ADD_FAILURE() << fault.error.ToString();
  }
  EXPECT_TRUE(report.whole());
  EXPECT_EQ(verdict.tensors, 6U);
  EXPECT_EQ(verdict.digests, 6U);
  EXPECT_EQ(verdict.files, 2U);
  std::uint64_t payload = 0;
  for (const FileEntry& file : catalog_->files()) {
    payload += file.size - file.payload_offset;
  }
  EXPECT_EQ(verdict.bytes, payload);
  EXPECT_EQ(verdict.blocks, catalog_->columns().block_checksums.size());
  EXPECT_THAT(report.notes, IsEmpty());
}

TEST_F(VerifyTest, ListsEveryFaultNotOnlyTheFirst) {
  const auto [first_file, first_at] = PlaceOf("model.w", 0);
  const auto [second_file, second_at] = PlaceOf("model.w", 1);
  ASSERT_NE(first_file, second_file);
  Flip(first_file, first_at + 10);
  Flip(first_file, first_at + kBlockBytes * 2);
  Flip(second_file, second_at + 10);
  Flip(second_file, 100);
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, Verify(*storage_));
  ASSERT_EQ(report.snapshots[0].faults.size(), 4U);
  const auto& faults = report.snapshots[0].faults;
  EXPECT_EQ(faults[0].error.reason, "BLOCK_CHECKSUM");
  EXPECT_EQ(faults[0].file, first_file);
  EXPECT_THAT(faults[0].keys, ::testing::Contains("model.w"));
  EXPECT_EQ(faults[1].error.reason, "BLOCK_CHECKSUM");
  EXPECT_EQ(faults[2].error.reason, "FILE_HEAD");
  EXPECT_EQ(faults[2].file, second_file);
  EXPECT_EQ(faults[3].error.reason, "BLOCK_CHECKSUM");
  EXPECT_TRUE(report.damaged());
}

TEST_F(VerifyTest, DamagedBlocksInARowAreOneFault) {
  const auto [file, at] = PlaceOf("model.w", 0);
  Flip(file, at + 10);
  Flip(file, at + 10 + kBlockBytes);
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, Verify(*storage_));
  ASSERT_EQ(report.snapshots[0].faults.size(), 1U);
  const VerifyFault& fault = report.snapshots[0].faults[0];
  EXPECT_EQ(fault.range->size, 2 * kBlockBytes);
  EXPECT_THAT(fault.error.message, HasSubstr("2 blocks"));
}

TEST_F(VerifyTest, ATruncatedFileIsNamedAndTheRestIsStillChecked) {
  const auto [file, at] = PlaceOf("model.w", 1);
  Flip(file, at + 10);
  ASSERT_OK_AND_ASSIGN(Bytes bytes, ReadWhole(*storage_, file));
  bytes.resize(bytes.size() - 5000);
  Rewrite(*storage_, file, bytes);
  EXPECT_THAT(Reasons(), ElementsAre("FILE_SIZE", "BLOCK_CHECKSUM"));
}

TEST_F(VerifyTest, AMissingFileIsAFault) {
  ASSERT_OK(storage_->Remove("1_0.safetensors"));
  EXPECT_THAT(Reasons(), ElementsAre("FILE_MISSING"));
}

TEST_F(VerifyTest, ADamagedHeaderBehindTheHeadIsFound) {
  ASSERT_GT(catalog_->files()[0].payload_offset, 4096U);
  Flip("0_0.safetensors", 4096 + 50);
  EXPECT_THAT(Reasons(), ElementsAre("BAD_HEAD"));
}

TEST_F(VerifyTest, ACatalogThatDisagreesWithTheFilesIsFound) {
  CatalogColumns columns = catalog_->columns();
  columns.digests[*catalog_->Find("model.w")] ^= 1;
  columns.block_checksums[1] ^= 1;
  ASSERT_OK_AND_ASSIGN(const Catalog changed, Catalog::Create(std::move(columns)));
  Rewrite(*storage_, "0.reshard", native::EncodeCatalog(changed));
  EXPECT_THAT(Reasons(), ElementsAre("FRAGMENT_MISMATCH", "BLOCK_CHECKSUM"));
}

TEST_F(VerifyTest, AWrongDigestAloneIsFound) {
  CatalogColumns columns = catalog_->columns();
  columns.digests[*catalog_->Find("model.head")] ^= 1;
  ASSERT_OK_AND_ASSIGN(const Catalog changed, Catalog::Create(std::move(columns)));
  Rewrite(*storage_, "0.reshard", native::EncodeCatalog(changed));
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, Verify(*storage_));
  ASSERT_EQ(report.snapshots[0].faults.size(), 1U);
  EXPECT_EQ(report.snapshots[0].faults[0].error.reason, "TENSOR_DIGEST");
  EXPECT_THAT(report.snapshots[0].faults[0].keys, ElementsAre("model.head"));
}

TEST_F(VerifyTest, FilesOfAnotherSaveUnderTheSameNameAreFound) {
  const std::unique_ptr<Storage> other = NewMemoryStorage();
  ASSERT_OK(SaveSmall(*other, 0, 77));
  ASSERT_OK_AND_ASSIGN(const Bytes bytes, ReadWhole(*other, "1_0.safetensors"));
  Rewrite(*storage_, "1_0.safetensors", bytes);
  const std::vector<std::string> reasons = Reasons();
  ASSERT_GE(reasons.size(), 2U);
  EXPECT_EQ(reasons[0], "FILE_HEAD");
  EXPECT_EQ(reasons[1], "BLOCK_CHECKSUM");
}

TEST_F(VerifyTest, ADamagedCatalogIsAFaultOfItsSnapshotAlone) {
  ASSERT_OK(SaveSmall(*storage_, 5));
  Flip("0.reshard", 60);
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, Verify(*storage_));
  ASSERT_EQ(report.snapshots.size(), 2U);
  EXPECT_EQ(report.snapshots[0].faults.size(), 1U);
  EXPECT_EQ(report.snapshots[0].faults[0].file, "0.reshard");
  EXPECT_THAT(report.snapshots[1].faults, IsEmpty());
  VerifyOptions only;
  only.unique_id = 5;
  EXPECT_THAT(Reasons(only), IsEmpty());
}

TEST_F(VerifyTest, KeysLimitWhatIsRead) {
  const auto [file, at] = PlaceOf("model.w", 0);
  Flip(file, at + kBlockBytes + 10);
  VerifyOptions options;
  options.keys = {"model.b*"};
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, Verify(*storage_, options));
  EXPECT_TRUE(report.whole());
  EXPECT_EQ(report.snapshots[0].tensors, 1U);
  EXPECT_EQ(report.snapshots[0].digests, 1U);
  EXPECT_EQ(report.snapshots[0].blocks, 1U);
  options.keys = {"model.w"};
  EXPECT_THAT(Reasons(options), ElementsAre("BLOCK_CHECKSUM"));
  options.keys = {"nothing"};
  EXPECT_THAT(Verify(*storage_, options), FailsWith("NO_SUCH_KEY"));
}

TEST_F(VerifyTest, StraysAreNotesNotFaults) {
  Rewrite(*storage_, "7_0.a3.safetensors", Bytes(10));
  Rewrite(*storage_, "notes.txt", Bytes(10));
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, Verify(*storage_));
  EXPECT_TRUE(report.whole());
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("7_0.a3.safetensors")));
}

TEST_F(VerifyTest, SaysThatACommitRecordIsMissing) {
  ASSERT_OK(SaveSmall(*storage_, 3));
  ASSERT_OK(storage_->Remove("3.reshard"));
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, Verify(*storage_));
  EXPECT_TRUE(report.whole());
  EXPECT_THAT(report.notes, ElementsAre(::testing::StartsWith(
                                "2 data file(s) of snapshot 3, but not its commit record "
                                "3.reshard")));
}

TEST_F(VerifyTest, NamesTheNewestThatIsWhole) {
  ASSERT_OK(SaveSmall(*storage_, 3));
  Flip(PlaceOf("model.w", 0).first, 20'000);
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, Verify(*storage_));
  EXPECT_EQ(report.newest_whole(), 3U);
  VerifyOptions options;
  options.unique_id = 0;
  ASSERT_OK_AND_ASSIGN(const VerifyReport damaged, Verify(*storage_, options));
  EXPECT_EQ(damaged.newest_whole(), std::nullopt);
}

TEST_F(VerifyTest, AReadErrorIsNotDamage) {
  const auto [file, at] = PlaceOf("model.w", 0);
  bool done = false;
  FaultStorage faulty(*storage_,
                      [&, name = file](std::uint64_t, StorageOp op, std::string_view object) {
                        const bool hit = op == StorageOp::kRead && object == name && !done;
                        done = done || hit;
                        return hit ? FaultAction::kFail : FaultAction::kNone;
                      });
  VerifyOptions options;
  options.threads = 1;
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, Verify(faulty, options));
  EXPECT_FALSE(report.whole());
  EXPECT_FALSE(report.damaged());
}

TEST_F(VerifyTest, ReportsProgressAndStopsWhenToldTo) {
  VerifyOptions options;
  Progress last;
  options.progress = [&last](const Progress& progress) {
    last = progress;
    return OkStatus();
  };
  ASSERT_OK(Verify(*storage_, options));
  EXPECT_EQ(last.bytes_done, last.bytes_total);
  EXPECT_GT(last.bytes_total, 1'000'000U);
  options.progress = [](const Progress&) -> Status {
    return MakeError(ErrorCode::kCancelled, "STOP", "enough");
  };
  EXPECT_THAT(Verify(*storage_, options), FailsWith("STOP"));
}

}  // namespace
}  // namespace reshard::testing
