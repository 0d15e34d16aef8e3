#include "reshard/catalog/cbor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <set>

#include "reshard/base/check.h"

namespace reshard {
namespace {

// Major types of RFC 8949 section 3.1 and the simple values used.
enum Major : std::uint8_t {
  kUnsigned = 0,
  kNegative = 1,
  kBytesType = 2,
  kText = 3,
  kArray = 4,
  kMapType = 5,
  kTag = 6,
  kSimple = 7
};

constexpr std::uint64_t kOpaqueTag = 27;  // IANA CBOR tags: serialised object, [type, its form]
constexpr std::uint8_t kFalse = 0xf4;
constexpr std::uint8_t kTrue = 0xf5;
constexpr std::uint8_t kNull = 0xf6;
constexpr std::uint8_t kFloat64 = 0xfb;

void AppendBigEndian(Bytes& out, std::uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    out.push_back(static_cast<std::byte>(value >> shift));
  }
}

void AppendHead(Bytes& out, Major major, std::uint64_t value) {
  const auto top = static_cast<std::uint8_t>(major << 5);
  if (value < 24) {
    out.push_back(static_cast<std::byte>(top | value));
  } else if (value <= 0xff) {
    out.push_back(static_cast<std::byte>(top | 24));
    AppendBigEndian(out, value, 1);
  } else if (value <= 0xffff) {
    out.push_back(static_cast<std::byte>(top | 25));
    AppendBigEndian(out, value, 2);
  } else if (value <= 0xffffffff) {
    out.push_back(static_cast<std::byte>(top | 26));
    AppendBigEndian(out, value, 4);
  } else {
    out.push_back(static_cast<std::byte>(top | 27));
    AppendBigEndian(out, value, 8);
  }
}

void AppendInteger(Bytes& out, std::int64_t value) {
  if (value >= 0) {
    AppendHead(out, kUnsigned, static_cast<std::uint64_t>(value));
  } else {
    AppendHead(out, kNegative, ~static_cast<std::uint64_t>(value));
  }
}

void AppendString(Bytes& out, Major major, ByteSpan bytes) {
  AppendHead(out, major, bytes.size());
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void AppendKey(Bytes& out, const MapKey& key) {
  if (const auto* text = std::get_if<std::string>(&key)) {
    AppendString(out, kText, AsBytes(*text));
  } else {
    AppendInteger(out, std::get<std::int64_t>(key));
  }
}

void AppendValue(Bytes& out, const Value& value) {
  if (value.is_null()) {
    out.push_back(std::byte{kNull});
  } else if (const auto* flag = value.get_if<bool>()) {
    out.push_back(std::byte{*flag ? kTrue : kFalse});
  } else if (const auto* number = value.get_if<std::int64_t>()) {
    AppendInteger(out, *number);
  } else if (const auto* real = value.get_if<double>()) {
    out.push_back(std::byte{kFloat64});
    AppendBigEndian(out, std::bit_cast<std::uint64_t>(*real), 8);
  } else if (const auto* text = value.get_if<std::string>()) {
    AppendString(out, kText, AsBytes(*text));
  } else if (const auto* bytes = value.get_if<Bytes>()) {
    AppendString(out, kBytesType, *bytes);
  } else if (const auto* list = value.get_if<Value::List>()) {
    AppendHead(out, kArray, list->size());
    for (const Value& item : *list) {
      AppendValue(out, item);
    }
  } else if (const auto* opaque = value.get_if<Opaque>()) {
    AppendHead(out, kTag, kOpaqueTag);
    AppendHead(out, kArray, 2);
    AppendString(out, kText, AsBytes(opaque->type));
    AppendString(out, kBytesType, opaque->bytes);
  } else {
    const auto* map = value.get_if<Value::Map>();
    RESHARD_CHECK(map != nullptr);
    AppendHead(out, kMapType, map->size());
    for (const auto& [key, item] : *map) {
      AppendKey(out, key);
      AppendValue(out, item);
    }
  }
}

class Decoder {
 public:
  explicit Decoder(ByteSpan bytes) : bytes_(bytes) {}

  Status Finish() const {
    return at_ == bytes_.size() ? OkStatus() : Status(Bad("bytes after the end"));
  }

  Result<Value> ReadValue(std::size_t depth) {
    if (depth > kMaxNesting) {
      return Bad("nested too deep");
    }
    RESHARD_TRY_ASSIGN(const Head head, ReadHead());
    switch (head.major) {
      case kUnsigned:
      case kNegative:
        return Integer(head);
      case kBytesType: {
        RESHARD_TRY_ASSIGN(const ByteSpan bytes, Take(head.value));
        return Value(Bytes(bytes.begin(), bytes.end()));
      }
      case kText: {
        RESHARD_TRY_ASSIGN(const ByteSpan bytes, Take(head.value));
        return Value(std::string(AsText(bytes)));
      }
      case kArray:
        return ReadList(head.value, depth);
      case kMapType:
        return ReadMap(head.value, depth);
      case kTag:
        return ReadOpaque(head.value, depth);
      case kSimple:
        return Simple(head);
      default:
        return Bad("a type that objects do not use");
    }
  }

  Result<Path> ReadPath() {
    RESHARD_TRY_ASSIGN(const Head head, ReadHead());
    if (head.major != kArray || head.value > kMaxNesting + 1) {
      return Bad("a path must be a short array");
    }
    Path path;
    for (std::uint64_t i = 0; i < head.value; ++i) {
      RESHARD_TRY_ASSIGN(PathPart part, ReadPart());
      path.push_back(std::move(part));
    }
    return path;
  }

 private:
  struct Head {
    std::uint8_t major = 0;
    std::uint8_t info = 0;
    std::uint64_t value = 0;
  };

  tl::unexpected<Error> Bad(std::string_view what) const {
    return MakeError(ErrorCode::kCorruption, kBadObject,
                     fmt::format("object bytes at offset {}: {}", at_, what));
  }

  Result<ByteSpan> Take(std::uint64_t size) {
    if (size > bytes_.size() - at_) {
      return Bad("ends too early");
    }
    const ByteSpan out = bytes_.subspan(at_, size);
    at_ += size;
    return out;
  }

  Result<Head> ReadHead() {
    RESHARD_TRY_ASSIGN(const ByteSpan first, Take(1));
    Head head;
    head.major = std::to_integer<std::uint8_t>(first[0]) >> 5;
    head.info = std::to_integer<std::uint8_t>(first[0]) & 31;
    if (head.info < 24) {
      head.value = head.info;
      return head;
    }
    if (head.info > 27) {
      return Bad("an indefinite or reserved length");
    }
    const int size = 1 << (head.info - 24);
    RESHARD_TRY_ASSIGN(const ByteSpan more, Take(static_cast<std::uint64_t>(size)));
    for (std::byte b : more) {
      head.value = head.value << 8 | std::to_integer<std::uint8_t>(b);
    }
    constexpr std::uint64_t kLeast[] = {24, 0x100, 0x10000, 0x100000000};
    if (head.major != kSimple && head.value < kLeast[head.info - 24]) {
      return Bad("a length that is not in its shortest form");
    }
    return head;
  }

  Result<Value> Integer(const Head& head) const {
    if (head.value >> 63 != 0) {
      return Bad("an integer beyond 64 signed bits");
    }
    const auto number = static_cast<std::int64_t>(head.value);
    return Value(head.major == kUnsigned ? number : ~number);
  }

  Result<Value> Simple(const Head& head) const {
    switch (head.info) {
      case kFalse & 31:
        return Value(false);
      case kTrue & 31:
        return Value(true);
      case kNull & 31:
        return Value();
      case kFloat64 & 31:
        return Value(std::bit_cast<double>(head.value));
      default:
        return Bad("a simple value that objects do not use");
    }
  }

  Result<Value> ReadList(std::uint64_t count, std::size_t depth) {
    if (count > bytes_.size() - at_) {
      return Bad("an array longer than its bytes");
    }
    Value::List list;
    for (std::uint64_t i = 0; i < count; ++i) {
      RESHARD_TRY_ASSIGN(Value item, ReadValue(depth + 1));
      list.push_back(std::move(item));
    }
    return Value(std::move(list));
  }

  Result<MapKey> ReadKey() {
    RESHARD_TRY_ASSIGN(const Head head, ReadHead());
    if (head.major == kText) {
      RESHARD_TRY_ASSIGN(const ByteSpan text, Take(head.value));
      return MapKey(std::string(AsText(text)));
    }
    if (head.major != kUnsigned && head.major != kNegative) {
      return Bad("a map key that is neither text nor integer");
    }
    RESHARD_TRY_ASSIGN(const Value number, Integer(head));
    return MapKey(*number.get_if<std::int64_t>());
  }

  Result<Value> ReadMap(std::uint64_t count, std::size_t depth) {
    if (count > (bytes_.size() - at_) / 2) {
      return Bad("a map longer than its bytes");
    }
    Value::Map map;
    std::set<MapKey> seen;
    for (std::uint64_t i = 0; i < count; ++i) {
      RESHARD_TRY_ASSIGN(MapKey key, ReadKey());
      if (!seen.insert(key).second) {
        return Bad("a map key that stands twice");
      }
      RESHARD_TRY_ASSIGN(Value item, ReadValue(depth + 1));
      map.emplace_back(std::move(key), std::move(item));
    }
    return Value(std::move(map));
  }

  Result<Value> ReadOpaque(std::uint64_t tag, std::size_t depth) {
    if (tag != kOpaqueTag) {
      return Bad("a tag that objects do not use");
    }
    RESHARD_TRY_ASSIGN(Value parts, ReadValue(depth + 1));
    auto* list = parts.get_if<Value::List>();
    if (list == nullptr || list->size() != 2 || (*list)[0].get_if<std::string>() == nullptr ||
        (*list)[1].get_if<Bytes>() == nullptr) {
      return Bad("an opaque value that is not a type and bytes");
    }
    return Value(Opaque{std::move(*(*list)[0].get_if<std::string>()),
                        std::move(*(*list)[1].get_if<Bytes>())});
  }

  Result<PathPart> ReadPart() {
    RESHARD_TRY_ASSIGN(const Value part, ReadValue(kMaxNesting - 1));
    if (const auto* text = part.get_if<std::string>()) {
      return PathPart(*text);
    }
    if (const auto* number = part.get_if<std::int64_t>()) {
      return PathPart(*number);
    }
    const auto* list = part.get_if<Value::List>();
    if (list != nullptr && list->size() == 1) {
      const auto* position = (*list)[0].get_if<std::int64_t>();
      if (position != nullptr && *position >= 0) {
        return PathPart(ListIndex{static_cast<std::uint64_t>(*position)});
      }
    }
    return Bad("a path part that is neither key nor position");
  }

  ByteSpan bytes_;
  std::size_t at_ = 0;
};

}  // namespace

Bytes EncodeObject(const Value& value) {
  Bytes out;
  AppendValue(out, value);
  return out;
}

bool MayHoldOpaque(ByteSpan bytes) {
  const std::byte head[] = {std::byte{kTag << 5 | 24}, std::byte{kOpaqueTag}};
  return std::search(bytes.begin(), bytes.end(), std::begin(head), std::end(head)) != bytes.end();
}

Result<Value> DecodeObject(ByteSpan bytes) {
  Decoder decoder(bytes);
  RESHARD_TRY_ASSIGN(Value value, decoder.ReadValue(0));
  RESHARD_TRY(decoder.Finish());
  return value;
}

Bytes EncodePath(const Path& path) {
  Bytes out;
  AppendHead(out, kArray, path.size());
  for (const PathPart& part : path) {
    if (const auto* text = std::get_if<std::string>(&part)) {
      AppendString(out, kText, AsBytes(*text));
    } else if (const auto* number = std::get_if<std::int64_t>(&part)) {
      AppendInteger(out, *number);
    } else {
      AppendHead(out, kArray, 1);
      AppendHead(out, kUnsigned, std::get<ListIndex>(part).position);
    }
  }
  return out;
}

Result<Path> DecodePath(ByteSpan bytes) {
  Decoder decoder(bytes);
  RESHARD_TRY_ASSIGN(Path path, decoder.ReadPath());
  RESHARD_TRY(decoder.Finish());
  return path;
}

}  // namespace reshard
