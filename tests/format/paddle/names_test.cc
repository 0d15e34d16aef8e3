#include "reshard/format/paddle/names.h"

#include <gtest/gtest.h>

#include <limits>

namespace reshard::paddle {
namespace {

constexpr std::uint64_t kLargest = std::numeric_limits<std::uint64_t>::max();

TEST(PaddleNamesTest, EveryKindRoundTrips) {
  for (const std::uint64_t id : {std::uint64_t{0}, std::uint64_t{10}, kLargest}) {
    EXPECT_EQ(ParseName(MetadataName(id)), (Name{NameKind::kMetadata, id, 0, 0, 0}));
    EXPECT_EQ(ParseName(IndexName(id)), (Name{NameKind::kIndex, id, 0, 0, 0}));
    for (const std::uint64_t attempt : {std::uint64_t{0}, std::uint64_t{1}, kLargest}) {
      EXPECT_EQ(ParseName(TempMetadataName(id, attempt)),
                (Name{NameKind::kTempMetadata, id, attempt, 0, 0}));
      EXPECT_EQ(ParseName(TempIndexName(id, attempt)),
                (Name{NameKind::kTempIndex, id, attempt, 0, 0}));
      for (const std::uint64_t part : {std::uint64_t{0}, std::uint64_t{2}}) {
        EXPECT_EQ(ParseName(DataFileName(3, part, id, attempt)),
                  (Name{NameKind::kData, id, attempt, 3, part}));
      }
    }
  }
}

TEST(PaddleNamesTest, AreSpelledAsDocumented) {
  EXPECT_EQ(MetadataName(7), "7.metadata");
  EXPECT_EQ(IndexName(7), "7.metadata.reshard");
  EXPECT_EQ(TempMetadataName(7, 2), "7.metadata.a2.tmp");
  EXPECT_EQ(TempIndexName(7, 0), "7.metadata.reshard.a0.tmp");
  EXPECT_EQ(DataFileName(3, 0, 7, 0), "3_7.distcp");
  EXPECT_EQ(DataFileName(3, 0, 7, 2), "3_a2_7.distcp");
  EXPECT_EQ(DataFileName(3, 1, 7, 0), "3_p1_7.distcp");
  EXPECT_EQ(DataFileName(3, 1, 7, 2), "3_p1_a2_7.distcp");
}

TEST(PaddleNamesTest, KnowsPaddlesOwnNames) {
  EXPECT_EQ(ParseName("0.metadata.lock"), (Name{NameKind::kLock, 0, 0, 0, 0}));
  EXPECT_EQ(ParseName("2_10.safetensors"), (Name{NameKind::kData, 10, 0, 2, 0}));
}

TEST(PaddleNamesTest, OtherSpellingsAreNoNames) {
  for (const char* text : {"",
                           "metadata",
                           ".metadata",
                           "00.metadata",
                           "01_0.distcp",
                           "0_00.distcp",
                           "-1.metadata",
                           "0.metadata.tmp",
                           "0.metadata.a.tmp",
                           "0.metadata.a01.tmp",
                           "0.metadata.reshardx",
                           "0.metadata.a1",
                           "0_0.distcp2",
                           "0_a0_0.distcp",
                           "0_p0_0.distcp",
                           "0_a1_p1_0.distcp",
                           "0_p1_0.safetensors",
                           "0_a1_0.safetensors",
                           "part0-of-2_0.distcp",
                           "0.distcp",
                           "18446744073709551616.metadata",
                           "0_0.reshard",
                           "0.metadata "}) {
    EXPECT_EQ(ParseName(text), std::nullopt) << text;
  }
}

TEST(PaddleNamesTest, NoTemporaryNameLooksCommittedToPaddle) {
  // Paddle takes whatever ends in "{id}.metadata" for metadata.
  EXPECT_FALSE(TempMetadataName(0, 0).ends_with(".metadata"));
  EXPECT_FALSE(TempIndexName(0, 0).ends_with(".metadata"));
  EXPECT_FALSE(IndexName(0).ends_with(".metadata"));
}

}  // namespace
}  // namespace reshard::paddle
