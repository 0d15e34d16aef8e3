// Uses the installed library: one call that needs no files, one that makes a directory.
//
// Usage: local_box DIRECTORY. Exits with 0 when every result is right.

#include <cstdio>
#include <vector>

#include "reshard/storage/posix_storage.h"
#include "reshard/tensor/mesh.h"

int main(int argc, char** argv) {
  const auto mesh = reshard::ProcessMesh::Parse("dp=2,tp=2");
  if (argc != 2 || !mesh.ok()) {
    return 1;
  }
  const reshard::Shape shape = {4, 6};
  const std::vector<reshard::Placement> placements = {reshard::Replicate{}, reshard::Shard{1}};
  const auto box = reshard::LocalBox(shape, reshard::DType::kFloat32, *mesh, placements, 3);
  if (!box.ok() || !box->has_value() || **box != reshard::Box{{0, 3}, {4, 3}}) {
    std::fputs("rank 3 should hold [0:4, 3:6]\n", stderr);
    return 1;
  }
  const auto storage = reshard::OpenPosixStorage(argv[1], {.create = true});
  const auto entries =
      storage.ok() ? (*storage)->List() : tl::unexpected<reshard::Error>(storage.error());
  if (!entries.ok()) {
    std::fprintf(stderr, "%s\n", entries.error().ToString().c_str());
    return 1;
  }
  std::printf("rank 3 holds %s; %zu files\n", reshard::ToString(**box).c_str(), entries->size());
  return entries->empty() ? 0 : 1;
}
