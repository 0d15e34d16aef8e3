#pragma once

// Makes a Document node by node, as the machine's opcodes come, and keeps its invariants.
//
// Cycles and depth: a container has no parent while it is filled, in what any pickler writes. Then
// its height is final when it gets its first parent, and no cycle can arise. Only a pickle that
// fills a container after that (`flagged_`) costs a walk over the whole graph at the end.

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/format/pickle/document.h"
#include "reshard/format/pickle/machine.h"

namespace reshard::pickle {

/// Makes the failure of a byte offset.
tl::unexpected<Error> Bad(std::string_view reason, std::uint64_t offset, std::string_view what);

/// Not thread-safe. All offsets are those of the opcode.
class DocumentBuilder {
 public:
  NodeId None(std::uint64_t offset);
  NodeId Bool(bool value, std::uint64_t offset);
  NodeId Int(std::int64_t value, std::uint64_t offset);
  NodeId Float(double value, std::uint64_t offset);
  NodeId EmptyTuple(std::uint64_t offset);

  /// The caller makes one node per name.
  NodeId Global(std::uint16_t number, std::uint8_t uses, std::uint64_t offset);

  /// A name that is in no list. The caller makes one node per name. Errors: kCorruption BAD_STRING,
  /// LIMIT.
  Result<NodeId> Unknown(std::string_view name, std::uint64_t offset);

  /// A text that is kept, `head` bytes after `offset`; one with NULs stays in the source.
  /// Errors: kCorruption BAD_STRING.
  Result<NodeId> Text(std::string_view text, std::uint64_t offset, std::uint64_t head);

  /// A payload that stays in the source.
  NodeId InSource(Kind kind, std::uint64_t size, std::uint64_t offset, std::uint64_t head);

  /// An empty list, dict or set.
  NodeId Empty(Kind kind, std::uint64_t offset);

  /// A tuple, or a frozen set. Errors: DEPTH, BAD_STRING, BAD_KEY, LIMIT.
  Result<NodeId> Tuple(Kind kind, std::span<const NodeId> items, std::uint64_t offset);

  /// callable(*args) by REDUCE or NEWOBJ (`use`). Errors: BAD_TARGET, GLOBAL_NOT_ALLOWED, DEPTH.
  Result<NodeId> Object(NodeId callable, NodeId args, GlobalUse use, std::uint64_t offset);

  /// Errors: BAD_TARGET unless `id` is a tuple.
  Result<NodeId> Persistent(NodeId id, std::uint64_t offset);

  /// The name in ('module', name, ...), kNoNode when `id` is something else.
  NodeId NameOfClass(NodeId id) const;

  /// Adds elements of a list or set, or keys and values of a dict, or those of an object of such a
  /// kind. Errors: BAD_TARGET, BAD_KEY, DEPTH, BAD_STRING, LIMIT.
  Status Append(NodeId target, std::span<const NodeId> items, std::uint64_t offset);
  Status SetItems(NodeId target, std::span<const NodeId> items, std::uint64_t offset);
  Status AddToSet(NodeId target, std::span<const NodeId> items, std::uint64_t offset);

  /// Sets an object's state, once. Errors: BAD_TARGET, DEPTH, BAD_STRING.
  Status SetState(NodeId target, NodeId state, std::uint64_t offset);

  Kind kind(NodeId node) const { return document_.nodes_[node].kind; }

  std::string_view TextOf(NodeId node) const { return document_.Text(node); }

  /// Bytes of memory that the document takes, roughly.
  std::uint64_t memory() const;

  bool full() const { return document_.nodes_.size() >= kNoNode - 1; }

  /// The document, with all that can only be checked when it is complete. Takes no more than
  /// `budget` bytes, memory() included.
  /// Errors: CYCLE, DEPTH, DUPLICATE_KEY, BAD_STRING, LIMIT.
  Result<Document> Finish(NodeId root, std::uint64_t budget) &&;

 private:
  using Node = Document::Node;
  using Run = Document::Run;

  enum Flag : std::uint8_t {
    kHasParent = 1,
    kUnhashable = 2,
    kRaw = 4,         // a text with NULs, or a tuple that begins with one
    kMayBuild = 8,    // objects: BUILD may set the state,
    kDictItems = 16,  // ...it takes keys and values,
    kListItems = 32,  // ...or elements
    kAnyItems = 64,   // of a name that nothing is known of
  };

  Node& At(NodeId node) { return document_.nodes_[node]; }

  NodeId Add(Kind kind, std::uint64_t offset, std::uint64_t head = 1);
  Status Adopt(NodeId parent, std::span<const NodeId> children, std::uint64_t offset);
  void AddItems(NodeId target, std::span<const NodeId> items);
  Status CheckKeys(std::span<const NodeId> items, std::size_t step, std::uint64_t offset) const;
  void JoinRuns();
  Status CheckBudget(std::uint64_t more) const;
  std::uint64_t JoinedMemory() const;
  Status CheckGraph(NodeId root);
  Status CheckUniqueKeys() const;
  Status CheckUniqueKeys(std::span<const NodeId> items) const;

  Document document_;
  std::unordered_map<NodeId, std::vector<Run>> runs_;  // of containers filled in several goes
  std::uint64_t run_memory_ = 0;
  NodeId none_ = kNoNode;
  NodeId bools_[2] = {kNoNode, kNoNode};
  NodeId empty_tuple_ = kNoNode;
  std::vector<NodeId> small_ints_;
  std::uint64_t unknown_memory_ = 0;
  bool flagged_ = false;
  std::uint64_t budget_ = 0;  // of Finish
};

}  // namespace reshard::pickle
