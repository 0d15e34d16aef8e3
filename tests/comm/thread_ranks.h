#pragma once

// Runs one function per rank, each on its own thread.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "reshard/comm/process_group.h"

namespace reshard::testing {

using Groups = std::vector<std::unique_ptr<ProcessGroup>>;

/// Calls `body(group, rank)` on a thread per rank and joins them; returns the non-empty answers.
inline std::string OnEveryRank(Groups& groups,
                               const std::function<std::string(ProcessGroup&, int)>& body) {
  std::vector<std::string> answers(groups.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    threads.emplace_back([&, i] { answers[i] = body(*groups[i], static_cast<int>(i)); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::string out;
  for (const std::string& answer : answers) {
    out += answer.empty() ? answer : answer + "\n";
  }
  return out;
}

}  // namespace reshard::testing
