// Whatever a metadata file holds, reading it takes at most 8 times its size and 64 MiB. The inputs
// are so large that the constant part hides no wrong factor.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "reshard/format/paddle/metadata.h"
#include "reshard/format/safetensors/data_file.h"
#include "reshard/format/safetensors/header.h"
#include "reshard/format/torch/assemble_internal.h"
#include "reshard/format/torch/format.h"
#include "reshard/format/torch/metadata.h"
#include "tests/support/peak_memory.h"
#include "tests/support/sanitizers.h"
#include "tests/support/synthetic_paddle.h"

namespace reshard::testing {
namespace {

using Make = std::function<Bytes()>;
using Read = std::function<std::string(ByteSource&)>;

constexpr std::uint64_t kHostile = 24 << 20;

std::string ReasonOf(const Error& error) { return error.reason; }

std::string ReadPaddle(ByteSource& source) {
  const auto metadata = paddle::DecodeMetadata(source);
  std::size_t pieces = 0;
  for (std::size_t i = 0; metadata.ok() && i < metadata->tensors.size(); ++i) {
    pieces += metadata->tensors[i].pieces.size();
  }
  return metadata.ok() ? fmt::format("{} pieces", pieces) : ReasonOf(metadata.error());
}

std::string ReadTorch(ByteSource& source) {
  const auto metadata = torch::DecodeMetadata(source);
  std::size_t chunks = 0;
  for (std::size_t i = 0; metadata.ok() && i < metadata->tensors.size(); ++i) {
    chunks += metadata->tensors[i].chunks.size();
  }
  return metadata.ok() ? fmt::format("{} chunks", chunks) : ReasonOf(metadata.error());
}

std::string ReadSafetensors(ByteSource& source) {
  const auto file = safetensors::ReadDataFile(source);
  return file.ok() ? fmt::format("{} tensors", file->tensors.size())
                   : fmt::format("{}, a message of {} bytes", ReasonOf(file.error()),
                                 file.error().message.size());
}

void CheckPeak(const Make& make, const Read& read, const std::string& outcome) {
  if (kSanitized) {
    GTEST_SKIP() << "resident memory is not measured under a sanitizer";
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::optional<PeakReport> report = MeasurePeak<Bytes>(make, [&read](const Bytes& bytes) {
    MemorySource source(bytes);
    return read(source);
  });
  ASSERT_TRUE(report) << "the child ended early, or the kernel does not reset peaks";
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  fmt::print(
      "{:>6.1f} MB in, peak {:>6.1f} MiB, {:>5.2f} for each byte beyond 64 MiB, {:.2f} s: {}\n",
      static_cast<double>(report->input_bytes) / 1e6,
      static_cast<double>(report->peak_bytes) / (1 << 20),
      (static_cast<double>(report->peak_bytes) - (64 << 20)) /
          static_cast<double>(report->input_bytes),
      seconds.count(), report->outcome);
  EXPECT_EQ(std::string(report->outcome), outcome);
  EXPECT_LE(report->peak_bytes, 8 * report->input_bytes + (64 << 20));
}

void Append(Bytes& out, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

/// head, then `part` until there are `size` bytes, then tail.
Make Repeated(const std::string& head, const std::string& part, const std::string& tail,
              std::uint64_t size = kHostile) {
  return [=] {
    Bytes out;
    out.reserve(size + head.size() + part.size() + tail.size());
    Append(out, head);
    while (out.size() < size) {
      Append(out, part);
    }
    Append(out, tail);
    return out;
  };
}

std::string Times(std::string_view part, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) {
    out += part;
  }
  return out;
}

using namespace std::string_literals;  // NOLINT: opcodes hold NULs

struct Hostile {
  std::string name;
  Make make;
  std::string outcome;
};

void PrintTo(const Hostile& hostile, std::ostream* out) { *out << hostile.name; }

std::vector<Hostile> HostilePickles() {
  const std::string list = "\x80\x04]("s;
  const std::string end = "e."s;
  return {
      {"None", Repeated(list, "N", end), "BAD_METADATA"},
      {"Marks", Repeated("\x80\x02"s, "(", "."), "STACK_UNDERFLOW"},
      {"Copies", Repeated("\x80\x02N"s, "2", "."), "TRAILING_DATA"},
      {"Texts",
       Repeated(list,
                "\x8c\x01"
                "a"s,
                end),
       "LIMIT"},
      {"LargeInts", Repeated(list, "J\xff\xff\xff\x7f"s, end), "BAD_METADATA"},
      {"Lists", Repeated(list, "]", end), "LIMIT"},
      {"Dicts", Repeated(list, "}", end), "LIMIT"},
      {"Tuples", Repeated(list, "N\x85"s, end), "LIMIT"},
      {"Memos", Repeated(list, "]\x94"s, end), "LIMIT"},
      {"Bytes", Repeated(list, "C\0"s, end), "LIMIT"},
      // Keys are compared after all opcodes: the same one again and again costs no node.
      {"EqualKeys", Repeated("\x80\x02}("s, "NN", "u."), "DUPLICATE_KEY"},
      {"EqualKeysInBatches", Repeated("\x80\x02}"s, "(" + Times("NN", 500) + "u", "."),
       "DUPLICATE_KEY"},
      {"EqualKeysAndLists",
       Repeated("\x80\x02}"s, "(" + Times("NN", 500) + Times("N]", 100) + "u", "."), "LIMIT"},
      // What was popped was resident all the same. As many tuples follow as would fit without it.
      {"PoppedThenTuples",
       [] {
         const std::uint64_t size = 40 << 20;
         Bytes out = Repeated("\x80\x04]("s, "(", "", size * 9 / 40)();
         Append(out, Times("0", out.size() - 4));
         Append(out, Times("N\x85"s, (size - out.size()) / 2));
         Append(out, "e.");
         return out;
       },
       "LIMIT"},
      // Two lists that grow in turns are joined at the end.
      {"InTurns",
       Repeated("\x80\x02]q\0]q\1"s,
                "h\0("s + Times("N", 2000) + "e0h\1("s + Times("N", 2000) + "e0", "\x86."),
       "BAD_METADATA"},
      {"SparseMemo",
       [] {
         Bytes out;
         Append(out, "\x80\x02N"s);
         for (std::uint32_t i = 0; out.size() < kHostile; ++i) {
           Append(out, "r");
           AppendLittle(out, 5 + 7 * i);
         }
         Append(out, ".");
         return out;
       },
       "LIMIT"},
  };
}

/// DCP's metadata of `tensors` x `ranks` chunks.
Bytes TorchMetadata(std::uint64_t tensors, std::uint64_t ranks) {
  torch::Metadata metadata;
  for (std::uint64_t r = 0; r < ranks; ++r) {
    metadata.files.push_back(fmt::format("__{}_0.distcp", r));
  }
  for (std::uint64_t t = 0; t < tensors; ++t) {
    torch::MetadataTensor tensor;
    tensor.key = SyntheticPaddle::Key(t);
    tensor.path = Path{PathPart(tensor.key)};
    tensor.dtype = DType::kBfloat16;
    tensor.shape = {64 * ranks, 1024};
    for (std::uint64_t r = 0; r < ranks; ++r) {
      tensor.chunks.push_back({{{64 * r, 0}, {64, 1024}},
                               {static_cast<std::uint32_t>(r), {t * 140'000, 139'000}, false}});
    }
    metadata.tensors.push_back(std::move(tensor));
  }
  return torch::EncodeMetadata(metadata);
}

class HostilePickleTest : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostilePickleTest, PaddleMetadataStaysWithinTheBound) {
  CheckPeak(GetParam().make, ReadPaddle, GetParam().outcome);
}

TEST_P(HostilePickleTest, TorchMetadataStaysWithinTheBound) {
  CheckPeak(GetParam().make, ReadTorch, GetParam().outcome);
}

INSTANTIATE_TEST_SUITE_P(All, HostilePickleTest, ::testing::ValuesIn(HostilePickles()),
                         [](const auto& test) { return test.param.name; });

TEST(MetadataMemoryTest, PaddlesOf640000PiecesStaysWithinTheBound) {
  CheckPeak([] { return SyntheticPaddle::Metadata(10'000, 64); }, ReadPaddle, "640000 pieces");
}

TEST(MetadataMemoryTest, TorchsOf640000ChunksStaysWithinTheBound) {
  CheckPeak([] { return TorchMetadata(10'000, 64); }, ReadTorch, "640000 chunks");
}

/// The whole way to the catalog, with what would be found in the data files.
std::string OpenTorch(ByteSource& source) {
  const ForeignRef ref{"torch", ".metadata", 0};
  ByteSource* const sources[] = {&source};
  const auto metadata = torch::DcpFormat().ReadMetadata(ref, sources);
  if (!metadata.ok()) {
    return ReasonOf(metadata.error());
  }
  std::vector<ExaminedFile> files;
  for (std::size_t i = 0; i < (*metadata)->files().size(); ++i) {
    const auto wanted = torch::DecodeRequest((*metadata)->Request(i));
    torch::FoundFile found;
    for (const torch::WantedRecord& record : *wanted) {
      torch::TensorRecord tensor;
      tensor.dtype = DType::kBfloat16;
      tensor.shape = {64, 1024};
      tensor.stride = {1024, 1};
      tensor.byte_offset = record.bytes.offset + 1024;
      found.records.emplace_back(std::move(tensor));
    }
    files.push_back({std::uint64_t{1} << 40, 0, torch::EncodeFound(found)});
  }
  const auto opened = torch::DcpFormat().Assemble(ref, **metadata, files);
  return opened.ok() ? fmt::format("{} tensors, {} faults", opened->catalog.num_tensors(),
                                   opened->faults.size())
                     : ReasonOf(opened.error());
}

TEST(MetadataMemoryTest, OpeningTorchsOf640000ChunksStaysWithinTheBound) {
  CheckPeak([] { return TorchMetadata(10'000, 64); }, OpenTorch, "10000 tensors, 0 faults");
}

TEST(MetadataMemoryTest, TorchsOf160000TensorsStaysWithinTheBound) {
  CheckPeak([] { return TorchMetadata(160'000, 1); }, ReadTorch, "160000 chunks");
}

// A value that the pickle names again costs two bytes there, and a copy here.

/// Metadata of one tensor whose list names one shard again and again. A field that is not read has
/// nearly as many tuples as the pickle may have, so that both together are too much.
Bytes SharedShards(bool paddle) {
  Bytes out;
  pickle::Emitter emit(out);
  const auto object = [&](std::string_view module, std::string_view name) {
    emit.Global(module, name);
    emit.EmptyTuple();
    emit.NewObject();
    emit.EmptyDict();
    emit.Mark();
  };
  const auto end_object = [&] {
    emit.SetItems();
    emit.Build();
  };
  const auto pair = [&](std::string_view name) {
    emit.Text(name);
    emit.EmptyTuple();
  };
  const std::string_view module = paddle ? "paddle.distributed.flex_checkpoint.dcp.metadata"
                                         : "torch.distributed.checkpoint.metadata";
  object(module, "Metadata");
  emit.Text("state_dict_metadata");
  emit.EmptyDict();
  emit.Mark();
  emit.Text("w");
  if (!paddle) {
    object(module, "TensorStorageMetadata");
    emit.Text("properties");
    object(module, "TensorProperties");
    emit.Text("dtype");
    emit.Global("torch", "uint8");
    end_object();
    pair("size");
    emit.Text("chunks");
  }
  emit.EmptyList();
  emit.Mark();
  object(module, paddle ? "LocalTensorMetadata" : "ChunkStorageMetadata");
  pair(paddle ? "global_offset" : "offsets");
  pair(paddle ? "local_shape" : "sizes");
  end_object();
  const std::uint32_t shard = emit.Memoize();
  for (int i = 0; i < 2'100'000; ++i) {
    emit.Get(shard);
  }
  emit.Appends();
  if (!paddle) {
    end_object();
  }
  emit.SetItems();
  emit.Text("storage_metadata");
  emit.EmptyDict();
  constexpr std::uint64_t kTuples = 11 << 20;
  while (out.size() < kHostile - kTuples) {
    Append(out, "N0");
  }
  emit.Text("not read");
  emit.EmptyList();
  while (out.size() < kHostile) {
    Append(out, "(" + Times("N\x85"s, 1000) + "e");
  }
  end_object();
  emit.Stop();
  return out;
}

TEST(MetadataMemoryTest, SharedShardsOfPaddleStayWithinTheBound) {
  CheckPeak([] { return SharedShards(true); }, ReadPaddle, "LIMIT");
}

TEST(MetadataMemoryTest, SharedChunksOfTorchStayWithinTheBound) {
  CheckPeak([] { return SharedShards(false); }, ReadTorch, "LIMIT");
}

// Safetensors: the longest header that the format allows.

void SetLength(Bytes& out) {
  Bytes size;
  AppendLittle(size, std::uint64_t{out.size() - 8});
  std::copy(size.begin(), size.end(), out.begin());
}

Make Header(const std::string& head, const std::string& part, const std::string& tail) {
  return [=] {
    Bytes out = Repeated(Times("\0"s, 8) + head, part, "", 100'000'000 - part.size())();
    Append(out, tail);
    SetLength(out);
    return out;
  };
}

Bytes ManyTensors(std::uint64_t header_bytes) {
  Bytes out(8);
  Append(out, "{");
  for (std::uint64_t i = 0; out.size() + 100 < header_bytes; ++i) {
    Append(out, fmt::format(R"({}"model.layers.{:07}.w":{{"dtype":"U8","shape":[1,0],)"
                            R"("data_offsets":[0,0]}})",
                            i == 0 ? "" : ",", i));
  }
  Append(out, "}");
  SetLength(out);
  return out;
}

constexpr std::uint64_t kLongHeader = 30'000'000;

/// As many offsets of tensors as fit, of tensors that are not there.
Bytes ManyPlaces() {
  Bytes out(8);
  Append(out, R"({"__metadata__":{"DCP_SHARDING_INFO":"{)");
  for (std::uint64_t i = 0; out.size() + 100 < kLongHeader; ++i) {
    Append(out, fmt::format(R"({}\"{:x}\":{{\"saved_offsets\":[]}})", i == 0 ? "" : ",", i));
  }
  Append(out, R"(}"}})");
  SetLength(out);
  return out;
}

/// Tensors of as many axes as there may be.
Bytes LongShapes() {
  Bytes out(8);
  Append(out, "{");
  for (std::uint64_t i = 0; out.size() + 300 < kLongHeader; ++i) {
    Append(out, fmt::format(R"({}"{:x}":{{"dtype":"U8","shape":[{}0],"data_offsets":[0,0]}})",
                            i == 0 ? "" : ",", i, Times("0,", kMaxAxes - 1)));
  }
  Append(out, "}");
  SetLength(out);
  return out;
}

class HostileHeaderTest : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileHeaderTest, StaysWithinTheBound) {
  CheckPeak(GetParam().make, ReadSafetensors, GetParam().outcome);
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileHeaderTest,
    ::testing::Values(
        Hostile{"ManyTensors", [] { return ManyTensors(100'000'000); }, "1333332 tensors"},
        Hostile{"OneText", Header(R"({"__metadata__":{"a":")", Times("x", 1000), R"("}})"),
                "0 tensors"},
        Hostile{"OneOpenText", Header(R"({"__metadata__":{"a":")", Times("x", 1000), ""),
                "BAD_STRING, a message of 44 bytes"},
        Hostile{"OneName", Header(R"({")", Times("x", 1000), R"(":{}})"),
                "BAD_STRING, a message of 78 bytes"},
        Hostile{"OneOpenName", Header(R"({")", Times("x", 1000), ""),
                "BAD_STRING, a message of 44 bytes"},
        Hostile{"OneDtype", Header(R"({"a":{"dtype":")", Times("x", 1000), R"("}})"),
                "BAD_HEADER, a message of 38 bytes"},
        Hostile{"OneNumber", Header(R"({"a":{"shape":[)", Times("1", 1000), "]}}"),
                "BAD_INTEGER, a message of 54 bytes"},
        Hostile{"OneFraction", Header(R"({"a":{"shape":[0.)", Times("1", 1000), "]}}"),
                "BAD_INTEGER, a message of 81 bytes"},
        Hostile{"Lists", Header("", "[", ""), "DEPTH, a message of 44 bytes"},
        Hostile{"Objects", Header("", R"({"a":)", ""), "BAD_HEADER, a message of 58 bytes"},
        Hostile{"Blanks", Header("{", Times(" ", 1000), "}"), "0 tensors"},
        Hostile{"ManyPlaces", [] { return ManyPlaces(); }, "0 tensors"},
        Hostile{"LongShapes", [] { return LongShapes(); }, "165218 tensors"},
        Hostile{"ManyNames", Header(R"({"__metadata__":{"":"")", R"(,"a":"")", "}}"),
                "LIMIT, a message of 59 bytes"}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace reshard::testing
