// paddle: the workload llm2g in Paddle's format, against PaddlePaddle itself and the hardware.

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "bench/harness.h"
#include "reshard/engine/checkpoint.h"
#include "reshard/engine/index.h"
#include "reshard/engine/load.h"
#include "reshard/engine/load_decision.h"
#include "reshard/engine/save.h"
#include "reshard/storage/posix_path.h"
#include "reshard/tensor/mesh.h"

namespace reshard::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLayers = 24;
constexpr std::uint64_t kMostBytes = std::uint64_t{2} << 30;
constexpr int kRanks = 2;
constexpr std::uint64_t kRawUnit = std::uint64_t{1} << 20;  // the raw writer writes whole ones

// The values: paddle/paddle_llm2g.py makes the same.
constexpr std::uint32_t kMultiplier = 2654435761;
constexpr std::uint32_t kStep = 40503;
constexpr std::uint32_t kMask = 0xBFFFBFFF;

enum class Layout { kWhole, kRow, kColumn };

struct LlmTensor {
  std::uint32_t number = 0;
  std::string key;
  DType dtype = DType::kFloat32;
  Shape shape;
};

/// A small decoder with AdamW: 146 parameters, each stored four times.
std::vector<LlmTensor> LlmTensors(std::uint64_t h) {
  std::vector<std::pair<std::string, Shape>> parameters = {{"embed.weight", {48 * h, h}}};
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    parameters.push_back({prefix + "attn.qkv.weight", {3 * h, h}});
    parameters.push_back({prefix + "attn.out.weight", {h, h}});
    parameters.push_back({prefix + "mlp.up.weight", {4 * h, h}});
    parameters.push_back({prefix + "mlp.down.weight", {h, 4 * h}});
    parameters.push_back({prefix + "ln1.weight", {h}});
    parameters.push_back({prefix + "ln2.weight", {h}});
  }
  parameters.push_back({"norm.weight", {h}});
  std::vector<LlmTensor> tensors;
  for (const char* group : {"model", "master", "exp_avg", "exp_avg_sq"}) {
    const bool model = std::strcmp(group, "model") == 0;
    for (const auto& [name, shape] : parameters) {
      tensors.push_back({static_cast<std::uint32_t>(tensors.size()),
                         fmt::format("{}.{}", group, name),
                         model ? DType::kBfloat16 : DType::kFloat32, shape});
    }
  }
  return tensors;
}

Box BoxOf(const LlmTensor& tensor, Layout layout, int rank, int ranks) {
  Box box = WholeBox(tensor.shape);
  if (layout == Layout::kWhole || tensor.shape.size() == 1) {
    return box;
  }
  const std::size_t axis = layout == Layout::kRow ? 0 : 1;
  box.extent[axis] /= static_cast<std::uint64_t>(ranks);
  box.offset[axis] = box.extent[axis] * static_cast<std::uint64_t>(rank);
  return box;
}

/// One rank's part of the state in one block of memory.
class LlmState {
 public:
  LlmState(const std::vector<LlmTensor>& tensors, Layout layout, int rank, int ranks)
      : tensors_(tensors), memory_(TotalBytes(tensors, layout, rank, ranks)) {
    std::byte* at = memory_.data();
    for (const LlmTensor& tensor : tensors) {
      const Box box = BoxOf(tensor, layout, rank, ranks);
      state[tensor.key] =
          Tensor::Sharded(tensor.shape, box, DenseView(at, tensor.dtype, box.extent));
      boxes_.push_back(box);
      at += NumBytes(box, tensor.dtype);
    }
  }

  /// Writes the values, or compares them; false at the first difference.
  bool ForEachRow(bool compare) const {
    std::byte* at = memory_.data();
    Bytes row;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Box& box = boxes_[i];
      const std::uint64_t rows = box.extent.size() == 1 ? 1 : box.extent[0];
      const std::uint64_t columns = box.extent.back();
      const std::uint64_t first_column = box.offset.back();
      const std::uint64_t first_row = box.extent.size() == 1 ? 0 : box.offset[0];
      for (std::uint64_t r = 0; r < rows; ++r) {
        const std::uint64_t element = (first_row + r) * tensors_[i].shape.back() + first_column;
        MakeRow(tensors_[i], element, columns, row);
        if (compare && std::memcmp(at, row.data(), row.size()) != 0) {
          return false;
        }
        if (!compare) {
          std::memcpy(at, row.data(), row.size());
        }
        at += row.size();
      }
    }
    return true;
  }

  void Clear() const { std::memset(memory_.data(), 1, memory_.size()); }

  std::uint64_t bytes() const { return memory_.size(); }

  StateDict state;

 private:
  static std::uint64_t TotalBytes(const std::vector<LlmTensor>& tensors, Layout layout, int rank,
                                  int ranks) {
    std::uint64_t bytes = 0;
    for (const LlmTensor& tensor : tensors) {
      bytes += NumBytes(BoxOf(tensor, layout, rank, ranks), tensor.dtype);
    }
    return bytes;
  }

  static void MakeRow(const LlmTensor& tensor, std::uint64_t element, std::uint64_t count,
                      Bytes& row) {
    const bool half = tensor.dtype == DType::kBfloat16;
    row.resize(count * (half ? 2 : 4));
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t word = half ? (element + i) / 2 : element + i;
      const std::uint32_t value =
          (static_cast<std::uint32_t>(word) * kMultiplier + tensor.number * kStep) & kMask;
      if (half) {
        StoreLittle(row.data() + 2 * i,
                    static_cast<std::uint16_t>((element + i) % 2 == 0 ? value : value >> 16));
      } else {
        StoreLittle(row.data() + 4 * i, value);
      }
    }
  }

  const std::vector<LlmTensor>& tensors_;
  Memory memory_;
  std::vector<Box> boxes_;
};

/// One run of the peer.
struct PeerRun {
  double seconds = 0;
  double extra_bytes = 0;
};

PeerRun RunPeer(const Options& options, const std::string& arguments) {
  const std::string command =
      fmt::format("'{}' '{}' {}", options.paddle_python, options.paddle_script, arguments);
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) {
    Die("cannot start " + command);
  }
  std::string out;
  std::array<char, 4096> buffer;
  for (std::size_t size = 0; (size = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    out.append(buffer.data(), size);
  }
  const auto answer = nlohmann::json::parse(out, nullptr, false);
  if (::pclose(pipe) != 0 || !answer.is_object() || !answer.value("right", false)) {
    Die("the peer failed, or loaded wrong values: " + command + "\n" + out);
  }
  return {answer["seconds"].get<double>(), answer["extra_bytes"].get<double>()};
}

std::vector<std::string> DataFiles(const std::string& dir) {
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    if (entry.path().extension() == ".distcp") {
      files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Plain pread of all data files into `target`, one after the other, `threads` at once.
double RawReadAll(const std::string& dir, MutableByteSpan target, std::size_t threads) {
  double seconds = 0;
  std::uint64_t at = 0;
  for (const std::string& file : DataFiles(dir)) {
    const std::uint64_t size = std::min<std::uint64_t>(fs::file_size(file), target.size() - at);
    seconds += RawReadSeconds(file, target.subspan(at, size), threads);
    at += size;
  }
  return seconds;
}

class PaddleBench {
 public:
  PaddleBench(const Options& options, Report& report)
      : options_(options),
        report_(report),
        hidden_(Hidden(std::min(options.bytes, kMostBytes))),
        tensors_(LlmTensors(hidden_)),
        dir_(options.directory + "/paddle") {}

  void Run() {
    MeasureOpening(2500, 4, true);
    MeasureOpening(options_.bytes < kMostBytes ? 1000 : 10'000, 64, false);
    MeasureSave();
    if (options_.paddle_python.empty()) {
      report_.Note("PEER SKIPPED: no PaddlePaddle (tools/peers.sh paddle-3.3.1)");
      WriteOurs();
    } else {
      fs::remove_all(dir_);
      RunPeer(options_, fmt::format("save '{}' --hidden {} --ranks 2 --layout row", dir_, hidden_));
    }
    MeasureWhole();
    MeasureRowToColumn();
    MeasureCold();
    fs::remove_all(dir_);
  }

 private:
  static std::uint64_t Hidden(std::uint64_t bytes) {
    return 16 * std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::lround(
                                               std::sqrt(static_cast<double>(bytes) / 4704) / 16)));
  }

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
      const PeerRun run = RunPeer(options_, fmt::format("unpickle '{}/0.metadata'", dir));
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

  bool has_peer() const { return !options_.paddle_python.empty(); }

  double SaveSeconds(const std::array<std::unique_ptr<LlmState>, kRanks>& states,
                     const std::string& dir) const {
    fs::remove_all(dir);
    ::sync();
    return Seconds([&] {
      RunRanks(kRanks, [&](ProcessGroup& group) {
        SaveOptions save;
        save.format = "paddle";
        save.threads = 2;
        Must(Save(states[static_cast<std::size_t>(group.rank())]->state, dir, group, save));
      });
    });
  }

  std::array<std::unique_ptr<LlmState>, kRanks> MakeStates(Layout layout, bool fill) const {
    std::array<std::unique_ptr<LlmState>, kRanks> states;
    for (int rank = 0; rank < kRanks; ++rank) {
      auto& state = states[static_cast<std::size_t>(rank)];
      state = std::make_unique<LlmState>(tensors_, layout, rank, kRanks);
      if (fill) {
        state->ForEachRow(false);
      }
    }
    return states;
  }

  void WriteOurs() const { SaveSeconds(MakeStates(Layout::kRow, true), dir_); }

  void MeasureSave() {
    const auto states = MakeStates(Layout::kRow, true);
    const std::string dir = options_.directory + "/paddle-save";
    Times raw;
    Times ours;
    Times peer;
    std::uint64_t bytes = 0;
    for (int i = 0; i < options_.repeats; ++i) {
      ours.seconds.push_back(SaveSeconds(states, dir));
      bytes = 0;
      for (const std::string& file : DataFiles(dir)) {
        bytes += fs::file_size(file);
      }
      raw.seconds.push_back(
          RawWriteSeconds(options_.directory + "/raw", bytes / kRawUnit * kRawUnit));
      if (has_peer()) {
        fs::remove_all(dir);
        ::sync();
        double seconds =
            RunPeer(options_,
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
    RawReadAll(dir_, buffer, 2);
    const std::unique_ptr<ProcessGroup> group = SingleProcessGroup();
    Times raw;
    Times ours;
    Times peer;
    std::uint64_t extra = 0;
    double peer_extra = 0;
    for (int i = 0; i < options_.repeats; ++i) {
      target.Clear();
      raw.seconds.push_back(RawReadAll(dir_, buffer, 2));
      ResetPeakMemory();
      const std::uint64_t before = CurrentMemory();
      ours.seconds.push_back(Seconds([&] { Must(Load(state, dir_, *group)); }));
      extra = std::max(extra, PeakMemory() - std::min(PeakMemory(), before));
      if (!target.ForEachRow(true)) {
        Die("the whole load brought wrong values");
      }
      if (has_peer()) {
        const PeerRun run = RunPeer(
            options_, fmt::format("load '{}' --hidden {} --ranks 1 --layout whole", dir_, hidden_));
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
    const auto states = MakeStates(Layout::kColumn, false);
    Times ours;
    Times peer;
    for (int i = 0; i < options_.repeats; ++i) {
      for (const auto& state : states) {
        state->Clear();
      }
      ours.seconds.push_back(Seconds([&] {
        RunRanks(kRanks, [&](ProcessGroup& group) {
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
            RunPeer(options_,
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
      for (const std::string& file : DataFiles(dir_)) {
        DropCache(file);
      }
    };
    for (int i = 0; i < options_.repeats; ++i) {
      drop();
      raw.seconds.push_back(RawReadAll(dir_, {scratch.data(), scratch.size()}, 4));
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
