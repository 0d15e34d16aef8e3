#include "reshard/format/paddle/writer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "reshard/format/paddle/data_file.h"
#include "tests/support/hex.h"
#include "tests/support/status_matchers.h"

namespace reshard::paddle {
namespace {

/// The file with these payloads, one byte value each.
Bytes FileOf(const DataFileLayout& layout, const std::vector<ArrayEntry>& arrays) {
  Bytes out;
  for (std::size_t i = 0; i <= arrays.size(); ++i) {
    const ByteSpan literal = layout.Literal(i);
    out.insert(out.end(), literal.begin(), literal.end());
    if (i < arrays.size()) {
      EXPECT_EQ(layout.payload_offsets[i], out.size());
      out.resize(out.size() + NumBytes(arrays[i].shape, arrays[i].dtype),
                 static_cast<std::byte>(i + 1));
    }
  }
  EXPECT_EQ(layout.file_size, out.size());
  return out;
}

TEST(PaddleWriterTest, IsTheExampleOfTheDocument) {
  const std::vector<ArrayEntry> arrays = {{"s", "s", DType::kInt64, {}}};
  const Bytes file = FileOf(LayOutDataFile(arrays), arrays);
  const std::string hex = testing::ToHex(file);
  EXPECT_EQ(hex,
            "80047d288c017394"
            "8c156e756d70792e636f72652e6d756c746961727261798c0c5f7265636f6e7374727563749394"
            "8c056e756d70798c076e6461727261799394"
            "4b00854301629487"
            "52284b0129"
            "8c056e756d70798c0564747970659394"
            "8c026938898887"
            "52284b038c013c4e4e4e4affffffff4affffffff4b00746294"
            "894308"
            "0101010101010101"
            "7462"
            "8c1b53747275637475726564546f506172616d657465724e616d654040"
            "7d2868008c017375"
            "752e");
}

TEST(PaddleWriterTest, TheReaderFindsEveryArray) {
  std::vector<std::string> keys;
  std::vector<DType> dtypes;
  for (const DTypeInfo& info : AllDTypes()) {
    if (NumpyCode(info.dtype)) {
      dtypes.push_back(info.dtype);
    }
  }
  EXPECT_EQ(dtypes.size(), 14U);
  const std::vector<Shape> shapes = {{}, {3}, {2, 200}, {1, 2, 3, 4, 5}, {300, 300}};
  for (std::size_t i = 0; i < 2100; ++i) {  // more than two batches
    keys.push_back(fmt::format("layer.{}.w", i));
  }
  std::vector<ArrayEntry> arrays;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    arrays.push_back({keys[i], "w", dtypes[i % dtypes.size()], shapes[i % (i < 60 ? 5 : 3)]});
  }
  const Bytes bytes = FileOf(LayOutDataFile(arrays), arrays);
  MemorySource source(bytes);
  ASSERT_OK_AND_ASSIGN(const DataFile file, ReadDataFile(source));
  ASSERT_EQ(file.arrays.size(), arrays.size());
  const DataFileLayout layout = LayOutDataFile(arrays);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    EXPECT_EQ(file.arrays[i].path, Path{PathPart(keys[i])});
    EXPECT_EQ(NumpyCode(file.arrays[i].dtype), NumpyCode(arrays[i].dtype));
    EXPECT_TRUE(std::ranges::equal(file.arrays[i].shape, arrays[i].shape));
    EXPECT_EQ(file.arrays[i].order, ChunkOrder::kRowMajor);
    EXPECT_EQ(file.arrays[i].bytes.offset, layout.payload_offsets[i]);
  }
  ASSERT_TRUE(file.name_table.has_value());
  EXPECT_EQ(file.name_table->get_if<Value::Map>()->size(), arrays.size());
}

TEST(PaddleWriterTest, NothingIsAnEmptyTable) {
  const std::vector<ArrayEntry> arrays;
  const Bytes bytes = FileOf(LayOutDataFile(arrays), arrays);
  MemorySource source(bytes);
  ASSERT_OK_AND_ASSIGN(const DataFile file, ReadDataFile(source));
  EXPECT_TRUE(file.arrays.empty());
  EXPECT_TRUE(file.name_table.has_value());
}

TEST(PaddleWriterTest, WhatPaddleHasNotHasNoCode) {
  for (const DType dtype : {DType::kUint16, DType::kUint32, DType::kUint64, DType::kComplex32,
                            DType::kFloat8E8m0fnu, DType::kFloat8E4m3fnuz, DType::kFloat8E5m2fnuz,
                            DType::kFloat4E2m1, DType::kFloat6E2m3, DType::kFloat6E3m2}) {
    EXPECT_FALSE(NumpyCode(dtype).has_value()) << Info(dtype).name;
  }
}

}  // namespace
}  // namespace reshard::paddle
