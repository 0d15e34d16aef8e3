#pragma once

// UTF-8 as RFC 3629 has it: no surrogates, no overlong forms, nothing above U+10FFFF.

#include <cstdint>
#include <string_view>

namespace reshard::pickle {

/// Whether the whole text is valid.
bool IsUtf8(std::string_view text);

}  // namespace reshard::pickle
