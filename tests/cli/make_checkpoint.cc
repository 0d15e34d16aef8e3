// make_checkpoint DIR [ID [SALT [MIB]]]: saves the small checkpoint, under the next free id without
// ID; with MIB one of about so many MiB instead, with 0 one of an empty state dict.

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "reshard/storage/posix_storage.h"
#include "tests/support/small_checkpoint.h"

namespace {

/// Sixteen matrices and many vectors, by two ranks that hold half of the rows each.
reshard::Result<reshard::SaveResult> SaveLarge(reshard::Storage& storage,
                                               std::optional<std::uint64_t> id, std::uint64_t mib) {
  reshard::Result<reshard::SaveResult> out;
  reshard::testing::RunRanks(2, [&](reshard::ProcessGroup& group) {
    reshard::StateDict state;
    const auto add = [&](const std::string& key, reshard::Shape shape) {
      reshard::Box box = reshard::WholeBox(shape);
      box.offset[0] = shape[0] / 2 * static_cast<std::uint64_t>(group.rank());
      box.extent[0] = shape[0] / 2;
      state[key] = reshard::Tensor::Allocate(reshard::DType::kFloat32, std::move(shape), box);
    };
    for (int i = 0; i < 16; ++i) {
      add(fmt::format("w{:02}", i), {mib * 16, 1024});
      add(fmt::format("b{:02}", i), {1024});
    }
    reshard::SaveOptions options;
    options.unique_id = id;
    auto result = reshard::Save(state, storage, group, options);
    if (group.rank() == 0) {
      out = std::move(result);
    }
  });
  return out;
}

reshard::Result<reshard::SaveResult> SaveEmpty(reshard::Storage& storage,
                                               std::optional<std::uint64_t> id) {
  reshard::SaveOptions options;
  options.unique_id = id;
  return reshard::Save(reshard::StateDict(), storage, *reshard::SingleProcessGroup(), options);
}

}  // namespace

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
  const std::uint64_t mib = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 0;
  const auto saved = mib > 0    ? SaveLarge(**storage, id, mib)
                     : argc > 4 ? SaveEmpty(**storage, id)
                                : reshard::testing::SaveSmall(**storage, id, salt);
  if (!saved.ok()) {
    std::fprintf(stderr, "%s\n", saved.error().ToString().c_str());
    return 1;
  }
  return 0;
}
