#include "reshard/cli/open_path.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <filesystem>

#include "reshard/cli/text.h"
#include "reshard/engine/places.h"
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
               : fmt::format("{}: not a directory\nname the directory of a checkpoint",
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
    const Result<DirectoryView> view = ViewDirectory(**storage);
    if (view.ok() && view->newest()) {
      found.push_back(Printable(*at));
      if (found.size() == kMostNamed) {
        break;
      }
    }
  }
  return found;
}

Error NoSnapshot(const std::string& path, const DirectoryView& view) {
  const std::string name = Printable(path);
  if (!view.foreign_name.empty()) {
    return {ErrorCode::kUnsupported, "FOREIGN_FORMAT",
            fmt::format("{}: holds '{}', a checkpoint of another format\nthis version reads native "
                        "checkpoints only",
                        name, Printable(view.foreign_name))};
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

Error NoSuchId(const std::string& path, std::uint64_t id, const DirectoryView& view) {
  std::vector<std::uint64_t> ids;
  for (const auto& [number, names] : view.ids) {
    if (names.committed) {
      ids.push_back(number);
    }
  }
  return {ErrorCode::kNotFound, "NO_SNAPSHOT",
          fmt::format("{}: no snapshot {} in it\nit holds {}: write {}@{}", Printable(path), id,
                      fmt::join(ids, ", "), Printable(path), ids.back())};
}

Error Explain(Error error, const std::string& path) {
  if (error.reason == "DIRECTORY_MISSING") {
    return NoSuchPath(path);
  }
  return error.reason == "NOT_A_DIRECTORY" ? NotADirectory(path) : std::move(error);
}

}  // namespace

PathArgument ParsePath(const std::string& text) {
  const std::size_t at = text.rfind('@');
  if (at == std::string::npos || at == 0 || Exists(text)) {
    return {text, std::nullopt};
  }
  const std::string digits = text.substr(at + 1);
  std::uint64_t id = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
  const bool canonical = error == std::errc() && end == digits.data() + digits.size() &&
                         (digits.size() == 1 || digits[0] != '0');
  return canonical ? PathArgument{text.substr(0, at), id} : PathArgument{text, std::nullopt};
}

std::uint64_t OpenedPath::unique_id() const {
  return argument.unique_id ? *argument.unique_id : view.newest().value_or(0);
}

Status CheckDirectory(const std::string& path) {
  Result<std::unique_ptr<Storage>> storage = OpenPosixStorage(path);
  if (!storage.ok()) {
    return tl::unexpected<Error>(Explain(std::move(storage).error(), path));
  }
  return OkStatus();
}

Result<OpenedPath> OpenCheckpoint(const std::string& text) {
  OpenedPath out;
  out.argument = ParsePath(text);
  const std::string& path = out.argument.path;
  Result<std::unique_ptr<Storage>> storage = OpenPosixStorage(path);
  if (!storage.ok()) {
    return tl::unexpected<Error>(Explain(std::move(storage).error(), path));
  }
  out.storage = std::move(*storage);
  RESHARD_TRY_ASSIGN(out.view, ViewDirectory(*out.storage));
  if (!out.view.newest()) {
    return tl::unexpected<Error>(NoSnapshot(path, out.view));
  }
  const std::optional<std::uint64_t> id = out.argument.unique_id;
  if (id && (out.view.ids.count(*id) == 0 || !out.view.ids.at(*id).committed)) {
    return tl::unexpected<Error>(NoSuchId(path, *id, out.view));
  }
  return out;
}

}  // namespace reshard::cli
