#include <fmt/format.h>

#include <algorithm>

#include "reshard/storage/storage.h"

namespace reshard {
namespace {

constexpr std::size_t kMaxNameBytes = 200;
constexpr int kMaxComponents = 8;

bool IsNameByte(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

// Printable, at most 80 bytes: the name comes from a file and goes to a terminal.
std::string Escaped(std::string_view name) {
  std::string out;
  for (char c : name.substr(0, 80)) {
    if (c >= 0x20 && c < 0x7f && c != '\\' && c != '"') {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return name.size() > 80 ? out + "..." : out;
}

tl::unexpected<Error> BadName(std::string_view name, std::string_view why) {
  return MakeError(ErrorCode::kInvalidArgument, "BAD_NAME",
                   fmt::format("file name \"{}\" {}", Escaped(name), why));
}

Status CheckComponent(std::string_view whole, std::string_view part, bool leading_dot) {
  if (part.empty()) {
    return BadName(whole, "is empty or has an empty component");
  }
  if (part.size() > kMaxNameBytes) {
    return BadName(whole, fmt::format("is longer than {} bytes", kMaxNameBytes));
  }
  if (!std::all_of(part.begin(), part.end(), IsNameByte)) {
    return BadName(whole, "has a byte outside [A-Za-z0-9._-]");
  }
  if (part.front() == '-' || (part.front() == '.' && !leading_dot)) {
    return BadName(whole, fmt::format("starts with '{}'", part.front()));
  }
  if (part == "." || part.find("..") != std::string_view::npos) {
    return BadName(whole, "has \".\" or \"..\" in it");
  }
  return OkStatus();
}

}  // namespace

Status CheckName(std::string_view name) { return CheckComponent(name, name, false); }

Status CheckForeignName(std::string_view name) {
  std::string_view rest = name;
  for (int i = 0; i < kMaxComponents; ++i) {
    const std::size_t slash = rest.find('/');
    RESHARD_TRY(CheckComponent(name, rest.substr(0, slash), true));
    if (slash == std::string_view::npos) {
      return OkStatus();
    }
    rest = rest.substr(slash + 1);
  }
  return BadName(name, fmt::format("has more than {} components", kMaxComponents));
}

}  // namespace reshard
