#include "reshard/engine/places.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/storage/directories.h"
#include "reshard/storage/posix_path.h"

namespace reshard {
namespace {

/// The name below a path; a path of no characters is the place itself.
std::string Join(const std::string& path, const std::string& name) {
  const bool joined = path.empty() || path.ends_with('/');
  return joined ? fmt::format("{}{}", path, name) : fmt::format("{}/{}", path, name);
}

/// Deeper trees are no runs; a bound also ends loops that bind mounts make.
constexpr std::size_t kMaxDepth = 32;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

/// Takes a run of digits without its leading zeros from the front.
std::string_view TakeDigits(std::string_view& text) {
  std::size_t end = 0;
  while (end < text.size() && IsDigit(text[end])) {
    ++end;
  }
  std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  while (digits.size() > 1 && digits.front() == '0') {
    digits.remove_prefix(1);
  }
  return digits;
}

int Sign(std::size_t a, std::size_t b) { return a < b ? -1 : a > b ? 1 : 0; }

Status Walk(const std::string& path, const std::string& below, std::size_t depth,
            std::vector<std::string>& out) {
  out.push_back(below);
  Result<std::vector<std::string>> names = ListDirectories(path);
  if (!names.ok()) {
    if (depth > 0 && names.error().code == ErrorCode::kNotFound) {  // removed meanwhile
      out.pop_back();
      return OkStatus();
    }
    return tl::unexpected<Error>(std::move(names).error());
  }
  if (depth == kMaxDepth && !names->empty()) {
    return MakeError(
        ErrorCode::kIo, "LIST",
        fmt::format("{}: more than {} directories deep; name one further down", path, kMaxDepth));
  }
  for (const std::string& name : *names) {
    if (name.front() == '.' || name == "lost+found") {
      continue;
    }
    RESHARD_TRY(Walk(Join(path, name), Join(below, name), depth + 1, out));
  }
  return OkStatus();
}

}  // namespace

int CompareNaturally(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a;
  const std::string_view whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (IsDigit(a.front()) && IsDigit(b.front())) {
      const std::string_view x = TakeDigits(a);
      const std::string_view y = TakeDigits(b);
      const int order = x.size() != y.size() ? Sign(x.size(), y.size()) : x.compare(y);
      if (order != 0) {
        return order;
      }
      continue;
    }
    if (a.front() != b.front()) {
      return static_cast<unsigned char>(a.front()) < static_cast<unsigned char>(b.front()) ? -1 : 1;
    }
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() != b.empty()) {
    return a.empty() ? -1 : 1;
  }
  return whole_a.compare(whole_b);
}

int ComparePaths(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    const std::string_view x = a.substr(0, a.find('/'));
    const std::string_view y = b.substr(0, b.find('/'));
    const int order = CompareNaturally(x, y);
    if (order != 0) {
      return order;
    }
    a.remove_prefix(std::min(a.size(), x.size() + 1));
    b.remove_prefix(std::min(b.size(), y.size() + 1));
  }
  return Sign(a.size(), b.size());
}

Result<Places> FindPlaces(const std::string& root) {
  std::string clean = root;
  while (clean.size() > 1 && clean.back() == '/') {
    clean.pop_back();
  }
  std::vector<std::string> below;
  RESHARD_TRY(Walk(clean, "", 0, below));
  std::sort(below.begin(), below.end(),
            [](const std::string& a, const std::string& b) { return ComparePaths(a, b) < 0; });
  Places places;
  for (const std::string& name : below) {
    places.paths.push_back(name.empty() ? clean : Join(clean, name));
  }
  places.open = [](const std::string& path) { return OpenPosixPath(path); };
  places.remove_if_empty = [clean](const std::string& path) {
    return path == clean ? OkStatus() : RemoveDirectoryIfEmpty(path);
  };
  return places;
}

}  // namespace reshard
