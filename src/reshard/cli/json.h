#pragma once

// The pieces of --json output that commands share; docs/cli.md is the schema.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "reshard/base/error.h"
#include "reshard/catalog/flatten.h"
#include "reshard/catalog/value.h"

namespace reshard::cli {

/// Keeps the order of the schema.
using Json = nlohmann::ordered_json;

/// One line. Bytes that are no UTF-8 become U+FFFD.
std::string Line(const Json& json);

/// An object leaf: bytes in base64; NaN and infinities as strings; keys of maps as text.
Json ToJson(const Value& value);

/// The parts: text, integer keys as numbers, list positions as one-element arrays.
Json ToJson(const Path& path);

/// {"code","reason","message"}.
Json ToJson(const Error& error);

/// 16 hex digits.
std::string DigestText(std::uint64_t digest);

/// The standard alphabet with padding (RFC 4648).
std::string Base64(ByteSpan bytes);

}  // namespace reshard::cli
