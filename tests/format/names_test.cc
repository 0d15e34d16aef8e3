#include "reshard/format/native/names.h"

#include <gtest/gtest.h>

#include <limits>

namespace reshard::native {
namespace {

constexpr std::uint64_t kLargest = std::numeric_limits<std::uint64_t>::max();

TEST(NamesTest, EveryKindRoundTrips) {
  for (const std::uint64_t id : {std::uint64_t{0}, std::uint64_t{10}, kLargest}) {
    EXPECT_EQ(ParseName(CatalogName(id)), (Name{NameKind::kCatalog, id, 0, 0}));
    EXPECT_EQ(ParseName(DeletingName(id)), (Name{NameKind::kDeleting, id, 0, 0}));
    for (const std::uint64_t attempt : {std::uint64_t{0}, std::uint64_t{1}, kLargest}) {
      EXPECT_EQ(ParseName(TempCatalogName(id, attempt)),
                (Name{NameKind::kTempCatalog, id, attempt, 0}));
      EXPECT_EQ(ParseName(DataFileName(3, id, attempt)),
                (Name{NameKind::kDataFile, id, attempt, 3}));
    }
  }
}

TEST(NamesTest, AreSpelledAsDocumented) {
  EXPECT_EQ(CatalogName(7), "7.reshard");
  EXPECT_EQ(TempCatalogName(7, 0), "7.a0.reshard.tmp");
  EXPECT_EQ(DeletingName(7), "7.reshard.deleting");
  EXPECT_EQ(DataFileName(3, 7, 0), "3_7.safetensors");
  EXPECT_EQ(DataFileName(3, 7, 2), "3_7.a2.safetensors");
}

TEST(NamesTest, OnlyCanonicalSpellingsCount) {
  for (const char* text : {"",
                           ".reshard",
                           "a.reshard",
                           "-1.reshard",
                           "+1.reshard",
                           " 1.reshard",
                           "01.reshard",
                           "00.reshard",
                           "1.reshard ",
                           "1.reshardx",
                           "1.RESHARD",
                           "0x1.reshard",
                           "1e3.reshard",
                           "18446744073709551616.reshard",
                           "99999999999999999999999.reshard",
                           "1.reshard.tmp",
                           "1.a.reshard.tmp",
                           "1.a01.reshard.tmp",
                           "1.a-1.reshard.tmp",
                           "1.a0.reshard",
                           "1.a0.tmp",
                           "1.reshard.deleting2",
                           "0.metadata.reshard",
                           "00_0.safetensors",
                           "0_00.safetensors",
                           "0_0.a0.safetensors",
                           "0_0.a01.safetensors",
                           "0_0.a.safetensors",
                           "0_.safetensors",
                           "_0.safetensors",
                           "0.safetensors",
                           "0_0_0.safetensors",
                           "0_-1.safetensors",
                           "-1_0.safetensors",
                           "0_18446744073709551616.safetensors",
                           "0_0.safetensors.tmp",
                           "0_0.distcp",
                           "model.safetensors",
                           "0_0.a18446744073709551616.safetensors"}) {
    EXPECT_EQ(ParseName(text), std::nullopt) << text;
  }
  EXPECT_EQ(ParseName(std::string_view("1.reshard\0", 10)), std::nullopt);
}

}  // namespace
}  // namespace reshard::native
