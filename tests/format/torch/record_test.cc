// Records of DCP: what a hostile one gets (T1-T7), values, kinds of archives.

#include "reshard/format/torch/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "reshard/format/torch/format.h"
#include "reshard/format/torch/metadata.h"
#include "reshard/format/zip/archive.h"
#include "tests/support/status_matchers.h"

namespace reshard::torch {
namespace {

using ::reshard::testing::FailsWith;
using ::testing::HasSubstr;
using namespace std::string_literals;  // NOLINT: texts with NULs

void Put(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) {
    out += static_cast<char>(value >> (8 * i));
  }
}

/// A plain archive without checksums.
std::string Zip(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string out;
  std::string directory;
  for (const auto& [name, data] : members) {
    const std::uint64_t begin = out.size();
    const std::string path = "archive/" + name;
    std::string sizes;
    Put(sizes, 0, 4 + 4);  // time, date, checksum
    Put(sizes, data.size(), 4);
    Put(sizes, data.size(), 4);
    Put(sizes, path.size(), 2);
    out += "PK\x03\x04\0\0\0\x08\0\0"s + sizes + "\0\0"s + path + data;
    directory += "PK\x01\x02\0\0\0\0\0\x08\0\0"s + sizes + std::string(12, '\0');
    Put(directory, begin, 4);
    directory += path;
  }
  const std::uint64_t at = out.size();
  out += directory + "PK\x05\x06\0\0\0\0"s;
  Put(out, members.size(), 2);
  Put(out, members.size(), 2);
  Put(out, directory.size(), 4);
  Put(out, at, 4);
  return out + "\0\0"s;
}

std::string Text(std::string_view text) {
  std::string out = "X";
  Put(out, text.size(), 4);
  return out + std::string(text);
}

/// LONG1 of 8 bytes.
std::string Int(std::int64_t value) {
  std::string out = "\x8a\x08";
  Put(out, static_cast<std::uint64_t>(value), 8);
  return out;
}

std::string Ints(const std::vector<std::int64_t>& values) {
  std::string out = "(";
  for (const std::int64_t value : values) {
    out += Int(value);
  }
  return out + "t";
}

/// The pickle of a tensor of float32.
struct Pickle {
  std::int64_t numel = 4;
  std::int64_t offset = 0;
  std::vector<std::int64_t> size = {2, 2};
  std::vector<std::int64_t> stride = {2, 1};
  std::string function = "torch._utils\n_rebuild_tensor_v2";
  std::string device = "cpu";
  std::string marks = "";

  std::string Make() const {
    return "\x80\x02"
           "c"s +
           function + "\n((" + Text("storage") + "ctorch\nFloatStorage\n" + Text("0") +
           Text(device) + Int(numel) + "tQ" + Int(offset) + Ints(size) + Ints(stride) +
           "\x89"
           "ccollections\nOrderedDict\n)R" +
           marks + "tR.";
  }
};

Result<TensorRecord> ReadBytes(const std::string& bytes) {
  MemorySource source(AsBytes(bytes));
  return ReadTensorRecord(source, {0, bytes.size()});
}

Result<TensorRecord> Read(const Pickle& pickle, std::size_t storage = 16) {
  return ReadBytes(Zip({{"data.pkl", pickle.Make()}, {"data/0", std::string(storage, 'x')}}));
}

Result<Value> ReadValue(const std::string& pickle) {
  const std::string bytes = Zip({{"data.pkl", pickle}});
  MemorySource source(AsBytes(bytes));
  return ReadValueRecord(source, {0, bytes.size()});
}

TEST(TorchRecordTest, ReadsATensor) {
  ASSERT_OK_AND_ASSIGN(const TensorRecord record, Read({}));
  EXPECT_EQ(record.dtype, DType::kFloat32);
  EXPECT_EQ(record.shape, (Shape{2, 2}));
  EXPECT_EQ(record.stride, (Shape{2, 1}));
}

TEST(TorchHostileTest, T1AViewPastItsStorage) {
  EXPECT_THAT(Read({.numel = 1, .size = {1000000}, .stride = {1}}, 4),
              FailsWith(kViewOutOfStorage));
  EXPECT_THAT(Read({.offset = 1}), FailsWith(kViewOutOfStorage));
}

TEST(TorchHostileTest, T2NegativeAndWrappingNumbers) {
  EXPECT_THAT(Read({.offset = -1}), FailsWith(kBadTensor));
  EXPECT_THAT(Read({.stride = {2, -1}}), FailsWith(kBadTensor));
  EXPECT_THAT(Read({.offset = INT64_MAX}), FailsWith(kViewOutOfStorage));
  EXPECT_THAT(Read({.stride = {INT64_MAX, INT64_MAX}}), FailsWith(kViewOutOfStorage));
  EXPECT_THAT(Read({.size = {INT64_MAX, INT64_MAX}}), FailsWith("SHAPE_OVERFLOW"));
  EXPECT_THAT(Read({.numel = INT64_MAX}), FailsWith(kBadTensor));
}

TEST(TorchHostileTest, T3OneElementThatStandsForTerabytes) {
  ASSERT_OK_AND_ASSIGN(const TensorRecord record,
                       Read({.numel = 1, .size = {std::int64_t{1} << 40}, .stride = {0}}, 4));
  EXPECT_THAT(StridedToChunks(WholeBox(record.shape), record.stride, 0, record.dtype),
              FailsWith(pickle::kLimit));
}

TEST(TorchHostileTest, T4AStorageThatIsMissing) {
  EXPECT_THAT(ReadBytes(Zip({{"data.pkl", Pickle{}.Make()}})), FailsWith(kStorageMissing));
}

TEST(TorchHostileTest, T5AStorageOfAnotherSize) {
  EXPECT_THAT(Read({}, 15), FailsWith(kStorageSize));
  EXPECT_THAT(Read({}, 20), FailsWith(kStorageSize));
}

TEST(TorchHostileTest, T6DevicesArePassedOver) { EXPECT_OK(Read({.device = "cuda:0; rm -rf /"})); }

TEST(TorchHostileTest, T7OtherKindsOfTensors) {
  for (const std::string function :
       {"torch._utils\n_rebuild_qtensor", "torch._utils\n_rebuild_sparse_tensor",
        "torch._tensor\n_rebuild_from_type_v2", "os\nsystem",
        "torch._utils\n_rebuild_tensor_v2.__globals__"}) {
    EXPECT_THAT(Read({.function = function}), FailsWith(pickle::kGlobalNotAllowed)) << function;
  }
}

TEST(TorchHostileTest, LazyViewsAreRefused) {
  EXPECT_THAT(Read({.marks = "}" + Text("conj") + "\x88s"}), FailsWith(kLazyView));
  EXPECT_THAT(Read({.marks = "}" + Text("neg") + "\x88s"}), FailsWith(kLazyView));
  EXPECT_OK(Read({.marks = "}" + Text("conj") + "\x89s"}));
}

TEST(ZipHostileTest, Z13TorchScript) {
  const std::string pickle = Pickle{}.Make();
  const std::string data(16, 'x');
  EXPECT_THAT(ReadBytes(Zip({{"data.pkl", pickle}, {"constants.pkl", "x"}, {"data/0", data}})),
              FailsWith(kRecordKind));
  EXPECT_THAT(ReadBytes(Zip({{"data.pkl", pickle}, {"code/x.py", "x"}, {"data/0", data}})),
              FailsWith(kRecordKind));
}

TEST(ZipHostileTest, Z14ByteOrder) {
  const std::string pickle = Pickle{}.Make();
  const std::string data(16, 'x');
  EXPECT_THAT(ReadBytes(Zip({{"data.pkl", pickle}, {"byteorder", "big"}, {"data/0", data}})),
              FailsWith(kByteOrder));
  EXPECT_OK(ReadBytes(Zip({{"data.pkl", pickle}, {"byteorder", "little"}, {"data/0", data}})));
}

TEST(TorchValueTest, PlainValuesAreRead) {
  ASSERT_OK_AND_ASSIGN(const Value value, ReadValue("\x80\x02}" + Text("a") + "K\x05N\x86s."));
  EXPECT_EQ(value, Value(Value::Map{{MapKey("a"), Value(Value::List{Value(5), Value()})}}));
}

TEST(TorchValueTest, OtherClassesAreKeptAndNotRun) {
  ASSERT_OK_AND_ASSIGN(const Value value, ReadValue("\x80\x02"
                                                    "cos\nsystem\n" +
                                                    Text("ls") + "\x85R."));
  ASSERT_NE(value.get_if<Opaque>(), nullptr);
  EXPECT_EQ(value.get_if<Opaque>()->type, "os.system");
  EXPECT_EQ(AsText(value.get_if<Opaque>()->bytes).substr(0, 2), "PK");
}

TEST(TorchValueTest, WhatAValueCannotHoldIsKept) {
  const std::string big = "\x80\x02\x8a\x09" + std::string(8, '\xff') + "\x01.";
  ASSERT_OK_AND_ASSIGN(const Value number, ReadValue(big));
  EXPECT_EQ(number.get_if<Opaque>()->type, "int");
  ASSERT_OK_AND_ASSIGN(const Value cycle, ReadValue("\x80\x02]q\0h\0a."s));
  EXPECT_NE(cycle.get_if<Opaque>(), nullptr);
}

TEST(TorchHostileTest, DamagedPicklesOfValuesAreErrors) {
  EXPECT_THAT(ReadValue("\x80\x02R."), FailsWith(pickle::kStackUnderflow));
  EXPECT_THAT(ReadValue("\x80\x02N"), FailsWith(pickle::kNoStop));
  EXPECT_THAT(ReadValue("\x80\x02N.N"), FailsWith(pickle::kTrailing));
  EXPECT_THAT(ReadValue("\x80\x02)K\x01K\x02s."), FailsWith(pickle::kBadTarget));
  EXPECT_THAT(ReadBytes(Zip({{"data/0", "x"}})), FailsWith(kBadRecord));
}

TEST(StridedTest, DensePermutationsAreOnePart) {
  const Box box{{1, 0, 0, 0}, {2, 3, 4, 5}};
  const std::uint64_t channels_last[] = {60, 1, 15, 3};
  ASSERT_OK_AND_ASSIGN(const std::vector<DensePart> parts,
                       StridedToChunks(box, channels_last, 100, DType::kFloat32));
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].box, box);
  EXPECT_EQ(parts[0].byte_offset, 100U);
  EXPECT_EQ(AxesInFile(parts[0].order, 4), (std::vector<std::size_t>{0, 2, 3, 1}));
}

TEST(StridedTest, GapsAndRepetitionsAreCut) {
  const std::uint64_t sliced[] = {10, 1};
  ASSERT_OK_AND_ASSIGN(const std::vector<DensePart> rows,
                       StridedToChunks(Box{{4, 0}, {2, 3}}, sliced, 8, DType::kFloat32));
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[1].box, (Box{{5, 0}, {1, 3}}));
  EXPECT_EQ(rows[1].byte_offset, 48U);
  const std::uint64_t expanded[] = {0, 1};
  ASSERT_OK_AND_ASSIGN(const std::vector<DensePart> same,
                       StridedToChunks(Box{{0, 0}, {2, 3}}, expanded, 8, DType::kFloat32));
  ASSERT_EQ(same.size(), 2U);
  EXPECT_EQ(same[0].byte_offset, same[1].byte_offset);
}

}  // namespace
}  // namespace reshard::torch
