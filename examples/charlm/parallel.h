#pragma once

// The ranks along one axis of the mesh, and sums over them that always come out the same.

#include <memory>
#include <span>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/comm/process_group.h"
#include "reshard/tensor/mesh.h"

namespace charlm {

/// The group of the ranks that differ from this one along mesh axis `name` alone; the group of this
/// rank alone when the mesh has no such axis. Collective over `world`.
reshard::Result<std::unique_ptr<reshard::ProcessGroup>> AxisGroup(const reshard::ProcessMesh& mesh,
                                                                  std::string_view name,
                                                                  reshard::ProcessGroup& world);

/// Replaces `values` by their sum over the group. The summands are added in rank order, so that
/// every rank gets the same bits, today and after a restart (an MPI_Allreduce promises neither).
reshard::Status SumInRankOrder(std::span<float> values, reshard::ProcessGroup& group);

}  // namespace charlm
