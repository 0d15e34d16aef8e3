#include "reshard/format/pickle/document.h"

#include <bit>

#include "reshard/base/check.h"

namespace reshard::pickle {

double Document::AsFloat(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kFloat);
  return std::bit_cast<double>(nodes_[node].value);
}

ByteRange Document::InSource(NodeId node) const {
  const Node& n = nodes_[node];
  RESHARD_CHECK(n.kind == Kind::kLongInt || n.kind == Kind::kText || n.kind == Kind::kLongText ||
                n.kind == Kind::kBytes);
  return {n.offset + n.head, n.kind == Kind::kText ? n.count : n.value};
}

std::span<const NodeId> Document::object_items(NodeId node) const {
  RESHARD_CHECK(kind(node) == Kind::kObject);
  if (nodes_[node].count == 0) {
    return {};
  }
  const Run& run = object_items_[nodes_[node].count - 1];
  return {items_.data() + run.begin, run.count};
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

}  // namespace reshard::pickle
