#include "reshard/format/paddle/metadata.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "reshard/format/pickle/emitter.h"
#include "reshard/format/pickle/machine.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/source_files.h"
#include "tests/support/status_matchers.h"
#include "tests/support/synthetic_paddle.h"

namespace reshard::paddle {
namespace {

using ::reshard::testing::FailsWith;
using ::reshard::testing::SyntheticPaddle;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<Metadata> Decode(const Bytes& bytes) {
  MemorySource source(bytes);
  return DecodeMetadata(source);
}

Metadata Golden(const std::string& name) {
  Result<Metadata> decoded = Decode(testing::ReadSourceBytes("tests/golden/" + name));
  EXPECT_OK(decoded);
  return decoded.ok() ? std::move(*decoded) : Metadata{};
}

Metadata Synthetic(const std::string& name) {
  return Golden("paddle_synthetic/" + name + ".metadata");
}

/// A piece in words, for comparison.
std::string Show(const Metadata& metadata, const Piece& piece) {
  return fmt::format("{}+{}{} r{} {}", ToString(piece.global_offset), ToString(piece.local_shape),
                     piece.flat ? fmt::format(" [{},{})", piece.flat->begin, piece.flat->end) : "",
                     piece.replica, metadata.files[piece.file]);
}

/// All of it in words. The order of files is not part of it.
std::vector<std::string> Show(const Metadata& metadata) {
  std::vector<std::string> out;
  for (const MetadataTensor& tensor : metadata.tensors) {
    out.push_back(fmt::format("{} {} {}", tensor.key,
                              tensor.dtype ? Info(*tensor.dtype).name : "?",
                              tensor.shape ? ToString(*tensor.shape) : "?"));
    for (const Piece& piece : tensor.pieces) {
      out.push_back(Show(metadata, piece));
    }
  }
  for (const auto& [key, path] : metadata.flat_mapping) {
    out.push_back(fmt::format("{} = {}", key, ToString(path)));
  }
  return out;
}

TEST(PaddleMetadataTest, FieldSetsOfAllReleases) {
  EXPECT_THAT(Show(Synthetic("e0_lists")),
              ElementsAre("w ? ?", "(0, 0)+(2, 3) r0 0_0.distcp"));
  EXPECT_FALSE(Synthetic("e0_lists").has_flat_mapping);
  const Metadata e1 = Synthetic("e1");
  EXPECT_TRUE(e1.has_flat_mapping);
  EXPECT_EQ(e1.tensors.size(), 2U);
  EXPECT_FALSE(e1.tensors[0].dtype);
  const Metadata e2 = Synthetic("e2");
  EXPECT_TRUE(e2.tensors[0].dtype);
  EXPECT_FALSE(e2.tensors[0].shape);
  const Metadata flat = Synthetic("e5b_flat");
  ASSERT_EQ(flat.tensors.size(), 1U);
  EXPECT_TRUE(flat.tensors[0].shape);
  EXPECT_TRUE(flat.tensors[0].pieces.at(0).flat);
  const Metadata replicas = Synthetic("e6_replicas");
  ASSERT_EQ(replicas.tensors[0].pieces.size(), 2U);
  EXPECT_EQ(replicas.tensors[0].pieces[0].replica, 0U);
  EXPECT_EQ(replicas.tensors[0].pieces[1].replica, 1U);
}

TEST(PaddleMetadataTest, ProtocolsSayTheSame) {
  const std::vector<std::string> expected = Show(Synthetic("e6_p4"));
  EXPECT_GT(expected.size(), 3U);
  for (const char* name : {"e6_p2", "e6_p3", "e6_p5"}) {
    EXPECT_EQ(Show(Synthetic(name)), expected) << name;
  }
}

TEST(PaddleMetadataTest, ManyKeysAndBigNumbers) {
  const Metadata many = Synthetic("e6_2100keys");
  EXPECT_EQ(many.tensors.size(), 2100U);
  EXPECT_EQ(many.flat_mapping.size(), 2100U);
  EXPECT_EQ(many.files.size(), 4U);
  const Metadata big = Synthetic("e6_bigint");
  EXPECT_EQ(big.tensors[0].key.size(), 300U);
  ASSERT_EQ(big.tensors[0].pieces.size(), 1U);
  const Piece& piece = big.tensors[0].pieces[0];
  EXPECT_GT(piece.flat ? piece.flat->end : piece.global_offset[0], std::uint64_t{1} << 31);
}

TEST(PaddleMetadataTest, EncodingDecodesToTheSame) {
  for (const char* release : {"3.2.2", "3.3.1"}) {
    for (const char* name : {"single", "empty", "mesh2x2", "ranks2", "flattened", "flattened_3d"}) {
      const Metadata metadata = Golden(fmt::format("paddle/{}/{}/0.metadata", release, name));
      for (const Flavour flavour : {Flavour::kLegacy, Flavour::kFlex}) {
        const Bytes bytes = EncodeMetadata(metadata, flavour);
        ASSERT_OK_AND_ASSIGN(const Metadata again, Decode(bytes));
        EXPECT_EQ(Show(again), Show(metadata)) << release << " " << name;
        EXPECT_EQ(EncodeMetadata(again, flavour), EncodeMetadata(again, flavour));
        const bool legacy =
            AsText(bytes).find("paddle.distributed.checkpoint.metadata") != std::string_view::npos;
        EXPECT_EQ(legacy, flavour == Flavour::kLegacy);
      }
    }
  }
  for (const char* name : {"replicas"}) {
    const Metadata metadata = Golden(fmt::format("paddle/3.3.1/{}/0.metadata", name));
    ASSERT_OK_AND_ASSIGN(const Metadata again, Decode(EncodeMetadata(metadata, Flavour::kFlex)));
    EXPECT_EQ(Show(again), Show(metadata));
  }
}

TEST(PaddleMetadataTest, FlavoursOfReleases) {
  for (const char* release : {"2.6", "2.6.2", "3.0", "3.0.0", "3.1", "3.1.1"}) {
    EXPECT_EQ(FlavourOfRelease(release), Flavour::kLegacy) << release;
  }
  for (const char* release : {"3.2", "3.2.2", "3.3", "3.3.1", "3.4", "3.4.10"}) {
    EXPECT_EQ(FlavourOfRelease(release), Flavour::kFlex) << release;
  }
  for (const char* release : {"", "3", "3.", "2.5", "3.5", "3.1.", "3.1.x", "3.10", "3.1.1.1"}) {
    EXPECT_THAT(FlavourOfRelease(release), FailsWith(kBadRelease)) << release;
  }
}

// Metadata that is wrong in one way, written with the emitter.

class Writer {
 public:
  Writer() : emit(out) {}

  Bytes out;
  pickle::Emitter emit;

  template <typename Fields>
  void Object(std::string_view name, const Fields& fields) {
    emit.Global("paddle.distributed.checkpoint.metadata", name);
    emit.EmptyTuple();
    emit.NewObject();
    emit.EmptyDict();
    emit.Mark();
    fields();
    emit.SetItems();
    emit.Build();
  }

  void Numbers(std::string_view name, const std::vector<std::int64_t>& numbers) {
    emit.Text(name);
    emit.Mark();
    for (const std::int64_t number : numbers) {
      emit.Int(number);
    }
    emit.Tuple();
  }
};

struct Choices {
  std::vector<std::int64_t> offset = {0, 0};
  std::vector<std::int64_t> shape = {2, 3};
  std::string dtype = "float32";
  std::vector<std::int64_t> index_offset = {0, 0};
  std::string index_key = "w";
  bool storage = true;
  bool flattened_without_range = false;
  std::vector<std::int64_t> flattened_range = {};
};

Bytes Write(const Choices& choices) {
  Writer w;
  w.Object("Metadata", [&] {
    w.emit.Text("some_new_field");
    w.emit.Text("to be passed over");
    w.emit.Text("state_dict_metadata");
    w.emit.EmptyDict();
    w.emit.Text("w");
    w.emit.EmptyList();
    w.Object("LocalTensorMetadata", [&] {
      w.Numbers("global_offset", choices.offset);
      w.Numbers("local_shape", choices.shape);
      w.emit.Text("dtype");
      w.emit.Text(choices.dtype);
      w.emit.Text("invented");
      w.emit.EmptyTuple();
      if (choices.flattened_without_range || !choices.flattened_range.empty()) {
        w.emit.Text("is_flattened");
        w.emit.Bool(true);
      }
      if (!choices.flattened_range.empty()) {
        w.Numbers("flattened_range", choices.flattened_range);
      }
    });
    w.emit.Append();
    w.emit.SetItem();
    if (!choices.storage) {
      return;
    }
    w.emit.Text("storage_metadata");
    w.emit.EmptyDict();
    w.Object("LocalTensorIndex", [&] {
      w.emit.Text("tensor_key");
      w.emit.Text(choices.index_key);
      w.Numbers("global_offset", choices.index_offset);
    });
    w.emit.Text("../0_0.distcp");
    w.emit.SetItem();
  });
  w.emit.Stop();
  return std::move(w.out);
}

TEST(PaddleMetadataTest, UnknownFieldsArePassedOverAndNamesComeAsTheyAre) {
  ASSERT_OK_AND_ASSIGN(const Metadata metadata, Decode(Write({})));
  EXPECT_THAT(Show(metadata), ElementsAre("w float32 ?", "(0, 0)+(2, 3) r0 ../0_0.distcp"));
  EXPECT_FALSE(metadata.has_flat_mapping);
}

TEST(PaddleMetadataTest, FaultsAreNamed) {
  EXPECT_THAT(Decode(Write({.shape = {2}})), FailsWith(kBadMetadata));
  EXPECT_THAT(Decode(Write({.shape = {2, -3}})), FailsWith(kBadMetadata));
  EXPECT_THAT(Decode(Write({.offset = {INT64_MAX, 0}})), FailsWith(kBadMetadata));
  EXPECT_THAT(Decode(Write({.shape = {INT64_MAX, INT64_MAX}})), FailsWith("SHAPE_OVERFLOW"));
  EXPECT_THAT(Decode(Write({.offset = std::vector<std::int64_t>(65),
                            .shape = std::vector<std::int64_t>(65)})),
              FailsWith(kBadMetadata));
  EXPECT_THAT(Decode(Write({.index_offset = {0, 1}})), FailsWith(kBadMetadata));
  EXPECT_THAT(Decode(Write({.storage = false})), FailsWith(kBadMetadata));
  EXPECT_THAT(Decode(Write({.flattened_without_range = true})), FailsWith(kBadMetadata));
  EXPECT_THAT(Decode(Write({.flattened_range = {0, 7}})), FailsWith(kBadMetadata));
  EXPECT_THAT(Decode(Write({.flattened_range = {3, 2}})), FailsWith(kBadMetadata));
  const Result<Metadata> key = Decode(Write({.index_key = "v"}));
  ASSERT_THAT(key, FailsWith(kBadMetadata));
  EXPECT_THAT(key.error().message, HasSubstr("'v'"));
  const Result<Metadata> dtype = Decode(Write({.dtype = "float31"}));
  ASSERT_THAT(dtype, FailsWith(kBadMetadata));
  EXPECT_THAT(dtype.error().message, HasSubstr("tensor 'w'"));
  EXPECT_THAT(dtype.error().message, HasSubstr("byte "));
}

TEST(PaddleMetadataTest, OtherObjectsAreNoMetadata) {
  EXPECT_THAT(Decode(testing::ReadSourceBytes("tests/golden/paddle_synthetic/small_p4.distcp")),
              FailsWith(pickle::kGlobalNotAllowed));
  EXPECT_THAT(Decode(testing::ReadSourceBytes("tests/golden/v1/7.reshard")),
              FailsWith(pickle::kBadProtocol));
  Writer w;
  w.emit.None();
  w.emit.Stop();
  EXPECT_THAT(Decode(w.out), FailsWith(kBadMetadata));
}

TEST(PaddleMetadataTest, SharedPartsDoNotExpandWithoutEnd) {
  // One list of 10,000 shards under 10,000 keys: 300 KB that would become 10^8 pieces.
  Writer w;
  w.Object("Metadata", [&] {
    w.emit.Text("state_dict_metadata");
    w.emit.EmptyDict();
    w.emit.Mark();
    w.emit.Text("k");
    w.emit.EmptyList();
    const std::uint32_t list = w.emit.Memoize();
    w.emit.Mark();
    w.Object("LocalTensorMetadata", [&] {
      w.Numbers("global_offset", {0});
      w.Numbers("local_shape", {1});
    });
    const std::uint32_t shard = w.emit.Memoize();
    for (int i = 0; i < 10'000; ++i) {
      w.emit.Get(shard);
    }
    w.emit.Appends();
    for (int i = 0; i < 10'000; ++i) {
      w.emit.Text(std::to_string(i));
      w.emit.Get(list);
    }
    w.emit.SetItems();
    w.emit.Text("storage_metadata");
    w.emit.EmptyDict();
  });
  w.emit.Stop();
  const testing::AllocationMeter meter;
  EXPECT_THAT(Decode(w.out), FailsWith(pickle::kLimit));
  EXPECT_LT(meter.total(), std::size_t{400} << 20);
}

TEST(PaddleMetadataTest, EntriesInAnyOrderFindTheirPieces) {
  Metadata metadata;
  metadata.files = {"0_0.distcp"};
  MetadataTensor& tensor = metadata.tensors.emplace_back();
  tensor.key = "w";
  tensor.dtype = DType::kFloat32;
  tensor.shape = Shape{2000};
  for (std::uint64_t i = 0; i < 2000; ++i) {
    tensor.pieces.push_back({{i}, {1}, std::nullopt, 0, 0});
  }
  Bytes bytes = EncodeMetadata(metadata, Flavour::kFlex);
  // The same with the list of shards turned round, so that no entry comes when it is expected.
  Metadata turned = metadata;
  std::ranges::reverse(turned.tensors[0].pieces);
  const Bytes other = EncodeMetadata(turned, Flavour::kFlex);
  const std::string_view storage = "storage_metadata";
  const std::size_t at = AsText(bytes).find(storage);
  ASSERT_EQ(at, AsText(other).find(storage));
  std::copy(other.begin() + static_cast<std::ptrdiff_t>(at), other.end(),
            bytes.begin() + static_cast<std::ptrdiff_t>(at));
  ASSERT_OK_AND_ASSIGN(const Metadata decoded, Decode(bytes));
  EXPECT_EQ(Show(decoded), Show(turned));
}

TEST(PaddleMetadataTest, LargeJobs) {
  for (const std::uint64_t ranks : {1, 64}) {
    constexpr std::uint64_t kTensors = 10'000;
    const Bytes bytes = SyntheticPaddle::Metadata(kTensors, ranks);
    MemorySource source(bytes);
    const auto begin = std::chrono::steady_clock::now();
    const testing::AllocationMeter meter;
    ASSERT_OK_AND_ASSIGN(const Metadata metadata, DecodeMetadata(source));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    fmt::print("{} pieces, {} bytes: {:.3f} s, {} MiB asked for\n", kTensors * ranks, bytes.size(),
               seconds.count(), meter.total() >> 20);
    ASSERT_EQ(metadata.tensors.size(), kTensors);
    ASSERT_EQ(metadata.files.size(), ranks);
    const MetadataTensor& last = metadata.tensors.back();
    EXPECT_EQ(last.key, SyntheticPaddle::Key(kTensors - 1));
    ASSERT_EQ(last.pieces.size(), ranks);
    EXPECT_EQ(Show(metadata, last.pieces.back()),
              fmt::format("({}, 0)+(64, 1024) r0 {}_0.distcp", (ranks - 1) * 64, ranks - 1));
    // What is asked for in all, freed or not, is in proportion to the file.
    EXPECT_LT(meter.total(), 16 * bytes.size() + (64U << 20));
  }
}

}  // namespace
}  // namespace reshard::paddle
