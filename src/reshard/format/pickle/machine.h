#pragma once

// The pickle machine: turns the opcodes of protocols 2 to 5 into a Document. It executes nothing. A
// callable that is not in the caller's closed list ends the parse, whatever surrounds it.
//
// Python pickle opcodes: docs/format/pickle.md; Python documentation, pickletools.

#include <cstdint>
#include <span>
#include <string_view>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"
#include "reshard/format/pickle/document.h"

namespace reshard::pickle {

/// Reasons of this decoder.
inline constexpr std::string_view kStackUnderflow = "STACK_UNDERFLOW";
inline constexpr std::string_view kNoMark = "NO_MARK";
inline constexpr std::string_view kBadMemo = "BAD_MEMO";
inline constexpr std::string_view kPickleTruncated = "PICKLE_TRUNCATED";
inline constexpr std::string_view kBadTarget = "BAD_TARGET";
inline constexpr std::string_view kNoStop = "NO_STOP";
inline constexpr std::string_view kTrailing = "TRAILING_DATA";
inline constexpr std::string_view kCycle = "CYCLE";
inline constexpr std::string_view kDepth = "DEPTH";
inline constexpr std::string_view kGlobalNotAllowed = "GLOBAL_NOT_ALLOWED";
inline constexpr std::string_view kOpcodeNotAllowed = "OPCODE_NOT_ALLOWED";
inline constexpr std::string_view kBadKey = "BAD_KEY";
inline constexpr std::string_view kDuplicateKey = "DUPLICATE_KEY";
inline constexpr std::string_view kBadString = "BAD_STRING";
inline constexpr std::string_view kBadInteger = "BAD_INTEGER";
inline constexpr std::string_view kLimit = "LIMIT";
inline constexpr std::string_view kBadFrame = "BAD_FRAME";
inline constexpr std::string_view kBadProtocol = "BAD_PROTOCOL";

/// How a name of the closed list may be used. As a value (a dtype's class, say) it always may.
enum GlobalUse : std::uint8_t {
  kValueOnly = 0,
  kReduce = 1,     ///< name(*args)
  kNewObject = 2,  ///< name.__new__(name, *args)
  kBuild = 4,      ///< BUILD may set the state of what it made.
  kDictLike = 8,   ///< name() is a dict: SETITEM(S) may fill it (OrderedDict).
  kListLike = 16,  ///< name() takes APPEND(S).
  kRawText = 32,   ///< name(text, x): the text may hold NULs, because it stands for bytes.
  kAnything = 64,  ///< Nothing is known of it: all of the above, and hashable.
};

/// An entry of the closed list. Names are compared whole: no dots, no wildcards.
struct GlobalRule {
  std::string_view module;
  std::string_view name;
  std::uint16_t number = 0;  ///< The caller's own; several entries may share one.
  std::uint8_t uses = kValueOnly;
};

/// Most bytes of memory that a document may take for each byte of opcodes, beside 32 MiB.
inline constexpr std::uint64_t kMemoryPerByte = 8;

/// Choices of Parse.
struct ParseOptions {
  std::span<const GlobalRule> globals = {};
  bool persistent_ids = false;  ///< Allow BINPERSID with a tuple.
  /// Keep names outside the closed list as nodes (Document::UnknownName), and what is called with
  /// them as objects that take a state, keys and elements, instead of refusing them; also integers
  /// of more than 64 bits (kLongInt). The persistent id ('module', name, ...), which torch's older
  /// form writes for a class together with its source text, is that name.
  bool keep_unknown = false;
  /// Where the pickle begins and how far it may go (0: to the end of the source). It must end
  /// exactly there.
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  /// Allow bytes after STOP (streams of several pickles); Parsed::end says where it stopped.
  bool allow_trailing = false;
};

/// A parsed pickle.
struct Parsed {
  Document document;
  int protocol = 0;
  std::uint64_t end = 0;  ///< Offset after STOP.
};

/// Parses one pickle. Reads the source forwards in small windows and passes over byte strings and
/// long texts without reading them, however large they are.
/// Errors: kCorruption with the reasons above and the byte offset; kUnsupported GLOBAL_NOT_ALLOWED
///         (names "module.name"), OPCODE_NOT_ALLOWED; kIo from the source. Memory: at most 32 MiB
///         and kMemoryPerByte times the bytes read (LIMIT). Time: n log n in the bytes read.
/// Thread-safe. Not recursive.
Result<Parsed> Parse(ByteSource& source, const ParseOptions& options);

}  // namespace reshard::pickle
