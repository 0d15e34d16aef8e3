// Checkpoints that Paddle wrote, loaded on any mesh, verified and indexed by the engine. The files
// are those of tests/golden/paddle.

#include "reshard/engine/foreign.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "reshard/codec/crc64.h"
#include "reshard/engine/checkpoint.h"
#include "reshard/engine/complete.h"
#include "reshard/engine/index.h"
#include "reshard/engine/latest.h"
#include "reshard/engine/verify.h"
#include "reshard/format/native/catalog_codec.h"
#include "reshard/storage/storage.h"
#include "tests/support/states.h"

namespace reshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

Bytes ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const ByteSpan bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

void Put(Storage& storage, const std::string& name, ByteSpan bytes) {
  ASSERT_OK(storage.Remove(name));
  auto object = storage.Create(name, {});
  ASSERT_OK(object);
  ASSERT_OK((*object)->WriteAt(0, bytes));
  ASSERT_OK((*object)->Finish(bytes.size()));
}

/// The files of one golden case.
std::map<std::string, Bytes> Golden(const std::string& name) {
  std::map<std::string, Bytes> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(
           fs::path(RESHARD_SOURCE_DIR) / "tests" / "golden" / "paddle" / name)) {
    files[entry.path().filename().string()] = ReadFile(entry.path());
  }
  return files;
}

std::unique_ptr<Storage> InMemory(const std::map<std::string, Bytes>& files) {
  std::unique_ptr<Storage> storage = NewMemoryStorage("memory");
  for (const auto& [name, bytes] : files) {
    Put(*storage, name, bytes);
  }
  return storage;
}

Bytes BytesOf(const Tensor& tensor) {
  const TensorShard& shard = tensor.shards.at(0);
  return {shard.view.data, shard.view.data + NumBytes(shard.box, tensor.dtype)};
}

/// The bytes of a box of row-major `whole`.
Bytes CutOut(ByteSpan whole, const Shape& shape, DType dtype, const Box& box) {
  Tensor source = Tensor::Allocate(dtype, shape, WholeBox(shape));
  std::copy(whole.begin(), whole.end(), source.shards[0].view.data);
  Bytes out;
  const std::uint32_t unit = Info(dtype).unit_bytes;
  const std::uint64_t count = NumElements(box.extent);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t rest = i;
    std::uint64_t at = 0;
    std::uint64_t stride = 1;
    for (std::size_t a = shape.size(); a-- > 0;) {
      at += (box.offset[a] + rest % box.extent[a]) * stride;
      rest /= box.extent[a];
      stride *= shape[a];
    }
    out.insert(out.end(), whole.begin() + static_cast<std::ptrdiff_t>(at * unit),
               whole.begin() + static_cast<std::ptrdiff_t>((at + 1) * unit));
  }
  return out;
}

/// Loads every tensor whole on one rank: key -> bytes.
std::map<std::string, Bytes> LoadWhole(Storage& storage, const LoadOptions& options = {}) {
  const auto opened = ReadCheckpoint(storage, options.unique_id);
  EXPECT_OK(opened);
  StateDict state = Value::Map();
  for (TensorId t = 0; t < opened->catalog.num_tensors(); ++t) {
    const auto shape = opened->catalog.shape(t);
    const Shape copy(shape.begin(), shape.end());
    state[std::string(opened->catalog.key(t))] =
        Tensor::Allocate(opened->catalog.dtype(t), copy, WholeBox(copy));
  }
  const auto group = SingleProcessGroup();
  EXPECT_OK(Load(state, storage, *group, options));
  std::map<std::string, Bytes> out;
  for (TensorId t = 0; t < opened->catalog.num_tensors(); ++t) {
    const std::string key(opened->catalog.key(t));
    out[key] = BytesOf(*state.Find(key)->get_if<Tensor>());
  }
  return out;
}

std::string Text(const Status& status) { return status.ok() ? "" : status.error().ToString(); }

ForeignRef OnlyRef(Storage& storage) {
  const auto refs = FindForeign(storage);
  EXPECT_OK(refs);
  EXPECT_EQ(refs->size(), 1U);
  return refs->at(0);
}

class ForeignMeshTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Golden, ForeignMeshTest,
                         ::testing::Values("2.6.2/ranks2", "2.6.2/mesh2x2", "3.0.0/ranks2",
                                           "3.1.1/mesh2x2", "3.2.2/safetensors", "3.2.2/flattened",
                                           "3.3.1/ranks2", "3.3.1/flattened_3d", "3.3.1/replicas",
                                           "3.3.1/mesh2x2", "3.3.1/frames"),
                         [](const ::testing::TestParamInfo<const char*>& param) {
                           std::string name(param.param);
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == '.' || c == '/'; }, '_');
                           return name;
                         });

// That the whole load is right is known from the expected values (tests/format/paddle); here every
// other layout must give the same bytes.
TEST_P(ForeignMeshTest, EveryLayoutAndTransferGivesTheSameBytes) {
  const std::unique_ptr<Storage> storage = InMemory(Golden(GetParam()));
  const std::map<std::string, Bytes> whole = LoadWhole(*storage);
  const auto opened = ReadCheckpoint(*storage);
  ASSERT_OK(opened);
  const Catalog& catalog = opened->catalog;
  EXPECT_FALSE(opened->has_checksums);
  for (const bool indexed : {false, true}) {
    if (indexed) {
      ASSERT_OK(WriteIndex(*storage, OnlyRef(*storage)));
    }
    for (const int ranks : {1, 2, 3}) {
      for (const Transfer transfer : {Transfer::kDirect, Transfer::kExchange}) {
        for (const std::size_t axis : {0, 1}) {
          const auto results = OnRanks(ranks, [&](ProcessGroup& group) -> Status {
            StateDict state = Value::Map();
            for (TensorId t = 0; t < catalog.num_tensors(); ++t) {
              const Shape shape(catalog.shape(t).begin(), catalog.shape(t).end());
              const Box box =
                  axis < shape.size() ? CutBox(shape, axis, group.rank(), ranks) : WholeBox(shape);
              state[std::string(catalog.key(t))] = Tensor::Allocate(catalog.dtype(t), shape, box);
            }
            LoadOptions options;
            options.transfer = transfer;
            RESHARD_TRY(Load(state, *storage, group, options));
            for (TensorId t = 0; t < catalog.num_tensors(); ++t) {
              const std::string key(catalog.key(t));
              const Tensor& tensor = *state.Find(key)->get_if<Tensor>();
              const Bytes want =
                  CutOut(whole.at(key), tensor.global_shape, tensor.dtype, tensor.shards[0].box);
              if (BytesOf(tensor) != want) {
                return MakeError(ErrorCode::kInternal, "WRONG", key);
              }
            }
            return OkStatus();
          });
          for (const Status& status : results) {
            EXPECT_EQ(Text(status), "")
                << ranks << " ranks, axis " << axis << ", indexed " << indexed;
          }
        }
      }
    }
  }
}

// One rank's directory has the metadata, each has its own data file.
TEST(ForeignTest, LoadsFromNodeLocalDirectories) {
  const std::map<std::string, Bytes> files = Golden("3.3.1/ranks2");
  const std::map<std::string, Bytes> whole = LoadWhole(*InMemory(files));
  std::vector<std::unique_ptr<Storage>> disks;
  disks.push_back(InMemory({{"1_0.distcp", files.at("1_0.distcp")}}));
  disks.push_back(
      InMemory({{"0.metadata", files.at("0.metadata")}, {"0_0.distcp", files.at("0_0.distcp")}}));
  const auto results = OnRanks(2, [&](ProcessGroup& group) -> Status {
    StateDict state = Value::Map();
    state["model.row"] = TargetTensor(DType::kFloat32, {6, 4}, {WholeBox(Shape{6, 4})});
    RESHARD_TRY(Load(state, *disks[static_cast<std::size_t>(group.rank())], group));
    const bool right = BytesOf(*state.Find("model.row")->get_if<Tensor>()) == whole.at("model.row");
    return right ? OkStatus() : Status(MakeError(ErrorCode::kInternal, "WRONG", "model.row"));
  });
  EXPECT_OK(results[0]);
  EXPECT_OK(results[1]);
}

TEST(ForeignTest, AnIdIsMatchedWhole) {
  const std::unique_ptr<Storage> storage = InMemory(Golden("3.3.1/ids"));
  const auto list = ListCheckpoints(*storage);
  ASSERT_OK(list);
  EXPECT_EQ(list->format, "paddle");
  EXPECT_THAT(list->ids, ElementsAre(0, 1, 10));
  EXPECT_EQ(ReadCheckpoint(*storage, 0)->catalog.info().unique_id, 0U);
  EXPECT_EQ(ReadCheckpoint(*storage)->catalog.info().unique_id, 10U);
  LoadOptions zero;
  zero.unique_id = 0;
  LoadOptions ten;
  ten.unique_id = 10;
  const auto at_zero = LoadWhole(*storage, zero);
  const auto at_ten = LoadWhole(*storage, ten);
  ASSERT_EQ(at_zero.count(at_zero.begin()->first), 1U);
  EXPECT_NE(at_zero.begin()->second, at_ten.at(at_zero.begin()->first));
  EXPECT_EQ(LoadWhole(*storage), at_ten);
  EXPECT_THAT(ReadCheckpoint(*storage, 2), FailsWith("NO_SNAPSHOT"));
}

TEST(ForeignTest, AMissingDataFileConcernsItsTensorsOnly) {
  std::map<std::string, Bytes> files = Golden("3.3.1/replicated_only");
  const std::map<std::string, Bytes> whole = LoadWhole(*InMemory(files));
  files.erase("1_0.distcp");
  const std::unique_ptr<Storage> storage = InMemory(files);
  const auto opened = ReadCheckpoint(*storage);
  ASSERT_OK(opened);
  ASSERT_EQ(opened->faults.size(), 1U);
  EXPECT_EQ(opened->faults[0].error.reason, "FILE_MISSING");
  ASSERT_EQ(opened->faults[0].keys.size(), 1U);
  const std::string lost = opened->faults[0].keys[0];
  const Shape shape = {2, 3};
  const auto group = SingleProcessGroup();
  StateDict state = Value::Map();
  state[lost] = TargetTensor(DType::kFloat32, shape, {WholeBox(shape)});
  for (const bool strict : {true, false}) {
    LoadOptions options;
    options.strict = strict;
    const auto loaded = Load(state, *storage, *group, options);
    EXPECT_THAT(loaded, FailsWith("FILE_MISSING"));
    EXPECT_THAT(loaded.error().message, HasSubstr(lost));
  }
  for (TensorId t = 0; t < opened->catalog.num_tensors(); ++t) {
    const std::string key(opened->catalog.key(t));
    StateDict other = Value::Map();
    other[key] = TargetTensor(DType::kFloat32, shape, {WholeBox(shape)});
    EXPECT_OK(Load(other, *storage, *group));
    EXPECT_EQ(BytesOf(*other.Find(key)->get_if<Tensor>()), whole.at(key));
  }
  EXPECT_GT(opened->catalog.num_tensors(), 0U);
  EXPECT_THAT(OpenComplete(*storage, OnlyRef(*storage)), FailsWith("FILE_MISSING"));
}

/// A checkpoint whose metadata names a file outside its directory.
std::unique_ptr<Storage> WithForbiddenName() {
  std::map<std::string, Bytes> files = Golden("3.3.1/single");
  std::string text(AsText(files.at("0.metadata")));
  const std::string name = "0_0.distcp";
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    text.replace(at, name.size(), "../0.distc");
  }
  const ByteSpan bytes = AsBytes(text);
  files["0.metadata"] = Bytes(bytes.begin(), bytes.end());
  return InMemory(files);
}

TEST(ForeignTest, MetadataThatNamesForbiddenFilesOpensNone) {
  const std::unique_ptr<Storage> storage = WithForbiddenName();
  const auto opened = ReadCheckpoint(*storage);
  ASSERT_OK(opened);
  ASSERT_FALSE(opened->faults.empty());
  EXPECT_EQ(opened->faults[0].error.reason, "BAD_NAME");
  EXPECT_EQ(opened->catalog.num_tensors(), 0U);
}

// 2.6.2 leaves copies of replicated tensors in every file and names one of them.
TEST(ForeignTest, ADataFileThatNothingNamesIsNoted) {
  const std::unique_ptr<Storage> storage = InMemory(Golden("2.6.2/replicated_only"));
  const auto report = Verify(*storage);
  ASSERT_OK(report);
  EXPECT_TRUE(report->whole());
  EXPECT_THAT(report->notes,
              ::testing::Contains(HasSubstr("1_0.distcp: 0.metadata does not name")));
}

// ---- the index

class IndexTest : public ::testing::Test {
 protected:
  IndexTest() : files_(Golden("3.3.1/ranks2")), storage_(InMemory(files_)) {}

  VerifyReport Verified() {
    auto report = Verify(*storage_);
    EXPECT_OK(report);
    return report.ok() ? *report : VerifyReport();
  }

  void MakeIndex() { ASSERT_OK(WriteIndex(*storage_, OnlyRef(*storage_))); }

  void Flip(const std::string& name, std::size_t at) {
    Bytes bytes = files_.at(name);
    bytes[at] ^= std::byte{1};
    Put(*storage_, name, bytes);
  }

  /// Where the bytes of a tensor begin in its file.
  Chunk FirstChunk(const std::string& key) {
    const auto opened = ReadCheckpoint(*storage_);
    return opened->catalog.chunk(*opened->catalog.Find(key), 0);
  }

  std::map<std::string, Bytes> files_;
  std::unique_ptr<Storage> storage_;
};

TEST_F(IndexTest, GivesChecksumsAndDigests) {
  EXPECT_TRUE(Verified().snapshots.at(0).structure_only);
  const auto report = WriteIndex(*storage_, OnlyRef(*storage_));
  ASSERT_OK(report);
  EXPECT_EQ(report->name, "0.metadata.reshard");
  EXPECT_EQ(report->tensors, 17U);
  EXPECT_EQ(report->digests, 17U);
  EXPECT_EQ(report->bytes, files_.at("0_0.distcp").size() + files_.at("1_0.distcp").size());
  const auto opened = ReadCheckpoint(*storage_);
  ASSERT_OK(opened);
  EXPECT_TRUE(opened->has_checksums);
  EXPECT_THAT(opened->notes, IsEmpty());
  const std::map<std::string, Bytes> whole = LoadWhole(*storage_);
  for (TensorId t = 0; t < opened->catalog.num_tensors(); ++t) {
    EXPECT_EQ(opened->catalog.digest(t), Crc64(whole.at(std::string(opened->catalog.key(t)))));
  }
  const VerifyReport verified = Verified();
  EXPECT_TRUE(verified.whole());
  EXPECT_FALSE(verified.snapshots.at(0).structure_only);
  EXPECT_EQ(verified.snapshots.at(0).digests, 17U);
  EXPECT_EQ(verified.snapshots.at(0).blocks, 2U);
}

TEST_F(IndexTest, OpensWithoutTheDataFiles) {
  MakeIndex();
  const auto before = ReadCheckpoint(*storage_);
  ASSERT_OK(storage_->Remove("0_0.distcp"));
  ASSERT_OK(storage_->Remove("1_0.distcp"));
  const auto opened = ReadCheckpoint(*storage_);
  ASSERT_OK(opened);
  EXPECT_EQ(opened->catalog.columns().digests, before->catalog.columns().digests);
  EXPECT_THAT(OpenComplete(*storage_, OnlyRef(*storage_)), FailsWith("FILE_MISSING"));
}

TEST_F(IndexTest, FindsAFlippedByteThatTheFormatCannot) {
  MakeIndex();
  const Chunk chunk = FirstChunk("model.row");
  const std::string name = ReadCheckpoint(*storage_)->catalog.files()[chunk.file].name;
  Flip(name, chunk.byte_offset + 5);
  const VerifyReport verified = Verified();
  ASSERT_EQ(verified.snapshots.at(0).faults.size(), 1U);
  EXPECT_EQ(verified.snapshots[0].faults[0].error.reason, "BLOCK_CHECKSUM");
  EXPECT_EQ(verified.snapshots[0].faults[0].file, name);
  StateDict state = Value::Map();
  state["model.row"] = TargetTensor(DType::kFloat32, {6, 4}, {WholeBox(Shape{6, 4})});
  const auto group = SingleProcessGroup();
  const auto loaded = Load(state, *storage_, *group);
  EXPECT_THAT(loaded, FailsWith("BLOCK_CHECKSUM"));
  EXPECT_THAT(loaded.error().message, HasSubstr("changed after it was indexed, or is damaged"));
}

TEST_F(IndexTest, IsIgnoredWhenTheMetadataWasWrittenAgain) {
  MakeIndex();
  Put(*storage_, "0.metadata", Golden("3.3.1/single").at("0.metadata"));
  const auto refs = FindForeign(*storage_);
  ASSERT_OK(refs);
  const auto index = ReadIndex(*storage_, refs->at(0));
  ASSERT_OK(index);
  EXPECT_FALSE(index->catalog.has_value());
  ASSERT_EQ(index->notes.size(), 1U);
  EXPECT_THAT(index->notes[0], HasSubstr("0.metadata was written again after it"));
}

TEST_F(IndexTest, ThatIsDamagedIsIgnoredAndWrittenAnew) {
  MakeIndex();
  Put(*storage_, "0.metadata.reshard", AsBytes("nothing"));
  auto opened = ReadCheckpoint(*storage_);
  ASSERT_OK(opened);
  EXPECT_FALSE(opened->has_checksums);
  ASSERT_EQ(opened->notes.size(), 1U);
  EXPECT_THAT(opened->notes[0], HasSubstr("is not used"));
  MakeIndex();
  EXPECT_TRUE(ReadCheckpoint(*storage_)->has_checksums);
}

TEST_F(IndexTest, ShowsNoDigestOfFilesThatChanged) {
  MakeIndex();
  Put(*storage_, "1_0.distcp", files_.at("1_0.distcp"));  // the same bytes at another time
  const auto opened = ReadCheckpoint(*storage_);
  ASSERT_OK(opened);
  ASSERT_EQ(opened->notes.size(), 1U);
  EXPECT_THAT(opened->notes[0], HasSubstr("1 of 2 data files changed"));
  const Catalog& catalog = opened->catalog;
  for (TensorId t = 0; t < catalog.num_tensors(); ++t) {
    bool touched = false;
    for (std::size_t c = 0; c < catalog.num_chunks(t); ++c) {
      touched = touched || catalog.files()[catalog.chunk(t, c).file].name == "1_0.distcp";
    }
    EXPECT_EQ(catalog.digest(t).has_value(), !touched) << catalog.key(t);
  }
  EXPECT_TRUE(Verified().whole());
}

TEST_F(IndexTest, OfAnotherLayoutIsAFault) {
  // The same metadata bytes, data files that place the arrays elsewhere: the name table is gone.
  MakeIndex();
  std::string text(AsText(files_.at("1_0.distcp")));
  const auto table = text.find("StructuredToParameterName@@");
  ASSERT_NE(table, std::string::npos);
  const auto opened = ReadCheckpoint(*storage_);
  CatalogColumns columns = opened->catalog.columns();
  columns.chunk_offsets[0] += 1;
  const auto other = Catalog::Create(columns);
  ASSERT_OK(other);
  Put(*storage_, "0.metadata.reshard", native::EncodeCatalog(*other));
  const VerifyReport verified = Verified();
  ASSERT_FALSE(verified.whole());
  EXPECT_EQ(verified.snapshots[0].faults[0].error.reason, "INDEX_MISMATCH");
}

TEST_F(IndexTest, AStaleTemporaryOfADeadWriterIsNoObstacle) {
  {
    auto temp = storage_->Create("0.metadata.reshard.a0.tmp", {0, true});
    ASSERT_OK(temp);
    (*temp)->Abandon();
  }
  MakeIndex();
  EXPECT_TRUE(ReadCheckpoint(*storage_)->has_checksums);
}

TEST(ForeignTest, AForbiddenNameIsDamageSoThatAnOlderCheckpointIsTaken) {
  const std::unique_ptr<Storage> storage = WithForbiddenName();
  const auto complete = OpenComplete(*storage, OnlyRef(*storage));
  ASSERT_FALSE(complete.ok());
  EXPECT_EQ(complete.error().reason, "BAD_NAME");
  EXPECT_TRUE(IsIncomplete(complete.error()));
}

TEST_F(IndexTest, AnotherWriterAtWorkIsNotDisturbed) {
  const auto temp = storage_->Create("0.metadata.reshard.a0.tmp", {0, true});
  ASSERT_OK(temp);
  EXPECT_THAT(WriteIndex(*storage_, OnlyRef(*storage_)), FailsWith("WRITER_AT_WORK"));
}

TEST(ForeignFileTest, ArraysStoredAsTextLoadAndVerify) {
  const fs::path file =
      fs::path(RESHARD_SOURCE_DIR) / "tests" / "golden" / "paddle_synthetic" / "small_p2.distcp";
  const std::map<std::string, Bytes> twin = LoadWhole(
      *InMemory({{"small_p4.distcp", ReadFile(fs::path(RESHARD_SOURCE_DIR) / "tests" / "golden" /
                                              "paddle_synthetic" / "small_p4.distcp")}}));
  const std::unique_ptr<Storage> storage = InMemory({{"small_p2.distcp", ReadFile(file)}});
  EXPECT_EQ(LoadWhole(*storage), twin);
  ASSERT_OK(WriteIndex(*storage, OnlyRef(*storage)));
  EXPECT_TRUE(ReadCheckpoint(*storage)->has_checksums);
  EXPECT_EQ(LoadWhole(*storage), twin);
  const auto verified = Verify(*storage);
  ASSERT_OK(verified);
  EXPECT_TRUE(verified->whole());
  EXPECT_GT(verified->snapshots.at(0).digests, 0U);
}

// ---- master weights, also where Paddle itself fails

class ForeignMasterWeightTest : public ::testing::TestWithParam<const char*> {
 protected:
  static Tensor Wanted(const Catalog& catalog, const std::string& stored) {
    const TensorId t = *catalog.Find(stored);
    const Shape shape(catalog.shape(t).begin(), catalog.shape(t).end());
    return Tensor::Allocate(catalog.dtype(t), shape, WholeBox(shape));
  }
};

INSTANTIATE_TEST_SUITE_P(Releases, ForeignMasterWeightTest,
                         ::testing::Values("2.6.2", "3.0.0", "3.1.1", "3.2.2", "3.3.1"),
                         [](const ::testing::TestParamInfo<const char*>& param) {
                           std::string name(param.param);
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST_P(ForeignMasterWeightTest, LoadUnderTheOtherGraphsNames) {
  const std::string dynamic_name = "optimizer.master_weights.linear_0.w_0";
  const std::string static_name = "optimizer.linear_0.w_0_fp32_master_0";
  const auto group = SingleProcessGroup();
  for (const bool from_dynamic : {true, false}) {
    const std::string stored = from_dynamic ? dynamic_name : static_name;
    const std::string wanted = from_dynamic ? static_name : dynamic_name;
    const std::unique_ptr<Storage> storage = InMemory(Golden(
        fmt::format("{}/{}", GetParam(), from_dynamic ? "master_dynamic" : "master_static")));
    const auto opened = ReadCheckpoint(*storage);
    ASSERT_OK(opened);
    const Bytes want = LoadWhole(*storage).at(stored);
    // Only renamed keys are requested: Paddle 3.0-3.2 return and load nothing, 3.3 fails.
    StateDict state = Value::Map();
    state[wanted] = Wanted(opened->catalog, stored);
    const auto report = Load(state, *storage, *group);
    ASSERT_OK(report);
    EXPECT_THAT(report->renamed, ElementsAre(std::pair(wanted, stored)));
    EXPECT_EQ(BytesOf(*state.Find(wanted)->get_if<Tensor>()), want);
    // An unrelated missing key follows a renamed one: Paddle 3.0 fills it with the renamed tensor.
    StateDict both = Value::Map();
    both[wanted] = Wanted(opened->catalog, stored);
    both["unrelated"] = Wanted(opened->catalog, stored);
    LoadOptions lenient;
    lenient.strict = false;
    const auto second = Load(both, *storage, *group, lenient);
    ASSERT_OK(second);
    EXPECT_THAT(second->missing, ElementsAre("unrelated"));
    EXPECT_EQ(BytesOf(*both.Find(wanted)->get_if<Tensor>()), want);
    EXPECT_THAT(Load(both, *storage, *group), FailsWith("MISSING_KEYS"));
    // Both names: Paddle loses one of the two.
    StateDict twice = Value::Map();
    twice[wanted] = Wanted(opened->catalog, stored);
    twice[stored] = Wanted(opened->catalog, stored);
    ASSERT_OK(Load(twice, *storage, *group));
    EXPECT_EQ(BytesOf(*twice.Find(wanted)->get_if<Tensor>()), want);
    EXPECT_EQ(BytesOf(*twice.Find(stored)->get_if<Tensor>()), want);
  }
}

TEST(ForeignTest, AnotherDTypeIsAMismatchNotGarbage) {
  const std::unique_ptr<Storage> storage = InMemory(Golden("3.2.2/ranks2"));
  const auto group = SingleProcessGroup();
  StateDict state = Value::Map();
  state["model.bf16_row"] = TargetTensor(DType::kFloat32, {4, 4}, {WholeBox(Shape{4, 4})});
  EXPECT_THAT(Load(state, *storage, *group), FailsWith("MISMATCH"));
  LoadOptions cast;
  cast.dtype = DTypePolicy::kCast;
  ASSERT_OK(Load(state, *storage, *group, cast));
  const Bytes bf16 = LoadWhole(*storage).at("model.bf16_row");
  const std::vector<float> floats = Floats(*state.Find("model.bf16_row")->get_if<Tensor>());
  for (std::size_t i = 0; i < floats.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &floats[i], 4);
    EXPECT_EQ(bits, static_cast<std::uint32_t>(LoadLittle<std::uint16_t>(bf16.data() + 2 * i))
                        << 16);
  }
}

}  // namespace
}  // namespace reshard::testing
