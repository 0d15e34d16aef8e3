// paddle: the workload llm2g in Paddle's format, against PaddlePaddle itself and the hardware.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "bench/harness.h"
#include "bench/llm2g.h"
#include "reshard/engine/checkpoint.h"
#include "reshard/engine/load.h"
#include "reshard/engine/load_decision.h"
#include "reshard/engine/save.h"
#include "reshard/storage/posix_path.h"

namespace reshard::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPeer = "paddle";
constexpr std::string_view kEnding = ".distcp";

class PaddleBench {
 public:
  PaddleBench(const Options& options, Report& report)
      : options_(options),
        report_(report),
        hidden_(LlmHidden(std::min(options.bytes, kLlmMostBytes))),
        tensors_(LlmTensors(hidden_)),
        dir_(options.directory + "/paddle") {}

  void Run() {
    MeasureOpening(2500, 4, true);
    MeasureOpening(options_.bytes < kLlmMostBytes ? 1000 : 10'000, 64, false);
    MeasureSave();
    if (!has_peer()) {
      report_.Note("PEER SKIPPED: no PaddlePaddle (tools/peers.sh paddle-3.3.1)");
      WriteOurs();
    } else {
      fs::remove_all(dir_);
      RunPeer(options_, kPeer,
              fmt::format("save '{}' --hidden {} --ranks 2 --layout row", dir_, hidden_));
    }
    MeasureWhole();
    MeasureRowToColumn();
    MeasureCold();
    fs::remove_all(dir_);
  }

 private:
  /// A job of `tensors` tensors, each cut over `ranks` ranks, that somebody opens on one rank.
  void MeasureOpening(std::size_t tensors, int ranks, bool large) {
    const auto n = static_cast<std::uint64_t>(ranks);
    const std::uint64_t pieces = tensors * n;
    const std::uint64_t columns =
        large ? std::max<std::uint64_t>(1, options_.bytes / 5 / pieces / 4) : 4;
    const std::string dir = options_.directory + "/opening";
    const std::vector<float> row(columns, 1.0F);
    const Shape shape = {n, columns};
    RunRanks(ranks, [&](ProcessGroup& group) {
      StateDict state;
      const Box box = {{static_cast<std::uint64_t>(group.rank()), 0}, {1, columns}};
      auto* data = reinterpret_cast<std::byte*>(const_cast<float*>(row.data()));
      Value::Map map;
      for (std::size_t i = 0; i < tensors; ++i) {
        map.emplace_back(
            fmt::format("model.layers.{}.sub.{}.weight", i / 10, i % 10),
            Tensor::Sharded(shape, box, DenseView(data, DType::kFloat32, {1, columns})));
      }
      state = std::move(map);
      SaveOptions save;
      save.format = "paddle";
      save.threads = 1;
      Must(Save(state, dir, group, save));
    });
    const std::string what = fmt::format("Paddle's checkpoint of {} pieces", pieces);
    const Opening indexed = Open(dir, n, columns);
    fs::remove(dir + "/0.metadata.reshard");
    const Opening parsed = Open(dir, n, columns);
    report_.Note(fmt::format("{} in {} files, {:.1f} MB of metadata", what, ranks,
                             static_cast<double>(fs::file_size(dir + "/0.metadata")) / 1e6));
    report_.Add(what + ": open with our index and plan one rank", indexed.seconds * 1e3, "ms",
                "<= 100");
    report_.Add(what + ": open from its pickles and plan one rank", parsed.seconds * 1e3, "ms",
                large ? "<= 100" : "");
    report_.Add(what + ": memory of that", parsed.extra_bytes / (1 << 20), "MiB",
                large ? "<= 64" : "");
    if (has_peer()) {
      const PeerRun run = RunPeer(options_, kPeer, fmt::format("unpickle '{}/0.metadata'", dir));
      report_.Add(what + ": Paddle's unpickling of the metadata alone", run.seconds * 1e3, "ms");
      report_.Add(what + ": memory of that unpickling", run.extra_bytes / (1 << 20), "MiB");
    }
    fs::remove_all(dir);
  }

  /// What opening cost.
  struct Opening {
    double seconds = 0;
    double extra_bytes = 0;
  };

  /// Opens and plans what rank 0 needs, row 0 of every tensor; the better of three.
  Opening Open(const std::string& dir, std::uint64_t rows, std::uint64_t columns) const {
    Opening best;
    for (int i = 0; i < 3; ++i) {
      ResetPeakMemory();
      const std::uint64_t before = CurrentMemory();
      const double seconds = Seconds([&] {
        const std::unique_ptr<Storage> storage = Must(OpenPosixPath(dir));
        const OpenedCheckpoint opened = Must(ReadCheckpoint(*storage));
        std::vector<LoadRequest> requests;
        for (TensorId t = 0; t < opened.catalog.num_tensors(); ++t) {
          requests.push_back(
              {t, {{static_cast<std::uint64_t>(i) % rows, 0}, {1, columns}}, false, false});
        }
        Must(Summarize(opened.catalog, requests, true));
      });
      const auto extra = static_cast<double>(PeakMemory() - std::min(PeakMemory(), before));
      if (i == 0 || seconds < best.seconds) {
        best.seconds = seconds;
      }
      best.extra_bytes = std::max(best.extra_bytes, extra);
    }
    return best;
  }

  bool has_peer() const { return HasPeer(options_, kPeer); }

  double SaveSeconds(const LlmStates& states, const std::string& dir) const {
    fs::remove_all(dir);
    ::sync();
    return Seconds([&] {
      RunRanks(kLlmRanks, [&](ProcessGroup& group) {
        SaveOptions save;
        save.format = "paddle";
        save.threads = 2;
        Must(Save(states[static_cast<std::size_t>(group.rank())]->state, dir, group, save));
      });
    });
  }

  void WriteOurs() const { SaveSeconds(MakeLlmStates(tensors_, Layout::kRow, true), dir_); }

  void MeasureSave() {
    const auto states = MakeLlmStates(tensors_, Layout::kRow, true);
    const std::string dir = options_.directory + "/paddle-save";
    Times raw;
    Times ours;
    Times peer;
    std::uint64_t bytes = 0;
    for (int i = 0; i < options_.repeats; ++i) {
      ours.seconds.push_back(SaveSeconds(states, dir));
      bytes = BytesOf(FilesOf(dir, kEnding));
      raw.seconds.push_back(RawWriteOf(options_, bytes));
      if (has_peer()) {
        fs::remove_all(dir);
        ::sync();
        double seconds =
            RunPeer(options_, kPeer,
                    fmt::format("save '{}' --hidden {} --ranks 2 --layout row", dir, hidden_))
                .seconds;
        seconds += Seconds([] { ::sync(); });
        peer.seconds.push_back(seconds);
      }
    }
    fs::remove_all(dir);
    report_.Note(
        fmt::format("llm2g, hidden {}: {} bytes on 2 ranks; raw write {:.2f} s, save in "
                    "Paddle's format {:.2f} s",
                    hidden_, bytes, raw.median(), ours.median()));
    report_.Add("Paddle's format, durable save on 2 ranks: O_DIRECT writer's time / save time",
                raw.median() / ours.median(), "", ">= 0.85");
    if (has_peer()) {
      report_.Add("Paddle's format, durable save on 2 ranks: Paddle's time (synced) / ours",
                  peer.median() / ours.median(), "x", ">= 2.5");
    }
  }

  void MeasureWhole() {
    LlmState target(tensors_, Layout::kWhole, 0, 1);
    StateDict& state = target.state;
    const Memory scratch(target.bytes());
    const MutableByteSpan buffer{scratch.data(), scratch.size()};
    RawReadAll(FilesOf(dir_, kEnding), buffer, 2);
    const std::unique_ptr<ProcessGroup> group = SingleProcessGroup();
    Times raw;
    Times ours;
    Times peer;
    std::uint64_t extra = 0;
    double peer_extra = 0;
    for (int i = 0; i < options_.repeats; ++i) {
      target.Clear();
      raw.seconds.push_back(RawReadAll(FilesOf(dir_, kEnding), buffer, 2));
      ResetPeakMemory();
      const std::uint64_t before = CurrentMemory();
      ours.seconds.push_back(Seconds([&] { Must(Load(state, dir_, *group)); }));
      extra = std::max(extra, PeakMemory() - std::min(PeakMemory(), before));
      if (!target.ForEachRow(true)) {
        Die("the whole load brought wrong values");
      }
      if (has_peer()) {
        const PeerRun run =
            RunPeer(options_, kPeer,
                    fmt::format("load '{}' --hidden {} --ranks 1 --layout whole", dir_, hidden_));
        peer.seconds.push_back(run.seconds);
        peer_extra = std::max(peer_extra, run.extra_bytes);
      }
    }
    report_.Note(fmt::format(
        "whole on one rank, warm: pread {:.3f} s, reshard {:.3f} s, Paddle "
        "{:.2f} s with {:.0f} MiB more memory",
        raw.median(), ours.median(), has_peer() ? peer.median() : 0, peer_extra / (1 << 20)));
    report_.Add("Paddle's checkpoint, whole on one rank, warm: pread's time / load time",
                raw.median() / ours.median(), "");
    report_.Add("Paddle's checkpoint, whole on one rank: peak extra memory",
                static_cast<double>(extra) / (1 << 20), "MiB", "<= 256");
    if (has_peer()) {
      report_.Add("Paddle's checkpoint, whole on one rank, warm: Paddle's time / ours",
                  peer.median() / ours.median(), "x", ">= 4");
    }
  }

  void MeasureRowToColumn() {
    const auto states = MakeLlmStates(tensors_, Layout::kColumn, false);
    Times ours;
    Times peer;
    for (int i = 0; i < options_.repeats; ++i) {
      for (const auto& state : states) {
        state->Clear();
      }
      ours.seconds.push_back(Seconds([&] {
        RunRanks(kLlmRanks, [&](ProcessGroup& group) {
          LoadOptions load;
          load.threads = 1;
          Must(Load(states[static_cast<std::size_t>(group.rank())]->state, dir_, group, load));
        });
      }));
      for (const auto& state : states) {
        if (!state->ForEachRow(true)) {
          Die("row to column brought wrong values");
        }
      }
      if (has_peer()) {
        peer.seconds.push_back(
            RunPeer(options_, kPeer,
                    fmt::format("load '{}' --hidden {} --ranks 2 --layout column", dir_, hidden_))
                .seconds);
      }
    }
    report_.Note(fmt::format("row to column on 2 ranks, warm: reshard {:.3f} s, Paddle {:.2f} s",
                             ours.median(), has_peer() ? peer.median() : 0));
    if (has_peer()) {
      report_.Add("Paddle's checkpoint, row -> column on 2 ranks, warm: Paddle's time / ours",
                  peer.median() / ours.median(), "x", ">= 8");
    }
  }

  void MeasureCold() {
    LlmState target(tensors_, Layout::kWhole, 0, 1);
    StateDict& state = target.state;
    const Memory scratch(target.bytes());
    const std::unique_ptr<ProcessGroup> group = SingleProcessGroup();
    Times raw;
    Times ours;
    const auto drop = [this] {
      for (const std::string& file : FilesOf(dir_, kEnding)) {
        DropCache(file);
      }
    };
    for (int i = 0; i < options_.repeats; ++i) {
      drop();
      raw.seconds.push_back(
          RawReadAll(FilesOf(dir_, kEnding), {scratch.data(), scratch.size()}, 4));
      drop();
      ours.seconds.push_back(Seconds([&] { Must(Load(state, dir_, *group)); }));
    }
    report_.Add("Paddle's checkpoint, whole on one rank, cold: raw read (4 threads) / load time",
                raw.median() / ours.median(), "", ">= 0.85");
  }

  const Options& options_;
  Report& report_;
  std::uint64_t hidden_;
  std::vector<LlmTensor> tensors_;
  std::string dir_;
};

}  // namespace

void RunPaddle(const Options& options, Report& report) { PaddleBench(options, report).Run(); }

}  // namespace reshard::bench
