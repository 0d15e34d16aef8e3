#include "reshard/format/pickle/document.h"

#include <bit>

#include "reshard/base/check.h"

namespace reshard::pickle {

NodeId Document::root() const { return root_; }

std::size_t Document::num_nodes() const { return nodes_.size(); }

Kind Document::kind(NodeId node) const { return nodes_[node].kind; }

bool Document::AsBool(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kBool);
  return nodes_[node].value != 0;
}

std::int64_t Document::AsInt(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kInt);
  return static_cast<std::int64_t>(nodes_[node].value);
}

double Document::AsFloat(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kFloat);
  return std::bit_cast<double>(nodes_[node].value);
}

std::string_view Document::Text(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kText);
  return std::string_view(text_).substr(nodes_[node].value, nodes_[node].count);
}

ByteRange Document::InSource(NodeId node) const {
  const Node& n = nodes_[node];
  RESHARD_CHECK(n.kind == Kind::kText || n.kind == Kind::kLongText || n.kind == Kind::kBytes);
  return {n.offset + n.head, n.kind == Kind::kText ? n.count : n.value};
}

std::span<const NodeId> Document::items(NodeId node) const {
  const Node& n = nodes_[node];
  RESHARD_CHECK(n.kind == Kind::kTuple || n.kind == Kind::kList || n.kind == Kind::kDict ||
                n.kind == Kind::kSet || n.kind == Kind::kPersistent);
  return std::span(items_).subspan(n.value, n.count);
}

std::uint16_t Document::global(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kGlobal);
  return nodes_[node].number;
}

std::uint16_t Document::callable(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kObject);
  return nodes_[node].number;
}

NodeId Document::args(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kObject);
  return static_cast<NodeId>(nodes_[node].value >> 32);
}

NodeId Document::state(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kObject);
  return static_cast<NodeId>(nodes_[node].value);
}

std::span<const NodeId> Document::object_items(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kObject);
  if (nodes_[node].count == 0) {
    return {};
  }
  const Run& run = object_items_[nodes_[node].count - 1];
  return std::span(items_).subspan(run.begin, run.count);
}

NodeId Document::Find(NodeId dict, std::string_view key) const {
  const std::span<const NodeId> entries =
      kind(dict) == Kind::kObject ? object_items(dict) : items(dict);
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    if (kind(entries[i]) == Kind::kText && Text(entries[i]) == key) {
      return entries[i + 1];
    }
  }
  return kNoNode;
}

std::uint64_t Document::offset(NodeId node) const { return nodes_[node].offset; }

}  // namespace reshard::pickle
