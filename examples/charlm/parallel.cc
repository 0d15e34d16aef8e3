#include "parallel.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace charlm {

reshard::Result<std::unique_ptr<reshard::ProcessGroup>> AxisGroup(const reshard::ProcessMesh& mesh,
                                                                  std::string_view name,
                                                                  reshard::ProcessGroup& world) {
  if (mesh.AxisSize(name) == 1) {
    return reshard::SingleProcessGroup(world.global_rank());
  }
  const auto axis = std::ranges::find(mesh.axis_names(), name) - mesh.axis_names().begin();
  std::map<reshard::Index, std::vector<int>> lines;  // by the coordinates along the other axes
  for (const int rank : mesh.ranks()) {
    reshard::Index coordinates = *mesh.Coordinates(rank);
    coordinates[static_cast<std::size_t>(axis)] = 0;
    lines[coordinates].push_back(world.FindGlobalRank(rank));
  }
  std::unique_ptr<reshard::ProcessGroup> mine;
  for (const auto& [coordinates, ranks] : lines) {
    RESHARD_TRY_ASSIGN(auto group, world.Subgroup(ranks));
    mine = group != nullptr ? std::move(group) : std::move(mine);
  }
  return mine;
}

reshard::Status SumInRankOrder(std::span<float> values, reshard::ProcessGroup& group) {
  if (group.size() == 1) {
    return reshard::OkStatus();
  }
  RESHARD_TRY_ASSIGN(const auto summands, group.AllGather(std::as_bytes(values)));
  std::ranges::fill(values, 0.0F);
  for (const reshard::Bytes& summand : summands) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] += reshard::LoadLittle<float>(summand.data() + i * sizeof(float));
    }
  }
  return reshard::OkStatus();
}

}  // namespace charlm
