#pragma once

// Files that are written once and kept; the README of each folder in tests/golden says which.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "reshard/base/bytes.h"

namespace reshard::testing {

/// Compares with the golden file at `path`; with RESHARD_MAKE_GOLDEN set, writes it first.
inline void ExpectGolden(const std::string& path, ByteSpan bytes) {
  if (std::getenv("RESHARD_MAKE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << AsText(bytes);
  }
  std::ifstream in(path, std::ios::binary);
  const std::string kept((std::istreambuf_iterator<char>(in)), {});
  EXPECT_TRUE(kept == AsText(bytes)) << path;
}

}  // namespace reshard::testing
