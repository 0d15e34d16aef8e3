#pragma once

// Who writes what in a save: a pure function of what the ranks described.
//
// Every distinct box is written by exactly one of its holders, balanced by bytes; a large box with
// several holders is cut over them. Within a rank's file, chunks are sorted by descending element
// size (safetensors allows no gaps, so this keeps them aligned), then key, then box.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/description.h"

namespace reshard {

/// A tensor of the checkpoint, as agreed by all ranks.
struct PlannedTensor {
  std::string key;
  Bytes path;
  DType dtype = DType::kUint8;
  Shape shape;
  std::uint32_t alias_of = 0;  ///< Index of the tensor whose chunks it shares; its own when none.
  std::uint64_t first_chunk = 0;
  std::uint64_t num_chunks = 0;
};

/// A chunk: part of one holder's box.
struct PlannedChunk {
  std::uint32_t tensor = 0;
  std::uint32_t writer = 0;          ///< Group rank.
  std::uint32_t writer_tensor = 0;   ///< Index among the writer's own descriptions.
  std::uint64_t box_begin = 0;       ///< Into SavePlan::boxes: offsets, then extents.
  std::uint64_t payload_offset = 0;  ///< In the writer's file, from its payload.
};

/// The whole plan, held by the coordinator.
struct SavePlan {
  std::vector<PlannedTensor> tensors;  ///< Sorted by key.
  std::vector<PlannedChunk> chunks;    ///< Grouped by tensor.
  std::vector<std::uint64_t> boxes;
  std::vector<std::vector<std::uint32_t>> by_writer;  ///< Chunk numbers in file order, per rank.
  std::vector<std::uint64_t> payload_bytes;           ///< Per rank.

  BoxView box(const PlannedChunk& chunk) const;

  /// What rank `writer` has to know, for DecodeRankPlan.
  Bytes EncodeFor(std::uint32_t writer) const;
};

/// Choices of PlanSave.
struct SavePlanOptions {
  std::uint64_t min_cut_bytes = 1 << 20;  ///< A replicated box is never cut into smaller pieces.
};

/// Checks the descriptions (index = group rank; bytes of EncodeTensorDescriptions) against each
/// other and plans. `global_ranks` is for messages. Errors: kInvalidArgument DTYPE_MISMATCH,
/// SHAPE_MISMATCH, PATH_MISMATCH (ranks disagree; names both ranks), OVERLAP, COVERAGE (names key,
/// boxes and ranks); kInternal BAD_MESSAGE. Cost: n log n in the number of boxes over all ranks.
Result<SavePlan> PlanSave(std::span<const ByteSpan> descriptions, std::span<const int> global_ranks,
                          const SavePlanOptions& options = {});

/// One chunk that this rank writes.
struct RankChunk {
  std::uint32_t tensor = 0;  ///< Index among this rank's own descriptions.
  Box box;                   ///< Inside one of the boxes described.
  std::uint64_t payload_offset = 0;
};

/// This rank's part of the plan, in file order.
struct RankPlan {
  std::uint64_t payload_bytes = 0;
  std::vector<RankChunk> chunks;
};

/// `own` are the descriptions that this rank sent. Errors: kInternal BAD_MESSAGE.
Result<RankPlan> DecodeRankPlan(ByteSpan bytes, const std::vector<TensorDescription>& own);

/// What a rank reports of each of its files after that is durable.
struct WriteReport {
  std::string file_name;  ///< Empty: nothing was written.
  std::uint64_t file_size = 0;
  std::uint64_t payload_offset = 0;
  std::uint64_t head_checksum = 0;
  std::vector<std::uint64_t> block_checksums;
  std::vector<std::uint64_t> digest_parts;  ///< Per chunk in file order: the linear part of its
                                            ///< bytes, shifted to the end of the tensor.
  std::uint32_t writer = 0;                 ///< Group rank; the receiver knows it, it is not sent.
  std::int64_t mtime_ns = 0;                ///< Where the format records it.
  /// Which chunks it holds, as positions in the rank's file order, and where each begins in it.
  /// Empty: all of them, as planned, from payload_offset on.
  std::vector<std::uint64_t> chunks = {};
  std::vector<std::uint64_t> chunk_offsets = {};
};

Bytes EncodeWriteReport(const WriteReport& report);
Result<WriteReport> DecodeWriteReport(ByteSpan bytes);

/// Objects of all ranks, merged. Errors: kInvalidArgument OBJECT_MISMATCH (names key and two
/// ranks), KEY_KIND (an object on one rank, a tensor on another), MISSING_PER_RANK (a per-rank key
/// that some rank lacks).
struct MergedObject {
  ObjectDescription object;
  std::int64_t rank = -1;  ///< Group rank of a per-rank value.
};

Result<std::vector<MergedObject>> MergeObjects(
    std::span<const std::vector<ObjectDescription>> by_rank, const SavePlan& plan,
    std::span<const int> global_ranks);

/// The catalog of a finished save. `reports`: one per file, in any order. Without `keep_empty` it
/// has no tensors without elements, for formats whose metadata does not name them either. Errors:
/// kInternal BAD_MESSAGE; those of CatalogBuilder::Build.
Result<Catalog> MakeCatalog(const CatalogInfo& info, const SavePlan& plan,
                            std::span<const WriteReport> reports,
                            std::span<const MergedObject> objects,
                            std::span<const int> global_ranks, bool keep_empty = true);

}  // namespace reshard
