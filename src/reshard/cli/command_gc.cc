#include "reshard/cli/command_gc.h"

#include <fmt/format.h>

#include "reshard/cli/json.h"
#include "reshard/cli/open_path.h"
#include "reshard/cli/progress_bar.h"
#include "reshard/cli/text.h"
#include "reshard/engine/gc.h"

namespace reshard::cli {
namespace {

struct GcCommandOptions {
  std::string directory;
  std::uint64_t keep = 0;
  std::string older_than = "1d";
  bool dry_run = false;
  bool verify = false;
  bool json = false;
};

std::vector<std::string> FilesOf(const GcItem& item) {
  std::vector<std::string> files = item.files;
  if (!item.last.empty()) {
    files.push_back(item.last);
  }
  return files;
}

/// Whether the item belongs in the listing: planned, or really removed.
bool Counts(const GcItem& item, bool dry_run) { return dry_run || item.removed; }

Json ToJson(const GcCommandOptions& options, const GcPlan& plan, const Status& status) {
  Json kept = Json::array();
  for (const SnapshotRef& snapshot : plan.kept) {
    kept.push_back({{"path", snapshot.path}, {"unique_id", snapshot.unique_id}});
  }
  Json removed = Json::array();
  std::uint64_t bytes = 0;
  for (const GcItem& item : plan.items) {
    if (Counts(item, options.dry_run)) {
      bytes += item.bytes;
      removed.push_back({{"kind", GcKindName(item.kind)},
                         {"path", item.path},
                         {"unique_id", item.unique_id},
                         {"attempt", item.attempt},
                         {"files", FilesOf(item)},
                         {"bytes", item.bytes}});
    }
  }
  Json out = {{"path", options.directory}, {"dry_run", options.dry_run},    {"keep", options.keep},
              {"kept", std::move(kept)},   {"removed", std::move(removed)}, {"bytes", bytes},
              {"notes", plan.notes}};
  if (!status.ok()) {
    out["error"] = cli::ToJson(status.error());
  }
  return out;
}

std::string ToText(const GcCommandOptions& options, const GcPlan& plan) {
  std::string out;
  for (const SnapshotRef& snapshot : plan.kept) {
    out += fmt::format("keep    {}\n", Printable(ToString(snapshot)));
  }
  std::uint64_t bytes = 0;
  const std::string_view verb = options.dry_run ? "would remove" : "removed";
  for (const GcItem& item : plan.items) {
    if (!Counts(item, options.dry_run)) {
      continue;
    }
    bytes += item.bytes;
    out += fmt::format("{} {}  {}, {}, {}\n", options.dry_run ? "would remove" : "remove ",
                       Printable(ToString(SnapshotRef{item.path, item.unique_id})),
                       GcKindName(item.kind), Count(FilesOf(item).size(), "file"),
                       HumanBytes(item.bytes));
  }
  return out + fmt::format("{} {}\n", verb, HumanBytes(bytes));
}

class GcCommand final : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText command_text = {
        "gc",
        "remove old snapshots and what dead saves left behind",
        {"Keeps the N newest complete snapshots in DIR and below it (in the order of `reshard "
         "latest`), and whatever is newer than the last of them; removes older ones. Also finishes "
         "deletions that were interrupted, and removes files that no snapshot needs when nothing "
         "of "
         "their save changed for a while and no save holds its lock.",
         "The newest complete snapshot and a save at work are never touched, nor any file whose "
         "name is not one of the native format. A crash at any moment leaves whole snapshots, and "
         "the next gc goes on. Directories that become empty are removed; DIR stays.",
         "Complete means, as for `reshard latest`, that every file is there with its size and "
         "head; "
         "the tensors' bytes are not read. With --verify the snapshots that are kept are read "
         "whole, and a damaged one is kept but not counted."},
        {{"reshard gc run7 --keep 3 --dry-run", "what would go"},
         {"reshard gc run7 --keep 3", "after each save, in a job script"},
         {"reshard gc run7 --keep 1 --verify", "keep one that was read whole"},
         {"reshard gc run7 --keep 3 --older-than 1h", "leftovers go after one hour already"}},
        "done, also when there was nothing to do",
        "never",
        "something could not be found out (then nothing is removed) or not be removed, or wrong "
        "usage"};
    return command_text;
  }

  void AddOptions(CLI::App& app) override {
    app.add_option("dir", options_.directory, "Where the run keeps its checkpoints")->required();
    app.add_option("--keep", options_.keep, "Complete snapshots to keep, the newest ones")
        ->type_name("N")
        ->required()
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000'000}));
    app.add_option("--older-than", options_.older_than,
                   "Age at which leftovers of dead saves go: 90s, 30m, 12h, 1d, 2w (default: 1d)")
        ->type_name("AGE");
    app.add_flag("--verify", options_.verify, "Count only snapshots whose bytes are all whole");
    app.add_flag("--dry-run", options_.dry_run, "Say what would be removed, and remove nothing");
    app.add_flag("--json", options_.json, "Print one line of JSON");
  }

  Result<ExitCode> Run(Console& console) override {
    RESHARD_TRY_ASSIGN(const std::chrono::seconds age, ParseDuration(options_.older_than));
    RESHARD_TRY(CheckDirectory(options_.directory));
    GcPlan plan;
    const Status status = Collect(age, console, plan);
    console.Out(options_.json ? Line(ToJson(options_, plan, status)) : ToText(options_, plan));
    for (const std::string& note : plan.notes) {
      console.Message("note: " + Printable(note));
    }
    if (!status.ok()) {
      // Whatever the code: gc has no "no".
      console.Failure(status.error());
      return ExitCode::kFailed;
    }
    return ExitCode::kYes;
  }

 private:
  Status Collect(std::chrono::seconds age, const Console& console, GcPlan& plan) const {
    RESHARD_TRY_ASSIGN(const Places places, FindPlaces(options_.directory));
    RESHARD_TRY_ASSIGN(plan, Plan(places, age, console));
    return options_.dry_run ? OkStatus() : RunGc(places, plan);
  }

  Result<GcPlan> Plan(const Places& places, std::chrono::seconds age,
                      const Console& console) const {
    const SystemClock clock;
    ProgressBar bar(console, clock, "verify");
    GcOptions gc;
    gc.keep = options_.keep;
    gc.older_than = age;
    gc.verify = options_.verify;
    gc.progress = [&bar](const Progress& progress) {
      bar.Update(progress);
      return OkStatus();
    };
    return PlanGc(places, gc, clock);
  }

  GcCommandOptions options_;
};

}  // namespace

std::unique_ptr<Command> NewGcCommand() { return std::make_unique<GcCommand>(); }

}  // namespace reshard::cli
