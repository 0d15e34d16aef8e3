#include "reshard/format/safetensors/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "reshard/base/checked.h"

namespace reshard::safetensors {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadataName = "__metadata__";
constexpr std::size_t kShownDigits = 40;

tl::unexpected<Error> Bad(std::string_view reason, std::string message) {
  return MakeError(ErrorCode::kCorruption, reason, std::move(message));
}

/// What the JSON says of one tensor, before it is checked.
struct RawEntry {
  std::string name;
  std::optional<std::string> dtype;
  bool has_shape = false;
  bool has_range = false;
  Shape shape;
  Shape range;
};

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

/// Takes the events of the JSON parser; duplicates are seen, which a parsed map would hide. The
/// parser does not recurse, and no container is accepted that the format does not have. A tensor is
/// checked as soon as it ends, so that a header of a million of them takes no more than they do.
class Handler final : public json::json_sax_t {
 public:
  Handler(std::uint64_t payload_offset, std::uint64_t payload_bytes)
      : payload_bytes_(payload_bytes) {
    header.payload_offset = payload_offset;
  }

  Header header;
  std::optional<Error> error;

  bool null() override { return Unexpected("null"); }

  bool boolean(bool /*value*/) override { return Unexpected("a boolean"); }

  bool number_integer(json::number_integer_t /*value*/) override { return OddNumber("negative"); }

  bool number_float(json::number_float_t /*value*/, const std::string& text) override {
    return OddNumber(text);
  }

  bool number_unsigned(json::number_unsigned_t value) override {
    if (place_ != Place::kNumbers) {
      return Unexpected("a number");
    }
    numbers_->push_back(value);
    return numbers_->size() <= kMaxAxes ||
           Fail(kBadHeader, fmt::format("'{}' has more than {} numbers", key_, kMaxAxes));
  }

  bool string(std::string& text) override;
  bool start_object(std::size_t /*elements*/) override;
  bool key(std::string& text) override;
  bool end_object() override;
  bool start_array(std::size_t /*elements*/) override;

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool binary(json::binary_t& /*value*/) override { return Unexpected("binary"); }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const json::exception& what) override {
    // A text that is no UTF-8, has a lone surrogate or a raw control character.
    const bool text =
        std::string_view(what.what()).find("invalid string") != std::string_view::npos;
    const std::string_view reason = text                        ? kBadString
                                    : place_ == Place::kNumbers ? kBadInteger
                                                                : kBadHeader;
    return Fail(reason, fmt::format("no JSON at byte {}", 8 + position));
  }

 private:
  enum class Place { kStart, kTop, kTensor, kNumbers, kMetadata, kEnd };

  bool Fail(std::string_view reason, std::string_view what) {
    error = Error{ErrorCode::kCorruption, std::string(reason),
                  fmt::format("safetensors header: {}{}", what,
                              raw_.name.empty() ? "" : ", near '" + raw_.name + "'"),
                  false, false};
    return false;
  }

  bool Unexpected(std::string_view what) {
    if (place_ == Place::kMetadata || (place_ == Place::kTop && key_ == kMetadataName)) {
      return Fail(kBadMetadata, "__metadata__ is no map from text to text");
    }
    return place_ == Place::kTensor && key_ == "dtype"
               ? Fail(kBadDType, "a dtype that is no text")
               : Fail(kBadHeader, fmt::format("unexpected {}", what));
  }

  bool OddNumber(std::string_view text) {
    return place_ == Place::kNumbers
               ? Fail(kBadInteger, fmt::format("the number {}", text.substr(0, kShownDigits)))
               : Unexpected("a number");
  }

  bool AddEntry();
  bool MetadataNamesDiffer();

  Place place_ = Place::kStart;
  std::string key_;
  RawEntry raw_;
  Shape* numbers_ = nullptr;
  bool has_metadata_ = false;
  std::uint64_t payload_bytes_;
};

bool Handler::string(std::string& text) {
  if (place_ == Place::kMetadata) {
    if (header.metadata.size() == kMaxMetadataNames) {
      return Fail(kLimit, fmt::format("__metadata__ has more than {} names", kMaxMetadataNames));
    }
    header.metadata.emplace_back(key_, std::move(text));
    return true;
  }
  if (place_ != Place::kTensor || key_ != "dtype") {
    return Unexpected("a text");
  }
  raw_.dtype = std::move(text);
  return true;
}

bool Handler::start_object(std::size_t /*elements*/) {
  if (place_ == Place::kStart) {
    place_ = Place::kTop;
    return true;
  }
  if (place_ != Place::kTop) {
    return place_ == Place::kMetadata ? Unexpected("an object")
                                      : Fail(kDepth, "an object where none may be");
  }
  if (key_ == kMetadataName) {
    if (has_metadata_) {
      return Fail(kBadMetadata, "__metadata__ stands twice");
    }
    has_metadata_ = true;
    place_ = Place::kMetadata;
    return true;
  }
  place_ = Place::kTensor;
  raw_ = RawEntry{std::move(key_), {}, false, false, {}, std::move(raw_.range)};
  raw_.range.clear();
  key_.clear();
  return true;
}

bool Handler::key(std::string& text) {
  if (place_ == Place::kTop && (text.empty() || text.size() > kMaxNameBytes ||
                                std::any_of(text.begin(), text.end(), IsControl))) {
    return Fail(kBadString, "a name that is empty, too long or holds control characters");
  }
  key_ = std::move(text);
  if (place_ != Place::kTensor) {
    return true;
  }
  const bool known = (key_ == "dtype" && !raw_.dtype) || (key_ == "shape" && !raw_.has_shape) ||
                     (key_ == "data_offsets" && !raw_.has_range);
  return known || Fail(kBadHeader, "an unknown or repeated field");
}

bool Handler::end_object() {
  if (place_ == Place::kTop) {
    place_ = Place::kEnd;
    return true;
  }
  const bool good = place_ == Place::kTensor ? AddEntry() : MetadataNamesDiffer();
  place_ = Place::kTop;
  return good;
}

bool Handler::start_array(std::size_t /*elements*/) {
  const bool shape = key_ == "shape";
  if (place_ == Place::kMetadata || (place_ == Place::kTensor && key_ == "dtype")) {
    return Unexpected("a list");
  }
  if (place_ != Place::kTensor || (!shape && key_ != "data_offsets")) {
    return Fail(kDepth, "a list where none may be");
  }
  (shape ? raw_.has_shape : raw_.has_range) = true;
  numbers_ = shape ? &raw_.shape : &raw_.range;
  place_ = Place::kNumbers;
  return true;
}

/// A tensor whose own facts agree.
Result<Entry> CheckEntry(RawEntry& raw, std::uint64_t payload_offset, std::uint64_t payload_bytes) {
  if (!raw.dtype) {
    return Bad(kBadDType, fmt::format("tensor '{}' has no dtype", raw.name));
  }
  if (!raw.has_shape || !raw.has_range || raw.range.size() != 2) {
    return Bad(kBadHeader, fmt::format("tensor '{}' lacks shape or data_offsets", raw.name));
  }
  const Result<DType> dtype = DTypeFromSafetensors(*raw.dtype);
  if (!dtype.ok()) {
    return Bad(kBadDType, fmt::format("tensor '{}': {}", raw.name, dtype.error().message));
  }
  if (Status status = CheckShape(raw.shape, *dtype); !status.ok()) {
    return Bad(status.error().reason,
               fmt::format("tensor '{}': {}", raw.name, status.error().message));
  }
  const std::uint64_t begin = raw.range[0];
  const std::uint64_t end = raw.range[1];
  const std::uint64_t needed = NumBytes(raw.shape, *dtype);
  if (begin > end || end - begin != needed) {
    return Bad(kBadRange, fmt::format("tensor '{}': data_offsets [{}, {}) for {} bytes", raw.name,
                                      begin, end, needed));
  }
  if (end > payload_bytes) {
    return Bad(kDataTruncated, fmt::format("tensor '{}' ends at byte {} of the data, which has {}",
                                           raw.name, end, payload_bytes));
  }
  return Entry{raw.name, *dtype, raw.shape, {payload_offset + begin, end - begin}};
}

bool Handler::AddEntry() {
  Result<Entry> entry = CheckEntry(raw_, header.payload_offset, payload_bytes_);
  if (!entry.ok()) {
    error = std::move(entry).error();
    return false;
  }
  header.entries.push_back(std::move(*entry));
  return true;
}

bool Handler::MetadataNamesDiffer() {
  std::vector<std::string_view> names;
  names.reserve(header.metadata.size());
  for (const auto& [name, text] : header.metadata) {
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return std::adjacent_find(names.begin(), names.end()) == names.end() ||
         Fail(kBadMetadata, "a name stands twice in __metadata__");
}

/// Names differ, and the bytes follow each other without gap from begin to end.
Status CheckAll(std::vector<Entry>& entries, std::uint64_t payload_offset, std::uint64_t size) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const Entry& entry : entries) {
    names.push_back(entry.name);
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    return Bad(kDuplicateName, fmt::format("two tensors are called '{}'", *twice));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.bytes.offset, a.bytes.size, a.name) <
           std::tie(b.bytes.offset, b.bytes.size, b.name);
  });
  std::uint64_t at = payload_offset;
  for (const Entry& entry : entries) {
    if (entry.bytes.offset != at) {
      return Bad(entry.bytes.offset < at ? kOverlap : kGap,
                 fmt::format("tensor '{}' begins at byte {} of the file, but the one before ends "
                             "at {}",
                             entry.name, entry.bytes.offset, at));
    }
    at = entry.bytes.end();
  }
  if (at != size) {
    return Bad(kTrailing, fmt::format("{} bytes follow the last tensor", size - at));
  }
  return OkStatus();
}

/// The JSON's bytes. Their number is checked before memory is taken.
Result<std::string> ReadJson(ByteSource& source) {
  std::byte length[8];
  if (source.size() < sizeof(length)) {
    return Bad(kTooShort, fmt::format("{} bytes are no safetensors file", source.size()));
  }
  RESHARD_TRY(source.ReadAt(0, length));
  const auto size = LoadLittle<std::uint64_t>(length);
  if (size == 0) {
    return Bad(kHeaderEmpty, "the header has no bytes");
  }
  if (size > kMaxHeaderBytes) {
    return Bad(kHeaderTooLarge,
               fmt::format("a header of {} bytes, more than {}", size, kMaxHeaderBytes));
  }
  if (size > source.size() - sizeof(length)) {
    return Bad(kHeaderTruncated,
               fmt::format("a header of {} bytes in a file of {}", size, source.size()));
  }
  std::string text(size, '\0');
  RESHARD_TRY(source.ReadAt(sizeof(length), std::as_writable_bytes(std::span(text))));
  return text;
}

/// Parses the JSON, whose text is gone afterwards.
Result<Header> ParseHeader(ByteSource& source) {
  RESHARD_TRY_ASSIGN(const std::string text, ReadJson(source));
  const std::uint64_t payload_offset = sizeof(std::uint64_t) + text.size();
  Handler handler(payload_offset, source.size() - payload_offset);
  if (!json::sax_parse(text, &handler) || handler.error) {
    return handler.error ? Result<Header>(tl::unexpect, std::move(*handler.error))
                         : Bad(kBadHeader, "the header is no JSON");
  }
  return std::move(handler.header);
}

}  // namespace

Result<Header> ReadHeader(ByteSource& source) {
  RESHARD_TRY_ASSIGN(Header header, ParseHeader(source));
  RESHARD_TRY(CheckAll(header.entries, header.payload_offset, source.size()));
  return header;
}

}  // namespace reshard::safetensors
