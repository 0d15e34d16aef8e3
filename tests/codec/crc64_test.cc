#include "reshard/codec/crc64.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "crc64_reference.h"

#ifdef RESHARD_TEST_ISAL
#include <isa-l/crc64.h>
#endif

namespace reshard {
namespace {

TEST(Crc64Test, GivesKnownAnswers) {
  EXPECT_EQ(Crc64(AsBytes("123456789")), 0x995dc9bbdf1939faU);
  EXPECT_EQ(Crc64({}), 0U);
  EXPECT_EQ(Crc64(AsBytes("a")), 0x330284772e652b05U);
  EXPECT_EQ(Crc64(Bytes(1)), 0x1fada17364673f59U);
  EXPECT_EQ(Crc64(AsBytes("The quick brown fox jumps over the lazy dog")), 0x5b5eb8c2e54aa1c4U);
}

TEST(Crc64Test, ScalarKernelComesFirstAndNamesAreDistinct) {
  ASSERT_FALSE(Crc64Kernels().empty());
  EXPECT_EQ(Crc64Kernels().front().name, "scalar");
  for (std::size_t i = 1; i < Crc64Kernels().size(); ++i) {
    EXPECT_NE(Crc64Kernels()[i - 1].name, Crc64Kernels()[i].name);
  }
}

TEST(Crc64Test, EveryKernelMatchesTheReferenceAtEveryLength) {
  const Bytes data = RandomBytes(4096 + 64, 1);
  std::array<std::uint64_t, 64> expected{};  // of the string so far, by offset
  std::array<std::uint64_t, 64> start{};
  for (std::size_t offset = 0; offset < 64; ++offset) {
    start[offset] = expected[offset] = 0x0123456789abcdef * (offset + 1);
  }
  for (std::size_t length = 0; length <= 4096; ++length) {
    for (std::size_t offset = 0; offset < 64; ++offset) {
      // All offsets at short lengths, a different sixteenth of them at each longer one.
      if (length <= 320 || (offset + length) % 16 == 0) {
        for (const Crc64Kernel& kernel : Crc64Kernels().subspan(length <= 640 ? 0 : 1)) {
          ASSERT_EQ(kernel.linear(data.data() + offset, length, start[offset]), expected[offset])
              << kernel.name << " length " << length << " offset " << offset;
        }
      }
      if (length < 4096) {
        expected[offset] = ReferenceLinear({data.data() + offset + length, 1}, expected[offset]);
      }
    }
  }
}

TEST(Crc64Test, EveryKernelMatchesTheScalarOneOnLongStrings) {
  const Bytes data = RandomBytes(1 << 20, 2);
  const std::uint64_t expected = ReferenceLinear(data);
  for (const Crc64Kernel& kernel : Crc64Kernels()) {
    EXPECT_EQ(kernel.linear(data.data(), data.size(), 0), expected) << kernel.name;
    for (std::size_t length = 4097; length < data.size(); length = length * 3 / 2 + 1) {
      EXPECT_EQ(kernel.linear(data.data(), length, 7),
                Crc64Kernels()[0].linear(data.data(), length, 7))
          << kernel.name << " length " << length;
    }
  }
}

TEST(Crc64Test, StateCarriesOverEverySplitPoint) {
  const Bytes data = RandomBytes(1000, 3);
  const ByteSpan whole(data);
  const std::uint64_t crc = ReferenceCrc(data);
  for (std::size_t cut = 0; cut <= data.size(); ++cut) {
    const ByteSpan a = whole.first(cut);
    const ByteSpan b = whole.subspan(cut);
    ASSERT_EQ(~Crc64Linear(b, Crc64Linear(a, ~0ULL)), crc) << cut;
    ASSERT_EQ(Crc64Combine(Crc64(a), Crc64(b), b.size()), crc) << cut;
    ASSERT_EQ(Crc64Shift(Crc64Linear(a), b.size()) ^ Crc64Linear(b) ^ Crc64Constant(data.size()),
              crc)
        << cut;
  }
}

TEST(Crc64Test, CombiningWithNothingChangesNothing) {
  const std::uint64_t crc = Crc64(AsBytes("123456789"));
  EXPECT_EQ(Crc64Combine(crc, Crc64({}), 0), crc);
  EXPECT_EQ(Crc64Combine(Crc64({}), crc, 9), crc);
  EXPECT_EQ(Crc64Combine(0, 0, 0), 0U);
}

TEST(Crc64Test, ShiftIsFollowingZeros) {
  const Bytes zeros(5000);
  for (std::size_t bytes = 0; bytes <= zeros.size(); bytes += bytes < 300 ? 1 : 97) {
    const ByteSpan tail(zeros.data(), bytes);
    ASSERT_EQ(Crc64Shift(0x123456789abcdef0, bytes), ReferenceLinear(tail, 0x123456789abcdef0));
    ASSERT_EQ(Crc64Constant(bytes), ReferenceCrc(tail)) << bytes;
  }
}

TEST(Crc64Test, ShiftsAddUpOverAll64Bits) {
  std::mt19937_64 random(4);
  for (int k = 0; k < 63; ++k) {
    const std::uint64_t value = random();
    const std::uint64_t half = 1ULL << k;
    EXPECT_EQ(Crc64Shift(Crc64Shift(value, half), half), Crc64Shift(value, half << 1)) << k;
  }
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t value = random();
    const std::uint64_t a = random();
    const std::uint64_t b = random() % (~0ULL - a);
    ASSERT_EQ(Crc64Shift(Crc64Shift(value, a), b), Crc64Shift(value, a + b));
    ASSERT_EQ(Crc64Shifter(a)(value), Crc64Shift(value, a));
  }
  EXPECT_EQ(Crc64Shift(0, ~0ULL), 0U);
}

TEST(Crc64Test, SumsAndCombinesMoreThanFourGigabytes) {
  const Bytes piece(16 << 20, std::byte{0x5a});
  constexpr std::uint64_t kPieces = 257;  // 4 GiB + 16 MiB
  std::uint64_t state = ~0ULL;
  std::uint64_t combined = 0;
  std::uint64_t size = 0;
  const std::uint64_t piece_crc = Crc64(piece);
  for (std::uint64_t i = 0; i < kPieces; ++i) {
    state = Crc64Linear(piece, state);
    combined = Crc64Combine(piece_crc, combined, size);  // one piece in front of what there is
    size += piece.size();
  }
  EXPECT_GT(size, 1ULL << 32);
  EXPECT_EQ(combined, ~state);
  const Crc64Loop loop{kPieces, 0, piece.size()};
  const std::uint64_t runs = Crc64Runs(piece.data(), piece.size(), {&loop, 1});
  EXPECT_EQ(runs ^ Crc64Constant(size), ~state);
}

TEST(Crc64Test, MultiplicationsAgree) {
  std::mt19937_64 random(5);
  const std::array<std::uint64_t, 4> special = {0, 1, 1ULL << 63, ~0ULL};
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t a = i < 16 ? special[static_cast<std::size_t>(i) % 4] : random();
    const std::uint64_t b = i < 16 ? special[static_cast<std::size_t>(i) / 4] : random();
    const std::uint64_t expected = Crc64Kernels()[0].multiply(a, b);
    ASSERT_EQ(Crc64Kernels()[0].multiply(b, a), expected);
    for (const Crc64Kernel& kernel : Crc64Kernels()) {
      ASSERT_EQ(kernel.multiply(a, b), expected) << kernel.name;
    }
  }
}

TEST(Crc64Test, AgreesWithIsal) {
#ifdef RESHARD_TEST_ISAL
  // ISA-L inverts the state on the way in and out: it takes and returns CRCs, not linear parts.
  const Bytes data = RandomBytes(100000, 6);
  for (std::size_t length = 0; length <= data.size(); length = length * 5 / 4 + 1) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
    ASSERT_EQ(Crc64({data.data(), length}), crc64_ecma_refl(0, bytes, length)) << length;
  }
#else
  GTEST_SKIP() << "built without ISA-L";
#endif
}

// The numbers of docs/format/checksums.md.
TEST(Crc64Test, WorkedExampleOfTheDocumentHolds) {
  const std::array<std::uint16_t, 6> tensor = {1, 2, 3, 4, 5, 6};  // shape (2, 3)
  const std::array<std::uint16_t, 4> left = {1, 2, 4, 5};          // columns 0 and 1
  const std::array<std::uint16_t, 2> right = {3, 6};               // column 2
  const Crc64Loop left_rows{2, 4, 6};
  const Crc64Loop right_rows{2, 2, 6};
  const std::uint64_t left_linear =
      Crc64Runs(reinterpret_cast<const std::byte*>(left.data()), 4, {&left_rows, 1});
  const std::uint64_t right_linear =
      Crc64Runs(reinterpret_cast<const std::byte*>(right.data()), 2, {&right_rows, 1});
  EXPECT_EQ(left_linear, 0x966c1ca410ab68ffU);
  EXPECT_EQ(Crc64Shift(left_linear, 2), 0x3562943b9f328220U);
  EXPECT_EQ(right_linear, 0x95b4ab9d826bc7eeU);
  EXPECT_EQ(Crc64Constant(12), 0xaf4bc36300bac460U);
  EXPECT_EQ(Crc64Shift(left_linear, 2) ^ right_linear ^ Crc64Constant(12), 0x0f9dfcc51de381aeU);
  EXPECT_EQ(Crc64({reinterpret_cast<const std::byte*>(tensor.data()), 12}), 0x0f9dfcc51de381aeU);
}

}  // namespace
}  // namespace reshard
