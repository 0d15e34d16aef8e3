#include "reshard/cli/command_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reshard/cli/json.h"
#include "reshard/cli/open_path.h"
#include "reshard/cli/text.h"
#include "reshard/engine/complete.h"
#include "reshard/engine/snapshot.h"

namespace reshard::cli {
namespace {

/// Most ids that are listed.
constexpr std::size_t kMostIds = 6;

struct InfoOptions {
  std::string path;
  bool json = false;
};

struct DTypeTotal {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

/// What info prints.
struct Summary {
  CatalogInfo info;
  std::vector<std::uint64_t> ids;
  std::uint64_t tensors = 0;
  std::uint64_t aliases = 0;
  std::uint64_t bytes = 0;
  std::uint64_t chunks = 0;
  std::map<DType, DTypeTotal> dtypes;
  std::uint64_t files = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t objects = 0;
  bool has_checksums = true;
  std::optional<Error> problem;
};

Summary Summarize(const Catalog& catalog) {
  Summary out;
  out.info = catalog.info();
  out.tensors = catalog.num_tensors();
  out.chunks = catalog.num_chunks();
  for (TensorId tensor = 0; tensor < catalog.num_tensors(); ++tensor) {
    DTypeTotal& total = out.dtypes[catalog.dtype(tensor)];
    ++total.tensors;
    if (catalog.alias_of(tensor) != tensor) {
      ++out.aliases;
      continue;
    }
    total.bytes += catalog.num_bytes(tensor);
    out.bytes += catalog.num_bytes(tensor);
  }
  out.files = catalog.files().size();
  for (const FileEntry& file : catalog.files()) {
    out.file_bytes += file.size;
  }
  for (std::size_t i = 0; i < catalog.num_objects(); ++i) {
    const bool new_key = i == 0 || catalog.object_key(i) != catalog.object_key(i - 1);
    out.objects += new_key ? 1 : 0;
  }
  return out;
}

Json ToJson(const std::string& path, const Summary& s) {
  Json dtypes = Json::array();
  for (const auto& [dtype, total] : s.dtypes) {
    dtypes.push_back(
        {{"dtype", Info(dtype).name}, {"tensors", total.tensors}, {"bytes", total.bytes}});
  }
  return {{"path", path},
          {"format", s.info.format},
          {"unique_id", s.info.unique_id},
          {"attempt", s.info.attempt},
          {"ids", s.ids},
          {"world_size", s.info.world_size},
          {"coordinator_rank", s.info.coordinator_rank},
          {"tensors", s.tensors},
          {"aliases", s.aliases},
          {"bytes", s.bytes},
          {"chunks", s.chunks},
          {"dtypes", std::move(dtypes)},
          {"files", s.files},
          {"file_bytes", s.file_bytes},
          {"objects", s.objects},
          {"checksums", s.has_checksums},
          {"complete", !s.problem.has_value()},
          {"problem", s.problem ? cli::ToJson(*s.problem) : Json(nullptr)}};
}

/// "7, the only one", "1 of 0, 1, 3", "119, the newest of 120".
std::string SnapshotText(const Summary& s) {
  const std::uint64_t id = s.info.unique_id;
  if (s.ids.size() == 1) {
    return fmt::format("{}, the only one", id);
  }
  return s.ids.size() > kMostIds && id == s.ids.back()
             ? fmt::format("{}, the newest of {}", id, s.ids.size())
             : fmt::format("{} of {}", id, IdsText(s.ids));
}

std::string ToText(const std::string& path, const Summary& s) {
  std::string out;
  const auto line = [&out](std::string_view name, std::string_view value) {
    out += fmt::format("{:<12}{}\n", name, value);
  };
  line("checkpoint", Printable(path));
  line("format", Printable(s.info.format));
  line("snapshot", SnapshotText(s));
  if (s.info.kind == CatalogKind::kSnapshot) {
    line("saved by", fmt::format("{}, coordinator rank {}", Count(s.info.world_size, "rank"),
                                 s.info.coordinator_rank));
  }
  line("tensors",
       fmt::format("{} in {}, {}", s.tensors, Count(s.chunks, "chunk"), HumanBytes(s.bytes)));
  for (const auto& [dtype, total] : s.dtypes) {
    line("", fmt::format("{} {}, {}", total.tensors, Info(dtype).name, HumanBytes(total.bytes)));
  }
  if (s.aliases > 0) {
    line("", fmt::format("{} of them stored under another name", s.aliases));
  }
  line("files", fmt::format("{}, {}", s.files, HumanBytes(s.file_bytes)));
  line("objects", std::to_string(s.objects));
  const bool native = s.info.kind == CatalogKind::kSnapshot;
  if (!native) {
    line("checksums", s.has_checksums ? "yes, from the index beside it"
                                      : "none; `reshard index` writes them beside it");
  }
  line("complete", s.problem ? "no: " + Printable(s.problem->message)
                   : native  ? "yes, every file is there with its size and head"
                             : "yes, every file is there and holds what the metadata names");
  return out;
}

class InfoCommand final : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText command_text = {
        "info",
        "say what a checkpoint is",
        {"Prints the format, the snapshots, who saved it, how many tensors of which dtypes it "
         "holds "
         "and how many bytes, and whether all of its files are there. Reads the catalog and the "
         "first 4 KiB of each data file, whatever the size of the checkpoint.",
         "PATH is a checkpoint directory; its newest snapshot is shown. PATH@ID names another "
         "one."},
        {{"reshard info run7/step-100", "the newest snapshot in that directory"},
         {"reshard info run7/ckpt@3", "snapshot 3 of it"},
         {"reshard info --json run7/ckpt | jq .bytes", "one number for a script"}},
        "the snapshot is complete",
        "there is no snapshot, or a part of it is missing or damaged",
        "could not find out, or wrong usage"};
    return command_text;
  }

  void AddOptions(CLI::App& app) override {
    app.add_option("path", options_.path, "Checkpoint directory, or DIR@ID for one snapshot")
        ->required();
    app.add_flag("--json", options_.json, "Print one line of JSON");
  }

  Result<ExitCode> Run(Console& console) override {
    RESHARD_TRY_ASSIGN(const OpenedPath opened, OpenCheckpoint(options_.path));
    RESHARD_TRY_ASSIGN(const OpenedCheckpoint checkpoint, opened.Read());
    Summary summary = Summarize(checkpoint.catalog);
    summary.ids = opened.list.ids;
    summary.has_checksums = checkpoint.has_checksums;
    Result<Catalog> complete = CheckComplete(opened);
    if (!complete.ok()) {
      if (!IsIncomplete(complete.error())) {
        return tl::unexpected<Error>(std::move(complete).error());
      }
      summary.problem = std::move(complete).error();
    }
    const std::string& path = opened.argument.path;
    console.Out(options_.json ? Line(ToJson(path, summary)) : ToText(path, summary));
    if (summary.problem) {
      console.Message(fmt::format("`reshard verify {}@{}` lists every fault", Printable(path),
                                  summary.info.unique_id));
    }
    return summary.problem ? ExitCode::kNo : ExitCode::kYes;
  }

 private:
  static Result<Catalog> CheckComplete(const OpenedPath& opened) {
    const std::uint64_t id = opened.unique_id();
    if (opened.list.native()) {
      return OpenComplete(*opened.storage, id);
    }
    const auto at = std::find_if(opened.list.foreign.begin(), opened.list.foreign.end(),
                                 [id](const ForeignRef& ref) { return ref.unique_id == id; });
    return OpenComplete(*opened.storage, *at);
  }

  InfoOptions options_;
};

}  // namespace

std::unique_ptr<Command> NewInfoCommand() { return std::make_unique<InfoCommand>(); }

}  // namespace reshard::cli
