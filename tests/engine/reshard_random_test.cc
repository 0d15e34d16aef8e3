// Random tensors on random layouts, saved and loaded on another random layout, against the pattern
// that every element is known to have.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "reshard/engine/load.h"
#include "reshard/engine/save.h"
#include "reshard/storage/memory_storage.h"
#include "tests/support/states.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {
namespace {

using Random = std::mt19937_64;

std::uint64_t Draw(Random& random, std::uint64_t low, std::uint64_t high) {
  return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
}

/// A tensor of the test: what it is, and the seed of its elements.
struct Spec {
  std::string key;
  DType dtype;
  Shape shape;
  std::uint64_t salt;
};

std::vector<Spec> DrawSpecs(Random& random) {
  std::vector<Spec> specs;
  const auto dtypes = AllDTypes();
  const std::uint64_t count = Draw(random, 1, 12);
  for (std::uint64_t i = 0; i < count; ++i) {
    const DTypeInfo& info = dtypes[Draw(random, 0, dtypes.size() - 1)];
    Spec spec;
    spec.key = fmt::format("t{}", i);
    spec.dtype = info.dtype;
    spec.salt = random();
    const std::uint64_t axes = Draw(random, info.unit_elements > 1 ? 1 : 0, 4);
    for (std::uint64_t a = 0; a < axes; ++a) {
      const std::uint64_t most = axes == 1 ? 200000 : axes == 2 ? 400 : 30;
      spec.shape.push_back(Draw(random, 0, 20) == 0 ? 0 : Draw(random, 1, most));
    }
    if (info.unit_elements > 1) {
      spec.shape.back() *= info.unit_elements;
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

/// The boxes of one rank, in one of several ways; a pure function of the seed, so that all ranks
/// agree.
std::vector<Box> DrawBoxes(const Spec& spec, int rank, int size, std::uint64_t seed) {
  Random random(seed ^ spec.salt);
  const std::uint64_t kind = Draw(random, 0, 4);
  const Box whole = WholeBox(spec.shape);
  if (kind == 0 || spec.shape.empty()) {  // replicated
    return {whole};
  }
  if (kind == 1 && Info(spec.dtype).unit_elements == 1) {  // flattened ranges, uneven
    std::vector<std::uint64_t> cuts = {0, NumElements(spec.shape)};
    for (int i = 1; i < size; ++i) {
      cuts.push_back(Draw(random, 0, cuts[1]));
    }
    std::sort(cuts.begin(), cuts.end());
    return *FlattenedRangeToBoxes(whole, cuts[static_cast<std::size_t>(rank)],
                                  cuts[static_cast<std::size_t>(rank) + 1]);
  }
  if (kind == 2) {  // only one rank has it
    return static_cast<std::uint64_t>(rank) == Draw(random, 0, static_cast<std::uint64_t>(size) - 1)
               ? std::vector<Box>{whole}
               : std::vector<Box>{};
  }
  const auto ranks = static_cast<std::uint64_t>(size);
  const std::uint64_t first = size % 2 == 0 && kind == 3 ? 2 : ranks;
  const ProcessMesh mesh = *ProcessMesh::Create({first, ranks / first});
  std::vector<Placement> placements;
  for (int i = 0; i < 2; ++i) {
    const std::uint64_t choice = Draw(random, 0, spec.shape.size());
    placements.push_back(choice == spec.shape.size() ? Placement(Replicate{})
                                                     : Placement(Shard{static_cast<int>(choice)}));
  }
  return {**LocalBox(spec.shape, spec.dtype, mesh, placements, rank)};
}

Tensor MakeTensor(const Spec& spec, int rank, int size, std::uint64_t seed) {
  Random random(seed + static_cast<std::uint64_t>(rank) * 77 + spec.salt);
  Tensor tensor{spec.dtype, spec.shape, {}};
  for (Box& box : DrawBoxes(spec, rank, size, seed)) {
    std::vector<std::size_t> order;
    if (Info(spec.dtype).unit_elements == 1 && Draw(random, 0, 2) == 0) {
      for (std::size_t a = 0; a < box.extent.size(); ++a) {
        order.push_back(a);
      }
      std::shuffle(order.begin(), order.end(), random);
    }
    tensor.shards.push_back(AllocateShard(spec.dtype, std::move(box), order, Draw(random, 0, 2)));
  }
  return tensor;
}

class ReshardRandomTest : public ::testing::TestWithParam<Movement> {};

TEST_P(ReshardRandomTest, EveryElementArrivesOnEveryLayout) {
  const char* fixed = std::getenv("RESHARD_TEST_SEED");
  const std::uint64_t base = fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : 20261130;
  const int rounds = fixed != nullptr ? 1 : 60;
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t seed = base + static_cast<std::uint64_t>(round);
    SCOPED_TRACE("RESHARD_TEST_SEED=" + std::to_string(seed));
    Random random(seed);
    const std::vector<Spec> specs = DrawSpecs(random);
    const int savers = static_cast<int>(Draw(random, 1, 8));
    const int loaders = static_cast<int>(Draw(random, 1, 8));
    const std::unique_ptr<Storage> storage = NewMemoryStorage();
    RunRanks(savers, [&](ProcessGroup& group) {
      StateDict state;
      for (const Spec& spec : specs) {
        Tensor tensor = MakeTensor(spec, group.rank(), savers, seed);
        FillPattern(tensor, spec.salt);
        state["model"][spec.key] = std::move(tensor);
      }
      SaveOptions options;
      options.plan.min_cut_bytes = 1000;
      ASSERT_OK(Save(state, *storage, group, options));
    });
    const auto load = [&](ProcessGroup& group) {
      StateDict state;
      for (const Spec& spec : specs) {
        state["model"][spec.key] = MakeTensor(spec, group.rank(), loaders, seed + 1);
      }
      LoadOptions options;
      options.transfer = GetParam().transfer;
      options.memory_bytes = 4 * 1024 * 1024;
      const Result<LoadReport> report = Load(state, *storage, group, options);
      ASSERT_OK(report);
      EXPECT_EQ(report->exchanged && GetParam().transfer == Transfer::kDirect, false);
      for (const Spec& spec : specs) {
        const auto* tensor = state["model"][spec.key].get_if<Tensor>();
        EXPECT_EQ(CountWrong(*tensor, spec.salt), 0U)
            << "RESHARD_TEST_SEED=" << seed << " " << spec.key << " " << Info(spec.dtype).name
            << " " << ToString(spec.shape);
      }
    };
    RunRanks(loaders, load, {}, GetParam().apart);
  }
}

INSTANTIATE_TEST_SUITE_P(Auto, ReshardRandomTest,
                         ::testing::Values(Movement{"Auto", Transfer::kAuto, false}));
INSTANTIATE_TEST_SUITE_P(Movements, ReshardRandomTest, ::testing::ValuesIn(Movements()));

}  // namespace
}  // namespace reshard::testing
