#pragma once

// What one rank asks of a load, as all ranks may have to know it, and its division into phases.

#include <cstdint>
#include <span>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/pieces.h"

namespace reshard {

/// A box of a stored tensor that a rank wants.
struct LoadRequest {
  TensorId tensor = 0;
  Box box;              ///< In stored coordinates, not empty.
  bool staged = false;  ///< Goes through staging memory (a sink, or another dtype).
  bool can_digest =
      false;  ///< This rank can compute the box's part of the tensor's digest as it reads.
};

/// A part of a request that is loaded in one phase. Phase 0 holds all requests that go straight to
/// their memory; later ones hold parts of staged requests that fit the staging memory together.
struct LoadStep {
  std::uint32_t request = 0;
  std::uint32_t phase = 0;
  Box box;
};

/// Divides requests into steps, by phase. Staged boxes are cut into parts that are contiguous in
/// the box's row-major order. Deterministic, so every rank knows every rank's phases.
std::vector<LoadStep> DivideIntoSteps(const Catalog& catalog, std::span<const LoadRequest> requests,
                                      std::uint64_t phase_bytes);

Bytes EncodeLoadRequests(std::span<const LoadRequest> requests);

/// Errors: kInternal BAD_MESSAGE (also for a tensor or box that the catalog does not have).
Result<std::vector<LoadRequest>> DecodeLoadRequests(ByteSpan bytes, const Catalog& catalog);

/// How the pieces of a load are read from one rank's files.
struct ReadPlan {
  std::vector<std::vector<ByteRange>>
      extents;                          ///< Per file: ranges to read whole, disjoint, sorted.
  std::vector<std::size_t> run_pieces;  ///< Pieces whose runs are read one by one.
  std::uint64_t bytes = 0;              ///< That will be read.
};

/// Shortest run that is worth a read of its own.
inline constexpr std::uint64_t kMinRunBytes = 4096;

/// Whether a piece has gaps and is read with the smaller ones, since its runs are short or the gaps
/// few.
bool IsSieved(const Piece& piece);

/// How a wanted box is verified.
enum class Verification : std::uint8_t {
  kNone,
  kBlocks,  ///< The blocks that hold it must be read whole, where the file has checksums.
  kDigest,  ///< Its own bytes must be read, without those between them.
};

/// `verification` is per wanted box.
ReadPlan PlanReads(const Catalog& catalog, std::span<const Piece> pieces,
                   const std::vector<Verification>& verification);

}  // namespace reshard
