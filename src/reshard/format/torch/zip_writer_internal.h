#pragma once

// Zip archives of stored members, as torch reads them: one folder on top, sizes in the local
// headers, no padding. The format: PKWARE's APPNOTE.TXT.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/bytes.h"

namespace reshard::torch {

/// Whether bytes begin like such an archive.
bool IsZip(ByteSpan bytes);

/// Writes one archive. A member's payload can be left out: then what comes after it is appended to
/// another buffer.
class ZipWriter {
 public:
  /// Appends to `out`, where the archive begins.
  explicit ZipWriter(Bytes& out) : out_(out), begin_(out.size()) {}

  /// A member of less than 4 GiB, with its checksum.
  void Add(std::string_view name, ByteSpan payload);

  /// The local header of a member whose `size` bytes the caller puts after it, without a checksum.
  /// It is the last one.
  void AddHole(std::string_view name, std::uint64_t size);

  /// Appends the directory to `tail`.
  void Finish(Bytes& tail);

 private:
  struct Member {
    std::string name;  // with the folder
    std::uint64_t header = 0;
    std::uint64_t size = 0;
    std::uint32_t crc = 0;
  };

  void LocalHeader(std::string_view name, std::uint64_t size, std::uint32_t crc);

  Bytes& out_;
  std::size_t begin_;
  std::vector<Member> members_;
  std::uint64_t hole_bytes_ = 0;
};

}  // namespace reshard::torch
