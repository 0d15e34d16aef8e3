#include <fmt/format.h>

#include <map>

#include "reshard/mpi/mpi_environment.h"
#include "tests/mpi/mpi_case.h"

namespace reshard::testing {
namespace {

int Main(int argc, char** argv) {
  auto environment = MpiEnvironment::Start(argc, argv);
  if (!environment.ok()) {
    fmt::print(stderr, "{}\n", environment.error().ToString());
    return 2;
  }
  const std::map<std::string, MpiCase> cases = {{"abort", &AbortCase},
                                                {"beat", &BeatCase},
                                                {"collectives", &CollectivesCase},
                                                {"node_local", &NodeLocalCase},
                                                {"save_load", &SaveLoadCase},
                                                {"split", &SplitCase},
                                                {"stop", &StopCase},
                                                {"stop_storage", &StopStorageCase}};
  const auto found = cases.find(argc > 1 ? argv[1] : "");
  const std::string wrong = found == cases.end() ? "usage: reshard_mpi_test CASE [ARGUMENT...]"
                                                 : found->second(Arguments(argv + 2, argv + argc));
  if (!wrong.empty()) {
    fmt::print(stderr, "FAILED: {}\n", wrong);
    AbortJob(1);
  }
  return 0;
}

}  // namespace
}  // namespace reshard::testing

int main(int argc, char** argv) { return reshard::testing::Main(argc, argv); }
