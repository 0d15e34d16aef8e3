#pragma once

// The training text, and which of its samples belong to which step.

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/result.h"

namespace charlm {

/// A number that looks random but depends on (a, b, c) alone: weights and the order of the data
/// come from it, so that they are the same on every mesh and after every restart.
std::uint64_t Mix(std::uint64_t a, std::uint64_t b, std::uint64_t c);

/// Samples of `context` tokens each and the token that follows.
struct Batch {
  std::size_t size = 0;
  std::vector<int> inputs;   ///< size * context
  std::vector<int> targets;  ///< size
};

/// A text as tokens: one for each byte value that occurs in it.
class Text {
 public:
  /// Errors: kNotFound TEXT when the file cannot be read or has fewer than 1000 bytes.
  static reshard::Result<Text> Read(const std::string& path);

  std::size_t vocabulary() const { return vocabulary_; }

  /// CRC-64 of the text in hex, so that a run is not resumed with another text.
  const std::string& checksum() const { return checksum_; }

  /// Samples [first, first + size) of the global batch of `step`.
  Batch Samples(std::uint64_t seed, std::uint64_t step, std::uint64_t first, std::uint64_t size,
                std::size_t context) const;

 private:
  std::vector<int> tokens_;
  std::size_t vocabulary_ = 0;
  std::string checksum_;
};

}  // namespace charlm
