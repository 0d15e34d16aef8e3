#include "reshard/cli/command_convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reshard/cli/address_space.h"
#include "reshard/cli/interrupt.h"
#include "reshard/cli/json.h"
#include "reshard/cli/new_directory.h"
#include "reshard/cli/open_path.h"
#include "reshard/cli/progress_bar.h"
#include "reshard/cli/text.h"
#include "reshard/engine/convert.h"
#include "reshard/engine/save_format.h"
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
  std::string mesh;
  std::vector<std::string> placements;
  std::vector<std::string> dtypes;
  std::string max_file_size;
  std::string memory = "512MiB";
  ConvertOptions engine;
  bool json = false;
};

Json ToJson(const CastOverflow& overflow) {
  return {{"key", overflow.key},
          {"from", Info(overflow.from).name},
          {"to", Info(overflow.to).name},
          {"elements", overflow.elements}};
}

Json ToJson(const ConvertCommandOptions& options, const ConvertReport& report) {
  Json overflows = Json::array();
  for (const CastOverflow& overflow : report.overflows) {
    overflows.push_back(ToJson(overflow));
  }
  return {{"source", options.source},
          {"destination", options.destination},
          {"format", options.format},
          {"unique_id", report.unique_id},
          {"dry_run", options.engine.dry_run},
          {"ranks", report.ranks},
          {"tensors", report.tensors},
          {"aliases", report.aliases},
          {"objects", report.objects},
          {"bytes", report.bytes},
          {"bytes_read", report.bytes_read},
          {"digests_equal", report.digests_equal},
          {"digests_new", report.digests_new},
          {"unverified", report.unverified},
          {"digests_cast", report.digests_cast},
          {"overflows", std::move(overflows)},
          {"skipped", report.skipped}};
}

std::string DigestsToText(const ConvertReport& report) {
  std::vector<std::string> parts;
  const auto add = [&parts](std::uint64_t number, std::string_view what) {
    if (number > 0) {
      parts.push_back(fmt::format(
          "{} {}", parts.empty() ? Count(number, "digest") : fmt::format("{}", number), what));
    }
  };
  add(report.digests_equal, "equal to the source's");
  add(report.digests_new, "computed for the first time");
  add(report.digests_cast, "new with the dtype");
  return parts.empty() ? "no digests to compare" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string ToText(const ConvertCommandOptions& options, const ConvertReport& report) {
  const auto ranks = static_cast<std::uint64_t>(report.ranks);
  const std::string what =
      fmt::format("{} and {}, {}, as {} {}", Count(report.tensors, "tensor"),
                  Count(report.objects, "object"), HumanBytes(report.bytes), options.format,
                  report.whole ? "in " + Count(ranks, "file") : "of " + Count(ranks, "rank"));
  const std::string place = fmt::format("{}@{}", Printable(options.destination), report.unique_id);
  return options.engine.dry_run ? fmt::format("{}: would have {}\n", place, what)
                                : fmt::format("{}: {}; {}\n", place, what, DigestsToText(report));
}

/// "GLOB=WHAT" at the last '=', which WHAT never has; without one the pattern is empty.
std::pair<std::string, std::string> SplitRule(const std::string& rule) {
  const std::size_t at = rule.rfind('=');
  return at == std::string::npos ? std::pair(std::string(), rule)
                                 : std::pair(rule.substr(0, at), rule.substr(at + 1));
}

class ConvertCommand final : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText command_text = {
        "convert",
        "write a checkpoint again: another format, other ranks, other dtypes",
        {"Reads SRC once, verified where it has checksums, and writes a new checkpoint into DST "
         "through buffers of bounded size. With --ranks N every tensor is cut along its first axis "
         "over N ranks, as Shard(0) does; without it there is one rank, or as many as the values "
         "that differ by rank need. Tensors that share their bytes, nesting and objects are kept "
         "where FORMAT can hold them, and so is the id, except that Paddle's format always gets "
         "id 0.",
         "--mesh dp=2,tp=4 stands for ranks in a mesh, eight here, numbered so that the last axis "
         "counts fastest. --placement 'GLOB=P,P' says what each axis of the mesh does for the keys "
         "that match: replicate, or shard(AXIS) of the tensor (-1: its last). The first rule that "
         "matches counts; tensors without one are cut as by --ranks 8, and tensors without axes "
         "are always whole. What several ranks hold is stored once.",
         "--dtype DTYPE converts all floating-point tensors, but those of 4 and 6 bits; --dtype "
         "GLOB=DTYPE those whose keys match and comes first, the first such rule that matches. "
         "Values are rounded to nearest, ties to even, and NaN stays NaN. Finite values too large "
         "for DTYPE become infinity, or NaN where it has none: a warning counts them for each "
         "tensor. A rule that decides nothing is an error.",
         "A format that stores tensors whole writes one file, or with --max-file-size as many as "
         "it takes, in the order of the keys; a larger tensor has a file of its own.",
         "Before the new checkpoint is committed, the digests of all tensors that keep their dtype "
         "are compared with those of the source. When anything fails, or is interrupted, nothing "
         "of it is left, and a DST that was not there before is gone again.",
         "A source in which something is missing or damaged is refused; --exclude leaves tensors "
         "out."},
        {{"reshard convert run7/ckpt@3 run7/whole --to native",
          "one file that every reader of safetensors opens"},
         {"reshard convert --ranks 8 --memory 2GiB run7/ckpt run8/start --to native",
          "the rows over eight files"},
         {"reshard convert run7/ckpt run8/start --to paddle --mesh dp=2,tp=4 --placement "
          "'*.qkv.*=replicate,shard(1)' --placement '*=replicate,shard(0)'",
          "as four-way tensor parallelism will load it"},
         {"reshard convert run7/ckpt params --to native --include 'model.*' --dtype bfloat16 "
          "--dtype '*.norm.*=float32'",
          "the weights only, all but the norms in bfloat16"},
         {"reshard convert --dry-run run7/ckpt x --to paddle:3.1 --skip-unsupported",
          "what would be left out"}},
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
                   "Format to write: native, safetensors, paddle[:RELEASE] or torch[:RELEASE]")
        ->type_name("FORMAT")
        ->required();
    AddLayout(app);
    app.add_option("--memory", options_.memory, "Buffers take at most so much (default: 512MiB)")
        ->type_name("SIZE");
    AddSelection(app);
    app.add_flag("--dry-run", options_.engine.dry_run, "Check, and say what would be written");
    app.add_flag("--overwrite,--force", options_.engine.overwrite,
                 "DST may hold a checkpoint: replace the snapshot of the same id");
    app.add_flag("--json", options_.json, "Print one line of JSON");
  }

  Result<ExitCode> Run(Console& console) override {
    SaveAddressSpace();
    options_.engine.format = options_.format;
    RESHARD_TRY(CheckFormat());
    RESHARD_TRY_ASSIGN(options_.engine.memory_bytes, ParseSize(options_.memory));
    RESHARD_TRY(ReadLayout());
    RESHARD_TRY_ASSIGN(const OpenedPath opened, OpenCheckpoint(options_.source));
    RESHARD_TRY_ASSIGN(const OpenedCheckpoint checkpoint, opened.Read());
    RESHARD_TRY_ASSIGN(const ConvertReport report, ConvertTo(opened, checkpoint, console));
    console.Out(options_.json ? Line(ToJson(options_, report)) : ToText(options_, report));
    Remark(checkpoint, report, console);
    return ExitCode::kYes;
  }

 private:
  void AddLayout(CLI::App& app) {
    app.add_option("--ranks", options_.engine.layout.ranks, "Cut the tensors over N ranks")
        ->type_name("N")
        ->check(CLI::Range(1, kMostRanks));
    app.add_option("--mesh", options_.mesh, "Ranks as a mesh, such as dp=2,tp=4")
        ->type_name("NAME=N,...");
    app.add_option("--placement", options_.placements,
                   "What each axis of the mesh does to matching tensors; may be given again")
        ->type_name("GLOB=P,...")
        ->expected(1)
        ->take_all();
    app.add_option("--max-file-size", options_.max_file_size,
                   "Divide whole tensors among files of at most so much")
        ->type_name("SIZE");
    app.add_option("--dtype", options_.dtypes,
                   "Convert floating-point tensors, matching ones or all; may be given again")
        ->type_name("[GLOB=]DTYPE")
        ->expected(1)
        ->take_all();
  }

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
                 "Leave out what FORMAT cannot hold, or cannot be read, instead of refusing");
  }

  /// Before anything is opened.
  Status CheckFormat() const {
    Result<std::unique_ptr<SaveFormat>> format = FindSaveFormat(options_.format);
    if (format.ok() || format.error().reason != "BAD_FORMAT") {
      return format.ok() ? OkStatus() : Status(tl::unexpected<Error>(std::move(format).error()));
    }
    return MakeError(ErrorCode::kInvalidArgument, "USAGE",
                     fmt::format("{}\nname one of them after --to, such as --to native",
                                 Printable(format.error().message)));
  }

  Status ReadLayout() {
    LayoutOptions& layout = options_.engine.layout;
    if (!options_.mesh.empty()) {
      RESHARD_TRY_ASSIGN(layout.mesh, InOption("--mesh", ProcessMesh::Parse(options_.mesh)));
    }
    for (const std::string& rule : options_.placements) {
      const auto [pattern, text] = SplitRule(rule);
      if (pattern.empty()) {
        return MakeError(ErrorCode::kInvalidArgument, "USAGE",
                         fmt::format("--placement '{}' names no keys\nwrite GLOB=PLACEMENTS, such "
                                     "as '*.weight=replicate,shard(1)'",
                                     Printable(rule)));
      }
      RESHARD_TRY_ASSIGN(std::vector<Placement> placements,
                         InOption("--placement", ParsePlacements(text)));
      layout.placements.push_back({pattern, std::move(placements)});
    }
    for (const std::string& rule : options_.dtypes) {
      const auto [pattern, text] = SplitRule(rule);
      RESHARD_TRY_ASSIGN(const DType dtype, InOption("--dtype", DTypeFromName(text)));
      if (!pattern.empty()) {
        layout.dtypes.push_back({pattern, dtype});
      } else if (layout.dtype) {
        return MakeError(ErrorCode::kInvalidArgument, "USAGE",
                         "--dtype is given twice for all tensors\nwrite GLOB=DTYPE for some");
      } else {
        layout.dtype = dtype;
      }
    }
    if (!options_.max_file_size.empty()) {
      RESHARD_TRY_ASSIGN(layout.max_file_bytes,
                         InOption("--max-file-size", ParseSize(options_.max_file_size)));
    }
    return OkStatus();
  }

  /// The result, its error with the option's name.
  template <typename T>
  static Result<T> InOption(std::string_view option, Result<T> result) {
    if (!result.ok()) {
      return tl::unexpected<Error>(result.error().WithContext(option));
    }
    return result;
  }

  Result<ConvertReport> ConvertTo(const OpenedPath& opened, const OpenedCheckpoint& checkpoint,
                                  const Console& console) {
    NewDirectory directory(options_.destination);
    std::unique_ptr<Storage> destination;
    if (options_.engine.dry_run && directory.is_new()) {
      destination = NewMemoryStorage();
    } else {
      PosixStorageOptions posix;
      posix.foreign_names = true;  // PyTorch's ".metadata"
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
    if (!report.ok() && (report.error().reason == "UNSUPPORTED_BY_FORMAT" ||
                         report.error().reason == "UNSUPPORTED_SOURCE")) {
      const bool native_helps =
          report.error().reason == "UNSUPPORTED_BY_FORMAT" && options_.engine.format != "native";
      report.error().message += fmt::format("\npass --skip-unsupported to leave them out{}",
                                            native_helps ? ", or write --to native" : "");
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
    WarnOfOverflows(report, console);
    if (!report.skipped.empty()) {
      const std::size_t shown = std::min(report.skipped.size(), kMostNamed);
      console.Message(
          Printable(fmt::format("note: left out {} that cannot be read, or not be held: {}{}",
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

  static void WarnOfOverflows(const ConvertReport& report, Console& console) {
    for (std::size_t i = 0; i < std::min(report.overflows.size(), kMostNamed); ++i) {
      const CastOverflow& one = report.overflows[i];
      console.Message(Printable(
          fmt::format("warning: '{}': {} of {} too large for {}, now infinity or NaN", one.key,
                      Count(one.elements, "value"), Info(one.from).name, Info(one.to).name)));
    }
    if (report.overflows.size() > kMostNamed) {
      console.Message(fmt::format("warning: and {} more with such values; --json lists all",
                                  Count(report.overflows.size() - kMostNamed, "tensor")));
    }
  }

  ConvertCommandOptions options_;
};

}  // namespace

std::unique_ptr<Command> NewConvertCommand() { return std::make_unique<ConvertCommand>(); }

}  // namespace reshard::cli
