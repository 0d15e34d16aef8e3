#include "reshard/engine/tensor_reader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "reshard/engine/snapshot.h"
#include "tests/support/states.h"

namespace reshard::testing {
namespace {

using Random = std::mt19937_64;

std::uint64_t Draw(Random& random, std::uint64_t low, std::uint64_t high) {
  return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
}

struct Stored {
  std::string key;
  DType dtype;
  Shape shape;
  std::size_t axis;  // cut over the ranks
  std::uint64_t salt;
};

const std::vector<Stored>& AllStored() {
  static const std::vector<Stored> stored = {
      {"bits", DType::kFloat4E2m1, {30, 64}, 0, 1},  {"columns", DType::kFloat32, {700, 300}, 1, 2},
      {"empty", DType::kInt64, {0, 4}, 0, 3},        {"flat", DType::kBfloat16, {200'000}, 0, 4},
      {"middle", DType::kInt16, {40, 50, 60}, 1, 5}, {"rows", DType::kFloat64, {500, 300}, 0, 6},
      {"scalar", DType::kFloat32, {}, 0, 7},         {"six", DType::kFloat6E2m3, {7, 40}, 0, 8},
  };
  return stored;
}

/// Saved by three ranks.
std::unique_ptr<Storage> SaveAll() {
  std::unique_ptr<Storage> storage = NewMemoryStorage();
  RunRanks(3, [&](ProcessGroup& group) {
    StateDict state;
    for (const Stored& s : AllStored()) {
      Box box = WholeBox(s.shape);
      if (!s.shape.empty()) {
        box = CutBox(s.shape, s.axis, group.rank(), group.size());
      }
      state[s.key] = PatternTensor(s.dtype, s.shape, {box}, s.salt);
    }
    EXPECT_OK(Save(state, *storage, group));
  });
  return storage;
}

Box RandomBox(Random& random, const Shape& shape, DType dtype) {
  Box box = WholeBox(shape);
  for (std::size_t a = 0; a < shape.size(); ++a) {
    const std::uint64_t unit = a + 1 == shape.size() ? Info(dtype).unit_elements : 1;
    const std::uint64_t units = shape[a] / unit;
    const std::uint64_t begin = Draw(random, 0, units);
    box.offset[a] = begin * unit;
    box.extent[a] = Draw(random, 0, units - begin) * unit;
  }
  return box;
}

/// Reads the box and counts the units that are wrong.
std::uint64_t ReadWrong(TensorReader& reader, const Stored& stored, const Box& box) {
  TensorShard shard = AllocateShard(stored.dtype, box);
  const TensorId tensor = reader.catalog().Find(stored.key).value();
  const Status status = reader.ReadBox(tensor, box, {shard.view.data, NumBytes(box, stored.dtype)});
  EXPECT_TRUE(status.ok()) << stored.key << ToString(box) << status.error().ToString();
  return CountWrong(Tensor{stored.dtype, stored.shape, {shard}}, stored.salt);
}

TEST(TensorReaderTest, ReadsAnyBox) {
  const std::unique_ptr<Storage> storage = SaveAll();
  const Catalog catalog = ReadCatalog(*storage, 0).value();
  for (const bool verify : {true, false}) {
    TensorReader reader(catalog, *storage, {verify, 1, 1});
    Random random(20270105);
    for (int i = 0; i < 400; ++i) {
      const Stored& stored = AllStored()[Draw(random, 0, AllStored().size() - 1)];
      const Box box = RandomBox(random, stored.shape, stored.dtype);
      EXPECT_EQ(ReadWrong(reader, stored, box), 0U) << stored.key << ToString(box) << verify;
    }
  }
}

TEST(TensorReaderTest, ReadsFromSeveralThreads) {
  const std::unique_ptr<Storage> storage = SaveAll();
  const Catalog catalog = ReadCatalog(*storage, 0).value();
  TensorReader reader(catalog, *storage, {true, 4, 2});
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 6; ++t) {
    threads.emplace_back([&reader, t] {
      Random random(t);
      for (int i = 0; i < 100; ++i) {
        const Stored& stored = AllStored()[Draw(random, 0, AllStored().size() - 1)];
        const Box box = RandomBox(random, stored.shape, stored.dtype);
        EXPECT_EQ(ReadWrong(reader, stored, box), 0U) << stored.key << ToString(box);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(TensorReaderTest, BoxesInARowReadEachBlockOnce) {
  const std::unique_ptr<Storage> storage = SaveAll();
  const Catalog catalog = ReadCatalog(*storage, 0).value();
  TensorReader reader(catalog, *storage);
  const Stored& rows = AllStored()[5];
  for (std::uint64_t row = 0; row < rows.shape[0]; row += 7) {
    const Box box = {{row, 0}, {std::min<std::uint64_t>(7, rows.shape[0] - row), rows.shape[1]}};
    EXPECT_EQ(ReadWrong(reader, rows, box), 0U);
  }
  const std::uint64_t bytes = NumBytes(rows.shape, rows.dtype);
  EXPECT_GE(reader.bytes_read(), bytes);
  EXPECT_LE(reader.bytes_read(), bytes + 2 * 3 * kBlockBytes);  // the edges in three files
}

TEST(TensorReaderTest, WithoutVerificationReadsOnlyTheBytes) {
  const std::unique_ptr<Storage> storage = SaveAll();
  const Catalog catalog = ReadCatalog(*storage, 0).value();
  TensorReader reader(catalog, *storage, {false, 1, 1});
  EXPECT_EQ(ReadWrong(reader, AllStored()[5], {{100, 0}, {3, 300}}), 0U);
  EXPECT_EQ(reader.bytes_read(), 3 * 300 * 8U);
}

TEST(TensorReaderTest, NamesADamagedBlock) {
  const std::unique_ptr<Storage> storage = SaveAll();
  const Catalog catalog = ReadCatalog(*storage, 0).value();
  const TensorId rows = catalog.Find("rows").value();
  const Chunk chunk = catalog.chunk(rows, 0);
  const std::string name = catalog.files()[chunk.file].name;
  Bytes bytes = ReadObject(*storage, name);
  bytes[chunk.byte_offset + 5] ^= std::byte{1};
  PutObject(*storage, name, bytes);
  Bytes out(300 * 8);
  TensorReader reader(catalog, *storage);
  for (int i = 0; i < 2; ++i) {  // an error is not cached as good bytes
    const Status status = reader.ReadBox(rows, {chunk.box.ToBox().offset, {1, 300}}, out);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().reason, "BLOCK_CHECKSUM");
    EXPECT_NE(status.error().message.find(name), std::string::npos);
  }
  TensorReader careless(catalog, *storage, {false, 1, 1});
  EXPECT_OK(careless.ReadBox(rows, {chunk.box.ToBox().offset, {1, 300}}, out));
}

TEST(TensorReaderTest, RefusesWhatDoesNotFit) {
  const std::unique_ptr<Storage> storage = SaveAll();
  const Catalog catalog = ReadCatalog(*storage, 0).value();
  TensorReader reader(catalog, *storage);
  const TensorId rows = catalog.Find("rows").value();
  Bytes out(300 * 8);
  EXPECT_EQ(reader.ReadBox(rows, {{500, 0}, {1, 300}}, out).error().reason, "BOX_OUT_OF_SHAPE");
  EXPECT_EQ(reader.ReadBox(rows, {{0}, {1}}, out).error().reason, "BOX_RANK");
  EXPECT_EQ(reader.ReadBox(rows, {{0, 0}, {2, 300}}, out).error().reason, "BAD_VIEW");
  EXPECT_EQ(reader.bytes_read(), 0U);
}

}  // namespace
}  // namespace reshard::testing
