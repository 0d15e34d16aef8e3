// save, load, reshard, slice, small-runs: bytes against the disk and the page cache.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "bench/harness.h"
#include "reshard/engine/load.h"
#include "reshard/engine/save.h"
#include "reshard/storage/posix_storage.h"
#include "reshard/tensor/mesh.h"

namespace reshard::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTensors = 200;

/// `bytes` of memory as float32 tensors of 1024 columns.
StateDict MakeState(std::byte* memory, std::uint64_t bytes, std::size_t tensors) {
  constexpr std::uint64_t kColumns = 1024;
  StateDict state;
  const std::uint64_t rows = bytes / tensors / (kColumns * 4);
  for (std::size_t i = 0; i < tensors; ++i) {
    state["model"][fmt::format("layer.{:03}.weight", i)] = Tensor::Whole(
        DenseView(memory + i * rows * kColumns * 4, DType::kFloat32, {rows, kColumns}));
  }
  return state;
}

std::uint64_t StateBytes(std::uint64_t bytes, std::size_t tensors) {
  return bytes / tensors / 4096 * 4096 * tensors;
}

std::string DataFile(const std::string& dir) { return dir + "/0_0.safetensors"; }

double SaveSeconds(const StateDict& state, const std::string& dir) {
  fs::remove_all(dir);
  ::sync();
  const std::unique_ptr<ProcessGroup> group = SingleProcessGroup();
  return Seconds([&] { Must(Save(state, dir, *group)); });
}

/// A state of tensors cut along `axis` over the ranks; -1 replicated.
StateDict Cut(std::span<const Shape> shapes, int axis, int rank, int ranks, DType dtype) {
  const ProcessMesh mesh = Must(ProcessMesh::Create({static_cast<std::uint64_t>(ranks)}));
  StateDict state;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const Placement placement = axis < 0 ? Placement(Replicate{}) : Placement(Shard{axis});
    const Box box = *Must(LocalBox(shapes[i], dtype, mesh, std::span(&placement, 1), rank));
    state["model"][fmt::format("t{:03}", i)] = Tensor::Allocate(dtype, shapes[i], box);
  }
  return state;
}

struct ReshardCase {
  std::string name;
  int save_axis;
  int save_ranks;
  int load_axis;
  int load_ranks;
};

/// Saves, loads on the other layout on all ranks, and returns bytes read / bytes needed.
void RunReshardCase(const ReshardCase& one, std::span<const Shape> shapes, Transfer transfer,
                    const std::string& dir, Report& report, const std::string& goal) {
  fs::remove_all(dir);
  RunRanks(one.save_ranks, [&](ProcessGroup& group) {
    const StateDict state =
        Cut(shapes, one.save_axis, group.rank(), one.save_ranks, DType::kBfloat16);
    Must(Save(state, dir, group));
  });
  std::atomic<std::uint64_t> needed = 0;
  std::atomic<std::uint64_t> read = 0;
  std::atomic<bool> exchanged = false;
  std::vector<StateDict> states;
  for (int rank = 0; rank < one.load_ranks; ++rank) {
    states.push_back(Cut(shapes, one.load_axis, rank, one.load_ranks, DType::kBfloat16));
  }
  const double seconds = Seconds([&] {
    RunRanks(one.load_ranks, [&](ProcessGroup& group) {
      LoadOptions options;
      options.transfer = transfer;
      options.threads = 1;
      const LoadReport loaded =
          Must(Load(states[static_cast<std::size_t>(group.rank())], dir, group, options));
      needed += loaded.bytes_needed;
      read += loaded.bytes_read;
      exchanged = exchanged || loaded.exchanged;
    });
  });
  report.Add(fmt::format("{}: bytes read / bytes needed ({}, verified)", one.name,
                         exchanged ? "exchange" : "direct"),
             static_cast<double>(read) / static_cast<double>(needed), "", goal);
  report.Add(fmt::format("{}: speed, all ranks on this machine", one.name),
             static_cast<double>(needed) / seconds / 1e9, "GB/s");
}

}  // namespace

void RunSave(const Options& options, Report& report) {
  const std::uint64_t bytes = StateBytes(options.bytes, kTensors);
  const Memory memory(bytes);
  FillNoise({memory.data(), bytes}, 7);
  const StateDict state = MakeState(memory.data(), bytes, kTensors);
  const std::string dir = options.directory + "/save";
  Times raw;
  Times saved;
  for (int i = 0; i < options.repeats; ++i) {
    raw.seconds.push_back(RawWriteSeconds(options.directory + "/raw", bytes));
    saved.seconds.push_back(SaveSeconds(state, dir));
  }
  raw.seconds.push_back(RawWriteSeconds(options.directory + "/raw", bytes));
  report.Note(fmt::format(
      "{} bytes in {} tensors; raw O_DIRECT write {:.2f}-{:.2f} s, save {:.2f}-{:.2f} s", bytes,
      kTensors, raw.min(), *std::max_element(raw.seconds.begin(), raw.seconds.end()), saved.min(),
      *std::max_element(saved.seconds.begin(), saved.seconds.end())));
  report.Add("durable save: O_DIRECT writer's time / save time (median)",
             raw.median() / saved.median(), "", ">= 0.85");
  report.Add("durable save: speed (median)", static_cast<double>(bytes) / saved.median() / 1e9,
             "GB/s");
}

void RunLoad(const Options& options, Report& report) {
  const std::uint64_t bytes = StateBytes(options.bytes, kTensors);
  const std::string dir = options.directory + "/load";
  const std::unique_ptr<ProcessGroup> group = SingleProcessGroup();
  {
    const Memory memory(bytes);
    FillNoise({memory.data(), bytes}, 9);
    Must(Save(MakeState(memory.data(), bytes, kTensors), dir, *group));
  }
  const Memory memory(bytes);
  StateDict state = MakeState(memory.data(), bytes, kTensors);
  const MutableByteSpan target{memory.data(), bytes};
  RawReadSeconds(DataFile(dir), target, 2);  // fills the page cache
  Times raw;
  Times loaded;
  Times unverified;
  std::uint64_t extra = 0;
  for (int i = 0; i < options.repeats; ++i) {
    raw.seconds.push_back(RawReadSeconds(DataFile(dir), target, 2));
    ResetPeakMemory();
    const std::uint64_t before = CurrentMemory();
    loaded.seconds.push_back(Seconds([&] { Must(Load(state, dir, *group)); }));
    extra = std::max(extra, PeakMemory() - std::min(PeakMemory(), before));
    LoadOptions off;
    off.verify = false;
    unverified.seconds.push_back(Seconds([&] { Must(Load(state, dir, *group, off)); }));
  }
  raw.seconds.push_back(RawReadSeconds(DataFile(dir), target, 2));
  report.Note(fmt::format("raw pread {:.3f}-{:.3f} s, load {:.3f}-{:.3f} s", raw.min(),
                          *std::max_element(raw.seconds.begin(), raw.seconds.end()), loaded.min(),
                          *std::max_element(loaded.seconds.begin(), loaded.seconds.end())));
  report.Add("load, warm, verified: pread's time / load time (2 threads, median)",
             raw.median() / loaded.median(), "", ">= 0.8");
  report.Add("load, warm, not verified: pread's time / load time",
             raw.median() / unverified.median(), "");
  report.Add("load, warm, verified: speed", static_cast<double>(bytes) / loaded.median() / 1e9,
             "GB/s");
  report.Add("load: peak extra memory", static_cast<double>(extra) / (1 << 20), "MiB", "<= 256");
  Times cold;
  Times raw_cold;
  for (int i = 0; i < options.repeats; ++i) {
    DropCache(DataFile(dir));
    raw_cold.seconds.push_back(RawReadSeconds(DataFile(dir), target, 4));
    DropCache(DataFile(dir));
    cold.seconds.push_back(Seconds([&] { Must(Load(state, dir, *group)); }));
  }
  report.Add("load, cold, verified: pread's time (4 threads) / load time",
             raw_cold.median() / cold.median(), "");
}

void RunReshard(const Options& options, Report& report) {
  const std::vector<Shape> shapes(16, Shape{4096, 4096});  // 512 MiB of bfloat16
  const std::string dir = options.directory + "/reshard";
  for (const ReshardCase& one :
       {ReshardCase{"TP4 -> TP2", 0, 4, 0, 2}, ReshardCase{"TP4 -> TP8", 0, 4, 0, 8},
        ReshardCase{"TP4 -> TP8 by column", 1, 4, 1, 8}, ReshardCase{"row -> column", 0, 2, 1, 2},
        ReshardCase{"replicated on 4", 0, 4, -1, 4}}) {
    const bool replicated = one.load_axis < 0;
    RunReshardCase(one, shapes, Transfer::kAuto, dir, report, replicated ? "<= 0.27" : "<= 1.05");
  }
  RunReshardCase({"row -> column, exchange forced", 0, 2, 1, 2}, shapes, Transfer::kExchange, dir,
                 report, "<= 1.05");
  fs::remove_all(dir);
}

void RunSlice(const Options& options, Report& report) {
  const std::string dir = options.directory + "/slice";
  const std::unique_ptr<ProcessGroup> group = SingleProcessGroup();
  const Shape shape = {16384, 4096};  // 256 MiB of float32
  {
    StateDict state;
    state["w"] = Tensor::Allocate(DType::kFloat32, shape, WholeBox(shape));
    Must(Save(state, dir, *group));
  }
  StateDict state;
  state["w"] = Tensor::Allocate(DType::kFloat32, shape, Box{{5000, 0}, {1, 4096}});
  LoadReport loaded;
  const double seconds = Seconds([&] { loaded = Must(Load(state, dir, *group)); });
  report.Add("one 16 KiB row of a 256 MiB tensor, verified: read",
             static_cast<double>(loaded.bytes_read) / 1024, "KiB", "<= 512");
  report.Add("one 16 KiB row of a 256 MiB tensor, verified: time", seconds * 1e3, "ms");
  fs::remove_all(dir);
}

void RunSmallRuns(const Options& options, Report& report) {
  const std::string dir = options.directory + "/runs";
  for (const std::uint64_t columns : {2ULL, 8ULL, 32ULL, 128ULL, 2048ULL}) {
    const std::vector<Shape> shapes(1, Shape{64 * 1024 * 1024 / columns, columns});
    RunReshardCase({fmt::format("row -> column, runs of {} B", columns), 0, 2, 1, 2}, shapes,
                   Transfer::kAuto, dir, report, "");
  }
  fs::remove_all(dir);
}

}  // namespace reshard::bench
