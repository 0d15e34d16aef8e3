// Checkpoints that releases of torch wrote (tests/golden/torch/README.md): every key, path, dtype,
// shape and byte is the one in expected.json.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "reshard/catalog/cbor.h"
#include "reshard/format/torch/format.h"
#include "reshard/format/torch/zstd_records.h"
#include "tests/support/hex.h"
#include "tests/support/source_files.h"
#include "tests/support/status_matchers.h"

namespace reshard::torch {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

using Files = std::map<std::string, Bytes>;

constexpr std::string_view kGolden = "tests/golden/torch/";

Files ReadFolder(const std::string& folder) {
  Files files;
  const std::string root = std::string(RESHARD_SOURCE_DIR) + "/" + std::string(kGolden) + folder;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const std::string name = entry.path().filename();
    files[name] = testing::ReadSourceBytes(std::string(kGolden) + folder + "/" + name);
  }
  return files;
}

Result<Assembled> Open(const Files& files) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : files) {
    names.push_back(name);
  }
  const std::vector<ForeignRef> refs = DcpFormat().Find(names);
  if (refs.size() != 1) {
    return MakeError(ErrorCode::kNotFound, "NO_SNAPSHOT", "no checkpoint");
  }
  std::vector<MemorySource> metadata_files = {MemorySource(files.at(refs[0].metadata_name))};
  for (const std::string& name : refs[0].more_names) {
    metadata_files.emplace_back(files.at(name));
  }
  std::vector<ByteSource*> sources;
  for (MemorySource& source : metadata_files) {
    sources.push_back(&source);
  }
  RESHARD_TRY_ASSIGN(const std::unique_ptr<ForeignMetadata> metadata,
                     DcpFormat().ReadMetadata(refs[0], sources));
  std::vector<ExaminedFile> examined;
  for (std::size_t i = 0; i < metadata->files().size(); ++i) {
    MemorySource source(files.at(metadata->files()[i]));
    examined.push_back({source.size(), 0,
                        DcpFormat().Examine(metadata->files()[i], source, metadata->Request(i))});
  }
  return DcpFormat().Assemble(refs[0], *metadata, examined);
}

/// The bytes that chunks point into.
Bytes DecodedFile(const FileEntry& entry, const Bytes& stored) {
  if (entry.encoding == FileEncoding::kRaw) {
    return stored;
  }
  MemorySource source(stored);
  const auto decoded = ZstdRecords::Open(source, entry.size);
  EXPECT_OK(decoded);
  Bytes out((*decoded)->size());
  EXPECT_OK((*decoded)->ReadAt(0, out));
  return out;
}

/// Element by element, so that nothing of the library's own copying is in it.
Bytes TensorBytes(const Catalog& catalog, const Files& files, TensorId tensor) {
  const std::uint64_t item = Info(catalog.dtype(tensor)).unit_bytes;
  const auto shape = catalog.shape(tensor);
  Bytes out(catalog.num_bytes(tensor));
  for (std::size_t c = 0; c < catalog.num_chunks(tensor); ++c) {
    const Chunk chunk = catalog.chunk(tensor, c);
    const FileEntry& entry = catalog.files()[chunk.file];
    const Bytes file = DecodedFile(entry, files.at(entry.name));
    const std::vector<std::size_t> axes = AxesInFile(chunk.order, shape.size());
    for (std::uint64_t i = 0; i < NumElements(chunk.box); ++i) {
      Index index(shape.size());
      std::uint64_t rest = i;
      for (std::size_t a = axes.size(); a-- > 0;) {
        index[axes[a]] = rest % chunk.box.extent[axes[a]];
        rest /= chunk.box.extent[axes[a]];
      }
      std::uint64_t at = 0;
      for (std::size_t a = 0; a < shape.size(); ++a) {
        at = at * shape[a] + chunk.box.offset[a] + index[a];
      }
      std::copy_n(file.begin() + static_cast<std::ptrdiff_t>(chunk.byte_offset + i * item), item,
                  out.begin() + static_cast<std::ptrdiff_t>(at * item));
    }
  }
  return out;
}

Path PathOf(const json& parts) {
  Path path;
  for (const json& part : parts) {
    part.is_string() ? path.emplace_back(part.get<std::string>())
                     : path.emplace_back(ListIndex{part.get<std::uint64_t>()});
  }
  return path;
}

/// The key of expected.json's values_by_path.
std::string JoinPath(const json& parts) {
  std::string out;
  for (const json& part : parts) {
    out += out.empty() ? "" : "/";
    out += part.is_string() ? part.get<std::string>() : std::to_string(part.get<int>());
  }
  return out;
}

const std::map<std::string, Value>& ExpectedValues() {
  static const std::map<std::string, Value> values = {
      {"5", Value(5)},
      {"0.25", Value(0.25)},
      {"'héllo'", Value("héllo")},
      {"None", Value()},
      {R"(b'\x00\xff\x80')", Value(Bytes{std::byte{0}, std::byte{0xff}, std::byte{0x80}})},
      {"7", Value(7)},
      {"[1, 2, 3]", Value(Value::List{Value(1), Value(2), Value(3)})},
      {"1", Value(1)},
      {"3", Value(3)},
      {"'abc'", Value("abc")},
  };
  return values;
}

void ExpectTensor(const Catalog& catalog, const Files& files, const std::string& key,
                  const json& value, const json& path) {
  const std::optional<TensorId> tensor = catalog.Find(key);
  ASSERT_TRUE(tensor) << key;
  EXPECT_EQ(Info(catalog.dtype(*tensor)).name, value["dtype"].get<std::string>()) << key;
  EXPECT_TRUE(std::ranges::equal(catalog.shape(*tensor), value["shape"].get<Shape>())) << key;
  EXPECT_EQ(catalog.path(*tensor), PathOf(path)) << key;
  EXPECT_OK(catalog.CheckCoverage(*tensor));
  if (value["le_bytes_hex"].is_string()) {
    EXPECT_EQ(TensorBytes(catalog, files, *tensor),
              testing::FromHex(value["le_bytes_hex"].get<std::string>()))
        << key;
  }
}

void ExpectValue(const Catalog& catalog, const std::string& key, const json& value) {
  const auto [first, last] = catalog.FindObjects(key);
  ASSERT_EQ(last - first, 1U) << key;
  ASSERT_OK_AND_ASSIGN(const Value object, DecodeObject(catalog.object_value(first)));
  ASSERT_TRUE(ExpectedValues().contains(value["py"].get<std::string>())) << value["py"];
  EXPECT_EQ(object, ExpectedValues().at(value["py"].get<std::string>())) << key;
}

void ExpectCase(const std::string& release, const std::string& name, const json& expected) {
  SCOPED_TRACE(release + "/" + name);
  const Files files = ReadFolder(release + "/" + name);
  ASSERT_OK_AND_ASSIGN(const Assembled opened, Open(files));
  std::set<std::string> lazy;
  for (const ForeignFault& fault : opened.faults) {  // conjugated views alone cannot be read
    EXPECT_EQ(fault.error.reason, "LAZY_VIEW") << fault.error.ToString();
    EXPECT_THAT(fault.error.message, HasSubstr("resolve_conj"));
    lazy.insert(fault.keys.begin(), fault.keys.end());
  }
  EXPECT_EQ(lazy, name == "shapes" ? std::set<std::string>{"conj"} : std::set<std::string>());
  const Catalog& catalog = opened.catalog;
  EXPECT_EQ(catalog.num_tensors() + catalog.num_objects() + lazy.size(), expected["keys"].size());
  for (const auto& [key, meta] : expected["keys"].items()) {
    const json& path = expected["planner_data"][key];
    const json& value = expected["values_by_path"][JoinPath(path)];
    if (meta == "bytes") {
      ExpectValue(catalog, key, value);
    } else if (!lazy.contains(key)) {
      ExpectTensor(catalog, files, key, value, path);
    }
  }
}

TEST(TorchGoldenTest, EveryReleaseReadsAsTorchReadsIt) {
  int cases = 0;
  for (const std::string release : {"2.6.0", "2.14.1"}) {
    const json expected =
        json::parse(testing::ReadSourceText(std::string(kGolden) + release + "/expected.json"));
    for (const auto& [name, value] : expected.items()) {
      if (name != "plain.pt") {
        ExpectCase(release, name, value);
        ++cases;
      }
    }
  }
  EXPECT_EQ(cases, 11);
}

TEST(TorchGoldenTest, RankLocalMetadataIsUnited) {
  ASSERT_OK_AND_ASSIGN(const Assembled opened, Open(ReadFolder("2.14.1/ranklocal2")));
  EXPECT_TRUE(opened.faults.empty());
  ASSERT_EQ(opened.catalog.num_tensors(), 1U);
  EXPECT_EQ(opened.catalog.key(0), "x");
  EXPECT_EQ(opened.catalog.num_chunks(0), 1U);
  EXPECT_EQ(opened.catalog.num_objects(), 1U);
}

TEST(TorchGoldenTest, EnumsMayBePickledByName) {
  ASSERT_OK_AND_ASSIGN(const Assembled opened, Open(ReadFolder("enum_by_name")));
  EXPECT_TRUE(opened.faults.empty());
  ASSERT_EQ(opened.catalog.num_tensors(), 1U);
  EXPECT_EQ(opened.catalog.key(0), "w");
  ASSERT_EQ(opened.catalog.num_objects(), 1U);
  EXPECT_EQ(testing::ToHex(opened.catalog.object_value(0)), "05");
}

TEST(TorchGoldenTest, HandmadeArchivesRead) {
  for (const std::string name : {"handmade_minimal_zip", "handmade_4k_aligned"}) {
    SCOPED_TRACE(name);
    const Files files = ReadFolder(name);
    ASSERT_OK_AND_ASSIGN(const Assembled opened, Open(files));
    ASSERT_TRUE(opened.faults.empty()) << opened.faults[0].error.ToString();
    const std::optional<TensorId> tensor = opened.catalog.Find("w");
    ASSERT_TRUE(tensor);
    const Bytes bytes = TensorBytes(opened.catalog, files, *tensor);
    for (int i = 0; i < 12; ++i) {
      EXPECT_EQ(LoadLittle<float>(bytes.data() + 4 * static_cast<std::ptrdiff_t>(i)),
                static_cast<float>(i));
    }
  }
}

}  // namespace
}  // namespace reshard::torch
