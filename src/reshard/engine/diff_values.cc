#include "reshard/engine/diff_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "reshard/tensor/cast.h"

namespace reshard {
namespace {

/// Units that are decoded at once.
constexpr std::size_t kBlock = 512;

enum class Kind { kInteger, kFloat, kComplex, kPacked };

Kind KindOf(DType dtype) {
  if (Info(dtype).unit_elements > 1) {
    return Kind::kPacked;
  }
  if (CanCast(dtype, DType::kComplex128)) {
    return Kind::kComplex;
  }
  return CanCast(dtype, DType::kFloat8E5m2) ? Kind::kFloat : Kind::kInteger;
}

bool IsSigned(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt32 ||
         dtype == DType::kInt64;
}

/// An integer of any type.
struct Integer {
  bool negative = false;
  std::uint64_t magnitude = 0;
  bool operator==(const Integer&) const = default;
};

Integer LoadInteger(DType dtype, const std::byte* at) {
  const std::uint32_t bytes = Info(dtype).unit_bytes;
  std::uint64_t bits = 0;
  for (std::uint32_t i = 0; i < bytes; ++i) {
    bits |= std::to_integer<std::uint64_t>(at[i]) << (8 * i);
  }
  const std::uint32_t unused = 64 - 8 * bytes;
  if (IsSigned(dtype) && (bits << unused) >> 63 != 0) {
    const auto wide =
        static_cast<std::uint64_t>(static_cast<std::int64_t>(bits << unused) >> unused);
    return {true, ~wide + 1};
  }
  return {false, bits};
}

double IntegerDistance(Integer a, Integer b) {
  if (a.negative != b.negative) {
    return static_cast<double>(a.magnitude) + static_cast<double>(b.magnitude);
  }
  return static_cast<double>(a.magnitude > b.magnitude ? a.magnitude - b.magnitude
                                                       : b.magnitude - a.magnitude);
}

std::string ToText(DType dtype, Integer value) {
  return dtype == DType::kBool ? std::string(value.magnitude != 0 ? "true" : "false")
                               : fmt::format("{}{}", value.negative ? "-" : "", value.magnitude);
}

std::string ToText(double re, double im) {
  return fmt::format("{}{}{}j", re, std::signbit(im) ? "" : "+", im);
}

/// Compares blocks of units of one pair of dtypes.
class Comparer {
 public:
  Comparer(DType dtype_a, DType dtype_b)
      : dtype_a_(dtype_a),
        dtype_b_(dtype_b),
        kind_(KindOf(dtype_a)),
        same_(dtype_a == dtype_b),
        unit_elements_(Info(dtype_a).unit_elements) {}

  /// `index`: of the first element. At most kBlock units.
  void Compare(ByteSpan a, ByteSpan b, std::uint64_t index) {
    if (same_ && std::memcmp(a.data(), b.data(), a.size()) == 0) {
      return;
    }
    const std::size_t units = a.size() / Info(dtype_a_).unit_bytes;
    switch (kind_) {
      case Kind::kInteger:
        return CompareIntegers(a, b, units, index);
      case Kind::kFloat:
        return CompareReals(a, b, units, index);
      case Kind::kComplex:
        return CompareComplex(a, b, units, index);
      case Kind::kPacked:
        return ComparePacked(a, b, units, index);
    }
  }

  ValueDifference Take() { return std::move(found_); }

 private:
  /// Whether unit `i` has the same bits, of one dtype.
  bool SameBits(ByteSpan a, ByteSpan b, std::size_t i) const {
    const std::size_t bytes = Info(dtype_a_).unit_bytes;
    return std::memcmp(a.data() + i * bytes, b.data() + i * bytes, bytes) == 0;
  }

  /// Notes a difference; true when it is the first one.
  bool Note(std::uint64_t index) {
    ++found_.elements;
    if (found_.first) {
      return false;
    }
    found_.first = index;
    return true;
  }

  void NoteDistance(double distance) {
    if (std::isnan(distance)) {
      ++found_.nans;
    } else {
      found_.max_abs = std::max(found_.max_abs, distance);
    }
  }

  void CompareIntegers(ByteSpan a, ByteSpan b, std::size_t units, std::uint64_t index) {
    for (std::size_t i = 0; i < units; ++i) {
      const Integer x = LoadInteger(dtype_a_, a.data() + i * Info(dtype_a_).unit_bytes);
      const Integer y = LoadInteger(dtype_b_, b.data() + i * Info(dtype_b_).unit_bytes);
      if (x == y) {
        continue;
      }
      NoteDistance(IntegerDistance(x, y));
      if (Note(index + i)) {
        found_.first_a = ToText(dtype_a_, x);
        found_.first_b = ToText(dtype_b_, y);
      }
    }
  }

  static void Decode(DType from, DType to, ByteSpan bytes, std::span<double> out) {
    CastCounts counts;
    // No pair of these types fails.
    static_cast<void>(CastElements(from, bytes, to, std::as_writable_bytes(out), counts));
  }

  bool SameValue(double x, double y) const {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y) ||
           (std::isnan(x) && std::isnan(y));
  }

  /// Infinities of one sign are no distance apart, though they may be of different types.
  static double Distance(double x, double y) { return x == y ? 0 : std::abs(x - y); }

  void CompareReals(ByteSpan a, ByteSpan b, std::size_t units, std::uint64_t index) {
    std::array<double, kBlock> x;
    std::array<double, kBlock> y;
    Decode(dtype_a_, DType::kFloat64, a, std::span(x).first(units));
    Decode(dtype_b_, DType::kFloat64, b, std::span(y).first(units));
    for (std::size_t i = 0; i < units; ++i) {
      if (same_ ? SameBits(a, b, i) : SameValue(x[i], y[i])) {
        continue;
      }
      NoteDistance(Distance(x[i], y[i]));
      if (Note(index + i)) {
        found_.first_a = fmt::format("{}", x[i]);
        found_.first_b = fmt::format("{}", y[i]);
      }
    }
  }

  void CompareComplex(ByteSpan a, ByteSpan b, std::size_t units, std::uint64_t index) {
    std::array<double, 2 * kBlock> x;
    std::array<double, 2 * kBlock> y;
    Decode(dtype_a_, DType::kComplex128, a, std::span(x).first(2 * units));
    Decode(dtype_b_, DType::kComplex128, b, std::span(y).first(2 * units));
    for (std::size_t i = 0; i < units; ++i) {
      const double* p = x.data() + 2 * i;
      const double* q = y.data() + 2 * i;
      if (same_ ? SameBits(a, b, i) : SameValue(p[0], q[0]) && SameValue(p[1], q[1])) {
        continue;
      }
      const double re = Distance(p[0], q[0]);
      const double im = Distance(p[1], q[1]);
      NoteDistance(std::isnan(re) || std::isnan(im) ? re + im : std::hypot(re, im));
      if (Note(index + i)) {
        found_.first_a = ToText(p[0], p[1]);
        found_.first_b = ToText(q[0], q[1]);
      }
    }
  }

  void ComparePacked(ByteSpan a, ByteSpan b, std::size_t units, std::uint64_t index) {
    const std::uint32_t bits = Info(dtype_a_).bits;
    const std::size_t bytes = Info(dtype_a_).unit_bytes;
    const auto load = [bytes](const std::byte* at) {
      std::uint32_t unit = 0;
      for (std::size_t i = 0; i < bytes; ++i) {
        unit |= std::to_integer<std::uint32_t>(at[i]) << (8 * i);
      }
      return unit;
    };
    for (std::size_t i = 0; i < units; ++i) {
      const std::uint32_t x = load(a.data() + i * bytes);
      const std::uint32_t y = load(b.data() + i * bytes);
      for (std::uint32_t e = 0; x != y && e < unit_elements_; ++e) {
        const std::uint32_t mask = (1U << bits) - 1;
        const std::uint32_t p = x >> (e * bits) & mask;
        const std::uint32_t q = y >> (e * bits) & mask;
        if (p != q && Note(index + i * unit_elements_ + e)) {
          found_.first_a = fmt::format("0x{:02x}", p);
          found_.first_b = fmt::format("0x{:02x}", q);
        }
      }
    }
  }

  const DType dtype_a_;
  const DType dtype_b_;
  const Kind kind_;
  const bool same_;
  const std::uint32_t unit_elements_;
  ValueDifference found_;
};

}  // namespace

void ValueDifference::Merge(const ValueDifference& other) {
  elements += other.elements;
  nans += other.nans;
  max_abs = std::max(max_abs, other.max_abs);
  if (other.first && (!first || *other.first < *first)) {
    first = other.first;
    first_a = other.first_a;
    first_b = other.first_b;
  }
}

bool AreComparable(DType a, DType b) {
  return a == b || (KindOf(a) == KindOf(b) && KindOf(a) != Kind::kPacked);
}

ValueDifference CompareValues(DType dtype_a, ByteSpan a, DType dtype_b, ByteSpan b,
                              std::uint64_t index) {
  const std::size_t bytes_a = Info(dtype_a).unit_bytes;
  const std::size_t bytes_b = Info(dtype_b).unit_bytes;
  const std::size_t units = a.size() / bytes_a;
  Comparer comparer(dtype_a, dtype_b);
  for (std::size_t i = 0; i < units; i += kBlock) {
    const std::size_t count = std::min(kBlock, units - i);
    comparer.Compare(a.subspan(i * bytes_a, count * bytes_a),
                     b.subspan(i * bytes_b, count * bytes_b),
                     index + i * Info(dtype_a).unit_elements);
  }
  return comparer.Take();
}

}  // namespace reshard
