#include "reshard/cli/npy.h"

#include <fmt/format.h>

namespace reshard::cli {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kMostShortHeader = 65535;
constexpr std::string_view kMagic = "\x93NUMPY";

}  // namespace

Result<std::string> NpyDescr(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "|b1";
    case DType::kUint8:
      return "|u1";
    case DType::kInt8:
      return "|i1";
    case DType::kUint16:
      return "<u2";
    case DType::kInt16:
      return "<i2";
    case DType::kUint32:
      return "<u4";
    case DType::kInt32:
      return "<i4";
    case DType::kUint64:
      return "<u8";
    case DType::kInt64:
      return "<i8";
    case DType::kFloat16:
      return "<f2";
    case DType::kFloat32:
      return "<f4";
    case DType::kFloat64:
      return "<f8";
    case DType::kComplex64:
      return "<c8";
    case DType::kComplex128:
      return "<c16";
    case DType::kBfloat16:
      return "<V2";
    case DType::kComplex32:
      return "<V4";
    case DType::kFloat8E4m3fn:
    case DType::kFloat8E5m2:
    case DType::kFloat8E8m0fnu:
    case DType::kFloat8E4m3fnuz:
    case DType::kFloat8E5m2fnuz:
      return "|V1";
    case DType::kFloat4E2m1:
    case DType::kFloat6E2m3:
    case DType::kFloat6E3m2:
      break;
  }
  return MakeError(ErrorCode::kUnsupported, "SUB_BYTE",
                   fmt::format("{} has elements of {} bits, which .npy cannot hold\n`reshard ls "
                               "--chunks` says in which file the raw bytes are, and where",
                               Info(dtype).name, Info(dtype).bits));
}

std::string NpyView(DType dtype) {
  if (dtype == DType::kComplex32) {
    return "view('<f2'), pairs of real and imaginary part";
  }
  const Result<std::string> descr = NpyDescr(dtype);
  return descr.ok() && descr->find('V') != std::string::npos
             ? fmt::format("view(ml_dtypes.{})", Info(dtype).name)
             : std::string();
}

std::string NpyHeader(const std::string& descr, std::span<const std::uint64_t> shape) {
  std::string axes;
  for (const std::uint64_t size : shape) {
    axes += fmt::format("{}{}", axes.empty() ? "" : ", ", size);
  }
  axes += shape.size() == 1 ? "," : "";
  std::string text =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, axes);
  const auto padded = [&text](std::size_t length_bytes) {
    const std::size_t before = kMagic.size() + 2 + length_bytes;
    const std::size_t total = (before + text.size() + 1 + kAlignment - 1) / kAlignment * kAlignment;
    return total - before;
  };
  const bool is_short = padded(2) <= kMostShortHeader;
  const std::size_t length_bytes = is_short ? 2 : 4;
  const std::size_t length = padded(length_bytes);
  std::string out(kMagic);
  out += static_cast<char>(is_short ? 1 : 2);
  out += '\0';
  for (std::size_t i = 0; i < length_bytes; ++i) {
    out += static_cast<char>(length >> (8 * i) & 0xff);
  }
  text.resize(length - 1, ' ');
  return out + text + "\n";
}

}  // namespace reshard::cli
