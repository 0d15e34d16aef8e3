#pragma once

// Checks of every collective with values, run by each rank of a group: threads here, processes
// under mpirun in tests/mpi. Each returns "" or what is wrong, so that they work with and without
// GoogleTest.

#include <fmt/format.h>

#include <random>
#include <string>
#include <vector>

#include "reshard/comm/process_group.h"

namespace reshard::testing {

#define RESHARD_EXPECT(condition)                                                      \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      return fmt::format("{}:{} rank {}: {}", __FILE__, __LINE__, group.global_rank(), \
                         #condition);                                                  \
    }                                                                                  \
  } while (false)

/// Bytes that depend on sender, receiver and size, so that a mix-up shows.
inline Bytes PatternBytes(int from, int to, std::size_t size) {
  Bytes out(size);
  for (std::size_t i = 0; i < size; ++i) {
    out[i] =
        static_cast<std::byte>(i * 7 + static_cast<std::size_t>(from * 31 + to * 101) + i / 255);
  }
  return out;
}

/// Gather, Broadcast and AllGather from and to every root, with lengths that differ by rank.
inline std::string CheckBlobs(ProcessGroup& group, std::size_t unit) {
  const int me = group.rank();
  const auto length = [&](int rank) { return unit * static_cast<std::size_t>(rank); };
  for (int root = 0; root < group.size(); ++root) {
    const auto gathered = group.Gather(PatternBytes(me, root, length(me)), root);
    RESHARD_EXPECT(gathered.ok());
    RESHARD_EXPECT(gathered->size() == (me == root ? static_cast<std::size_t>(group.size()) : 0));
    for (std::size_t i = 0; i < gathered->size(); ++i) {
      const int rank = static_cast<int>(i);
      RESHARD_EXPECT((*gathered)[i] == PatternBytes(rank, root, length(rank)));
    }
    const auto sent =
        group.Broadcast(me == root ? PatternBytes(root, 99, length(root) + 3) : Bytes(5), root);
    RESHARD_EXPECT(sent.ok());
    RESHARD_EXPECT(*sent == PatternBytes(root, 99, length(root) + 3));
  }
  const auto all = group.AllGather(PatternBytes(me, 77, length(me)));
  RESHARD_EXPECT(all.ok());
  RESHARD_EXPECT(all->size() == static_cast<std::size_t>(group.size()));
  for (int rank = 0; rank < group.size(); ++rank) {
    RESHARD_EXPECT((*all)[static_cast<std::size_t>(rank)] == PatternBytes(rank, 77, length(rank)));
  }
  RESHARD_EXPECT(group.Barrier().ok());
  return "";
}

/// AllToAllV with random sizes, many of them zero. `seed` must be equal on all ranks.
inline std::string CheckAllToAllV(ProcessGroup& group, unsigned seed, std::size_t max_size) {
  std::mt19937 random(seed);
  const auto n = static_cast<std::size_t>(group.size());
  const auto me = static_cast<std::size_t>(group.rank());
  std::vector<std::size_t> sizes(n * n);
  for (std::size_t& size : sizes) {
    size = random() % 3 == 0 ? 0 : random() % (max_size + 1);
  }
  std::vector<Bytes> outgoing;
  std::vector<Bytes> incoming;
  for (std::size_t r = 0; r < n; ++r) {
    outgoing.push_back(PatternBytes(group.rank(), static_cast<int>(r), sizes[me * n + r]));
    incoming.emplace_back(sizes[r * n + me], std::byte{0xee});
  }
  const std::vector<ByteSpan> send(outgoing.begin(), outgoing.end());
  const std::vector<MutableByteSpan> receive(incoming.begin(), incoming.end());
  const Status status = group.AllToAllV(send, receive);
  RESHARD_EXPECT(status.ok());
  for (std::size_t r = 0; r < n; ++r) {
    RESHARD_EXPECT(incoming[r] ==
                   PatternBytes(static_cast<int>(r), group.rank(), sizes[r * n + me]));
  }
  return "";
}

/// Agree: all OK, one failing, all failing.
inline std::string CheckAgree(ProcessGroup& group) {
  RESHARD_EXPECT(group.Agree(OkStatus()).ok());
  const auto failure = [&](ErrorCode code) -> Status {
    auto error = MakeError(code, "REASON" + std::to_string(group.rank()), "disk on fire");
    error.value().data_loss = true;
    return error;
  };
  for (int culprit = 0; culprit < group.size(); ++culprit) {
    const Status mine = group.rank() >= culprit ? failure(ErrorCode::kIo) : OkStatus();
    const Status agreed = group.Agree(mine);
    RESHARD_EXPECT(!agreed.ok());
    // The lowest global rank among the failing ones speaks.
    int lowest = culprit;
    for (int r = culprit; r < group.size(); ++r) {
      lowest = group.global_rank(r) < group.global_rank(lowest) ? r : lowest;
    }
    RESHARD_EXPECT(agreed.error().code == ErrorCode::kIo);
    RESHARD_EXPECT(agreed.error().data_loss);
    RESHARD_EXPECT(agreed.error().reason == "REASON" + std::to_string(lowest));
    RESHARD_EXPECT(agreed.error().message ==
                   fmt::format("rank {}: disk on fire", group.global_rank(lowest)));
  }
  return "";
}

/// Subgroups: even and odd ranks, in reversed order, used while the parent is used too.
inline std::string CheckSubgroups(ProcessGroup& group) {
  std::vector<int> halves[2];
  for (int r = group.size() - 1; r >= 0; --r) {
    halves[r % 2].push_back(r);
  }
  for (int half = 0; half < 2; ++half) {
    const auto made = group.Subgroup(halves[half]);
    RESHARD_EXPECT(made.ok());
    RESHARD_EXPECT((*made != nullptr) == (group.rank() % 2 == half));
    if (*made == nullptr) {
      continue;
    }
    ProcessGroup& sub = **made;
    RESHARD_EXPECT(static_cast<std::size_t>(sub.size()) == halves[half].size());
    RESHARD_EXPECT(halves[half][static_cast<std::size_t>(sub.rank())] == group.rank());
    RESHARD_EXPECT(sub.global_rank() == group.global_rank());
    for (int r = 0; r < group.size(); ++r) {
      RESHARD_EXPECT((sub.FindGlobalRank(group.global_rank(r)) >= 0) == (r % 2 == half));
    }
    RESHARD_EXPECT(CheckBlobs(sub, 100) == "");
    RESHARD_EXPECT(CheckAgree(sub) == "");
    RESHARD_EXPECT(CheckAllToAllV(sub, 5, 3000) == "");
  }
  return CheckBlobs(group, 10);
}

/// A duplicate whose messages do not mix with the parent's: the two are used in opposite order.
inline std::string CheckDuplicate(ProcessGroup& group) {
  const auto made = group.Duplicate();
  RESHARD_EXPECT(made.ok());
  ProcessGroup& twin = **made;
  RESHARD_EXPECT(twin.rank() == group.rank());
  RESHARD_EXPECT(twin.size() == group.size());
  const int last = group.size() - 1;
  // Leaves of a Gather need not wait, so both are in flight at rank 0 at once.
  const auto first = [&](ProcessGroup& g, int tag) {
    return g.Gather(PatternBytes(g.rank(), tag, 50), last);
  };
  const bool swap = group.rank() == last;
  const auto a = first(swap ? twin : group, swap ? 2 : 1);
  const auto b = first(swap ? group : twin, swap ? 1 : 2);
  RESHARD_EXPECT(a.ok());
  RESHARD_EXPECT(b.ok());
  for (std::size_t i = 0; i < a->size(); ++i) {
    RESHARD_EXPECT((*a)[i] == PatternBytes(static_cast<int>(i), 2, 50));
    RESHARD_EXPECT((*b)[i] == PatternBytes(static_cast<int>(i), 1, 50));
  }
  RESHARD_EXPECT(twin.Barrier().ok());
  RESHARD_EXPECT(group.Barrier().ok());
  return "";
}

/// All of the above.
inline std::string CheckCollectives(ProcessGroup& group) {
  for (const std::size_t unit : {0, 1, 500, 40000}) {
    if (std::string wrong = CheckBlobs(group, unit); !wrong.empty()) {
      return wrong;
    }
  }
  for (unsigned seed = 1; seed <= 5; ++seed) {
    if (std::string wrong = CheckAllToAllV(group, seed, seed < 4 ? 5000 : 300000); !wrong.empty()) {
      return wrong;
    }
  }
  for (auto* check : {&CheckAgree, &CheckSubgroups, &CheckDuplicate}) {
    if (std::string wrong = check(group); !wrong.empty()) {
      return wrong;
    }
  }
  return "";
}

#undef RESHARD_EXPECT

}  // namespace reshard::testing
