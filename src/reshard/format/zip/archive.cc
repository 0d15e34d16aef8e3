#include "reshard/format/zip/archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "reshard/base/checked.h"
#include "reshard/base/utf8.h"
#include "reshard/format/zip/crc32.h"

namespace reshard::zip {
namespace {

constexpr std::uint32_t kLocalSignature = 0x04034b50;
constexpr std::uint32_t kEntrySignature = 0x02014b50;
constexpr std::uint32_t kEndSignature = 0x06054b50;
constexpr std::uint32_t kEnd64Signature = 0x06064b50;
constexpr std::uint32_t kLocatorSignature = 0x07064b50;
constexpr std::uint32_t kDescriptorSignature = 0x08074b50;

constexpr std::uint64_t kLocalBytes = 30;
constexpr std::uint64_t kEntryBytes = 46;
constexpr std::uint64_t kEndBytes = 22;
constexpr std::uint64_t kEnd64Bytes = 56;
constexpr std::uint64_t kLocatorBytes = 20;
constexpr std::uint64_t kDescriptorBytes = 16;
constexpr std::uint64_t kDescriptor64Bytes = 24;
constexpr std::uint64_t kTailBytes = 4096;

constexpr std::uint32_t kAllOnes32 = 0xFFFFFFFF;
constexpr std::uint16_t kAllOnes16 = 0xFFFF;
constexpr std::uint16_t kHasDescriptor = 0x8;
constexpr std::uint16_t kUtf8Names = 0x800;
constexpr std::uint16_t kZip64Extra = 0x0001;
constexpr std::uint16_t kUnicodePathExtra = 0x7075;
constexpr std::size_t kShownName = 80;

std::uint16_t Get16(const std::byte* p) { return LoadLittle<std::uint16_t>(p); }

std::uint32_t Get32(const std::byte* p) { return LoadLittle<std::uint32_t>(p); }

std::uint64_t Get64(const std::byte* p) { return LoadLittle<std::uint64_t>(p); }

tl::unexpected<Error> Bad(std::string_view reason, std::uint64_t offset, std::string_view what,
                          ErrorCode code = ErrorCode::kCorruption) {
  return MakeError(code, reason, fmt::format("byte {}: {}", offset, what));
}

std::string Shown(std::string_view name) {
  std::string out(name.substr(0, kShownName));
  for (char& c : out) {
    c = static_cast<unsigned char>(c) >= 0x20 && c != 0x7f ? c : '?';
  }
  return out;
}

char Folded(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Three-way, letters of both cases being equal.
int CompareFolded(std::string_view a, std::string_view b) {
  const std::size_t common = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < common; ++i) {
    const auto x = static_cast<unsigned char>(Folded(a[i]));
    const auto y = static_cast<unsigned char>(Folded(b[i]));
    if (x != y) {
      return x < y ? -1 : 1;
    }
  }
  return a.size() == b.size() ? 0 : (a.size() < b.size() ? -1 : 1);
}

bool IsNameByte(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

/// A name that can be no path out of a folder. The folder on top is called like the file that torch
/// wrote, which may be anything.
bool IsGoodName(std::string_view name) {
  const std::size_t top = name.find('/');
  if (top == std::string_view::npos || top == 0 || !IsUtf8(name)) {
    return false;
  }
  const std::string_view folder = name.substr(0, top);
  const bool odd = std::any_of(folder.begin(), folder.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\';
  });
  if (odd || folder == "." || folder == ".." || (folder.size() == 2 && folder[1] == ':')) {
    return false;
  }
  std::string_view rest = name.substr(top + 1);
  while (!rest.empty()) {
    const std::size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    if (part.empty() || part == "." || part == ".." ||
        !std::all_of(part.begin(), part.end(), IsNameByte)) {
      return false;
    }
    rest = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
  }
  return true;
}

/// What the records at the end say. Offsets from the archive's start.
struct End {
  std::uint64_t count = 0;
  std::uint64_t offset = 0;  ///< Of the directory.
  std::uint64_t size = 0;
};

}  // namespace

/// Makes an Archive.
class Reader {
 public:
  Reader(ByteSource& source, ByteRange range) : source_(source), range_(range) {}

  Result<Archive> Read();

 private:
  /// Bytes at `offset` from the archive's start that lie in the tail.
  const std::byte* InTail(std::uint64_t offset) const {
    return tail_.data() + (offset - tail_begin_);
  }

  std::uint64_t InSource(std::uint64_t offset) const { return range_.offset + offset; }

  Status ReadTail();
  Status ReadEnd();
  Status ReadEnd64(std::uint64_t at, const std::byte* end, std::uint64_t& directory_end);
  Status ReadDirectory();
  Result<std::uint64_t> ReadEntry(std::uint64_t at);
  Status CheckEntry(const std::byte* p, std::string_view name, std::uint64_t at) const;
  Status ReadExtra(ByteSpan extra, std::uint64_t at, const std::byte* entry, Member& member) const;
  Status ReadZip64(ByteSpan field, std::uint64_t at, const std::byte* entry, Member& member) const;
  Status CheckExtents();
  Status CheckNames();

  ByteSource& source_;
  const ByteRange range_;
  Bytes tail_;
  std::uint64_t tail_begin_ = 0;  // from the archive's start
  End end_;
  Archive out_;
};

Status Reader::ReadTail() {
  const std::uint64_t size = source_.size();
  if (range_.offset > size || range_.size > size - range_.offset) {
    return Bad(
        kRange, range_.offset,
        fmt::format("an archive of {} bytes leaves the {} bytes of its file", range_.size, size));
  }
  if (range_.size < kEndBytes) {
    return Bad(kFraming, range_.offset,
               fmt::format("{} bytes are too few for a zip archive", range_.size));
  }
  tail_.resize(std::min(range_.size, kTailBytes));
  tail_begin_ = range_.size - tail_.size();
  return source_.ReadAt(InSource(tail_begin_), tail_);
}

Status Reader::ReadEnd64(std::uint64_t at, const std::byte* end, std::uint64_t& directory_end) {
  const std::byte* locator = InTail(at);
  if (at < kEnd64Bytes) {
    return Bad(kZip64Inconsistent, InSource(at), "there is no room for a zip64 end record");
  }
  directory_end = at - kEnd64Bytes;
  const std::byte* p = InTail(directory_end);
  if (Get32(locator + 4) != 0 || Get64(locator + 8) != directory_end || Get32(locator + 16) != 1 ||
      Get32(p) != kEnd64Signature || Get64(p + 4) != kEnd64Bytes - 12) {
    return Bad(kZip64Inconsistent, InSource(at),
               "the zip64 locator does not name the end record in front of it");
  }
  const std::uint64_t count = Get64(p + 32);
  const std::uint64_t size = Get64(p + 40);
  const std::uint64_t offset = Get64(p + 48);
  const bool same_count = end_.count == count || end_.count == kAllOnes16;
  const bool same_size = end_.size == size || end_.size == kAllOnes32;
  const bool same_offset = end_.offset == offset || end_.offset == kAllOnes32;
  const bool one_disk = Get32(p + 16) == 0 && Get32(p + 20) == 0 && Get64(p + 24) == count &&
                        (Get16(end + 4) == 0 || Get16(end + 4) == kAllOnes16) &&
                        (Get16(end + 6) == 0 || Get16(end + 6) == kAllOnes16);
  if (!same_count || !same_size || !same_offset || !one_disk) {
    return Bad(kZip64Inconsistent, InSource(directory_end), "the two end records disagree");
  }
  end_ = {count, offset, size};
  return OkStatus();
}

/// Exactly one end record, without a comment, at the very end; the directory right before it.
Status Reader::ReadEnd() {
  const std::uint64_t at = range_.size - kEndBytes;
  const std::byte* p = InTail(at);
  if (Get32(p) != kEndSignature || Get16(p + 20) != 0) {
    return Bad(kFraming, InSource(at),
               "no zip end record stands here, or it has a comment: the archive is truncated, or "
               "something follows it");
  }
  end_ = {Get16(p + 10), Get32(p + 16), Get32(p + 12)};
  std::uint64_t directory_end = at;
  if (at >= kLocatorBytes && Get32(InTail(at - kLocatorBytes)) == kLocatorSignature) {
    RESHARD_TRY(ReadEnd64(at - kLocatorBytes, p, directory_end));
  } else {
    if (Get16(p + 4) != 0 || Get16(p + 6) != 0 || Get16(p + 8) != end_.count) {
      return Bad(kFraming, InSource(at), "the archive is a part of several");
    }
    if (end_.count == kAllOnes16 || end_.offset == kAllOnes32 || end_.size == kAllOnes32) {
      return Bad(kZip64Inconsistent, InSource(at), "the zip64 end record is missing");
    }
  }
  const std::optional<std::uint64_t> end = CheckedAdd(end_.offset, end_.size);
  if (!end) {
    return Bad(kRange, InSource(at), "offset and size of the directory wrap");
  }
  if (*end != directory_end) {
    return Bad(kFraming, InSource(at),
               fmt::format("the directory ends at byte {} of the archive, its end record begins at "
                           "{}",
                           *end, directory_end));
  }
  if (end_.count == 0 || end_.count > end_.size / kEntryBytes) {
    return Bad(kDirectory, InSource(at),
               fmt::format("{} members in a directory of {} bytes", end_.count, end_.size));
  }
  return OkStatus();
}

/// The fields of a zip64 entry, in their order, where the small ones say that they are here.
Status Reader::ReadZip64(ByteSpan field, std::uint64_t at, const std::byte* entry,
                         Member& member) const {
  std::uint64_t stored = Get32(entry + 20);
  std::uint64_t* const values[] = {&member.size, &stored, &member.header};
  std::size_t used = 0;
  for (std::uint64_t* value : values) {
    if (*value != kAllOnes32) {
      continue;
    }
    if (field.size() < used + 8) {
      return Bad(kZip64Inconsistent, InSource(at), "a zip64 field lacks what the entry refers to");
    }
    *value = Get64(field.data() + used);
    used += 8;
  }
  if (used == 0 || used != field.size() || stored != member.size) {
    return Bad(kZip64Inconsistent, InSource(at),
               "a zip64 field holds other things than the entry refers to");
  }
  return OkStatus();
}

Status Reader::ReadExtra(ByteSpan extra, std::uint64_t at, const std::byte* entry,
                         Member& member) const {
  bool zip64 = false;
  while (!extra.empty()) {
    const std::uint64_t size = extra.size() < 4 ? 0 : Get16(extra.data() + 2);
    if (extra.size() < 4 || size > extra.size() - 4) {
      return Bad(kDirectory, InSource(at), "an extra field leaves its entry");
    }
    const std::uint16_t id = Get16(extra.data());
    if (id == kUnicodePathExtra || (id == kZip64Extra && zip64)) {
      return Bad(kDirectory, InSource(at), "an entry has a second name, or two zip64 fields");
    }
    if (id == kZip64Extra) {
      zip64 = true;
      RESHARD_TRY(ReadZip64(extra.subspan(4, size), at, entry, member));
    }
    extra = extra.subspan(4 + size);
  }
  const bool needs = Get32(entry + 20) == kAllOnes32 || Get32(entry + 24) == kAllOnes32 ||
                     Get32(entry + 42) == kAllOnes32;
  if (needs && !zip64) {
    return Bad(kZip64Inconsistent, InSource(at), "an entry refers to a zip64 field, and has none");
  }
  return OkStatus();
}

Status Reader::CheckEntry(const std::byte* p, std::string_view name, std::uint64_t at) const {
  constexpr std::uint32_t kKindMask = 0170000;
  constexpr std::uint32_t kRegular = 0100000;
  constexpr std::uint32_t kFolder = 0040000;
  if (!IsGoodName(name)) {
    return Bad(kBadMemberName, InSource(at),
               fmt::format("'{}' is no name of a member of torch's archives", Shown(name)));
  }
  const std::uint16_t flags = Get16(p + 8);
  if ((flags & ~(kHasDescriptor | kUtf8Names)) != 0) {
    return Bad(
        kFlagNotAllowed, InSource(at),
        fmt::format("'{}' has the flags {:#x}: encrypted, or otherwise not what torch writes",
                    Shown(name), flags),
        ErrorCode::kUnsupported);
  }
  // TorchScript, which compresses its code. The door of CVE-2025-32434.
  const std::string_view below =
      name.substr(std::min<std::size_t>(name.find('/'), name.size() - 1) + 1);
  if (below.starts_with("code/") || below == "constants.pkl") {
    return Bad(kKindNotSupported, InSource(at),
               fmt::format("'{}' shows a TorchScript archive, which holds a program; save the "
                           "state_dict() of its module with torch.save",
                           Shown(name)),
               ErrorCode::kUnsupported);
  }
  if (Get16(p + 10) != 0) {
    return Bad(kMethodNotAllowed, InSource(at),
               fmt::format("'{}' is compressed (method {}); torch stores its members as they are",
                           Shown(name), Get16(p + 10)),
               ErrorCode::kUnsupported);
  }
  const std::uint32_t kind = Get32(p + 38) >> 16 & kKindMask;
  const bool folder = name.back() == '/';
  if ((kind != 0 && kind != (folder ? kFolder : kRegular)) || (folder && Get32(p + 24) != 0)) {
    return Bad(kRefused, InSource(at),
               fmt::format("'{}' is a link, a device, or a folder with contents", Shown(name)),
               ErrorCode::kUnsupported);
  }
  return OkStatus();
}

/// Reads the entry at `at` from the archive's start; returns where the next one begins.
Result<std::uint64_t> Reader::ReadEntry(std::uint64_t at) {
  const ByteSpan left = ByteSpan(out_.directory_).subspan(at - end_.offset);
  const std::byte* p = left.data();
  if (left.size() < kEntryBytes || Get32(p) != kEntrySignature) {
    return Bad(kDirectory, InSource(at), "no directory entry stands here");
  }
  const std::uint64_t name_size = Get16(p + 28);
  const std::uint64_t extra_size = Get16(p + 30);
  const std::uint64_t size = kEntryBytes + name_size + extra_size;
  if (size > left.size() || Get16(p + 32) != 0 || Get16(p + 34) != 0) {
    return Bad(kDirectory, InSource(at), "an entry leaves the directory, or has a comment");
  }
  Member member;
  member.name = AsText(left.subspan(kEntryBytes, name_size));
  RESHARD_TRY(CheckEntry(p, member.name, at));
  member.flags = Get16(p + 8);
  member.crc = Get32(p + 16);
  member.size = Get32(p + 24);
  member.header = Get32(p + 42);
  RESHARD_TRY(ReadExtra(left.subspan(kEntryBytes + name_size, extra_size), at, p, member));
  if (Get32(p + 20) != Get32(p + 24)) {
    return Bad(kHeaderMismatch, InSource(at),
               fmt::format("'{}' is stored as it is, but in another size", Shown(member.name)));
  }
  const std::optional<std::uint64_t> begin =
      CheckedAdd(member.header, kLocalBytes + member.name.size());
  const std::optional<std::uint64_t> end = begin ? CheckedAdd(*begin, member.size) : std::nullopt;
  if (!end || *end > end_.offset) {
    return Bad(
        kRange, InSource(at),
        fmt::format("'{}' of {} bytes at byte {} of the archive leaves the {} bytes in front "
                    "of the directory",
                    Shown(member.name), member.size, member.header, end_.offset));
  }
  member.header = InSource(member.header);
  out_.members_.push_back(member);
  return at + size;
}

Status Reader::ReadDirectory() {
  if (end_.size > kMaxDirectory) {
    return Bad(kLimit, InSource(end_.offset),
               fmt::format("a directory of {} bytes, more than {}", end_.size, kMaxDirectory),
               ErrorCode::kUnsupported);
  }
  if (end_.offset >= tail_begin_) {
    const std::byte* begin = InTail(end_.offset);
    out_.directory_.assign(begin, begin + end_.size);
  } else {
    out_.directory_.resize(end_.size);
    RESHARD_TRY(source_.ReadAt(InSource(end_.offset), out_.directory_));
  }
  out_.members_.reserve(end_.count);
  std::uint64_t at = end_.offset;
  for (std::uint64_t i = 0; i < end_.count; ++i) {
    RESHARD_TRY_ASSIGN(at, ReadEntry(at));
  }
  if (at != end_.offset + end_.size) {
    return Bad(kDirectory, InSource(at), "something follows the last entry of the directory");
  }
  return OkStatus();
}

/// Members do not meet, as far as the directory tells; Locate tests the rest.
Status Reader::CheckExtents() {
  std::vector<Member>& members = out_.members_;
  std::sort(members.begin(), members.end(),
            [](const Member& a, const Member& b) { return a.header < b.header; });
  if (members.front().header != range_.offset) {
    return Bad(kFraming, range_.offset, "the archive does not begin with its first member");
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    Member& member = members[i];
    const bool last = i + 1 == members.size();
    member.end = last ? InSource(end_.offset) : members[i + 1].header;
    const std::uint64_t least = member.header + kLocalBytes + member.name.size() + member.size;
    if (least > member.end) {
      return Bad(kOverlap, member.header,
                 fmt::format("'{}' overlaps '{}'", Shown(member.name),
                             last ? "the directory" : Shown(members[i + 1].name)));
    }
  }
  return OkStatus();
}

Status Reader::CheckNames() {
  std::vector<Member>& members = out_.members_;
  const std::string_view first = members.front().name;
  out_.top_ = first.substr(0, first.find('/'));
  for (const Member& member : members) {
    if (member.name.substr(0, member.name.find('/')) != out_.top_) {
      return Bad(kBadMemberName, member.header,
                 fmt::format("'{}' is not below '{}' like the first member", Shown(member.name),
                             Shown(out_.top_)));
    }
  }
  std::vector<std::uint32_t>& order = out_.by_name_;
  order.resize(members.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&members](std::uint32_t a, std::uint32_t b) {
    return CompareFolded(members[a].name, members[b].name) < 0;
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const Member& member = members[order[i]];
    if (CompareFolded(members[order[i - 1]].name, member.name) == 0) {
      return Bad(kDuplicateName, member.header,
                 fmt::format("there are two members '{}'", Shown(member.name)));
    }
  }
  return OkStatus();
}

Result<Archive> Reader::Read() {
  out_.source_ = &source_;
  RESHARD_TRY(ReadTail());
  RESHARD_TRY(ReadEnd());
  RESHARD_TRY(ReadDirectory());
  RESHARD_TRY(CheckExtents());
  RESHARD_TRY(CheckNames());
  return std::move(out_);
}

Result<Archive> Archive::Open(ByteSource& source, ByteRange range) {
  return Reader(source, range).Read();
}

const Member* Archive::Find(std::string_view name) const {
  const auto below = [this](std::uint32_t i) { return members_[i].name.substr(top_.size() + 1); };
  const auto found = std::partition_point(by_name_.begin(), by_name_.end(), [&](std::uint32_t i) {
    return CompareFolded(below(i), name) < 0;
  });
  return found != by_name_.end() && below(*found) == name && !name.ends_with('/')
             ? &members_[*found]
             : nullptr;
}

bool Archive::HasPrefix(std::string_view prefix) const {
  const auto below = [this](std::uint32_t i) { return members_[i].name.substr(top_.size() + 1); };
  const auto found = std::partition_point(by_name_.begin(), by_name_.end(), [&](std::uint32_t i) {
    return CompareFolded(below(i), prefix) < 0;
  });
  return found != by_name_.end() &&
         CompareFolded(below(*found).substr(0, prefix.size()), prefix) == 0;
}

namespace {

/// Whether a size of a local header says that it stands elsewhere.
bool IsElsewhere(std::uint32_t size, bool descriptor) {
  return size == kAllOnes32 || (descriptor && size == 0);
}

Status CheckDescriptor(ByteSource& source, const Member& member, std::uint64_t at) {
  const std::uint64_t size = member.end - at;
  if (size != kDescriptorBytes && size != kDescriptor64Bytes) {
    return Bad(kFraming, at,
               fmt::format("{} bytes follow '{}', which no data descriptor has", size,
                           Shown(member.name)));
  }
  std::byte bytes[kDescriptor64Bytes];
  RESHARD_TRY(source.ReadAt(at, MutableByteSpan(bytes).first(size)));
  const bool wide = size == kDescriptor64Bytes;
  const std::uint64_t stored = wide ? Get64(bytes + 8) : Get32(bytes + 8);
  const std::uint64_t plain = wide ? Get64(bytes + 16) : Get32(bytes + 12);
  if (Get32(bytes) != kDescriptorSignature || Get32(bytes + 4) != member.crc ||
      stored != member.size || plain != member.size) {
    return Bad(kHeaderMismatch, at,
               fmt::format("the data descriptor of '{}' is not what the directory says",
                           Shown(member.name)));
  }
  return OkStatus();
}

}  // namespace

Result<ByteRange> Archive::Locate(const Member& member) const {
  const std::uint64_t head = kLocalBytes + member.name.size();
  Bytes bytes(head);
  RESHARD_TRY(source_->ReadAt(member.header, bytes));
  const std::byte* p = bytes.data();
  const bool descriptor = (member.flags & kHasDescriptor) != 0;
  const bool same_sizes =
      (Get32(p + 18) == member.size || IsElsewhere(Get32(p + 18), descriptor)) &&
      (Get32(p + 22) == member.size || IsElsewhere(Get32(p + 22), descriptor));
  const bool same_crc = Get32(p + 14) == member.crc || (descriptor && Get32(p + 14) == 0);
  if (Get32(p) != kLocalSignature || Get16(p + 6) != member.flags || Get16(p + 8) != 0 ||
      !same_sizes || !same_crc || Get16(p + 26) != member.name.size() ||
      AsText(ByteSpan(bytes).subspan(kLocalBytes)) != member.name) {
    return Bad(
        kHeaderMismatch, member.header,
        fmt::format("the local header of '{}' is not what the directory says", Shown(member.name)));
  }
  const ByteRange payload{member.header + head + Get16(p + 28), member.size};
  if (payload.end() > member.end) {
    return Bad(kOverlap, member.header,
               fmt::format("'{}' overlaps what follows it", Shown(member.name)));
  }
  if (descriptor) {
    RESHARD_TRY(CheckDescriptor(*source_, member, payload.end()));
  } else if (payload.end() != member.end) {
    return Bad(kFraming, payload.end(),
               fmt::format("{} bytes that belong to nothing follow '{}'",
                           member.end - payload.end(), Shown(member.name)));
  }
  return payload;
}

Result<Bytes> Archive::Read(const Member& member, std::uint64_t most) const {
  if (member.size > most) {
    return Bad(
        kLimit, member.header,
        fmt::format("'{}' has {} bytes, more than {}", Shown(member.name), member.size, most),
        ErrorCode::kUnsupported);
  }
  RESHARD_TRY_ASSIGN(const ByteRange payload, Locate(member));
  Bytes bytes(payload.size);
  RESHARD_TRY(source_->ReadAt(payload.offset, bytes));
  if (member.crc != 0 && Crc32(bytes) != member.crc) {
    return Bad(kCrcMismatch, payload.offset,
               fmt::format("the checksum of '{}' is not that of its bytes", Shown(member.name)));
  }
  return bytes;
}

}  // namespace reshard::zip
