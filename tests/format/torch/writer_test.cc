#include "reshard/format/torch/writer.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/crc32.h"
#include "tests/support/hex.h"

namespace reshard::torch {
namespace {

using reshard::testing::ToHex;

/// Opcodes of `data.pkl` in a record: from its PROTO to its STOP.
std::string PickleIn(ByteSpan record) {
  const std::uint32_t size = LoadLittle<std::uint32_t>(record.data() + 22);
  const std::uint16_t name = LoadLittle<std::uint16_t>(record.data() + 26);
  EXPECT_EQ(AsText(record.subspan(30, name)), "archive/data.pkl");
  return std::string(AsText(record.subspan(30U + name, size)));
}

std::string ObjectPickle(const Value& value) {
  const std::string pickle = PickleIn(EncodeObjectRecord(value));
  EXPECT_EQ(pickle.substr(0, 2), "\x80\x02");
  EXPECT_EQ(pickle.back(), '.');
  return ToHex(AsBytes(pickle.substr(2, pickle.size() - 3)));
}

TEST(TorchWriterTest, TensorPicklesAreThoseOfTorch) {
  // What torch.save writes of torch.zeros(2, 3), without its memo (BINPUT).
  const EncodedTensor record = EncodeTensorRecord(DType::kFloat32, Shape{2, 3});
  using namespace std::string_literals;  // NOLINT: it has NULs
  const std::string expected =
      "\x80\x02"
      "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n"
      "FloatStorage\nX\x01\0\0\0"
      "0X\x03\0\0\0cpuK\x06tQK\0(K\x02K\x03t(K\x03K\x01t\x89"
      "ccollections\nOrderedDict\n)RtR."s;
  EXPECT_EQ(PickleIn(record.head), expected);
  EXPECT_EQ(record.payload_bytes, 24U);
}

TEST(TorchWriterTest, DTypesWithoutAStorageClassLieInUntypedOnes) {
  const std::string pickle = PickleIn(EncodeTensorRecord(DType::kUint32, Shape{5}).head);
  EXPECT_NE(pickle.find("_rebuild_tensor_v3\n"), std::string::npos);
  EXPECT_NE(pickle.find("ctorch.storage\nUntypedStorage\n"), std::string::npos);
  EXPECT_NE(pickle.find("cpuK\x14tQ"), std::string::npos) << "20 bytes";
  EXPECT_NE(pickle.find(")Rctorch\nuint32\ntR."), std::string::npos);
}

TEST(TorchWriterTest, ScalarsAndEmptyShapesHaveDenseStrides) {
  const std::string scalar = PickleIn(EncodeTensorRecord(DType::kInt64, Shape{}).head);
  EXPECT_NE(scalar.find(std::string("K\x01tQK\0))\x89", 9)), std::string::npos);
  const std::string empty = PickleIn(EncodeTensorRecord(DType::kInt64, Shape{0, 3}).head);
  EXPECT_NE(empty.find(std::string("K\0tQK\0(K\0K\x03t(K\x03K\x01t", 17)), std::string::npos);
}

/// Reads the central directory that `tail` begins with.
struct Entry {
  std::string name;
  std::uint64_t size = 0;
  std::uint64_t header = 0;
  std::uint32_t crc = 0;
};

std::vector<Entry> ReadDirectory(ByteSpan tail, std::size_t& end) {
  std::vector<Entry> out;
  std::size_t at = 0;
  while (LoadLittle<std::uint32_t>(tail.data() + at) == 0x02014b50) {
    const std::byte* p = tail.data() + at;
    const std::size_t name = LoadLittle<std::uint16_t>(p + 28);
    const std::size_t extra = LoadLittle<std::uint16_t>(p + 30);
    Entry& entry = out.emplace_back();
    entry.name = AsText(tail.subspan(at + 46, name));
    entry.crc = LoadLittle<std::uint32_t>(p + 16);
    entry.size = LoadLittle<std::uint32_t>(p + 24);
    entry.header = LoadLittle<std::uint32_t>(p + 42);
    if (extra != 0) {
      EXPECT_EQ(extra, 20U);
      EXPECT_EQ(ToHex(tail.subspan(at + 46 + name, 4)), "01001000");
      EXPECT_EQ(LoadLittle<std::uint64_t>(p + 46 + name + 4),
                LoadLittle<std::uint64_t>(p + 46 + name + 12));
      EXPECT_EQ(entry.size, 0xFFFFFFFFU);
      entry.size = LoadLittle<std::uint64_t>(p + 46 + name + 4);
    }
    at += 46 + name + extra;
  }
  end = at;
  return out;
}

void CheckDirectory(const EncodedTensor& record, bool large) {
  std::size_t end = 0;
  const std::vector<Entry> entries = ReadDirectory(record.tail, end);
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries[0].name, "archive/data.pkl");
  EXPECT_EQ(entries[1].name, "archive/byteorder");
  EXPECT_EQ(entries[2].name, "archive/version");
  EXPECT_EQ(entries[3].name, "archive/data/0");
  EXPECT_EQ(entries[3].size, record.payload_bytes);
  EXPECT_EQ(entries[3].crc, 0U) << "left out";
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t payload = entries[i].header + 30 + entries[i].name.size();
    const ByteSpan bytes = ByteSpan(record.head).subspan(payload, entries[i].size);
    EXPECT_EQ(entries[i].crc, testing::Crc32(bytes)) << entries[i].name;
    EXPECT_EQ(entries[i + 1].header, payload + entries[i].size) << "no gaps";
  }
  EXPECT_EQ(record.tail.size() - end, large ? 56U + 20U + 22U : 22U);
  const std::uint64_t directory = record.head.size() + record.payload_bytes;
  const std::byte* last = record.tail.data() + record.tail.size() - 22;
  EXPECT_EQ(LoadLittle<std::uint16_t>(last + 10), 4U);
  EXPECT_EQ(LoadLittle<std::uint32_t>(last + 12), end);
  EXPECT_EQ(LoadLittle<std::uint32_t>(last + 16), large ? 0xFFFFFFFFU : directory);
  if (large) {
    EXPECT_EQ(LoadLittle<std::uint64_t>(record.tail.data() + end + 40), end);
    EXPECT_EQ(LoadLittle<std::uint64_t>(record.tail.data() + end + 48), directory);
    EXPECT_EQ(LoadLittle<std::uint64_t>(record.tail.data() + end + 56 + 8), directory + end);
  }
}

TEST(TorchWriterTest, DirectoriesDescribeTheirMembers) {
  CheckDirectory(EncodeTensorRecord(DType::kFloat32, Shape{2, 3}), false);
  CheckDirectory(EncodeTensorRecord(DType::kUint8, Shape{0}), false);
  CheckDirectory(EncodeTensorRecord(DType::kFloat64, Shape{1 << 20, 1 << 12}), true);
}

TEST(TorchWriterTest, APayloadJustBelowFourGibibytesHasALargeDirectory) {
  // The member fits into 32 bits, the directory's offset does not.
  const EncodedTensor record = EncodeTensorRecord(DType::kUint8, Shape{0xFFFFFFFE});
  CheckDirectory(record, true);
}

TEST(TorchWriterTest, PlainValuesArePickledInProtocolTwo) {
  EXPECT_EQ(ObjectPickle(Value()), "4e");
  EXPECT_EQ(ObjectPickle(Value(true)), "88");
  EXPECT_EQ(ObjectPickle(Value(7)), "4b07");
  EXPECT_EQ(ObjectPickle(Value(-0.125)), "47bfc0000000000000");
  EXPECT_EQ(ObjectPickle(Value("\xc3\xa9")), "5802000000c3a9");
  EXPECT_EQ(ObjectPickle(Value(Value::List{})), "5d");
  EXPECT_EQ(ObjectPickle(Value(Value::List{Value(1), Value(2)})), "5d284b014b0265");
  EXPECT_EQ(ObjectPickle(Value(Value::Map{{MapKey(std::int64_t{-1}), Value("a")}})),
            "7d284affffffff58010000006175");
  // _codecs.encode('\x00\xe9', 'latin1')
  EXPECT_EQ(ObjectPickle(Value(Bytes{std::byte{0}, std::byte{0xe9}})),
            ToHex(AsBytes("c_codecs\nencode\n")) + "580300000000c3a9" + "58060000006c6174696e3186" +
                "52");
}

TEST(TorchWriterTest, LongListsAreFilledInBatches) {
  const std::string hex = ObjectPickle(Value(Value::List(2001, Value())));
  EXPECT_EQ(
      hex, "5d28" + [] {
        std::string nones;
        for (int i = 0; i < 1000; ++i) {
          nones += "4e";
        }
        return nones + "6528" + nones + "65284e65";
      }());
}

TEST(TorchWriterTest, OpaqueRecordsAreWrittenAsTheyAre) {
  const Bytes record = EncodeObjectRecord(Value(1));
  EXPECT_EQ(WhyNoRecord(Value(Opaque{"m.C", record})), std::nullopt);
  EXPECT_TRUE(EncodeObjectRecord(Value(Opaque{"m.C", record})) == record);
  EXPECT_EQ(WhyNoRecord(Value(Opaque{"m.C", {}})), "an object of type m.C");
  EXPECT_EQ(WhyNoRecord(Value(Value::List{Value(Opaque{"m.C", record})})), "an object of type m.C");
}

TEST(TorchWriterTest, RecordsAreLaidOutWithAlignedPayloads) {
  FileLayout layout;
  EXPECT_EQ(layout.AddObject(100), (ByteRange{0, 100}));
  EncodedTensor small = EncodeTensorRecord(DType::kUint8, Shape{5});
  const ByteRange first = layout.AddTensor(small);
  EXPECT_EQ((first.offset + small.head.size()) % kSmallAlignment, 0U);
  EXPECT_GE(first.offset, 100U);
  EXPECT_LT(first.offset, 100U + kSmallAlignment);
  const EncodedTensor large = EncodeTensorRecord(DType::kUint8, Shape{4096});
  const ByteRange second = layout.AddTensor(large);
  EXPECT_EQ((second.offset + large.head.size()) % kPayloadAlignment, 0U);
  EXPECT_GE(second.offset, first.end());
  EXPECT_EQ(layout.size(), second.offset + large.head.size() + 4096 + large.tail.size());
}

}  // namespace
}  // namespace reshard::torch
