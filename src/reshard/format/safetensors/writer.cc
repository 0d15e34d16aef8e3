#include "reshard/format/safetensors/writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string>

#include "reshard/base/check.h"
#include "reshard/format/safetensors/header.h"
#include "reshard/tensor/box.h"

namespace reshard::safetensors {

bool HasTag(DType dtype) { return !Info(dtype).split_complex; }

Result<Bytes> EncodeHeader(std::span<const WriteEntry> entries) {
  constexpr std::size_t kAlignment = 8;
  std::string text = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t at = 0;
  for (const WriteEntry& entry : entries) {
    RESHARD_CHECK(HasTag(entry.dtype));
    const std::uint64_t end = at + NumBytes(entry.shape, entry.dtype);
    text += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        nlohmann::json(entry.name).dump(), Info(entry.dtype).safetensors,
                        fmt::join(entry.shape, ","), at, end);
    at = end;
  }
  text += '}';
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  if (text.size() > kMaxHeaderBytes) {
    return MakeError(ErrorCode::kUnsupported, kHeaderTooLarge,
                     fmt::format("{} tensors make a header of {} bytes, and safetensors readers "
                                 "take {}; spread them over more files",
                                 entries.size(), text.size(), kMaxHeaderBytes));
  }
  Bytes out;
  out.reserve(sizeof(std::uint64_t) + text.size());
  AppendLittle(out, static_cast<std::uint64_t>(text.size()));
  const ByteSpan bytes = AsBytes(text);
  out.insert(out.end(), bytes.begin(), bytes.end());
  return out;
}

}  // namespace reshard::safetensors
