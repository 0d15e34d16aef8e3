#pragma once

// A reader of safetensors files written from the public description of the format, independent of
// the library: strict JSON, names unique after unescaping, ranges that touch each other, sizes that
// fit the dtypes.

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "reshard/base/bytes.h"

namespace reshard::testing {

struct SafetensorsEntry {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct SafetensorsFile {
  std::string error;  ///< Empty: the file is valid.
  std::uint64_t payload_offset = 0;
  std::map<std::string, std::string> metadata;
  std::map<std::string, SafetensorsEntry> tensors;
};

/// Bits of one element; 0 for an unknown tag.
inline std::uint64_t SafetensorsBits(const std::string& dtype) {
  static const std::map<std::string, std::uint64_t> kBits = {
      {"BOOL", 8},    {"U8", 8},      {"I8", 8},          {"U16", 16},        {"I16", 16},
      {"U32", 32},    {"I32", 32},    {"U64", 64},        {"I64", 64},        {"F16", 16},
      {"BF16", 16},   {"F32", 32},    {"F64", 64},        {"C64", 64},        {"F8_E4M3", 8},
      {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},
      {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  const auto at = kBits.find(dtype);
  return at == kBits.end() ? 0 : at->second;
}

/// Checks one entry and adds it; returns what is wrong.
inline std::string AddSafetensorsEntry(const std::string& name, const nlohmann::json& item,
                                       SafetensorsFile& out) {
  if (name.size() > 4096 ||
      std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20; })) {
    return "a name that strict readers refuse";
  }
  if (item.size() != 3 || !item.contains("dtype") || !item.contains("shape") ||
      !item.contains("data_offsets") || item["data_offsets"].size() != 2) {
    return "entry '" + name + "' has other fields";
  }
  SafetensorsEntry entry;
  entry.dtype = item["dtype"].get<std::string>();
  std::uint64_t bits = SafetensorsBits(entry.dtype);
  for (const auto& extent : item["shape"]) {
    if (!extent.is_number_unsigned()) {
      return "a shape that is no list of whole numbers";
    }
    entry.shape.push_back(extent.get<std::uint64_t>());
    bits *= entry.shape.back();
  }
  entry.begin = item["data_offsets"][0].get<std::uint64_t>();
  entry.end = item["data_offsets"][1].get<std::uint64_t>();
  if (SafetensorsBits(entry.dtype) == 0 || bits % 8 != 0 || entry.end - entry.begin != bits / 8) {
    return "entry '" + name + "' has a size that does not fit its dtype and shape";
  }
  out.tensors[name] = std::move(entry);
  return "";
}

/// Ranges sorted by offset start at 0, touch, and end at the end of the file.
inline std::string CheckSafetensorsRanges(const SafetensorsFile& file, std::uint64_t file_size) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [name, entry] : file.tensors) {
    ranges.emplace_back(entry.begin, entry.end);
  }
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != at) {
      return "a gap or an overlap at " + std::to_string(at);
    }
    at = end;
  }
  return file.payload_offset + at == file_size ? "" : "the data do not end with the file";
}

/// `header` begins the file; it may be the whole file.
inline SafetensorsFile ReadSafetensors(ByteSpan header, std::uint64_t file_size) {
  SafetensorsFile out;
  const auto fail = [&out](std::string error) {
    out.error = std::move(error);
    return out;
  };
  if (header.size() < 8) {
    return fail("too short");
  }
  const auto size = LoadLittle<std::uint64_t>(header.data());
  if (size > 100'000'000 || size > header.size() - 8) {
    return fail("the header is too long");
  }
  out.payload_offset = 8 + size;
  const std::string_view text = AsText(header.subspan(8, size));
  if (text.empty() || text[0] != '{') {
    return fail("the header does not begin with {");
  }
  bool twice = false;
  std::vector<std::set<std::string>> seen;
  const auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    if (event == nlohmann::json::parse_event_t::object_start) {
      seen.emplace_back();
    } else if (event == nlohmann::json::parse_event_t::object_end) {
      seen.pop_back();
    } else if (event == nlohmann::json::parse_event_t::key) {
      twice = twice || !seen.back().insert(parsed.get<std::string>()).second;
    }
    return true;
  };
  const nlohmann::json json = nlohmann::json::parse(text, watch, false);
  if (json.is_discarded() || !json.is_object() || twice) {
    return fail(twice ? "a name stands twice" : "the header is no JSON object");
  }
  for (const auto& [name, item] : json.items()) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : item.items()) {
        if (!value.is_string()) {
          return fail("metadata that is no string");
        }
        out.metadata[key] = value.get<std::string>();
      }
    } else if (std::string error = AddSafetensorsEntry(name, item, out); !error.empty()) {
      return fail(std::move(error));
    }
  }
  out.error = CheckSafetensorsRanges(out, file_size);
  return out;
}

}  // namespace reshard::testing
