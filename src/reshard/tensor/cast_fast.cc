#include <algorithm>
#include <bit>

#include "reshard/base/bytes.h"
#include "reshard/tensor/cast_internal.h"

// Conversions without branches, for the pairs that big tensors take.

namespace reshard::cast_internal {
namespace {

struct Float32ToBfloat16 {
  using In = std::int32_t;
  using Out = std::uint16_t;

  static Out Convert(In bits) {
    const auto code = static_cast<std::uint32_t>(bits);
    const std::uint32_t rounded = (code + 0x7fff + (code >> 16 & 1)) >> 16;
    const std::uint32_t quiet = code >> 16 | 0x40;
    return static_cast<Out>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
  }

  static bool IsInfinite(Out code) { return (code & 0x7fff) == 0x7f80; }

  static bool IsFinite(In bits) { return (bits & 0x7fffffff) < 0x7f800000; }
};

struct Bfloat16ToFloat32 {
  using In = std::uint16_t;
  using Out = std::uint32_t;

  static Out Convert(In code) {
    const std::uint32_t quiet = (code & 0x7fff) > 0x7f80 ? 0x400000 : 0;
    return std::uint32_t{code} << 16 | quiet;
  }

  static bool IsInfinite(Out) { return false; }

  static bool IsFinite(In) { return true; }
};

// `if_true` or `if_false`, without the branch that would keep a loop from being vectorised.
std::int32_t Select(bool condition, std::int32_t if_true, std::int32_t if_false) {
  const std::int32_t mask = -static_cast<std::int32_t>(condition);
  return (if_true & mask) | (if_false & ~mask);
}

// Both directions of float16 let the adder of the processor round and normalise subnormals: next to
// a constant of the right size the last bit of the sum is the last bit of the subnormal. After
// F. Giesen, "half to float done quick" (public domain, 2012).
struct Float32ToFloat16 {
  using In = std::int32_t;
  using Out = std::uint16_t;

  static Out Convert(In bits) {
    const std::int32_t magnitude = bits & 0x7fffffff;
    const std::int32_t rebiased = magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1);
    const std::int32_t normal = std::min(rebiased >> 13, 0x7c00);
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    const std::int32_t subnormal = std::bit_cast<std::int32_t>(sum) - 0x3f000000;
    const std::int32_t nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    const std::int32_t code =
        Select(magnitude > 0x7f800000, nan, Select(magnitude < (113 << 23), subnormal, normal));
    return static_cast<Out>(code | (bits >> 16 & 0x8000));
  }

  static bool IsInfinite(Out code) { return (code & 0x7fff) == 0x7c00; }

  static bool IsFinite(In bits) { return (bits & 0x7fffffff) < 0x7f800000; }
};

struct Float16ToFloat32 {
  using In = std::uint16_t;
  using Out = std::uint32_t;

  static Out Convert(In code) {
    const std::int32_t magnitude = code & 0x7fff;
    const std::int32_t normal = (magnitude << 13) + (112 << 23);
    const std::int32_t special = (normal + (112 << 23)) | (magnitude > 0x7c00 ? 1 << 22 : 0);
    // Next to 0.5 a step of the sum is 2^-24, the step of the subnormals.
    const float difference = std::bit_cast<float>(0x3f000000 + magnitude) - 0.5F;
    const auto subnormal = std::bit_cast<std::int32_t>(difference);
    const std::int32_t bits =
        Select(magnitude >= 0x7c00, special, Select(magnitude < 0x400, subnormal, normal));
    return static_cast<Out>(bits) | static_cast<Out>(code & 0x8000) << 16;
  }

  static bool IsInfinite(Out) { return false; }

  static bool IsFinite(In) { return true; }
};

struct Float64ToFloat32 {
  using In = double;
  using Out = float;

  static Out Convert(In value) { return static_cast<float>(value); }

  static bool IsInfinite(Out value) {
    return (std::bit_cast<std::uint32_t>(value) & 0x7fffffff) == 0x7f800000;
  }

  static bool IsFinite(In value) {
    constexpr std::uint64_t kInfinity = std::uint64_t{0x7ff} << 52;
    return (std::bit_cast<std::uint64_t>(value) & kInfinity) != kInfinity;
  }
};

template <typename InT>
struct ToFloat64 {
  using In = InT;
  using Out = double;

  static Out Convert(In value) { return static_cast<double>(value); }

  static bool IsInfinite(Out) { return false; }

  static bool IsFinite(In) { return true; }
};

// Counts infinite results, which vectorises, and looks at the sources only where there are some.
template <typename Pair>
std::uint64_t ConvertBlock(const std::byte* __restrict src, std::byte* __restrict dst,
                           std::size_t count) {
  using In = typename Pair::In;
  using Out = typename Pair::Out;
  std::uint32_t infinite = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Out out = Pair::Convert(LoadLittle<In>(src + i * sizeof(In)));
    StoreLittle<Out>(dst + i * sizeof(Out), out);
    infinite += Pair::IsInfinite(out) ? 1 : 0;
  }
  std::uint64_t overflowed = 0;
  for (std::size_t i = 0; infinite != 0 && i < count; ++i) {
    const bool from_finite = Pair::IsFinite(LoadLittle<In>(src + i * sizeof(In)));
    overflowed += from_finite && Pair::IsInfinite(LoadLittle<Out>(dst + i * sizeof(Out))) ? 1 : 0;
  }
  return overflowed;
}

template <typename Pair>
std::uint64_t Convert(const std::byte* src, std::byte* dst, std::size_t count) {
  std::uint64_t overflowed = 0;
  for (std::size_t done = 0; done < count; done += kBlock) {
    overflowed +=
        ConvertBlock<Pair>(src + done * sizeof(typename Pair::In),
                           dst + done * sizeof(typename Pair::Out), std::min(kBlock, count - done));
  }
  return overflowed;
}

}  // namespace

FastCast FindFastCast(DType from, DType to) {
  if (to == DType::kFloat64) {
    switch (from) {
      case DType::kFloat32:
        return &Convert<ToFloat64<float>>;
      case DType::kInt64:
        return &Convert<ToFloat64<std::int64_t>>;
      case DType::kUint64:
        return &Convert<ToFloat64<std::uint64_t>>;
      default:
        return nullptr;
    }
  }
  if (to == DType::kFloat32) {
    switch (from) {
      case DType::kBfloat16:
        return &Convert<Bfloat16ToFloat32>;
      case DType::kFloat16:
        return &Convert<Float16ToFloat32>;
      case DType::kFloat64:
        return &Convert<Float64ToFloat32>;
      default:
        return nullptr;
    }
  }
  if (from == DType::kFloat32) {
    return to == DType::kBfloat16  ? &Convert<Float32ToBfloat16>
           : to == DType::kFloat16 ? &Convert<Float32ToFloat16>
                                   : nullptr;
  }
  return nullptr;
}

}  // namespace reshard::cast_internal
