#pragma once

// Files of the source tree, for tests of documents and golden files. RESHARD_SOURCE_DIR is defined
// by the test's CMakeLists.txt.

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "reshard/base/bytes.h"

namespace reshard::testing {

/// The text of a file below the source tree.
inline std::string ReadSourceText(const std::string& path) {
  std::ifstream in(std::string(RESHARD_SOURCE_DIR) + "/" + path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline Bytes ReadSourceBytes(const std::string& path) {
  const std::string text = ReadSourceText(path);
  const ByteSpan bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

}  // namespace reshard::testing
