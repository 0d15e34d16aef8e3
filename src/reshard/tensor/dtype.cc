#include "reshard/tensor/dtype.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "reshard/base/check.h"

namespace reshard {
namespace {

// dtype, name, safetensors tag, bits, elements per unit, bytes per unit, split complex.
constexpr std::array<DTypeInfo, 24> kTable = {{
    {DType::kBool, "bool", "BOOL", 8, 1, 1, false},
    {DType::kUint8, "uint8", "U8", 8, 1, 1, false},
    {DType::kInt8, "int8", "I8", 8, 1, 1, false},
    {DType::kUint16, "uint16", "U16", 16, 1, 2, false},
    {DType::kInt16, "int16", "I16", 16, 1, 2, false},
    {DType::kUint32, "uint32", "U32", 32, 1, 4, false},
    {DType::kInt32, "int32", "I32", 32, 1, 4, false},
    {DType::kUint64, "uint64", "U64", 64, 1, 8, false},
    {DType::kInt64, "int64", "I64", 64, 1, 8, false},
    {DType::kFloat16, "float16", "F16", 16, 1, 2, false},
    {DType::kBfloat16, "bfloat16", "BF16", 16, 1, 2, false},
    {DType::kFloat32, "float32", "F32", 32, 1, 4, false},
    {DType::kFloat64, "float64", "F64", 64, 1, 8, false},
    {DType::kComplex32, "complex32", "F16", 32, 1, 4, true},
    {DType::kComplex64, "complex64", "C64", 64, 1, 8, false},
    {DType::kComplex128, "complex128", "F64", 128, 1, 16, true},
    {DType::kFloat8E4m3fn, "float8_e4m3fn", "F8_E4M3", 8, 1, 1, false},
    {DType::kFloat8E5m2, "float8_e5m2", "F8_E5M2", 8, 1, 1, false},
    {DType::kFloat8E8m0fnu, "float8_e8m0fnu", "F8_E8M0", 8, 1, 1, false},
    {DType::kFloat8E4m3fnuz, "float8_e4m3fnuz", "F8_E4M3FNUZ", 8, 1, 1, false},
    {DType::kFloat8E5m2fnuz, "float8_e5m2fnuz", "F8_E5M2FNUZ", 8, 1, 1, false},
    {DType::kFloat4E2m1, "float4_e2m1", "F4", 4, 2, 1, false},
    {DType::kFloat6E2m3, "float6_e2m3", "F6_E2M3", 6, 4, 3, false},
    {DType::kFloat6E3m2, "float6_e3m2", "F6_E3M2", 6, 4, 3, false},
}};

constexpr bool TableIsConsistent() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<std::size_t>(kTable[i].dtype) != i + 1 ||
        kTable[i].bits * kTable[i].unit_elements != kTable[i].unit_bytes * 8) {
      return false;
    }
  }
  return true;
}

static_assert(TableIsConsistent(),
              "entry i must be the dtype of number i + 1, its unit whole bytes");

// Longer than any name; what comes from a file may be of any length and hold any byte.
constexpr std::size_t kShownLength = 40;

std::string Printable(std::string_view text) {
  std::string out(text.substr(0, kShownLength));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.size() > kShownLength ? out + "..." : out;
}

// Levenshtein distance, one row at a time.
std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// "; did you mean 'x'?", or nothing when no candidate is near.
std::string Suggestion(std::string_view text, const std::vector<std::string_view>& candidates) {
  if (text.size() > kShownLength) {
    return "";
  }
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(1, text.size() / 3) + 1;
  for (std::string_view candidate : candidates) {
    const std::size_t distance = EditDistance(text, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best.empty() ? "" : fmt::format("; did you mean '{}'?", best);
}

tl::unexpected<Error> Unknown(std::string_view what, std::string_view text,
                              std::string_view suggestion,
                              const std::vector<std::string_view>& candidates) {
  return MakeError(ErrorCode::kInvalidArgument, "BAD_DTYPE",
                   fmt::format("unknown {} '{}'{} (known: {})", what, Printable(text), suggestion,
                               fmt::join(candidates, ", ")));
}

}  // namespace

std::span<const DTypeInfo> AllDTypes() { return kTable; }

const DTypeInfo& Info(DType dtype) {
  RESHARD_CHECK(IsDType(static_cast<std::uint8_t>(dtype)));
  return kTable[static_cast<std::size_t>(dtype) - 1];
}

bool IsDType(std::uint8_t number) { return number >= 1 && number <= kTable.size(); }

Result<DType> DTypeFromName(std::string_view name) {
  std::vector<std::string_view> names;
  std::string suggestion;
  for (const DTypeInfo& info : kTable) {
    if (info.name == name) {
      return info.dtype;
    }
    if (info.safetensors == name && !info.split_complex) {
      suggestion = fmt::format("; did you mean '{}'?", info.name);
    }
    names.push_back(info.name);
  }
  return Unknown("dtype", name, suggestion.empty() ? Suggestion(name, names) : suggestion, names);
}

Result<DType> DTypeFromSafetensors(std::string_view tag) {
  std::vector<std::string_view> tags;
  for (const DTypeInfo& info : kTable) {
    if (info.split_complex) {
      continue;
    }
    if (info.safetensors == tag) {
      return info.dtype;
    }
    tags.push_back(info.safetensors);
  }
  return Unknown("safetensors dtype", tag, Suggestion(tag, tags), tags);
}

}  // namespace reshard
