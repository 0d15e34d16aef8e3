#include "reshard/format/paddle/data_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "reshard/format/paddle/names.h"
#include "reshard/format/pickle/emitter.h"
#include "reshard/format/pickle/machine.h"
#include "reshard/format/safetensors/header.h"
#include "tests/support/counting_source.h"
#include "tests/support/hex.h"
#include "tests/support/paddle_checkpoint.h"
#include "tests/support/source_files.h"

namespace reshard::paddle {
namespace {

using ::reshard::testing::CountingSource;
using ::reshard::testing::FailsWith;
using ::reshard::testing::FromHex;
using ::reshard::testing::OpenPaddle;
using ::reshard::testing::PaddleFiles;
using ::reshard::testing::PaddleTensorBytes;
using ::reshard::testing::ToHex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Bytes Synthetic(const std::string& name) {
  return testing::ReadSourceBytes("tests/golden/paddle_synthetic/" + name + ".distcp");
}

Result<DataFile> Read(const Bytes& bytes) {
  MemorySource source(bytes);
  return ReadDataFile(source);
}

/// "key dtype shape bytes-in-hex" of every array, decoded where it must be.
std::vector<std::string> Show(const Bytes& bytes) {
  MemorySource raw(bytes);
  Result<DataFile> file = ReadDataFile(raw);
  EXPECT_OK(file);
  if (!file.ok()) {
    return {};
  }
  std::unique_ptr<ByteSource> decoded;
  if (file->encoding == FileEncoding::kPickleText) {
    Result<std::unique_ptr<ByteSource>> source = DecodePickleText(raw);
    EXPECT_OK(source);
    decoded = std::move(*source);
    EXPECT_EQ(decoded->size(), file->decoded_bytes);
  }
  std::vector<std::string> out;
  for (const StoredArray& array : file->arrays) {
    Bytes payload(array.bytes.size);
    EXPECT_OK(
        (decoded ? *decoded : static_cast<ByteSource&>(raw)).ReadAt(array.bytes.offset, payload));
    out.push_back(fmt::format("{} {} {} {}{}", FlatKey(array.path), Info(array.dtype).name,
                              ToString(array.shape), ToHex(payload),
                              array.order == ChunkOrder::kColumnMajor ? " F" : ""));
  }
  return out;
}

TEST(PaddleDataFileTest, AllProtocolsHoldTheSameArrays) {
  const auto expected =
      ElementsAre("w float32 (2, 3) 000000000000803f0000004000004040000080400000a040",
                  "bf16 bfloat16 (2) 803f0040", "h float16 (2) 003c0040", "s float32 () 00006040",
                  "empty float32 (0, 4) ", "b bool (2) 0100", "i int64 (1) ffffffffffffffff",
                  "c complex64 (1) 0000803f00000040");
  for (const char* name : {"small_p2", "small_p3", "small_p4", "small_p5"}) {
    SCOPED_TRACE(name);
    const Bytes bytes = Synthetic(name);
    std::vector<std::string> shown = Show(bytes);
    for (std::string& line : shown) {  // ToString writes one axis as "(2,)" or "(2)"
      if (const std::size_t comma = line.find(",)"); comma != std::string::npos) {
        line.erase(comma, 1);
      }
    }
    EXPECT_THAT(shown, expected);
    ASSERT_OK_AND_ASSIGN(const DataFile file, Read(bytes));
    EXPECT_EQ(file.encoding, std::string_view(name) == "small_p2" ? FileEncoding::kPickleText
                                                                  : FileEncoding::kRaw);
    ASSERT_TRUE(file.name_table);
    EXPECT_EQ(*file.name_table->Find("bf16")->get_if<std::string>(), "linear_0.bf16");
    EXPECT_TRUE(file.objects.empty());
    EXPECT_FALSE(file.safetensors);
  }
}

TEST(PaddleDataFileTest, ColumnMajorArraysKeepTheirOrder) {
  const Bytes bytes = Synthetic("forder_p5");
  ASSERT_OK_AND_ASSIGN(const DataFile file, Read(bytes));
  ASSERT_EQ(file.arrays.size(), 1U);
  EXPECT_EQ(file.arrays[0].order, ChunkOrder::kColumnMajor);
  EXPECT_THAT(file.arrays[0].shape, ElementsAre(2, 3));
  const PaddleFiles files = {{"f.pdparams", bytes}};
  ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenPaddle(files, {"paddle", "f.pdparams", 0}));
  EXPECT_EQ(ToHex(PaddleTensorBytes(opened.catalog, files, 0)),
            "000000000000803f0000004000004040000080400000a040");
}

TEST(PaddleDataFileTest, ReadOnlyAndEmpty) {
  EXPECT_EQ(Show(Synthetic("readonly_p5")).size(), 1U);
  ASSERT_OK_AND_ASSIGN(const DataFile empty, Read(Synthetic("empty")));
  EXPECT_TRUE(empty.arrays.empty());
  ASSERT_TRUE(empty.name_table);
  EXPECT_TRUE(empty.name_table->get_if<Value::Map>()->empty());
}

TEST(PaddleDataFileTest, PayloadsInsideAndOutsideOfFrames) {
  for (const char* name : {"frame_p4", "frame_p5"}) {
    const Bytes bytes = Synthetic(name);
    CountingSource source(bytes);
    ASSERT_OK_AND_ASSIGN(const DataFile file, ReadDataFile(source));
    EXPECT_LE(source.bytes_read(), 9U + 4096 + 3 * 1024);
    ASSERT_EQ(file.arrays.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      const StoredArray& array = file.arrays[i];
      EXPECT_EQ(array.bytes.size, 65532 + 4 * i);
      for (const std::uint64_t element : {std::uint64_t{0}, std::uint64_t{1000}, 16382 + i}) {
        EXPECT_EQ(LoadLittle<float>(bytes.data() + array.bytes.offset + 4 * element),
                  static_cast<float>(element));
      }
    }
  }
}

TEST(PaddleDataFileTest, SplitTensorsAreJoined) {
  const Bytes bytes = Synthetic("unpackbig_p2");
  ASSERT_OK_AND_ASSIGN(const DataFile file, Read(bytes));
  ASSERT_EQ(file.splits.size(), 1U);
  EXPECT_EQ(file.splits[0].key, "w");
  EXPECT_THAT(file.splits[0].shape, ElementsAre(2, 3));
  EXPECT_THAT(file.splits[0].parts, ElementsAre("w@@.0", "w@@.1"));
  const PaddleFiles files = {{"big.pdparams", bytes}};
  ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenPaddle(files, {"paddle", "big.pdparams", 0}));
  EXPECT_TRUE(opened.faults.empty());
  ASSERT_EQ(opened.catalog.num_tensors(), 1U);
  EXPECT_OK(opened.catalog.CheckCoverage(0));
  EXPECT_EQ(ToHex(PaddleTensorBytes(opened.catalog, files, 0)),
            "000000000000803f0000004000004040000080400000a040");
}

TEST(PaddleDataFileTest, APartOfASplitTensorCountsOnce) {
  DataFile file;
  for (const char* name : {"w@@.0", "w@@.1"}) {
    file.arrays.push_back(
        {Path{PathPart(name)}, DType::kUint8, {3}, ChunkOrder::kRowMajor, {0, 3}});
  }
  file.splits.push_back({"w", {2, 3}, {"w@@.0", "w@@.0"}});
  const ForeignRef ref = {"paddle", "f.pdparams", 0};
  MemorySource source(Bytes{});
  ByteSource* const sources[] = {&source};
  ASSERT_OK_AND_ASSIGN(const auto metadata, Format().ReadMetadata(ref, sources));
  const ExaminedFile examined[] = {{3, 0, EncodeDataFile(file)}};
  ASSERT_OK_AND_ASSIGN(const Assembled opened, Format().Assemble(ref, *metadata, examined));
  ASSERT_EQ(opened.faults.size(), 1U);
  EXPECT_THAT(opened.faults[0].error.message, HasSubstr("named twice"));
  EXPECT_THAT(opened.faults[0].keys, ElementsAre("w"));
}

TEST(PaddleDataFileTest, TheMessageForOtherRanksSaysTheSame) {
  for (const char* name : {"small_p2", "small_p5", "unpackbig_p2", "forder_p5", "empty"}) {
    ASSERT_OK_AND_ASSIGN(const DataFile file, Read(Synthetic(name)));
    const Bytes message = EncodeDataFile(file);
    ASSERT_OK_AND_ASSIGN(const DataFile again, DecodeDataFile(message));
    EXPECT_EQ(EncodeDataFile(again), message);
    EXPECT_EQ(again.arrays.size(), file.arrays.size());
    EXPECT_EQ(again.decoded_bytes, file.decoded_bytes);
    for (std::size_t size = 0; size < message.size(); ++size) {
      EXPECT_THAT(DecodeDataFile(ByteSpan(message).first(size)), FailsWith("BAD_MESSAGE"));
    }
  }
}

/// A file with one array under "w", wrong in one way.
struct ArrayChoices {
  std::int64_t rows = 2;
  std::string code = "f4";
  std::string order = "<";
  std::size_t payload = 8;
  bool list_payload = false;
};

void EmitArray(pickle::Emitter& emit, Bytes& out, const ArrayChoices& choices) {
  emit.Global("numpy.core.multiarray", "_reconstruct");
  emit.Global("numpy", "ndarray");
  emit.Int(0);
  emit.TupleOf(1);
  emit.ShortBytes(AsBytes("b"));
  emit.TupleOf(3);
  emit.Reduce();
  emit.Mark();
  emit.Int(1);
  emit.Int(choices.rows);
  emit.TupleOf(1);
  emit.Global("numpy", "dtype");
  emit.Text(choices.code);
  emit.Bool(false);
  emit.Bool(true);
  emit.TupleOf(3);
  emit.Reduce();
  emit.Mark();
  emit.Int(3);
  emit.Text(choices.order);
  emit.Tuple();
  emit.Build();
  emit.Bool(false);
  if (choices.list_payload) {
    emit.EmptyList();
  } else {
    emit.BytesHead(choices.payload);
    for (std::size_t i = 0; i < choices.payload; ++i) {
      out.push_back(static_cast<std::byte>(i));
    }
  }
  emit.Tuple();
  emit.Build();
}

Bytes WriteArray(const ArrayChoices& choices) {
  Bytes out;
  pickle::Emitter emit(out);
  emit.EmptyDict();
  emit.Text("w");
  EmitArray(emit, out, choices);
  emit.SetItem();
  emit.Stop();
  return out;
}

TEST(PaddleDataFileTest, FaultsNameKeyAndOffset) {
  EXPECT_OK(Read(WriteArray({})));
  const Result<DataFile> size = Read(WriteArray({.payload = 9}));
  ASSERT_THAT(size, FailsWith(kBadArray));
  EXPECT_THAT(size.error().message, HasSubstr("'w'"));
  EXPECT_THAT(size.error().message, HasSubstr("has 9 bytes, not 8"));
  EXPECT_THAT(size.error().message, HasSubstr("byte "));
  EXPECT_THAT(Read(WriteArray({.rows = -1})), FailsWith(kBadArray));
  EXPECT_THAT(Read(WriteArray({.rows = INT64_MAX})), FailsWith(kBadArray));
  for (const ArrayChoices& choices :
       {ArrayChoices{.order = ">"}, ArrayChoices{.code = "O8"}, ArrayChoices{.code = "U3"},
        ArrayChoices{.list_payload = true}}) {
    const Result<DataFile> file = Read(WriteArray(choices));
    ASSERT_THAT(file, FailsWith(kBadArray));
    EXPECT_EQ(file.error().code, ErrorCode::kUnsupported);
  }
  Bytes none;
  pickle::Emitter emit(none);
  emit.None();
  emit.Stop();
  EXPECT_THAT(Read(none), FailsWith(kBadArray));
}

TEST(PaddleDataFileTest, EvalIsRefusedLikeEveryOtherName) {
  Bytes out;
  pickle::Emitter emit(out);
  emit.EmptyDict();
  emit.Text("w");
  emit.Global("builtins", "eval");
  emit.Text("data");
  emit.TupleOf(1);
  emit.Reduce();
  emit.SetItem();
  emit.Stop();
  const Result<DataFile> file = Read(out);
  ASSERT_THAT(file, FailsWith(pickle::kGlobalNotAllowed));
  EXPECT_THAT(file.error().message, HasSubstr("'builtins.eval'"));
}

/// A `.pdopt` as paddle.save writes it: nested, with numbers, and tensors as named pairs.
Bytes WriteOptimizer() {
  Bytes out;
  pickle::Emitter emit(out);
  emit.EmptyDict();
  emit.Mark();
  emit.Text("moment");
  emit.Mark();  // (name, array)
  emit.Text("linear_0.w_0_moment1_0");
  EmitArray(emit, out, {});
  emit.Tuple();
  emit.Text("master_weights");
  emit.EmptyDict();
  emit.Text("w.0");
  emit.Global("builtins", "tuple");  // tuple((name, array))
  emit.Text("w_fp32_master_0");
  EmitArray(emit, out, {.rows = 1, .payload = 4});
  emit.TupleOf(2);
  emit.TupleOf(1);
  emit.Reduce();
  emit.SetItem();
  emit.Text("LR_Scheduler");
  emit.EmptyDict();
  emit.Mark();
  emit.Text("last_epoch");
  emit.Int(7);
  emit.Text("verbose");
  emit.Bool(false);
  emit.Text("steps");
  emit.EmptyList();
  emit.Mark();
  emit.Int(1);
  emit.None();
  emit.Appends();
  emit.SetItems();
  emit.Text("history");
  emit.EmptyList();
  emit.Mark();
  EmitArray(emit, out, {.rows = 1, .payload = 4});
  emit.Int(3);
  emit.Appends();
  emit.SetItems();
  emit.Stop();
  return out;
}

TEST(PaddleDataFileTest, OptimizersHaveNestedTensorsAndObjects) {
  const PaddleFiles files = {{"x.pdopt", WriteOptimizer()}};
  const ForeignRef ref = {"paddle", "x.pdopt", 0};
  ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenPaddle(files, ref));
  EXPECT_TRUE(opened.faults.empty());
  const Catalog& catalog = opened.catalog;
  std::vector<std::string> tensors;
  for (TensorId t = 0; t < catalog.num_tensors(); ++t) {
    tensors.push_back(ToString(catalog.path(t)));
  }
  EXPECT_THAT(tensors, ElementsAre("['history'][#0]", "['master_weights']['w.0']", "['moment']"));
  std::vector<std::string> objects;
  for (std::size_t o = 0; o < catalog.num_objects(); ++o) {
    objects.emplace_back(catalog.object_key(o));
    EXPECT_EQ(catalog.object_rank(o), -1);
  }
  EXPECT_THAT(objects, ElementsAre("LR_Scheduler.last_epoch", "LR_Scheduler.steps",
                                   "LR_Scheduler.verbose", "history.1"));
  EXPECT_EQ(ToHex(PaddleTensorBytes(catalog, files, 2)), "0001020304050607");
  EXPECT_EQ(catalog.info().world_size, 1U);
  EXPECT_EQ(catalog.files()[0].name, "x.pdopt");
}

TEST(PaddleFormatTest, TellsItsFilesByName) {
  const std::vector<std::string> names = {"00.metadata", "0_0.distcp",       "10.metadata",
                                          "2.metadata",  "2.metadata.lock",  "2.metadata.reshard",
                                          "x.metadata",  "2.metadata.a1.tmp"};
  EXPECT_THAT(Format().Find(names), ElementsAre(ForeignRef{"paddle", "2.metadata", 2},
                                                ForeignRef{"paddle", "10.metadata", 10}));
  EXPECT_EQ(Format().name(), "paddle");
}

TEST(PaddleFormatTest, TellsSingleFilesByTheirFirstBytes) {
  const Bytes dict = FromHex("8004 95 0200000000000000 7d 2e");
  const Bytes other = FromHex("8002 8a0a6cfc9c46f9206aa850192e");
  EXPECT_TRUE(Format().LooksLikeFile("model.pdparams", dict));
  EXPECT_TRUE(Format().LooksLikeFile("model.bin", dict));
  EXPECT_TRUE(Format().LooksLikeFile("model", FromHex("8002 7d 71")));
  EXPECT_TRUE(Format().LooksLikeFile("model.pdopt", other));
  EXPECT_FALSE(Format().LooksLikeFile("model.pt", other));  // torch's old form
  EXPECT_FALSE(Format().LooksLikeFile("model.pdparams", FromHex("504b0304")));
  EXPECT_FALSE(Format().LooksLikeFile("model", {}));
}

/// A dict of one uint8 array as numpy 2.4 pickles it with protocol 5: (2, 3, 4), which lies in
/// memory as (3, 4, 2), the axes of that being 2, 0 and 1. `axes` are the two last of them.
Bytes WritePermuted(std::string_view axes) {
  return FromHex(
      "8005 7d 8c0177 8c136e756d70792e5f636f72652e6e756d65726963 8c0b5f66726f6d627566666572 93 28"
      "961800000000000000 000102030405060708090a0b0c0d0e0f1011121314151617"
      "8c056e756d7079 8c056474797065 93 8c027531 8988 87 52 28 4b03 8c017c 4e4e4e 4affffffff"
      "4affffffff 4b00 74 62 4b03 4b04 4b02 87 8c014b 4b02 4b" +
      std::string(axes.substr(0, 2)) + " 4b" + std::string(axes.substr(2)) + " 87 74 52 73 2e");
}

TEST(PaddleDataFileTest, ArraysMayHavePermutedAxes) {
  const PaddleFiles files = {{"x.pdparams", WritePermuted("0001")}};
  const ForeignRef ref = {"paddle", "x.pdparams", 0};
  ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenPaddle(files, ref));
  ASSERT_EQ(opened.catalog.num_tensors(), 1U);
  EXPECT_THAT(opened.catalog.shape(0), ElementsAre(2, 3, 4));
  std::string expected;  // [i][j][k] is number (4 j + k) 2 + i
  for (int n = 0; n < 24; ++n) {
    expected += fmt::format("{:02x}", 2 * (n % 12) + n / 12);
  }
  EXPECT_EQ(ToHex(PaddleTensorBytes(opened.catalog, files, 0)), expected);
}

TEST(PaddleDataFileTest, RefusesOrdersOfAxesThatAreNone) {
  for (const char* axes : {"0000", "0201", "0003"}) {
    const Bytes bytes = WritePermuted(axes);
    MemorySource raw(bytes);
    EXPECT_THAT(ReadDataFile(raw), FailsWith("BAD_ARRAY")) << axes;
  }
}

TEST(PaddlePickleTextTest, LargePayloadsAreReadFromAnywhere) {
  // 300,000 bytes of all values, as text: half of them take two bytes.
  Bytes plain(300'000);
  std::mt19937 random(5);
  std::string text;
  for (std::byte& b : plain) {
    const unsigned value = random() % 256;
    b = static_cast<std::byte>(value);
    if (value < 0x80) {
      text += static_cast<char>(value);
    } else {
      text += static_cast<char>(0xc0 | value >> 6);
      text += static_cast<char>(0x80 | (value & 0x3f));
    }
  }
  Bytes out;
  pickle::Emitter emit(out);
  emit.EmptyDict();
  emit.Text("w");
  emit.Global("numpy.core.numeric", "_frombuffer");
  emit.Mark();
  emit.Global("_codecs", "encode");
  emit.Text(text);
  emit.Text("latin1");
  emit.TupleOf(2);
  emit.Reduce();
  emit.Global("numpy", "dtype");
  emit.Text("u1");
  emit.TupleOf(1);
  emit.Reduce();
  emit.Int(300'000);
  emit.TupleOf(1);
  emit.Text("C");
  emit.Tuple();
  emit.Reduce();
  emit.SetItem();
  emit.Stop();
  MemorySource raw(out);
  ASSERT_OK_AND_ASSIGN(const DataFile file, ReadDataFile(raw));
  EXPECT_EQ(file.decoded_bytes, 300'000U);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ByteSource> decoded, DecodePickleText(raw));
  for (const auto& [offset, size] :
       std::vector<std::pair<std::size_t, std::size_t>>{{0, 300'000},
                                                        {0, 1},
                                                        {65535, 2},
                                                        {65536, 65536},
                                                        {131'071, 5},
                                                        {299'999, 1},
                                                        {300'000, 0},
                                                        {100'000, 123'456}}) {
    Bytes part(size);
    ASSERT_OK(decoded->ReadAt(offset, part));
    EXPECT_TRUE(
        std::equal(part.begin(), part.end(), plain.begin() + static_cast<std::ptrdiff_t>(offset)))
        << offset;
  }
  Bytes beyond(2);
  EXPECT_THAT(decoded->ReadAt(299'999, beyond), FailsWith("FILE_TRUNCATED"));
}

/// Every byte flipped in some ways and every length cut: an error or a structure, never a crash.
void Damage(const Bytes& bytes) {
  const auto open = [](const Bytes& damaged) {
    MemorySource raw(damaged);
    const Result<DataFile> file = ReadDataFile(raw);
    if (!file.ok()) {
      EXPECT_FALSE(file.error().reason.empty());
      return;
    }
    static_cast<void>(DecodeDataFile(EncodeDataFile(*file)));
    for (const StoredArray& array : file->arrays) {
      EXPECT_EQ(array.bytes.size, NumBytes(array.shape, array.dtype));
      const std::uint64_t size =
          file->encoding == FileEncoding::kRaw ? damaged.size() : file->decoded_bytes;
      EXPECT_LE(array.bytes.end(), size);
    }
    const PaddleFiles files = {{"f", damaged}};
    EXPECT_OK(OpenPaddle(files, {"paddle", "f", 0}));
  };
  Bytes damaged = bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const unsigned mask : {0x01U, 0x10U, 0x80U, 0xffU}) {
      damaged[i] = bytes[i] ^ static_cast<std::byte>(mask);
      open(damaged);
    }
    damaged[i] = bytes[i];
  }
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(Read(cut).ok()) << size;
  }
}

TEST(PaddleDamageTest, DataFiles) {
  for (const char* name : {"small_p2", "small_p3", "small_p4", "small_p5", "forder_p5",
                           "readonly_p5", "unpackbig_p2", "empty"}) {
    SCOPED_TRACE(name);
    Damage(Synthetic(name));
  }
  Damage(WriteOptimizer());
  Damage(testing::ReadSourceBytes("tests/golden/paddle/3.3.1/safetensors/0_0.safetensors"));
}

TEST(PaddleDamageTest, Metadata) {
  PaddleFiles files = {
      {"0_0.distcp", testing::ReadSourceBytes("tests/golden/paddle/3.3.1/flattened/0_0.distcp")},
      {"1_0.distcp", testing::ReadSourceBytes("tests/golden/paddle/3.3.1/flattened/1_0.distcp")}};
  const Bytes bytes = testing::ReadSourceBytes("tests/golden/paddle/3.3.1/flattened/0.metadata");
  Bytes& damaged = files["0.metadata"] = bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const unsigned mask : {0x01U, 0x10U, 0x80U, 0xffU}) {
      damaged[i] = bytes[i] ^ static_cast<std::byte>(mask);
      const Result<Assembled> opened = OpenPaddle(files, {"paddle", "0.metadata", 0});
      EXPECT_TRUE(opened.ok() || !opened.error().reason.empty());
    }
    damaged[i] = bytes[i];
  }
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    damaged.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(OpenPaddle(files, {"paddle", "0.metadata", 0}).ok());
  }
}

}  // namespace
}  // namespace reshard::paddle
