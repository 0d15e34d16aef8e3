#pragma once

// Whether this build is slowed down, and its memory blown up, by a sanitizer.

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RESHARD_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RESHARD_SANITIZED 1
#endif

namespace reshard::testing {

#ifdef RESHARD_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace reshard::testing
