#include "reshard/catalog/save_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "reshard/base/check.h"
#include "reshard/catalog/tiling.h"
#include "reshard/catalog/wire.h"
#include "reshard/codec/crc64.h"

namespace reshard {
namespace {

/// One box of one rank.
struct Holding {
  std::uint32_t tensor = 0;
  std::uint32_t rank = 0;
  std::uint32_t rank_tensor = 0;
  std::uint64_t box_begin = 0;
};

/// What the ranks said, merged by key in first-seen order.
struct Merged {
  std::vector<PlannedTensor> tensors;
  std::vector<std::uint32_t> first_rank;              // per tensor: who named it first
  std::vector<std::vector<std::uint32_t>> rank_keys;  // per rank: tensor of its i-th description
  std::vector<Holding> holdings;
  std::vector<std::uint64_t> boxes;
  // Per tensor: the tensor it shares memory with on every holder so far; itself: not an alias.
  std::vector<std::uint32_t> same_as;
  std::vector<bool> has_boxes;
};

/// Reads the descriptions of all ranks.
class Merger {
 public:
  Merger(std::span<const ByteSpan> descriptions, std::span<const int> global_ranks)
      : descriptions_(descriptions), global_ranks_(global_ranks) {}

  Result<Merged> Run() {
    for (std::uint32_t rank = 0; rank < descriptions_.size(); ++rank) {
      RESHARD_TRY(ReadRank(rank));
    }
    return std::move(out_);
  }

 private:
  Status ReadRank(std::uint32_t rank) {
    WireReader reader(descriptions_[rank]);
    std::uint32_t count = 0;
    if (!reader.Read(count) || count > reader.remaining()) {
      return BadMessage("descriptions");
    }
    out_.rank_keys.emplace_back();
    out_.rank_keys.back().reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      RESHARD_TRY(ReadTensor(reader, rank, i));
    }
    return reader.AtEnd() ? OkStatus() : Status(BadMessage("descriptions"));
  }

  Status ReadTensor(WireReader& reader, std::uint32_t rank, std::uint32_t index) {
    ByteSpan key;
    ByteSpan path;
    std::uint8_t dtype = 0;
    std::uint8_t axes = 0;
    if (!reader.ReadCounted(key) || !reader.ReadCounted(path) || !reader.Read(dtype) ||
        !reader.Read(axes) || !IsDType(dtype) || axes > kMaxAxes) {
      return BadMessage("descriptions");
    }
    shape_.resize(axes);
    std::uint32_t same_as = 0;
    std::uint32_t boxes = 0;
    if (!reader.ReadNumbers(shape_) || !reader.Read(same_as) || !reader.Read(boxes) ||
        same_as > index) {
      return BadMessage("descriptions");
    }
    const std::uint32_t tensor = FindOrAdd(AsText(key), rank, index, path, dtype);
    out_.rank_keys[rank].push_back(tensor);
    RESHARD_TRY(CheckAgreement(tensor, rank, path, static_cast<DType>(dtype)));
    for (std::uint32_t b = 0; b < boxes; ++b) {
      const std::uint64_t begin = out_.boxes.size();
      out_.boxes.resize(begin + 2 * std::size_t{axes});
      if (!reader.ReadNumbers({out_.boxes.data() + begin, 2 * std::size_t{axes}})) {
        return BadMessage("descriptions");
      }
      out_.holdings.push_back({tensor, rank, index, begin});
    }
    if (boxes > 0) {
      MergeAlias(tensor, out_.rank_keys[rank][same_as]);
    }
    return OkStatus();
  }

  /// Ranks usually describe the same keys in the same order: try the neighbour's tensor first.
  std::uint32_t FindOrAdd(std::string_view key, std::uint32_t rank, std::uint32_t index,
                          ByteSpan path, std::uint8_t dtype) {
    if (rank > 0 && index < out_.rank_keys[rank - 1].size()) {
      const std::uint32_t guess = out_.rank_keys[rank - 1][index];
      if (out_.tensors[guess].key == key) {
        return guess;
      }
    }
    const auto found = by_key_.find(std::string(key));
    if (found != by_key_.end()) {
      return found->second;
    }
    const auto tensor = static_cast<std::uint32_t>(out_.tensors.size());
    by_key_.emplace(std::string(key), tensor);
    PlannedTensor planned;
    planned.key = std::string(key);
    planned.path = Bytes(path.begin(), path.end());
    planned.dtype = static_cast<DType>(dtype);
    planned.shape = shape_;
    out_.tensors.push_back(std::move(planned));
    out_.first_rank.push_back(rank);
    out_.same_as.push_back(tensor);
    out_.has_boxes.push_back(false);
    return tensor;
  }

  Status CheckAgreement(std::uint32_t tensor, std::uint32_t rank, ByteSpan path,
                        DType dtype) const {
    const PlannedTensor& known = out_.tensors[tensor];
    const int first = global_ranks_[out_.first_rank[tensor]];
    const int here = global_ranks_[rank];
    if (known.dtype != dtype) {
      return MakeError(
          ErrorCode::kInvalidArgument, "DTYPE_MISMATCH",
          fmt::format("tensor '{}' is {} on rank {} and {} on rank {}; all ranks must "
                      "agree",
                      known.key, Info(known.dtype).name, first, Info(dtype).name, here));
    }
    if (known.shape != shape_) {
      return MakeError(
          ErrorCode::kInvalidArgument, "SHAPE_MISMATCH",
          fmt::format("tensor '{}' has the global shape {} on rank {} and {} on rank {}; "
                      "give the global shape, not the local one",
                      known.key, ToString(known.shape), first, ToString(shape_), here));
    }
    if (!std::ranges::equal(known.path, path)) {
      return MakeError(
          ErrorCode::kInvalidArgument, "PATH_MISMATCH",
          fmt::format("ranks {} and {} nest the key '{}' differently", first, here, known.key));
    }
    return OkStatus();
  }

  void MergeAlias(std::uint32_t tensor, std::uint32_t target) {
    if (!out_.has_boxes[tensor]) {
      out_.has_boxes[tensor] = true;
      out_.same_as[tensor] = target;
    } else if (out_.same_as[tensor] != target) {
      out_.same_as[tensor] = tensor;
      not_alias_.resize(std::max<std::size_t>(not_alias_.size(), tensor + std::size_t{1}));
      not_alias_[tensor] = true;
    }
    if (tensor < not_alias_.size() && not_alias_[tensor]) {
      out_.same_as[tensor] = tensor;
    }
  }

  std::span<const ByteSpan> descriptions_;
  std::span<const int> global_ranks_;
  Merged out_;
  std::unordered_map<std::string, std::uint32_t> by_key_;
  std::vector<bool> not_alias_;
  Shape shape_;
};

/// Holdings of one tensor with one box: who can write it.
struct DistinctBox {
  std::uint32_t tensor = 0;
  std::uint64_t box_begin = 0;
  std::uint64_t bytes = 0;
  std::size_t first_holder = 0;  // into the sorted holdings
  std::size_t num_holders = 0;
};

class Planner {
 public:
  Planner(Merged merged, std::span<const int> global_ranks, const SavePlanOptions& options)
      : merged_(std::move(merged)),
        global_ranks_(global_ranks),
        options_(options),
        load_(global_ranks.size(), 0) {
    options_.min_cut_bytes = std::max<std::uint64_t>(options_.min_cut_bytes, 1);
  }

  Result<SavePlan> Run() {
    SortTensors();
    SortHoldings();
    RESHARD_TRY(FindDistinctBoxes());
    ResolveAliases();
    Assign();
    Layout();
    return std::move(plan_);
  }

 private:
  std::size_t Axes(std::uint32_t tensor) const { return merged_.tensors[tensor].shape.size(); }

  BoxView BoxAt(std::uint32_t tensor, std::uint64_t begin) const {
    const std::size_t axes = Axes(tensor);
    const std::uint64_t* at = merged_.boxes.data() + begin;
    return {{at, axes}, {at + axes, axes}};
  }

  /// Renumbers the tensors in key order.
  void SortTensors() {
    const std::size_t count = merged_.tensors.size();
    std::vector<std::uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
      return merged_.tensors[a].key < merged_.tensors[b].key;
    });
    std::vector<std::uint32_t> number(count);
    std::vector<PlannedTensor> tensors;
    tensors.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      number[order[i]] = i;
      tensors.push_back(std::move(merged_.tensors[order[i]]));
    }
    for (std::uint32_t old = 0; old < count; ++old) {
      tensors[number[old]].alias_of = number[merged_.same_as[old]];
    }
    for (Holding& holding : merged_.holdings) {
      holding.tensor = number[holding.tensor];
    }
    merged_.tensors = std::move(tensors);
  }

  /// Groups by tensor (counting sort), then by box, then by rank.
  void SortHoldings() {
    const std::vector<Holding> old = std::move(merged_.holdings);
    tensor_end_.assign(merged_.tensors.size() + 1, 0);
    for (const Holding& holding : old) {
      ++tensor_end_[holding.tensor + 1];
    }
    std::partial_sum(tensor_end_.begin(), tensor_end_.end(), tensor_end_.begin());
    std::vector<std::size_t> next(tensor_end_.begin(), tensor_end_.end() - 1);
    merged_.holdings.resize(old.size());
    for (const Holding& holding : old) {  // ranks come in order, and stay so
      merged_.holdings[next[holding.tensor]++] = holding;
    }
    for (std::uint32_t tensor = 0; tensor < merged_.tensors.size(); ++tensor) {
      const std::size_t numbers = 2 * Axes(tensor);
      const auto begin =
          merged_.holdings.begin() + static_cast<std::ptrdiff_t>(tensor_end_[tensor]);
      const auto end =
          merged_.holdings.begin() + static_cast<std::ptrdiff_t>(tensor_end_[tensor + 1]);
      const auto before = [this, numbers](const Holding& a, const Holding& b) {
        const std::uint64_t* x = merged_.boxes.data() + a.box_begin;
        const std::uint64_t* y = merged_.boxes.data() + b.box_begin;
        return std::lexicographical_compare(x, x + numbers, y, y + numbers);
      };
      if (!std::is_sorted(begin, end, before)) {
        std::stable_sort(begin, end, before);
      }
    }
  }

  Status FindDistinctBoxes() {
    std::vector<BoxView> views;
    for (std::uint32_t tensor = 0; tensor < merged_.tensors.size(); ++tensor) {
      views.clear();
      const std::size_t first_box = distinct_.size();
      for (std::size_t i = tensor_end_[tensor]; i < tensor_end_[tensor + 1]; ++i) {
        const Holding& holding = merged_.holdings[i];
        const BoxView box = BoxAt(tensor, holding.box_begin);
        if (!views.empty() && views.back() == box) {
          ++distinct_.back().num_holders;
          continue;
        }
        views.push_back(box);
        distinct_.push_back(
            {tensor, holding.box_begin, NumBytes(box, merged_.tensors[tensor].dtype), i, 1});
      }
      if (!TilesExactly(WholeBox(merged_.tensors[tensor].shape), views)) {
        return TilingError(tensor, views, first_box);
      }
    }
    return OkStatus();
  }

  tl::unexpected<Error> TilingError(std::uint32_t tensor, std::span<const BoxView> views,
                                    std::size_t first_box) const {
    const PlannedTensor& planned = merged_.tensors[tensor];
    const TilingFault fault = FindTilingFault(views);
    if (fault.overlap) {
      const auto rank = [&](std::size_t box) {
        return global_ranks_[merged_.holdings[distinct_[first_box + box].first_holder].rank];
      };
      return MakeError(
          ErrorCode::kInvalidArgument, "OVERLAP",
          fmt::format(
              "tensor '{}' {}: {} of rank {} and {} of rank {} overlap in part; replicas must "
              "be the same box",
              planned.key, ToString(planned.shape), ToString(views[fault.first]), rank(fault.first),
              ToString(views[fault.second]), rank(fault.second)));
    }
    std::uint64_t have = 0;
    for (const BoxView& view : views) {
      have += NumElements(view);
    }
    return MakeError(
        ErrorCode::kInvalidArgument, "COVERAGE",
        fmt::format("tensor '{}' {}: the {} boxes of all ranks hold {} of {} elements; "
                    "every element must be held by some rank",
                    planned.key, ToString(planned.shape), views.size(), have,
                    NumElements(planned.shape)));
  }

  /// Keeps an alias only where both tensors have the same holders and boxes.
  void ResolveAliases() {
    std::vector<std::pair<std::size_t, std::size_t>> boxes(merged_.tensors.size());
    for (std::size_t i = 0; i < distinct_.size(); ++i) {
      auto& range = boxes[distinct_[i].tensor];
      range = {range.second == 0 ? i : range.first, i + 1};
    }
    for (std::uint32_t tensor = 0; tensor < merged_.tensors.size(); ++tensor) {
      PlannedTensor& planned = merged_.tensors[tensor];
      std::uint32_t target = planned.alias_of;
      while (merged_.tensors[target].alias_of != target && target != tensor) {
        target = merged_.tensors[target].alias_of;
      }
      const bool same = target != tensor && SameHolders(boxes[tensor], boxes[target]) &&
                        merged_.tensors[target].dtype == planned.dtype &&
                        merged_.tensors[target].shape == planned.shape;
      planned.alias_of = same ? target : tensor;
    }
    std::erase_if(distinct_, [this](const DistinctBox& box) {
      return merged_.tensors[box.tensor].alias_of != box.tensor;
    });
  }

  bool SameHolders(std::pair<std::size_t, std::size_t> a,
                   std::pair<std::size_t, std::size_t> b) const {
    if (a.second - a.first != b.second - b.first) {
      return false;
    }
    for (std::size_t i = 0; i < a.second - a.first; ++i) {
      const DistinctBox& x = distinct_[a.first + i];
      const DistinctBox& y = distinct_[b.first + i];
      if (x.num_holders != y.num_holders ||
          !(BoxAt(x.tensor, x.box_begin) == BoxAt(y.tensor, y.box_begin))) {
        return false;
      }
      for (std::size_t h = 0; h < x.num_holders; ++h) {
        if (merged_.holdings[x.first_holder + h].rank !=
            merged_.holdings[y.first_holder + h].rank) {
          return false;
        }
      }
    }
    return true;
  }

  /// Boxes with one holder first, then the others by falling size: each to the least loaded holder.
  void Assign() {
    std::vector<std::size_t> shared;
    for (std::size_t i = 0; i < distinct_.size(); ++i) {
      const DistinctBox& box = distinct_[i];
      if (box.num_holders == 1) {
        AddChunk(box, BoxAt(box.tensor, box.box_begin).ToBox(), merged_.holdings[box.first_holder]);
      } else {
        shared.push_back(i);
      }
    }
    std::stable_sort(shared.begin(), shared.end(), [this](std::size_t a, std::size_t b) {
      return distinct_[a].bytes > distinct_[b].bytes;
    });
    for (const std::size_t i : shared) {
      AssignShared(distinct_[i]);
    }
  }

  void AssignShared(const DistinctBox& box) {
    const Box whole = BoxAt(box.tensor, box.box_begin).ToBox();
    const std::span<const Holding> holders(merged_.holdings.data() + box.first_holder,
                                           box.num_holders);
    const std::uint64_t wanted = std::min<std::uint64_t>(
        holders.size(), std::max<std::uint64_t>(1, box.bytes / options_.min_cut_bytes));
    const std::vector<Box> pieces = CutBox(whole, merged_.tensors[box.tensor].dtype, wanted);
    if (pieces.size() == 1) {
      const Holding* least = &holders[0];
      for (const Holding& holder : holders) {
        least = load_[holder.rank] < load_[least->rank] ? &holder : least;
      }
      AddChunk(box, whole, *least);
      return;
    }
    std::vector<std::size_t> order(holders.size());
    std::iota(order.begin(), order.end(), 0);
    const auto lighter = [&](std::size_t a, std::size_t b) {
      return std::pair(load_[holders[a].rank], a) < std::pair(load_[holders[b].rank], b);
    };
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(pieces.size()),
                      order.end(), lighter);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      AddChunk(box, pieces[i], holders[order[i]]);
    }
  }

  /// Cuts along the first axis that is long enough; fewer pieces when none is.
  static std::vector<Box> CutBox(const Box& box, DType dtype, std::uint64_t pieces) {
    if (pieces <= 1 || box.extent.empty()) {
      return {box};
    }
    const Box units = ToUnits(box, dtype);
    std::size_t axis = 0;
    while (axis + 1 < units.extent.size() && units.extent[axis] < pieces) {
      ++axis;
    }
    if (units.extent[axis] < pieces) {
      axis = static_cast<std::size_t>(std::max_element(units.extent.begin(), units.extent.end()) -
                                      units.extent.begin());
      pieces = std::min(pieces, units.extent[axis]);
    }
    const std::uint64_t unit = box.extent[axis] / units.extent[axis];
    std::vector<Box> out;
    for (std::uint64_t i = 0; i < pieces; ++i) {
      const std::uint64_t begin = units.extent[axis] * i / pieces;
      const std::uint64_t end = units.extent[axis] * (i + 1) / pieces;
      Box piece = box;
      piece.offset[axis] += begin * unit;
      piece.extent[axis] = (end - begin) * unit;
      out.push_back(std::move(piece));
    }
    return out;
  }

  void AddChunk(const DistinctBox& from, const Box& box, const Holding& holder) {
    PlannedChunk chunk;
    chunk.tensor = from.tensor;
    chunk.writer = holder.rank;
    chunk.writer_tensor = holder.rank_tensor;
    chunk.box_begin = plan_.boxes.size();
    plan_.boxes.insert(plan_.boxes.end(), box.offset.begin(), box.offset.end());
    plan_.boxes.insert(plan_.boxes.end(), box.extent.begin(), box.extent.end());
    plan_.chunks.push_back(chunk);
    load_[holder.rank] += NumBytes(box, merged_.tensors[from.tensor].dtype);
  }

  /// Groups chunks by tensor and gives each its place in its writer's file.
  void Layout() {
    plan_.tensors = std::move(merged_.tensors);
    std::sort(plan_.chunks.begin(), plan_.chunks.end(),
              [this](const PlannedChunk& a, const PlannedChunk& b) {
                if (a.tensor != b.tensor) {
                  return a.tensor < b.tensor;
                }
                const BoxView x = plan_.box(a);
                const BoxView y = plan_.box(b);
                return std::ranges::lexicographical_compare(x.offset, y.offset);
              });
    plan_.by_writer.resize(load_.size());
    plan_.payload_bytes.assign(load_.size(), 0);
    for (std::uint32_t i = 0; i < plan_.chunks.size(); ++i) {
      PlannedTensor& tensor = plan_.tensors[plan_.chunks[i].tensor];
      tensor.first_chunk = tensor.num_chunks == 0 ? i : tensor.first_chunk;
      ++tensor.num_chunks;
      plan_.by_writer[plan_.chunks[i].writer].push_back(i);
    }
    for (std::size_t writer = 0; writer < load_.size(); ++writer) {
      auto& order = plan_.by_writer[writer];
      std::stable_sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
        return Alignment(plan_.chunks[a]) > Alignment(plan_.chunks[b]);
      });
      for (const std::uint32_t i : order) {
        PlannedChunk& chunk = plan_.chunks[i];
        chunk.payload_offset = plan_.payload_bytes[writer];
        plan_.payload_bytes[writer] +=
            NumBytes(plan_.box(chunk), plan_.tensors[chunk.tensor].dtype);
      }
    }
  }

  /// Bytes a reader may want the chunk aligned to.
  std::uint32_t Alignment(const PlannedChunk& chunk) const {
    const std::uint32_t bytes = Info(plan_.tensors[chunk.tensor].dtype).unit_bytes;
    return bytes == 3 ? 1 : bytes;
  }

  Merged merged_;
  std::span<const int> global_ranks_;
  SavePlanOptions options_;
  std::vector<std::uint64_t> load_;  // bytes per rank
  std::vector<std::size_t> tensor_end_;
  std::vector<DistinctBox> distinct_;
  SavePlan plan_;
};

}  // namespace

BoxView SavePlan::box(const PlannedChunk& chunk) const {
  const std::size_t axes = tensors[chunk.tensor].shape.size();
  const std::uint64_t* at = boxes.data() + chunk.box_begin;
  return {{at, axes}, {at + axes, axes}};
}

Bytes SavePlan::EncodeFor(std::uint32_t writer) const {
  Bytes out;
  AppendLittle(out, payload_bytes[writer]);
  AppendLittle(out, static_cast<std::uint32_t>(by_writer[writer].size()));
  for (const std::uint32_t i : by_writer[writer]) {
    const PlannedChunk& chunk = chunks[i];
    AppendLittle(out, chunk.writer_tensor);
    AppendLittle(out, chunk.payload_offset);
    const BoxView view = box(chunk);
    AppendNumbers(out, view.offset);
    AppendNumbers(out, view.extent);
  }
  return out;
}

Result<SavePlan> PlanSave(std::span<const ByteSpan> descriptions, std::span<const int> global_ranks,
                          const SavePlanOptions& options) {
  RESHARD_CHECK(descriptions.size() == global_ranks.size());
  RESHARD_TRY_ASSIGN(Merged merged, Merger(descriptions, global_ranks).Run());
  return Planner(std::move(merged), global_ranks, options).Run();
}

Result<RankPlan> DecodeRankPlan(ByteSpan bytes, const std::vector<TensorDescription>& own) {
  WireReader reader(bytes);
  RankPlan plan;
  std::uint32_t count = 0;
  if (!reader.Read(plan.payload_bytes) || !reader.Read(count)) {
    return BadMessage("plan");
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    RankChunk chunk;
    if (!reader.Read(chunk.tensor) || !reader.Read(chunk.payload_offset) ||
        chunk.tensor >= own.size()) {
      return BadMessage("plan");
    }
    const std::size_t axes = own[chunk.tensor].shape.size();
    chunk.box.offset.resize(axes);
    chunk.box.extent.resize(axes);
    if (!reader.ReadNumbers(chunk.box.offset) || !reader.ReadNumbers(chunk.box.extent)) {
      return BadMessage("plan");
    }
    plan.chunks.push_back(std::move(chunk));
  }
  return plan;
}

namespace {

/// The columns of a report in the order in which they are sent.
template <typename Report>
auto Columns(Report& report) {
  return std::array{&report.block_checksums, &report.digest_parts, &report.chunks,
                    &report.chunk_offsets};
}

}  // namespace

Bytes EncodeWriteReport(const WriteReport& report) {
  Bytes out;
  AppendCounted(out, AsBytes(report.file_name));
  AppendLittle(out, report.file_size);
  AppendLittle(out, report.payload_offset);
  AppendLittle(out, report.head_checksum);
  AppendLittle(out, report.mtime_ns);
  for (const auto* column : Columns(report)) {
    AppendLittle(out, static_cast<std::uint64_t>(column->size()));
    AppendNumbers(out, *column);
  }
  return out;
}

Result<WriteReport> DecodeWriteReport(ByteSpan bytes) {
  WireReader reader(bytes);
  WriteReport report;
  ByteSpan name;
  if (!reader.ReadCounted(name) || !reader.Read(report.file_size) ||
      !reader.Read(report.payload_offset) || !reader.Read(report.head_checksum) ||
      !reader.Read(report.mtime_ns)) {
    return BadMessage("write report");
  }
  report.file_name = std::string(AsText(name));
  for (auto* column : Columns(report)) {
    std::uint64_t size = 0;
    if (!reader.Read(size) || size > reader.remaining() / 8) {
      return BadMessage("write report");
    }
    column->resize(size);
    if (!reader.ReadNumbers(*column)) {
      return BadMessage("write report");
    }
  }
  return report;
}

namespace {

/// Puts one rank's objects to those of the ranks before it.
class ObjectMerger {
 public:
  explicit ObjectMerger(std::span<const int> global_ranks) : global_ranks_(global_ranks) {}

  Status Add(std::size_t rank, const ObjectDescription& object) {
    auto [at, fresh] = first_.emplace(object.key, Seen{rank, out_.size(), 0});
    Seen& seen = at->second;
    ++seen.count;
    if (!fresh) {
      const ObjectDescription& known = out_[seen.index].object;
      const bool same_kind = known.per_rank == object.per_rank && known.path == object.path;
      if (!same_kind || (!object.per_rank && known.value != object.value)) {
        return MakeError(ErrorCode::kInvalidArgument, "OBJECT_MISMATCH",
                         fmt::format("the object '{}' differs between rank {} and rank {}; make it "
                                     "equal, or per-rank if it is meant to differ",
                                     object.key, global_ranks_[seen.rank], global_ranks_[rank]));
      }
      if (!object.per_rank) {
        return OkStatus();
      }
    }
    out_.push_back({object, object.per_rank ? static_cast<std::int64_t>(rank) : -1});
    return OkStatus();
  }

  Result<std::vector<MergedObject>> Finish(const SavePlan& plan) {
    for (const PlannedTensor& tensor : plan.tensors) {
      if (const auto at = first_.find(tensor.key); at != first_.end()) {
        return MakeError(ErrorCode::kInvalidArgument, "KEY_KIND",
                         fmt::format("'{}' is a tensor on some rank and an object on rank {}",
                                     tensor.key, global_ranks_[at->second.rank]));
      }
    }
    for (const auto& [key, seen] : first_) {
      if (out_[seen.index].object.per_rank && seen.count != global_ranks_.size()) {
        return MakeError(
            ErrorCode::kInvalidArgument, "MISSING_PER_RANK",
            fmt::format("the per-rank value '{}' is on {} of {} ranks; every rank must "
                        "give one",
                        key, seen.count, global_ranks_.size()));
      }
    }
    return std::move(out_);
  }

 private:
  struct Seen {
    std::size_t rank = 0;
    std::size_t index = 0;
    std::size_t count = 0;
  };

  std::span<const int> global_ranks_;
  std::unordered_map<std::string, Seen> first_;
  std::vector<MergedObject> out_;
};

}  // namespace

Result<std::vector<MergedObject>> MergeObjects(
    std::span<const std::vector<ObjectDescription>> by_rank, const SavePlan& plan,
    std::span<const int> global_ranks) {
  ObjectMerger merger(global_ranks);
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const ObjectDescription& object : by_rank[rank]) {
      RESHARD_TRY(merger.Add(rank, object));
    }
  }
  return merger.Finish(plan);
}

namespace {

/// Where the chunks of a plan came to lie, and the linear parts of the tensors.
class Placement {
 public:
  explicit Placement(const SavePlan& plan)
      : plan_(plan), files_(plan.chunks.size(), kNowhere), offsets_(plan.chunks.size(), 0) {
    linear_.assign(plan.tensors.size(), 0);
  }

  /// The chunks of one file, the number of which in the catalog is `file`.
  Status Add(const WriteReport& report, std::uint32_t file) {
    const bool planned = report.chunks.empty();
    const auto& order = plan_.by_writer[report.writer];
    const std::size_t count = planned ? order.size() : report.chunks.size();
    if (report.digest_parts.size() != count || (!planned && report.chunk_offsets.size() != count)) {
      return BadMessage("write report");
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t position = planned ? i : report.chunks[i];
      if (position >= order.size() || files_[order[position]] != kNowhere) {
        return BadMessage("write report");
      }
      const std::uint32_t number = order[position];
      const PlannedChunk& chunk = plan_.chunks[number];
      files_[number] = file;
      offsets_[number] =
          planned ? report.payload_offset + chunk.payload_offset : report.chunk_offsets[i];
      linear_[chunk.tensor] ^= report.digest_parts[i];
    }
    return OkStatus();
  }

  bool complete() const {
    return std::find(files_.begin(), files_.end(), kNowhere) == files_.end();
  }

  std::uint32_t file(std::uint64_t chunk) const { return files_[chunk]; }

  std::uint64_t offset(std::uint64_t chunk) const { return offsets_[chunk]; }

  std::uint64_t linear(std::size_t tensor) const { return linear_[tensor]; }

 private:
  static constexpr std::uint32_t kNowhere = 0xFFFFFFFF;

  const SavePlan& plan_;
  std::vector<std::uint32_t> files_;
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint64_t> linear_;
};

/// Adds the files, in the order of their names.
Status AddFiles(CatalogBuilder& builder, Placement& placement, std::span<const WriteReport> reports,
                std::span<const int> global_ranks) {
  std::vector<const WriteReport*> by_name;
  for (const WriteReport& report : reports) {
    if (report.writer >= global_ranks.size()) {
      return BadMessage("write report");
    }
    if (!report.file_name.empty()) {
      by_name.push_back(&report);
    }
  }
  std::sort(by_name.begin(), by_name.end(),
            [](const WriteReport* a, const WriteReport* b) { return a->file_name < b->file_name; });
  for (const WriteReport* report : by_name) {
    const std::uint32_t file = builder.AddFile(
        {report->file_name, static_cast<std::uint64_t>(global_ranks[report->writer]),
         report->file_size, report->payload_offset, report->head_checksum, report->mtime_ns, true},
        report->block_checksums);
    RESHARD_TRY(placement.Add(*report, file));
  }
  return placement.complete() ? OkStatus() : Status(BadMessage("write report without a file"));
}

}  // namespace

Result<Catalog> MakeCatalog(const CatalogInfo& info, const SavePlan& plan,
                            std::span<const WriteReport> reports,
                            std::span<const MergedObject> objects,
                            std::span<const int> global_ranks, bool keep_empty) {
  CatalogBuilder builder(info);
  Placement placement(plan);
  RESHARD_TRY(AddFiles(builder, placement, reports, global_ranks));
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
    const PlannedTensor& tensor = plan.tensors[t];
    const std::uint64_t bytes = NumBytes(tensor.shape, tensor.dtype);
    if (!keep_empty && bytes == 0) {
      continue;
    }
    RESHARD_TRY_ASSIGN(const Path path, DecodeStoredPath(tensor.key, tensor.path));
    builder.AddTensor(tensor.key, path, tensor.dtype, tensor.shape,
                      placement.linear(tensor.alias_of) ^ Crc64Constant(bytes),
                      tensor.alias_of == t ? std::string_view()
                                           : std::string_view(plan.tensors[tensor.alias_of].key));
    for (std::uint64_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.num_chunks; ++c) {
      builder.AddChunk(plan.box(plan.chunks[c]), placement.file(c), placement.offset(c));
    }
  }
  for (const MergedObject& merged : objects) {
    RESHARD_TRY_ASSIGN(const Path path, DecodeStoredPath(merged.object.key, merged.object.path));
    builder.AddObject(merged.object.key, path, merged.rank, merged.object.value);
  }
  return std::move(builder).Build();
}

}  // namespace reshard
