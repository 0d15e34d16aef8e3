// Strided copies against memcpy of the same bytes, in one process: compare the bytes/s columns.
//
//   bench_strided --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true
//
// The working set is 64 MiB on each side, larger than any L2 cache.

#include <benchmark/benchmark.h>

#include <cstring>

#include "reshard/base/bytes.h"
#include "reshard/tensor/strided.h"

namespace reshard {
namespace {

constexpr std::uint64_t kBytes = 64ULL << 20;

// Memory that every page of which was touched.
Bytes Touched(std::uint64_t size) { return Bytes(size, std::byte{1}); }

void Report(benchmark::State& state, std::uint64_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes * state.iterations()));
}

void BM_Memcpy(benchmark::State& state) {
  const Bytes src = Touched(kBytes);
  Bytes dst = Touched(kBytes);
  for (auto _ : state) {
    std::memcpy(dst.data(), src.data(), kBytes);
    benchmark::ClobberMemory();
  }
  Report(state, kBytes);
}

// Runs of `run` bytes out of rows of `row` bytes: a column cut of a source, dense destination.
void RunsFromRows(benchmark::State& state, std::uint64_t run, std::uint64_t row) {
  const std::uint64_t runs = kBytes / run;
  const Bytes src = Touched(runs * row);
  Bytes dst = Touched(kBytes);
  const CopyNest nest{run,
                      {{runs, static_cast<std::int64_t>(row), static_cast<std::int64_t>(run)}}};
  for (auto _ : state) {
    RunCopy(nest, src.data(), dst.data());
    benchmark::ClobberMemory();
  }
  Report(state, kBytes);
}

// Rows with a gap of one cache line: nearly the memory traffic of memcpy.
void BM_RunsWithGap(benchmark::State& state) {
  const auto run = static_cast<std::uint64_t>(state.range(0));
  RunsFromRows(state, run, run + 64);
}

// Half of every row, as when a tensor is cut in two along its last axis.
void BM_HalfRows(benchmark::State& state) {
  const auto run = static_cast<std::uint64_t>(state.range(0));
  RunsFromRows(state, run, run * 2);
}

// The same copy into rows of a larger destination, as on load.
void BM_ScatterHalfRows(benchmark::State& state) {
  const auto run = static_cast<std::uint64_t>(state.range(0));
  const std::uint64_t runs = kBytes / run;
  const Bytes src = Touched(kBytes);
  Bytes dst = Touched(kBytes * 2);
  const CopyNest nest{run,
                      {{runs, static_cast<std::int64_t>(run), static_cast<std::int64_t>(run * 2)}}};
  for (auto _ : state) {
    RunCopy(nest, src.data(), dst.data());
    benchmark::ClobberMemory();
  }
  Report(state, kBytes);
}

void BM_Transpose(benchmark::State& state) {
  const auto unit = static_cast<std::uint32_t>(state.range(0));
  const std::uint64_t rows = 4096;
  const std::uint64_t columns = kBytes / rows / unit;
  const Bytes src = Touched(kBytes);
  Bytes dst = Touched(kBytes);
  const CopyNest nest =
      MakeCopyNest(Shape{rows, columns}, unit, DenseStrideBytes(Shape{rows, columns}, unit),
                   std::vector<std::int64_t>{unit, static_cast<std::int64_t>(rows * unit)});
  for (auto _ : state) {
    RunCopy(nest, src.data(), dst.data());
    benchmark::ClobberMemory();
  }
  Report(state, kBytes);
}

// A dense source that arrives in windows of 256 KiB, as blocks of a file do.
void BM_Windows(benchmark::State& state) {
  const auto run = static_cast<std::uint64_t>(state.range(0));
  constexpr std::uint64_t kWindow = 256 << 10;
  const Bytes src = Touched(kBytes);
  Bytes dst = Touched(kBytes * 2);
  const CopyNest nest{
      run, {{kBytes / run, static_cast<std::int64_t>(run), static_cast<std::int64_t>(run * 2)}}};
  for (auto _ : state) {
    for (std::uint64_t at = 0; at < kBytes; at += kWindow) {
      RunCopyWindow(nest, {at, kWindow}, src.data() + at, dst.data());
    }
    benchmark::ClobberMemory();
  }
  Report(state, kBytes);
}

BENCHMARK(BM_Memcpy)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_RunsWithGap)
    ->Arg(2)
    ->Arg(16)
    ->Arg(64)
    ->Arg(256)
    ->Arg(4096)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_HalfRows)->Arg(64)->Arg(256)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_ScatterHalfRows)->Arg(64)->Arg(256)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Windows)->Arg(24)->Arg(256)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Transpose)
    ->Arg(1)
    ->Arg(2)
    ->Arg(3)
    ->Arg(4)
    ->Arg(8)
    ->Arg(16)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace reshard
