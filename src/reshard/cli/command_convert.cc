#include "reshard/cli/command_convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reshard/cli/interrupt.h"
#include "reshard/cli/json.h"
#include "reshard/cli/new_directory.h"
#include "reshard/cli/open_path.h"
#include "reshard/cli/progress_bar.h"
#include "reshard/cli/text.h"
#include "reshard/engine/convert.h"
#include "reshard/storage/memory_storage.h"
#include "reshard/storage/posix_storage.h"

namespace reshard::cli {
namespace {

constexpr std::size_t kMostNamed = 4;
constexpr int kMostRanks = 4096;

struct ConvertCommandOptions {
  std::string source;
  std::string destination;
  std::string format;
  std::string memory = "512MiB";
  ConvertOptions engine;
  bool json = false;
};

Json ToJson(const ConvertCommandOptions& options, const ConvertReport& report) {
  return {{"source", options.source},          {"destination", options.destination},
          {"format", options.format},          {"unique_id", report.unique_id},
          {"dry_run", options.engine.dry_run}, {"ranks", report.ranks},
          {"tensors", report.tensors},         {"aliases", report.aliases},
          {"objects", report.objects},         {"bytes", report.bytes},
          {"bytes_read", report.bytes_read},   {"digests_equal", report.digests_equal},
          {"digests_new", report.digests_new}, {"unverified", report.unverified},
          {"skipped", report.skipped}};
}

std::string DigestsToText(const ConvertReport& report) {
  if (report.digests_equal > 0 && report.digests_new == 0) {
    return fmt::format("{} equal to the source's", Count(report.digests_equal, "digest"));
  }
  return report.digests_equal == 0
             ? fmt::format("{} computed for the first time", Count(report.digests_new, "digest"))
             : fmt::format("{} equal to the source's, {} computed for the first time",
                           Count(report.digests_equal, "digest"), report.digests_new);
}

std::string ToText(const ConvertCommandOptions& options, const ConvertReport& report) {
  const std::string what =
      fmt::format("{} and {}, {}, as {} of {}", Count(report.tensors, "tensor"),
                  Count(report.objects, "object"), HumanBytes(report.bytes), options.format,
                  Count(static_cast<std::uint64_t>(report.ranks), "rank"));
  const std::string place = fmt::format("{}@{}", Printable(options.destination), report.unique_id);
  return options.engine.dry_run ? fmt::format("{}: would have {}\n", place, what)
                                : fmt::format("{}: {}; {}\n", place, what, DigestsToText(report));
}

class ConvertCommand final : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText command_text = {
        "convert",
        "write a checkpoint again, in another format or for another number of ranks",
        {"Reads SRC once, verified where it has checksums, and writes a new checkpoint into DST "
         "through buffers of bounded size. With --ranks N every tensor is cut along its first axis "
         "over N ranks, as Shard(0) does; without it there is one rank, or as many as the values "
         "that differ by rank need. Tensors that share their bytes, nesting and objects are kept, "
         "and so is the id, except that Paddle's format always gets id 0.",
         "Before the new checkpoint is committed, the digests of all tensors are compared with "
         "those of the source. When anything fails, or is interrupted, nothing of it is left, and "
         "a DST that was not there before is gone again.",
         "A source in which something is missing or damaged is refused; --exclude leaves tensors "
         "out."},
        {{"reshard convert run7/ckpt@3 run7/whole --to native",
          "one file that every reader of "
          "safetensors opens"},
         {"reshard convert --ranks 8 --memory 2GiB run7/ckpt run8/start --to native",
          "the rows over eight files"},
         {"reshard convert run7/ckpt params --to native --include 'model.*'", "the weights only"}},
        "the checkpoint was written; with --dry-run: it could be",
        "there is no such snapshot, it is damaged, or no key matches",
        "DST holds a checkpoint already, could not read or write, or wrong usage"};
    return command_text;
  }

  void AddOptions(CLI::App& app) override {
    app.add_option("src", options_.source, "Checkpoint to read, or DIR@ID for one snapshot")
        ->required();
    app.add_option("dst", options_.destination, "Directory of the new one, made when missing")
        ->required();
    app.add_option("--to", options_.format,
                   "Format to write: native, safetensors, paddle or paddle:RELEASE")
        ->type_name("FORMAT")
        ->required();
    app.add_option("--ranks", options_.engine.ranks, "Cut the tensors over N ranks")
        ->type_name("N")
        ->check(CLI::Range(1, kMostRanks));
    app.add_option("--memory", options_.memory, "Buffers take at most so much (default: 512MiB)")
        ->type_name("SIZE");
    AddSelection(app);
    app.add_flag("--dry-run", options_.engine.dry_run, "Check, and say what would be written");
    app.add_flag("--overwrite,--force", options_.engine.overwrite,
                 "DST may hold a checkpoint: replace the snapshot of the same id");
    app.add_flag("--json", options_.json, "Print one line of JSON");
  }

  Result<ExitCode> Run(Console& console) override {
    RESHARD_TRY(CheckFormat());
    RESHARD_TRY_ASSIGN(options_.engine.memory_bytes, ParseSize(options_.memory));
    RESHARD_TRY_ASSIGN(const OpenedPath opened, OpenCheckpoint(options_.source));
    RESHARD_TRY_ASSIGN(const OpenedCheckpoint checkpoint, opened.Read());
    RESHARD_TRY_ASSIGN(const ConvertReport report, ConvertTo(opened, checkpoint, console));
    console.Out(options_.json ? Line(ToJson(options_, report)) : ToText(options_, report));
    Remark(checkpoint, report, console);
    return ExitCode::kYes;
  }

 private:
  void AddSelection(CLI::App& app) {
    const auto patterns = [&app](const char* name, std::vector<std::string>& into,
                                 const char* what) {
      app.add_option(name, into, what)->type_name("GLOB")->expected(1)->take_all();
    };
    patterns("--include", options_.engine.include,
             "Convert only keys that match the shell pattern; may be given again");
    patterns("--exclude", options_.engine.exclude,
             "Leave out keys that match the shell pattern; may be given again");
    app.add_flag("--skip-unsupported", options_.engine.skip_unsupported,
                 "Leave out what FORMAT cannot hold, instead of refusing");
  }

  Status CheckFormat() {
    const std::string name = options_.format.substr(0, options_.format.find(':'));
    if (options_.format != "native" && options_.format != "safetensors" && name != "paddle") {
      return MakeError(
          ErrorCode::kInvalidArgument, "USAGE",
          fmt::format(
              "'{}' is no format to write\nwrite --to native, --to safetensors, --to paddle "
              "or --to paddle:RELEASE",
              Printable(options_.format)));
    }
    options_.engine.format = options_.format;
    return OkStatus();
  }

  Result<ConvertReport> ConvertTo(const OpenedPath& opened, const OpenedCheckpoint& checkpoint,
                                  const Console& console) {
    NewDirectory directory(options_.destination);
    std::unique_ptr<Storage> destination;
    if (options_.engine.dry_run && directory.is_new()) {
      destination = NewMemoryStorage();
    } else {
      PosixStorageOptions posix;
      posix.create = !options_.engine.dry_run;
      RESHARD_TRY_ASSIGN(destination, OpenPosixStorage(options_.destination, posix));
    }
    const InterruptGuard guard;
    const SystemClock clock;
    ProgressBar bar(console, clock, "convert");
    options_.engine.progress = [&bar](const Progress& progress) {
      bar.Update(progress);
      return InterruptGuard::Check();
    };
    Result<ConvertReport> report = Convert({checkpoint.catalog, *opened.storage, checkpoint.faults},
                                           *destination, options_.engine);
    if (!report.ok() && report.error().reason == "INTERRUPTED") {
      RESHARD_TRY(InterruptGuard::Check());  // without the rank that noticed it
    }
    if (!report.ok() && report.error().reason == "UNSUPPORTED_BY_FORMAT") {
      report.error().message += "\npass --skip-unsupported to leave them out, or write --to native";
    }
    if (report.ok() && !options_.engine.dry_run) {
      directory.Keep();
    }
    return report;
  }

  static void Remark(const OpenedCheckpoint& checkpoint, const ConvertReport& report,
                     Console& console) {
    for (const std::string& note : checkpoint.notes) {
      console.Message("note: " + Printable(note));
    }
    if (!report.skipped.empty()) {
      const std::size_t shown = std::min(report.skipped.size(), kMostNamed);
      console.Message(
          Printable(fmt::format("note: left out {} that the format cannot hold: {}{}",
                                Count(report.skipped.size(), "key"),
                                fmt::join(report.skipped.begin(),
                                          report.skipped.begin() + static_cast<long>(shown), "; "),
                                shown < report.skipped.size() ? "; ..." : "")));
    }
    if (report.unverified > 0) {
      console.Message(fmt::format(
          "note: the source has no checksums of {}: their digests are those of the bytes that were "
          "read",
          Count(report.unverified, "tensor")));
    }
  }

  ConvertCommandOptions options_;
};

}  // namespace

std::unique_ptr<Command> NewConvertCommand() { return std::make_unique<ConvertCommand>(); }

}  // namespace reshard::cli
