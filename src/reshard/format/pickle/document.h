#pragma once

// What a pickle holds, as data: nodes that refer to each other by number. Nothing is executed;
// callables that the caller's closed list knows are names, and what a pickle would call with them
// is a plain "object" node.
//
// Byte strings are never read: a node says where they lie in the source. So are long texts.
//
// Constants (None, booleans, small integers, the empty tuple, globals) are one node however often
// they occur, and a value that the pickle refers to again is the same node: a Document is a graph
// without cycles, and a walk over it as a tree needs a budget of its own.
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
#include "reshard/base/check.h"
#include "reshard/base/growing_array.h"

namespace reshard::pickle {

/// Names a node of a Document.
using NodeId = std::uint32_t;

inline constexpr NodeId kNoNode = 0xFFFFFFFF;

/// Deepest nesting, an element being one deeper than its container.
inline constexpr std::uint32_t kMaxDepth = 200;

/// Longest text that is kept in the document; a longer one is left in the source.
inline constexpr std::uint64_t kMaxInlineText = 65536;

/// Numbers from here on are those of names outside the closed list (ParseOptions::keep_unknown).
inline constexpr std::uint16_t kFirstUnknown = 0x8000;

/// What a node is.
enum class Kind : std::uint8_t {
  kNone,
  kBool,
  kInt,      ///< 64 bits signed.
  kLongInt,  ///< More than 64 bits, left in the source; refused unless names are kept (machine.h).
  kFloat,
  kText,      ///< In the document.
  kLongText,  ///< Left in the source (UTF-8, not checked yet): long, or raw (machine.h, kRawText).
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

  /// Bytes of memory that it takes, roughly.
  std::uint64_t memory() const;

  Kind kind(NodeId node) const;

  bool AsBool(NodeId node) const;            ///< kBool
  std::int64_t AsInt(NodeId node) const;     ///< kInt
  double AsFloat(NodeId node) const;         ///< kFloat
  std::string_view Text(NodeId node) const;  ///< kText

  /// kLongInt (little-endian two's complement), kText, kLongText, kBytes: where it lies in the
  /// source.
  ByteRange InSource(NodeId node) const;

  /// kTuple, kList, kSet: the elements. kDict: key, value, key, value... kPersistent: the id.
  std::span<const NodeId> items(NodeId node) const;

  /// kGlobal: the number that the caller's table gives it.
  std::uint16_t global(NodeId node) const;

  /// "module.name" of a number from kFirstUnknown on.
  std::string_view UnknownName(std::uint16_t number) const;

  /// kObject.
  std::uint16_t callable(NodeId node) const;                ///< Number of the called global.
  NodeId args(NodeId node) const;                           ///< A tuple.
  NodeId state(NodeId node) const;                          ///< What BUILD set, kNoNode without.
  std::span<const NodeId> object_items(NodeId node) const;  ///< Appended, or key, value, ...

  /// The value of a text key in a dict or dict-like object, kNoNode when absent. Cost: linear in
  /// the entries.
  NodeId Find(NodeId dict, std::string_view key) const;

  /// Where the opcode that made the node (the first one of a constant) stands in the source, for
  /// messages.
  std::uint64_t offset(NodeId node) const;

 private:
  friend class DocumentBuilder;

  // 24 bytes: a checkpoint of a large job has millions of them.
  struct Node {
    std::uint64_t value = 0;  // bits of a number; size in the source; place in text_ or items_;
                              // kObject: args, state
    std::uint64_t offset : 48;
    std::uint64_t head : 8;   // bytes of opcode and length before a payload
    std::uint64_t flags : 8;  // of the builder
    std::uint32_t count = 0;  // bytes of text, elements; kObject: 1 + index into object_items_
    std::uint16_t number = 0;
    Kind kind = Kind::kNone;
    std::uint8_t height = 0;  // 0: no elements
  };

  struct Run {  // of items_
    std::uint64_t begin = 0;
    std::uint64_t count = 0;
  };

  NodeId root_ = kNoNode;
  GrowingArray<Node> nodes_;
  GrowingArray<char> text_;
  GrowingArray<NodeId> items_;
  GrowingArray<Run> object_items_;
  std::vector<std::string> unknown_;  // names outside the closed list
};

// Called for every node of large documents.

inline NodeId Document::root() const { return root_; }

inline std::size_t Document::num_nodes() const { return nodes_.size(); }

inline std::uint64_t Document::memory() const {
  return nodes_.size() * sizeof(Node) + text_.size() + items_.size() * sizeof(NodeId) +
         object_items_.size() * sizeof(Run);
}

inline Kind Document::kind(NodeId node) const { return nodes_[node].kind; }

inline bool Document::AsBool(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kBool);
  return nodes_[node].value != 0;
}

inline std::int64_t Document::AsInt(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kInt);
  return static_cast<std::int64_t>(nodes_[node].value);
}

inline std::string_view Document::Text(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kText);
  return {text_.data() + nodes_[node].value, nodes_[node].count};
}

inline std::span<const NodeId> Document::items(NodeId node) const {
  const Node& n = nodes_[node];
  RESHARD_CHECK(n.kind == Kind::kTuple || n.kind == Kind::kList || n.kind == Kind::kDict ||
                n.kind == Kind::kSet || n.kind == Kind::kPersistent);
  return {items_.data() + n.value, n.count};
}

inline std::uint16_t Document::global(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kGlobal);
  return nodes_[node].number;
}

inline std::uint16_t Document::callable(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kObject);
  return nodes_[node].number;
}

inline NodeId Document::args(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kObject);
  return static_cast<NodeId>(nodes_[node].value >> 32);
}

inline NodeId Document::state(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kObject);
  return static_cast<NodeId>(nodes_[node].value);
}

inline std::string_view Document::UnknownName(std::uint16_t number) const {
  RESHARD_CHECK(number >= kFirstUnknown && number < kFirstUnknown + unknown_.size());
  return unknown_[number - kFirstUnknown];
}

inline std::uint64_t Document::offset(NodeId node) const { return nodes_[node].offset; }

}  // namespace reshard::pickle
