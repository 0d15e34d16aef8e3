// DCP's metadata: what a hostile one gets.

#include "reshard/format/torch/metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "reshard/format/torch/format.h"
#include "reshard/format/torch/record.h"
#include "reshard/format/zip/archive.h"
#include "tests/support/source_files.h"
#include "tests/support/status_matchers.h"

namespace reshard::torch {
namespace {

using ::reshard::testing::FailsWith;
using ::testing::HasSubstr;

constexpr std::string_view kMinimal = "tests/golden/torch/handmade_minimal_zip/.metadata";

std::string Minimal() { return testing::ReadSourceText(std::string(kMinimal)); }

/// Replaces the first (or `nth`) occurrence; both texts have one size, as offsets do not matter.
std::string With(std::string text, std::string_view from, std::string_view to, int nth = 0) {
  std::size_t at = text.find(from);
  for (; nth > 0; --nth) {
    at = text.find(from, at + 1);
  }
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

Result<Metadata> Decode(const std::string& text) {
  MemorySource source(AsBytes(text));
  return DecodeMetadata(source);
}

Status ReadAs(const std::string& text) {
  MemorySource source(AsBytes(text));
  ByteSource* sources[] = {&source};
  const auto read = DcpFormat().ReadMetadata({"torch", ".metadata", 0}, sources);
  return read.ok() ? OkStatus() : Status(tl::unexpected<Error>(read.error()));
}

TEST(TorchMetadataTest, ReadsTheHandmadeOne) {
  ASSERT_OK_AND_ASSIGN(const Metadata metadata, Decode(Minimal()));
  EXPECT_EQ(metadata.files, std::vector<std::string>{"part.bin"});
  ASSERT_EQ(metadata.tensors.size(), 1U);
  EXPECT_EQ(metadata.tensors[0].key, "w");
  EXPECT_EQ(metadata.tensors[0].shape, (Shape{6, 2}));
  ASSERT_EQ(metadata.tensors[0].chunks.size(), 2U);
  EXPECT_EQ(metadata.tensors[0].chunks[1].box, (Box{{3, 0}, {3, 2}}));
  EXPECT_GT(metadata.tensors[0].chunks[1].place.bytes.offset, 0U);
  ASSERT_EQ(metadata.bytes.size(), 1U);
  EXPECT_EQ(metadata.bytes[0].path, Path{PathPart("step")});
}

TEST(TorchMetadataTest, ReadsTheModulesOf113) {
  std::string text = Minimal();
  for (std::size_t at = 0; (at = text.find("torch.distributed.checkpoint.", at)) != text.npos;) {
    text.replace(at, 29, "torch.distributed._shard.checkpoint.");
    at += 30;
  }
  EXPECT_OK(Decode(text));
}

TEST(TorchMetadataHostileTest, P13OtherCallablesAreNamedAndNotRun) {
  const Result<Metadata> read =
      Decode(With(Minimal(), "torch.serialization\n_get_layout", "posix\nsystem"));
  ASSERT_THAT(read, FailsWith(pickle::kGlobalNotAllowed));
  EXPECT_THAT(read.error().message, HasSubstr("posix.system"));
  EXPECT_THAT(ReadAs(With(Minimal(), "torch.serialization\n_get_layout", "posix\nsystem")),
              FailsWith(pickle::kGlobalNotAllowed));
}

TEST(TorchMetadataHostileTest, ChunksOutsideTheShape) {
  EXPECT_THAT(Decode(With(Minimal(), "J\x06", "J\x05")), FailsWith(kBadMetadata));
}

TEST(TorchMetadataHostileTest, ChunksWithoutARecord) {
  const std::string name = "X\x01" + std::string(3, '\0') + "wX";  // of an entry of storage_data
  EXPECT_THAT(Decode(With(Minimal(), name, "X\x01" + std::string(3, '\0') + "vX", 1)),
              FailsWith(kBadMetadata));
}

TEST(TorchMetadataHostileTest, F5RecordsThatOverlap) {
  std::string text = Minimal();
  const std::size_t at = text.find("lengthJ") + 7;
  text.replace(at, 4, std::string("\xff\xff\xff\x7f", 4));
  EXPECT_THAT(ReadAs(text), FailsWith(zip::kOverlap));
}

TEST(TorchMetadataHostileTest, TwoRecordsOfOneChunk) {
  std::string text = Minimal();  // the second chunk's entry gets the first one's offset
  const std::size_t entry = text.rfind(std::string("J\x03\0\0\0J", 6));
  ASSERT_NE(entry, std::string::npos);
  text[entry + 1] = '\0';
  EXPECT_THAT(Decode(text), FailsWith(kBadMetadata));
}

TEST(TorchMetadataHostileTest, A2RecordsBehindTheEndOfTheFile) {
  std::string text = Minimal();
  const std::size_t at = text.rfind("lengthJ") + 7;
  text.replace(at, 4, std::string("\xff\xff\xff\x7f", 4));
  MemorySource source(AsBytes(text));
  ByteSource* sources[] = {&source};
  const ForeignRef ref{"torch", ".metadata", 0};
  ASSERT_OK_AND_ASSIGN(const auto metadata, DcpFormat().ReadMetadata(ref, sources));
  const Bytes part = testing::ReadSourceBytes("tests/golden/torch/handmade_minimal_zip/part.bin");
  MemorySource file(part);
  const ExaminedFile examined[] = {
      {part.size(), 0, DcpFormat().Examine("part.bin", file, metadata->Request(0))}};
  ASSERT_OK_AND_ASSIGN(const Assembled opened, DcpFormat().Assemble(ref, *metadata, examined));
  ASSERT_EQ(opened.faults.size(), 1U);
  EXPECT_EQ(opened.faults[0].error.reason, zip::kRange);
  EXPECT_EQ(opened.faults[0].file, "part.bin");
  EXPECT_EQ(opened.faults[0].keys, std::vector<std::string>{"step"});
}

TEST(TorchMetadataHostileTest, EveryCutIsAnError) {
  const std::string text = Minimal();
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(Decode(text.substr(0, size)).ok()) << size;
  }
}

TEST(TorchMetadataHostileTest, EveryFlippedByteIsHandled) {
  const std::string text = Minimal();
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string flipped = text;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x55);
    const Status status = ReadAs(flipped);
    EXPECT_TRUE(status.ok() || !status.error().reason.empty());
  }
}

TEST(TorchMetadataTest, PaddlesMetadataIsToldApart) {
  const std::string text = testing::ReadSourceText("tests/golden/paddle/3.3.1/empty/0.metadata");
  const Status status = ReadAs(text);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("no metadata of PyTorch DCP"));
}

}  // namespace
}  // namespace reshard::torch
