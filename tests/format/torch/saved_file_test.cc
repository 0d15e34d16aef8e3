// torch.save files: what torch 2.6, 2.13 and 2.14 wrote, in both forms, and what no torch writes.

#include "reshard/format/torch/saved_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "reshard/catalog/cbor.h"
#include "reshard/format/torch/saved_format.h"
#include "reshard/format/zip/archive.h"
#include "tests/support/counting_source.h"
#include "tests/support/hex.h"
#include "tests/support/paddle_checkpoint.h"
#include "tests/support/source_files.h"

namespace reshard::torch {
namespace {

using nlohmann::json;
using ::reshard::testing::CountingSource;
using ::reshard::testing::FailsWith;
using ::reshard::testing::PaddleTensorBytes;
using ::reshard::testing::ReadSourceBytes;
using ::reshard::testing::ReadSourceText;
using ::reshard::testing::ToHex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

Bytes Golden(const std::string& name) {
  return ReadSourceBytes("tests/golden/torch_saved/" + name);
}

Result<Assembled> OpenSaved(const Bytes& bytes) {
  const ForeignFormat& format = SavedFormat();
  const ForeignRef ref = {"torch.save", "f.pt", 0};
  MemorySource source(bytes);
  ByteSource* const sources[] = {&source};
  RESHARD_TRY_ASSIGN(const auto metadata, format.ReadMetadata(ref, sources));
  const ExaminedFile examined[] = {{bytes.size(), 17, format.Examine("f.pt", source, {})}};
  return format.Assemble(ref, *metadata, examined);
}

std::map<std::string, std::string> Tensors(const Bytes& bytes, const Catalog& catalog) {
  const testing::PaddleFiles files = {{"f.pt", bytes}};
  std::map<std::string, std::string> out;
  for (TensorId t = 0; t < catalog.num_tensors(); ++t) {
    out[std::string(catalog.key(t))] =
        fmt::format("{} {} {}", Info(catalog.dtype(t)).name,
                    ToString(Shape(catalog.shape(t).begin(), catalog.shape(t).end())),
                    ToHex(PaddleTensorBytes(catalog, files, t)));
  }
  return out;
}

std::map<std::string, std::string> Expected(const std::string& name) {
  const json all = json::parse(ReadSourceText("tests/golden/torch_saved/expected.json"));
  std::map<std::string, std::string> out;
  for (const auto& [key, tensor] : all.at(name).items()) {
    out[key] =
        fmt::format("{} {} {}", tensor.at("dtype").get<std::string>(),
                    ToString(tensor.at("shape").get<Shape>()), tensor.at("hex").get<std::string>());
  }
  return out;
}

class SavedGoldenTest : public ::testing::TestWithParam<std::string> {};

TEST_P(SavedGoldenTest, EveryTensorIsWhatTorchSaved) {
  const Bytes bytes = Golden(GetParam());
  ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenSaved(bytes));
  EXPECT_TRUE(opened.faults.empty());
  EXPECT_EQ(Tensors(bytes, opened.catalog), Expected(GetParam()));
  EXPECT_EQ(opened.catalog.files()[0].mtime_ns, 17);
  EXPECT_EQ(opened.catalog.files()[0].size, bytes.size());
}

INSTANTIATE_TEST_SUITE_P(Files, SavedGoldenTest, ::testing::Values("new.pt", "old.pt"));

/// The objects by flat key.
std::map<std::string, Value> Objects(const Catalog& catalog) {
  std::map<std::string, Value> out;
  for (std::size_t i = 0; i < catalog.num_objects(); ++i) {
    const Result<Value> value = DecodeObject(catalog.object_value(i));
    EXPECT_TRUE(value.ok());
    out[std::string(catalog.object_key(i))] = value.ok() ? *value : Value();
  }
  return out;
}

TEST(SavedFileTest, AttributesAndClassesOfTensorsAreDropped) {
  for (const char* name : {"odd.pt", "odd-old.pt"}) {
    const Bytes bytes = Golden(name);
    ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenSaved(bytes));
    const std::map<std::string, std::string> tensors = Tensors(bytes, opened.catalog);
    EXPECT_EQ(tensors, Expected(name));
    EXPECT_EQ(tensors.count("noted") + tensors.count("tagged") + tensors.count("buffer") +
                  tensors.count("marked"),
              4U);
  }
}

TEST(SavedFileTest, TensorsThatAreNotDenseAreFaultsOfTheirOwn) {
  for (const char* name : {"odd.pt", "odd-old.pt"}) {
    ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenSaved(Golden(name)));
    std::map<std::string, std::string> faults;
    for (const ForeignFault& fault : opened.faults) {
      EXPECT_EQ(fault.error.code, ErrorCode::kUnsupported);
      ASSERT_EQ(fault.keys.size(), 1U);
      EXPECT_THAT(fault.error.message, HasSubstr("'" + fault.keys[0] + "'"));
      const std::string& text = fault.error.message;
      const std::size_t from = text.find("this is a ");
      faults[fault.keys[0]] =
          fault.error.reason +
          (from == std::string::npos ? "" : text.substr(from + 9, text.find(';') - from - 9));
    }
    const std::map<std::string, std::string> expected = {
        {"csr", "UNSUPPORTED_TENSOR sparse tensor"},
        {"f4", "UNSUPPORTED_TENSOR tensor of dtype torch.float4_e2m1fn_x2"},
        {"meta", "UNSUPPORTED_TENSOR meta tensor, which has no elements"},
        {"neg", "LAZY_VIEW"},
        {"nested", "UNSUPPORTED_TENSOR nested tensor"},
        {"quantized", "UNSUPPORTED_TENSOR quantized tensor"},
        {"quantized32", "UNSUPPORTED_TENSOR quantized tensor"},
        {"sparse", "UNSUPPORTED_TENSOR sparse tensor"}};
    EXPECT_EQ(faults, expected) << name;
    EXPECT_TRUE(opened.notes.empty());
  }
}

TEST(SavedFileTest, IntegersBeyond64BitsAreKeptAsTheyAre) {
  for (const char* name : {"odd.pt", "odd-old.pt"}) {
    ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenSaved(Golden(name)));
    const std::map<std::string, Value> objects = Objects(opened.catalog);
    EXPECT_EQ(objects.at("big"),
              Value(Opaque{"int", testing::FromHex("80028b090000000000000000000000402e")}));
    EXPECT_EQ(objects.at("seed"),
              Value(Opaque{"int", testing::FromHex("80028b090000000000000000000080002e")}));
    EXPECT_EQ(objects.at("rng.state"),
              Value(Opaque{"int", testing::FromHex("80028b1000000000000000000000000000000000"
                                                   "0000802e")}));
    EXPECT_EQ(objects.at("rng.has"), Value(1));
  }
}

TEST(SavedFileTest, ModulesOfTheOlderFormAreReadLikeOthers) {
  const Bytes bytes = Golden("module-old.pt");
  ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenSaved(bytes));
  std::map<std::string, std::string> expected;
  for (const auto& [key, tensor] : Expected("module-old.pt")) {
    expected["model._parameters." + key] = tensor;
  }
  ASSERT_EQ(expected.size(), 1U);
  EXPECT_EQ(Tensors(bytes, opened.catalog), expected);
  EXPECT_EQ(Objects(opened.catalog).at("epoch"), Value(3));
  EXPECT_THAT(opened.notes, ElementsAre(HasSubstr("__main__.Tiny")));
}

TEST(SavedFileTest, ObjectsAndOpaqueValues) {
  for (const char* name : {"new.pt", "old.pt"}) {
    ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenSaved(Golden(name)));
    std::map<std::string, Value> objects;
    for (std::size_t i = 0; i < opened.catalog.num_objects(); ++i) {
      ASSERT_OK_AND_ASSIGN(objects[std::string(opened.catalog.object_key(i))],
                           DecodeObject(opened.catalog.object_value(i)));
    }
    EXPECT_EQ(objects["epoch"], Value(3));
    EXPECT_EQ(objects["name"], Value("run \u00e9"));
    EXPECT_TRUE(objects["none"].is_null());
    EXPECT_EQ(objects["yes"], Value(true));
    EXPECT_EQ(objects["raw"], Value(testing::FromHex("00ff80")));
    EXPECT_EQ(objects["size"], Value(Value::List{2, 3}));
    EXPECT_EQ(objects["hyper"], Value(Opaque{"argparse.Namespace", {}}));
    EXPECT_EQ(objects["dtype"],
              Value(Opaque{"torch.float16", testing::FromHex("800263746f7263680a666c6f617431360a"
                                                             "2e")}));
    EXPECT_EQ(objects["lists.0"], Value(1));
    const Value groups = Value::List{
        Value::Map{{"lr", 0.1}, {"betas", Value::List{0.9, 0.999}}, {"params", Value::List{0, 1}}}};
    EXPECT_EQ(objects["optimizer.param_groups"], groups);
    EXPECT_EQ(objects.size(), 11U);
    const std::optional<TensorId> moment = opened.catalog.Find("optimizer.state.0.exp_avg");
    ASSERT_TRUE(moment);
    EXPECT_EQ(ToString(opened.catalog.path(*moment)), "['optimizer']['state'][0]['exp_avg']")
        << "integer keys stay integers";
  }
}

TEST(SavedFileTest, SharedStoragesAndViewsAreStoredOnce) {
  ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenSaved(Golden("new.pt")));
  const Catalog& catalog = opened.catalog;
  const auto id = [&](const char* key) { return *catalog.Find(std::string("state_dict.") + key); };
  EXPECT_EQ(catalog.alias_of(id("w_again")), id("w"));
  const std::uint64_t base = catalog.chunk(id("w"), 0).byte_offset;
  EXPECT_EQ(catalog.chunk(id("rows"), 0).byte_offset, base + 24);
  EXPECT_EQ(catalog.chunk(id("t"), 0).byte_offset, base);
  EXPECT_EQ(catalog.chunk(id("t"), 0).order, ChunkOrder::kColumnMajor);
  EXPECT_EQ(catalog.num_chunks(id("conv")), 1U) << "channels_last is an order of axes";
  EXPECT_EQ(catalog.num_chunks(id("cols")), 4U) << "rows with gaps between them";
}

TEST(SavedFileTest, EveryDTypeAndLazyViewsAreFaults) {
  const Bytes bytes = Golden("dtypes.pt");
  ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenSaved(bytes));
  std::map<std::string, std::string> expected = Expected("dtypes.pt");
  expected.erase("lazy");
  EXPECT_EQ(Tensors(bytes, opened.catalog), expected);
  ASSERT_EQ(opened.faults.size(), 1U);
  EXPECT_EQ(opened.faults[0].error.reason, "LAZY_VIEW");
  EXPECT_THAT(opened.faults[0].keys, ElementsAre("lazy"));
}

TEST(SavedFileTest, WhatIsNoDictIsCalledData) {
  for (const char* name : {"bare.pt", "list.pt"}) {
    const Bytes bytes = Golden(name);
    ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenSaved(bytes));
    std::map<std::string, std::string> expected;
    for (const auto& [key, tensor] : Expected(name)) {
      expected[key.empty() ? "data" : "data." + key] = tensor;
    }
    EXPECT_EQ(Tensors(bytes, opened.catalog), expected);
  }
}

TEST(SavedFileTest, ModulesAreReadAsDictsWithANote) {
  const Bytes bytes = Golden("module.pt");
  ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenSaved(bytes));
  std::map<std::string, std::string> expected;
  for (const auto& [key, tensor] : Expected("module.pt")) {
    expected["_parameters." + key] = tensor;
  }
  EXPECT_EQ(Tensors(bytes, opened.catalog), expected);
  EXPECT_THAT(opened.notes, ElementsAre(HasSubstr("torch.nn.modules.linear.Linear")));
}

TEST(SavedFileTest, OtherReleasesFilesWithSharedStorages) {
  for (const char* name : {"plain-2.6.0.pt", "plain-2.14.1.pt"}) {
    const Bytes bytes = Golden(name);
    ASSERT_OK_AND_ASSIGN(const Assembled opened, OpenSaved(bytes));
    const auto tensors = Tensors(bytes, opened.catalog);
    ASSERT_EQ(tensors.size(), 3U);
    EXPECT_EQ(tensors.at("shared.0"),
              "float32 (6) 000000000000803f0000004000004040000080400000a040");
    EXPECT_EQ(tensors.at("shared.1"), "float32 (2) 0000004000004040");
    EXPECT_EQ(tensors.at("a").substr(0, 32), "float32 (8, 4) 000000000000803f0");
    ASSERT_EQ(opened.catalog.num_objects(), 1U);
    ASSERT_OK_AND_ASSIGN(const Value object, DecodeObject(opened.catalog.object_value(0)));
    EXPECT_EQ(object, Value(Value::List{1, 2.5, Value(), true, "x"}));
  }
}

TEST(SavedFileTest, TorchScriptIsRefusedByName) {
  const Result<Assembled> opened = OpenSaved(Golden("script.pt"));
  ASSERT_THAT(opened, FailsWith("KIND_NOT_SUPPORTED"));
  EXPECT_THAT(opened.error().message, HasSubstr("TorchScript"));
}

TEST(SavedFileTest, ToldByContent) {
  EXPECT_TRUE(LooksSaved(Golden("new.pt")));
  EXPECT_TRUE(LooksSaved(Golden("old.pt")));
  EXPECT_FALSE(LooksSaved(testing::FromHex("80027d712e")));
  EXPECT_FALSE(LooksSaved({}));
}

TEST(SavedFileTest, ReadsLittle) {
  Bytes bytes = Golden("old.pt");
  CountingSource source(bytes);
  ASSERT_OK(ReadSavedFile(source));
  EXPECT_LE(source.bytes_read(), bytes.size() + 8192) << "the pickles once";
}

/// Replaces the first occurrence.
Bytes Replaced(Bytes bytes, std::string_view what, std::string_view with) {
  std::string text(AsText(bytes));
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos);
  text.replace(at, what.size(), with);
  const ByteSpan out = AsBytes(text);
  return {out.begin(), out.end()};
}

TEST(SavedFileTest, UnknownRebuildsAndStoragesAreNamed) {
  const auto fault = [](const Bytes& bytes, const std::string& key) -> std::string {
    MemorySource source(bytes);
    const Result<SavedFile> saved = ReadSavedFile(source);
    if (!saved.ok()) {
      return saved.error().ToString();
    }
    for (const SavedFault& one : saved->faults) {
      if (one.key == key) {
        return one.error.ToString();
      }
    }
    return "no fault";
  };
  const Bytes old = Golden("odd-old.pt");
  EXPECT_THAT(fault(Replaced(old, "_rebuild_qtensor", "_rebuild_xtensor"), "quantized"),
              HasSubstr("a tensor that torch rebuilds with torch._utils._rebuild_xtensor"));
  EXPECT_THAT(fault(Replaced(old, "_rebuild_from_type_v2", "_rebuild_from_type_v9"), "noted"),
              HasSubstr("torch._tensor._rebuild_from_type_v9"));
  EXPECT_EQ(fault(old, "last"), "no fault");
}

TEST(SavedFileTest, StreamsThatContradictThemselves) {
  const Bytes old = Golden("old.pt");
  const auto read = [](const Bytes& bytes) {
    MemorySource source(bytes);
    return ReadSavedFile(source);
  };
  EXPECT_THAT(read(Replaced(old, "M\xe9\x03.", "M\xea\x03.")), FailsWith("BAD_STREAM"));
  Bytes big = old;
  std::string text(AsText(big));
  const std::size_t little = text.find("little_endian");
  const std::size_t flag = text.find('\x88', little);
  big[flag] = std::byte{0x89};
  EXPECT_THAT(read(big), FailsWith("BIG_ENDIAN"));
  Bytes longer = old;
  longer.push_back(std::byte{0});
  EXPECT_THAT(read(longer), FailsWith("BAD_STREAM"));
  Bytes shorter = old;
  shorter.pop_back();
  EXPECT_THAT(read(shorter), FailsWith("BAD_STORAGE"));
}

TEST(SavedFileTest, DamageNeverCrashes) {
  for (const char* name : {"new.pt", "old.pt", "plain-2.6.0.pt", "odd-old.pt", "module-old.pt"}) {
    const Bytes bytes = Golden(name);
    for (std::size_t size = 0; size < bytes.size(); size += 7) {
      const Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_FALSE(OpenSaved(cut).ok()) << name << " cut to " << size;
    }
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      Bytes damaged = bytes;
      damaged[at] ^= static_cast<std::byte>(1U << at % 8);
      const Result<Assembled> opened = OpenSaved(damaged);
      if (opened.ok()) {
        static_cast<void>(Tensors(damaged, opened->catalog));
      } else {
        EXPECT_FALSE(opened.error().reason.empty());
      }
    }
  }
}

}  // namespace
}  // namespace reshard::torch
