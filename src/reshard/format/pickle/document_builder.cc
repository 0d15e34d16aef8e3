#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "reshard/base/utf8.h"
#include "reshard/format/pickle/document_builder_internal.h"

namespace reshard::pickle {
namespace {

constexpr std::int64_t kSmallInts = 65536;

}  // namespace

tl::unexpected<Error> Bad(std::string_view reason, std::uint64_t offset, std::string_view what) {
  return MakeError(ErrorCode::kCorruption, reason, fmt::format("byte {}: {}", offset, what));
}

NodeId DocumentBuilder::Add(Kind kind, std::uint64_t offset, std::uint64_t head) {
  Node node{};
  node.offset = offset;
  node.head = head;
  node.flags = 0;
  node.kind = kind;
  document_.nodes_.push_back(node);
  return static_cast<NodeId>(document_.nodes_.size() - 1);
}

NodeId DocumentBuilder::None(std::uint64_t offset) {
  if (none_ == kNoNode) {
    none_ = Add(Kind::kNone, offset);
  }
  return none_;
}

NodeId DocumentBuilder::Bool(bool value, std::uint64_t offset) {
  NodeId& node = bools_[value ? 1 : 0];
  if (node == kNoNode) {
    node = Add(Kind::kBool, offset);
    At(node).value = value ? 1 : 0;
  }
  return node;
}

NodeId DocumentBuilder::Int(std::int64_t value, std::uint64_t offset) {
  const bool small = value >= 0 && value < kSmallInts;
  if (small) {
    const auto index = static_cast<std::size_t>(value);
    if (index >= small_ints_.size()) {
      small_ints_.resize(std::max<std::size_t>(1024, std::bit_ceil(index + 1)), kNoNode);
    }
    if (small_ints_[index] != kNoNode) {
      return small_ints_[index];
    }
  }
  const NodeId node = Add(Kind::kInt, offset);
  At(node).value = static_cast<std::uint64_t>(value);
  if (small) {
    small_ints_[static_cast<std::size_t>(value)] = node;
  }
  return node;
}

NodeId DocumentBuilder::Float(double value, std::uint64_t offset) {
  const NodeId node = Add(Kind::kFloat, offset);
  At(node).value = std::bit_cast<std::uint64_t>(value);
  return node;
}

NodeId DocumentBuilder::EmptyTuple(std::uint64_t offset) {
  if (empty_tuple_ == kNoNode) {
    empty_tuple_ = Add(Kind::kTuple, offset);
  }
  return empty_tuple_;
}

NodeId DocumentBuilder::Global(std::uint16_t number, std::uint8_t uses, std::uint64_t offset) {
  const NodeId node = Add(Kind::kGlobal, offset);
  At(node).number = number;
  At(node).value = uses;
  return node;
}

Result<NodeId> DocumentBuilder::Unknown(std::string_view name, std::uint64_t offset) {
  if (!IsUtf8(name) || name.find('\0') != std::string_view::npos) {
    return Bad(kBadString, offset, "a name is not valid UTF-8, or contains NUL");
  }
  if (document_.unknown_.size() >= kFirstUnknown) {
    return Bad(kLimit, offset, fmt::format("more than {} names", kFirstUnknown));
  }
  const auto number = static_cast<std::uint16_t>(kFirstUnknown + document_.unknown_.size());
  document_.unknown_.emplace_back(name);
  unknown_memory_ += 2 * (name.size() + 128);  // here and in the machine
  return Global(
      number, kReduce | kNewObject | kBuild | kDictLike | kListLike | kRawText | kAnything, offset);
}

Result<NodeId> DocumentBuilder::Text(std::string_view text, std::uint64_t offset,
                                     std::uint64_t head) {
  if (!IsUtf8(text)) {
    return Bad(kBadString, offset, "a text is not valid UTF-8");
  }
  if (text.find('\0') != std::string_view::npos) {
    const NodeId node = InSource(Kind::kLongText, text.size(), offset, head);
    At(node).flags |= kRaw;
    return node;
  }
  const NodeId node = Add(Kind::kText, offset, head);
  At(node).value = document_.text_.size();
  At(node).count = static_cast<std::uint32_t>(text.size());
  document_.text_.Append(text);
  return node;
}

NodeId DocumentBuilder::InSource(Kind kind, std::uint64_t size, std::uint64_t offset,
                                 std::uint64_t head) {
  const NodeId node = Add(kind, offset, head);
  At(node).value = size;
  return node;
}

NodeId DocumentBuilder::Empty(Kind kind, std::uint64_t offset) {
  const NodeId node = Add(kind, offset);
  At(node).flags = kUnhashable;
  return node;
}

Status DocumentBuilder::Adopt(NodeId parent, std::span<const NodeId> children,
                              std::uint64_t offset) {
  std::uint32_t height = At(parent).height;
  std::uint8_t inherited = 0;
  for (const NodeId child : children) {
    Node& node = At(child);
    node.flags |= kHasParent;
    height = std::max<std::uint32_t>(height, node.height + 1U);
    inherited |= node.flags;
  }
  if (height > kMaxDepth) {
    return Bad(kDepth, offset, fmt::format("values are nested deeper than {} levels", kMaxDepth));
  }
  Node& node = At(parent);
  node.height = static_cast<std::uint8_t>(height);
  // A child may be the parent itself, so that this comes last.
  flagged_ = flagged_ || (node.flags & kHasParent) != 0;
  if (node.kind == Kind::kTuple) {
    node.flags |= inherited & kUnhashable;
  }
  if ((inherited & kRaw) == 0) {
    return OkStatus();
  }
  const bool first = node.kind == Kind::kTuple && children.size() == 2 &&
                     kind(children[0]) == Kind::kLongText && (At(children[1]).flags & kRaw) == 0;
  if (!first) {
    return Bad(kBadString, offset, "a text contains NUL");
  }
  node.flags |= kRaw;
  return OkStatus();
}

void DocumentBuilder::AddItems(NodeId target, std::span<const NodeId> items) {
  GrowingArray<NodeId>& pool = document_.items_;
  const bool is_object = kind(target) == Kind::kObject;
  if (is_object && At(target).count == 0) {
    document_.object_items_.push_back({});
    At(target).count = static_cast<std::uint32_t>(document_.object_items_.size());
  }
  Run own = is_object ? document_.object_items_[At(target).count - 1]
                      : Run{At(target).value, At(target).count};
  if (own.count == 0) {
    own.begin = pool.size();
  }
  const auto runs = runs_.find(target);
  if (runs != runs_.end() || own.begin + own.count != pool.size()) {  // continued elsewhere
    std::vector<Run>& list = runs == runs_.end() ? runs_[target] : runs->second;
    if (list.empty() || list.back().begin + list.back().count != pool.size()) {
      list.push_back({pool.size(), 0});
      run_memory_ += list.size() == 1 ? 128 : 2 * sizeof(Run);
    }
    list.back().count += items.size();
  } else {
    own.count += items.size();
  }
  pool.Append(items);
  if (is_object) {
    document_.object_items_[At(target).count - 1] = own;
  } else {
    At(target).value = own.begin;
    At(target).count = static_cast<std::uint32_t>(own.count);
  }
}

Status DocumentBuilder::CheckKeys(std::span<const NodeId> items, std::size_t step,
                                  std::uint64_t offset) const {
  for (std::size_t i = 0; i < items.size(); i += step) {
    const Node& node = document_.nodes_[items[i]];
    if ((node.flags & kUnhashable) != 0) {
      return Bad(kBadKey, offset, "a key, or an element of a set, is not hashable");
    }
    if (node.kind == Kind::kFloat && std::isnan(std::bit_cast<double>(node.value))) {
      return Bad(kBadKey, offset, "a key, or an element of a set, is not a number");
    }
  }
  return OkStatus();
}

Result<NodeId> DocumentBuilder::Tuple(Kind kind, std::span<const NodeId> items,
                                      std::uint64_t offset) {
  if (kind == Kind::kSet) {
    RESHARD_TRY(CheckKeys(items, 1, offset));
  } else if (items.empty()) {
    return EmptyTuple(offset);
  }
  const NodeId node = Add(kind, offset);
  RESHARD_TRY(Adopt(node, items, offset));
  AddItems(node, items);
  return node;
}

Result<NodeId> DocumentBuilder::Object(NodeId callable, NodeId args, GlobalUse use,
                                       std::uint64_t offset) {
  if (kind(callable) != Kind::kGlobal || kind(args) != Kind::kTuple) {
    return Bad(kBadTarget, offset, "what is called is no name, or its arguments are no tuple");
  }
  const auto uses = static_cast<std::uint8_t>(At(callable).value);
  if ((uses & use) == 0) {
    return MakeError(ErrorCode::kUnsupported, kGlobalNotAllowed,
                     fmt::format("byte {}: the name at byte {} may not be called in this way",
                                 offset, document_.offset(callable)));
  }
  if ((At(args).flags & kRaw) != 0 && (uses & kRawText) == 0) {
    return Bad(kBadString, offset, "a text contains NUL");
  }
  const NodeId node = Add(Kind::kObject, offset);
  At(node).number = At(callable).number;
  At(node).value = std::uint64_t{args} << 32 | kNoNode;
  At(node).flags = ((uses & kBuild) != 0 ? kMayBuild : 0) |
                   ((uses & kDictLike) != 0 ? kDictItems | kUnhashable : 0) |
                   ((uses & kListLike) != 0 ? kListItems | kUnhashable : 0);
  if ((uses & kAnything) != 0) {
    At(node).flags = kMayBuild | kDictItems | kListItems | kAnyItems;
  }
  At(node).height = static_cast<std::uint8_t>(At(args).height + 1);
  At(args).flags |= kHasParent;
  if (At(node).height > kMaxDepth) {
    return Bad(kDepth, offset, fmt::format("values are nested deeper than {} levels", kMaxDepth));
  }
  return node;
}

Result<NodeId> DocumentBuilder::Persistent(NodeId id, std::uint64_t offset) {
  if (kind(id) != Kind::kTuple) {
    return Bad(kBadTarget, offset, "a persistent id is no tuple");
  }
  const NodeId node = Add(Kind::kPersistent, offset);
  const NodeId items[] = {id};
  RESHARD_TRY(Adopt(node, items, offset));
  AddItems(node, items);
  return node;
}

NodeId DocumentBuilder::NameOfClass(NodeId id) const {
  if (kind(id) != Kind::kTuple) {
    return kNoNode;
  }
  const std::span<const NodeId> items = document_.items(id);
  const bool is_class = items.size() >= 2 && kind(items[0]) == Kind::kText &&
                        TextOf(items[0]) == "module" && kind(items[1]) == Kind::kGlobal;
  return is_class ? items[1] : kNoNode;
}

Status DocumentBuilder::Append(NodeId target, std::span<const NodeId> items, std::uint64_t offset) {
  if (kind(target) != Kind::kList && (At(target).flags & kListItems) == 0) {
    return Bad(kBadTarget, offset, "what is appended to is no list");
  }
  RESHARD_TRY(Adopt(target, items, offset));
  AddItems(target, items);
  return OkStatus();
}

Status DocumentBuilder::SetItems(NodeId target, std::span<const NodeId> items,
                                 std::uint64_t offset) {
  if (kind(target) != Kind::kDict && (At(target).flags & kDictItems) == 0) {
    return Bad(kBadTarget, offset, "what gets keys and values is no dict");
  }
  if (items.size() % 2 != 0) {
    return Bad(kBadTarget, offset, "a key has no value");
  }
  RESHARD_TRY(CheckKeys(items, 2, offset));
  RESHARD_TRY(Adopt(target, items, offset));
  AddItems(target, items);
  return OkStatus();
}

Status DocumentBuilder::AddToSet(NodeId target, std::span<const NodeId> items,
                                 std::uint64_t offset) {
  if (kind(target) != Kind::kSet || (At(target).flags & kUnhashable) == 0) {
    return Bad(kBadTarget, offset, "what is added to is no set");
  }
  RESHARD_TRY(CheckKeys(items, 1, offset));
  RESHARD_TRY(Adopt(target, items, offset));
  AddItems(target, items);
  return OkStatus();
}

Status DocumentBuilder::SetState(NodeId target, NodeId state, std::uint64_t offset) {
  if ((At(target).flags & kMayBuild) == 0 || kind(target) != Kind::kObject ||
      document_.state(target) != kNoNode) {
    return Bad(kBadTarget, offset, "what gets a state is no object that takes one, once");
  }
  const NodeId children[] = {state};
  RESHARD_TRY(Adopt(target, children, offset));
  At(target).value = At(target).value >> 32 << 32 | state;
  return OkStatus();
}

std::uint64_t DocumentBuilder::memory() const {
  return document_.memory() + run_memory_ + unknown_memory_;
}

}  // namespace reshard::pickle
