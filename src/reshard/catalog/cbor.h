#pragma once

// Objects (leaves that are no tensors) and paths as bytes: a deterministic subset of CBOR
// (RFC 8949): null, bool, integers in 64 signed bits, 64-bit floats, byte and text strings, arrays
// and maps with text or integer keys, definite lengths, shortest lengths. So any CBOR reader shows
// them. A path is an array of text (key), integer (integer key) and one-element arrays (list
// position).

#include <cstdint>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/catalog/flatten.h"
#include "reshard/catalog/value.h"

namespace reshard {

/// Reasons of this decoder.
inline constexpr std::string_view kBadObject = "BAD_OBJECT";

/// Encodes a value without tensors and per-rank values (a bug otherwise).
Bytes EncodeObject(const Value& value);

/// Whether an opaque value may be among those that are encoded in `bytes`: false is certain, and
/// quickly found.
bool MayHoldOpaque(ByteSpan bytes);

/// Errors: kCorruption BAD_OBJECT with the byte offset. Memory: proportional to the input.
Result<Value> DecodeObject(ByteSpan bytes);

Bytes EncodePath(const Path& path);

/// Errors: kCorruption BAD_OBJECT.
Result<Path> DecodePath(ByteSpan bytes);

}  // namespace reshard
