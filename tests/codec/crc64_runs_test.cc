#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "crc64_reference.h"
#include "reshard/codec/crc64.h"

namespace reshard {
namespace {

using Loops = std::vector<Crc64Loop>;

// The string that Crc64Runs speaks of, built in full.
void Place(Bytes& string, std::uint64_t at, const std::byte* data, std::uint64_t run_bytes,
           std::span<const Crc64Loop> loops) {
  if (loops.empty()) {
    std::memcpy(string.data() + at, data, run_bytes);
    return;
  }
  for (std::uint64_t i = 0; i < loops[0].count; ++i) {
    Place(string, at + i * loops[0].string_stride,
          data + static_cast<std::int64_t>(i) * loops[0].data_stride, run_bytes, loops.subspan(1));
  }
}

Bytes NaiveString(const std::byte* data, std::uint64_t run_bytes, const Loops& loops) {
  std::uint64_t size = run_bytes;
  for (const Crc64Loop& loop : loops) {
    size += (loop.count - 1) * loop.string_stride;
  }
  Bytes string(size);
  Place(string, 0, data, run_bytes, loops);
  return string;
}

class Crc64RunsTest : public ::testing::Test {
 protected:
  std::uint64_t Below(std::uint64_t limit) { return random_() % limit; }

  // Loops, outermost first, whose string has at most about 64 KiB; `low`/`high`: bytes of memory
  // used before and after the first run's start.
  Loops RandomNest(std::uint64_t run_bytes, std::size_t depth, std::int64_t& low,
                   std::int64_t& high) {
    Loops loops(depth);
    std::uint64_t span = run_bytes;
    high = static_cast<std::int64_t>(run_bytes);
    low = 0;
    for (std::size_t i = depth; i-- > 0;) {
      const std::uint64_t room = std::max<std::uint64_t>(65536 / span, 1);
      const std::uint64_t count = 1 + Below(std::min<std::uint64_t>(room, depth > 2 ? 6 : 40));
      const std::uint64_t string_stride = span + (Below(3) == 0 ? 0 : Below(span + 20));
      std::int64_t data_stride = static_cast<std::int64_t>(span + Below(30));
      data_stride = Below(4) == 0 ? -data_stride : data_stride;
      data_stride = Below(8) == 0 ? 0 : data_stride;
      data_stride = Below(4) == 0 ? static_cast<std::int64_t>(string_stride) : data_stride;
      loops[i] = {count, data_stride, string_stride};
      const std::int64_t reach = static_cast<std::int64_t>(count - 1) * data_stride;
      (reach < 0 ? low : high) += reach;
      span += (count - 1) * string_stride;
    }
    return loops;
  }

  std::mt19937_64 random_{21};
};

TEST_F(Crc64RunsTest, MatchesTheDefinitionOnRandomNests) {
  for (int round = 0; round < 4000; ++round) {
    const std::uint64_t run_bytes = round % 2 == 0 ? 1 + Below(40) : 1 + Below(700);
    std::int64_t low = 0;
    std::int64_t high = 0;
    const Loops loops = RandomNest(run_bytes, Below(5), low, high);
    const Bytes data = RandomBytes(static_cast<std::size_t>(high - low), random_());
    const std::byte* first = data.data() - low;
    const std::uint64_t expected = Crc64Linear(NaiveString(first, run_bytes, loops));
    ASSERT_EQ(Crc64Runs(first, run_bytes, loops), expected) << "round " << round;
    for (const Crc64Kernel& kernel : Crc64Kernels()) {
      if (kernel.name != "scalar" || round % 8 == 0) {
        ASSERT_EQ(kernel.runs(first, run_bytes, loops), expected)
            << kernel.name << " round " << round << " run_bytes " << run_bytes;
      }
    }
  }
}

TEST_F(Crc64RunsTest, EveryRunSizeAndCountMatches) {
  const Bytes data = RandomBytes(40 * 300, 22);
  for (std::uint64_t run_bytes = 1; run_bytes <= 260; ++run_bytes) {
    for (std::uint64_t count : {1, 2, 3, 4, 11, 12, 13, 14, 15, 16, 40}) {
      const Loops loops = {{count, static_cast<std::int64_t>(run_bytes + 3), run_bytes + 5}};
      const std::uint64_t expected = Crc64Linear(NaiveString(data.data(), run_bytes, loops));
      for (const Crc64Kernel& kernel : Crc64Kernels()) {
        ASSERT_EQ(kernel.runs(data.data(), run_bytes, loops), expected)
            << kernel.name << " run_bytes " << run_bytes << " count " << count;
      }
    }
  }
}

TEST_F(Crc64RunsTest, LongRunsMatchWhateverTheirRemainder) {
  const Bytes data = RandomBytes(3 * 9100, 25);
  for (std::uint64_t run_bytes = 261; run_bytes <= 9000; run_bytes += run_bytes < 1100 ? 1 : 37) {
    const auto stride = static_cast<std::int64_t>(run_bytes + 7);
    const Loops loops = {{3, stride, run_bytes + run_bytes % 41}};
    const std::uint64_t expected = Crc64Linear(NaiveString(data.data(), run_bytes, loops));
    for (const Crc64Kernel& kernel : Crc64Kernels()) {
      ASSERT_EQ(kernel.runs(data.data(), run_bytes, loops), expected)
          << kernel.name << " run_bytes " << run_bytes;
    }
  }
}

// A kernel that loads whole registers must not touch what lies around a run.
TEST_F(Crc64RunsTest, ReadsNothingBesidesTheRuns) {
  for (std::uint64_t run_bytes = 1; run_bytes <= 700; run_bytes += run_bytes < 100 ? 1 : 13) {
    const Bytes data =
        RandomBytes(run_bytes, run_bytes);  // exactly allocated, for AddressSanitizer
    const Loops loops = {{5, 0, run_bytes + 1}};
    const std::uint64_t expected = Crc64Linear(NaiveString(data.data(), run_bytes, loops));
    for (const Crc64Kernel& kernel : Crc64Kernels()) {
      ASSERT_EQ(kernel.runs(data.data(), run_bytes, loops), expected) << kernel.name;
      ASSERT_EQ(kernel.linear(data.data(), run_bytes, 0), ReferenceLinear(data)) << kernel.name;
    }
  }
}

TEST_F(Crc64RunsTest, NothingHasLinearPartZero) {
  const Bytes data(16, std::byte{1});
  EXPECT_EQ(Crc64Runs(data.data(), 0, Loops{{4, 1, 1}}), 0U);
  EXPECT_EQ(Crc64Runs(data.data(), 4, Loops{{3, 4, 8}, {0, 4, 8}}), 0U);
  EXPECT_EQ(Crc64Runs(nullptr, 0, {}), 0U);
}

TEST_F(Crc64RunsTest, NoLoopIsOneRun) {
  const Bytes data = RandomBytes(777, 23);
  EXPECT_EQ(Crc64Runs(data.data(), data.size(), {}), ReferenceLinear(data));
}

TEST_F(Crc64RunsTest, StridesOverFourGigabytesOfZeros) {
  const Bytes data = RandomBytes(3 * 10, 24);
  const std::uint64_t stride = (5ULL << 32) + 3;
  const Loops loops = {{3, 10, stride}};
  std::uint64_t expected = Crc64Linear({data.data(), 10});
  expected = Crc64Shift(expected, stride) ^ Crc64Linear({data.data() + 10, 10});
  expected = Crc64Shift(expected, stride) ^ Crc64Linear({data.data() + 20, 10});
  EXPECT_EQ(Crc64Runs(data.data(), 10, loops), expected);
  for (const Crc64Kernel& kernel : Crc64Kernels()) {
    EXPECT_EQ(kernel.runs(data.data(), 10, loops), expected) << kernel.name;
  }
}

struct Cut {
  std::array<std::uint64_t, 3> low{};
  std::array<std::uint64_t, 3> high{};
};

TEST_F(Crc64RunsTest, DigestOfATensorIsTheSumOfItsPieces) {
  for (int round = 0; round < 200; ++round) {
    const std::array<std::uint64_t, 3> shape = {1 + Below(9), 1 + Below(9), 1 + Below(50)};
    const std::uint64_t element = 1ULL << Below(4);
    const std::array<std::uint64_t, 3> pitch = {shape[1] * shape[2] * element, shape[2] * element,
                                                element};
    const Bytes tensor = RandomBytes(shape[0] * pitch[0], random_());
    std::vector<Cut> pieces = {{{0, 0, 0}, shape}};
    for (int cut = 0; cut < 7; ++cut) {
      Cut& old = pieces[Below(pieces.size())];
      const std::size_t axis = Below(3);
      const std::uint64_t at = old.low[axis] + Below(old.high[axis] - old.low[axis] + 1);
      Cut rest = old;
      rest.low[axis] = old.high[axis] = at;  // either side may be empty
      pieces.push_back(rest);
    }
    std::uint64_t digest = Crc64Constant(tensor.size());
    for (const Cut& piece : pieces) {
      Loops loops;
      std::uint64_t first = 0;
      std::uint64_t last = element;
      bool empty = false;
      for (std::size_t axis = 0; axis < 3; ++axis) {
        const std::uint64_t count = piece.high[axis] - piece.low[axis];
        empty = empty || count == 0;
        loops.push_back({count, static_cast<std::int64_t>(pitch[axis]), pitch[axis]});
        first += piece.low[axis] * pitch[axis];
        last += (piece.high[axis] - 1) * pitch[axis];
      }
      if (!empty) {
        const std::uint64_t linear = Crc64Runs(tensor.data() + first, element, loops);
        digest ^= Crc64Shift(linear, tensor.size() - last);
      }
    }
    ASSERT_EQ(digest, Crc64(tensor)) << "round " << round;
  }
}

}  // namespace
}  // namespace reshard
