#pragma once

// The opcodes of pickle protocols 2 to 5 that the machine takes and the emitter writes.
// Source: Python documentation, pickletools; docs/format/pickle.md section 2.

#include <cstdint>

namespace reshard::pickle::op {

inline constexpr std::uint8_t kProto = 0x80;
inline constexpr std::uint8_t kFrame = 0x95;
inline constexpr std::uint8_t kStop = '.';
inline constexpr std::uint8_t kMark = '(';
inline constexpr std::uint8_t kPop = '0';
inline constexpr std::uint8_t kPopMark = '1';
inline constexpr std::uint8_t kDup = '2';

inline constexpr std::uint8_t kNone = 'N';
inline constexpr std::uint8_t kTrue = 0x88;
inline constexpr std::uint8_t kFalse = 0x89;
inline constexpr std::uint8_t kInt4 = 'J';
inline constexpr std::uint8_t kInt1 = 'K';
inline constexpr std::uint8_t kInt2 = 'M';
inline constexpr std::uint8_t kLong1 = 0x8a;
inline constexpr std::uint8_t kLong4 = 0x8b;
inline constexpr std::uint8_t kFloat = 'G';
inline constexpr std::uint8_t kText1 = 0x8c;
inline constexpr std::uint8_t kText4 = 'X';
inline constexpr std::uint8_t kText8 = 0x8d;
inline constexpr std::uint8_t kBytes1 = 'C';
inline constexpr std::uint8_t kBytes4 = 'B';
inline constexpr std::uint8_t kBytes8 = 0x8e;
inline constexpr std::uint8_t kByteArray8 = 0x96;
inline constexpr std::uint8_t kReadOnly = 0x98;

inline constexpr std::uint8_t kEmptyTuple = ')';
inline constexpr std::uint8_t kTuple1 = 0x85;
inline constexpr std::uint8_t kTuple2 = 0x86;
inline constexpr std::uint8_t kTuple3 = 0x87;
inline constexpr std::uint8_t kTuple = 't';
inline constexpr std::uint8_t kEmptyList = ']';
inline constexpr std::uint8_t kAppend = 'a';
inline constexpr std::uint8_t kAppends = 'e';
inline constexpr std::uint8_t kEmptyDict = '}';
inline constexpr std::uint8_t kSetItem = 's';
inline constexpr std::uint8_t kSetItems = 'u';
inline constexpr std::uint8_t kEmptySet = 0x8f;
inline constexpr std::uint8_t kAddItems = 0x90;
inline constexpr std::uint8_t kFrozenSet = 0x91;

inline constexpr std::uint8_t kPut1 = 'q';
inline constexpr std::uint8_t kPut4 = 'r';
inline constexpr std::uint8_t kMemoize = 0x94;
inline constexpr std::uint8_t kGet1 = 'h';
inline constexpr std::uint8_t kGet4 = 'j';

inline constexpr std::uint8_t kGlobal = 'c';
inline constexpr std::uint8_t kStackGlobal = 0x93;
inline constexpr std::uint8_t kReduce = 'R';
inline constexpr std::uint8_t kNewObject = 0x81;
inline constexpr std::uint8_t kBuild = 'b';
inline constexpr std::uint8_t kPersistent = 'Q';

}  // namespace reshard::pickle::op
