// make_checkpoint DIR [ID [SALT]]: saves the small checkpoint, under the next free id without ID.

#include <cstdio>
#include <cstdlib>

#include "reshard/storage/posix_storage.h"
#include "tests/support/small_checkpoint.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    return 2;
  }
  const auto storage = reshard::OpenPosixStorage(argv[1], {.create = true});
  if (!storage.ok()) {
    std::fprintf(stderr, "%s\n", storage.error().ToString().c_str());
    return 2;
  }
  std::optional<std::uint64_t> id;
  if (argc > 2) {
    id = std::strtoull(argv[2], nullptr, 10);
  }
  const std::uint64_t salt = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0;
  const auto saved = reshard::testing::SaveSmall(**storage, id, salt);
  if (!saved.ok()) {
    std::fprintf(stderr, "%s\n", saved.error().ToString().c_str());
    return 1;
  }
  return 0;
}
