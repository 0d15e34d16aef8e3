#include "reshard/tensor/cast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace reshard {
namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::HasSubstr;

template <typename Out, typename In>
std::vector<Out> Cast(DType from, const std::vector<In>& in, DType to,
                      std::uint64_t* overflowed = nullptr) {
  std::vector<Out> out(in.size() * sizeof(In) / Info(from).unit_bytes * Info(to).unit_bytes /
                       sizeof(Out));
  CastCounts counts;
  EXPECT_OK(CastElements(from, std::as_bytes(std::span(in)), to,
                         std::as_writable_bytes(std::span(out)), counts));
  if (overflowed != nullptr) {
    *overflowed = counts.overflowed;
  }
  return out;
}

template <typename Out, typename In>
Out CastOne(DType from, In value, DType to, std::uint64_t* overflowed = nullptr) {
  return Cast<Out>(from, std::vector<In>{value}, to, overflowed).front();
}

/// A small format as its specification has it, decoded with ldexp.
struct SmallFormat {
  DType dtype;
  int bits;
  int mantissa;
  int bias;

  enum { kIeee, kNanOnly, kUnsignedZero } specials;

  std::uint32_t sign() const { return 1U << (bits - 1); }

  double Decode(std::uint32_t code) const {
    const std::uint32_t magnitude = code & (sign() - 1);
    const double direction = (code & sign()) != 0 ? -1 : 1;
    const int exponent = static_cast<int>(magnitude >> mantissa);
    const int fraction = static_cast<int>(magnitude) - (exponent << mantissa);
    const int top = (1 << (bits - 1 - mantissa)) - 1;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    if (specials == kUnsignedZero && code == sign()) {
      return nan;
    }
    if (specials == kNanOnly && magnitude == sign() - 1) {
      return std::copysign(nan, direction);
    }
    if (specials == kIeee && exponent == top) {
      return fraction == 0 ? direction * HUGE_VAL : std::copysign(nan, direction);
    }
    return direction * (exponent == 0
                            ? std::ldexp(fraction, 1 - bias - mantissa)
                            : std::ldexp((1 << mantissa) + fraction, exponent - bias - mantissa));
  }

  std::uint32_t Largest() const {
    return specials == kIeee      ? ((sign() - 1) >> mantissa << mantissa) - 1
           : specials == kNanOnly ? sign() - 2
                                  : sign() - 1;
  }

  /// What a positive value beyond the largest becomes.
  std::uint32_t Beyond() const { return specials == kUnsignedZero ? sign() : Largest() + 1; }
};

constexpr SmallFormat kFormats[] = {
    {DType::kFloat16, 16, 10, 15, SmallFormat::kIeee},
    {DType::kBfloat16, 16, 7, 127, SmallFormat::kIeee},
    {DType::kFloat8E5m2, 8, 2, 15, SmallFormat::kIeee},
    {DType::kFloat8E4m3fn, 8, 3, 7, SmallFormat::kNanOnly},
    {DType::kFloat8E5m2fnuz, 8, 2, 16, SmallFormat::kUnsignedZero},
    {DType::kFloat8E4m3fnuz, 8, 3, 8, SmallFormat::kUnsignedZero},
};

class CastFormatTest : public ::testing::TestWithParam<SmallFormat> {
 protected:
  /// Codes as numbers, whatever their width.
  template <typename In>
  std::vector<std::uint32_t> Encode(DType from, const std::vector<In>& in,
                                    std::uint64_t* overflowed = nullptr) const {
    if (GetParam().bits == 8) {
      const auto out = Cast<std::uint8_t>(from, in, GetParam().dtype, overflowed);
      return {out.begin(), out.end()};
    }
    const auto out = Cast<std::uint16_t>(from, in, GetParam().dtype, overflowed);
    return {out.begin(), out.end()};
  }

  template <typename Out>
  std::vector<Out> DecodeEvery(DType to) const {
    std::vector<std::uint8_t> bytes;
    std::vector<std::uint16_t> words;
    for (std::uint32_t code = 0; code < 2 * GetParam().sign(); ++code) {
      bytes.push_back(static_cast<std::uint8_t>(code));
      words.push_back(static_cast<std::uint16_t>(code));
    }
    return GetParam().bits == 8 ? Cast<Out>(GetParam().dtype, bytes, to)
                                : Cast<Out>(GetParam().dtype, words, to);
  }
};

bool IsQuiet(double value) { return (std::bit_cast<std::uint64_t>(value) >> 51 & 1) != 0; }

TEST_P(CastFormatTest, EveryCodeHasItsValue) {
  const SmallFormat& format = GetParam();
  const auto doubles = DecodeEvery<double>(DType::kFloat64);
  const auto floats = DecodeEvery<float>(DType::kFloat32);
  for (std::uint32_t code = 0; code < doubles.size(); ++code) {
    const double want = format.Decode(code);
    SCOPED_TRACE(code);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(doubles[code]) && std::isnan(floats[code]));
      ASSERT_TRUE(IsQuiet(doubles[code]));
      ASSERT_NE(std::bit_cast<std::uint32_t>(floats[code]) & 0x400000, 0U);
      ASSERT_EQ(std::signbit(doubles[code]), std::signbit(want));
      ASSERT_EQ(std::signbit(floats[code]), std::signbit(want));
      continue;
    }
    ASSERT_EQ(std::bit_cast<std::uint64_t>(doubles[code]), std::bit_cast<std::uint64_t>(want));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(floats[code]),
              std::bit_cast<std::uint32_t>(static_cast<float>(want)));
  }
}

TEST_P(CastFormatTest, EveryCodeComesBackFromWiderTypes) {
  const SmallFormat& format = GetParam();
  const auto check = [&](const std::vector<std::uint32_t>& back, std::uint64_t overflowed) {
    ASSERT_EQ(overflowed, 0U);
    for (std::uint32_t code = 0; code < back.size(); ++code) {
      const bool ieee_nan =
          format.specials == SmallFormat::kIeee && std::isnan(format.Decode(code));
      const std::uint32_t quiet = ieee_nan ? 1U << (format.mantissa - 1) : 0;
      ASSERT_EQ(back[code], code | quiet);  // a signalling NaN keeps its payload but is quiet
    }
  };
  std::uint64_t overflowed = 0;
  check(Encode(DType::kFloat32, DecodeEvery<float>(DType::kFloat32), &overflowed), overflowed);
  check(Encode(DType::kFloat64, DecodeEvery<double>(DType::kFloat64), &overflowed), overflowed);
}

TEST_P(CastFormatTest, RoundsToNearestWithTiesToEvenBetweenAllNeighbours) {
  const SmallFormat& format = GetParam();
  std::vector<double> values;
  std::vector<std::uint32_t> want;
  for (std::uint32_t code = 0; code < format.Largest(); ++code) {
    const double middle = (format.Decode(code) + format.Decode(code + 1)) / 2;
    const std::uint32_t even = code + (code & 1);
    for (const double direction : {1.0, -1.0}) {
      const std::uint32_t sign = direction < 0 ? format.sign() : 0;
      const auto expect = [&](double value, std::uint32_t nearest) {
        const bool no_sign = format.specials == SmallFormat::kUnsignedZero && nearest == 0;
        values.push_back(direction * value);
        want.push_back(nearest | (no_sign ? 0 : sign));
      };
      expect(std::nextafter(middle, 0), code);
      expect(middle, even);
      expect(std::nextafter(middle, HUGE_VAL), code + 1);
    }
  }
  std::uint64_t overflowed = 1;
  EXPECT_EQ(Encode(DType::kFloat64, values, &overflowed), want);
  EXPECT_EQ(overflowed, 0U);
  // From float32 the ties are exact too; their neighbours are other values.
  std::vector<float> floats;
  std::vector<std::uint32_t> float_want;
  for (std::size_t i = 1; i < values.size(); i += 3) {
    for (const float target : {0.0F, static_cast<float>(values[i]),
                               std::copysign(HUGE_VALF, static_cast<float>(values[i]))}) {
      const auto tie = static_cast<float>(values[i]);
      floats.push_back(std::nextafter(tie, target));
      float_want.push_back(want[target == tie ? i : target == 0 ? i - 1 : i + 1]);
    }
  }
  EXPECT_EQ(Encode(DType::kFloat32, floats), float_want);
}

TEST_P(CastFormatTest, OverflowIsCountedAndInfinityIsNot) {
  const SmallFormat& format = GetParam();
  const double largest = format.Decode(format.Largest());
  const double edge = largest + (largest - format.Decode(format.Largest() - 1)) / 2;
  const bool tie_stays = format.Largest() % 2 == 0;
  const double tiny = std::numeric_limits<double>::denorm_min();
  const std::vector<double> values = {
      edge, std::nextafter(edge, 0), std::nextafter(edge, HUGE_VAL), 1e300, HUGE_VAL, tiny, 1e-300};
  std::uint64_t overflowed = 0;
  const std::uint32_t beyond = format.Beyond();
  EXPECT_THAT(Encode(DType::kFloat64, values, &overflowed),
              ElementsAre(tie_stays ? format.Largest() : beyond, format.Largest(), beyond, beyond,
                          beyond, 0, 0));
  EXPECT_EQ(overflowed, tie_stays ? 2U : 3U);
  const auto biggest = std::numeric_limits<float>::max();
  const auto infinity = std::numeric_limits<float>::infinity();
  const std::uint32_t negative = beyond | format.sign();
  EXPECT_THAT(
      Encode(DType::kFloat32, std::vector<float>{-biggest, biggest, -infinity, 1.0F}, &overflowed),
      ElementsAre(negative, beyond, negative,
                  static_cast<std::uint32_t>(format.bias) << format.mantissa));
  EXPECT_EQ(overflowed, 2U);
}

TEST_P(CastFormatTest, EveryNanStaysAQuietNan) {
  const SmallFormat& format = GetParam();
  std::vector<std::uint32_t> floats = {0x7fffffff, 0xffffffff, 0x7fa00001, 0xffa00001, 0x7fc00000};
  std::vector<std::uint64_t> doubles = {~std::uint64_t{0}, ~std::uint64_t{0} >> 1};
  for (int bit = 0; bit < 23; ++bit) {
    floats.push_back(0x7f800000U | 1U << bit);
    floats.push_back(0xff800000U | 1U << bit);
  }
  for (int bit = 0; bit < 52; ++bit) {
    doubles.push_back(std::uint64_t{0x7ff} << 52 | std::uint64_t{1} << bit);
  }
  const auto check = [&](const std::vector<std::uint32_t>& codes, const auto& sources, int width) {
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const double value = format.Decode(codes[i]);
      EXPECT_TRUE(std::isnan(value)) << sources[i];
      if (format.specials != SmallFormat::kUnsignedZero) {
        EXPECT_EQ(std::signbit(value), (sources[i] >> (width - 1) & 1) != 0) << sources[i];
      }
      if (format.specials == SmallFormat::kIeee) {
        EXPECT_NE(codes[i] & 1U << (format.mantissa - 1), 0U) << sources[i];
      }
    }
  };
  std::uint64_t overflowed = 1;
  check(Encode(DType::kFloat32, floats, &overflowed), floats, 32);
  EXPECT_EQ(overflowed, 0U);
  check(Encode(DType::kFloat64, doubles, &overflowed), doubles, 64);
  EXPECT_EQ(overflowed, 0U);
}

TEST_P(CastFormatTest, RandomFloatsGoTheSameWayThroughDoubles) {
  const unsigned seed = 20240607;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::vector<std::uint32_t> floats(100'000);
  for (std::uint32_t& bits : floats) {
    bits = static_cast<std::uint32_t>(random());
  }
  std::uint64_t direct = 0;
  std::uint64_t through = 0;
  const auto doubles = Cast<std::uint64_t>(DType::kFloat32, floats, DType::kFloat64);
  EXPECT_EQ(Encode(DType::kFloat32, floats, &direct), Encode(DType::kFloat64, doubles, &through));
  EXPECT_EQ(direct, through);
}

INSTANTIATE_TEST_SUITE_P(Formats, CastFormatTest, ::testing::ValuesIn(kFormats),
                         [](const auto& format) {
                           return std::string(Info(format.param.dtype).name);
                         });

TEST(CastTest, KnownNansOfFloat32) {
  // The usual trick to round makes these minus zero, a signalling NaN, and infinity.
  EXPECT_THAT(Cast<std::uint16_t>(
                  DType::kFloat32,
                  std::vector<std::uint32_t>{0x7fffffff, 0x7fa00001, 0x7f800001, 0xff800001},
                  DType::kBfloat16),
              ElementsAre(0x7fff, 0x7fe0, 0x7fc0, 0xffc0));
  EXPECT_EQ(CastOne<std::uint64_t>(DType::kFloat32, 0x7fa00001U, DType::kFloat64),
            0x7ffc000020000000U);
  EXPECT_EQ(CastOne<std::uint32_t>(DType::kFloat32, 0x7fa00001U, DType::kFloat32), 0x7fa00001U);
}

TEST(CastTest, ZerosInfinitiesAndSubnormals) {
  const std::vector<std::uint32_t> floats = {0, 0x80000000, 0x7f800000, 0xff800000, 1, 0x80000001};
  EXPECT_THAT(Cast<std::uint16_t>(DType::kFloat32, floats, DType::kFloat16),
              ElementsAre(0, 0x8000, 0x7c00, 0xfc00, 0, 0x8000));
  EXPECT_THAT(Cast<std::uint16_t>(DType::kFloat32, floats, DType::kBfloat16),
              ElementsAre(0, 0x8000, 0x7f80, 0xff80, 0, 0x8000));
  EXPECT_THAT(Cast<std::uint8_t>(DType::kFloat32, floats, DType::kFloat8E4m3fn),
              ElementsAre(0, 0x80, 0x7f, 0xff, 0, 0x80));
  EXPECT_THAT(Cast<std::uint8_t>(DType::kFloat32, floats, DType::kFloat8E5m2fnuz),
              ElementsAre(0, 0, 0x80, 0x80, 0, 0));
  const auto doubles = Cast<std::uint64_t>(DType::kFloat32, floats, DType::kFloat64);
  EXPECT_EQ(Cast<std::uint32_t>(DType::kFloat64, doubles, DType::kFloat32), floats);
}

TEST(CastTest, Float64ToFloat32RoundsLikeTheProcessorAndCountsOverflow) {
  std::mt19937_64 random(7);
  std::vector<double> values = {1e39,
                                -1e39,
                                HUGE_VAL,
                                -HUGE_VAL,
                                1e-45,
                                1e-46,
                                1 + std::ldexp(1, -24),
                                1 + std::ldexp(3, -24)};
  while (values.size() < 5000) {
    values.push_back(
        std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 300) - 230));
  }
  std::uint64_t want_overflowed = 0;
  std::vector<float> want;
  for (const double value : values) {
    want.push_back(static_cast<float>(value));
    want_overflowed += std::isinf(want.back()) && !std::isinf(value) ? 1 : 0;
  }
  std::uint64_t overflowed = 0;
  EXPECT_EQ(Cast<float>(DType::kFloat64, values, DType::kFloat32, &overflowed), want);
  EXPECT_GT(want_overflowed, 2U);
  EXPECT_EQ(overflowed, want_overflowed);
}

TEST(CastTest, DoublesRoundOnceNotTwice) {
  // 1 + 2^-11 is a tie for float16; 2^-40 above it the next float16 is nearest, though float32
  // between would have rounded that away.
  const double above = 1 + std::ldexp(1, -11) + std::ldexp(1, -40);
  EXPECT_EQ(CastOne<std::uint16_t>(DType::kFloat64, above, DType::kFloat16), 0x3c01);
  const double above_bf16 = 1 + std::ldexp(1, -8) + std::ldexp(1, -40);
  EXPECT_EQ(CastOne<std::uint16_t>(DType::kFloat64, above_bf16, DType::kBfloat16), 0x3f81);
}

TEST(CastTest, TheThreadsRoundingModeAndFlushToZeroDoNotMatter) {
  const std::vector<double> values = {1e-40, 1 + std::ldexp(1, -24), 65519, 65520};
  const auto want = Cast<float>(DType::kFloat64, values, DType::kFloat32);
  ASSERT_GT(want[0], 0.0F);
  std::fesetround(FE_UPWARD);
#if defined(__SSE__)
  const unsigned control = _mm_getcsr();
  _mm_setcsr(control | 0x8040);  // flush to zero, subnormals are zero
#endif
  const auto got = Cast<std::uint32_t>(DType::kFloat64, values, DType::kFloat32);
  const auto half = CastOne<std::uint16_t>(DType::kFloat32, std::ldexp(1.5F, -24), DType::kFloat16);
#if defined(__SSE__)
  EXPECT_EQ(_mm_getcsr() & 0x8040, 0x8040U);
  _mm_setcsr(control);
#endif
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i], std::bit_cast<std::uint32_t>(want[i]));
  }
  EXPECT_EQ(half, 2);
}

TEST(CastTest, ScalesOfPowersOfTwo) {
  std::vector<std::uint8_t> codes;
  for (int code = 0; code < 256; ++code) {
    codes.push_back(static_cast<std::uint8_t>(code));
  }
  const auto values = Cast<double>(DType::kFloat8E8m0fnu, codes, DType::kFloat64);
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(values[static_cast<std::size_t>(code)], std::ldexp(1, code - 127));
  }
  EXPECT_TRUE(std::isnan(values[255]));
  std::uint64_t overflowed = 1;
  EXPECT_EQ(Cast<std::uint8_t>(DType::kFloat64, values, DType::kFloat8E8m0fnu, &overflowed), codes);
  EXPECT_EQ(overflowed, 0U);
  const auto floats = Cast<float>(DType::kFloat8E8m0fnu, codes, DType::kFloat32);
  EXPECT_EQ(floats[0], std::ldexp(1.0F, -127));  // a subnormal there
  EXPECT_EQ(Cast<std::uint8_t>(DType::kFloat32, floats, DType::kFloat8E8m0fnu), codes);
  const std::vector<double> others = {0, -1, 3, std::ldexp(1, 128), std::ldexp(1, -128), HUGE_VAL};
  EXPECT_THAT(Cast<std::uint8_t>(DType::kFloat64, others, DType::kFloat8E8m0fnu, &overflowed),
              ::testing::Each(0xff));
  EXPECT_EQ(overflowed, 5U);
}

TEST(CastTest, ComplexPartsAreConvertedAlone) {
  const std::vector<float> values = {1.5F, -2.25F, 1e9F, 0.0F};  // 1.5 - 2.25i, 1e9
  std::uint64_t overflowed = 0;
  EXPECT_THAT(Cast<std::uint16_t>(DType::kComplex64, values, DType::kComplex32, &overflowed),
              ElementsAre(0x3e00, 0xc080, 0x7c00, 0));
  EXPECT_EQ(overflowed, 1U);
  EXPECT_THAT(Cast<double>(DType::kComplex64, values, DType::kComplex128),
              ElementsAre(1.5, -2.25, 1e9, 0));
}

TEST(CastTest, IntegersWidenWithTheirSign) {
  EXPECT_THAT(
      Cast<std::int64_t>(DType::kInt8, std::vector<std::int8_t>{-128, -1, 127}, DType::kInt64),
      ElementsAre(-128, -1, 127));
  EXPECT_THAT(Cast<std::int16_t>(DType::kUint8, std::vector<std::uint8_t>{0, 255}, DType::kInt16),
              ElementsAre(0, 255));
  EXPECT_THAT(
      Cast<std::int64_t>(DType::kUint32, std::vector<std::uint32_t>{0xffffffff}, DType::kInt64),
      ElementsAre(0xffffffff));
  EXPECT_THAT(Cast<std::int32_t>(DType::kInt16, std::vector<std::int16_t>{-3}, DType::kInt32),
              ElementsAre(-3));
  EXPECT_THAT(Cast<std::int8_t>(DType::kBool, std::vector<std::uint8_t>{0, 1, 2}, DType::kInt8),
              ElementsAre(0, 1, 1));
  EXPECT_THAT(Cast<std::uint8_t>(DType::kBool, std::vector<std::uint8_t>{0, 1, 2}, DType::kBool),
              ElementsAre(0, 1, 2));
}

TEST(CastTest, IntegersRoundOnceToFloatingPoint) {
  constexpr std::int64_t kTie = (std::int64_t{1} << 62) + (std::int64_t{1} << 38);
  EXPECT_THAT(Cast<float>(DType::kInt64, std::vector<std::int64_t>{kTie, kTie + 1, -kTie - 1, -5},
                          DType::kFloat32),
              ElementsAre(std::ldexp(1.0F, 62), std::nextafter(std::ldexp(1.0F, 62), HUGE_VALF),
                          -std::nextafter(std::ldexp(1.0F, 62), HUGE_VALF), -5.0F));
  constexpr std::int64_t kLow = std::numeric_limits<std::int64_t>::min();
  EXPECT_THAT(Cast<double>(DType::kInt64, std::vector<std::int64_t>{kLow, (1LL << 53) + 1},
                           DType::kFloat64),
              ElementsAre(-std::ldexp(1, 63), std::ldexp(1, 53)));
  EXPECT_EQ(CastOne<double>(DType::kUint64, ~std::uint64_t{0}, DType::kFloat64), std::ldexp(1, 64));
  std::mt19937_64 random(11);
  std::vector<std::uint64_t> values;
  std::vector<float> want;
  for (int i = 0; i < 2000; ++i) {
    values.push_back(random() >> (i % 50));
    want.push_back(static_cast<float>(values.back()));
  }
  EXPECT_EQ(Cast<float>(DType::kUint64, values, DType::kFloat32), want);
  std::uint64_t overflowed = 0;
  EXPECT_THAT(Cast<std::uint16_t>(DType::kInt32, std::vector<std::int32_t>{65519, 65520, -70000, 7},
                                  DType::kFloat16, &overflowed),
              ElementsAre(0x7bff, 0x7c00, 0xfc00, 0x4700));
  EXPECT_EQ(overflowed, 2U);
  EXPECT_THAT(Cast<std::uint16_t>(DType::kBool, std::vector<std::uint8_t>{0, 9}, DType::kBfloat16),
              ElementsAre(0, 0x3f80));
}

TEST(CastTest, AllLengthsAndPlaces) {
  // Tails of the vectorised loops, blocks, and memory that is not aligned.
  std::vector<std::uint32_t> floats;
  for (std::uint32_t i = 0; i < 2100; ++i) {
    floats.push_back(0x3f800000U + (i << 15));
  }
  const auto want = Cast<std::uint16_t>(DType::kFloat32, floats, DType::kBfloat16);
  for (std::size_t length = 0; length < floats.size(); length += length < 70 ? 1 : 337) {
    Bytes source(length * 4 + 1);
    Bytes target(length * 2 + 2, std::byte{0x5a});
    std::memcpy(source.data() + 1, floats.data(), length * 4);
    CastCounts counts;
    ASSERT_OK(CastElements(DType::kFloat32, ByteSpan(source).subspan(1), DType::kBfloat16,
                           MutableByteSpan(target).subspan(1, length * 2), counts));
    ASSERT_EQ(std::memcmp(target.data() + 1, want.data(), length * 2), 0) << length;
    ASSERT_EQ(target.front(), std::byte{0x5a});
    ASSERT_EQ(target.back(), std::byte{0x5a});
  }
}

TEST(CastTest, SaysWhichPairsItHas) {
  int allowed = 0;
  for (const DTypeInfo& from : AllDTypes()) {
    for (const DTypeInfo& to : AllDTypes()) {
      CastCounts counts;
      const Bytes source(from.unit_bytes * 3);
      Bytes target(to.unit_bytes * 3);
      const Status status = CastElements(from.dtype, source, to.dtype, target, counts);
      EXPECT_EQ(status.ok(), CanCast(from.dtype, to.dtype)) << from.name << " " << to.name;
      allowed += status.ok() ? 1 : 0;
    }
  }
  // 9 floating types among themselves, 3 complex, 3 packed to themselves; bool: itself, 8 integers,
  // 4 floating; integers to the 4 floating; u8 .. u64 7 + 5 + 3 + 1, i8 .. i64 4 + 3 + 2 + 1.
  EXPECT_EQ(allowed, 81 + 9 + 3 + (1 + 8 + 4) + 8 * 4 + 16 + 10);
  EXPECT_FALSE(CanCast(DType::kInt8, DType::kUint64));
  EXPECT_FALSE(CanCast(DType::kUint64, DType::kInt64));
  EXPECT_FALSE(CanCast(DType::kFloat32, DType::kInt64));
  EXPECT_FALSE(CanCast(DType::kComplex64, DType::kFloat32));
  EXPECT_FALSE(CanCast(DType::kFloat32, DType::kComplex64));
  EXPECT_FALSE(CanCast(DType::kUint8, DType::kBool));
}

TEST(CastTest, RefusesWithTheNamesOfTheTypes) {
  CastCounts counts;
  Bytes target(4);
  const Status pair = CastElements(DType::kFloat32, Bytes(4), DType::kInt32, target, counts);
  EXPECT_THAT(pair, FailsWith("CAST"));
  EXPECT_THAT(pair.error().message, HasSubstr("float32 values are not converted to int32"));
  const Status size = CastElements(DType::kFloat32, Bytes(8), DType::kBfloat16, target, counts);
  EXPECT_OK(size);
  EXPECT_THAT(CastElements(DType::kFloat32, Bytes(12), DType::kBfloat16, target, counts),
              FailsWith("CAST_SIZE"));
  EXPECT_THAT(CastElements(DType::kFloat32, Bytes(9), DType::kBfloat16, target, counts),
              FailsWith("CAST_SIZE"));
}

}  // namespace
}  // namespace reshard
