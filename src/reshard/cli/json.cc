#include "reshard/cli/json.h"

#include <fmt/format.h>

#include <cmath>

namespace reshard::cli {
namespace {

Json NumberToJson(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "Infinity" : "-Infinity";
  }
  return value;
}

std::string KeyText(const MapKey& key) {
  const auto* text = std::get_if<std::string>(&key);
  return text != nullptr ? *text : std::to_string(std::get<std::int64_t>(key));
}

}  // namespace

std::string Line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json ToJson(const Value& value) {
  if (const auto* b = value.get_if<bool>()) {
    return *b;
  }
  if (const auto* i = value.get_if<std::int64_t>()) {
    return *i;
  }
  if (const auto* d = value.get_if<double>()) {
    return NumberToJson(*d);
  }
  if (const auto* s = value.get_if<std::string>()) {
    return *s;
  }
  if (const auto* bytes = value.get_if<Bytes>()) {
    return Base64(*bytes);
  }
  if (const auto* opaque = value.get_if<Opaque>()) {
    return {{"opaque", opaque->type},
            {"bytes", opaque->has_content() ? Json(Base64(opaque->bytes)) : Json(nullptr)}};
  }
  if (const auto* list = value.get_if<Value::List>()) {
    Json out = Json::array();
    for (const Value& entry : *list) {
      out.push_back(ToJson(entry));
    }
    return out;
  }
  if (const auto* map = value.get_if<Value::Map>()) {
    Json out = Json::object();
    for (const auto& [key, entry] : *map) {
      out[KeyText(key)] = ToJson(entry);
    }
    return out;
  }
  return nullptr;
}

Json ToJson(const Path& path) {
  Json out = Json::array();
  for (const PathPart& part : path) {
    if (const auto* text = std::get_if<std::string>(&part)) {
      out.push_back(*text);
    } else if (const auto* number = std::get_if<std::int64_t>(&part)) {
      out.push_back(*number);
    } else {
      out.push_back(Json::array({std::get<ListIndex>(part).position}));
    }
  }
  return out;
}

Json ToJson(const Error& error) {
  return {
      {"code", ErrorCodeName(error.code)}, {"reason", error.reason}, {"message", error.message}};
}

std::string DigestText(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

std::string Base64(ByteSpan bytes) {
  static constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t b = 0; b < 3; ++b) {
      group = group << 8 | (b < count ? std::to_integer<std::uint32_t>(bytes[i + b]) : 0);
    }
    for (std::size_t c = 0; c < 4; ++c) {
      out += c <= count ? kAlphabet[group >> (18 - 6 * c) & 63] : '=';
    }
  }
  return out;
}

}  // namespace reshard::cli
