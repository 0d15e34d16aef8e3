#include "reshard/format/torch/names.h"

#include <gtest/gtest.h>

namespace reshard::torch {
namespace {

TEST(TorchNamesTest, ParsesWhatItWrites) {
  EXPECT_EQ(ParseName(".metadata"), (Name{NameKind::kMetadata, 0, 0, 0}));
  EXPECT_EQ(ParseName(".metadata.tmp"), (Name{NameKind::kTorchTemp, 0, 0, 0}));
  EXPECT_EQ(ParseName(".metadata.reshard"), (Name{NameKind::kIndex, 0, 0, 0}));
  EXPECT_EQ(ParseName("__12.metadata"), (Name{NameKind::kRankMetadata, 0, 12, 0}));
  EXPECT_EQ(TempMetadataName(0), ".metadata.a0.tmp");
  EXPECT_EQ(ParseName(TempMetadataName(3)), (Name{NameKind::kTempMetadata, 3, 0, 0}));
  EXPECT_EQ(TempIndexName(3), ".metadata.reshard.a3.tmp");
  EXPECT_EQ(ParseName(TempIndexName(3)), (Name{NameKind::kTempIndex, 3, 0, 0}));
  EXPECT_EQ(DataFileName(7, 0, 0), "__7_0.distcp");
  EXPECT_EQ(ParseName("__7_2.distcp"), (Name{NameKind::kData, 0, 7, 2}));
  EXPECT_EQ(DataFileName(7, 2, 4), "__7_2.a4.distcp");
  EXPECT_EQ(ParseName("__7_2.a4.distcp"), (Name{NameKind::kData, 4, 7, 2}));
}

TEST(TorchNamesTest, OnlyCanonicalSpellingsCount) {
  for (const char* name : {"",
                           "metadata",
                           "0.metadata",
                           ".metadata.",
                           ".metadata.reshard.",
                           ".metadata.a.tmp",
                           ".metadata.a01.tmp",
                           ".metadata.a1",
                           "__.metadata",
                           "__01.metadata",
                           "__1.metadata.tmp",
                           "__0_0",
                           "__0_0.a0.distcp",
                           "__0_00.distcp",
                           "__00_0.distcp",
                           "_0_0.distcp",
                           "x__0_0.distcp",
                           "__0_0.distcp.tmp",
                           "__0_.distcp",
                           "0_0.distcp",
                           "__0_-1.distcp",
                           "__0_99999999999999999999.distcp"}) {
    EXPECT_EQ(ParseName(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace reshard::torch
