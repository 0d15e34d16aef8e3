#include "reshard/engine/convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <future>
#include <memory>
#include <set>
#include <system_error>
#include <thread>

#include "reshard/base/mutex.h"
#include "reshard/catalog/description.h"
#include "reshard/catalog/flatten.h"
#include "reshard/comm/process_group.h"
#include "reshard/engine/checkpoint.h"
#include "reshard/engine/convert_state.h"
#include "reshard/engine/data_file_opener.h"
#include "reshard/engine/message.h"
#include "reshard/engine/save.h"
#include "reshard/engine/save_format.h"
#include "reshard/engine/tensor_reader.h"
#include "reshard/engine/write_turns.h"

namespace reshard {
namespace {

constexpr std::uint64_t kMostBufferBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kMostCastBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kGoodWriterBlocks = 9;  // what a writer should have before others join
constexpr std::size_t kWriters = 4;  // of all ranks together, if there are not more ranks
constexpr std::size_t kLeastCachedBlocks = 16;
constexpr std::size_t kCachedBlocksPerWriter = 32;  // ranks share blocks, but are not in step
constexpr std::uint64_t kMostCachedBlocks = 512;
constexpr std::uint64_t kMostAtOnce = 32;  // ranks; each takes a thread and its stack as well
constexpr std::size_t kMostFaults = 8;

/// How the memory is divided.
struct Budget {
  int at_once = 1;          ///< Ranks that write at a time.
  std::size_t threads = 1;  ///< Writers of each.
  std::size_t buffer_bytes = 0;
  std::size_t cast_bytes = 0;
  std::size_t cached_blocks = kLeastCachedBlocks;
};

/// A writer has its buffer, the reader's staging and, for casts, a buffer of what is read; the
/// reader keeps some blocks. Ranks that cut tensors share blocks, so they should write together.
Result<Budget> DivideMemory(std::uint64_t memory_bytes, const ConvertLayout& layout) {
  const std::uint64_t least = (kLeastCachedBlocks + 2 + (layout.casts() ? 1 : 0)) * kBlockBytes;
  if (memory_bytes < least) {
    return MakeError(
        ErrorCode::kInvalidArgument, "MEMORY_TOO_SMALL",
        fmt::format("{} bytes of memory are too few\ngive at least {} bytes", memory_bytes, least));
  }
  const auto ranks = static_cast<std::uint64_t>(layout.ranks());
  const std::uint64_t good = std::max<std::uint64_t>(
      1, (memory_bytes / kBlockBytes - kLeastCachedBlocks) / 2 / kGoodWriterBlocks);
  Budget out;
  const std::uint64_t at_once = std::min({ranks, good, layout.whole() ? kWriters : kMostAtOnce});
  out.at_once = static_cast<int>(at_once);
  out.threads = std::max<std::uint64_t>(1, std::min<std::uint64_t>(kWriters, good) / at_once);
  const std::uint64_t writers = at_once * out.threads;
  out.cached_blocks =
      std::clamp<std::uint64_t>(memory_bytes / 2 / kBlockBytes, kLeastCachedBlocks,
                                std::min(kMostCachedBlocks, writers * kCachedBlocksPerWriter));
  const std::uint64_t share =
      (memory_bytes - out.cached_blocks * kBlockBytes) / writers / kBlockBytes * kBlockBytes;
  if (layout.casts()) {
    out.cast_bytes = std::clamp(share / 4 / kBlockBytes * kBlockBytes, kBlockBytes, kMostCastBytes);
  }
  out.buffer_bytes = std::min(share - kBlockBytes - out.cast_bytes, kMostBufferBytes);
  return out;
}

class Converter {
 public:
  Converter(const ConvertSource& source, Storage& destination, const ConvertOptions& options)
      : source_(source),
        catalog_(source.catalog),
        destination_(destination),
        options_(options),
        selection_(SelectKeys(catalog_, options.include, options.exclude)) {}

  Result<ConvertReport> Run() {
    RESHARD_TRY_ASSIGN(format_, FindSaveFormat(options_.format));
    if (selection_.tensors.empty() && selection_.objects.empty() && source_.faults.empty()) {
      return MakeError(ErrorCode::kNotFound, "NO_SUCH_KEY",
                       fmt::format("nothing to convert: no key of {} is selected",
                                   source_.storage.description()));
    }
    RESHARD_TRY_ASSIGN(
        const ConvertLayout layout,
        ConvertLayout::Create(catalog_, selection_, options_.layout,
                              {format_->HoldsCutTensors(), format_->HoldsAliases(),
                               format_->HoldsPerRankValues(), options_.skip_unsupported}));
    RESHARD_TRY_ASSIGN(const Budget budget, DivideMemory(options_.memory_bytes, layout));
    RESHARD_TRY(CheckDestination());
    RESHARD_TRY(CheckSource());
    RESHARD_TRY(CheckUnreadable());
    CountSelected(layout);
    TensorReader reader(catalog_, source_.storage, {true, budget.cached_blocks, 256});
    const ConvertState state(catalog_, selection_, layout, reader, budget.cast_bytes);
    if (options_.dry_run) {
      RESHARD_TRY(CheckFormatHoldsAll(state));
      ReportUnreadable();
      return report_;
    }
    RESHARD_TRY(SaveOnAllRanks(state, budget));
    ReportUnreadable();
    for (const auto& [tensor, elements] : state.Overflows()) {
      report_.overflows.push_back({std::string(catalog_.key(tensor)), catalog_.dtype(tensor),
                                   layout.dtype(tensor), elements});
    }
    report_.bytes_read = reader.bytes_read();
    return report_;
  }

 private:
  Status CheckDestination() {
    const std::uint64_t identity = destination_.Identity();
    if (identity != 0 && identity == source_.storage.Identity()) {
      return MakeError(ErrorCode::kInvalidArgument, "SAME_DIRECTORY",
                       fmt::format("{} is source and destination\nconvert into another directory",
                                   destination_.description()));
    }
    RESHARD_TRY_ASSIGN(const CheckpointList list, ListCheckpoints(destination_));
    if (options_.overwrite ||
        (list.empty() && (list.unknown.empty() || format_->IsLeftover(list.unknown)))) {
      return OkStatus();
    }
    return MakeError(
        ErrorCode::kAlreadyExists, "SNAPSHOT_EXISTS",
        fmt::format("{} holds a checkpoint already ({})\nchoose another directory, or overwrite",
                    destination_.description(),
                    list.empty() ? list.unknown
                                 : fmt::format("{}, snapshot {}", list.format, list.ids.back())));
  }

  /// What can be known without reading tensors: faults of the source, holes, missing files.
  Status CheckSource() const {
    std::vector<std::string> faults;
    for (const ForeignFault& fault : source_.faults) {
      if (IsUnreadable(fault)) {
        continue;
      }
      if (fault.keys.empty() || std::any_of(fault.keys.begin(), fault.keys.end(),
                                            [this](const std::string& k) { return Selects(k); })) {
        faults.push_back(fault.error.ToString());
      }
    }
    std::set<std::uint32_t> files;
    for (const TensorId tensor : selection_.tensors) {
      if (const Status status = catalog_.CheckCoverage(tensor); !status.ok()) {
        faults.push_back(status.error().ToString());
      }
      for (std::size_t i = 0; i < catalog_.num_chunks(tensor); ++i) {
        files.insert(catalog_.chunk(tensor, i).file);
      }
    }
    for (const std::uint32_t file : files) {
      const auto opened = OpenDataFile(source_.storage, catalog_, file);
      if (!opened.ok() && opened.error().code != ErrorCode::kCorruption &&
          opened.error().code != ErrorCode::kNotFound) {
        return tl::unexpected<Error>(opened.error());
      }
      if (!opened.ok()) {
        faults.push_back(opened.error().ToString());
      }
    }
    return faults.empty() ? OkStatus() : Faulty(faults);
  }

  /// Tensors that are whole, but of a kind that we do not read.
  static bool IsUnreadable(const ForeignFault& fault) {
    return fault.error.code == ErrorCode::kUnsupported && !fault.keys.empty();
  }

  /// They are named, or left out if the caller says so.
  Status CheckUnreadable() {
    for (const ForeignFault& fault : source_.faults) {
      for (const std::string& key : fault.keys) {
        if (IsUnreadable(fault) && Selects(key)) {
          unreadable_.push_back(fmt::format("{}: {}", key, fault.error.message));
        }
      }
    }
    if (unreadable_.empty() || (options_.skip_unsupported &&
                                !(selection_.tensors.empty() && selection_.objects.empty()))) {
      return OkStatus();
    }
    const std::size_t shown = std::min(unreadable_.size(), kMostFaults);
    return MakeError(
        ErrorCode::kUnsupported, "UNSUPPORTED_SOURCE",
        fmt::format("{} of the keys of {} cannot be read: {}{}\nleave them out, or pass "
                    "skip_unsupported{}",
                    unreadable_.size(), source_.storage.description(),
                    fmt::join(unreadable_.begin(),
                              unreadable_.begin() + static_cast<std::ptrdiff_t>(shown), "; "),
                    shown < unreadable_.size() ? "; ..." : "",
                    options_.skip_unsupported ? " where others are left" : ""));
  }

  void ReportUnreadable() {
    report_.skipped.insert(report_.skipped.end(), unreadable_.begin(), unreadable_.end());
    std::sort(report_.skipped.begin(), report_.skipped.end());
  }

  bool Selects(const std::string& key) const {
    return IsSelected(key, options_.include, options_.exclude);
  }

  Status Faulty(std::vector<std::string>& faults) const {
    const std::size_t count = faults.size();
    faults.resize(std::min(count, kMostFaults));
    auto error = MakeError(
        ErrorCode::kCorruption, "SOURCE_FAULTS",
        fmt::format("{} is not whole, {}: {}{}\n`reshard verify` lists every fault; exclude the "
                    "tensors that are damaged to convert the others",
                    source_.storage.description(),
                    count == 1 ? "1 fault" : fmt::format("{} faults", count),
                    fmt::join(faults, "; "), count > kMostFaults ? "; ..." : ""));
    error.value().data_loss = true;
    return error;
  }

  /// What Save would refuse before it writes.
  Status CheckFormatHoldsAll(const ConvertState& state) {
    RESHARD_TRY_ASSIGN(const StateDict dict, state.Outline());
    RESHARD_TRY_ASSIGN(const std::vector<FlatEntry> leaves, Flatten(dict));
    RESHARD_TRY_ASSIGN(StateDescription description, Describe(leaves));
    for (const Unsupported& one : RestrictTo(*format_, description)) {
      report_.skipped.push_back(fmt::format("{}: {}", one.key, one.why));
    }
    std::sort(report_.skipped.begin(), report_.skipped.end());
    report_.tensors = description.tensors.size();
    report_.objects = description.objects.size();
    if (report_.skipped.empty() || options_.skip_unsupported) {
      return OkStatus();
    }
    const std::size_t shown = std::min(report_.skipped.size(), kMostFaults);
    const auto end = report_.skipped.begin() + static_cast<std::ptrdiff_t>(shown);
    return MakeError(
        ErrorCode::kUnsupported, "UNSUPPORTED_BY_FORMAT",
        fmt::format("{} of the keys cannot be saved in the format {}: {}{}", report_.skipped.size(),
                    options_.format, fmt::join(report_.skipped.begin(), end, "; "),
                    shown < report_.skipped.size() ? "; ..." : ""));
  }

  /// What the destination will hold, as far as its format can.
  void CountSelected(const ConvertLayout& layout) {
    report_.ranks = layout.ranks();
    report_.whole = layout.whole();
    // Where any id will do, the source's.
    report_.unique_id = format_->WantedId(options_.unique_id).value_or(catalog_.info().unique_id);
    for (const TensorId tensor : selection_.tensors) {
      const bool stored = layout.identity(tensor) == tensor;
      report_.bytes += stored ? layout.num_bytes(tensor) : 0;
      report_.aliases += stored ? 0 : 1;
      report_.digests_cast += layout.dtype(tensor) == catalog_.dtype(tensor) ? 0 : 1;
    }
    report_.tensors = selection_.tensors.size();
    report_.objects = selection_.objects.size();
  }

  Status SaveOnAllRanks(const ConvertState& state, const Budget& budget) {
    auto groups = ThreadProcessGroups(report_.ranks);
    std::vector<Result<SaveResult>> results(groups.size());
    std::vector<std::thread> threads;
    rank_bytes_.resize(groups.size());
    WriteTurns turns(budget.at_once);
    std::promise<bool> start;  // false: some rank has no thread, and no other may wait for it
    const std::shared_future<bool> started = start.get_future().share();
    bool all_there = true;
    try {
      for (std::size_t rank = 0; rank < groups.size(); ++rank) {
        threads.emplace_back([&, rank, started] {
          if (started.get()) {
            results[rank] = SaveOnRank(state, budget, turns, *groups[rank]);
          }
          groups[rank].reset();
        });
      }
    } catch (const std::system_error&) {
      all_there = false;
    }
    start.set_value(all_there);
    const std::size_t count = threads.size();
    for (std::thread& thread : threads) {
      thread.join();
    }
    if (!all_there) {
      return MakeError(ErrorCode::kUnavailable, "NO_THREADS",
                       fmt::format("the system gives only {} of {} threads; convert to fewer ranks",
                                   count, groups.size()));
    }
    RESHARD_TRY_ASSIGN(SaveResult saved, std::move(results[0]));
    report_.unique_id = saved.unique_id;
    report_.skipped = std::move(saved.skipped);
    return OkStatus();
  }

  Result<SaveResult> SaveOnRank(const ConvertState& state, const Budget& budget, WriteTurns& turns,
                                ProcessGroup& group) {
    Result<StateDict> dict = state.OfRank(group.rank());
    RESHARD_TRY(group.Agree(dict.ok() ? OkStatus() : Status(tl::unexpected<Error>(dict.error()))));
    SaveOptions options;
    options.format = options_.format;
    options.skip_unsupported = options_.skip_unsupported;
    options.overwrite = options_.overwrite;
    options.threads = budget.threads;
    options.buffer_bytes = budget.buffer_bytes;
    options.turns = &turns;
    options.unique_id = report_.unique_id;
    options.inspect = [this](const Catalog& made) { return CompareDigests(made); };
    options.progress = [this, &group](const Progress& progress) {
      return Advance(static_cast<std::size_t>(group.rank()), progress);
    };
    return Save(*dict, destination_, group, options);
  }

  /// Adds up what the ranks have written.
  Status Advance(std::size_t rank, const Progress& progress) {
    if (!options_.progress) {
      return OkStatus();
    }
    MutexLock lock(mutex_);
    bytes_done_ += progress.bytes_done - rank_bytes_[rank];
    rank_bytes_[rank] = progress.bytes_done;
    return options_.progress({std::min(bytes_done_, report_.bytes), report_.bytes});
  }

  /// What is in the destination.
  void CountMade(const Catalog& made) {
    report_.tensors = made.num_tensors();
    report_.aliases = 0;
    report_.bytes = 0;
    report_.objects = 0;
    for (TensorId tensor = 0; tensor < made.num_tensors(); ++tensor) {
      const bool stored = made.alias_of(tensor) == tensor;
      report_.aliases += stored ? 0 : 1;
      report_.bytes += stored ? made.num_bytes(tensor) : 0;
    }
    for (std::size_t i = 0; i < made.num_objects();
         i = made.FindObjects(made.object_key(i)).second) {
      ++report_.objects;
    }
  }

  /// Before the commit, on the coordinator: what was written is what the source's catalog says.
  Status CompareDigests(const Catalog& made) {
    CountMade(made);
    report_.digests_equal = 0;
    report_.digests_new = 0;
    report_.unverified = 0;
    report_.digests_cast = 0;
    for (const TensorId tensor : selection_.tensors) {
      const std::optional<TensorId> there = made.Find(catalog_.key(tensor));
      const std::optional<std::uint64_t> found = there ? made.digest(*there) : std::nullopt;
      const std::optional<std::uint64_t> expected = catalog_.digest(tensor);
      if (!found) {
        continue;  // the format does not hold it, or no digests
      }
      if (made.dtype(*there) != catalog_.dtype(tensor)) {
        ++report_.digests_cast;
      } else if (!expected) {
        ++report_.digests_new;
        report_.unverified += IsVerified(tensor) ? 0 : 1;
      } else if (*found == *expected) {
        ++report_.digests_equal;
      } else {
        auto error = MakeError(
            ErrorCode::kCorruption, "TENSOR_DIGEST",
            fmt::format("tensor '{}': its bytes have digest {:016x}, the source's catalog "
                        "says {:016x}; nothing was kept",
                        catalog_.key(tensor), *found, *expected));
        error.value().data_loss = true;
        return error;
      }
    }
    return OkStatus();
  }

  bool IsVerified(TensorId tensor) const {
    for (std::size_t i = 0; i < catalog_.num_chunks(tensor); ++i) {
      if (!catalog_.files()[catalog_.chunk(tensor, i).file].has_blocks) {
        return false;
      }
    }
    return true;
  }

  const ConvertSource& source_;
  const Catalog& catalog_;
  Storage& destination_;
  const ConvertOptions& options_;
  const ConvertSelection selection_;
  std::unique_ptr<SaveFormat> format_;
  ConvertReport report_;
  std::vector<std::string> unreadable_;  // "key: why"
  Mutex mutex_;
  std::vector<std::uint64_t> rank_bytes_;
  std::uint64_t bytes_done_ = 0;
};

}  // namespace

Result<ConvertReport> Convert(const ConvertSource& source, Storage& destination,
                              const ConvertOptions& options) {
  return Converter(source, destination, options).Run();
}

}  // namespace reshard
