#include "bench/harness.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "reshard/storage/staging_buffer.h"

namespace reshard::bench {
namespace {

constexpr std::size_t kRawBlock = 8 * 1024 * 1024;

void Require(bool good, const std::string& what) {
  if (!good) {
    fmt::print(stderr, "reshard_bench: {} failed\n", what);
    std::exit(2);
  }
}

std::uint64_t StatusField(const char* name) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(name, 0) == 0) {
      return std::strtoull(line.c_str() + std::string(name).size() + 1, nullptr, 10) * 1024;
    }
  }
  return 0;
}

std::string FirstLine(const char* path, const char* prefix) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(prefix, 0) == 0) {
      return line;
    }
  }
  return "";
}

}  // namespace

double Times::min() const { return *std::min_element(seconds.begin(), seconds.end()); }

double Times::median() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

double Seconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double RawWriteSeconds(const std::string& path, std::uint64_t bytes) {
  constexpr std::size_t kWriters = 2;
  std::vector<StagingBuffer> buffers;
  for (std::size_t i = 0; i < kWriters; ++i) {
    auto buffer = StagingBuffer::Allocate(kRawBlock);
    Require(buffer.ok(), "allocation");
    FillNoise(buffer->span(), i);
    buffers.push_back(std::move(*buffer));
  }
  ::unlink(path.c_str());
  ::sync();
  const double seconds = Seconds([&] {
    const int fd = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_DIRECT | O_CLOEXEC, 0644);
    Require(fd >= 0, "open for raw write");
    static_cast<void>(::posix_fallocate(fd, 0, static_cast<off_t>(bytes)));
    std::atomic<std::uint64_t> next = 0;
    std::vector<std::thread> writers;
    for (std::size_t w = 0; w < kWriters; ++w) {
      writers.emplace_back([&, w] {
        for (std::uint64_t at = next.fetch_add(kRawBlock); at < bytes;
             at = next.fetch_add(kRawBlock)) {
          const std::size_t size = std::min<std::uint64_t>(kRawBlock, bytes - at);
          Require(::pwrite(fd, buffers[w].data(), size, static_cast<off_t>(at)) ==
                      static_cast<ssize_t>(size),
                  "raw write");
        }
      });
    }
    for (std::thread& writer : writers) {
      writer.join();
    }
    Require(::fsync(fd) == 0 && ::close(fd) == 0, "raw sync");
  });
  ::unlink(path.c_str());
  return seconds;
}

double RawReadSeconds(const std::string& path, MutableByteSpan target, std::size_t threads) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  Require(fd >= 0, "open for raw read");
  std::atomic<std::uint64_t> next = 0;
  const double seconds = Seconds([&] {
    std::vector<std::thread> readers;
    for (std::size_t t = 0; t < threads; ++t) {
      readers.emplace_back([&] {
        for (std::uint64_t at = next.fetch_add(kRawBlock); at < target.size();
             at = next.fetch_add(kRawBlock)) {
          const std::size_t size = std::min<std::uint64_t>(kRawBlock, target.size() - at);
          Require(::pread(fd, target.data() + at, size, static_cast<off_t>(at)) ==
                      static_cast<ssize_t>(size),
                  "raw read");
        }
      });
    }
    for (std::thread& reader : readers) {
      reader.join();
    }
  });
  ::close(fd);
  return seconds;
}

void DropCache(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  Require(fd >= 0 && ::fsync(fd) == 0 && ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0,
          "cache drop");
  ::close(fd);
}

Memory::Memory(std::size_t size) : size_(size) {
  void* p = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Require(p != MAP_FAILED, "memory");
  ::madvise(p, size, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(p);
  for (std::size_t at = 0; at < size; at += 4096) {
    data_[at] = std::byte{1};
  }
}

Memory::~Memory() { ::munmap(data_, size_); }

void FillNoise(MutableByteSpan bytes, std::uint64_t seed) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    StoreLittle(bytes.data() + at, x & 0x7f7f7f7f7f7f7f7fULL);  // no NaN in any dtype
  }
}

void ResetPeakMemory() {
  std::ofstream out("/proc/self/clear_refs");
  out << "5";
}

std::uint64_t PeakMemory() { return StatusField("VmHWM:"); }

std::uint64_t CurrentMemory() { return StatusField("VmRSS:"); }

void Report::Add(const std::string& name, double value, const std::string& unit,
                 const std::string& goal) {
  bool met = true;
  if (!goal.empty()) {
    const double bound = std::strtod(goal.c_str() + 3, nullptr);
    met = goal[0] == '>' ? value >= bound : value <= bound;
  }
  rows_.push_back({name, value, unit, goal, met});
  fmt::print("{:<66} {:>10.3f} {:<6} {:<10} {}\n", name, value, unit, goal,
             goal.empty() ? ""
             : met        ? "met"
                          : "MISSED");
  std::fflush(stdout);
}

void Report::Note(const std::string& text) {
  notes_.push_back(text);
  fmt::print("  {}\n", text);
  std::fflush(stdout);
}

bool Report::all_met() const {
  return std::all_of(rows_.begin(), rows_.end(), [](const Row& row) { return row.met; });
}

void Report::Print(const std::string& json_path) const {
  if (json_path.empty()) {
    return;
  }
  nlohmann::json out;
  out["machine"] = {{"cpu", FirstLine("/proc/cpuinfo", "model name")},
                    {"cores", std::thread::hardware_concurrency()},
                    {"load", FirstLine("/proc/loadavg", "")}};
  for (const Row& row : rows_) {
    out["figures"].push_back({{"name", row.name},
                              {"value", row.value},
                              {"unit", row.unit},
                              {"goal", row.goal},
                              {"met", row.met}});
  }
  out["notes"] = notes_;
  std::ofstream(json_path) << out.dump(2) << "\n";
}

void Die(const std::string& message) {
  fmt::print(stderr, "reshard_bench: {}\n", message);
  std::exit(2);
}

void RunRanks(int ranks, const std::function<void(ProcessGroup&)>& body) {
  auto groups = ThreadProcessGroups(ranks);
  std::vector<std::thread> threads;
  threads.reserve(groups.size());
  for (auto& group : groups) {
    threads.emplace_back([&body, &group] { body(*group); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace reshard::bench
