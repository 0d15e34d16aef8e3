#pragma once

// Finds texts by binary search over their hashes: as fast as a hash table for what we do with it,
// and no set of texts makes it slow.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace reshard {

/// A map from distinct texts, which must outlive it, to numbers. Add all, Sort, then Find.
class TextIndex {
 public:
  void Reserve(std::size_t count) { rows_.reserve(count); }

  void Add(std::string_view text, std::uint32_t number) {
    rows_.push_back({Hash(text), text, number});
  }

  void Sort() {
    std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) {
      return a.hash != b.hash ? a.hash < b.hash : a.text < b.text;
    });
  }

  std::optional<std::uint32_t> Find(std::string_view text) const {
    const std::uint64_t hash = Hash(text);
    const auto found = std::partition_point(rows_.begin(), rows_.end(), [&](const Row& row) {
      return row.hash != hash ? row.hash < hash : row.text < text;
    });
    const bool there = found != rows_.end() && found->hash == hash && found->text == text;
    return there ? std::optional(found->number) : std::nullopt;
  }

 private:
  struct Row {
    std::uint64_t hash;
    std::string_view text;
    std::uint32_t number;
  };

  static std::uint64_t Hash(std::string_view text) { return std::hash<std::string_view>()(text); }

  std::vector<Row> rows_;
};

}  // namespace reshard
