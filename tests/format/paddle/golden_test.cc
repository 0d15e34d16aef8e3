// Checkpoints that Paddle releases wrote (tests/golden/paddle/README.md): every key, path, dtype,
// shape and byte is the one in expected.json.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "reshard/catalog/cbor.h"
#include "tests/support/crc32.h"
#include "tests/support/paddle_checkpoint.h"
#include "tests/support/source_files.h"

namespace reshard::paddle {
namespace {

using nlohmann::json;
using ::reshard::testing::Crc32;
using ::reshard::testing::OpenPaddle;
using ::reshard::testing::PaddleFiles;
using ::reshard::testing::PaddleTensorBytes;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::string_view kReleases[] = {"2.6.2", "3.0.0", "3.1.1", "3.2.2", "3.3.1"};

PaddleFiles ReadFolder(const std::string& folder) {
  PaddleFiles files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(RESHARD_SOURCE_DIR) + "/" + folder)) {
    const std::string name = entry.path().filename();
    files[name] = testing::ReadSourceBytes(folder + "/" + name);
  }
  return files;
}

std::vector<ForeignRef> Find(const PaddleFiles& files) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : files) {
    names.push_back(name);
  }
  return Format().Find(names);
}

std::vector<std::string> CasesOf(const std::string& release) {
  std::vector<std::string> cases;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(RESHARD_SOURCE_DIR) +
                                                               "/tests/golden/paddle/" + release)) {
    if (entry.is_directory()) {
      cases.push_back(entry.path().filename());
    }
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

Path PathOf(const json& parts) {
  Path path;
  for (const json& part : parts) {
    path.emplace_back(part.get<std::string>());
  }
  return path;
}

void ExpectTensor(const Catalog& catalog, const PaddleFiles& files, const std::string& key,
                  const json& expected) {
  const std::optional<TensorId> tensor = catalog.Find(key);
  ASSERT_TRUE(tensor) << key;
  EXPECT_EQ(reshard::Info(catalog.dtype(*tensor)).name, expected["dtype"].get<std::string>())
      << key;
  const auto shape = expected["global_shape"].get<Shape>();
  EXPECT_TRUE(std::ranges::equal(catalog.shape(*tensor), shape))
      << key << " " << ToString(catalog.shape(*tensor));
  const Path path =
      expected.value("in_flat_mapping", false) ? PathOf(expected["path"]) : Path{PathPart(key)};
  EXPECT_EQ(catalog.path(*tensor), path) << key << " " << ToString(catalog.path(*tensor));
  EXPECT_OK(catalog.CheckCoverage(*tensor));
  const Bytes bytes = PaddleTensorBytes(catalog, files, *tensor);
  EXPECT_EQ(bytes.size(), expected["bytes"].get<std::size_t>()) << key;
  EXPECT_EQ(fmt::format("{:08x}", Crc32(bytes)), expected["crc32"].get<std::string>()) << key;
}

void ExpectNames(const Catalog& catalog, const json& tables) {
  std::map<std::string, std::string> expected;  // the first file's names stand
  for (const auto& [file, table] : tables.items()) {
    for (const auto& [key, name] : table.items()) {
      expected.emplace(key, name.get<std::string>());
    }
  }
  const auto [first, last] = catalog.FindObjects(kNameTableKey);
  ASSERT_EQ(last - first, 1U);
  ASSERT_OK_AND_ASSIGN(const Value value, DecodeObject(catalog.object_value(first)));
  Value::Map map;
  for (const auto& [key, name] : expected) {
    map.emplace_back(key, name);
  }
  EXPECT_TRUE(value == Value(map));
}

/// Checks one checkpoint and returns its notes.
std::vector<std::string> ExpectCheckpoint(const PaddleFiles& files, const ForeignRef& ref,
                                          const json& expected) {
  Result<Assembled> opened = OpenPaddle(files, ref);
  EXPECT_OK(opened);
  if (!opened.ok()) {
    return {};
  }
  EXPECT_THAT(opened->faults, IsEmpty());
  const Catalog& catalog = opened->catalog;
  EXPECT_EQ(catalog.info().kind, CatalogKind::kIndex);
  EXPECT_EQ(catalog.info().format, "paddle");
  EXPECT_EQ(catalog.info().unique_id, ref.unique_id);
  std::size_t stored = 0;
  for (const auto& [key, tensor] : expected["tensors"].items()) {
    if (tensor.value("stored", true)) {
      ++stored;
      ExpectTensor(catalog, files, key, tensor);
    } else {
      EXPECT_FALSE(catalog.Find(key)) << key;
    }
  }
  EXPECT_EQ(catalog.num_tensors(), stored);
  if (expected.contains("name_tables") && !expected["name_tables"].empty()) {
    ExpectNames(catalog, expected["name_tables"]);
  }
  return opened->notes;
}

bool IsNamed(const json& facts, const std::string& file) {
  for (const auto& [key, tensor] : facts["tensors"].items()) {
    for (const json& shard : tensor["shards"]) {
      if (shard["file"] == file) {
        return true;
      }
    }
  }
  return false;
}

class PaddleGoldenTest : public ::testing::TestWithParam<std::string_view> {};

TEST_P(PaddleGoldenTest, EveryCaseIsReadAsItWasWritten) {
  const std::string release(GetParam());
  const std::string folder = "tests/golden/paddle/" + release;
  const json expected = json::parse(testing::ReadSourceText(folder + "/expected.json"));
  std::size_t checkpoints = 0;
  for (const std::string& name : CasesOf(release)) {
    SCOPED_TRACE(fmt::format("{} {}", release, name));
    const PaddleFiles files = ReadFolder(fmt::format("{}/{}", folder, name));
    const json& ids = expected["cases"][name]["ids"];
    const std::vector<ForeignRef> refs = Find(files);
    EXPECT_EQ(refs.size(), ids.size());
    for (const ForeignRef& ref : refs) {
      SCOPED_TRACE(ref.metadata_name);
      const json& facts = ids[std::to_string(ref.unique_id)];
      const std::vector<std::string> notes = ExpectCheckpoint(files, ref, facts);
      ++checkpoints;
      const auto unnamed = [](const std::string& note) {
        return note.find("the metadata does not name") != std::string::npos;
      };
      std::ptrdiff_t expected_notes = 0;
      const json unreferenced = facts.value("unreferenced_arrays", json::object());
      for (const auto& [file, keys] : unreferenced.items()) {
        // A file that the metadata does not name at all is not looked at.
        expected_notes += IsNamed(facts, file) ? 1 : 0;
      }
      EXPECT_EQ(std::ranges::count_if(notes, unnamed), expected_notes);
    }
  }
  const std::map<std::string_view, std::size_t> counts = {
      {"2.6.2", 10}, {"3.0.0", 13}, {"3.1.1", 13}, {"3.2.2", 16}, {"3.3.1", 18}};
  EXPECT_EQ(checkpoints, counts.at(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Releases, PaddleGoldenTest, ::testing::ValuesIn(kReleases),
                         [](const auto& instance) {
                           std::string name(instance.param);
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

TEST(PaddleCheckpointTest, ArraysThatNoEntryNamesAreNoted) {
  const PaddleFiles files = ReadFolder("tests/golden/paddle/3.3.1/saved_twice");
  ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenPaddle(files, {"paddle", "0.metadata", 0}));
  EXPECT_THAT(opened.notes,
              ::testing::ElementsAre(
                  "0_0.distcp: the metadata does not name 1 of its arrays: 'model.new'"));
}

TEST(PaddleCheckpointTest, KeysOfEmptyTensorsAreNoted) {
  const PaddleFiles files = ReadFolder("tests/golden/paddle/3.3.1/empty");
  ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenPaddle(files, {"paddle", "0.metadata", 0}));
  ASSERT_EQ(opened.notes.size(), 2U);
  EXPECT_THAT(opened.notes[0], HasSubstr("'none' is in flat_mapping"));
}

TEST(PaddleCheckpointTest, FileFacts) {
  const PaddleFiles files = ReadFolder("tests/golden/paddle/3.3.1/mesh2x2");
  ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenPaddle(files, {"paddle", "0.metadata", 0}));
  const Catalog& catalog = opened.catalog;
  EXPECT_EQ(catalog.info().world_size, 4U);
  ASSERT_EQ(catalog.files().size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    const FileEntry& entry = catalog.files()[i];
    EXPECT_EQ(entry.name, fmt::format("{}_0.distcp", i));
    EXPECT_EQ(entry.rank, i);
    EXPECT_EQ(entry.size, files.at(entry.name).size());
    EXPECT_EQ(entry.mtime_ns, 17);
    EXPECT_EQ(entry.payload_offset, 0U);
    EXPECT_FALSE(entry.has_blocks);
  }
}

TEST(PaddleCheckpointTest, AMissingFileTakesItsTensorsOnly) {
  PaddleFiles files = ReadFolder("tests/golden/paddle/3.3.1/mesh2x2");
  ASSERT_OK_AND_ASSIGN(const Assembled whole, OpenPaddle(files, {"paddle", "0.metadata", 0}));
  files.erase("3_0.distcp");
  ASSERT_OK_AND_ASSIGN(const Assembled part, OpenPaddle(files, {"paddle", "0.metadata", 0}));
  ASSERT_EQ(part.faults.size(), 1U);
  EXPECT_EQ(part.faults[0].file, "3_0.distcp");
  EXPECT_EQ(part.faults[0].error.reason, "FILE_MISSING");
  std::set<std::string> expected;
  for (TensorId t = 0; t < whole.catalog.num_tensors(); ++t) {
    bool lost = false;
    for (std::size_t c = 0; c < whole.catalog.num_chunks(t); ++c) {
      lost = lost || whole.catalog.chunk(t, c).file == 3;
    }
    if (lost) {
      expected.insert(std::string(whole.catalog.key(t)));
    }
    EXPECT_EQ(part.catalog.Find(whole.catalog.key(t)).has_value(), !lost);
  }
  EXPECT_EQ(std::set<std::string>(part.faults[0].keys.begin(), part.faults[0].keys.end()),
            expected);
  EXPECT_GT(part.catalog.num_tensors(), 0U);
}

TEST(PaddleCheckpointTest, AReplicaStandsInForAMissingMainCopy) {
  PaddleFiles files = ReadFolder("tests/golden/paddle/3.3.1/replicas");
  ASSERT_OK_AND_ASSIGN(const Assembled whole, OpenPaddle(files, {"paddle", "0.metadata", 0}));
  EXPECT_EQ(whole.catalog.num_chunks(), 7U);  // of 10 stored pieces
  files.erase("1_0.distcp");
  ASSERT_OK_AND_ASSIGN(const Assembled part, OpenPaddle(files, {"paddle", "0.metadata", 0}));
  std::size_t replicated = 0;
  for (TensorId t = 0; t < whole.catalog.num_tensors(); ++t) {
    if (whole.catalog.num_chunks(t) == 1) {
      ++replicated;
      EXPECT_TRUE(part.catalog.Find(whole.catalog.key(t))) << whole.catalog.key(t);
    }
  }
  EXPECT_GT(replicated, 0U);
}

TEST(PaddleCheckpointTest, DataOfAnotherShapeOrDtypeIsAFault) {
  PaddleFiles files = ReadFolder("tests/golden/paddle/3.3.1/master_dynamic");
  files["0_0.distcp"] = testing::ReadSourceBytes("tests/golden/paddle/3.3.1/ids/0_0.distcp");
  ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenPaddle(files, {"paddle", "0.metadata", 0}));
  EXPECT_EQ(opened.catalog.num_tensors(), 0U);
  ASSERT_FALSE(opened.faults.empty());
  for (const ForeignFault& fault : opened.faults) {
    EXPECT_EQ(fault.error.reason, "BAD_ARRAY");
    EXPECT_EQ(fault.file, "0_0.distcp");
    EXPECT_EQ(fault.keys.size(), 1U);
  }
}

}  // namespace
}  // namespace reshard::paddle
