// reshard_bench: the library's own figures, each a ratio to what the hardware does in the same run.

#include <fmt/format.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>

#include "bench/harness.h"

int main(int argc, char** argv) {
  using namespace reshard::bench;  // NOLINT: a program of one namespace
  const std::map<std::string, void (*)(const Options&, Report&)> workloads = {
      {"load", RunLoad},
      {"paddle", RunPaddle},
      {"planning", RunPlanning},
      {"reshard", RunReshard},
      {"save", RunSave},
      {"slice", RunSlice},
      {"small-runs", RunSmallRuns},
      {"torch", RunTorch}};
  Options options;
  std::string parent = ".";
  std::string json;
  double gib = 4;
  bool enforce = false;
  std::vector<std::string> names;
  std::vector<std::string> peers;
  CLI::App app("Measures reshard against the raw speed of this machine.");
  app.add_option("workloads", names,
                 "save load reshard slice planning small-runs paddle torch (default: all)");
  app.add_option("--dir", parent, "Parent of the scratch folder, on the disk to measure")
      ->capture_default_str();
  app.add_option("--gib", gib, "Size of the checkpoint of save and load")->capture_default_str();
  app.add_option("--repeats", options.repeats, "Runs of each timing")->capture_default_str();
  app.add_option("--json", json, "Write the figures to this file too");
  app.add_option("--peer", peers, "paddle=PYTHON, torch=PYTHON: measures that peer too");
  app.add_option("--peer-scripts", options.peer_scripts, "The folder bench/peers");
  app.add_flag("--enforce", enforce, "Exit with 1 when a goal is missed");
  CLI11_PARSE(app, argc, argv);
  options.bytes = static_cast<std::uint64_t>(gib * (1ULL << 30));
  for (const std::string& peer : peers) {
    const std::size_t equals = peer.find('=');
    options.peers[peer.substr(0, equals)] = peer.substr(std::min(equals, peer.size() - 1) + 1);
  }
  std::string pattern = parent + "/reshard-bench.XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    fmt::print(stderr, "reshard_bench: cannot make a folder in {}\n", parent);
    return 2;
  }
  options.directory = pattern;
  if (names.empty()) {
    names = {"save", "load", "reshard", "slice", "planning", "small-runs", "paddle", "torch"};
  }
  Report report;
  for (const std::string& name : names) {
    const auto workload = workloads.find(name);
    if (workload == workloads.end()) {
      fmt::print(stderr, "reshard_bench: no workload '{}'\n", name);
      return 2;
    }
    fmt::print("== {}\n", name);
    workload->second(options, report);
  }
  std::filesystem::remove_all(options.directory);
  report.Print(json);
  return enforce && !report.all_met() ? 1 : 0;
}
