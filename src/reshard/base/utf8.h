#pragma once

// Valid UTF-8 as RFC 3629 has it: no surrogates, no overlong forms, nothing above U+10FFFF.

#include <cstddef>
#include <string_view>

namespace reshard {

/// Length of the valid sequence at the front of a text that is not empty, 0 when there is none.
std::size_t Utf8Length(std::string_view text);

/// Whether the whole text is valid.
bool IsUtf8(std::string_view text);

}  // namespace reshard
