#pragma once

// The workload llm2g: the state of a small decoder trained with AdamW in mixed precision, the same
// bytes here and in the peers' scripts (peers/llm2g.py).

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness.h"
#include "reshard/catalog/value.h"
#include "reshard/tensor/box.h"

namespace reshard::bench {

/// Of the checkpoints that are cut.
inline constexpr int kLlmRanks = 2;

/// Largest size of the workload; it takes more memory than that several times.
inline constexpr std::uint64_t kLlmMostBytes = std::uint64_t{2} << 30;

/// How tensors with two axes are cut; others are replicated.
enum class Layout { kWhole, kRow, kColumn };

struct LlmTensor {
  std::uint32_t number = 0;
  std::string key;
  DType dtype = DType::kFloat32;
  Shape shape;
};

/// The hidden size that makes about so many bytes.
std::uint64_t LlmHidden(std::uint64_t bytes);

/// 146 parameters, each stored four times.
std::vector<LlmTensor> LlmTensors(std::uint64_t hidden);

/// One rank's part of the state in one block of memory.
class LlmState {
 public:
  /// `tensors` must outlive it.
  LlmState(const std::vector<LlmTensor>& tensors, Layout layout, int rank, int ranks);

  /// Writes the values, or compares them; false at the first difference.
  bool ForEachRow(bool compare) const;

  /// Makes every byte wrong.
  void Clear() const;

  std::uint64_t bytes() const { return memory_.size(); }

  StateDict state;

 private:
  const std::vector<LlmTensor>& tensors_;
  Memory memory_;
  std::vector<Box> boxes_;
};

using LlmStates = std::array<std::unique_ptr<LlmState>, kLlmRanks>;

/// A state per rank, with the values when `fill`.
LlmStates MakeLlmStates(const std::vector<LlmTensor>& tensors, Layout layout, bool fill);

/// One run of a peer.
struct PeerRun {
  double seconds = 0;
  double extra_bytes = 0;  ///< Growth of its peak memory.
};

/// Runs a script of peers/ with the peer's interpreter. Dies when it fails or loaded wrong values.
PeerRun RunPeer(const Options& options, std::string_view peer, const std::string& arguments);

/// Whether there is an interpreter with that peer.
bool HasPeer(const Options& options, std::string_view peer);

/// The files of a directory that end so, sorted.
std::vector<std::string> FilesOf(const std::string& dir, std::string_view ending);

/// Bytes of these files.
std::uint64_t BytesOf(const std::vector<std::string>& files);

/// Plain pread of the files into `target`, one after the other, `threads` at once.
double RawReadAll(const std::vector<std::string>& files, MutableByteSpan target,
                  std::size_t threads);

/// RawWriteSeconds of about so many bytes.
double RawWriteOf(const Options& options, std::uint64_t bytes);

}  // namespace reshard::bench
