// torch: the workload llm2g in PyTorch's formats and as safetensors, against the real packages and
// the hardware.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>

#include "bench/harness.h"
#include "bench/llm2g.h"
#include "reshard/engine/checkpoint.h"
#include "reshard/engine/convert.h"
#include "reshard/engine/diff.h"
#include "reshard/engine/index.h"
#include "reshard/engine/load.h"
#include "reshard/engine/save.h"
#include "reshard/storage/posix_path.h"
#include "reshard/storage/posix_storage.h"

namespace reshard::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPeer = "torch";
constexpr std::string_view kDcp = ".distcp";
constexpr std::string_view kSafetensors = ".safetensors";
constexpr std::uint64_t kOneFile = std::uint64_t{1} << 50;

class TorchBench {
 public:
  TorchBench(const Options& options, Report& report)
      : options_(options),
        report_(report),
        hidden_(LlmHidden(std::min(options.bytes, kLlmMostBytes))),
        tensors_(LlmTensors(hidden_)),
        dcp_(options.directory + "/dcp"),
        whole_(options.directory + "/safetensors") {}

  void Run() {
    if (has_peer()) {
      Peer("save", dcp_);
    } else {
      report_.Note("PEER SKIPPED: no PyTorch (tools/peers.sh torch-2.13.0)");
      SaveOurs(dcp_, "torch", Layout::kRow);
    }
    MeasureWhole();
    MeasureRowToColumn();
    MeasureCold();
    MeasureToSafetensors();
    MeasureSafetensors();
    fs::remove_all(dcp_);
    fs::remove_all(whole_);
    if (has_peer()) {
      MeasureConsolidation();
      MeasureRow();
    }
    MeasureDiff();
  }

 private:
  bool has_peer() const { return HasPeer(options_, kPeer); }

  PeerRun Peer(std::string_view work, const std::string& paths,
               std::string_view more = "--ranks 2") const {
    return RunPeer(options_, kPeer,
                   fmt::format("{} {} --hidden {} {}", work, paths, hidden_, more));
  }

  void SaveOurs(const std::string& dir, const std::string& format, Layout layout) const {
    const LlmStates states = MakeLlmStates(tensors_, layout, true);
    RunRanks(kLlmRanks, [&](ProcessGroup& group) {
      SaveOptions save;
      save.format = format;
      save.threads = 2;
      Must(Save(states[static_cast<std::size_t>(group.rank())]->state, dir, group, save));
    });
  }

  void MeasureWhole() {
    LlmState target(tensors_, Layout::kWhole, 0, 1);
    StateDict& state = target.state;
    const Memory scratch(target.bytes());
    const std::unique_ptr<ProcessGroup> group = SingleProcessGroup();
    Times raw;
    Times ours;
    Times peer;
    std::uint64_t extra = 0;
    RawReadAll(FilesOf(dcp_, kDcp), {scratch.data(), scratch.size()}, 2);
    for (int i = 0; i < options_.repeats; ++i) {
      target.Clear();
      raw.seconds.push_back(RawReadAll(FilesOf(dcp_, kDcp), {scratch.data(), scratch.size()}, 2));
      ResetPeakMemory();
      const std::uint64_t before = CurrentMemory();
      ours.seconds.push_back(Seconds([&] { Must(Load(state, dcp_, *group)); }));
      extra = std::max(extra, PeakMemory() - std::min(PeakMemory(), before));
      if (!target.ForEachRow(true)) {
        Die("the whole load brought wrong values");
      }
      if (has_peer()) {
        peer.seconds.push_back(Peer("load", dcp_, "--ranks 1 --layout whole").seconds);
      }
    }
    report_.Note(
        fmt::format("DCP, whole on one rank, warm: pread {:.3f} s, reshard {:.3f} s, "
                    "dcp.load {:.2f} s",
                    raw.median(), ours.median(), has_peer() ? peer.median() : 0));
    report_.Add("DCP, whole on one rank, warm: pread's time / load time",
                raw.median() / ours.median(), "");
    report_.Add("DCP, whole on one rank: peak extra memory", static_cast<double>(extra) / (1 << 20),
                "MiB", "<= 256");
    if (has_peer()) {
      report_.Add("DCP, whole on one rank, warm: dcp.load's time / ours",
                  peer.median() / ours.median(), "x", ">= 4");
    }
  }

  void MeasureRowToColumn() {
    const LlmStates states = MakeLlmStates(tensors_, Layout::kColumn, false);
    Times ours;
    Times peer;
    std::uint64_t needed = 0;
    std::uint64_t read = 0;
    for (int i = 0; i < options_.repeats; ++i) {
      for (const auto& state : states) {
        state->Clear();
      }
      std::array<LoadReport, kLlmRanks> reports;
      ours.seconds.push_back(Seconds([&] {
        RunRanks(kLlmRanks, [&](ProcessGroup& group) {
          const auto rank = static_cast<std::size_t>(group.rank());
          LoadOptions load;
          load.threads = 1;
          reports[rank] = Must(Load(states[rank]->state, dcp_, group, load));
        });
      }));
      needed = 0;
      read = 0;
      for (std::size_t rank = 0; rank < states.size(); ++rank) {
        needed += states[rank]->bytes();
        read += reports[rank].bytes_read;
        if (!states[rank]->ForEachRow(true)) {
          Die("row to column brought wrong values");
        }
      }
      if (has_peer()) {
        peer.seconds.push_back(Peer("load", dcp_, "--ranks 2 --layout column").seconds);
      }
    }
    report_.Note(
        fmt::format("DCP, row to column on 2 ranks, warm: reshard {:.3f} s, dcp.load "
                    "{:.2f} s",
                    ours.median(), has_peer() ? peer.median() : 0));
    report_.Add("DCP, row -> column on 2 ranks: bytes read / needed",
                static_cast<double>(read) / static_cast<double>(needed), "", "<= 1.05");
    if (has_peer()) {
      report_.Add("DCP, row -> column on 2 ranks, warm: dcp.load's time / ours",
                  peer.median() / ours.median(), "x", ">= 6");
    }
  }

  void MeasureCold() {
    LlmState target(tensors_, Layout::kWhole, 0, 1);
    StateDict& state = target.state;
    const Memory scratch(target.bytes());
    const std::unique_ptr<ProcessGroup> group = SingleProcessGroup();
    Times raw;
    Times ours;
    for (int i = 0; i < options_.repeats; ++i) {
      DropAll(FilesOf(dcp_, kDcp));
      raw.seconds.push_back(RawReadAll(FilesOf(dcp_, kDcp), {scratch.data(), scratch.size()}, 4));
      DropAll(FilesOf(dcp_, kDcp));
      ours.seconds.push_back(Seconds([&] { Must(Load(state, dcp_, *group)); }));
    }
    report_.Add("DCP, whole on one rank, cold: raw read (4 threads) / load time",
                raw.median() / ours.median(), "", ">= 0.85");
  }

  static void DropAll(const std::vector<std::string>& files) {
    for (const std::string& file : files) {
      DropCache(file);
    }
  }

  /// What a conversion took.
  struct Converted {
    double seconds = 0;
    std::uint64_t bytes = 0;  ///< Written.
    double extra_bytes = 0;
  };

  /// One conversion into one safetensors file, durable, of `files` in the page cache: the disk that
  /// it is measured against only writes.
  Converted ConvertToOneFile(const std::string& from, const std::vector<std::string>& files) const {
    fs::remove_all(whole_);
    {
      const Memory scratch(BytesOf(files));
      RawReadAll(files, {scratch.data(), scratch.size()}, 2);
    }
    ::sync();
    ResetPeakMemory();
    const std::uint64_t before = CurrentMemory();
    Converted out;
    out.seconds = Seconds([&] {
      const std::unique_ptr<Storage> source = Must(OpenPosixPath(from));
      const OpenedCheckpoint opened = Must(ReadCheckpoint(*source));
      PosixStorageOptions create;
      create.create = true;
      const std::unique_ptr<Storage> destination = Must(OpenPosixStorage(whole_, create));
      ConvertOptions convert;
      convert.format = "safetensors";
      convert.layout.max_file_bytes = kOneFile;
      Must(Convert({opened.catalog, *source, opened.faults}, *destination, convert));
    });
    out.extra_bytes = static_cast<double>(PeakMemory() - std::min(PeakMemory(), before));
    out.bytes = BytesOf(FilesOf(whole_, kSafetensors));
    return out;
  }

  void CheckWhole() const {
    LlmState target(tensors_, Layout::kWhole, 0, 1);
    target.Clear();
    Must(Load(target.state, whole_, *SingleProcessGroup()));
    if (!target.ForEachRow(true)) {
      Die("the conversion brought wrong values");
    }
  }

  void MeasureToSafetensors() {
    Times raw;
    Times ours;
    Times peer;
    double extra = 0;
    double peer_extra = 0;
    const std::string file = options_.directory + "/peer.safetensors";
    for (int i = 0; i < options_.repeats; ++i) {
      const Converted converted = ConvertToOneFile(dcp_, FilesOf(dcp_, kDcp));
      ours.seconds.push_back(converted.seconds);
      extra = std::max(extra, converted.extra_bytes);
      raw.seconds.push_back(RawWriteOf(options_, converted.bytes));
      if (has_peer()) {
        const PeerRun run = Peer("to-safetensors", fmt::format("'{}' '{}'", dcp_, file));
        peer.seconds.push_back(run.seconds);
        peer_extra = std::max(peer_extra, run.extra_bytes);
        fs::remove(file);
      }
    }
    CheckWhole();
    report_.Note(fmt::format(
        "DCP -> safetensors: raw write {:.2f} s, reshard {:.2f} s (durable), "
        "torch and safetensors {:.1f} s with {:.0f} MiB",
        raw.median(), ours.median(), has_peer() ? peer.median() : 0, peer_extra / (1 << 20)));
    report_.Add("DCP -> safetensors: O_DIRECT writer's time / ours", raw.median() / ours.median(),
                "", ">= 0.8");
    report_.Add("DCP -> safetensors: peak extra memory", extra / (1 << 20), "MiB", "<= 576");
    if (has_peer()) {
      report_.Add("DCP -> safetensors: time through dcp_to_torch_save / ours",
                  peer.median() / ours.median(), "x", ">= 6");
    }
  }

  /// `whole_` holds the one file.
  void MeasureSafetensors() {
    LlmState target(tensors_, Layout::kWhole, 0, 1);
    StateDict& state = target.state;
    const std::string file = FilesOf(whole_, kSafetensors).at(0);
    fs::remove(file + ".reshard");  // the peer verifies nothing either
    const Memory scratch(target.bytes());
    const std::unique_ptr<ProcessGroup> group = SingleProcessGroup();
    Times raw;
    Times ours;
    Times peer;
    RawReadAll({file}, {scratch.data(), scratch.size()}, 2);
    for (int i = 0; i < options_.repeats; ++i) {
      target.Clear();
      raw.seconds.push_back(RawReadAll({file}, {scratch.data(), scratch.size()}, 2));
      ours.seconds.push_back(Seconds([&] { Must(Load(state, file, *group)); }));
      if (!target.ForEachRow(true)) {
        Die("the safetensors load brought wrong values");
      }
      if (has_peer()) {
        peer.seconds.push_back(Peer("load-file", file).seconds);
      }
    }
    report_.Note(
        fmt::format("safetensors into existing memory, warm: pread {:.3f} s, reshard "
                    "{:.3f} s, load_file and copy {:.3f} s",
                    raw.median(), ours.median(), has_peer() ? peer.median() : 0));
    report_.Add("safetensors into existing memory, warm: pread's time / load time",
                raw.median() / ours.median(), "");
    if (has_peer()) {
      report_.Add("safetensors into existing memory, warm: load_file and copy / ours",
                  peer.median() / ours.median(), "x", ">= 1.2");
    }
  }

  void MeasureConsolidation() {
    const std::string shards = options_.directory + "/shards";
    const std::string out = options_.directory + "/consolidated";
    Peer("save-hf", shards);
    Times raw;
    Times ours;
    Times peer;
    for (int i = 0; i < options_.repeats; ++i) {
      const Converted converted = ConvertToOneFile(shards, FilesOf(shards, kSafetensors));
      ours.seconds.push_back(converted.seconds);
      raw.seconds.push_back(RawWriteOf(options_, converted.bytes));
      fs::remove_all(out);
      ::sync();
      double seconds = Peer("consolidate", fmt::format("'{}' '{}'", shards, out)).seconds;
      seconds += Seconds([] { ::sync(); });
      peer.seconds.push_back(seconds);
    }
    CheckWhole();
    for (const std::string& dir : {shards, out, whole_}) {
      fs::remove_all(dir);
    }
    report_.Note(
        fmt::format("2 sharded safetensors into one: raw write {:.2f} s, reshard {:.2f} s "
                    "(durable), torch's consolidation {:.2f} s (synced)",
                    raw.median(), ours.median(), peer.median()));
    report_.Add("sharded safetensors into one file: O_DIRECT writer's time / ours",
                raw.median() / ours.median(), "", ">= 0.8");
    report_.Add("sharded safetensors into one file: torch's consolidation / ours",
                peer.median() / ours.median(), "x", ">= 2.5");
  }

  void MeasureRow() {
    const std::string dir = options_.directory + "/row";
    Peer("save-row", dir);
    const Shape shape = {16384, 4096};  // 256 MiB of float32
    const std::unique_ptr<ProcessGroup> group = SingleProcessGroup();
    const auto row = [&]() -> std::uint64_t {
      StateDict state;
      state["w"] = Tensor::Allocate(DType::kFloat32, shape, Box{{5000, 0}, {1, 4096}});
      const LoadReport loaded = Must(Load(state, dir, *group));
      const TensorView& view = state["w"].get_if<Tensor>()->shards[0].view;
      for (std::uint64_t i = 0; i < 4096; ++i) {
        if (LoadLittle<float>(view.data + 4 * i) != static_cast<float>(5000 * 4096 + i)) {
          Die("the row has wrong values");
        }
      }
      return loaded.bytes_read;
    };
    report_.Add("one 16 KiB row of a 256 MiB DCP tensor: read", static_cast<double>(row()) / 1024,
                "KiB", "<= 64");
    const std::unique_ptr<Storage> storage = Must(OpenPosixPath(dir));
    const CheckpointList list = Must(ListCheckpoints(*storage));
    Must(WriteIndex(*storage, list.foreign.at(0)));
    report_.Add("one 16 KiB row of a 256 MiB DCP tensor, verified by our index: read",
                static_cast<double>(row()) / 1024, "KiB", "<= 512");
    fs::remove_all(dir);
  }

  /// Two checkpoints of options.bytes, cut over 2 and over 3 ranks.
  void MeasureDiff() {
    const std::uint64_t columns = 4096;
    const std::uint64_t rows = 1024;  // 16 MiB of float32
    const std::uint64_t count = std::max<std::uint64_t>(1, options_.bytes / (rows * columns * 4));
    const Memory memory(rows * columns * 4);
    FillNoise({memory.data(), memory.size()}, 7);
    const std::array<std::string, 2> dirs = {options_.directory + "/a", options_.directory + "/b"};
    for (std::size_t d = 0; d < dirs.size(); ++d) {
      const int ranks = d == 0 ? 2 : 3;
      RunRanks(ranks, [&](ProcessGroup& group) {
        StateDict state;
        Value::Map map;
        const auto share = [&](int rank) {
          return rows * static_cast<std::uint64_t>(rank) / static_cast<std::uint64_t>(ranks);
        };
        const std::uint64_t begin = share(group.rank());
        const Box box = {{begin, 0}, {share(group.rank() + 1) - begin, columns}};
        for (std::uint64_t i = 0; i < count; ++i) {
          map.emplace_back(fmt::format("layers.{}.weight", i),
                           Tensor::Sharded({rows, columns}, box,
                                           DenseView(memory.data() + begin * columns * 4,
                                                     DType::kFloat32, box.extent)));
        }
        state = std::move(map);
        SaveOptions save;
        save.threads = 2;
        Must(Save(state, dirs[d], group, save));
      });
    }
    Times times;
    DiffReport found;
    for (int i = 0; i < options_.repeats; ++i) {
      times.seconds.push_back(Seconds([&] {
        const std::unique_ptr<Storage> a = Must(OpenPosixPath(dirs[0]));
        const std::unique_ptr<Storage> b = Must(OpenPosixPath(dirs[1]));
        const OpenedCheckpoint opened_a = Must(ReadCheckpoint(*a));
        const OpenedCheckpoint opened_b = Must(ReadCheckpoint(*b));
        found = Must(Diff({opened_a.catalog, *a, {}}, {opened_b.catalog, *b, {}}));
      }));
    }
    if (!found.equal() || found.by_digest != count || found.bytes_read != 0) {
      Die("the diff did not find the checkpoints equal by their digests alone");
    }
    for (const std::string& dir : dirs) {
      fs::remove_all(dir);
    }
    report_.Add(fmt::format("diff of two checkpoints of {:.1f} GiB cut over 2 and 3 ranks",
                            static_cast<double>(found.bytes) / (1 << 30)),
                times.median() * 1e3, "ms", "<= 100");
  }

  const Options& options_;
  Report& report_;
  std::uint64_t hidden_;
  std::vector<LlmTensor> tensors_;
  std::string dcp_;
  std::string whole_;
};

}  // namespace

void RunTorch(const Options& options, Report& report) { TorchBench(options, report).Run(); }

}  // namespace reshard::bench
