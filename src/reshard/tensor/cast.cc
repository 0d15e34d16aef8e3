#include "reshard/tensor/cast.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cfenv>
#include <cstring>

#include "reshard/tensor/cast_internal.h"

namespace reshard {
namespace {

enum class Kind { kBool, kUnsigned, kSigned, kFloat, kComplex, kPacked };

Kind KindOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return Kind::kBool;
    case DType::kUint8:
    case DType::kUint16:
    case DType::kUint32:
    case DType::kUint64:
      return Kind::kUnsigned;
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
      return Kind::kSigned;
    case DType::kComplex32:
    case DType::kComplex64:
    case DType::kComplex128:
      return Kind::kComplex;
    case DType::kFloat4E2m1:
    case DType::kFloat6E2m3:
    case DType::kFloat6E3m2:
      return Kind::kPacked;
    default:
      return Kind::kFloat;
  }
}

// The type of the real and of the imaginary part.
DType PartOf(DType complex) {
  return complex == DType::kComplex32   ? DType::kFloat16
         : complex == DType::kComplex64 ? DType::kFloat32
                                        : DType::kFloat64;
}

// Whether every value of the integer type `from` (or bool) is one of `to`.
bool IntegerFits(DType from, DType to) {
  const Kind source = KindOf(from);
  const Kind target = KindOf(to);
  const std::uint32_t bits = Info(from).bits;
  const std::uint32_t room = Info(to).bits;
  if (source == Kind::kBool) {
    return true;
  }
  return source == target ? bits <= room
                          : source == Kind::kUnsigned && target == Kind::kSigned && bits < room;
}

// A bool in memory: any byte other than 0 is true.
struct BoolByte {
  std::uint8_t byte = 0;

  explicit operator std::uint64_t() const { return byte != 0 ? 1 : 0; }
};

template <typename From, typename To>
void WidenAs(const std::byte* __restrict src, std::byte* __restrict dst, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    StoreLittle<To>(
        dst + i * sizeof(To),
        static_cast<To>(static_cast<std::uint64_t>(LoadLittle<From>(src + i * sizeof(From)))));
  }
}

using Widen = void (*)(const std::byte* src, std::byte* dst, std::size_t count);

// To an integer of `bits` bits; the sign of the target does not matter where all values fit.
template <typename From>
Widen FindWidenTo(std::uint32_t bits) {
  return bits == 8    ? &WidenAs<From, std::uint8_t>
         : bits == 16 ? &WidenAs<From, std::uint16_t>
         : bits == 32 ? &WidenAs<From, std::uint32_t>
                      : &WidenAs<From, std::uint64_t>;
}

Widen FindWiden(DType from, std::uint32_t bits) {
  switch (from) {
    case DType::kBool:
      return FindWidenTo<BoolByte>(bits);
    case DType::kUint8:
      return FindWidenTo<std::uint8_t>(bits);
    case DType::kInt8:
      return FindWidenTo<std::int8_t>(bits);
    case DType::kUint16:
      return FindWidenTo<std::uint16_t>(bits);
    case DType::kInt16:
      return FindWidenTo<std::int16_t>(bits);
    case DType::kUint32:
      return FindWidenTo<std::uint32_t>(bits);
    default:
      return FindWidenTo<std::int32_t>(bits);
  }
}

// The environment of floating point as the standard has it while this lives, so that a thread that
// rounds otherwise or flushes subnormals to zero gets the same values.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }

  ~DefaultFloatingPoint() { std::fesetenv(&saved_); }

  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  std::fenv_t saved_;
};

using cast_internal::kBlock;

std::uint64_t ConvertThroughDoubles(DType from, const std::byte* src, DType to, std::byte* dst,
                                    std::size_t count) {
  const cast_internal::DecodeBlock decode = cast_internal::FindDecoder(from);
  const cast_internal::EncodeBlock encode = cast_internal::FindEncoder(to);
  const std::size_t src_size = Info(from).unit_bytes;
  const std::size_t dst_size = Info(to).unit_bytes;
  std::array<std::uint64_t, kBlock> wide;
  std::uint64_t overflowed = 0;
  for (std::size_t done = 0; done < count; done += kBlock) {
    const std::size_t block = std::min(kBlock, count - done);
    decode(src + done * src_size, wide.data(), block);
    encode(wide.data(), dst + done * dst_size, block, overflowed);
  }
  return overflowed;
}

}  // namespace

bool CanCast(DType from, DType to) {
  if (from == to) {
    return true;
  }
  const Kind source = KindOf(from);
  const Kind target = KindOf(to);
  if (source == Kind::kPacked || target == Kind::kPacked) {
    return false;
  }
  if (source == Kind::kComplex || target == Kind::kComplex || source == Kind::kFloat) {
    return source == target;
  }
  return target == Kind::kFloat ? Info(to).bits > 8
                                : target != Kind::kBool && IntegerFits(from, to);
}

Status CastElements(DType from, ByteSpan src, DType to, MutableByteSpan dst, CastCounts& counts) {
  if (!CanCast(from, to)) {
    return MakeError(ErrorCode::kUnsupported, "CAST",
                     fmt::format("{} values are not converted to {}; load them as {} and convert "
                                 "them in the program",
                                 Info(from).name, Info(to).name, Info(from).name));
  }
  const std::uint64_t units = src.size() / Info(from).unit_bytes;
  if (src.size() % Info(from).unit_bytes != 0 || dst.size() != units * Info(to).unit_bytes) {
    return MakeError(ErrorCode::kInvalidArgument, "CAST_SIZE",
                     fmt::format("{} bytes of {} do not become {} bytes of {}", src.size(),
                                 Info(from).name, dst.size(), Info(to).name));
  }
  if (units == 0) {
    return OkStatus();
  }
  if (from == to) {
    std::memcpy(dst.data(), src.data(), src.size());
    return OkStatus();
  }
  if (KindOf(from) == Kind::kComplex) {
    return CastElements(PartOf(from), src, PartOf(to), dst, counts);
  }
  if (KindOf(to) != Kind::kFloat) {
    FindWiden(from, Info(to).bits)(src.data(), dst.data(), units);
    return OkStatus();
  }
  const DefaultFloatingPoint standard;
  const cast_internal::FastCast fast = cast_internal::FindFastCast(from, to);
  counts.overflowed += fast != nullptr
                           ? fast(src.data(), dst.data(), units)
                           : ConvertThroughDoubles(from, src.data(), to, dst.data(), units);
  return OkStatus();
}

}  // namespace reshard
