#include "reshard/cli/command_index.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "reshard/cli/json.h"
#include "reshard/cli/open_path.h"
#include "reshard/cli/progress_bar.h"
#include "reshard/cli/text.h"
#include "reshard/engine/index.h"

namespace reshard::cli {
namespace {

struct IndexCommandOptions {
  std::string path;
  std::size_t threads = 0;
  bool json = false;
};

/// One snapshot that was indexed.
struct Indexed {
  std::uint64_t unique_id = 0;
  IndexReport report;
};

Json ToJson(const std::string& path, const std::vector<Indexed>& all) {
  Json snapshots = Json::array();
  for (const Indexed& one : all) {
    snapshots.push_back({{"unique_id", one.unique_id},
                         {"index", one.report.name},
                         {"tensors", one.report.tensors},
                         {"digests", one.report.digests},
                         {"files", one.report.files},
                         {"bytes", one.report.bytes},
                         {"notes", one.report.notes}});
  }
  return {{"path", path}, {"snapshots", std::move(snapshots)}};
}

std::string ToText(const std::string& path, const Indexed& one) {
  return fmt::format("{}@{}: {} in {}, {}: wrote {}\n", Printable(path), one.unique_id,
                     Count(one.report.tensors, "tensor"), Count(one.report.files, "file"),
                     HumanBytes(one.report.bytes), Printable(one.report.name));
}

class IndexCommand final : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText command_text = {
        "index",
        "write checksums beside a checkpoint of another framework",
        {"Reads a checkpoint that Paddle wrote once, whole, and writes an index beside its "
         "metadata "
         "({id}.metadata.reshard), which Paddle ignores: where every tensor lies, the checksum of "
         "every 256 KiB block, and the digest of every tensor. From then on the checkpoint opens "
         "without its pickles being parsed, every load is verified, and `verify` and `ls` show "
         "damage and digests.",
         "An index that no longer fits (the metadata was written again) is ignored with a note. "
         "All snapshots in the directory are indexed, or one with DIR@ID. A native checkpoint has "
         "its checksums already."},
        {{"reshard index run7/step-100", "a directory that Paddle saved into"},
         {"reshard index model.pdparams", "a single file"},
         {"reshard index run7/ckpt && reshard verify run7/ckpt",
          "before a long journey, then after"}},
        "the index is written, or the checkpoint is native",
        "there is no checkpoint, or a part of it is missing or damaged",
        "could not read or write, or wrong usage"};
    return command_text;
  }

  void AddOptions(CLI::App& app) override {
    app.add_option("path", options_.path, "Checkpoint directory or file, or DIR@ID")->required();
    app.add_option("--threads", options_.threads, "Readers at once (default: cores, at most 8)")
        ->type_name("N")
        ->check(CLI::Range(1, 256));
    app.add_flag("--json", options_.json, "Print one line of JSON");
  }

  Result<ExitCode> Run(Console& console) override {
    RESHARD_TRY_ASSIGN(const OpenedPath opened, OpenCheckpoint(options_.path));
    const std::string& path = opened.argument.path;
    if (opened.list.native()) {
      console.Message(fmt::format("{} is a native checkpoint: its checksums are in its catalog",
                                  Printable(path)));
    }
    std::vector<Indexed> all;
    for (const ForeignRef& ref : opened.list.foreign) {
      if (!opened.argument.unique_id || ref.unique_id == *opened.argument.unique_id) {
        RESHARD_TRY_ASSIGN(IndexReport report, IndexOne(*opened.storage, ref, console));
        all.push_back({ref.unique_id, std::move(report)});
      }
    }
    if (options_.json) {
      console.Out(Line(ToJson(path, all)));
    }
    for (const Indexed& one : all) {
      if (!options_.json) {
        console.Out(ToText(path, one));
      }
      for (const std::string& note : one.report.notes) {
        console.Message("note: " + Printable(note));
      }
    }
    return ExitCode::kYes;
  }

 private:
  Result<IndexReport> IndexOne(Storage& storage, const ForeignRef& ref,
                               const Console& console) const {
    const SystemClock clock;
    ProgressBar bar(console, clock, "index");
    IndexOptions options;
    options.threads = options_.threads;
    options.progress = [&bar](const Progress& progress) {
      bar.Update(progress);
      return OkStatus();
    };
    return WriteIndex(storage, ref, options);
  }

  IndexCommandOptions options_;
};

}  // namespace

std::unique_ptr<Command> NewIndexCommand() { return std::make_unique<IndexCommand>(); }

}  // namespace reshard::cli
