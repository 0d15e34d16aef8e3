#pragma once

// A training run, and the four things that it asks of reshard: save, resume, what was saved, and
// one number for all of it.

#include <cstdint>
#include <string>

#include "model.h"
#include "reshard/base/result.h"
#include "reshard/comm/process_group.h"
#include "text.h"

namespace charlm {

struct Options {
  std::string out;
  std::string from;
  std::string text;
  std::string mesh;
  std::uint64_t steps = 200;
  std::uint64_t save_every = 100;
  std::uint64_t log_every = 10;
  std::uint64_t batch = 96;
  double lr = 3e-3;
  std::uint64_t seed = 1;
};

/// A run on one rank, after `step` steps.
struct Run {
  Options options;
  Text text;
  Model model;
  std::uint64_t step = 0;
  double lr = 0;
  double loss = 0;                ///< Of the last step.
  std::int64_t samples_read = 0;  ///< By this rank: a value that differs by rank.
};

/// Saves the run as snapshot number `run.step` of its directory. Returns the bytes of its tensors.
/// Collective.
reshard::Result<std::uint64_t> SaveSnapshot(Run& run, reshard::ProcessGroup& world);

/// Loads the newest committed snapshot of `directory`, whatever mesh it was saved on. False when
/// there is none; every other failure is an error, so that no run starts from scratch by accident.
/// Collective.
reshard::Result<bool> Resume(const std::string& directory, Run& run, reshard::ProcessGroup& world);

/// CRC-64 of all tensors of snapshot `run.step`, one after the other in the order of their keys. It
/// comes from the digests in the catalog, which do not depend on how the tensors were cut. Not
/// collective.
reshard::Result<std::uint64_t> DigestOfSnapshot(const Run& run);

}  // namespace charlm
