#include "reshard/cli/open_path.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "reshard/cli/text.h"
#include "reshard/engine/places.h"
#include "reshard/engine/snapshot.h"
#include "reshard/format/native/names.h"
#include "reshard/storage/posix_storage.h"

namespace reshard::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostNamed = 3;

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

std::vector<std::string> NamesIn(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  return names;
}

/// What to do about a path that does not exist: the nearest one that does.
std::string SuggestPath(const std::string& text) {
  fs::path path = fs::path(text).lexically_normal();
  if (!path.has_filename()) {
    path = path.parent_path();
  }
  fs::path missing = path;
  fs::path parent = path.parent_path();
  while (!parent.empty() && parent != parent.parent_path() && !Exists(parent.string())) {
    missing = parent;
    parent = parent.parent_path();
  }
  const fs::path looked = parent.empty() ? fs::path(".") : parent;
  const std::optional<std::string> near = Nearest(missing.filename().string(), NamesIn(looked));
  if (near) {
    return fmt::format("did you mean {}?", Printable((parent / *near).string()));
  }
  return fmt::format("{} exists, but nothing of that name in it; check the path",
                     Printable(looked.string()));
}

Error NoSuchPath(const std::string& path) {
  const std::size_t at = path.rfind('@');
  if (at != std::string::npos && at > 0 && Exists(path.substr(0, at))) {
    return {ErrorCode::kInvalidArgument, "NO_SUCH_PATH",
            fmt::format("{}: '{}' is no snapshot id\nthe id must be a number, without leading "
                        "zeros: `reshard info {}` lists them",
                        Printable(path), Printable(path.substr(at + 1)),
                        Printable(path.substr(0, at)))};
  }
  return {ErrorCode::kInvalidArgument, "NO_SUCH_PATH",
          fmt::format("{}: no such directory\n{}", Printable(path), SuggestPath(path))};
}

Error NotADirectory(const std::string& path) {
  const fs::path file(path);
  const std::string directory = file.has_parent_path() ? file.parent_path().string() : ".";
  const std::optional<native::Name> name = native::ParseName(file.filename().string());
  return {ErrorCode::kInvalidArgument, "NOT_A_DIRECTORY",
          name ? fmt::format("{}: a file of a checkpoint, not its directory\ndid you mean {}@{}?",
                             Printable(path), Printable(directory), name->unique_id)
               : fmt::format("{}: a file that is no checkpoint\nname the directory of a checkpoint",
                             Printable(path))};
}

/// Directories below that hold snapshots, the newest first, a few.
std::vector<std::string> CheckpointsBelow(const std::string& path) {
  std::vector<std::string> found;
  const Result<Places> places = FindPlaces(path);
  if (!places.ok()) {
    return found;
  }
  for (auto at = places->paths.rbegin(); at != places->paths.rend(); ++at) {
    const Result<std::unique_ptr<Storage>> storage = places->open(*at);
    if (!storage.ok()) {
      continue;
    }
    const Result<CheckpointList> list = ListCheckpoints(**storage);
    if (list.ok() && !list->empty()) {
      found.push_back(Printable(*at));
      if (found.size() == kMostNamed) {
        break;
      }
    }
  }
  return found;
}

Error NoSnapshot(const std::string& path, const CheckpointList& list) {
  const std::string name = Printable(path);
  if (!list.unknown.empty()) {
    return {ErrorCode::kUnsupported, "FOREIGN_FORMAT",
            fmt::format("{}: holds '{}', which belongs to no checkpoint that can be read\nthis "
                        "version reads native, Paddle and safetensors checkpoints; if it is one of "
                        "Paddle's, its metadata is missing: the save did not finish",
                        name, Printable(list.unknown))};
  }
  const std::vector<std::string> below = CheckpointsBelow(path);
  if (!below.empty()) {
    return {ErrorCode::kNotFound, "NO_SNAPSHOT",
            fmt::format("{}: no checkpoint here, but below it: {}\nname one of them; `reshard "
                        "latest {}` prints the newest complete one",
                        name, fmt::join(below, ", "), name)};
  }
  return {
      ErrorCode::kNotFound, "NO_SNAPSHOT",
      fmt::format("{}: no checkpoint in it or below\ncheck the path; a save that did not finish "
                  "leaves none",
                  name)};
}

Error NoSuchId(const std::string& path, std::uint64_t id, const CheckpointList& list) {
  return {ErrorCode::kNotFound, "NO_SNAPSHOT",
          fmt::format("{}: no snapshot {} in it\nit holds {}: write {}@{}", Printable(path), id,
                      IdsText(list.ids), Printable(path), list.ids.back())};
}

Error EmptyPath() {
  return {ErrorCode::kInvalidArgument, "NO_SUCH_PATH",
          "the path is empty\nname a checkpoint directory; is a variable of a script not set?"};
}

/// Data files of a snapshot that has no commit record.
std::optional<Error> LostRecord(const std::string& path, Storage& storage) {
  const Result<DirectoryView> view = ViewDirectory(storage);
  if (!view.ok()) {
    return std::nullopt;
  }
  for (auto at = view->ids.rbegin(); at != view->ids.rend(); ++at) {
    if (at->second.last_attempt && !at->second.committed) {
      return Error{ErrorCode::kNotFound, "NO_SNAPSHOT",
                   fmt::format("{}: no checkpoint, but files of snapshot {} without its commit "
                               "record {}\nthe save did not finish, or the record was lost: "
                               "restore it from a copy, and do not run gc before you know",
                               Printable(path), at->first, native::CatalogName(at->first))};
    }
  }
  return std::nullopt;
}

Error Explain(Error error, const std::string& path) {
  if (error.reason == "DIRECTORY_MISSING") {
    return NoSuchPath(path);
  }
  return error.reason == "NOT_A_DIRECTORY" ? NotADirectory(path) : std::move(error);
}

}  // namespace

Result<OpenedCheckpoint> OpenedPath::Read() const {
  Result<OpenedCheckpoint> opened = ReadCheckpoint(*storage, unique_id());
  if (!opened.ok() && opened.error().code == ErrorCode::kCorruption) {
    opened.error().message += fmt::format(
        "\n`reshard verify {}` lists every fault of its snapshots; load one that is "
        "whole, or restore from a copy",
        Printable(argument.path));
  }
  return opened;
}

Status CheckDirectory(const std::string& path) {
  if (path.empty()) {
    return tl::unexpected<Error>(EmptyPath());
  }
  if (const PathArgument argument = ParsePath(path); argument.unique_id) {
    return MakeError(ErrorCode::kInvalidArgument, "USAGE",
                     fmt::format("{}: this command takes a directory, without @ID\nwrite {}",
                                 Printable(path), Printable(argument.path)));
  }
  Result<std::unique_ptr<Storage>> storage = OpenPosixStorage(path);
  if (!storage.ok()) {
    return tl::unexpected<Error>(Explain(std::move(storage).error(), path));
  }
  return OkStatus();
}

Result<OpenedPath> OpenCheckpoint(const std::string& text) {
  if (text.empty()) {
    return tl::unexpected<Error>(EmptyPath());
  }
  OpenedPath out;
  out.argument = ParsePath(text);
  const std::string& path = out.argument.path;
  Result<std::unique_ptr<Storage>> storage = OpenPosixPath(path);
  if (!storage.ok()) {
    return tl::unexpected<Error>(Explain(std::move(storage).error(), path));
  }
  out.storage = std::move(*storage);
  RESHARD_TRY_ASSIGN(out.list, ListCheckpoints(*out.storage));
  std::error_code error;
  const bool is_file = fs::is_regular_file(path, error);
  if (is_file && (out.list.empty() || out.list.native())) {
    return tl::unexpected<Error>(NotADirectory(path));
  }
  if (out.list.empty()) {
    if (auto lost = LostRecord(path, *out.storage)) {
      return tl::unexpected<Error>(std::move(*lost));
    }
    return tl::unexpected<Error>(NoSnapshot(path, out.list));
  }
  if (out.argument.unique_id && !out.list.Has(*out.argument.unique_id)) {
    return tl::unexpected<Error>(NoSuchId(path, *out.argument.unique_id, out.list));
  }
  return out;
}

void ReportFaults(const OpenedCheckpoint& checkpoint, const std::string& path, Console& console) {
  for (const std::string& note : checkpoint.notes) {
    console.Message("note: " + Printable(note));
  }
  if (checkpoint.faults.empty()) {
    return;
  }
  std::size_t keys = 0;
  for (const ForeignFault& fault : checkpoint.faults) {
    keys += fault.keys.size();
  }
  console.Message(fmt::format(
      "warning: {} cannot be read: {}; `reshard verify {}` lists every fault",
      Count(keys, "tensor"), Printable(checkpoint.faults.front().error.message), Printable(path)));
}

}  // namespace reshard::cli
