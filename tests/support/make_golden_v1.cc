// Writes the files of tests/golden/v1 into the folder that is given. They were written once; a
// change of the format gets a folder of its own.

#include <fstream>
#include <iostream>
#include <string>

#include "tests/support/golden_v1.h"

namespace {

bool WriteFile(const std::string& path, const reshard::Bytes& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << reshard::AsText(bytes);
  return static_cast<bool>(out.flush());
}

}  // namespace

int main(int argc, char** argv) {
  using reshard::testing::GoldenV1;
  if (argc != 2) {
    std::cerr << "usage: reshard_make_golden_v1 FOLDER\n";
    return 2;
  }
  const std::string folder = argv[1];
  const bool done = WriteFile(folder + "/7.reshard", GoldenV1::CatalogFile()) &&
                    WriteFile(folder + "/0_7.safetensors", GoldenV1::DataFile());
  return done ? 0 : 2;
}
