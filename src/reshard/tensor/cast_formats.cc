#include <algorithm>
#include <bit>

#include "reshard/base/bytes.h"
#include "reshard/tensor/cast_internal.h"

namespace reshard::cast_internal {
namespace {

constexpr std::uint64_t kSign64 = std::uint64_t{1} << 63;
constexpr std::uint64_t kInfinity64 = std::uint64_t{0x7ff} << 52;
constexpr std::uint64_t kMantissa64 = (std::uint64_t{1} << 52) - 1;
constexpr std::uint64_t kQuiet64 = std::uint64_t{1} << 51;

// What the code points at the top of a small floating-point format mean.
enum class Specials {
  kIeee,          // infinity and many NaN
  kNanOnly,       // "fn": all ones is NaN, no infinity
  kUnsignedZero,  // "fnuz": minus zero's code is the one NaN, no infinity
};

// A binary format of at most 32 bits: sign, exponent, mantissa.
template <typename BitsT, int kMantissaBits, int kBiasValue, Specials kSpecialCodes>
struct Format {
  using Bits = BitsT;
  static constexpr int kMantissa = kMantissaBits;
  static constexpr int kBias = kBiasValue;
  static constexpr Specials kSpecials = kSpecialCodes;
  static constexpr Bits kSign = static_cast<Bits>(Bits{1} << (sizeof(Bits) * 8 - 1));
  static constexpr Bits kMagnitude = static_cast<Bits>(kSign - 1);
  static constexpr Bits kMantissaMask = static_cast<Bits>((Bits{1} << kMantissa) - 1);
  static constexpr Bits kInfinity = static_cast<Bits>(kMagnitude & ~kMantissaMask);
  static constexpr Bits kLargest =
      static_cast<Bits>(kSpecials == Specials::kIeee      ? kInfinity - 1
                        : kSpecials == Specials::kNanOnly ? kMagnitude - 1
                                                          : kMagnitude);
};

using Float32 = Format<std::uint32_t, 23, 127, Specials::kIeee>;
using Bfloat16 = Format<std::uint16_t, 7, 127, Specials::kIeee>;
using Float16 = Format<std::uint16_t, 10, 15, Specials::kIeee>;
using Float8E5m2 = Format<std::uint8_t, 2, 15, Specials::kIeee>;
using Float8E4m3fn = Format<std::uint8_t, 3, 7, Specials::kNanOnly>;
using Float8E5m2fnuz = Format<std::uint8_t, 2, 16, Specials::kUnsignedZero>;
using Float8E4m3fnuz = Format<std::uint8_t, 3, 8, Specials::kUnsignedZero>;

template <typename F>
bool IsNan(typename F::Bits code) {
  const auto magnitude = static_cast<typename F::Bits>(code & F::kMagnitude);
  if constexpr (F::kSpecials == Specials::kUnsignedZero) {
    return code == F::kSign;
  } else if constexpr (F::kSpecials == Specials::kNanOnly) {
    return magnitude > F::kLargest;
  } else {
    return magnitude > F::kInfinity;
  }
}

// The bits of the double of the same value. A NaN keeps sign and payload and becomes quiet.
template <typename F>
std::uint64_t DecodeFloat(typename F::Bits code) {
  const std::uint64_t mantissa = code & F::kMantissaMask;
  std::uint64_t sign = (code & F::kSign) != 0 ? kSign64 : 0;
  if (IsNan<F>(code)) {
    sign = F::kSpecials == Specials::kUnsignedZero ? 0 : sign;  // that NaN has no sign
    return sign | kInfinity64 | kQuiet64 | mantissa << (52 - F::kMantissa);
  }
  const auto magnitude = static_cast<typename F::Bits>(code & F::kMagnitude);
  if (F::kSpecials == Specials::kIeee && magnitude == F::kInfinity) {
    return sign | kInfinity64;
  }
  const std::uint64_t exponent = magnitude >> F::kMantissa;
  if (exponent == 0) {  // subnormal: an integer times the smallest step
    constexpr std::uint64_t kStep = std::uint64_t{1024 - F::kBias - F::kMantissa} << 52;
    return sign | std::bit_cast<std::uint64_t>(static_cast<double>(mantissa) *
                                               std::bit_cast<double>(kStep));
  }
  return sign | (exponent + 1023 - F::kBias) << 52 | mantissa << (52 - F::kMantissa);
}

// What a NaN, or an infinity where there is none, becomes.
template <typename F>
typename F::Bits EncodeNan(std::uint64_t wide) {
  using Bits = typename F::Bits;
  const Bits sign = (wide & kSign64) != 0 ? F::kSign : Bits{0};
  if constexpr (F::kSpecials == Specials::kUnsignedZero) {
    return F::kSign;
  } else if constexpr (F::kSpecials == Specials::kNanOnly) {
    return static_cast<Bits>(sign | F::kMagnitude);
  } else {
    constexpr Bits kQuiet = static_cast<Bits>(Bits{1} << (F::kMantissa - 1));
    const auto payload = static_cast<Bits>(wide >> (52 - F::kMantissa) & F::kMantissaMask);
    return static_cast<Bits>(sign | F::kInfinity | kQuiet | payload);
  }
}

// Rounds the double of bits `wide` to nearest, ties to even; adds to `overflowed`.
template <typename F>
typename F::Bits EncodeFloat(std::uint64_t wide, std::uint64_t& overflowed) {
  using Bits = typename F::Bits;
  const Bits sign = (wide & kSign64) != 0 ? F::kSign : Bits{0};
  const std::uint64_t magnitude = wide & ~kSign64;
  if (magnitude > kInfinity64) {
    return EncodeNan<F>(wide);
  }
  const bool infinite = magnitude == kInfinity64;
  // The value is significand * 2^e. All these formats start far above the doubles' own subnormals,
  // so those round to zero although they lack the bit that is set here.
  const std::uint64_t significand = (magnitude & kMantissa64) | (kMantissa64 + 1);
  const int true_exponent = static_cast<int>(magnitude >> 52) - 1023 + F::kBias;
  const int exponent = std::max(true_exponent, 1);  // subnormals share the exponent 1
  const int shift = 52 - F::kMantissa + exponent - true_exponent;
  std::uint64_t kept = 0;
  if (shift < 63) {
    const std::uint64_t half = std::uint64_t{1} << (shift - 1);
    const std::uint64_t rest = significand & (2 * half - 1);
    kept = significand >> shift;
    kept += rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0;
  }
  // A carry out of the mantissa moves to the next exponent, or from subnormal to normal, by itself.
  const std::uint64_t code = kept + (static_cast<std::uint64_t>(exponent - 1) << F::kMantissa);
  if (infinite || code > F::kLargest) {
    overflowed += infinite ? 0 : 1;
    return F::kSpecials == Specials::kIeee ? static_cast<Bits>(sign | F::kInfinity)
                                           : EncodeNan<F>(wide);
  }
  const bool no_sign = F::kSpecials == Specials::kUnsignedZero && code == 0;
  return static_cast<Bits>(code | (no_sign ? Bits{0} : sign));
}

// float8_e8m0fnu: 2^(code - 127), 0xff is NaN; no sign, no zero.
constexpr std::uint8_t kE8m0Nan = 0xff;

std::uint64_t DecodeE8m0(std::uint8_t code) {
  return code == kE8m0Nan ? kInfinity64 | kQuiet64 : (std::uint64_t{code} + 1023 - 127) << 52;
}

std::uint8_t EncodeE8m0(std::uint64_t wide, std::uint64_t& overflowed) {
  const std::uint64_t code = (wide >> 52) - (1023 - 127);  // wraps below the range
  if ((wide & kMantissa64) == 0 && code < kE8m0Nan) {
    return static_cast<std::uint8_t>(code);
  }
  overflowed += (wide & kInfinity64) != kInfinity64 ? 1 : 0;
  return kE8m0Nan;
}

// The bits of a double that rounds to every narrower floating-point type as `value` does: beyond 53
// bits the last kept bit is set when any dropped one was (round to odd).
template <typename Int>
std::uint64_t DecodeInteger(Int value) {
  if constexpr (sizeof(Int) == 8) {
    const bool negative = value < 0;
    std::uint64_t magnitude = static_cast<std::uint64_t>(value);
    magnitude = negative ? 0 - magnitude : magnitude;
    constexpr std::uint64_t kDropped = (1U << 11) - 1;
    if (magnitude >> 53 != 0) {
      magnitude = (magnitude & ~kDropped) | ((magnitude & kDropped) != 0 ? kDropped + 1 : 0);
    }
    const auto wide = std::bit_cast<std::uint64_t>(static_cast<double>(magnitude));
    return wide | (negative ? kSign64 : 0);
  } else {
    return std::bit_cast<std::uint64_t>(static_cast<double>(value));
  }
}

template <typename Bits, std::uint64_t (*kDecode)(Bits)>
void DecodeAll(const std::byte* src, std::uint64_t* wide, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    wide[i] = kDecode(LoadLittle<Bits>(src + i * sizeof(Bits)));
  }
}

template <typename Bits, Bits (*kEncode)(std::uint64_t, std::uint64_t&)>
void EncodeAll(const std::uint64_t* wide, std::byte* dst, std::size_t count,
               std::uint64_t& overflowed) {
  for (std::size_t i = 0; i < count; ++i) {
    StoreLittle<Bits>(dst + i * sizeof(Bits), kEncode(wide[i], overflowed));
  }
}

template <typename F>
constexpr DecodeBlock kDecodeFloat = &DecodeAll<typename F::Bits, &DecodeFloat<F>>;

template <typename F>
constexpr EncodeBlock kEncodeFloat = &EncodeAll<typename F::Bits, &EncodeFloat<F>>;

template <typename Int>
constexpr DecodeBlock kDecodeInteger = &DecodeAll<Int, &DecodeInteger<Int>>;

std::uint64_t DecodeBool(std::uint8_t value) { return DecodeInteger<int>(value != 0 ? 1 : 0); }

std::uint64_t DecodeDouble(std::uint64_t wide) { return wide; }

std::uint64_t EncodeDouble(std::uint64_t wide, std::uint64_t&) {
  return (wide & ~kSign64) > kInfinity64 ? wide | kQuiet64 : wide;
}

}  // namespace

DecodeBlock FindDecoder(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return &DecodeAll<std::uint8_t, &DecodeBool>;
    case DType::kUint8:
      return kDecodeInteger<std::uint8_t>;
    case DType::kInt8:
      return kDecodeInteger<std::int8_t>;
    case DType::kUint16:
      return kDecodeInteger<std::uint16_t>;
    case DType::kInt16:
      return kDecodeInteger<std::int16_t>;
    case DType::kUint32:
      return kDecodeInteger<std::uint32_t>;
    case DType::kInt32:
      return kDecodeInteger<std::int32_t>;
    case DType::kUint64:
      return kDecodeInteger<std::uint64_t>;
    case DType::kInt64:
      return kDecodeInteger<std::int64_t>;
    case DType::kFloat16:
      return kDecodeFloat<Float16>;
    case DType::kBfloat16:
      return kDecodeFloat<Bfloat16>;
    case DType::kFloat32:
      return kDecodeFloat<Float32>;
    case DType::kFloat64:
      return &DecodeAll<std::uint64_t, &DecodeDouble>;
    case DType::kFloat8E4m3fn:
      return kDecodeFloat<Float8E4m3fn>;
    case DType::kFloat8E5m2:
      return kDecodeFloat<Float8E5m2>;
    case DType::kFloat8E8m0fnu:
      return &DecodeAll<std::uint8_t, &DecodeE8m0>;
    case DType::kFloat8E4m3fnuz:
      return kDecodeFloat<Float8E4m3fnuz>;
    case DType::kFloat8E5m2fnuz:
      return kDecodeFloat<Float8E5m2fnuz>;
    default:
      return nullptr;
  }
}

EncodeBlock FindEncoder(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return kEncodeFloat<Float16>;
    case DType::kBfloat16:
      return kEncodeFloat<Bfloat16>;
    case DType::kFloat32:
      return kEncodeFloat<Float32>;
    case DType::kFloat64:
      return &EncodeAll<std::uint64_t, &EncodeDouble>;
    case DType::kFloat8E4m3fn:
      return kEncodeFloat<Float8E4m3fn>;
    case DType::kFloat8E5m2:
      return kEncodeFloat<Float8E5m2>;
    case DType::kFloat8E8m0fnu:
      return &EncodeAll<std::uint8_t, &EncodeE8m0>;
    case DType::kFloat8E4m3fnuz:
      return kEncodeFloat<Float8E4m3fnuz>;
    case DType::kFloat8E5m2fnuz:
      return kEncodeFloat<Float8E5m2fnuz>;
    default:
      return nullptr;
  }
}

}  // namespace reshard::cast_internal
