#include "reshard/format/native/data_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "reshard/base/check.h"
#include "reshard/base/utf8.h"
#include "reshard/codec/crc64.h"
#include "reshard/format/native/catalog_codec.h"

namespace reshard::native {
namespace {

constexpr std::string_view kPrefix = R"({"__metadata__":{"reshard.head":")";
constexpr std::string_view kFragmentKey = R"(","reshard.fragment":")";
constexpr std::size_t kLongestName = 4000;
constexpr std::size_t kShownOfLongName = 64;

/// The head's fields in fixed width, so that their place does not depend on their values.
std::string HeadText(const Head& head) {
  return fmt::format(
      "v1 id={:020d} attempt={:020d} rank={:020d} size={:020d} payload={:020d} "
      "rest={:016x}",
      head.unique_id, head.attempt, head.rank, head.file_size, head.payload_offset,
      head.rest_checksum);
}

/// Writes `text` inside JSON quotes. Keys are valid UTF-8 by the time they come here, or bytes that
/// ChunkName has escaped.
void AppendJsonText(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += c;
  }
}

bool IsPlain(unsigned char c) { return c >= 0x20 && c != 0x7f && c != '@' && c != '%'; }

std::string EscapeKey(std::string_view key) {
  std::string out;
  while (!key.empty()) {
    const std::size_t size = Utf8Length(key);
    if (size > 1 || (size == 1 && IsPlain(static_cast<unsigned char>(key[0])))) {
      out += key.substr(0, size);
      key.remove_prefix(size);
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(key[0]));
      key.remove_prefix(1);
    }
  }
  return out == "__metadata__" ? "%5F_metadata__" : out;
}

/// The name of the file's entry `number`. Strict readers refuse long names, so those are cut to
/// "front%~number": the number makes them unique in the file, and no escape contains "%~".
std::string EntryName(const HeaderEntry& entry, std::size_t number) {
  std::string name = ChunkName(entry.key, entry.shape, entry.box);
  if (name.size() <= kLongestName) {
    return name;
  }
  std::size_t front = kShownOfLongName;
  while ((static_cast<unsigned char>(name[front]) & 0xc0) == 0x80) {  // not inside a character
    --front;
  }
  name.resize(front);
  return fmt::format("{}%~{}", name, number);
}

void AppendEntry(std::string& out, const HeaderEntry& entry, std::size_t number) {
  const DTypeInfo& info = Info(entry.dtype);
  out += ",\"";
  AppendJsonText(out, EntryName(entry, number));
  fmt::format_to(std::back_inserter(out), R"(":{{"dtype":"{}","shape":[)", info.safetensors);
  for (std::size_t a = 0; a < entry.box.axes(); ++a) {
    fmt::format_to(std::back_inserter(out), "{}{}", a == 0 ? "" : ",", entry.box.extent[a]);
  }
  if (info.split_complex) {
    out += entry.box.axes() == 0 ? "2" : ",2";
  }
  const std::uint64_t end = entry.payload_offset + NumBytes(entry.box, entry.dtype);
  fmt::format_to(std::back_inserter(out), R"(],"data_offsets":[{},{}]}})", entry.payload_offset,
                 end);
}

std::string EntriesText(std::span<const HeaderEntry> entries) {
  std::string out;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    AppendEntry(out, entries[i], i);
  }
  return out;
}

std::uint64_t RoundUp(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

bool TakeField(std::string_view& text, std::string_view name, int base, std::size_t width,
               std::uint64_t& value) {
  if (!text.starts_with(name) || text.size() < name.size() + width) {
    return false;
  }
  const char* begin = text.data() + name.size();
  const auto [end, error] = std::from_chars(begin, begin + width, value, base);
  text.remove_prefix(name.size() + width);
  return error == std::errc() && end == begin + width;
}

tl::unexpected<Error> Bad(std::string_view what) {
  return MakeError(ErrorCode::kCorruption, kBadHead,
                   fmt::format("the file does not begin like a reshard data file: {}", what));
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

std::string Hex(ByteSpan bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const std::byte b : bytes) {
    out += kDigits[std::to_integer<unsigned>(b) >> 4];
    out += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return out;
}

}  // namespace

std::string ChunkName(std::string_view key, std::span<const std::uint64_t> shape, BoxView box) {
  std::string name = EscapeKey(key);
  if (std::ranges::equal(shape, box.extent)) {
    return name;
  }
  for (std::size_t a = 0; a < box.axes(); ++a) {
    name += fmt::format("{}{}", a == 0 ? "@" : ",", box.offset[a]);
  }
  return name;
}

Result<std::uint64_t> HeaderSize(std::span<const HeaderEntry> entries,
                                 std::uint64_t fragment_bytes) {
  const std::uint64_t json = kPrefix.size() + HeadText({}).size() + kFragmentKey.size() +
                             2 * fragment_bytes + 2 + EntriesText(entries).size() + 1;
  const std::uint64_t size = RoundUp(8 + json, kHeadBytes);
  if (size - 8 > kMaxHeaderBytes) {
    return MakeError(
        ErrorCode::kUnsupported, kHeaderTooLarge,
        fmt::format("a data file with {} tensors needs a header of {} bytes, more than the "
                    "{} that safetensors readers accept; save from more ranks",
                    entries.size(), size - 8, kMaxHeaderBytes));
  }
  return size;
}

Bytes EncodeHeader(std::span<const HeaderEntry> entries, Head head, ByteSpan fragment) {
  std::string json(kPrefix);
  const std::size_t head_at = json.size();
  json += HeadText(head);
  json += kFragmentKey;
  json += Hex(fragment);
  json += "\"}";
  json += EntriesText(entries);
  json += '}';
  RESHARD_CHECK(8 + json.size() <= head.payload_offset);
  json.resize(head.payload_offset - 8, ' ');
  Bytes out(head.payload_offset);
  StoreLittle<std::uint64_t>(out.data(), json.size());
  std::copy_n(AsBytes(json).begin(), json.size(), out.begin() + 8);
  head.rest_checksum =
      Crc64(ByteSpan(out).subspan(std::min<std::uint64_t>(kHeadBytes, out.size())));
  const std::string text = HeadText(head);
  std::copy_n(AsBytes(text).begin(), text.size(),
              out.begin() + static_cast<std::ptrdiff_t>(8 + head_at));
  return out;
}

Result<Head> DecodeHead(ByteSpan first_bytes) {
  if (first_bytes.size() < kHeadBytes) {
    return Bad("it is too short");
  }
  std::string_view text = AsText(first_bytes.first(kHeadBytes)).substr(8);
  const std::string_view fields = text.substr(kPrefix.size());
  Head head;
  if (!text.starts_with(kPrefix)) {
    return Bad("another safetensors file?");
  }
  text.remove_prefix(kPrefix.size());
  if (!TakeField(text, "v1 id=", 10, 20, head.unique_id) ||
      !TakeField(text, " attempt=", 10, 20, head.attempt) ||
      !TakeField(text, " rank=", 10, 20, head.rank) ||
      !TakeField(text, " size=", 10, 20, head.file_size) ||
      !TakeField(text, " payload=", 10, 20, head.payload_offset) ||
      !TakeField(text, " rest=", 16, 16, head.rest_checksum) ||
      !fields.starts_with(HeadText(head))) {  // one spelling: no upper-case digits
    return Bad("its head fields are malformed");
  }
  const auto json = LoadLittle<std::uint64_t>(first_bytes.data());
  if (head.payload_offset < kHeadBytes || head.payload_offset % kHeadBytes != 0 ||
      json != head.payload_offset - 8 || head.file_size < head.payload_offset ||
      json > kMaxHeaderBytes) {
    return Bad("its sizes disagree");
  }
  return head;
}

Result<Catalog> DecodeFragment(ByteSpan header) {
  RESHARD_TRY_ASSIGN(const Head head, DecodeHead(header));
  if (header.size() != head.payload_offset ||
      Crc64(header.subspan(kHeadBytes)) != head.rest_checksum) {
    return Bad("the header's checksum does not match");
  }
  std::string_view text = AsText(header).substr(8 + kPrefix.size() + HeadText(head).size());
  if (!text.starts_with(kFragmentKey)) {
    return Bad("no fragment");
  }
  text.remove_prefix(kFragmentKey.size());
  text = text.substr(0, text.find('"'));
  if (text.size() % 2 != 0) {
    return Bad("the fragment is cut");
  }
  Bytes fragment;
  fragment.reserve(text.size() / 2);
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const int high = HexDigit(text[i]);
    const int low = HexDigit(text[i + 1]);
    if (high < 0 || low < 0) {
      return Bad("the fragment is not in hexadecimal");
    }
    fragment.push_back(static_cast<std::byte>(high * 16 + low));
  }
  RESHARD_TRY_ASSIGN(Catalog catalog, DecodeCatalog(fragment));
  if (catalog.info().kind != CatalogKind::kFragment) {
    return Bad("what it holds is no fragment");
  }
  return catalog;
}

}  // namespace reshard::native
