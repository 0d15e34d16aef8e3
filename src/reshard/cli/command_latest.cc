#include "reshard/cli/command_latest.h"

#include <fmt/format.h>

#include "reshard/cli/json.h"
#include "reshard/cli/open_path.h"
#include "reshard/cli/text.h"
#include "reshard/engine/latest.h"

namespace reshard::cli {
namespace {

struct LatestOptions {
  std::string directory;
  bool json = false;
};

/// The form that other commands take.
std::string ArgumentOf(const Latest& latest) {
  return latest.only_one ? latest.newest->path : ToString(*latest.newest);
}

Json ToJson(const Latest& latest) {
  Json skipped = Json::array();
  for (const SkippedSnapshot& newer : latest.skipped) {
    Json entry = {{"path", newer.snapshot.path}, {"unique_id", newer.snapshot.unique_id}};
    entry.update(cli::ToJson(newer.why));
    skipped.push_back(std::move(entry));
  }
  if (!latest.newest) {
    return {{"latest", nullptr}, {"path", nullptr}, {"unique_id", nullptr}, {"skipped", skipped}};
  }
  return {{"latest", ArgumentOf(latest)},
          {"path", latest.newest->path},
          {"unique_id", latest.newest->unique_id},
          {"skipped", skipped}};
}

class LatestCommand final : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText command_text = {
        "latest",
        "print the newest complete checkpoint in a directory or below it",
        {"Prints one line: the path of the newest complete checkpoint in DIR or below it, as every "
         "other command takes it (PATH, or PATH@ID where the directory holds several snapshots). "
         "Newest goes by the numbers in folder names, compared as numbers (step-9 before step-10), "
         "then by snapshot id; never by time. Complete means that the catalog is whole and every "
         "data file is there with the size and head that it records; the tensors' bytes are not "
         "read: `reshard verify` does that. A newer one that is not complete is passed over with a "
         "warning.",
         "If anything cannot be read on the way, it exits with 2 and prints nothing, so that a job "
         "never starts from an old checkpoint, or from scratch, because of a disk that hangs. "
         "Directories whose names begin with '.', lost+found, and symlinks are not entered."},
        {{"reshard latest run7", "the checkpoint to resume from"},
         {"mkdir -p run7; ckpt=$(reshard latest run7) || [ $? -eq 1 ] || exit 2",
          "in a job script: empty when there is none yet, stop when that could not be found out"},
         {"reshard latest --json run7", "with what was passed over"}},
        "printed",
        "there is no complete checkpoint",
        "could not find out (an I/O error, no such directory), or wrong usage"};
    return command_text;
  }

  void AddOptions(CLI::App& app) override {
    app.add_option("dir", options_.directory, "Where the run keeps its checkpoints")->required();
    app.add_flag("--json", options_.json, "Print one line of JSON");
  }

  Result<ExitCode> Run(Console& console) override {
    RESHARD_TRY(CheckDirectory(options_.directory));
    Result<Latest> latest = FindLatest(options_.directory);
    if (!latest.ok()) {
      // Whatever the code: this is no "none found".
      Error error = std::move(latest).error();
      console.Failure(error);
      return ExitCode::kFailed;
    }
    for (const SkippedSnapshot& newer : latest->skipped) {
      console.Message(fmt::format("warning: {} is not complete, passed over: {}",
                                  Printable(ToString(newer.snapshot)),
                                  Printable(newer.why.message)));
    }
    if (options_.json) {
      console.Out(Line(ToJson(*latest)));
    } else if (latest->newest) {
      console.Out(ArgumentOf(*latest) + "\n");
    }
    if (latest->newest) {
      return ExitCode::kYes;
    }
    for (const std::string& path : latest->foreign) {
      console.Message(
          fmt::format("warning: {} holds a checkpoint of another format", Printable(path)));
    }
    console.Message(fmt::format("no complete checkpoint in {} or below", options_.directory));
    return ExitCode::kNo;
  }

 private:
  LatestOptions options_;
};

}  // namespace

std::unique_ptr<Command> NewLatestCommand() { return std::make_unique<LatestCommand>(); }

}  // namespace reshard::cli
