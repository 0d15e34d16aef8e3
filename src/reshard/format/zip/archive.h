#pragma once

// Reads zip archives as torch writes them: stored members only, one folder on top, nothing between
// the members. An archive may stand anywhere in a file. Only one reading of the bytes is accepted:
// what two programs could understand differently is an error. docs/format/torch_dcp.md section 2;
// the format: PKWARE's APPNOTE.TXT.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"

namespace reshard::zip {

/// Reasons of this decoder.
inline constexpr std::string_view kFraming = "ZIP_FRAMING";
inline constexpr std::string_view kDirectory = "ZIP_DIRECTORY";
inline constexpr std::string_view kOverlap = "OVERLAP";
inline constexpr std::string_view kMethodNotAllowed = "METHOD_NOT_ALLOWED";
inline constexpr std::string_view kHeaderMismatch = "HEADER_MISMATCH";
inline constexpr std::string_view kFlagNotAllowed = "FLAG_NOT_ALLOWED";
inline constexpr std::string_view kCrcMismatch = "CRC_MISMATCH";
inline constexpr std::string_view kDuplicateName = "DUPLICATE_NAME";
inline constexpr std::string_view kZip64Inconsistent = "ZIP64_INCONSISTENT";
inline constexpr std::string_view kRange = "RANGE";
inline constexpr std::string_view kBadMemberName = "BAD_MEMBER_NAME";
inline constexpr std::string_view kRefused = "REFUSED";
inline constexpr std::string_view kLimit = "LIMIT";
inline constexpr std::string_view kKindNotSupported = "KIND_NOT_SUPPORTED";

/// Largest central directory that is read.
inline constexpr std::uint64_t kMaxDirectory = std::uint64_t{64} << 20;

/// A member, as the central directory describes it. Offsets are in the source.
struct Member {
  std::string_view name;     ///< In the archive's memory, with the folder on top.
  std::uint64_t header = 0;  ///< Its local header.
  std::uint64_t size = 0;    ///< Of its payload.
  std::uint64_t end = 0;     ///< Where the next member, or the directory, begins.
  std::uint32_t crc = 0;     ///< CRC-32 of the payload; 0 where the writer left it out.
  std::uint16_t flags = 0;
};

/// An archive in the range of a source, which must outlive it.
/// Thread-safety: as the source's.
class Archive {
 public:
  /// Reads the end of the archive: once, when the directory is small.
  /// Errors: kCorruption ZIP_FRAMING, ZIP_DIRECTORY, OVERLAP, HEADER_MISMATCH, DUPLICATE_NAME,
  ///         ZIP64_INCONSISTENT, RANGE, BAD_MEMBER_NAME; kUnsupported METHOD_NOT_ALLOWED,
  ///         FLAG_NOT_ALLOWED, REFUSED, LIMIT; kIo of the source. All with the byte offset.
  static Result<Archive> Open(ByteSource& source, ByteRange range);

  /// In the order of their payloads. Entries of folders are left out.
  std::span<const Member> members() const { return members_; }

  /// The folder that all names begin with, without '/'.
  std::string_view top() const { return top_; }

  /// The member of that name below the folder on top, or null. Cost: logarithmic.
  const Member* Find(std::string_view name) const;

  /// Whether a member's name below the folder on top begins with `prefix`, in letters of either
  /// case. Cost: logarithmic.
  bool HasPrefix(std::string_view prefix) const;

  /// Reads the member's local header and, where there is one, its data descriptor; says where its
  /// payload lies in the source.
  /// Errors: kCorruption HEADER_MISMATCH, OVERLAP, ZIP_FRAMING; kIo.
  Result<ByteRange> Locate(const Member& member) const;

  /// The payload of a small member, its checksum tested where there is one.
  /// Errors: kUnsupported LIMIT when it has more than `most` bytes; kCorruption CRC_MISMATCH; those
  /// of Locate.
  Result<Bytes> Read(const Member& member, std::uint64_t most) const;

 private:
  friend class Reader;

  Archive() = default;

  ByteSource* source_ = nullptr;
  Bytes directory_;  // the names lie in it
  std::vector<Member> members_;
  std::vector<std::uint32_t> by_name_;
  std::string_view top_;
};

}  // namespace reshard::zip
