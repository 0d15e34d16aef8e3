// What can only be checked when all opcodes are there.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <tuple>

#include "reshard/format/pickle/document_builder_internal.h"

namespace reshard::pickle {
namespace {

constexpr std::size_t kFewKeys = 12;

/// A key reduced to what makes it equal to another one: Python's 1, 1.0 and True are one key.
struct KeyValue {
  enum Class : std::uint8_t { kInt, kFloat, kText, kOther } kind = kOther;

  std::uint64_t bits = 0;
  std::string_view text;

  bool operator==(const KeyValue&) const = default;

  bool operator<(const KeyValue& other) const {
    return std::tie(kind, bits, text) < std::tie(other.kind, other.bits, other.text);
  }
};

KeyValue ValueOf(const Document& document, NodeId key) {
  switch (document.kind(key)) {
    case Kind::kBool:
      return {KeyValue::kInt, document.AsBool(key) ? 1U : 0U, {}};
    case Kind::kInt:
      return {KeyValue::kInt, static_cast<std::uint64_t>(document.AsInt(key)), {}};
    case Kind::kFloat: {
      const double value = document.AsFloat(key);
      if (std::trunc(value) == value && std::abs(value) < 0x1p63) {
        return {KeyValue::kInt, static_cast<std::uint64_t>(static_cast<std::int64_t>(value)), {}};
      }
      return {KeyValue::kFloat, std::bit_cast<std::uint64_t>(value), {}};
    }
    case Kind::kText: {
      const std::string_view text = document.Text(key);
      return {KeyValue::kText, text.size(), text};
    }
    default:
      return {KeyValue::kOther, key, {}};
  }
}

tl::unexpected<Error> Duplicate(const Document& document, NodeId key) {
  const bool text = document.kind(key) == Kind::kText;
  return Bad(kDuplicateKey, document.offset(key),
             fmt::format("a dict has the key {} twice",
                         text ? fmt::format("'{}'", document.Text(key)) : "of this value"));
}

/// A hash of the key's value above its node.
std::uint64_t HashedKey(const Document& document, NodeId key) {
  const KeyValue value = ValueOf(document, key);
  const std::uint64_t hash = value.kind == KeyValue::kText
                                 ? std::hash<std::string_view>()(value.text)
                                 : value.bits * 0x9e3779b97f4a7c15;
  return hash >> 32 << 32 | key;
}

/// Keys of one hash: nearly always a single one.
Status CheckEqualHashes(const Document& document, std::span<std::uint64_t> keys) {
  const auto node = [](std::uint64_t hashed) { return static_cast<NodeId>(hashed); };
  if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end()) {
    return Duplicate(document, node(*twice));
  }
  std::sort(keys.begin(), keys.end(), [&](std::uint64_t a, std::uint64_t b) {
    return ValueOf(document, node(a)) < ValueOf(document, node(b));
  });
  const auto twice =
      std::adjacent_find(keys.begin(), keys.end(), [&](std::uint64_t a, std::uint64_t b) {
        return ValueOf(document, node(a)) == ValueOf(document, node(b));
      });
  return twice == keys.end() ? OkStatus() : Status(Duplicate(document, node(*twice)));
}

/// Sorts the keys by a hash, and those of one hash by their values. 8 bytes for each key.
Status CheckManyKeys(const Document& document, std::span<const NodeId> items) {
  std::vector<std::uint64_t> keys;
  keys.reserve(items.size() / 2);
  for (std::size_t i = 0; i < items.size(); i += 2) {
    keys.push_back(HashedKey(document, items[i]));
  }
  std::sort(keys.begin(), keys.end());
  for (auto begin = keys.begin(); begin != keys.end();) {
    const auto end = std::find_if(begin, keys.end(),
                                  [begin](std::uint64_t key) { return key >> 32 != *begin >> 32; });
    if (end - begin > 1) {
      RESHARD_TRY(CheckEqualHashes(document, std::span(begin, end)));
    }
    begin = end;
  }
  return OkStatus();
}

}  // namespace

Status DocumentBuilder::CheckBudget(std::uint64_t more) const {
  return memory() + more <= budget_
             ? OkStatus()
             : Status(Bad(kLimit, 0,
                          fmt::format("checking the pickle needs {} bytes of memory, more than {}",
                                      memory() + more, budget_)));
}

/// What JoinRuns adds.
std::uint64_t DocumentBuilder::JoinedMemory() const {
  std::uint64_t items = 0;
  for (const auto& [target, runs] : runs_) {
    items += kind(target) == Kind::kObject
                 ? document_.object_items_[document_.nodes_[target].count - 1].count
                 : document_.nodes_[target].count;
    for (const Run run : runs) {
      items += run.count;
    }
  }
  return items * sizeof(NodeId);
}

void DocumentBuilder::JoinRuns() {
  GrowingArray<NodeId>& pool = document_.items_;
  for (const auto& [target, runs] : runs_) {
    const bool is_object = kind(target) == Kind::kObject;
    Run own = is_object ? document_.object_items_[At(target).count - 1]
                        : Run{At(target).value, At(target).count};
    const Run first = own;
    own.begin = pool.size();
    const auto append = [&](Run run) {
      for (std::uint64_t i = 0; i < run.count; ++i) {
        pool.push_back(pool[run.begin + i]);
      }
    };
    append(first);
    for (const Run run : runs) {
      append(run);
    }
    own.count = pool.size() - own.begin;
    if (is_object) {
      document_.object_items_[At(target).count - 1] = own;
    } else {
      At(target).value = own.begin;
      At(target).count = static_cast<std::uint32_t>(own.count);
    }
  }
  runs_ = {};
  run_memory_ = 0;
}

Status DocumentBuilder::CheckGraph(NodeId root) {
  enum Mark : std::uint8_t { kNew, kOpen, kDone };

  struct Step {
    NodeId node;
    std::uint64_t next;
  };

  const auto children = [&](NodeId node) -> std::span<const NodeId> {
    switch (kind(node)) {
      case Kind::kTuple:
      case Kind::kList:
      case Kind::kDict:
      case Kind::kSet:
      case Kind::kPersistent:
        return document_.items(node);
      case Kind::kObject:
        return document_.object_items(node);
      default:
        return {};
    }
  };
  // Children of an object: its items, then args and state.
  const auto child = [&](NodeId node, std::uint64_t i) {
    const std::span<const NodeId> items = children(node);
    if (i < items.size()) {
      return items[i];
    }
    if (kind(node) != Kind::kObject || i > items.size() + 1) {
      return kNoNode;
    }
    return i == items.size() ? document_.args(node) : document_.state(node);
  };
  RESHARD_TRY(CheckBudget(document_.nodes_.size()));
  std::vector<std::uint8_t> marks(document_.nodes_.size(), kNew);
  std::vector<Step> path = {{root, 0}};
  marks[root] = kOpen;
  At(root).height = 0;
  while (!path.empty()) {
    Step& step = path.back();
    const NodeId next = child(step.node, step.next);
    if (next == kNoNode) {
      const NodeId done = step.node;
      marks[done] = kDone;
      path.pop_back();
      if (!path.empty()) {
        Node& parent = At(path.back().node);
        parent.height = std::max(parent.height, static_cast<std::uint8_t>(At(done).height + 1));
      }
      continue;
    }
    ++step.next;
    if (marks[next] == kOpen) {
      return Bad(kCycle, document_.offset(next), "a value contains itself");
    }
    const std::uint32_t deep = static_cast<std::uint32_t>(path.size());
    const std::uint32_t below = marks[next] == kDone ? At(next).height : 0;
    if (deep + below > kMaxDepth) {
      return Bad(kDepth, document_.offset(next),
                 fmt::format("values are nested deeper than {} levels", kMaxDepth));
    }
    if (marks[next] == kNew) {
      marks[next] = kOpen;
      At(next).height = 0;
      path.push_back({next, 0});
    } else {
      Node& parent = At(step.node);
      parent.height = std::max(parent.height, static_cast<std::uint8_t>(below + 1));
    }
  }
  return OkStatus();
}

Status DocumentBuilder::CheckUniqueKeys(std::span<const NodeId> items) const {
  if (items.size() > 2 * kFewKeys) {
    RESHARD_TRY(CheckBudget(items.size() / 2 * sizeof(std::uint64_t)));
    return CheckManyKeys(document_, items);
  }
  KeyValue few[kFewKeys];
  for (std::size_t i = 0; i < items.size(); i += 2) {
    few[i / 2] = ValueOf(document_, items[i]);
    if (std::find(few, few + i / 2, few[i / 2]) != few + i / 2) {
      return Duplicate(document_, items[i]);
    }
  }
  return OkStatus();
}

Status DocumentBuilder::CheckUniqueKeys() const {
  for (NodeId node = 0; node < document_.nodes_.size(); ++node) {
    if (kind(node) == Kind::kDict) {
      RESHARD_TRY(CheckUniqueKeys(document_.items(node)));
    } else if (kind(node) == Kind::kObject &&
               (document_.nodes_[node].flags & (kDictItems | kAnyItems)) == kDictItems) {
      RESHARD_TRY(CheckUniqueKeys(document_.object_items(node)));
    }
  }
  return OkStatus();
}

Result<Document> DocumentBuilder::Finish(NodeId root, std::uint64_t budget) && {
  budget_ = budget;
  if ((At(root).flags & kRaw) != 0) {
    return Bad(kBadString, document_.offset(root), "a text contains NUL");
  }
  RESHARD_TRY(CheckBudget(JoinedMemory()));
  JoinRuns();
  if (flagged_) {
    RESHARD_TRY(CheckGraph(root));
  }
  RESHARD_TRY(CheckUniqueKeys());
  document_.root_ = root;
  return std::move(document_);
}

}  // namespace reshard::pickle
