#pragma once

// What a pickle holds, as data: nodes that refer to each other by number. Nothing is executed;
// callables that the caller's closed list knows are names, and what a pickle would call with them
// is a plain "object" node.
//
// Byte strings are never read: a node says where they lie in the source. So are long texts.
//
// Invariants after a successful parse: no cycles, bounded depth (kMaxDepth), texts are valid UTF-8
// without NUL, dict keys are hashable and, where they are texts or integers, unique.
//
// Thread-safety: immutable after the parse.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/bytes.h"

namespace reshard::pickle {

/// Names a node of a Document.
using NodeId = std::uint32_t;

inline constexpr NodeId kNoNode = 0xFFFFFFFF;

/// Deepest nesting, an element being one deeper than its container.
inline constexpr std::uint32_t kMaxDepth = 200;

/// Longest text that is kept in the document; a longer one is left in the source.
inline constexpr std::uint64_t kMaxInlineText = 65536;

/// What a node is.
enum class Kind : std::uint8_t {
  kNone,
  kBool,
  kInt,  ///< 64 bits signed; larger ones are refused.
  kFloat,
  kText,      ///< In the document.
  kLongText,  ///< Left in the source (UTF-8, not checked yet).
  kBytes,     ///< bytes or bytearray, left in the source.
  kTuple,
  kList,
  kDict,
  kSet,
  kGlobal,      ///< A name of the closed list.
  kObject,      ///< callable(args), with state (BUILD), appended items and set items.
  kPersistent,  ///< A persistent id (BINPERSID), refused unless allowed.
};

/// The whole pickle.
class Document {
 public:
  NodeId root() const;

  std::size_t num_nodes() const;

  Kind kind(NodeId node) const;

  bool AsBool(NodeId node) const;            ///< kBool
  std::int64_t AsInt(NodeId node) const;     ///< kInt
  double AsFloat(NodeId node) const;         ///< kFloat
  std::string_view Text(NodeId node) const;  ///< kText

  /// kLongText, kBytes: where it lies in the source.
  ByteRange InSource(NodeId node) const;

  /// kTuple, kList, kSet: the elements. kDict: key, value, key, value... kPersistent: the id.
  std::span<const NodeId> items(NodeId node) const;

  /// kGlobal: the number that the caller's table gives it.
  std::uint16_t global(NodeId node) const;

  /// kObject.
  std::uint16_t callable(NodeId node) const;                ///< Number of the called global.
  NodeId args(NodeId node) const;                           ///< A tuple.
  NodeId state(NodeId node) const;                          ///< What BUILD set, kNoNode without.
  std::span<const NodeId> object_items(NodeId node) const;  ///< Appended, or key, value, ...

  /// The value of a text key in a dict (last of equal ones never occurs), kNoNode when absent.
  NodeId Find(NodeId dict, std::string_view key) const;

  /// Where the opcode that made the node stands in the source, for messages.
  std::uint64_t offset(NodeId node) const;
};

}  // namespace reshard::pickle
