#pragma once

// Opening the data files of a catalog, checked against what the catalog records of them.

#include <cstdint>
#include <memory>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// Opens data file number `file` and checks what shows a stale, swapped or foreign file: its size
/// and, of a native file, the checksum of its head. The object's bytes are those that chunks point
/// into: those of an encoded file are decoded as they are read.
/// Errors: kNotFound FILE_MISSING; kCorruption FILE_SIZE, FILE_HEAD; of an encoded file those of
/// its format. Thread-safe.
Result<std::unique_ptr<ReadableObject>> OpenDataFile(Storage& storage, const Catalog& catalog,
                                                     std::uint32_t file);

/// What to say when the bytes of a file are not those of the catalog: of a foreign checkpoint they
/// may have been written again since it was indexed.
std::string_view DamageAdvice(const Catalog& catalog);

}  // namespace reshard
