#include "checkpoint.h"

#include "reshard/codec/crc64.h"
#include "reshard/engine/load.h"
#include "reshard/engine/save.h"
#include "reshard/engine/snapshot.h"
#include "reshard/storage/posix_storage.h"

namespace charlm {
namespace {

using reshard::DenseView;
using reshard::DType;
using reshard::ErrorCode;
using reshard::MakeError;
using reshard::ProcessGroup;
using reshard::Result;
using reshard::StateDict;
using reshard::Status;
using reshard::Tensor;
using reshard::Value;

template <typename T>
std::byte* Address(std::vector<T>& elements) {
  return reinterpret_cast<std::byte*>(elements.data());
}

// What the model computes with: one box of the whole tensor. Ranks that hold the same box store it
// once.
Tensor Part(Parameter& parameter) {
  return Tensor::Sharded(
      parameter.shape, parameter.box,
      DenseView(Address(parameter.bfloat16), DType::kBfloat16, parameter.box.extent));
}

// Optimizer state: a range of the elements of that box, which is a few smaller boxes.
Result<Tensor> OwnedRange(const Parameter& parameter, std::vector<float>& elements) {
  Tensor tensor = Tensor::Absent(DType::kFloat32, parameter.shape);
  const std::uint64_t begin = parameter.owned.offset;
  RESHARD_TRY_ASSIGN(const auto boxes, reshard::FlattenedRangeToBoxes(
                                           parameter.box, begin, parameter.owned.extent + begin));
  std::byte* next = Address(elements);
  for (const reshard::Box& box : boxes) {
    reshard::TensorShard& shard = tensor.shards.emplace_back();
    shard.box = box;
    shard.view = DenseView(next, DType::kFloat32, box.extent);
    next += reshard::NumBytes(box, DType::kFloat32);
  }
  return tensor;
}

// The state dict of a run: what a snapshot holds. Its tensors point into the model, so the same
// dict serves to save and to load in place.
Result<StateDict> MakeState(Run& run) {
  Value model;
  Value optimizer;
  for (Parameter& parameter : run.model.parameters()) {
    const std::string& name = parameter.name;
    model[name] = Part(parameter);
    RESHARD_TRY_ASSIGN(optimizer["master_weights"][name],
                       OwnedRange(parameter, parameter.master_weights));
    RESHARD_TRY_ASSIGN(optimizer["exp_avg"][name], OwnedRange(parameter, parameter.exp_avg));
    RESHARD_TRY_ASSIGN(optimizer["exp_avg_sq"][name], OwnedRange(parameter, parameter.exp_avg_sq));
  }
  StateDict state;
  state["model"] = std::move(model);
  state["optimizer"] = std::move(optimizer);
  state["step"] = run.step;
  state["lr"] = run.lr;
  state["loss"] = run.loss;
  state["config"]["batch"] = run.options.batch;
  state["config"]["hidden"] = run.model.config().hidden;
  state["config"]["seed"] = run.options.seed;
  state["config"]["text"] = run.text.checksum();
  state["samples_read"] = reshard::PerRank(run.samples_read);
  return state;
}

template <typename T>
Status Take(const StateDict& state, const char* key, T& value) {
  const T* stored = state.Find(key)->get_if<T>();
  if (stored == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument, "OTHER_RUN",
                     std::string(key) + " is of another type");
  }
  value = *stored;
  return reshard::OkStatus();
}

// Takes the values that are not tensors out of a loaded state; the tensors are in place already.
Status TakeState(const StateDict& state, const ProcessGroup& world, Run& run) {
  std::int64_t step = 0;
  reshard::PerRank samples(Value{});
  RESHARD_TRY(Take(state, "step", step));
  RESHARD_TRY(Take(state, "lr", run.lr));
  RESHARD_TRY(Take(state, "loss", run.loss));
  RESHARD_TRY(Take(state, "samples_read", samples));
  run.step = static_cast<std::uint64_t>(step);
  // The per-rank values of all ranks that saved came as a list. On r ranks, rank i goes on for the
  // ranks i, i + r, i + 2r, ...: for itself where the number of ranks did not change.
  run.samples_read = 0;
  const auto* all = samples.value().get_if<Value::List>();
  for (auto i = static_cast<std::size_t>(world.rank()); all != nullptr && i < all->size();
       i += static_cast<std::size_t>(world.size())) {
    const auto* count = (*all)[i].get_if<std::int64_t>();
    run.samples_read += count == nullptr ? 0 : *count;
  }
  return run.model.UseParameters();
}

}  // namespace

Result<std::uint64_t> SaveSnapshot(Run& run, ProcessGroup& world) {
  RESHARD_TRY_ASSIGN(const StateDict state, MakeState(run));
  reshard::SaveOptions options;
  options.unique_id = run.step;
  RESHARD_TRY_ASSIGN(const reshard::SaveResult saved,
                     reshard::Save(state, run.options.out, world, options));
  return saved.bytes_total;
}

Result<bool> Resume(const std::string& directory, Run& run, ProcessGroup& world) {
  RESHARD_TRY_ASSIGN(StateDict state, MakeState(run));
  const Value config = *state.Find("config");
  reshard::LoadOptions options;
  options.per_rank = reshard::PerRankPolicy::kAll;
  const Result<reshard::LoadReport> report = reshard::Load(state, directory, world, options);
  if (!report.ok() &&
      (report.error().reason == "NO_SNAPSHOT" || report.error().reason == "DIRECTORY_MISSING")) {
    return false;
  }
  RESHARD_TRY(report);
  if (!(*state.Find("config") == config)) {
    return MakeError(ErrorCode::kInvalidArgument, "OTHER_RUN",
                     directory + ": its snapshot is of a run with another text, batch or seed");
  }
  RESHARD_TRY(TakeState(state, world, run));
  return true;
}

Result<std::uint64_t> DigestOfSnapshot(const Run& run) {
  RESHARD_TRY_ASSIGN(const auto storage, reshard::OpenPosixStorage(run.options.out));
  RESHARD_TRY_ASSIGN(const reshard::Catalog catalog, reshard::ReadCatalog(*storage, run.step));
  std::uint64_t digest = 0;
  for (reshard::TensorId tensor = 0; tensor < catalog.num_tensors(); ++tensor) {
    digest = reshard::Crc64Combine(digest, catalog.digest(tensor).value_or(0),
                                   catalog.num_bytes(tensor));
  }
  return digest;
}

}  // namespace charlm
