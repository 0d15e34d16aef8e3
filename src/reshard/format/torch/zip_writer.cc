#include <fmt/format.h>

#include <limits>

#include "reshard/base/check.h"
#include "reshard/format/torch/zip_writer_internal.h"
#include "reshard/format/zip/crc32.h"

namespace reshard::torch {
namespace {

constexpr std::uint32_t kLocalSignature = 0x04034b50;
constexpr std::uint32_t kCentralSignature = 0x02014b50;
constexpr std::uint32_t kEndSignature = 0x06054b50;
constexpr std::uint32_t kEnd64Signature = 0x06064b50;
constexpr std::uint32_t kLocatorSignature = 0x07064b50;
constexpr std::uint16_t kVersion = 20;    // needed to extract
constexpr std::uint16_t kVersion64 = 45;  // with fields of 64 bits
constexpr std::uint16_t kUtf8Flag = 0x0800;
constexpr std::uint16_t kFirstDate = 0x21;  // 1980-01-01
constexpr std::uint16_t kExtra64 = 1;
constexpr std::uint32_t kElsewhere = 0xFFFFFFFF;  // in a field of 64 bits
constexpr std::uint64_t kEnd64Rest = 44;          // bytes of that record after its size

bool IsLarge(std::uint64_t number) { return number >= kElsewhere; }

std::uint32_t Field(std::uint64_t number) {
  return IsLarge(number) ? kElsewhere : static_cast<std::uint32_t>(number);
}

void Put16(Bytes& out, std::uint16_t number) { AppendLittle(out, number); }

/// What local and central headers have alike: from the version needed to the lengths.
void PutCommon(Bytes& out, std::string_view name, std::uint64_t size, std::uint32_t crc) {
  Put16(out, IsLarge(size) ? kVersion64 : kVersion);
  Put16(out, kUtf8Flag);
  Put16(out, 0);  // stored
  Put16(out, 0);  // midnight
  Put16(out, kFirstDate);
  AppendLittle(out, crc);
  AppendLittle(out, Field(size));
  AppendLittle(out, Field(size));
  Put16(out, static_cast<std::uint16_t>(name.size()));
  Put16(out, IsLarge(size) ? 20 : 0);  // length of the extra field
}

void PutName(Bytes& out, std::string_view name, std::uint64_t size) {
  const ByteSpan bytes = AsBytes(name);
  out.insert(out.end(), bytes.begin(), bytes.end());
  if (IsLarge(size)) {
    Put16(out, kExtra64);
    Put16(out, 16);
    AppendLittle(out, size);
    AppendLittle(out, size);
  }
}

}  // namespace

bool IsZip(ByteSpan bytes) {
  return bytes.size() > sizeof(kLocalSignature) &&
         LoadLittle<std::uint32_t>(bytes.data()) == kLocalSignature;
}

void ZipWriter::LocalHeader(std::string_view name, std::uint64_t size, std::uint32_t crc) {
  RESHARD_CHECK(hole_bytes_ == 0);
  Member& member = members_.emplace_back();
  member = {fmt::format("archive/{}", name), out_.size() - begin_, size, crc};
  AppendLittle(out_, kLocalSignature);
  PutCommon(out_, member.name, size, crc);
  PutName(out_, member.name, size);
}

void ZipWriter::Add(std::string_view name, ByteSpan payload) {
  RESHARD_CHECK(!IsLarge(payload.size()));
  LocalHeader(name, payload.size(), zip::Crc32(payload));
  out_.insert(out_.end(), payload.begin(), payload.end());
}

void ZipWriter::AddHole(std::string_view name, std::uint64_t size) {
  LocalHeader(name, size, 0);
  hole_bytes_ = size;
}

void ZipWriter::Finish(Bytes& tail) {
  const std::uint64_t directory = out_.size() - begin_ + hole_bytes_;
  const std::size_t first = tail.size();
  for (const Member& member : members_) {
    RESHARD_CHECK(!IsLarge(member.header));
    AppendLittle(tail, kCentralSignature);
    Put16(tail, IsLarge(member.size) ? kVersion64 : kVersion);  // made by
    PutCommon(tail, member.name, member.size, member.crc);
    Put16(tail, 0);                        // length of the comment
    Put16(tail, 0);                        // disk
    Put16(tail, 0);                        // internal attributes
    AppendLittle(tail, std::uint32_t{0});  // external attributes
    AppendLittle(tail, Field(member.header));
    PutName(tail, member.name, member.size);
  }
  const std::uint64_t directory_bytes = tail.size() - first;
  const auto count = static_cast<std::uint16_t>(members_.size());
  if (IsLarge(directory)) {
    AppendLittle(tail, kEnd64Signature);
    AppendLittle(tail, kEnd64Rest);
    Put16(tail, kVersion64);
    Put16(tail, kVersion64);
    AppendLittle(tail, std::uint32_t{0});  // disks
    AppendLittle(tail, std::uint32_t{0});
    AppendLittle(tail, std::uint64_t{count});
    AppendLittle(tail, std::uint64_t{count});
    AppendLittle(tail, directory_bytes);
    AppendLittle(tail, directory);
    AppendLittle(tail, kLocatorSignature);
    AppendLittle(tail, std::uint32_t{0});
    AppendLittle(tail, directory + directory_bytes);
    AppendLittle(tail, std::uint32_t{1});
  }
  AppendLittle(tail, kEndSignature);
  Put16(tail, 0);
  Put16(tail, 0);
  Put16(tail, count);
  Put16(tail, count);
  AppendLittle(tail, static_cast<std::uint32_t>(directory_bytes));
  AppendLittle(tail, Field(directory));
  Put16(tail, 0);
}

}  // namespace reshard::torch
