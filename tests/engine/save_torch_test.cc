// Saving in PyTorch's DCP format: what is written and what is refused. Crashes:
// save_foreign_fault_test.cc.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>

#include "reshard/catalog/cbor.h"
#include "reshard/engine/foreign.h"
#include "reshard/format/torch/metadata.h"
#include "reshard/format/torch/names.h"
#include "reshard/format/torch/writer.h"
#include "tests/support/foreign_saves.h"
#include "tests/support/golden_file.h"

namespace reshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kMetadata(torch::kMetadataName);
const std::string kIndex(torch::kIndexName);
const ForeignRef kRef = {"torch", kMetadata, 0};

SaveOptions TorchOptions(bool overwrite = false) { return ForeignOptionsOf("torch", overwrite); }

/// The bytes of a record, which begins with a local header and ends with an end record.
ByteSpan RecordIn(const Bytes& file, ByteRange range) {
  const ByteSpan record = ByteSpan(file).subspan(range.offset, range.size);
  EXPECT_EQ(AsText(record.first(4)), "PK\x03\x04");
  EXPECT_EQ(AsText(record.subspan(record.size() - 22, 4)), "PK\x05\x06");
  return record;
}

TEST(SaveTorchTest, EveryByteIsWhereTheIndexSays) {
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const auto storage = NewMemoryStorage();
    const auto saved = SaveOn(ranks, *storage, 100, TorchOptions());
    ASSERT_OK(saved);
    EXPECT_EQ(saved->unique_id, 0U);
    EXPECT_EQ(saved->attempt, 0U);
    EXPECT_EQ(saved->file_name, "__0_0.distcp");
    CheckAll(*storage, kRef, 100);
    const Catalog catalog = IndexOf(*storage, kRef);
    EXPECT_EQ(catalog.info().format, "torch");
    EXPECT_EQ(catalog.files().size(), static_cast<std::size_t>(ranks)) << "one file per rank";
    EXPECT_EQ(catalog.num_chunks(catalog.Find("opt.same").value()), 1U) << "stored once";
  }
}

TEST(SaveTorchTest, PayloadsAreAligned) {
  const auto storage = NewMemoryStorage();
  StateDict state;
  for (const std::uint64_t bytes : {1, 3, 4095, 4096, 5000, 70000}) {
    state[fmt::format("w{}", bytes)] =
        PatternTensor(DType::kUint8, {bytes}, {WholeBox(Shape{bytes})}, bytes);
  }
  ASSERT_OK(SaveOne(state, *storage, TorchOptions()));
  const Catalog catalog = IndexOf(*storage, kRef);
  ASSERT_EQ(catalog.num_tensors(), 6U);
  for (TensorId t = 0; t < catalog.num_tensors(); ++t) {
    const std::uint64_t alignment = catalog.num_bytes(t) >= 4096 ? 4096 : 64;
    EXPECT_EQ(catalog.chunk(t, 0).byte_offset % alignment, 0U) << catalog.key(t);
  }
  EXPECT_LT(catalog.files()[0].size, 100000U);
}

/// A state whose objects and tensors are spelt out in the test below.
StateDict SmallState() {
  StateDict state;
  state["m"]["w"] =
      PatternTensor(DType::kFloat32, {2, 3}, {Box{{0, 0}, {1, 3}}, Box{{1, 0}, {1, 3}}}, 1);
  Value tied = *state["m"].Find("w");
  state["m"]["tied"] = std::move(tied);
  state["none"] = PatternTensor(DType::kBfloat16, {0, 5}, {}, 1);
  Value::List list;
  list.emplace_back(PatternTensor(DType::kFloat8E8m0fnu, {3}, {WholeBox(Shape{3})}, 2));
  list.emplace_back(3);
  state["list"] = std::move(list);
  state["opt"][MapKey(std::int64_t{7})]["lr"] = 0.5;
  state["odd"] = Opaque{"m.C", torch::EncodeObjectRecord(Value("as it was"))};
  return state;
}

TEST(SaveTorchTest, TheMetadataIsThatOfItsRecords) {
  const auto storage = NewMemoryStorage();
  ASSERT_OK(SaveOne(SmallState(), *storage, TorchOptions()));
  const Bytes file = ReadObject(*storage, "__0_0.distcp");
  const Catalog catalog = IndexOf(*storage, kRef);
  torch::Metadata expected;
  expected.files = {"__0_0.distcp"};
  // Objects come first, one after the other.
  torch::FileLayout layout;
  for (const auto& [path, value] :
       {std::pair<Path, Value>{{PathPart("list"), PathPart(ListIndex{1})}, Value(3)},
        {{PathPart("odd")}, Value("as it was")},
        {{PathPart("opt"), PathPart(std::int64_t{7}), PathPart("lr")}, Value(0.5)}}) {
    torch::MetadataBytes& entry = expected.bytes.emplace_back();
    entry.key = FlatKey(path);
    entry.path = path;
    const Bytes record = torch::EncodeObjectRecord(value);
    entry.place.bytes = layout.AddObject(record.size());
    EXPECT_TRUE(std::ranges::equal(RecordIn(file, entry.place.bytes), record)) << entry.key;
  }
  for (TensorId t = 0; t < catalog.num_tensors(); ++t) {
    torch::MetadataTensor& tensor = expected.tensors.emplace_back();
    tensor.key = std::string(catalog.key(t));
    tensor.path = catalog.path(t);
    tensor.dtype = catalog.dtype(t);
    tensor.shape = Shape(catalog.shape(t).begin(), catalog.shape(t).end());
    for (std::size_t c = 0; c < catalog.num_chunks(t); ++c) {
      const Chunk chunk = catalog.chunk(t, c);
      const torch::EncodedTensor record =
          torch::EncodeTensorRecord(tensor.dtype, chunk.box.ToBox().extent);
      torch::MetadataChunk& out = tensor.chunks.emplace_back();
      out.box = chunk.box.ToBox();
      out.place.bytes = {chunk.byte_offset - record.head.size(), record.size()};
      const ByteSpan bytes = RecordIn(file, out.place.bytes);
      EXPECT_TRUE(std::ranges::equal(bytes.first(record.head.size()), record.head));
      EXPECT_TRUE(std::ranges::equal(bytes.last(record.tail.size()), record.tail));
    }
  }
  ASSERT_EQ(expected.tensors.size(), 4U);
  EXPECT_EQ(expected.tensors[0].key, "list.0");
  EXPECT_EQ(expected.tensors[1].key, "m.tied");
  EXPECT_EQ(expected.tensors[2].chunks.size(), 2U);
  EXPECT_EQ(expected.tensors[1].chunks[1].place, expected.tensors[2].chunks[1].place)
      << "tied tensors are stored once";
  EXPECT_EQ(expected.tensors[3].key, "none");
  EXPECT_EQ(expected.tensors[3].chunks.size(), 0U);
  EXPECT_TRUE(ReadObject(*storage, kMetadata) == torch::EncodeMetadata(expected));
}

TEST(SaveTorchTest, ObjectsAreOnceInTheCoordinatorsFile) {
  for (const int coordinator : {0, 2}) {
    const auto storage = NewMemoryStorage();
    SaveOptions options = TorchOptions();
    options.coordinator_rank = coordinator;
    const auto results = OnRanks(3, [&](ProcessGroup& group) {
      StateDict state = Value::Map();
      state["both"] = "text";
      if (group.rank() == 1) {
        state["one"] = Value::List{Value(1), Value()};
        state["w"] = PatternTensor(DType::kFloat32, {4}, {WholeBox(Shape{4})}, 1);
      }
      return Save(state, *storage, group, options);
    });
    ASSERT_OK(results[0]);
    const std::string own = torch::DataFileName(static_cast<std::uint64_t>(coordinator), 0, 0);
    EXPECT_THAT(Names(*storage),
                ::testing::UnorderedElementsAre(kMetadata, kIndex, own, "__1_0.distcp"));
    const Bytes file = ReadObject(*storage, own);
    const Bytes both = torch::EncodeObjectRecord(Value("text"));
    const Bytes one = torch::EncodeObjectRecord(Value(Value::List{Value(1), Value()}));
    ASSERT_EQ(file.size(), both.size() + one.size());
    EXPECT_TRUE(std::equal(both.begin(), both.end(), file.begin()));
    EXPECT_TRUE(std::equal(one.rbegin(), one.rend(), file.rbegin()));
    const Catalog catalog = IndexOf(*storage, kRef);
    ASSERT_EQ(catalog.num_objects(), 2U);
    EXPECT_EQ(catalog.object_key(1), "one");
  }
}

TEST(SaveTorchTest, TheSameStateGivesTheSameBytes) {
  const auto first = NewMemoryStorage();
  const auto second = NewMemoryStorage();
  for (Storage* storage : {first.get(), second.get()}) {
    ASSERT_OK(SaveOn(2, *storage, 100, TorchOptions()));
    ASSERT_OK(storage->Remove(kIndex));  // it has times
  }
  EXPECT_EQ(ReadAll(*first), ReadAll(*second));
}

TEST(SaveTorchTest, AnOverwriteLeavesOnlyTheNewFiles) {
  const auto storage = NewMemoryStorage();
  ASSERT_OK(SaveOn(3, *storage, 100, TorchOptions()));
  const auto again = SaveOn(1, *storage, 200, TorchOptions(true));
  ASSERT_OK(again);
  EXPECT_EQ(again->attempt, 1U);
  EXPECT_THAT(Names(*storage), ElementsAre(kMetadata, kIndex, "__0_0.a1.distcp"));
  CheckAll(*storage, kRef, 200);
}

TEST(SaveTorchTest, ASecondSaveIsRefusedUntouched) {
  const auto storage = NewMemoryStorage();
  ASSERT_OK(SaveOn(1, *storage, 100, TorchOptions()));
  const Contents before = ReadAll(*storage);
  EXPECT_THAT(SaveOn(2, *storage, 200, TorchOptions()), FailsWith("SNAPSHOT_EXISTS"));
  SaveOptions other = TorchOptions(true);
  other.unique_id = 1;
  EXPECT_THAT(SaveOn(2, *storage, 200, other), FailsWith("ONLY_ID_ZERO"));
  EXPECT_THAT(SaveOn(2, *storage, 200, SaveOptions()), FailsWith("FOREIGN_DIRECTORY"));
  EXPECT_THAT(SaveOn(2, *storage, 200, ForeignOptionsOf("paddle")), FailsWith("FOREIGN_DIRECTORY"));
  EXPECT_EQ(ReadAll(*storage), before);
}

TEST(SaveTorchTest, OtherDirectoriesAreRefused) {
  for (const char* name :
       {"3.reshard", "0_0.a1.safetensors", "0.metadata", "0_0.distcp", "model__0_0.distcp",
        "__0.metadata", "model.safetensors", "model.safetensors.index.json"}) {
    const auto storage = NewMemoryStorage();
    PutObject(*storage, name, AsBytes("x"));
    EXPECT_THAT(SaveOn(1, *storage, 1, TorchOptions(true)), FailsWith("FOREIGN_DIRECTORY")) << name;
    EXPECT_THAT(Names(*storage), ElementsAre(name));
  }
}

TEST(SaveTorchTest, StraysOfACrashDoNotDisturb) {
  const auto storage = NewMemoryStorage();
  for (const char* name : {"__0_0.distcp", "__0_0.a3.distcp", ".metadata.a1.tmp", "__7_2.distcp",
                           ".metadata.tmp", ".metadata.reshard", "readme.txt"}) {
    PutObject(*storage, name, AsBytes("stray"));
  }
  const auto saved = SaveOn(2, *storage, 100, TorchOptions());
  ASSERT_OK(saved);
  EXPECT_EQ(saved->attempt, 4U);
  CheckAll(*storage, kRef, 100);
  EXPECT_EQ(AsText(ReadObject(*storage, "__0_0.distcp")), "stray");
  EXPECT_EQ(AsText(ReadObject(*storage, "__0_0.a3.distcp")), "stray");
}

TEST(SaveTorchTest, MetadataOfUnknownFilesDeletesNothing) {
  const auto storage = NewMemoryStorage();
  PutObject(*storage, kMetadata, AsBytes("no pickle"));
  PutObject(*storage, "__0_0.distcp", AsBytes("theirs"));
  const auto saved = SaveOn(1, *storage, 100, TorchOptions(true));
  ASSERT_OK(saved);
  EXPECT_EQ(saved->attempt, 1U);
  CheckAll(*storage, kRef, 100);
  EXPECT_EQ(AsText(ReadObject(*storage, "__0_0.distcp")), "theirs");
}

/// The error of a refused save, or what it left out.
std::vector<std::string> Refused(const StateDict& state, const std::string& format) {
  const auto storage = NewMemoryStorage();
  SaveOptions options = ForeignOptionsOf(format);
  const auto refused = SaveOne(state, *storage, options);
  if (!refused.ok()) {
    EXPECT_THAT(refused, FailsWith("UNSUPPORTED_BY_FORMAT"));
    EXPECT_TRUE(Names(*storage).empty());
  }
  options.skip_unsupported = true;
  options.overwrite = refused.ok();
  const auto saved = SaveOne(state, *storage, options);
  EXPECT_OK(saved);
  EXPECT_EQ(refused.ok(), saved->skipped.empty());
  return saved->skipped;
}

TEST(SaveTorchTest, WhatTorchCannotHoldIsListedBeforeAnythingIsWritten) {
  StateDict state;
  const auto tensor = [](DType dtype) {
    return PatternTensor(dtype, {4}, {WholeBox(Shape{4})}, 1);
  };
  state["w"] = tensor(DType::kFloat32);
  state["f4"] = tensor(DType::kFloat4E2m1);
  state["f6"] = tensor(DType::kFloat6E3m2);
  state["bad\xff"] = tensor(DType::kFloat32);
  state["rng"] = PerRank(Value(1));
  state["odd"] = Opaque{"m.C", {}};
  state["nested"] = Value::List{Value(Opaque{"m.D", torch::EncodeObjectRecord(Value(1))})};
  state["text"] = "\xff";
  state["key"]["bad\xfe"] = 1;
  EXPECT_THAT(Refused(state, "torch"),
              ::testing::UnorderedElementsAre(
                  "f4: PyTorch 2.14 has no float4_e2m1", "f6: PyTorch 2.14 has no float6_e3m2",
                  "bad\xff: a key that is no UTF-8", "rng: a value per rank",
                  "odd: an object of type m.C, of which only the type was read",
                  "nested: an object of type m.D", "text: a text that is no UTF-8",
                  "key.bad\xfe: a key that is no UTF-8"));
  StateDict scales;
  scales["e8"] = tensor(DType::kFloat8E8m0fnu);
  EXPECT_THAT(Refused(scales, "torch:2.6"), ElementsAre("e8: PyTorch 2.6 has no float8_e8m0fnu"));
  EXPECT_THAT(Refused(scales, "torch:2.7"), ElementsAre());
  EXPECT_THAT(Refused(scales, "torch"), ElementsAre());
}

TEST(SaveTorchTest, ATiedTensorOutlivesOneThatIsLeftOut) {
  StateDict state;
  state["a\xff"] = PatternTensor(DType::kFloat32, {4}, {WholeBox(Shape{4})}, 7);
  Value tied = *state.Find("a\xff");
  state["b"] = tied;
  state["c"] = std::move(tied);
  const auto storage = NewMemoryStorage();
  SaveOptions options = TorchOptions();
  options.skip_unsupported = true;
  ASSERT_OK(SaveOne(state, *storage, options));
  const Catalog catalog = IndexOf(*storage, kRef);
  ASSERT_EQ(catalog.num_tensors(), 2U);
  CheckTensor(*storage, catalog, "b", 7);
  CheckTensor(*storage, catalog, "c", 7);
}

TEST(SaveTorchTest, ReleasesThatAreNotKnownAreRefused) {
  const auto storage = NewMemoryStorage();
  StateDict state;
  state["w"] = FloatTensor({1, 2});
  for (const char* format : {"torch:", "torch:2.5", "torch:2.15", "torch:3.0", "torch:x"}) {
    const auto refused = SaveOne(state, *storage, ForeignOptionsOf(format));
    ASSERT_THAT(refused, FailsWith("BAD_RELEASE")) << format;
    EXPECT_THAT(refused.error().message, HasSubstr("choose one from 2.6 to 2.14"));
  }
  for (const char* format : {"torch:2.6", "torch:2.13", "torch:2.13.0", "torch:2.14.1"}) {
    SCOPED_TRACE(format);
    EXPECT_OK(SaveOne(state, *storage, ForeignOptionsOf(format, true)));
  }
  EXPECT_THAT(SaveOne(state, *storage, ForeignOptionsOf("Torch")), FailsWith("BAD_FORMAT"));
}

TEST(SaveTorchTest, EveryRankHasItsOwnDisk) {
  std::vector<std::unique_ptr<Storage>> disks;
  for (int i = 0; i < 3; ++i) {
    disks.push_back(NewMemoryStorage(fmt::format("disk{}", i)));
  }
  const auto save = [&](std::uint64_t salt, int coordinator) {
    SaveOptions options = TorchOptions(true);
    options.coordinator_rank = coordinator;
    const auto results = OnRanks(3, [&](ProcessGroup& group) {
      return Save(StateOf(salt, group.rank(), 3), *disks[static_cast<std::size_t>(group.rank())],
                  group, options);
    });
    ExpectOneOutcome(results);
    ASSERT_OK(results[0]);
  };
  save(100, 0);
  EXPECT_THAT(Names(*disks[0]), ElementsAre(kMetadata, kIndex, "__0_0.distcp"));
  EXPECT_THAT(Names(*disks[2]), ElementsAre("__2_0.distcp"));
  save(200, 2);
  EXPECT_THAT(Names(*disks[0]), ElementsAre("__0_0.a1.distcp"));
  EXPECT_THAT(Names(*disks[1]), ElementsAre("__1_0.a1.distcp"));
  EXPECT_THAT(Names(*disks[2]), ElementsAre(kMetadata, kIndex, "__2_0.a1.distcp"));
}

/// What tests/golden/torch_handmade holds, as its README says.
StateDict GoldenState(int rank) {
  StateDict state;
  const auto cut = [rank](const Shape& shape, std::size_t axis) {
    return std::vector<Box>{CutBox(shape, axis, rank, 2)};
  };
  Value::List layers(2);
  layers[0]["w"] = PatternTensor(DType::kFloat32, {40, 30}, cut({40, 30}, 0), 1);
  layers[1]["w"] = PatternTensor(DType::kBfloat16, {2, 6}, cut({2, 6}, 1), 2);
  Value tied = *layers[0].Find("w");
  state["layers"] = std::move(layers);
  state["tied"] = std::move(tied);
  state["fp8"] = PatternTensor(DType::kFloat8E4m3fn, {5, 2}, cut({5, 2}, 0), 3);
  state["u32"] = PatternTensor(DType::kUint32, {6}, cut({6}, 0), 4);
  state["scalar"] = PatternTensor(DType::kInt64, {}, {WholeBox(Shape{})}, 5);
  state["none"] = PatternTensor(DType::kFloat16, {0, 3}, {}, 6);
  Value::Map map;
  map.emplace_back("a", Value());
  map.emplace_back(std::int64_t{7}, Value(true));
  state["opt"][MapKey(std::int64_t{5})] = Value::List{Value(1), Value(-2.5), Value(std::move(map))};
  state["blob"] = Bytes{std::byte{0}, std::byte{0xff}};
  return state;
}

TEST(SaveTorchTest, BytesAreThoseOfTheGoldenFiles) {
  const auto storage = NewMemoryStorage();
  const auto saved = OnRanks(2, [&](ProcessGroup& group) {
    return Save(GoldenState(group.rank()), *storage, group, TorchOptions());
  });
  ASSERT_OK(saved[0]);
  ASSERT_OK(storage->Remove(kIndex));  // it has times
  EXPECT_THAT(Names(*storage), ElementsAre(kMetadata, "__0_0.distcp", "__1_0.distcp"));
  for (const std::string& name : Names(*storage)) {
    ExpectGolden(fmt::format("{}/tests/golden/torch_handmade/{}", RESHARD_SOURCE_DIR,
                             name == kMetadata ? "metadata" : name),
                 ReadObject(*storage, name));
  }
}

}  // namespace
}  // namespace reshard::testing
