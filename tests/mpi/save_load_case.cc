// Save and load between processes: any layout, node-local directories, and a rank that is stopped
// in every phase.

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "reshard/engine/load.h"
#include "reshard/engine/save.h"
#include "reshard/mpi/mpi_process_group.h"
#include "reshard/storage/fault_storage.h"
#include "reshard/storage/posix_storage.h"
#include "tests/mpi/mpi_case.h"
#include "tests/support/ranks.h"

/// Ends a case with the text of a condition that does not hold.
#define MPI_CASE_EXPECT(condition)                                                     \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      return fmt::format("{}:{} rank {}: {}", __FILE__, __LINE__, group.global_rank(), \
                         #condition);                                                  \
    }                                                                                  \
  } while (false)

namespace reshard::testing {
namespace {

constexpr DType kF32 = DType::kFloat32;
const Shape kShape = {96, 1000};

Box CutBox(std::size_t axis, const ProcessGroup& group) {
  Box box = WholeBox(kShape);
  const auto ranks = static_cast<std::uint64_t>(group.size());
  const std::uint64_t step = (kShape[axis] + ranks - 1) / ranks;
  box.offset[axis] = std::min(kShape[axis], step * static_cast<std::uint64_t>(group.rank()));
  box.extent[axis] = std::min(kShape[axis], box.offset[axis] + step) - box.offset[axis];
  return box;
}

/// One tensor cut along `axis`, one that every rank holds, an object and a per-rank value.
StateDict StateOf(const ProcessGroup& group, std::size_t axis, std::uint64_t salt) {
  StateDict state;
  Tensor cut{kF32, kShape, {}};
  cut.shards.push_back(AllocateShard(kF32, CutBox(axis, group)));
  Tensor same{kF32, kShape, {}};
  same.shards.push_back(AllocateShard(kF32, WholeBox(kShape)));
  if (salt != 0) {
    FillPattern(cut, salt);
    FillPattern(same, salt + 1);
  }
  state["model"]["cut"] = std::move(cut);
  state["same"] = std::move(same);
  state["salt"] = salt;
  state["rng"] = PerRank(Value(salt * 100 + static_cast<std::uint64_t>(group.rank())));
  return state;
}

/// "" when `state` holds what StateOf with this salt gave.
std::string CheckState(const StateDict& state, const ProcessGroup& group, std::uint64_t salt,
                       bool same_ranks) {
  MPI_CASE_EXPECT(*state.Find("salt") == Value(salt));
  MPI_CASE_EXPECT(CountWrong(*state.Find("model")->Find("cut")->get_if<Tensor>(), salt) == 0);
  MPI_CASE_EXPECT(CountWrong(*state.Find("same")->get_if<Tensor>(), salt + 1) == 0);
  const Value own(salt * 100 + static_cast<std::uint64_t>(group.rank()));
  MPI_CASE_EXPECT(!same_ranks || state.Find("rng")->get_if<PerRank>()->value() == own);
  return "";
}

std::string LoadAndCheck(ProcessGroup& group, Storage& storage, std::size_t axis,
                         std::uint64_t salt, Transfer transfer, bool same_ranks) {
  StateDict state = StateOf(group, axis, 0);
  LoadOptions options;
  options.transfer = transfer;
  options.per_rank = same_ranks ? PerRankPolicy::kExact : PerRankPolicy::kSameRank;
  const auto report = Load(state, storage, group, options);
  return report.ok() ? CheckState(state, group, salt, same_ranks) : report.error().ToString();
}

/// A new directory, the same on every rank; its objects go with it.
class JobDirectory {
 public:
  explicit JobDirectory(ProcessGroup& group) : owner_(group.rank() == 0) {
    const char* base = std::getenv("TMPDIR");
    std::string path = fmt::format("{}/reshard_mpi_XXXXXX", base != nullptr ? base : "/tmp");
    if (owner_ && ::mkdtemp(path.data()) == nullptr) {
      path = "";
    }
    const auto told = group.Broadcast(AsBytes(path), 0);
    path_ = told.ok() ? std::string(AsText(*told)) : "";
  }

  ~JobDirectory() {
    for (const char* sub : {"/0", "/1", "/2", "/3", ""}) {
      if (owner_) {
        RemoveAll(path_ + sub);
      }
    }
  }

  JobDirectory(const JobDirectory&) = delete;
  JobDirectory& operator=(const JobDirectory&) = delete;

  Result<std::unique_ptr<Storage>> Open(const std::string& sub = "") const {
    PosixStorageOptions options;
    options.create = true;
    return OpenPosixStorage(path_ + sub, options);
  }

 private:
  static void RemoveAll(const std::string& path) {
    if (const auto storage = OpenPosixStorage(path); storage.ok()) {
      if (const auto objects = (*storage)->List(); objects.ok()) {
        for (const ObjectInfo& object : *objects) {
          static_cast<void>((*storage)->Remove(object.name).ok());
        }
      }
    }
    ::rmdir(path.c_str());
  }

  bool owner_;
  std::string path_;
};

Status CopyObjects(Storage& from, Storage& to) {
  RESHARD_TRY_ASSIGN(const std::vector<ObjectInfo> objects, from.List());
  for (const ObjectInfo& object : objects) {
    RESHARD_TRY_ASSIGN(const auto in, from.Open(object.name));
    Bytes bytes(in->size());
    RESHARD_TRY(in->ReadAt(0, bytes));
    RESHARD_TRY_ASSIGN(const auto out, to.Create(object.name, {}));
    RESHARD_TRY(out->WriteAt(0, bytes));
    RESHARD_TRY(out->Finish(bytes.size()));
  }
  return OkStatus();
}

SaveOptions Overwrite(int coordinator) {
  SaveOptions options;
  options.unique_id = 0;
  options.overwrite = true;
  options.coordinator_rank = coordinator;
  return options;
}

/// What is stopped.
enum class Work { kSave, kDirectLoad, kExchangeLoad };

/// Called before each storage operation.
using OperationHook = std::function<void(std::uint64_t count, StorageOp op, std::string_view name)>;

/// Saves or loads once. The coordinator may learn of the group's death only after a save that
/// succeeded, so a barrier follows.
Status RunOnce(ProcessGroup& group, Storage& base, Work work, const OperationHook& hook) {
  const auto storage =
      NewFaultStorage(base, [&](std::uint64_t count, StorageOp op, std::string_view name) {
        hook(count, op, name);
        return FaultAction::kNone;
      });
  if (work == Work::kSave) {
    SaveOptions options;
    options.threads = 1;
    RESHARD_TRY(Save(StateOf(group, 0, 5), *storage, group, options));
  } else {
    StateDict state = StateOf(group, 1, 0);
    LoadOptions options;
    options.threads = 1;
    options.transfer = work == Work::kDirectLoad ? Transfer::kDirect : Transfer::kExchange;
    RESHARD_TRY(Load(state, *storage, group, options));
  }
  return group.Barrier();
}

/// The operations of the victim at which to stop it, from a run without stops: all of a save; of a
/// load, which does the same for file after file, the first and last of each kind.
Result<std::vector<std::uint64_t>> FindPhases(ProcessGroup& group, Storage& base, Work work,
                                              int victim) {
  std::map<std::pair<StorageOp, bool>, std::pair<std::uint64_t, std::uint64_t>> kinds;
  std::set<std::uint64_t> phases;
  RESHARD_TRY(
      RunOnce(group, base, work, [&](std::uint64_t count, StorageOp op, std::string_view name) {
        const bool data = name.ends_with(".safetensors");
        kinds.try_emplace({op, data}, count, count).first->second.second = count;
        if (work == Work::kSave) {
          phases.insert(count);
        }
      }));
  for (const auto& [kind, counts] : kinds) {
    phases.insert(counts.first);
    phases.insert(counts.second);
  }
  Bytes message;
  for (const std::uint64_t phase : phases) {
    AppendLittle(message, phase);
  }
  RESHARD_TRY_ASSIGN(const Bytes told, group.Broadcast(message, victim));
  std::vector<std::uint64_t> out;
  for (std::size_t at = 0; at < told.size(); at += sizeof(std::uint64_t)) {
    out.push_back(LoadLittle<std::uint64_t>(told.data() + at));
  }
  return out;
}

}  // namespace

std::string SaveLoadCase(const Arguments& /*arguments*/) {
  const auto made = NewMpiProcessGroup(MPI_COMM_WORLD);
  if (!made.ok()) {
    return made.error().ToString();
  }
  ProcessGroup& group = **made;
  const JobDirectory directory(group);
  const auto storage = directory.Open();
  MPI_CASE_EXPECT(storage.ok());
  const int last = group.size() - 1;
  std::uint64_t salt = 10;
  for (const Transfer transfer : {Transfer::kAuto, Transfer::kDirect, Transfer::kExchange}) {
    for (std::size_t axis = 0; axis < 2; ++axis) {
      salt += 10;
      const auto saved =
          Save(StateOf(group, axis, salt), **storage, group, Overwrite(axis == 0 ? 0 : last));
      MPI_CASE_EXPECT(saved.ok());
      if (std::string wrong = LoadAndCheck(group, **storage, 1 - axis, salt, transfer, true);
          !wrong.empty()) {
        return wrong;
      }
      // On one rank after the other, alone.
      for (int rank = 0; rank < group.size(); ++rank) {
        const auto alone = SingleProcessGroup();
        const std::string wrong =
            rank == group.rank() ? LoadAndCheck(*alone, **storage, 0, salt, transfer, false) : "";
        const Status status =
            wrong.empty() ? OkStatus() : Status(MakeError(ErrorCode::kInternal, "WRONG", wrong));
        if (const Status agreed = group.Agree(status); !agreed.ok()) {
          return agreed.error().ToString();
        }
      }
    }
  }
  SaveOptions again = Overwrite(0);
  again.overwrite = false;
  const auto refused = Save(StateOf(group, 0, 1), **storage, group, again);
  MPI_CASE_EXPECT(!refused.ok() && refused.error().reason == "SNAPSHOT_EXISTS");
  const auto objects = (*storage)->List();
  MPI_CASE_EXPECT(objects.ok());
  MPI_CASE_EXPECT(objects->size() == static_cast<std::size_t>(group.size()) + 1);
  return group.Barrier().ok() ? "" : "barrier";
}

std::string NodeLocalCase(const Arguments& /*arguments*/) {
  const auto made = NewMpiProcessGroup(MPI_COMM_WORLD);
  if (!made.ok() || (*made)->size() != 4) {
    return "this case is for four ranks";
  }
  ProcessGroup& group = **made;
  const JobDirectory directory(group);
  const auto own = directory.Open(fmt::format("/{}", group.rank()));
  MPI_CASE_EXPECT(own.ok());
  MPI_CASE_EXPECT(Save(StateOf(group, 0, 20), **own, group, Overwrite(0)).ok());
  // Two nodes were swapped.
  const int swapped = group.rank() == 1 ? 3 : group.rank() == 3 ? 1 : group.rank();
  const auto other = directory.Open(fmt::format("/{}", swapped));
  MPI_CASE_EXPECT(other.ok());
  if (std::string wrong = LoadAndCheck(group, **other, 1, 20, Transfer::kAuto, true);
      !wrong.empty()) {
    return wrong;
  }
  // Overwritten by another coordinator: the old files and the old record go everywhere.
  MPI_CASE_EXPECT(Save(StateOf(group, 0, 30), **own, group, Overwrite(3)).ok());
  const auto objects = (*own)->List();
  MPI_CASE_EXPECT(objects.ok());
  MPI_CASE_EXPECT(objects->size() == (group.rank() == 3 ? 2U : 1U));
  if (std::string wrong = LoadAndCheck(group, **own, 1, 30, Transfer::kAuto, true);
      !wrong.empty()) {
    return wrong;
  }
  // Two ranks that see two disks each: 0 has 0 and 2, 1 has 1 and 3.
  if (group.rank() < 2) {
    const auto second = directory.Open(fmt::format("/{}", group.rank() + 2));
    MPI_CASE_EXPECT(second.ok());
    MPI_CASE_EXPECT(CopyObjects(**second, **own).ok());
  }
  const std::vector<int> two = {0, 1};
  const auto pair = group.Subgroup(two);
  MPI_CASE_EXPECT(pair.ok());
  std::string wrong;
  if (*pair != nullptr) {
    wrong = LoadAndCheck(**pair, **own, 1, 30, Transfer::kAuto, false);
  }
  const Status status =
      wrong.empty() ? OkStatus() : Status(MakeError(ErrorCode::kInternal, "WRONG", wrong));
  const Status agreed = group.Agree(status);
  return agreed.ok() ? "" : agreed.error().ToString();
}

std::string StopStorageCase(const Arguments& arguments) {
  if (arguments.size() != 2) {
    return "usage: stop_storage VICTIM save|direct|exchange";
  }
  const int victim = std::stoi(arguments[0]);
  const Work work = arguments[1] == "save"     ? Work::kSave
                    : arguments[1] == "direct" ? Work::kDirectLoad
                                               : Work::kExchangeLoad;
  const auto calm = NewMpiProcessGroup(MPI_COMM_WORLD);
  if (!calm.ok()) {
    return calm.error().ToString();
  }
  ProcessGroup& group = **calm;
  const JobDirectory directory(group);
  const auto storage = directory.Open();
  MPI_CASE_EXPECT(storage.ok());
  MPI_CASE_EXPECT(Save(StateOf(group, 1, 5), **storage, group).ok());
  const auto phases = FindPhases(group, **storage, work, victim);
  MPI_CASE_EXPECT(phases.ok() && phases->size() >= 3);
  for (const std::uint64_t k : *phases) {
    const Deadlines brief = {std::chrono::seconds(1), std::chrono::seconds(1)};
    const auto hasty = NewMpiProcessGroup(MPI_COMM_WORLD, brief);
    MPI_CASE_EXPECT(hasty.ok());
    const std::string wrong = ExpectVictimIsNamed(**hasty, victim, [&](ProcessGroup& g) {
      return RunOnce(g, **storage, work, [&](std::uint64_t count, StorageOp, std::string_view) {
        if (g.rank() == victim && count == k) {
          StopMyself();
        }
      });
    });
    if (!wrong.empty()) {
      return fmt::format("{} stopped at operation {}: {}", arguments[1], k, wrong);
    }
    // Whatever happened to the save, the newest snapshot is whole.
    if (std::string lost = LoadAndCheck(group, **storage, 1, 5, Transfer::kDirect, true);
        !lost.empty()) {
      return fmt::format("after a stop at operation {}: {}", k, lost);
    }
  }
  return group.Barrier().ok() ? "" : "barrier";
}

}  // namespace reshard::testing
