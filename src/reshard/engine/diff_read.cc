#include "reshard/engine/diff_read.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "reshard/base/mutex.h"
#include "reshard/base/thread_pool.h"
#include "reshard/codec/crc64.h"
#include "reshard/engine/message.h"
#include "reshard/engine/tensor_reader.h"
#include "reshard/storage/staging_buffer.h"
#include "reshard/tensor/mesh.h"

namespace reshard {
namespace {

constexpr std::size_t kMostThreads = 8;
constexpr std::uint64_t kMostWindowBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kLeastCachedBlocks = 4;  // per side
constexpr std::uint64_t kCachedBlocksPerThread = 16;

/// How the memory is divided.
struct Budget {
  std::size_t threads = 1;
  std::size_t cached_blocks = kLeastCachedBlocks;  // per side
  std::size_t window_bytes = kBlockBytes;          // per side and thread
};

/// A thread has a window and a reader's staging block for each side.
Result<Budget> DivideMemory(const DiffReadOptions& options) {
  const std::uint64_t blocks = options.memory_bytes / kBlockBytes;
  constexpr std::uint64_t kLeast = 2 * kLeastCachedBlocks + 4;
  if (blocks < kLeast) {
    return MakeError(ErrorCode::kInvalidArgument, "MEMORY_TOO_SMALL",
                     fmt::format("{} bytes of memory are too few\ngive at least {} bytes",
                                 options.memory_bytes, kLeast * kBlockBytes));
  }
  Budget out;
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  out.threads = options.threads != 0 ? options.threads : std::min(cores, kMostThreads);
  out.threads = std::clamp<std::uint64_t>((blocks - 2 * kLeastCachedBlocks) / 8, 1, out.threads);
  out.cached_blocks = std::clamp<std::uint64_t>(blocks / 8, kLeastCachedBlocks,
                                                out.threads * kCachedBlocksPerThread);
  const std::uint64_t share = (blocks - 2 * out.cached_blocks) / out.threads;
  out.window_bytes =
      std::min(std::max<std::uint64_t>(1, share / 2 - 1) * kBlockBytes, kMostWindowBytes);
  return out;
}

/// Units [begin, end) of a job.
struct Window {
  std::size_t job = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

class Reading {
 public:
  Reading(const DiffPlace& a, const DiffPlace& b, std::vector<DiffJob>& jobs,
          const DiffReadOptions& options, const Budget& budget)
      : a_(a),
        b_(b),
        jobs_(jobs),
        options_(options),
        budget_(budget),
        reader_a_(a.catalog, a.storage, {true, budget.cached_blocks, 128}),
        reader_b_(b.catalog, b.storage, {true, budget.cached_blocks, 128}),
        done_(jobs.size()) {}

  Result<std::uint64_t> Run() {
    CheckCoverage();
    MakeWindows();
    ThreadPool pool(std::max<std::size_t>(1, std::min(budget_.threads, windows_.size())));
    TaskGroup group(pool);
    for (std::size_t i = 0; i < pool.size(); ++i) {
      group.Submit([this] { return Work(); });
    }
    RESHARD_TRY(group.Wait());
    FinishDigests();
    return reader_a_.bytes_read() + reader_b_.bytes_read();
  }

 private:
  static bool ReadsA(const DiffJob& job) { return job.mode != DiffJob::Mode::kDigestOfB; }

  static bool ReadsB(const DiffJob& job) { return job.mode != DiffJob::Mode::kDigestOfA; }

  void CheckCoverage() {
    for (DiffJob& job : jobs_) {
      Status status = ReadsA(job) ? a_.catalog.CheckCoverage(job.a) : OkStatus();
      if (status.ok() && ReadsB(job)) {
        status = b_.catalog.CheckCoverage(job.b);
      }
      if (!status.ok()) {
        job.error = std::move(status).error();
      }
    }
  }

  std::uint64_t NumUnits(const DiffJob& job) const {
    return NumElements(ToUnits(a_.catalog.shape(job.a), a_.catalog.dtype(job.a)));
  }

  std::uint64_t BytesPerUnit(const DiffJob& job) const {
    return (ReadsA(job) ? Info(a_.catalog.dtype(job.a)).unit_bytes : 0) +
           (ReadsB(job) ? Info(b_.catalog.dtype(job.b)).unit_bytes : 0);
  }

  void MakeWindows() {
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      if (jobs_[i].error) {
        continue;
      }
      const std::uint64_t units = NumUnits(jobs_[i]);
      const std::uint64_t widest = std::max(Info(a_.catalog.dtype(jobs_[i].a)).unit_bytes,
                                            Info(b_.catalog.dtype(jobs_[i].b)).unit_bytes);
      const std::uint64_t step = budget_.window_bytes / widest;
      for (std::uint64_t begin = 0; begin < units; begin += step) {
        windows_.push_back({i, begin, std::min(units, begin + step)});
      }
      progress_.bytes_total += units * BytesPerUnit(jobs_[i]);
    }
  }

  Status Work() {
    RESHARD_TRY_ASSIGN(const StagingBuffer a, StagingBuffer::Allocate(budget_.window_bytes));
    RESHARD_TRY_ASSIGN(const StagingBuffer b, StagingBuffer::Allocate(budget_.window_bytes));
    for (std::size_t i = next_++; i < windows_.size() && !stopped_; i = next_++) {
      const Window& window = windows_[i];
      const DiffJob& job = jobs_[window.job];
      if (!done_[window.job]) {
        DoWindow(window, a.span(), b.span());
      }
      Status status = Advance((window.end - window.begin) * BytesPerUnit(job));
      if (!status.ok()) {
        stopped_ = true;
        return status;
      }
    }
    return OkStatus();
  }

  void DoWindow(const Window& window, MutableByteSpan buffer_a, MutableByteSpan buffer_b) {
    DiffJob& job = jobs_[window.job];
    MutableByteSpan a;
    MutableByteSpan b;
    Status read;
    if (ReadsA(job)) {
      a = buffer_a.first((window.end - window.begin) * Info(a_.catalog.dtype(job.a)).unit_bytes);
      read = Read(a_, reader_a_, job.a, window, a);
    }
    if (read.ok() && ReadsB(job)) {
      b = buffer_b.first((window.end - window.begin) * Info(b_.catalog.dtype(job.b)).unit_bytes);
      read = Read(b_, reader_b_, job.b, window, b);
    }
    if (!read.ok()) {
      done_[window.job] = true;
      MutexLock lock(mutex_);
      if (!job.error) {
        job.error = std::move(read).error();
      }
      return;
    }
    Compare(window, job, a, b);
  }

  void Compare(const Window& window, DiffJob& job, ByteSpan a, ByteSpan b) {
    if (job.mode == DiffJob::Mode::kBytes) {
      if (std::memcmp(a.data(), b.data(), a.size()) != 0) {
        done_[window.job] = true;  // one difference is enough
        MutexLock lock(mutex_);
        job.equal = false;
      }
    } else if (job.mode == DiffJob::Mode::kValues) {
      const DType dtype = a_.catalog.dtype(job.a);
      const ValueDifference found = CompareValues(dtype, a, b_.catalog.dtype(job.b), b,
                                                  window.begin * Info(dtype).unit_elements);
      MutexLock lock(mutex_);
      job.values.Merge(found);
      job.equal = job.values.elements == 0;
    } else {
      const ByteSpan bytes = ReadsA(job) ? a : b;
      const std::uint64_t unit = bytes.size() / (window.end - window.begin);
      const std::uint64_t part =
          Crc64Shift(Crc64Linear(bytes), (NumUnits(job) - window.end) * unit);
      MutexLock lock(mutex_);
      job.digest ^= part;
    }
  }

  static Status Read(const DiffPlace& place, TensorReader& reader, TensorId tensor,
                     const Window& window, MutableByteSpan out) {
    const DTypeInfo& info = Info(place.catalog.dtype(tensor));
    const Box whole = WholeBox(ToUnits(place.catalog.shape(tensor), info.dtype));
    RESHARD_TRY_ASSIGN(std::vector<Box> boxes,
                       FlattenedRangeToBoxes(whole, window.begin, window.end));
    for (Box& box : boxes) {
      const std::uint64_t bytes = NumElements(box) * info.unit_bytes;
      if (!box.extent.empty()) {
        box.offset.back() *= info.unit_elements;
        box.extent.back() *= info.unit_elements;
      }
      if (Status status = reader.ReadBox(tensor, box, out.first(bytes)); !status.ok()) {
        return tl::unexpected<Error>(status.error().WithContext(place.storage.description()));
      }
      out = out.subspan(bytes);
    }
    return OkStatus();
  }

  Status Advance(std::uint64_t bytes) {
    if (!options_.progress) {
      return OkStatus();
    }
    MutexLock lock(progress_mutex_);
    progress_.bytes_done += bytes;
    return CallGuarded("the progress callback", [this] { return options_.progress(progress_); });
  }

  void FinishDigests() {
    for (DiffJob& job : jobs_) {
      const bool of_a = job.mode == DiffJob::Mode::kDigestOfA;
      if (job.error || (!of_a && job.mode != DiffJob::Mode::kDigestOfB)) {
        continue;
      }
      job.digest ^= Crc64Constant(of_a ? a_.catalog.num_bytes(job.a) : b_.catalog.num_bytes(job.b));
      job.equal = job.digest == (of_a ? b_.catalog.digest(job.b) : a_.catalog.digest(job.a));
    }
  }

  const DiffPlace a_;
  const DiffPlace b_;
  std::vector<DiffJob>& jobs_;
  const DiffReadOptions& options_;
  const Budget budget_;
  TensorReader reader_a_;
  TensorReader reader_b_;
  std::vector<Window> windows_;
  std::vector<std::atomic<bool>> done_;  // per job: nothing more to find out
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> stopped_ = false;
  Mutex mutex_;  // of the jobs
  Mutex progress_mutex_;
  Progress progress_;
};

}  // namespace

Result<std::uint64_t> ReadAndCompare(const DiffPlace& a, const DiffPlace& b,
                                     std::vector<DiffJob>& jobs, const DiffReadOptions& options) {
  if (jobs.empty()) {
    return std::uint64_t{0};
  }
  RESHARD_TRY_ASSIGN(const Budget budget, DivideMemory(options));
  return Reading(a, b, jobs, options, budget).Run();
}

}  // namespace reshard
