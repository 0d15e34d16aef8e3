#include "text.h"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <iterator>

#include "reshard/codec/crc64.h"

namespace charlm {

std::uint64_t Mix(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t x = 0;
  for (const std::uint64_t part : {a, b, c}) {  // SplitMix64, once for each part
    x = (x ^ part) + 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
  }
  return x;
}

reshard::Result<Text> Text::Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (bytes.size() < 1000) {
    return reshard::MakeError(
        reshard::ErrorCode::kNotFound, "TEXT",
        fmt::format("{}: cannot be read, or has fewer than 1000 bytes", path));
  }
  Text text;
  std::array<int, 256> token_of{};
  for (const char byte : bytes) {
    token_of[static_cast<unsigned char>(byte)] = 1;
  }
  for (int& token : token_of) {
    token = token != 0 ? static_cast<int>(text.vocabulary_++) : -1;
  }
  for (const char byte : bytes) {
    text.tokens_.push_back(token_of[static_cast<unsigned char>(byte)]);
  }
  text.checksum_ = fmt::format("{:016x}", reshard::Crc64(reshard::AsBytes(bytes)));
  return text;
}

Batch Text::Samples(std::uint64_t seed, std::uint64_t step, std::uint64_t first, std::uint64_t size,
                    std::size_t context) const {
  Batch batch;
  batch.size = size;
  for (std::uint64_t i = first; i < first + size; ++i) {
    const std::uint64_t start = Mix(seed, step, i) % (tokens_.size() - context);
    const auto sample = tokens_.begin() + static_cast<std::ptrdiff_t>(start);
    const auto target = sample + static_cast<std::ptrdiff_t>(context);
    batch.inputs.insert(batch.inputs.end(), sample, target);
    batch.targets.push_back(*target);
  }
  return batch;
}

}  // namespace charlm
