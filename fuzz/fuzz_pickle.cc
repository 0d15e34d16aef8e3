// Pickles: what parses is a graph without cycles whose parts lie in the input.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reshard/base/check.h"
#include "reshard/format/pickle/machine.h"

namespace {

using reshard::pickle::Document;
using reshard::pickle::GlobalRule;
using reshard::pickle::Kind;
using reshard::pickle::kNoNode;
using reshard::pickle::NodeId;

constexpr GlobalRule kGlobals[] = {
    {"m", "f", 1,
     reshard::pickle::kReduce | reshard::pickle::kNewObject | reshard::pickle::kBuild |
         reshard::pickle::kListLike},
    {"m", "v", 2, reshard::pickle::kValueOnly},
    {"collections", "OrderedDict", 3, reshard::pickle::kReduce | reshard::pickle::kDictLike},
    {"_codecs", "encode", 4, reshard::pickle::kReduce | reshard::pickle::kRawText},
};

std::vector<NodeId> Children(const Document& document, NodeId node) {
  std::vector<NodeId> out;
  switch (document.kind(node)) {
    case Kind::kTuple:
    case Kind::kList:
    case Kind::kDict:
    case Kind::kSet:
    case Kind::kPersistent:
      out.assign(document.items(node).begin(), document.items(node).end());
      break;
    case Kind::kObject:
      out.assign(document.object_items(node).begin(), document.object_items(node).end());
      out.push_back(document.args(node));
      if (document.state(node) != kNoNode) {
        out.push_back(document.state(node));
      }
      break;
    default:
      break;
  }
  return out;
}

/// Walks each node once, depth first; `height` 0 means new, and the path's length is bounded.
void Walk(const Document& document, std::vector<bool>& seen, NodeId node, std::uint32_t depth) {
  RESHARD_CHECK(depth <= reshard::pickle::kMaxDepth);
  for (const NodeId child : Children(document, node)) {
    RESHARD_CHECK(child < document.num_nodes());
    if (!seen[child]) {
      seen[child] = true;
      Walk(document, seen, child, depth + 1);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  reshard::MemorySource source({reinterpret_cast<const std::byte*>(data), size});
  for (const bool persistent : {false, true}) {
    const auto parsed = reshard::pickle::Parse(
        source, {.globals = kGlobals, .persistent_ids = persistent, .allow_trailing = persistent});
    if (!parsed.ok()) {
      continue;
    }
    const Document& document = parsed->document;
    RESHARD_CHECK(parsed->end <= size && document.root() < document.num_nodes());
    RESHARD_CHECK(document.num_nodes() <= size);
    for (NodeId node = 0; node < document.num_nodes(); ++node) {
      RESHARD_CHECK(document.offset(node) < size);
      const Kind kind = document.kind(node);
      if (kind == Kind::kLongInt || kind == Kind::kText || kind == Kind::kLongText ||
          kind == Kind::kBytes) {
        RESHARD_CHECK(document.InSource(node).end() <= size);
      }
    }
    std::vector<bool> seen(document.num_nodes());
    Walk(document, seen, document.root(), 0);
  }
  return 0;
}
