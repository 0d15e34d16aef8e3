#include "reshard/format/paddle/names.h"

#include <gtest/gtest.h>

namespace reshard::paddle {
namespace {

TEST(PaddleNamesTest, ParsesWhatItWrites) {
  EXPECT_EQ(MetadataName(7), "7.metadata");
  EXPECT_EQ(IndexName(7), "7.metadata.reshard");
  EXPECT_EQ(TempMetadataName(7, 2), "7.metadata.a2.tmp");
  EXPECT_EQ(TempIndexName(7, 2), "7.metadata.reshard.a2.tmp");
  EXPECT_EQ(DataFileName(3, 0, 7, 0), "3_7.distcp");
  EXPECT_EQ(DataFileName(3, 1, 7, 2), "3_p1_a2_7.distcp");
  EXPECT_EQ(ParseName("7.metadata"), (Name{.kind = NameKind::kMetadata, .unique_id = 7}));
  EXPECT_EQ(ParseName("7.metadata.reshard"), (Name{.kind = NameKind::kIndex, .unique_id = 7}));
  EXPECT_EQ(ParseName("7.metadata.a2.tmp"),
            (Name{.kind = NameKind::kTempMetadata, .unique_id = 7, .attempt = 2}));
  EXPECT_EQ(ParseName("7.metadata.reshard.a2.tmp"),
            (Name{.kind = NameKind::kTempIndex, .unique_id = 7, .attempt = 2}));
  EXPECT_EQ(ParseName("7.metadata.lock"), (Name{.kind = NameKind::kLock, .unique_id = 7}));
  EXPECT_EQ(ParseName("3_7.distcp"), (Name{.kind = NameKind::kData, .unique_id = 7, .rank = 3}));
  EXPECT_EQ(ParseName("3_7.safetensors"),
            (Name{.kind = NameKind::kData, .unique_id = 7, .rank = 3}));
  for (const std::uint64_t part : {0, 4}) {
    for (const std::uint64_t attempt : {0, 5}) {
      EXPECT_EQ(ParseName(DataFileName(1, part, 0, attempt)),
                (Name{NameKind::kData, 0, attempt, 1, part}));
    }
  }
}

TEST(PaddleNamesTest, OnlyCanonicalSpellingsCount) {
  for (const char* name :
       {"", "metadata", ".metadata", "00.metadata", "+1.metadata", "-1.metadata", "1.metadata ",
        "18446744073709551616.metadata", "flex-ckpt.auto_generated.metadata", "1.metadata.reshard2",
        "1.metadata.a.tmp", "1.metadata.a01.tmp", "1.metadata.a1.tmpx", "0_0.distcp2", "0_.distcp",
        "_0.distcp", "0_00.distcp", "0_p0_0.distcp", "0_a0_0.distcp", "0_a1_p1_0.distcp",
        "0_a1_0.safetensors", "0.distcp", "part0-of-2_0.distcp"}) {
    EXPECT_FALSE(ParseName(name)) << name;
  }
}

}  // namespace
}  // namespace reshard::paddle
