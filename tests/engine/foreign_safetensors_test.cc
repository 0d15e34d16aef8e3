// safetensors checkpoints opened, loaded, verified and indexed: one file, sets with an index,
// PyTorch's sharded sets, and the links of a Hugging Face cache.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "reshard/engine/checkpoint.h"
#include "reshard/engine/foreign.h"
#include "reshard/engine/index.h"
#include "reshard/engine/load.h"
#include "reshard/engine/save.h"
#include "reshard/engine/verify.h"
#include "reshard/format/safetensors/index.h"
#include "reshard/format/safetensors/writer.h"
#include "reshard/storage/memory_storage.h"
#include "reshard/storage/posix_path.h"
#include "tests/support/status_matchers.h"

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

void WriteFile(const fs::path& path, ByteSpan bytes) {
  std::ofstream(path, std::ios::binary) << AsText(bytes);
}

void Put(Storage& storage, const std::string& name, ByteSpan bytes) {
  ASSERT_OK(storage.Remove(name));
  auto object = storage.Create(name, {});
  ASSERT_OK(object);
  ASSERT_OK((*object)->WriteAt(0, bytes));
  ASSERT_OK((*object)->Finish(bytes.size()));
}

/// A file of uint8 tensors; every byte of one is `value`.
struct SmallTensor {
  std::string name;
  Shape shape;
  std::uint8_t value = 0;
};

Bytes FileOf(const std::vector<SmallTensor>& tensors) {
  std::vector<safetensors::WriteEntry> entries;
  entries.reserve(tensors.size());
  for (const SmallTensor& tensor : tensors) {
    entries.push_back({tensor.name, DType::kUint8, tensor.shape});
  }
  Result<Bytes> out = safetensors::EncodeHeader(entries);
  EXPECT_OK(out);
  for (const SmallTensor& tensor : tensors) {
    out->resize(out->size() + NumElements(tensor.shape), std::byte{tensor.value});
  }
  return std::move(*out);
}

Bytes TextBytes(std::string_view text) {
  const ByteSpan bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

std::unique_ptr<Storage> InMemory(const std::map<std::string, Bytes>& files) {
  std::unique_ptr<Storage> storage = NewMemoryStorage("memory");
  for (const auto& [name, bytes] : files) {
    Put(*storage, name, bytes);
  }
  return storage;
}

std::map<std::string, Bytes> Golden(const std::string& name) {
  std::map<std::string, Bytes> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(
           fs::path(RESHARD_SOURCE_DIR) / "tests" / "golden" / "torch_hf" / name)) {
    files[entry.path().filename().string()] = ReadFile(entry.path());
  }
  return files;
}

/// Loads one box of a tensor.
Result<Bytes> LoadBox(Storage& storage, const std::string& key, DType dtype, const Shape& shape,
                      const Box& box) {
  StateDict state = Value::Map();
  state[key] = Tensor::Allocate(dtype, shape, box);
  const auto group = SingleProcessGroup();
  RESHARD_TRY(Load(state, storage, *group));
  const TensorShard& shard = state.Find(key)->get_if<Tensor>()->shards.at(0);
  return Bytes(shard.view.data, shard.view.data + NumBytes(box, dtype));
}

Bytes Filled(std::size_t size, std::uint8_t value) { return Bytes(size, std::byte{value}); }

OpenedCheckpoint OpenAll(Storage& storage) {
  auto opened = ReadCheckpoint(storage, std::nullopt);
  EXPECT_OK(opened);
  return std::move(*opened);
}

std::vector<std::string> KeysOf(const Catalog& catalog) {
  std::vector<std::string> keys;
  keys.reserve(catalog.num_tensors());
  for (TensorId t = 0; t < catalog.num_tensors(); ++t) {
    keys.emplace_back(catalog.key(t));
  }
  return keys;
}

/// Element i of the whole tensor is i, whatever box of it is loaded.
void ExpectCounts(Storage& storage, const std::string& key, const Shape& shape, const Box& box) {
  ASSERT_OK_AND_ASSIGN(const Bytes bytes, LoadBox(storage, key, DType::kFloat32, shape, box));
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < box.extent[0]; ++i) {
    for (std::uint64_t j = 0; j < box.extent[1]; ++j) {
      float value = 0;
      std::memcpy(&value, bytes.data() + at, sizeof(value));
      at += sizeof(value);
      EXPECT_EQ(value, static_cast<float>((box.offset[0] + i) * shape[1] + box.offset[1] + j))
          << key << ' ' << i << ',' << j;
    }
  }
}

TEST(ForeignSafetensorsTest, ASetThatTorchWrote) {
  const auto storage = InMemory(Golden("hf_single"));
  const OpenedCheckpoint opened = OpenAll(*storage);
  EXPECT_EQ(opened.catalog.info().format, "safetensors");
  EXPECT_THAT(KeysOf(opened.catalog), ElementsAre("a", "b"));
  EXPECT_THAT(opened.faults, IsEmpty());
  EXPECT_THAT(opened.notes, IsEmpty());
  ExpectCounts(*storage, "a", {8, 4}, WholeBox(Shape{8, 4}));
  ExpectCounts(*storage, "a", {8, 4}, {{3, 1}, {4, 2}});
  ASSERT_OK_AND_ASSIGN(const Bytes b,
                       LoadBox(*storage, "b", DType::kBfloat16, {5}, WholeBox(Shape{5})));
  EXPECT_EQ(b, TextBytes(std::string("\x00\x00\x80\x3f\x00\x40\x40\x40\x80\x40", 10)));
}

TEST(ForeignSafetensorsTest, ShardsThatTorchWrote) {
  const auto storage = InMemory(Golden("hf_dist4"));
  const OpenedCheckpoint opened = OpenAll(*storage);
  EXPECT_THAT(KeysOf(opened.catalog), ElementsAre("col", "row"));
  EXPECT_THAT(opened.catalog.shape(0), ElementsAre(3, 10));
  EXPECT_THAT(opened.catalog.shape(1), ElementsAre(10, 3));
  EXPECT_EQ(opened.catalog.num_chunks(0), 4U);
  EXPECT_EQ(opened.catalog.files()[3].rank, 3U);
  EXPECT_THAT(opened.notes, ElementsAre(HasSubstr("4 rank(s)")));
  for (const Box& box : {Box{{0, 0}, {10, 3}}, Box{{2, 1}, {6, 2}}}) {
    ExpectCounts(*storage, "row", {10, 3}, box);
  }
  for (const Box& box : {Box{{0, 0}, {3, 10}}, Box{{1, 2}, {2, 7}}}) {
    ExpectCounts(*storage, "col", {3, 10}, box);
  }
}

TEST(ForeignSafetensorsTest, AMissingShardIsNoSilentShrinking) {
  for (const int shard : {1, 2, 3}) {
    std::map<std::string, Bytes> files = Golden("hf_dist4");
    ASSERT_EQ(files.erase(fmt::format("shard-0000{}-model-00001-of-00001.safetensors", shard)), 1U);
    const auto storage = InMemory(files);
    const auto opened = ReadCheckpoint(*storage, std::nullopt);
    EXPECT_THAT(opened, FailsWith("MISSING_SHARD"));
    EXPECT_THAT(opened.error().message, HasSubstr(fmt::format("shard-0000{}", shard)));
  }
  // Under other names only the hole tells.
  std::map<std::string, Bytes> renamed;
  for (const auto& [name, bytes] : Golden("hf_dist4")) {
    renamed[fmt::format("part{}.safetensors", renamed.size())] = bytes;
  }
  EXPECT_THAT(OpenAll(*InMemory(renamed)).faults, IsEmpty());
  std::map<std::string, Bytes> hole = renamed;
  hole.erase("part1.safetensors");
  const OpenedCheckpoint opened = OpenAll(*InMemory(hole));
  ASSERT_EQ(opened.faults.size(), 2U);
  EXPECT_EQ(opened.faults[0].error.reason, "COVERAGE");
  EXPECT_THAT(opened.faults[0].keys, ElementsAre("col"));
  std::map<std::string, Bytes> twice = renamed;
  twice["part9.safetensors"] = twice["part1.safetensors"];
  const OpenedCheckpoint overlap = OpenAll(*InMemory(twice));
  ASSERT_EQ(overlap.faults.size(), 2U);
  EXPECT_EQ(overlap.faults[1].error.reason, "OVERLAP");
  EXPECT_THAT(overlap.faults[1].error.message, HasSubstr("part9.safetensors"));
}

TEST(ForeignSafetensorsTest, OneFile) {
  const auto storage =
      InMemory({{"x.safetensors", FileOf({{"layer.w", {2, 3}, 7}, {"empty", {0, 4}, 0}})},
                {"config.json", TextBytes("{}")}});
  const OpenedCheckpoint opened = OpenAll(*storage);
  EXPECT_THAT(KeysOf(opened.catalog), ElementsAre("empty", "layer.w"));
  EXPECT_EQ(opened.catalog.path(1), Path{PathPart(std::string("layer.w"))});
  EXPECT_THAT(opened.catalog.shape(0), ElementsAre(0, 4));
  ASSERT_OK_AND_ASSIGN(const Bytes row,
                       LoadBox(*storage, "layer.w", DType::kUint8, {2, 3}, {{1, 0}, {1, 3}}));
  EXPECT_EQ(row, Filled(3, 7));
}

TEST(ForeignSafetensorsTest, ContentTellsWhateverTheNameIs) {
  const auto storage = InMemory({{"weights.bin", FileOf({{"w", {4}, 1}})}});
  EXPECT_THAT(KeysOf(OpenAll(*storage).catalog), ElementsAre("w"));
}

TEST(ForeignSafetensorsTest, SeveralFilesThatAreNoSet) {
  const auto storage = InMemory({{"model.safetensors", FileOf({{"w", {4}, 1}})},
                                 {"model.fp16.safetensors", FileOf({{"w", {4}, 2}})}});
  const auto opened = ReadCheckpoint(*storage, std::nullopt);
  EXPECT_THAT(opened, FailsWith("SEVERAL_FILES"));
  EXPECT_THAT(opened.error().message, HasSubstr("DIRECTORY/model.fp16.safetensors"));
}

TEST(ForeignSafetensorsTest, PartsWithoutAnIndex) {
  std::map<std::string, Bytes> files = {
      {"model-00001-of-00002.safetensors", FileOf({{"a", {4}, 1}})},
      {"model-00002-of-00002.safetensors", FileOf({{"b", {4}, 2}})}};
  EXPECT_THAT(KeysOf(OpenAll(*InMemory(files)).catalog), ElementsAre("a", "b"));
  files["model-00002-of-00002.safetensors"] = FileOf({{"a", {4}, 2}});
  const OpenedCheckpoint twice = OpenAll(*InMemory(files));
  ASSERT_EQ(twice.faults.size(), 1U);
  EXPECT_EQ(twice.faults[0].error.reason, "DUPLICATE_NAME");
  files.erase("model-00002-of-00002.safetensors");
  EXPECT_TRUE(ListCheckpoints(*InMemory(files))->empty());
  std::map<std::string, Bytes> three = {
      {"model-00001-of-00003.safetensors", FileOf({{"a", {4}, 1}})},
      {"model-00003-of-00003.safetensors", FileOf({{"b", {4}, 2}})}};
  const auto opened = ReadCheckpoint(*InMemory(three), std::nullopt);
  EXPECT_THAT(opened, FailsWith("MISSING_SHARD"));
  EXPECT_THAT(opened.error().message, HasSubstr("model-00002-of-00003.safetensors"));
}

std::string IndexText(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string out = R"({"metadata":{"total_size":8},"weight_map":{)";
  for (std::size_t i = 0; i < entries.size(); ++i) {
    out += fmt::format("{}\"{}\":\"{}\"", i == 0 ? "" : ",", entries[i].first, entries[i].second);
  }
  return out + "}}";
}

TEST(ForeignSafetensorsTest, FaultsOfASetConcernTheirTensorsOnly) {
  const auto storage =
      InMemory({{"model.safetensors.index.json", TextBytes(IndexText({{"a", "one.safetensors"},
                                                                      {"b", "one.safetensors"},
                                                                      {"c", "gone.safetensors"},
                                                                      {"d", "../out.safetensors"},
                                                                      {"e", "bad.safetensors"}}))},
                {"one.safetensors", FileOf({{"a", {4}, 1}, {"extra", {4}, 1}})},
                {"bad.safetensors", TextBytes("short")}});
  const OpenedCheckpoint opened = OpenAll(*storage);
  EXPECT_THAT(KeysOf(opened.catalog), ElementsAre("a"));
  std::map<std::string, std::string> reasons;
  for (const ForeignFault& fault : opened.faults) {
    for (const std::string& key : fault.keys) {
      reasons[key] = fault.error.reason;
    }
  }
  EXPECT_EQ(
      reasons,
      (std::map<std::string, std::string>{
          {"b", "MISSING_TENSOR"}, {"c", "FILE_MISSING"}, {"d", "BAD_NAME"}, {"e", "TOO_SHORT"}}));
  EXPECT_THAT(opened.notes, ElementsAre(HasSubstr("'extra'")));
  EXPECT_OK(LoadBox(*storage, "a", DType::kUint8, {4}, WholeBox(Shape{4})));
}

TEST(ForeignSafetensorsTest, AnIndexOfAnyNameAndTheUsualOneFirst) {
  std::map<std::string, Bytes> files = {{"diffusion_pytorch_model.safetensors.index.json",
                                         TextBytes(IndexText({{"a", "x.safetensors"}}))},
                                        {"x.safetensors", FileOf({{"a", {8}, 1}})}};
  EXPECT_THAT(KeysOf(OpenAll(*InMemory(files)).catalog), ElementsAre("a"));
  files["y.safetensors.index.fp16.json"] = TextBytes(IndexText({{"a", "x.safetensors"}}));
  EXPECT_THAT(ReadCheckpoint(*InMemory(files), std::nullopt), FailsWith("SEVERAL_FILES"));
  files["model.safetensors.index.json"] = TextBytes(IndexText({{"a", "x.safetensors"}}));
  EXPECT_THAT(KeysOf(OpenAll(*InMemory(files)).catalog), ElementsAre("a"));
}

TEST(ForeignSafetensorsTest, AnIndexFileThatIsNone) {
  const auto opened =
      ReadCheckpoint(*InMemory({{"model.safetensors.index.json", TextBytes("[]")}}), std::nullopt);
  EXPECT_THAT(opened, FailsWith("BAD_INDEX"));
  EXPECT_THAT(opened.error().message, HasSubstr("model.safetensors.index.json"));
}

TEST(ForeignSafetensorsTest, AFileThatChangedAfterItWasOpenedIsNotRead) {
  const auto storage = InMemory({{"x.safetensors", FileOf({{"w", {4}, 7}})}});
  ASSERT_OK(WriteIndex(*storage, OpenForeign(*storage, FindForeign(*storage)->at(0))->ref, {}));
  Bytes longer = FileOf({{"w", {4}, 7}});
  longer.push_back(std::byte{0});
  Put(*storage, "x.safetensors", longer);
  EXPECT_FALSE(LoadBox(*storage, "w", DType::kUint8, {4}, WholeBox(Shape{4})).ok());
}

TEST(ForeignSafetensorsTest, IndexGivesChecksums) {
  for (const bool set : {false, true}) {
    const auto storage = set ? InMemory(Golden("hf_single"))
                             : InMemory({{"x.safetensors", FileOf({{"w", {1000}, 7}})}});
    ASSERT_OK_AND_ASSIGN(const auto refs, FindForeign(*storage));
    ASSERT_OK_AND_ASSIGN(const IndexReport report, WriteIndex(*storage, refs.at(0), {}));
    EXPECT_EQ(report.name, set ? "model.safetensors.index.json.reshard" : "x.safetensors.reshard");
    const OpenedCheckpoint opened = OpenAll(*storage);
    EXPECT_TRUE(opened.has_checksums);
    EXPECT_TRUE(opened.catalog.digest(0).has_value());
    ASSERT_OK_AND_ASSIGN(const VerifyReport verified, Verify(*storage));
    EXPECT_TRUE(verified.whole());
    // A flipped byte is found from now on.
    const FileEntry& file = opened.catalog.files().back();
    auto object = storage->Open(file.name);
    ASSERT_OK(object);
    Bytes bytes((*object)->size());
    ASSERT_OK((*object)->ReadAt(0, bytes));
    bytes.back() ^= std::byte{1};
    Put(*storage, file.name, bytes);
    ASSERT_OK_AND_ASSIGN(const VerifyReport again, Verify(*storage));
    EXPECT_EQ(again.whole(), !set && file.size <= 65536) << "the index of another file is ignored";
  }
}

TEST(ForeignSafetensorsTest, AFileOfEmptyTensorsIsNotLeftOver) {
  const auto storage = InMemory({{"x.safetensors", FileOf({{"w", {0}, 7}})}});
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, Verify(*storage));
  EXPECT_TRUE(report.whole());
  EXPECT_THAT(report.notes, IsEmpty());
}

/// A file with an index, whose first bytes hold header and tensors: what happens to it later.
class IndexedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = (fs::temp_directory_path() / "reshard-indexed-XXXXXX").string();
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    root_ = path;
  }

  void TearDown() override { fs::remove_all(root_); }

  /// Writes a file of `size` bytes of data and its index.
  void Make(std::uint64_t size) {
    bytes_ = FileOf({{"v", {size / 2}, 7}, {"w", {size - size / 2}, 9}});
    WriteFile(File(), bytes_);
    auto storage = OpenPosixPath(root_.string());
    ASSERT_OK(storage);
    ASSERT_OK_AND_ASSIGN(const auto refs, FindForeign(**storage));
    ASSERT_OK(WriteIndex(**storage, refs.at(0), {}));
  }

  /// Writes `bytes` over the file; `same_time`: its time stays what it was.
  void Replace(ByteSpan bytes, bool same_time) {
    const fs::file_time_type time = fs::last_write_time(File());
    WriteFile(File(), bytes);
    fs::last_write_time(File(), same_time ? time : time + std::chrono::seconds(5));
  }

  void FlipByte(std::size_t at, bool same_time) {
    Bytes damaged = bytes_;
    damaged[at] ^= std::byte{1};
    Replace(damaged, same_time);
  }

  VerifyReport Verified() {
    auto storage = OpenPosixPath(root_.string());
    EXPECT_OK(storage);
    auto report = Verify(**storage);
    EXPECT_OK(report);
    return report.ok() ? *report : VerifyReport();
  }

  /// The reasons of the faults that verify finds.
  std::vector<std::string> Reasons() {
    std::vector<std::string> out;
    const VerifyReport report = Verified();
    for (const VerifyFault& fault : report.snapshots.at(0).faults) {
      out.push_back(fault.error.reason);
    }
    return out;
  }

  fs::path File() const { return root_ / "x.safetensors"; }

  fs::path root_;
  Bytes bytes_;
};

TEST_F(IndexedFileTest, DamageAtItsBeginningIsFound) {
  Make(std::uint64_t{3} << 20);
  for (const bool same_time : {true, false}) {
    FlipByte(5000, same_time);
    EXPECT_THAT(Reasons(), ElementsAre("BLOCK_CHECKSUM"));
    auto storage = OpenPosixPath(root_.string());
    ASSERT_OK(storage);
    EXPECT_TRUE(OpenAll(**storage).has_checksums);
  }
}

TEST_F(IndexedFileTest, DamageOfItsHeaderIsFound) {
  Make(std::uint64_t{3} << 20);
  FlipByte(8, false);  // the brace
  EXPECT_THAT(Reasons(), ElementsAre("BAD_HEADER", "BLOCK_CHECKSUM"));
}

TEST_F(IndexedFileTest, DamageOfASmallOneIsFoundByItsTime) {
  Make(5000);
  FlipByte(4000, true);
  EXPECT_THAT(Reasons(), ElementsAre("BLOCK_CHECKSUM"));
}

TEST_F(IndexedFileTest, WrittenAgainItIsNotTakenForDamaged) {
  for (const std::uint64_t size : {std::uint64_t{3} << 20, std::uint64_t{5000}}) {
    Make(size);
    Replace(FileOf({{"v", {size / 2}, 8}, {"w", {size - size / 2}, 10}}), false);
    const VerifyReport report = Verified();
    EXPECT_TRUE(report.whole());
    EXPECT_TRUE(report.snapshots.at(0).structure_only);
    ASSERT_EQ(report.notes.size(), 1U);
    EXPECT_THAT(report.notes[0], HasSubstr("x.safetensors was written again after it"));
  }
}

/// A Hugging Face cache: every file of a snapshot is a link into a folder of blobs.
class CacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = (fs::temp_directory_path() / "reshard-cache-XXXXXX").string();
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    root_ = path;
    snapshot_ = root_ / "models--x" / "snapshots" / "0123abcd";
    fs::create_directories(snapshot_);
    fs::create_directories(root_ / "models--x" / "blobs");
  }

  void TearDown() override { fs::remove_all(root_); }

  void Add(const std::string& name, ByteSpan bytes) {
    const std::string blob = fmt::format("{:064x}", ++blobs_);
    WriteFile(root_ / "models--x" / "blobs" / blob, bytes);
    fs::create_symlink(fs::path("../../blobs") / blob, snapshot_ / name);
  }

  std::unique_ptr<Storage> Open(const fs::path& path) {
    auto storage = OpenPosixPath(path.string());
    EXPECT_OK(storage);
    return std::move(*storage);
  }

  fs::path root_;
  fs::path snapshot_;
  int blobs_ = 0;
};

TEST_F(CacheTest, ASetOfLinks) {
  for (const auto& [name, bytes] : Golden("hf_single")) {
    Add(name, bytes);
  }
  const auto storage = Open(snapshot_);
  EXPECT_THAT(KeysOf(OpenAll(*storage).catalog), ElementsAre("a", "b"));
  ExpectCounts(*storage, "a", {8, 4}, {{3, 1}, {4, 2}});
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, Verify(*storage));
  EXPECT_TRUE(report.whole());
  // Our index stands beside the links, a plain file.
  ASSERT_OK_AND_ASSIGN(const auto refs, FindForeign(*storage));
  ASSERT_OK(WriteIndex(*storage, refs.at(0), {}));
  EXPECT_TRUE(OpenAll(*storage).has_checksums);
  EXPECT_TRUE(
      fs::is_regular_file(fs::symlink_status(snapshot_ / "model.safetensors.index.json.reshard")));
  const auto group = SingleProcessGroup();
  StateDict state = Value::Map();
  state["a"] = Tensor::Allocate(DType::kFloat32, {8, 4}, WholeBox(Shape{8, 4}));
  EXPECT_OK(Load(state, snapshot_.string(), *group));
}

TEST_F(CacheTest, OneLinkedFileByItsPath) {
  Add("model.safetensors", FileOf({{"w", {4}, 7}}));
  Add("other.safetensors", FileOf({{"v", {4}, 7}}));
  const auto storage = Open(snapshot_ / "other.safetensors");
  EXPECT_THAT(KeysOf(OpenAll(*storage).catalog), ElementsAre("v"));
}

TEST_F(CacheTest, OneFileOfASetByItsPath) {
  Add("model-00001-of-00002.safetensors", FileOf({{"w", {4}, 7}}));
  EXPECT_TRUE(ListCheckpoints(*Open(snapshot_))->empty());
  const OpenedCheckpoint opened = OpenAll(*Open(snapshot_ / "model-00001-of-00002.safetensors"));
  EXPECT_THAT(KeysOf(opened.catalog), ElementsAre("w"));
  EXPECT_THAT(opened.notes, ElementsAre(HasSubstr("one of 2 files")));
}

TEST_F(CacheTest, LinksThatLeadToNoPlainFile) {
  Add("a.safetensors", FileOf({{"w", {4}, 7}}));
  const std::vector<std::pair<std::string, std::string>> links = {{"dangling", "FILE_MISSING"},
                                                                  {"folder", "NOT_REGULAR"},
                                                                  {"pipe", "NOT_REGULAR"},
                                                                  {"loop", "NOT_REGULAR"},
                                                                  {"device", "NOT_REGULAR"}};
  std::vector<std::pair<std::string, std::string>> entries;
  entries.reserve(links.size() + 1);
  for (const auto& [name, reason] : links) {
    entries.emplace_back(name, name + ".safetensors");
  }
  entries.emplace_back("w", "a.safetensors");
  WriteFile(snapshot_ / "model.safetensors.index.json", TextBytes(IndexText(entries)));
  fs::create_symlink("nowhere", snapshot_ / "dangling.safetensors");
  fs::create_symlink(root_, snapshot_ / "folder.safetensors");
  ASSERT_EQ(::mkfifo((root_ / "fifo").c_str(), 0600), 0);
  fs::create_symlink(root_ / "fifo", snapshot_ / "pipe.safetensors");
  fs::create_symlink("loop.safetensors", snapshot_ / "loop.safetensors");
  fs::create_symlink("/dev/zero", snapshot_ / "device.safetensors");
  const OpenedCheckpoint opened = OpenAll(*Open(snapshot_));
  EXPECT_THAT(KeysOf(opened.catalog), ElementsAre("w"));
  std::map<std::string, std::string> reasons;
  for (const ForeignFault& fault : opened.faults) {
    reasons[fault.keys.at(0)] = fault.error.reason;
  }
  EXPECT_EQ(reasons, (std::map<std::string, std::string>(links.begin(), links.end())));
}

TEST_F(CacheTest, NativeFilesAreNeverFollowed) {
  const fs::path run = root_ / "run";
  StateDict state = Value::Map();
  state["w"] = Tensor::Allocate(DType::kUint8, {4}, WholeBox(Shape{4}));
  const auto group = SingleProcessGroup();
  ASSERT_OK(Save(state, run.string(), *group));
  for (const char* name : {"0_0.safetensors", "0.reshard"}) {
    fs::rename(run / name, root_ / name);
    fs::create_symlink(root_ / name, run / name);
    EXPECT_THAT(Load(state, run.string(), *group), FailsWith("NOT_REGULAR")) << name;
    fs::remove(run / name);
    fs::rename(root_ / name, run / name);
  }
  EXPECT_OK(Load(state, run.string(), *group));
}

TEST_F(CacheTest, ANativeDirectoryStaysNativeAndItsDataFileOpensAlone) {
  const fs::path run = root_ / "run";
  StateDict state = Value::Map();
  state["w"] = Tensor::Allocate(DType::kUint8, {4}, WholeBox(Shape{4}));
  const auto group = SingleProcessGroup();
  ASSERT_OK(Save(state, run.string(), *group));
  EXPECT_EQ(OpenAll(*Open(run)).catalog.info().format, "native");
  const OpenedCheckpoint alone = OpenAll(*Open(run / "0_0.safetensors"));
  EXPECT_EQ(alone.catalog.info().format, "safetensors");
  EXPECT_THAT(KeysOf(alone.catalog), ElementsAre("w"));
  fs::remove(run / "0.reshard");  // what is left of a save is no checkpoint
  EXPECT_TRUE(ListCheckpoints(*Open(run))->empty());
}

}  // namespace
}  // namespace reshard::testing
