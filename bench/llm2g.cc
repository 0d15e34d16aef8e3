#include "bench/llm2g.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace reshard::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLayers = 24;
constexpr std::uint64_t kRawUnit = std::uint64_t{1} << 20;  // the raw writer writes whole ones

// The values: peers/llm2g.py makes the same.
constexpr std::uint32_t kMultiplier = 2654435761;
constexpr std::uint32_t kStep = 40503;
constexpr std::uint32_t kMask = 0xBFFFBFFF;

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

std::uint64_t TotalBytes(const std::vector<LlmTensor>& tensors, Layout layout, int rank,
                         int ranks) {
  std::uint64_t bytes = 0;
  for (const LlmTensor& tensor : tensors) {
    bytes += NumBytes(BoxOf(tensor, layout, rank, ranks), tensor.dtype);
  }
  return bytes;
}

void MakeRow(const LlmTensor& tensor, std::uint64_t element, std::uint64_t count, Bytes& row) {
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

}  // namespace

std::uint64_t LlmHidden(std::uint64_t bytes) {
  return 16 * std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::lround(
                                             std::sqrt(static_cast<double>(bytes) / 4704) / 16)));
}

std::vector<LlmTensor> LlmTensors(std::uint64_t hidden) {
  const std::uint64_t h = hidden;
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

LlmState::LlmState(const std::vector<LlmTensor>& tensors, Layout layout, int rank, int ranks)
    : tensors_(tensors), memory_(TotalBytes(tensors, layout, rank, ranks)) {
  std::byte* at = memory_.data();
  for (const LlmTensor& tensor : tensors) {
    const Box box = BoxOf(tensor, layout, rank, ranks);
    state[tensor.key] = Tensor::Sharded(tensor.shape, box, DenseView(at, tensor.dtype, box.extent));
    boxes_.push_back(box);
    at += NumBytes(box, tensor.dtype);
  }
}

bool LlmState::ForEachRow(bool compare) const {
  std::byte* at = memory_.data();
  Bytes row;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Box& box = boxes_[i];
    const std::uint64_t rows = box.extent.size() == 1 ? 1 : box.extent[0];
    const std::uint64_t first_row = box.extent.size() == 1 ? 0 : box.offset[0];
    for (std::uint64_t r = 0; r < rows; ++r) {
      const std::uint64_t element = (first_row + r) * tensors_[i].shape.back() + box.offset.back();
      MakeRow(tensors_[i], element, box.extent.back(), row);
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

void LlmState::Clear() const { std::memset(memory_.data(), 1, memory_.size()); }

LlmStates MakeLlmStates(const std::vector<LlmTensor>& tensors, Layout layout, bool fill) {
  LlmStates states;
  for (int rank = 0; rank < kLlmRanks; ++rank) {
    auto& state = states[static_cast<std::size_t>(rank)];
    state = std::make_unique<LlmState>(tensors, layout, rank, kLlmRanks);
    if (fill) {
      state->ForEachRow(false);
    }
  }
  return states;
}

bool HasPeer(const Options& options, std::string_view peer) {
  return options.peers.contains(std::string(peer));
}

PeerRun RunPeer(const Options& options, std::string_view peer, const std::string& arguments) {
  const std::string command =
      fmt::format("'{}' '{}/{}_llm2g.py' {}", options.peers.at(std::string(peer)),
                  options.peer_scripts, peer, arguments);
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

std::vector<std::string> FilesOf(const std::string& dir, std::string_view ending) {
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    if (entry.path().string().ends_with(ending)) {
      files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::uint64_t BytesOf(const std::vector<std::string>& files) {
  std::uint64_t bytes = 0;
  for (const std::string& file : files) {
    bytes += fs::file_size(file);
  }
  return bytes;
}

double RawReadAll(const std::vector<std::string>& files, MutableByteSpan target,
                  std::size_t threads) {
  double seconds = 0;
  std::uint64_t at = 0;
  for (const std::string& file : files) {
    const std::uint64_t size = std::min<std::uint64_t>(fs::file_size(file), target.size() - at);
    seconds += RawReadSeconds(file, target.subspan(at, size), threads);
    at += size;
  }
  return seconds;
}

double RawWriteOf(const Options& options, std::uint64_t bytes) {
  return RawWriteSeconds(options.directory + "/raw", bytes / kRawUnit * kRawUnit);
}

}  // namespace reshard::bench
