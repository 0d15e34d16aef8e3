// What follows a plan: reports, merged objects, and the catalog made of them.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/catalog/cbor.h"
#include "reshard/catalog/save_plan.h"
#include "reshard/codec/crc64.h"
#include "tests/catalog/plan_ranks.h"
#include "tests/support/random_boxes.h"
#include "tests/support/status_matchers.h"

namespace reshard {
namespace {

using ::reshard::testing::FailsWith;
using ::reshard::testing::ForEachElement;
using ::reshard::testing::PlanRanks;
using ::testing::HasSubstr;

TEST(WriteReportTest, RoundTripsAndRefusesEveryCut) {
  const WriteReport report = {"3_7.safetensors", 9000, 4096, 77,     {1, 2},
                              {3, 4, 5},         0,    -5,   {0, 2}, {10, 20}};
  const Bytes bytes = EncodeWriteReport(report);
  ASSERT_OK_AND_ASSIGN(const WriteReport back, DecodeWriteReport(bytes));
  EXPECT_EQ(back.file_name, report.file_name);
  EXPECT_EQ(back.file_size, 9000U);
  EXPECT_EQ(back.payload_offset, 4096U);
  EXPECT_EQ(back.head_checksum, 77U);
  EXPECT_EQ(back.block_checksums, report.block_checksums);
  EXPECT_EQ(back.digest_parts, report.digest_parts);
  EXPECT_EQ(back.mtime_ns, -5);
  EXPECT_EQ(back.chunks, report.chunks);
  EXPECT_EQ(back.chunk_offsets, report.chunk_offsets);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(DecodeWriteReport(ByteSpan(bytes).first(size)), FailsWith("BAD_MESSAGE"));
  }
}

/// Merges the objects of `ranks`; there may be tensors too.
Result<std::vector<MergedObject>> Merge(PlanRanks& ranks) {
  RESHARD_TRY_ASSIGN(const SavePlan plan, ranks.Plan());
  return ranks.Objects(plan);
}

TEST(MergeObjectsTest, EqualObjectsAreStoredOnce) {
  PlanRanks ranks(3);
  ranks.states[0]["lr"] = 0.5;
  ranks.states[2]["lr"] = 0.5;
  ranks.states[1]["only"] = "here";
  ASSERT_OK_AND_ASSIGN(const auto merged, Merge(ranks));
  ASSERT_EQ(merged.size(), 2U);
  EXPECT_EQ(merged[0].object.key, "lr");
  EXPECT_EQ(merged[0].rank, -1);
  EXPECT_EQ(merged[0].object.value, EncodeObject(0.5));
  EXPECT_EQ(merged[1].object.key, "only");
}

TEST(MergeObjectsTest, PerRankValuesKeepTheirRank) {
  PlanRanks ranks(2);
  ranks.states[0]["rng"] = PerRank(1);
  ranks.states[1]["rng"] = PerRank(2);
  ASSERT_OK_AND_ASSIGN(const auto merged, Merge(ranks));
  ASSERT_EQ(merged.size(), 2U);
  EXPECT_EQ(merged[0].rank, 0);
  EXPECT_EQ(merged[1].rank, 1);
  EXPECT_EQ(merged[1].object.value, EncodeObject(2));
}

TEST(MergeObjectsTest, DisagreementsNameKeyAndRanks) {
  PlanRanks values(3);
  values.states[1]["lr"] = 0.5;
  values.states[2]["lr"] = 0.25;
  const auto mismatch = Merge(values);
  ASSERT_THAT(mismatch, FailsWith("OBJECT_MISMATCH"));
  EXPECT_THAT(mismatch.error().message, HasSubstr("'lr' differs between rank 11 and rank 12"));

  PlanRanks kinds(2);
  kinds.states[0]["x"] = 1;
  kinds.states[1]["x"] = PerRank(1);
  EXPECT_THAT(Merge(kinds), FailsWith("OBJECT_MISMATCH"));

  PlanRanks paths(2);
  paths.states[0]["a.b"] = 1;
  paths.states[1]["a"]["b"] = 1;
  EXPECT_THAT(Merge(paths), FailsWith("OBJECT_MISMATCH"));

  PlanRanks missing(3);
  missing.states[0]["rng"] = PerRank(1);
  missing.states[2]["rng"] = PerRank(1);
  const auto lacks = Merge(missing);
  ASSERT_THAT(lacks, FailsWith("MISSING_PER_RANK"));
  EXPECT_THAT(lacks.error().message, HasSubstr("'rng' is on 2 of 3 ranks"));

  PlanRanks tensor(2);
  tensor.Add(0, "x", DType::kInt8, {1}, {{0}, {1}});
  tensor.states[1]["x"] = 1;
  const auto kind = Merge(tensor);
  ASSERT_THAT(kind, FailsWith("KEY_KIND"));
  EXPECT_THAT(kind.error().message, HasSubstr("'x' is a tensor on some rank and an object on "
                                              "rank 11"));
}

/// The bytes of a tensor of which element e is e + 1, and the linear part of one chunk: the string
/// with zeros everywhere else.
std::uint64_t PartOf(BoxView box, const Shape& shape) {
  Bytes string(NumBytes(shape, DType::kUint32));
  ForEachElement(box, shape, [&](std::uint64_t e) {
    StoreLittle<std::uint32_t>(string.data() + 4 * e, static_cast<std::uint32_t>(e) + 1);
  });
  return Crc64Linear(string);
}

/// Writes in mind: reports of the ranks of a plan whose tensors are all uint32.
std::vector<WriteReport> Reports(const SavePlan& plan) {
  std::vector<WriteReport> reports(plan.by_writer.size());
  for (std::size_t writer = 0; writer < reports.size(); ++writer) {
    if (plan.by_writer[writer].empty()) {
      continue;
    }
    WriteReport& report = reports[writer];
    // Names sort differently from ranks: "10_..." before "9_...".
    report = {fmt::format("{}_4.safetensors", writer + 9),
              4096 + plan.payload_bytes[writer],
              4096,
              writer + 500,
              {writer + 600},
              {}};
    report.writer = static_cast<std::uint32_t>(writer);
    for (const std::uint32_t c : plan.by_writer[writer]) {
      report.digest_parts.push_back(
          PartOf(plan.box(plan.chunks[c]), plan.tensors[plan.chunks[c].tensor].shape));
    }
  }
  return reports;
}

TEST(MakeCatalogTest, HoldsChunksFilesObjectsAndWholeDigests) {
  PlanRanks ranks(3);
  ranks.Add(0, "w", DType::kUint32, {4, 3}, {{0, 0}, {4, 2}});
  ranks.Add(1, "w", DType::kUint32, {4, 3}, {{0, 2}, {4, 1}});
  ranks.Add(0, "v", DType::kUint32, {2}, {{0}, {2}});
  Value v = *ranks.states[0].Find("v");
  ranks.states[0]["v_tied"] = std::move(v);
  ranks.states[0]["none"] = Tensor::Absent(DType::kUint32, {0});
  for (Value& state : ranks.states) {
    state["rng"] = PerRank(1);
    state["n"]["lr"] = 0.5;
  }
  ASSERT_OK_AND_ASSIGN(const SavePlan plan, ranks.Plan());
  ASSERT_OK_AND_ASSIGN(const auto objects, ranks.Objects(plan));
  const CatalogInfo info = {.unique_id = 4, .world_size = 3};
  ASSERT_OK_AND_ASSIGN(const Catalog catalog,
                       MakeCatalog(info, plan, Reports(plan), objects, ranks.global_ranks));

  EXPECT_EQ(catalog.info(), info);
  ASSERT_EQ(catalog.files().size(), 2U);  // rank 2 wrote nothing
  EXPECT_EQ(catalog.files()[0].name, "10_4.safetensors");
  EXPECT_EQ(catalog.files()[0].rank, 11U);
  EXPECT_EQ(catalog.files()[0].head_checksum, 501U);
  EXPECT_EQ(catalog.BlockChecksum(1, 0), 600U);
  const TensorId w = catalog.Find("w").value();
  ASSERT_EQ(catalog.num_chunks(w), 2U);
  EXPECT_EQ(catalog.chunk(w, 0).file, 1U);
  EXPECT_EQ(catalog.chunk(w, 1).file, 0U);
  EXPECT_EQ(catalog.chunk(w, 0).byte_offset, 4096U + 8U);  // behind v
  EXPECT_OK(catalog.CheckCoverage(w));
  Bytes string(48);
  for (std::uint32_t e = 0; e < 12; ++e) {
    StoreLittle(string.data() + std::size_t{4} * e, e + 1);
  }
  EXPECT_EQ(catalog.digest(w), Crc64(string));
  EXPECT_EQ(catalog.digest(catalog.Find("v").value()), Crc64(ByteSpan(string).first(8)));
  EXPECT_EQ(catalog.alias_of(catalog.Find("v_tied").value()), catalog.Find("v").value());
  EXPECT_EQ(catalog.digest(catalog.Find("v_tied").value()), Crc64(ByteSpan(string).first(8)));
  EXPECT_EQ(catalog.digest(catalog.Find("none").value()), 0U);
  ASSERT_EQ(catalog.num_objects(), 4U);
  EXPECT_EQ(ToString(catalog.object_path(0)), "['n']['lr']");
  EXPECT_EQ(catalog.object_rank(3), 2);
}

TEST(MakeCatalogTest, ARankMayHaveSeveralFiles) {
  PlanRanks ranks(1);
  ranks.Add(0, "v", DType::kUint32, {2}, {{0}, {2}});
  ranks.Add(0, "w", DType::kUint32, {3}, {{0}, {3}});
  ranks.states[0]["none"] = Tensor::Absent(DType::kUint32, {0});
  ASSERT_OK_AND_ASSIGN(const SavePlan plan, ranks.Plan());
  const WriteReport whole = Reports(plan)[0];
  std::vector<WriteReport> reports = {
      {"0_p1_0.distcp", 300, 0, 0, {1}, {whole.digest_parts[1]}, 0, 8, {1}, {200}},
      {"0_0.distcp", 100, 0, 0, {2}, {whole.digest_parts[0]}, 0, 7, {0}, {50}}};
  const CatalogInfo info = {.kind = CatalogKind::kIndex, .format = "paddle"};
  ASSERT_OK_AND_ASSIGN(const Catalog catalog,
                       MakeCatalog(info, plan, reports, {}, ranks.global_ranks, false));
  ASSERT_EQ(catalog.files().size(), 2U);
  EXPECT_EQ(catalog.files()[0].name, "0_0.distcp");
  EXPECT_EQ(catalog.files()[0].mtime_ns, 7);
  EXPECT_EQ(catalog.num_tensors(), 2U) << "without empty tensors";
  const TensorId w = catalog.Find("w").value();
  EXPECT_EQ(catalog.chunk(w, 0).file, 1U);
  EXPECT_EQ(catalog.chunk(w, 0).byte_offset, 200U);
  EXPECT_EQ(catalog.chunk(catalog.Find("v").value(), 0).byte_offset, 50U);

  const auto refuses = [&](const std::vector<WriteReport>& bad) {
    EXPECT_THAT(MakeCatalog(info, plan, bad, {}, ranks.global_ranks), FailsWith("BAD_MESSAGE"));
  };
  refuses({reports[0]});
  refuses({reports[0], reports[1], reports[0]});
  reports[0].chunks = {2};
  refuses(reports);
  reports[0].chunks = {0};
  refuses(reports);
  reports[0].chunks = {1};
  reports[0].writer = 1;
  refuses(reports);
}

TEST(MakeCatalogTest, RefusesReportsThatDoNotFitThePlan) {
  PlanRanks ranks(1);
  ranks.AddReplicated("w", DType::kUint32, {2});
  ASSERT_OK_AND_ASSIGN(const SavePlan plan, ranks.Plan());
  std::vector<WriteReport> reports = Reports(plan);
  reports[0].digest_parts.clear();
  EXPECT_THAT(MakeCatalog({}, plan, reports, {}, ranks.global_ranks), FailsWith("BAD_MESSAGE"));
  reports[0] = {};
  EXPECT_THAT(MakeCatalog({}, plan, reports, {}, ranks.global_ranks), FailsWith("BAD_MESSAGE"));
}

}  // namespace
}  // namespace reshard
