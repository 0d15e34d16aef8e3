#include "reshard/cli/command_verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reshard/cli/json.h"
#include "reshard/cli/open_path.h"
#include "reshard/cli/progress_bar.h"
#include "reshard/cli/text.h"
#include "reshard/engine/verify.h"

namespace reshard::cli {
namespace {

struct VerifyCommandOptions {
  std::string path;
  std::vector<std::string> keys;
  std::size_t threads = 0;
  bool json = false;
};

Json ToJson(const VerifyFault& fault) {
  Json out = cli::ToJson(fault.error);
  out["file"] = fault.file.empty() ? Json(nullptr) : Json(fault.file);
  out["offset"] = fault.range ? Json(fault.range->offset) : Json(nullptr);
  out["bytes"] = fault.range ? Json(fault.range->size) : Json(nullptr);
  out["tensors"] = fault.num_keys;
  out["keys"] = fault.keys;
  return out;
}

Json ToJson(const std::string& path, const VerifyReport& report) {
  Json snapshots = Json::array();
  for (const SnapshotVerdict& verdict : report.snapshots) {
    Json faults = Json::array();
    for (const VerifyFault& fault : verdict.faults) {
      faults.push_back(ToJson(fault));
    }
    snapshots.push_back({{"unique_id", verdict.unique_id},
                         {"whole", verdict.faults.empty()},
                         {"structure_only", verdict.structure_only},
                         {"tensors", verdict.tensors},
                         {"digests", verdict.digests},
                         {"files", verdict.files},
                         {"blocks", verdict.blocks},
                         {"bytes", verdict.bytes},
                         {"faults", std::move(faults)}});
  }
  return {{"path", path},
          {"whole", report.whole()},
          {"snapshots", std::move(snapshots)},
          {"notes", report.notes}};
}

std::string ToText(const VerifyFault& fault) {
  std::string out = fmt::format("  {} {}\n", fault.error.reason, Printable(fault.error.message));
  if (!fault.keys.empty() && !fault.file.empty()) {
    out +=
        Printable(fmt::format("      holds {}{}", fmt::join(fault.keys, ", "),
                              fault.num_keys > fault.keys.size()
                                  ? fmt::format(" and {} more", fault.num_keys - fault.keys.size())
                                  : "")) +
        "\n";
  }
  return out;
}

std::string ToText(const std::string& path, const SnapshotVerdict& verdict) {
  const std::string name = fmt::format("{}@{}", Printable(path), verdict.unique_id);
  if (verdict.structure_only && verdict.faults.empty()) {
    return fmt::format(
        "{}: complete, structure only: {} in {} without checksums; run `reshard "
        "index {}` to get them\n",
        name, Count(verdict.tensors, "tensor"), Count(verdict.files, "file"), Printable(path));
  }
  const std::string what = fmt::format("{} and {} in {}, {}", Count(verdict.tensors, "tensor"),
                                       Count(verdict.blocks, "block"), Count(verdict.files, "file"),
                                       HumanBytes(verdict.bytes));
  if (verdict.faults.empty()) {
    return fmt::format("{}: whole ({})\n", name, what);
  }
  std::string out = fmt::format("{}: {} ({})\n", name, Count(verdict.faults.size(), "fault"), what);
  for (const VerifyFault& fault : verdict.faults) {
    out += ToText(fault);
  }
  return out;
}

class VerifyCommand final : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText command_text = {
        "verify",
        "read a checkpoint whole and list everything that is wrong with it",
        {"Checks the catalog, that the chunks cover each tensor exactly once, that every data file "
         "is "
         "there with its size and head, that its own entries agree with the catalog, the checksum "
         "of every 256 KiB block, and the digest of every tensor. It does not stop at the first "
         "fault. Leftovers that no snapshot needs are notes, not faults.",
         "All snapshots in the directory are checked, or one with DIR@ID."},
        {{"reshard verify run7/step-100", "every snapshot in that directory"},
         {"reshard verify run7/ckpt@3", "snapshot 3"},
         {"reshard verify --key 'opt.*' run7/ckpt", "only the blocks that hold these tensors"},
         {"reshard verify --json run7/ckpt | jq '.snapshots[].faults[].file'", "damaged files"}},
        "everything that was checked is whole",
        "something is damaged or missing, or there is no snapshot, or no key matches",
        "something could not be read, or wrong usage"};
    return command_text;
  }

  void AddOptions(CLI::App& app) override {
    app.add_option("path", options_.path, "Checkpoint directory, or DIR@ID for one snapshot")
        ->required();
    app.add_option("--key", options_.keys,
                   "Check only tensors whose key matches the shell pattern; may be given again")
        ->type_name("GLOB")
        ->expected(1)
        ->take_all();
    app.add_option("--threads", options_.threads, "Readers at once (default: cores, at most 8)")
        ->type_name("N")
        ->check(CLI::Range(1, 256));
    app.add_flag("--json", options_.json, "Print one line of JSON");
  }

  Result<ExitCode> Run(Console& console) override {
    RESHARD_TRY_ASSIGN(const OpenedPath opened, OpenCheckpoint(options_.path));
    RESHARD_TRY_ASSIGN(const VerifyReport report, Check(opened, console));
    const std::string& path = opened.argument.path;
    if (options_.json) {
      console.Out(Line(ToJson(path, report)));
    } else {
      for (const SnapshotVerdict& verdict : report.snapshots) {
        console.Out(ToText(path, verdict));
      }
    }
    for (const std::string& note : report.notes) {
      console.Message("note: " + Printable(note));
    }
    if (report.whole()) {
      return ExitCode::kYes;
    }
    console.Message(report.damaged()
                        ? WhatToDo(opened, report)
                        : "not everything could be read or understood, so damage is not "
                          "ruled out: a file that was refused is damaged, of a newer "
                          "version, or not to be trusted");
    return report.damaged() ? ExitCode::kNo : ExitCode::kFailed;
  }

 private:
  std::string WhatToDo(const OpenedPath& opened, const VerifyReport& report) const {
    const std::string path = Printable(opened.argument.path);
    const std::string restore = "or restore the damaged files from a copy";
    if (const auto whole = report.newest_whole()) {
      return fmt::format("{}@{} is the newest that is whole{}: load that, {}", path, *whole,
                         options_.keys.empty() ? "" : " in what was checked", restore);
    }
    if (report.snapshots.size() < opened.list.ids.size()) {
      return fmt::format(
          "`reshard verify {}` checks the other snapshots too: load one that is "
          "whole, {}",
          path, restore);
    }
    return fmt::format("none of the snapshots in {} is whole: load one from another directory, {}",
                       path, restore);
  }

  Result<VerifyReport> Check(const OpenedPath& opened, const Console& console) const {
    const SystemClock clock;
    ProgressBar bar(console, clock, "verify");
    VerifyOptions options;
    options.unique_id = opened.argument.unique_id;
    options.keys = options_.keys;
    options.threads = options_.threads;
    options.progress = [&bar](const Progress& progress) {
      bar.Update(progress);
      return OkStatus();
    };
    Result<VerifyReport> report = Verify(*opened.storage, options);
    if (!report.ok() && report.error().reason == "NO_SUCH_KEY") {
      report.error().message += fmt::format("\n`reshard ls {}` lists the keys; quote the pattern",
                                            Printable(options_.path));
    }
    return report;
  }

  VerifyCommandOptions options_;
};

}  // namespace

std::unique_ptr<Command> NewVerifyCommand() { return std::make_unique<VerifyCommand>(); }

}  // namespace reshard::cli
