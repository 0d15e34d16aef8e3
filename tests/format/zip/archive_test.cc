// Zip archives: the smallest bad ones of each kind.

#include "reshard/format/zip/archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "reshard/format/zip/crc32.h"
#include "tests/support/counting_source.h"
#include "tests/support/status_matchers.h"

namespace reshard::zip {
namespace {

using ::reshard::testing::CountingSource;
using ::reshard::testing::FailsWith;

/// A member to be written, with what can be wrong with it.
struct Entry {
  std::string name;
  std::string data;
  std::uint16_t flags = 0x808;
  std::uint16_t method = 0;
  std::string local_name = {};                     ///< Empty: the same.
  std::function<std::uint32_t(std::uint32_t)> crc = [](std::uint32_t c) { return c; };
  std::uint32_t attributes = 0;
  std::uint64_t descriptor_size_error = 0;
  std::optional<std::uint32_t> header = std::nullopt;  ///< Of the directory.
  std::optional<std::uint32_t> size = std::nullopt;    ///< Of the directory.
  std::string extra = {};                              ///< Of the directory.
};

/// Archives as torch writes them, byte by byte.
class Writer {
 public:
  Writer& Add(const Entry& entry) {
    const std::uint64_t begin = out_.size();
    const ByteSpan data = AsBytes(entry.data);
    const std::uint32_t crc = entry.crc(Crc32(data));
    const std::string& local = entry.local_name.empty() ? entry.name : entry.local_name;
    const bool descriptor = (entry.flags & 8) != 0;
    Put32(out_, 0x04034b50);
    Put16(out_, 0);
    Put16(out_, entry.flags);
    Put16(out_, entry.method);
    Put32(out_, 0);
    Put32(out_, descriptor ? 0 : crc);
    Put32(out_, descriptor ? 0 : static_cast<std::uint32_t>(data.size()));
    Put32(out_, descriptor ? 0 : static_cast<std::uint32_t>(data.size()));
    Put16(out_, static_cast<std::uint16_t>(local.size()));
    Put16(out_, 6);
    PutText(out_, local);
    PutText(out_, std::string("FB\x02\x00ZZ", 6));
    PutText(out_, entry.data);
    if (descriptor) {
      const auto size = static_cast<std::uint32_t>(data.size() + entry.descriptor_size_error);
      Put32(out_, 0x08074b50);
      Put32(out_, crc);
      Put32(out_, size);
      Put32(out_, size);
    }
    Put32(directory_, 0x02014b50);
    Put32(directory_, 0);
    Put16(directory_, entry.flags);
    Put16(directory_, entry.method);
    Put32(directory_, 0);
    Put32(directory_, crc);
    const std::uint32_t size = entry.size.value_or(static_cast<std::uint32_t>(data.size()));
    Put32(directory_, size);
    Put32(directory_, size);
    Put16(directory_, static_cast<std::uint16_t>(entry.name.size()));
    Put16(directory_, static_cast<std::uint16_t>(entry.extra.size()));
    Put32(directory_, 0);  // comment, disk
    Put16(directory_, 0);
    Put32(directory_, entry.attributes);
    Put32(directory_, entry.header.value_or(static_cast<std::uint32_t>(begin)));
    PutText(directory_, entry.name);
    PutText(directory_, entry.extra);
    ++count_;
    return *this;
  }

  Bytes& out() { return out_; }

  /// The whole archive; `count` and `zip64_offset_error` falsify the end records.
  Bytes Finish(std::optional<std::uint16_t> count = std::nullopt, bool zip64 = true,
               std::uint64_t zip64_offset_error = 0) {
    const std::uint64_t at = out_.size();
    const std::uint64_t size = directory_.size();
    out_.insert(out_.end(), directory_.begin(), directory_.end());
    if (zip64) {
      const std::uint64_t end64 = out_.size();
      Put32(out_, 0x06064b50);
      AppendLittle(out_, std::uint64_t{44});
      Put32(out_, 0x002d031e);
      Put32(out_, 0);
      Put32(out_, 0);
      AppendLittle(out_, std::uint64_t{count.value_or(count_)});
      AppendLittle(out_, std::uint64_t{count.value_or(count_)});
      AppendLittle(out_, size);
      AppendLittle(out_, at + zip64_offset_error);
      Put32(out_, 0x07064b50);
      Put32(out_, 0);
      AppendLittle(out_, end64);
      Put32(out_, 1);
    }
    Put32(out_, 0x06054b50);
    Put32(out_, 0);
    Put16(out_, count.value_or(count_));
    Put16(out_, count.value_or(count_));
    Put32(out_, static_cast<std::uint32_t>(size));
    Put32(out_, static_cast<std::uint32_t>(at));
    Put16(out_, 0);
    return out_;
  }

 private:
  static void Put16(Bytes& out, std::uint16_t value) { AppendLittle(out, value); }

  static void Put32(Bytes& out, std::uint32_t value) { AppendLittle(out, value); }

  static void PutText(Bytes& out, std::string_view text) {
    const ByteSpan bytes = AsBytes(text);
    out.insert(out.end(), bytes.begin(), bytes.end());
  }

  Bytes out_;
  Bytes directory_;
  std::uint16_t count_ = 0;
};

Bytes One(const Entry& entry) { return Writer().Add(entry).Finish(); }

Status OpenBytes(const Bytes& bytes) {
  MemorySource source(bytes);
  const Result<Archive> archive = Archive::Open(source, {0, bytes.size()});
  return archive.ok() ? OkStatus() : Status(tl::unexpected<Error>(archive.error()));
}

/// Opens the archive and reads its first member.
Status ReadFirst(const Bytes& bytes) {
  MemorySource source(bytes);
  RESHARD_TRY_ASSIGN(const Archive archive, Archive::Open(source, {0, bytes.size()}));
  RESHARD_TRY(archive.Read(archive.members()[0], 1000));
  return OkStatus();
}

TEST(ZipArchiveTest, ReadsWhatTorchWrites) {
  Bytes bytes(100, std::byte{0x55});
  const Bytes archive_bytes =
      Writer().Add({"a/data.pkl", "hello"}).Add({"a/data/0", ""}).Add({"a/version", "3\n"}).Finish();
  bytes.insert(bytes.end(), archive_bytes.begin(), archive_bytes.end());
  bytes.resize(bytes.size() + 50);
  CountingSource source(bytes);
  ASSERT_OK_AND_ASSIGN(const Archive archive,
                       Archive::Open(source, {100, archive_bytes.size()}));
  EXPECT_EQ(source.reads(), 1U);
  EXPECT_EQ(archive.top(), "a");
  ASSERT_EQ(archive.members().size(), 3U);
  const Member* member = archive.Find("data.pkl");
  ASSERT_NE(member, nullptr);
  ASSERT_OK_AND_ASSIGN(const ByteRange payload, archive.Locate(*member));
  EXPECT_EQ(AsText(ByteSpan(bytes).subspan(payload.offset, payload.size)), "hello");
  ASSERT_OK_AND_ASSIGN(const Bytes version, archive.Read(*archive.Find("version"), 10));
  EXPECT_EQ(AsText(version), "3\n");
  EXPECT_EQ(archive.Find("DATA.PKL"), nullptr);
  EXPECT_TRUE(archive.HasPrefix("data/"));
  EXPECT_FALSE(archive.HasPrefix("code/"));
  EXPECT_THAT(archive.Read(*member, 4), FailsWith(kLimit));
}

TEST(ZipHostileTest, Z1MembersThatOverlap) {
  EXPECT_THAT(OpenBytes(Writer().Add({"a/x", "data"}).Add({.name = "a/y", .data = "d", .header = 0}).Finish()),
              FailsWith(kOverlap));
  Entry first{"a/x", "data"};
  first.size = 60;
  EXPECT_THAT(OpenBytes(Writer().Add(first).Add({"a/y", "data"}).Finish()), FailsWith(kOverlap));
}

TEST(ZipHostileTest, Z2CompressedMembers) {
  EXPECT_THAT(OpenBytes(One({.name = "a/x", .data = "data", .method = 8})),
              FailsWith(kMethodNotAllowed));
}

TEST(ZipHostileTest, Z3NamesThatDisagree) {
  EXPECT_THAT(ReadFirst(One({.name = "a/data.pkl", .data = "d", .local_name = "a/datap.kl"})),
              FailsWith(kHeaderMismatch));
}

TEST(ZipHostileTest, Z4FlagsThatTorchDoesNotSet) {
  for (const std::uint16_t flag : {0x1, 0x2, 0x20, 0x40, 0x2000}) {
    EXPECT_THAT(OpenBytes(One({.name = "a/x", .data = "d", .flags = flag})),
                FailsWith(kFlagNotAllowed))
        << flag;
  }
}

TEST(ZipHostileTest, Z5WrongChecksumAndNone) {
  const auto wrong = [](std::uint32_t crc) { return crc + 1; };
  const auto none = [](std::uint32_t) { return 0U; };
  EXPECT_THAT(ReadFirst(One({.name = "a/x", .data = "data", .crc = wrong})),
              FailsWith(kCrcMismatch));
  EXPECT_OK(ReadFirst(One({.name = "a/x", .data = "data", .crc = none})));
}

TEST(ZipHostileTest, Z6NamesThatStandTwice) {
  EXPECT_THAT(OpenBytes(Writer().Add({"a/x", "1"}).Add({"a/x", "2"}).Finish()),
              FailsWith(kDuplicateName));
  EXPECT_THAT(OpenBytes(Writer().Add({"a/data", "1"}).Add({"a/DATA", "2"}).Finish()),
              FailsWith(kDuplicateName));
}

TEST(ZipHostileTest, Z7BytesThatBelongToNothing) {
  const Bytes good = One({"a/x", "data"});
  Bytes trailing = good;
  trailing.push_back(std::byte{0});
  EXPECT_THAT(OpenBytes(trailing), FailsWith(kFraming));
  Bytes comment = good;  // a whole archive in the comment of another
  comment[comment.size() - 2] = static_cast<std::byte>(good.size());
  comment.insert(comment.end(), good.begin(), good.end());
  EXPECT_THAT(OpenBytes(comment), FailsWith(kFraming));
  Writer late;
  late.out() = Bytes(4);
  EXPECT_THAT(OpenBytes(late.Add({"a/x", "data"}).Finish()), FailsWith(kFraming));
  Writer gap;
  gap.Add({"a/x", "data"}).out().resize(gap.out().size() + 3);
  EXPECT_THAT(ReadFirst(gap.Finish()), FailsWith(kFraming));
  EXPECT_THAT(OpenBytes(Bytes(10)), FailsWith(kFraming));
}

TEST(ZipHostileTest, Z8Zip64ThatDisagrees) {
  EXPECT_THAT(OpenBytes(Writer().Add({"a/x", "d"}).Finish(std::nullopt, true, 1)),
              FailsWith(kZip64Inconsistent));
  Entry unneeded{"a/x", "d"};
  unneeded.extra = std::string("\x01\x00\x08\x00", 4) + std::string(8, '\0');
  EXPECT_THAT(OpenBytes(One(unneeded)), FailsWith(kZip64Inconsistent));
  Entry missing{"a/x", "d"};
  missing.size = 0xFFFFFFFF;
  EXPECT_THAT(OpenBytes(One(missing)), FailsWith(kZip64Inconsistent));
}

TEST(ZipHostileTest, Z9MoreMembersThanTheDirectoryHolds) {
  EXPECT_THAT(OpenBytes(Writer().Add({"a/x", "d"}).Finish(60000)), FailsWith(kDirectory));
  EXPECT_THAT(OpenBytes(Writer().Finish(0)), FailsWith(kDirectory));
}

TEST(ZipHostileTest, Z10OffsetsThatLeaveTheArchive) {
  Entry far{"a/x", "d"};
  far.header = 0xFFFFFFF0;
  EXPECT_THAT(OpenBytes(One(far)), FailsWith(kRange));
  Entry wide{"a/x", "d"};
  wide.size = 0xFFFFFFFF;
  wide.extra = std::string("\x01\x00\x10\x00", 4) + std::string(16, '\xff');
  EXPECT_THAT(OpenBytes(One(wide)), FailsWith(kRange));
}

TEST(ZipHostileTest, Z11NamesThatArePaths) {
  for (const std::string name :
       {"../../x", "/etc/x", "C:\\x", "a\\..\\b", "", "a/../b", "a//b", "x", "a/b c", "C:/x"}) {
    EXPECT_THAT(OpenBytes(One({.name = name, .data = "d"})), FailsWith(kBadMemberName)) << name;
  }
  EXPECT_THAT(OpenBytes(One({.name = std::string("a/b\0", 4), .data = "d"})),
              FailsWith(kBadMemberName));
  EXPECT_THAT(OpenBytes(Writer().Add({"a/x", "1"}).Add({"b/x", "2"}).Finish()),
              FailsWith(kBadMemberName));
}

TEST(ZipHostileTest, Z12LinksAndFoldersWithContents) {
  EXPECT_THAT(OpenBytes(One({.name = "a/x", .data = "d", .attributes = 0120777U << 16})),
              FailsWith(kRefused));
  EXPECT_THAT(OpenBytes(One({.name = "a/x/", .data = "d"})), FailsWith(kRefused));
}

TEST(ZipHostileTest, Z15DescriptorThatDisagrees) {
  EXPECT_THAT(ReadFirst(One({.name = "a/x", .data = "d", .descriptor_size_error = 1})),
              FailsWith(kHeaderMismatch));
}

TEST(ZipHostileTest, EveryCutIsAnError) {
  const Bytes good = Writer().Add({"a/x", "data"}).Add({"a/y", "more"}).Finish();
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(OpenBytes(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)))
                     .ok())
        << size;
  }
}

TEST(Crc32Test, HasTheCheckValue) {
  EXPECT_EQ(Crc32(AsBytes("123456789")), 0xCBF43926U);
  EXPECT_EQ(Crc32(AsBytes("6789"), Crc32(AsBytes("12345"))), 0xCBF43926U);
  EXPECT_EQ(Crc32(AsBytes("0123456789abcdefghij")),
            Crc32(AsBytes("3456789abcdefghij"), Crc32(AsBytes("012"))));
}

}  // namespace
}  // namespace reshard::zip
