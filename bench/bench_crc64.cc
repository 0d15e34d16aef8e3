// CRC-64 kernels: folding, folding while copying, strided runs, and the load path
// "pread into a staging buffer, then fold and stream into the target" against plain pread.
//
// The two sides of a ratio run in one benchmark, alternating, since the machine may be shared: the
// medians of both and of their quotient are reported as counters.

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "reshard/codec/crc64.h"

namespace reshard {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kStaging = 256 * kKiB;

// Touched memory at a 2 MiB boundary.
struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};

using Buffer = std::unique_ptr<std::byte, Free>;

Buffer MakeBuffer(std::size_t size, int fill) {
  const std::size_t rounded = (size + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
  Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(2 * kMiB, rounded)));
  if (buffer == nullptr) {
    std::abort();
  }
  std::memset(buffer.get(), fill, size);
  return buffer;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Processor time of this thread, system calls included: nothing here waits, and other programs on
// the machine disturb it less than wall-clock time.
double Now() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Work>
double Seconds(const Work& work) {
  const double start = Now();
  work();
  return Now() - start;
}

// Runs both sides in turn; reports GB/s of each and the median of the quotients.
template <typename Ours, typename Plain>
void Compare(benchmark::State& state, std::size_t bytes, const Ours& ours, const Plain& plain) {
  std::vector<double> our_rate;
  std::vector<double> plain_rate;
  std::vector<double> ratio;
  for (auto _ : state) {
    const double a = Seconds(ours);
    const double b = Seconds(plain);
    our_rate.push_back(static_cast<double>(bytes) / a / 1e9);
    plain_rate.push_back(static_cast<double>(bytes) / b / 1e9);
    ratio.push_back(b / a);
  }
  state.counters["GB/s"] = Median(our_rate);
  state.counters["plain_GB/s"] = Median(plain_rate);
  state.counters["ratio"] = Median(ratio);
}

void Fold(benchmark::State& state, const Crc64Kernel& kernel) {
  const auto size = static_cast<std::size_t>(state.range(0));
  const Buffer data = MakeBuffer(size, 1);
  std::uint64_t crc = 0;
  for (auto _ : state) {
    crc ^= kernel.linear(data.get(), size, 0);
    benchmark::DoNotOptimize(crc);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * size));
}

// A source that stays in the second-level cache is copied piece by piece over a large target.
void CopyHot(benchmark::State& state, const Crc64Kernel& kernel) {
  constexpr std::size_t kTarget = 256 * kMiB;
  const Buffer src = MakeBuffer(kStaging, 1);
  const Buffer dst = MakeBuffer(kTarget, 2);
  const auto pieces = [&](const auto& copy) {
    for (std::size_t at = 0; at < kTarget; at += kStaging) {
      copy(dst.get() + at);
    }
  };
  Compare(
      state, kTarget,
      [&] {
        pieces([&](std::byte* to) {
          benchmark::DoNotOptimize(kernel.linear_copy(to, src.get(), kStaging, 0));
        });
      },
      [&] { pieces([&](std::byte* to) { std::memcpy(to, src.get(), kStaging); }); });
}

void CopySmall(benchmark::State& state, const Crc64Kernel& kernel) {
  const auto size = static_cast<std::size_t>(state.range(0));
  const std::size_t repeats = 4 * kMiB / size;
  const Buffer src = MakeBuffer(size, 1);
  const Buffer dst = MakeBuffer(size, 2);
  const auto repeat = [&](const auto& copy) {
    for (std::size_t i = 0; i < repeats; ++i) {
      copy();
      benchmark::ClobberMemory();
    }
  };
  Compare(
      state, repeats * size,
      [&] {
        repeat(
            [&] { benchmark::DoNotOptimize(kernel.linear_copy(dst.get(), src.get(), size, 0)); });
      },
      [&] { repeat([&] { std::memcpy(dst.get(), src.get(), size); }); });
}

// Every second run of a cache-hot piece; `stretch` spreads them in the string only.
void Runs(benchmark::State& state, const Crc64Kernel& kernel) {
  const auto run_bytes = static_cast<std::uint64_t>(state.range(0));
  const std::uint64_t count = std::max<std::uint64_t>(128 * kKiB / (2 * run_bytes), 1);
  const Buffer data = MakeBuffer(2 * run_bytes * count, 1);
  const Crc64Loop loop{count, static_cast<std::int64_t>(2 * run_bytes), 3 * run_bytes};
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernel.runs(data.get(), run_bytes, {&loop, 1}));
  }
  const double runs = static_cast<double>(state.iterations() * count);
  state.counters["s/run"] =
      benchmark::Counter(runs, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// What a caller would do without Crc64Runs: one sum and one shift a run.
void RunsOneByOne(benchmark::State& state) {
  const auto run_bytes = static_cast<std::size_t>(state.range(0));
  const std::size_t count = std::max<std::size_t>(128 * kKiB / (2 * run_bytes), 1);
  const Buffer data = MakeBuffer(2 * run_bytes * count, 1);
  const Crc64Shifter shift(3 * run_bytes);
  for (auto _ : state) {
    std::uint64_t linear = 0;
    for (std::size_t i = 0; i < count; ++i) {
      linear = shift(linear) ^ Crc64Linear({data.get() + 2 * i * run_bytes, run_bytes});
    }
    benchmark::DoNotOptimize(linear);
  }
  const double runs = static_cast<double>(state.iterations() * count);
  state.counters["s/run"] =
      benchmark::Counter(runs, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Shift(benchmark::State& state) {
  std::uint64_t distance = 0x123456789abcdef;
  for (auto _ : state) {
    distance ^= Crc64Shift(distance, distance) & 1;
    benchmark::DoNotOptimize(distance);
  }
}

// A file whose pages are in the cache; removed when closed.
int WarmFile(std::size_t size, const std::byte* content) {
  const char* folder = std::getenv("TMPDIR");
  std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/bench_crc64_XXXXXX";
  const int fd = mkstemp(path.data());
  if (fd < 0) {
    return -1;
  }
  unlink(path.c_str());
  for (std::size_t at = 0; at < size;) {
    const ssize_t n =
        pwrite(fd, content + at, std::min(size - at, 8 * kMiB), static_cast<off_t>(at));
    if (n <= 0) {
      close(fd);
      return -1;
    }
    at += static_cast<std::size_t>(n);
  }
  return fd;
}

bool ReadAll(int fd, std::byte* to, std::size_t size, std::size_t at) {
  for (std::size_t done = 0; done < size;) {
    const ssize_t n = pread(fd, to + done, size - done, static_cast<off_t>(at + done));
    if (n <= 0) {
      return false;
    }
    done += static_cast<std::size_t>(n);
  }
  return true;
}

enum class Path { kStaged, kInPlace };

// kStaged: the load path. kInPlace: pread into the target, then fold it there.
void ReadAndSum(benchmark::State& state, Path path) {
  constexpr std::size_t kSize = 1024 * kMiB;
  constexpr std::size_t kPlainPiece = 8 * kMiB;
  const Buffer target = MakeBuffer(kSize, 3);
  const auto piece = static_cast<std::size_t>(state.range(0));
  const Buffer staging = MakeBuffer(piece, 0);
  const int fd = WarmFile(kSize, target.get());
  if (fd < 0) {
    state.SkipWithError("no temporary file of 1 GiB");
    return;
  }
  bool ok = true;
  std::uint64_t crc = 0;
  const auto staged = [&] {
    for (std::size_t at = 0; at < kSize; at += piece) {
      ok = ReadAll(fd, staging.get(), piece, at) && ok;
      crc = Crc64LinearCopy(target.get() + at, staging.get(), piece, crc);
    }
  };
  const auto in_place = [&] {
    for (std::size_t at = 0; at < kSize; at += piece) {
      ok = ReadAll(fd, target.get() + at, piece, at) && ok;
      crc = Crc64Linear({target.get() + at, piece}, crc);
    }
  };
  const auto plain = [&] {
    for (std::size_t at = 0; at < kSize; at += kPlainPiece) {
      ok = ReadAll(fd, target.get() + at, kPlainPiece, at) && ok;
    }
  };
  if (path == Path::kStaged) {
    Compare(state, kSize, staged, plain);
  } else {
    Compare(state, kSize, in_place, plain);
  }
  benchmark::DoNotOptimize(crc);
  if (!ok) {
    state.SkipWithError("short read");
  }
  close(fd);
}

void RegisterKernel(const Crc64Kernel& kernel) {
  const std::string name(kernel.name);
  benchmark::RegisterBenchmark(("fold/" + name).c_str(), Fold, kernel)
      ->Arg(64)
      ->Arg(256)
      ->Arg(4 * kKiB)
      ->Arg(kStaging)
      ->Arg(64 * kMiB)
      ->MinTime(0.2);
  benchmark::RegisterBenchmark(("copy_small/" + name).c_str(), CopySmall, kernel)
      ->Arg(64)
      ->Arg(256)
      ->Arg(4 * kKiB)
      ->Iterations(25);
  benchmark::RegisterBenchmark(("copy_256KiB_to_large/" + name).c_str(), CopyHot, kernel)
      ->Iterations(7)
      ->Unit(benchmark::kMillisecond);
  auto* runs = benchmark::RegisterBenchmark(("runs/" + name).c_str(), Runs, kernel);
  for (int run_bytes : {2, 4, 8, 16, 64, 256, 1024}) {
    runs->Arg(run_bytes);
  }
  runs->MinTime(0.1);
}

void RegisterAll() {
  for (const Crc64Kernel& kernel : Crc64Kernels()) {
    RegisterKernel(kernel);
  }
  benchmark::RegisterBenchmark("runs_one_by_one", RunsOneByOne)->Arg(2)->Arg(64)->MinTime(0.1);
  benchmark::RegisterBenchmark("shift", Shift)->MinTime(0.1);
  benchmark::RegisterBenchmark("pread_staged_sum", ReadAndSum, Path::kStaged)
      ->Arg(64 * kKiB)
      ->Arg(128 * kKiB)
      ->Arg(kStaging)
      ->Arg(512 * kKiB)
      ->Iterations(7)
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("pread_then_sum", ReadAndSum, Path::kInPlace)
      ->Arg(kStaging)
      ->Iterations(7)
      ->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  reshard::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
