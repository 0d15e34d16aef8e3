// Files of format version 1 that were written once (tests/golden/v1/README.md), and the worked
// example of the format's document: both decode to what is written here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/catalog/cbor.h"
#include "reshard/codec/crc64.h"
#include "reshard/format/native/catalog_codec.h"
#include "reshard/format/native/data_file.h"
#include "tests/support/document_catalog.h"
#include "tests/support/golden_v1.h"
#include "tests/support/hex.h"
#include "tests/support/safetensors_reader.h"
#include "tests/support/source_files.h"
#include "tests/support/status_matchers.h"

namespace reshard::native {
namespace {

using ::reshard::testing::FromHex;
using ::reshard::testing::GoldenV1;
using ::reshard::testing::ReadSourceBytes;
using ::reshard::testing::ReadSourceText;
using ::testing::ElementsAre;

Bytes GoldenCatalogBytes() { return ReadSourceBytes("tests/golden/v1/7.reshard"); }

Bytes GoldenDataBytes() { return ReadSourceBytes("tests/golden/v1/0_7.safetensors"); }

TEST(GoldenV1Test, FilesAreTheOnesThatWereWritten) {
  EXPECT_EQ(GoldenCatalogBytes().size(), 1672U);
  EXPECT_EQ(Crc64(GoldenCatalogBytes()), 0x29cf7908a537a759U);
  EXPECT_EQ(GoldenDataBytes().size(), 4130U);
  EXPECT_EQ(Crc64(GoldenDataBytes()), 0x2c32993aa7299ee5U);
}

TEST(GoldenV1Test, TheEncoderStillMakesTheSameBytes) {
  EXPECT_EQ(GoldenV1::CatalogFile(), GoldenCatalogBytes());
  EXPECT_EQ(GoldenV1::DataFile(), GoldenDataBytes());
}

TEST(GoldenV1Test, CatalogDecodes) {
  ASSERT_OK_AND_ASSIGN(const Catalog c, DecodeCatalog(GoldenCatalogBytes()));
  EXPECT_EQ(c.info().kind, CatalogKind::kSnapshot);
  EXPECT_EQ(c.info().format, "native");
  EXPECT_EQ(c.info().unique_id, 7U);
  EXPECT_EQ(c.info().attempt, 0U);
  EXPECT_EQ(c.info().world_size, 1U);
  EXPECT_EQ(c.info().coordinator_rank, 0U);
  ASSERT_EQ(c.files().size(), 1U);
  const FileEntry& file = c.files()[0];
  EXPECT_EQ(file.name, "0_7.safetensors");
  EXPECT_EQ(file.rank, 0U);
  EXPECT_EQ(file.size, 4130U);
  EXPECT_EQ(file.payload_offset, 4096U);
  EXPECT_EQ(file.head_checksum, 0x9f2a025797c0d0a3U);
  EXPECT_EQ(c.BlockChecksum(0, 0), 0x503bd9cfb4aa2d92U);
  ASSERT_EQ(c.num_tensors(), 5U);
}

TEST(GoldenV1Test, TensorsDecode) {
  ASSERT_OK_AND_ASSIGN(const Catalog c, DecodeCatalog(GoldenCatalogBytes()));
  EXPECT_EQ(c.key(0), "model.w");
  EXPECT_EQ(ToString(c.path(0)), "['model']['w']");
  EXPECT_EQ(c.dtype(0), DType::kFloat32);
  EXPECT_THAT(c.shape(0), ElementsAre(2, 3));
  EXPECT_EQ(c.digest(0), 0xb48bf60cef65d740U);
  ASSERT_EQ(c.num_chunks(0), 2U);
  EXPECT_EQ(ToString(c.chunk(0, 0).box), "[0:2, 0:2]");
  EXPECT_EQ(c.chunk(0, 0).byte_offset, 4104U);
  EXPECT_EQ(ToString(c.chunk(0, 1).box), "[0:2, 2:3]");
  EXPECT_EQ(c.chunk(0, 1).byte_offset, 4120U);
  EXPECT_EQ(c.chunk(0, 1).order, ChunkOrder::kRowMajor);
  EXPECT_EQ(c.key(1), "model.w_tied");
  EXPECT_EQ(c.alias_of(1), 0U);
  EXPECT_EQ(c.digest(1), 0xb48bf60cef65d740U);
  EXPECT_EQ(c.key(2), "none");
  EXPECT_EQ(c.num_chunks(2), 0U);
  EXPECT_EQ(c.digest(2), 0U);
  EXPECT_EQ(c.key(3), "odd@key");
  EXPECT_EQ(c.dtype(3), DType::kFloat4E2m1);
  EXPECT_EQ(c.digest(3), 0x756d929e13e87c83U);
  EXPECT_EQ(c.key(4), "step");
  EXPECT_THAT(c.shape(4), ElementsAre());
  EXPECT_EQ(c.digest(4), 0x9b30869ab9d12f72U);
  for (TensorId tensor = 0; tensor < 5; ++tensor) {
    EXPECT_OK(c.CheckCoverage(tensor));
  }
}

TEST(GoldenV1Test, ObjectsDecode) {
  ASSERT_OK_AND_ASSIGN(const Catalog c, DecodeCatalog(GoldenCatalogBytes()));
  ASSERT_EQ(c.num_objects(), 3U);
  EXPECT_EQ(c.object_key(0), "lr");
  EXPECT_EQ(DecodeObject(c.object_value(0)).value(), Value(0.5));
  EXPECT_EQ(c.object_key(1), "opt.0");
  EXPECT_EQ(ToString(c.object_path(1)), "['opt'][0]");
  EXPECT_EQ(DecodeObject(c.object_value(1)).value(),
            Value(Value::List{Value(), true, "text", Bytes(2, std::byte{9})}));
  EXPECT_EQ(c.object_key(2), "rng");
  EXPECT_EQ(c.object_rank(2), 0);
  EXPECT_EQ(DecodeObject(c.object_value(2)).value(), Value(-10));
}

TEST(GoldenV1Test, DataFileDecodes) {
  const Bytes bytes = GoldenDataBytes();
  ASSERT_OK_AND_ASSIGN(const Head head, DecodeHead(bytes));
  EXPECT_EQ(head, (Head{7, 0, 0, 4130, 4096, 0}));
  EXPECT_EQ(Crc64(ByteSpan(bytes).first(4096)), 0x9f2a025797c0d0a3U);
  EXPECT_EQ(Crc64(ByteSpan(bytes).subspan(4096)), 0x503bd9cfb4aa2d92U);
  ASSERT_OK_AND_ASSIGN(const Catalog fragment, DecodeFragment(ByteSpan(bytes).first(4096)));
  ASSERT_EQ(fragment.num_tensors(), 3U);
  EXPECT_EQ(fragment.key(0), "model.w");
  EXPECT_EQ(fragment.digest(0), 0x021d74e0ac2da42cU);  // the linear part
  EXPECT_EQ(fragment.chunk(2, 0).byte_offset, 4096U);
}

TEST(GoldenV1Test, AnyReaderOpensTheDataFile) {
  const Bytes bytes = GoldenDataBytes();
  const auto file = testing::ReadSafetensors(bytes, bytes.size());
  ASSERT_EQ(file.error, "");
  ASSERT_EQ(file.tensors.size(), 4U);
  EXPECT_EQ(file.tensors.at("odd%40key").dtype, "F4");
  const auto& right = file.tensors.at("model.w@0,2");
  EXPECT_EQ(right.dtype, "F32");
  EXPECT_THAT(right.shape, ElementsAre(2, 1));
  EXPECT_EQ(LoadLittle<float>(bytes.data() + file.payload_offset + right.begin + 4), 6.0F);
}

/// The hexadecimal block of the document, without its notes.
std::string DocumentHex() {
  const std::string document = ReadSourceText("docs/format/native.md");
  const std::string_view open = "```hex\n";
  const std::size_t begin = document.find(open) + open.size();
  const std::string block = document.substr(begin, document.find("```", begin) - begin);
  std::string hex;
  bool note = false;
  for (const char c : block) {
    note = c != '\n' && (note || c == '#');
    if (!note) {
      hex += c;
    }
  }
  return hex;
}

TEST(DocumentTest, TheWorkedExampleDecodes) {
  const Bytes bytes = FromHex(DocumentHex());
  ASSERT_EQ(bytes.size(), 1168U);
  ASSERT_OK_AND_ASSIGN(const Catalog c, DecodeCatalog(bytes));
  EXPECT_EQ(c.info().unique_id, 5U);
  EXPECT_EQ(c.files()[0].name, "0_5.safetensors");
  EXPECT_EQ(c.files()[0].size, 8204U);
  EXPECT_EQ(c.key(0), "w");
  EXPECT_EQ(c.dtype(0), DType::kUint16);
  EXPECT_THAT(c.shape(0), ElementsAre(2, 3));
  EXPECT_EQ(c.digest(0), 0x0f9dfcc51de381aeU);
  EXPECT_EQ(c.chunk(0, 0).byte_offset, 8192U);
  EXPECT_EQ(EncodeCatalog(testing::DocumentCatalog()), bytes);
}

}  // namespace
}  // namespace reshard::native
