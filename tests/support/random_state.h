#pragma once

// Random plain values and state dicts for round-trip tests.

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "reshard/catalog/value.h"

namespace reshard::testing {

/// Makes random values; the seed is printed by the test that uses it.
class RandomState {
 public:
  explicit RandomState(std::uint64_t seed) : random_(seed) {}

  std::uint64_t Below(std::uint64_t limit) { return random_() % limit; }

  /// A value without tensors.
  Value Plain(int depth) {
    switch (Below(depth > 0 ? 8 : 6)) {
      case 0:
        return {};
      case 1:
        return Below(2) == 0;
      case 2:
        return static_cast<std::int64_t>(random_()) >> Below(64);
      case 3:
        return static_cast<double>(static_cast<std::int64_t>(random_())) / 3.0;
      case 4:
        return Text();
      case 5:
        return Bytes(Below(5), static_cast<std::byte>(Below(256)));
      case 6: {
        Value::List list;
        for (std::uint64_t i = Below(4); i > 0; --i) {
          list.push_back(Plain(depth - 1));
        }
        return list;
      }
      default: {
        Value map = Value::Map();
        for (std::uint64_t i = Below(4); i > 0; --i) {
          map[Key()] = Plain(depth - 1);
        }
        return map;
      }
    }
  }

  /// A value that may hold tensors and per-rank values.
  Value Nested(int depth) {
    switch (Below(depth > 0 ? 6 : 3)) {
      case 0:
        return Plain(2);
      case 1:
        return Tensor::Absent(DType::kFloat32, {Below(5), Below(5)});
      case 2:
        return PerRank(Plain(1));
      case 3: {
        Value::List list;
        for (std::uint64_t i = Below(13); i > 0; --i) {
          list.push_back(Nested(depth - 1));
        }
        return list;
      }
      default:
        return Dict(depth);
    }
  }

  /// A map with up to four entries.
  Value Dict(int depth) {
    Value map = Value::Map();
    for (std::uint64_t i = Below(5); i > 0; --i) {
      map[Key()] = Nested(depth - 1);
    }
    return map;
  }

 private:
  std::string Text() {
    static constexpr std::string_view kAlphabet[] = {"a", "Z", "0", ".", "ä", "€", "\"", " ", "@"};
    std::string text;
    for (std::uint64_t i = Below(4); i > 0; --i) {
      text += kAlphabet[Below(std::size(kAlphabet))];
    }
    return text;
  }

  /// A serial number in each key keeps flat keys apart: only the paths are random.
  MapKey Key() {
    if (Below(2) == 0) {
      return MapKey(static_cast<std::int64_t>(serial_++) - 1000);
    }
    return MapKey(fmt::format("k{}{}", Text(), serial_++));
  }

  std::mt19937_64 random_;
  std::uint64_t serial_ = 0;
};

}  // namespace reshard::testing
