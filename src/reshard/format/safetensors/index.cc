#include "reshard/format/safetensors/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>

#include "reshard/format/safetensors/header.h"
#include "reshard/format/safetensors/json_walk_internal.h"

namespace reshard::safetensors {
namespace {

constexpr std::string_view kMap = "weight_map";

tl::unexpected<Error> Bad(std::string_view reason, std::string message) {
  return MakeError(ErrorCode::kCorruption, reason, std::move(message));
}

bool IsOddName(std::string_view name) {
  return name.empty() || name.size() > kMaxNameBytes ||
         std::any_of(name.begin(), name.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

class Handler final : public JsonWalk {
 public:
  SetIndex index;

  bool has_map() const { return has_map_; }

 private:
  bool in_map() const { return keys().size() == 2 && keys()[0] == kMap; }

  bool OnText(std::string& text) override {
    if (!in_map()) {
      return OnOther();
    }
    if (IsOddName(keys()[1])) {
      return Fail(kBadString,
                  "a tensor's name that is empty, too long or holds control characters");
    }
    if (IsOddName(text)) {
      return Fail(kBadString, fmt::format("tensor '{}': no name of a file", keys()[1]));
    }
    const auto [at, added] =
        files_.try_emplace(std::move(text), static_cast<std::uint32_t>(index.files.size()));
    if (added) {
      if (index.files.size() == kMaxIndexFiles) {
        return Fail(kIndexTooLarge, fmt::format("it names more than {} files", kMaxIndexFiles));
      }
      index.files.push_back(at->first);
    }
    index.tensors.push_back({keys()[1], at->second});
    return true;
  }

  bool OnNumber(std::uint64_t number) override {
    if (keys().size() == 2 && keys()[0] == "metadata" && keys()[1] == "total_size") {
      index.total_size = number;
    }
    return OnOther();
  }

  bool OnOther() override {
    const bool map = !keys().empty() && keys()[0] == kMap;
    return (!map && !keys().empty()) ||
           Fail(kBadIndex,
                map ? "weight_map is no map from text to text" : "the index is no JSON object");
  }

  bool OnBegin(bool object) override {
    if (keys().size() == 1) {
      return object || Fail(kBadIndex, "the index is no JSON object");
    }
    if (keys()[0] != kMap) {
      return true;
    }
    if (keys().size() > 2 || !object) {
      return Fail(kBadIndex, "weight_map is no map from text to text");
    }
    const bool first = !has_map_;
    has_map_ = true;
    return first || Fail(kBadIndex, "weight_map stands twice");
  }

  std::string_view syntax_reason() const override { return kBadIndex; }

  std::unordered_map<std::string, std::uint32_t> files_;
  bool has_map_ = false;
};

Result<SetIndex> Parse(ByteSource& source) {
  if (source.size() > kMaxIndexBytes) {
    return Bad(kIndexTooLarge,
               fmt::format("an index of {} bytes, more than {}", source.size(), kMaxIndexBytes));
  }
  std::string text(source.size(), '\0');
  RESHARD_TRY(source.ReadAt(0, std::as_writable_bytes(std::span(text))));
  Handler handler;
  if (!handler.Run(text)) {
    return handler.error ? Result<SetIndex>(tl::unexpect, std::move(*handler.error))
                         : Bad(kBadIndex, "the index is no JSON");
  }
  if (!handler.has_map()) {
    return Bad(kBadIndex, "the index has no weight_map");
  }
  return std::move(handler.index);
}

void SortFiles(SetIndex& index) {
  std::vector<std::uint32_t> order(index.files.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&index](std::uint32_t a, std::uint32_t b) { return index.files[a] < index.files[b]; });
  std::vector<std::uint32_t> places(order.size());
  std::vector<std::string> sorted(order.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    places[order[i]] = i;
    sorted[i] = std::move(index.files[order[i]]);
  }
  index.files = std::move(sorted);
  for (IndexEntry& entry : index.tensors) {
    entry.file = places[entry.file];
  }
}

/// `text` in quotes; what JSON must escape, escaped.
std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }

}  // namespace

const IndexEntry* SetIndex::Find(std::string_view name) const {
  const auto at = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const IndexEntry& entry, std::string_view wanted) { return entry.name < wanted; });
  return at != tensors.end() && at->name == name ? &*at : nullptr;
}

Result<SetIndex> DecodeIndex(ByteSource& source) {
  RESHARD_TRY_ASSIGN(SetIndex index, Parse(source));
  SortFiles(index);
  std::sort(index.tensors.begin(), index.tensors.end(),
            [](const IndexEntry& a, const IndexEntry& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(index.tensors.begin(), index.tensors.end(),
                         [](const IndexEntry& a, const IndexEntry& b) { return a.name == b.name; });
  if (twice != index.tensors.end()) {
    return Bad(kDuplicateName, fmt::format("tensor '{}' stands twice in weight_map", twice->name));
  }
  return index;
}

std::string EncodeIndex(const SetIndex& index) {
  std::string out = fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n",
                                index.total_size.value_or(0));
  out += "  \"weight_map\": {";
  std::string_view separator = "\n";
  for (const IndexEntry& entry : index.tensors) {
    out +=
        fmt::format("{}    {}: {}", separator, Quoted(entry.name), Quoted(index.files[entry.file]));
    separator = ",\n";
  }
  out += index.tensors.empty() ? "}\n}\n" : "\n  }\n}\n";
  return out;
}

}  // namespace reshard::safetensors
