// torch.save files with values that cannot be read or are known by their type alone: what a load, a
// conversion, a comparison and a save do with them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "reshard/catalog/cbor.h"
#include "reshard/engine/checkpoint.h"
#include "reshard/engine/convert.h"
#include "reshard/engine/diff.h"
#include "reshard/engine/load.h"
#include "reshard/engine/save.h"
#include "reshard/engine/verify.h"
#include "tests/support/source_files.h"
#include "tests/support/states.h"

namespace reshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

/// A folder with one golden file.
std::unique_ptr<Storage> With(const std::string& golden) {
  std::unique_ptr<Storage> storage = NewMemoryStorage("saved");
  const Bytes bytes = ReadSourceBytes("tests/golden/torch_saved/" + golden);
  auto object = storage->Create("f.pt", {});
  EXPECT_OK(object);
  EXPECT_OK((*object)->WriteAt(0, bytes));
  EXPECT_OK((*object)->Finish(bytes.size()));
  return storage;
}

Result<ConvertReport> ConvertInto(Storage& from, Storage& to, const ConvertOptions& options) {
  RESHARD_TRY_ASSIGN(const OpenedCheckpoint opened, ReadCheckpoint(from));
  return Convert({opened.catalog, from, opened.faults}, to, options);
}

Result<DiffReport> DiffOf(Storage& a, Storage& b) {
  RESHARD_TRY_ASSIGN(const OpenedCheckpoint x, ReadCheckpoint(a));
  RESHARD_TRY_ASSIGN(const OpenedCheckpoint y, ReadCheckpoint(b));
  return Diff({x.catalog, a, x.faults}, {y.catalog, b, y.faults});
}

std::vector<std::string> KeysOf(const std::vector<DiffFault>& faults) {
  std::vector<std::string> out;
  for (const DiffFault& fault : faults) {
    out.push_back(fault.key);
  }
  return out;
}

TEST(ForeignSavedTest, ATensorOfAnotherKindFailsWhenItIsLoaded) {
  const std::unique_ptr<Storage> storage = With("odd.pt");
  std::vector<std::int64_t> last(3);
  StateDict state;
  state["last"] = Tensor::Whole(DenseView(last.data(), DType::kInt64, {3}));
  ASSERT_OK(Load(state, *storage, *SingleProcessGroup()));
  EXPECT_THAT(last, ElementsAre(0, 1, 2));
  std::vector<float> quantized(4);
  state["quantized"] = Tensor::Whole(DenseView(quantized.data(), DType::kFloat32, {4}));
  const auto loaded = Load(state, *storage, *SingleProcessGroup());
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().reason, "UNSUPPORTED_TENSOR");
  EXPECT_EQ(loaded.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(loaded.error().message, HasSubstr("a quantized tensor"));
}

TEST(ForeignSavedTest, TensorsOfOtherKindsAreRefusedOrLeftOutOfAConversion) {
  const std::unique_ptr<Storage> from = With("odd.pt");
  const std::unique_ptr<Storage> to = NewMemoryStorage("to");
  ConvertOptions options;
  for (const bool dry : {true, false}) {
    options.dry_run = dry;
    const auto refused = ConvertInto(*from, *to, options);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().reason, "UNSUPPORTED_SOURCE");
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(refused.error().message, HasSubstr("8 of the keys"));
    EXPECT_THAT(refused.error().message, HasSubstr("csr: "));
    EXPECT_THAT(Names(*to), IsEmpty());
  }
  options.skip_unsupported = true;
  for (const bool dry : {true, false}) {
    options.dry_run = dry;
    const auto report = ConvertInto(*from, *to, options);
    ASSERT_OK(report);
    EXPECT_THAT(report->skipped, ElementsAre(StartsWith("csr: "), StartsWith("f4: "),
                                             StartsWith("meta: "), StartsWith("neg: "),
                                             StartsWith("nested: "), StartsWith("quantized32: "),
                                             StartsWith("quantized: "), StartsWith("sparse: ")));
    EXPECT_EQ(report->tensors, 5U);
    EXPECT_EQ(report->objects, 4U);
  }
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint made, ReadCheckpoint(*to));
  const auto [first, end] = made.catalog.FindObjects("big");
  ASSERT_LT(first, end);
  ASSERT_OK_AND_ASSIGN(const Value big, DecodeObject(made.catalog.object_value(first)));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint source, ReadCheckpoint(*from));
  ASSERT_OK_AND_ASSIGN(
      const Value there,
      DecodeObject(source.catalog.object_value(source.catalog.FindObjects("big").first)));
  EXPECT_EQ(big, there) << "an integer of 71 bits is kept";
}

TEST(ForeignSavedTest, WhereNothingIsLeftNothingIsWritten) {
  const std::unique_ptr<Storage> from = With("odd.pt");
  const std::unique_ptr<Storage> to = NewMemoryStorage("to");
  ConvertOptions options;
  options.include = {"quantized*"};
  options.skip_unsupported = true;
  const auto refused = ConvertInto(*from, *to, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().reason, "UNSUPPORTED_SOURCE");
  EXPECT_THAT(Names(*to), IsEmpty());
}

TEST(ForeignSavedTest, OpaqueValuesWithoutContentAreNotSaidToBeEqual) {
  const std::unique_ptr<Storage> storage = With("new.pt");
  ASSERT_OK_AND_ASSIGN(const DiffReport report, DiffOf(*storage, *storage));
  EXPECT_FALSE(report.equal());
  EXPECT_THAT(report.differences, IsEmpty());
  ASSERT_THAT(KeysOf(report.faults), ElementsAre("hyper")) << "a dtype is its name";
  EXPECT_EQ(report.faults[0].error.reason, "OPAQUE_CONTENT");
  EXPECT_THAT(report.faults[0].error.message, HasSubstr("argparse.Namespace"));
}

TEST(ForeignSavedTest, OpaqueValuesWithoutContentAreNotConverted) {
  const std::unique_ptr<Storage> from = With("new.pt");
  const std::unique_ptr<Storage> to = NewMemoryStorage("to");
  ConvertOptions options;
  for (const bool dry : {true, false}) {
    options.dry_run = dry;
    const auto refused = ConvertInto(*from, *to, options);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().reason, "UNSUPPORTED_BY_FORMAT");
    EXPECT_THAT(refused.error().message,
                HasSubstr("1 of the keys cannot be saved in the format native: hyper: an object of "
                          "type argparse.Namespace"));
    EXPECT_THAT(Names(*to), IsEmpty());
  }
  options.skip_unsupported = true;
  ASSERT_OK_AND_ASSIGN(const ConvertReport report, ConvertInto(*from, *to, options));
  EXPECT_THAT(report.skipped, ElementsAre(StartsWith("hyper: ")));
  ASSERT_OK_AND_ASSIGN(const DiffReport diff, DiffOf(*from, *to));
  ASSERT_THAT(diff.differences, SizeIs(1));
  EXPECT_EQ(diff.differences[0].key, "hyper");
  EXPECT_EQ(diff.differences[0].kind, DiffKind::kOnlyInA);
  EXPECT_THAT(diff.faults, IsEmpty());
}

TEST(ForeignSavedTest, ASaveRefusesAnOpaqueValueInsideOfAnother) {
  const std::unique_ptr<Storage> storage = NewMemoryStorage("to");
  StateDict state;
  state["a"] = Value(1);
  state["deep"] = Value::List{Value(2), Value(Value::List{Value(Opaque{"m.C", {}})})};
  const auto refused = Save(state, *storage, *SingleProcessGroup());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().reason, "UNSUPPORTED_BY_FORMAT");
  EXPECT_THAT(refused.error().message, HasSubstr("deep: an object of type m.C"));
  EXPECT_THAT(Names(*storage), IsEmpty());
  SaveOptions options;
  options.skip_unsupported = true;
  ASSERT_OK_AND_ASSIGN(const SaveResult saved,
                       Save(state, *storage, *SingleProcessGroup(), options));
  EXPECT_THAT(saved.skipped, ElementsAre(StartsWith("deep: ")));
}

TEST(ForeignSavedTest, OpaqueValuesWithContentAreCompared) {
  const auto with = [](std::string_view content) {
    const ByteSpan bytes = AsBytes(content);
    StateDict state;
    state["list"] = Value::List{Value(1), Value(Opaque{"m.C", Bytes(bytes.begin(), bytes.end())})};
    std::unique_ptr<Storage> storage = NewMemoryStorage("native");
    EXPECT_OK(Save(state, *storage, *SingleProcessGroup()));
    return storage;
  };
  ASSERT_OK_AND_ASSIGN(const DiffReport same, DiffOf(*with("x"), *with("x")));
  EXPECT_TRUE(same.equal());
  ASSERT_OK_AND_ASSIGN(const DiffReport other, DiffOf(*with("x"), *with("y")));
  EXPECT_THAT(other.faults, IsEmpty());
  ASSERT_THAT(other.differences, SizeIs(1));
  EXPECT_EQ(other.differences[0].kind, DiffKind::kObject);
}

}  // namespace
}  // namespace reshard::testing
