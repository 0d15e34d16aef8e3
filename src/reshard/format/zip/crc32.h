#pragma once

// The checksum of zip archives: CRC-32 with the reflected polynomial 0xEDB88320 (ISO 3309, as in
// Ethernet and PNG).

#include <cstdint>

#include "reshard/base/bytes.h"

namespace reshard::zip {

/// CRC-32 of `bytes`, going on from `crc`, that of the bytes before them.
std::uint32_t Crc32(ByteSpan bytes, std::uint32_t crc = 0);

}  // namespace reshard::zip
