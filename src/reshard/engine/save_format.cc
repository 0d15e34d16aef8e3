#include "reshard/engine/save_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "reshard/catalog/cbor.h"

namespace reshard {
namespace {

/// Why an object cannot be saved in any format; empty when it can.
std::string WhyIncomplete(ByteSpan encoded) {
  if (!MayHoldOpaque(encoded)) {
    return {};
  }
  const Result<Value> value = DecodeObject(encoded);
  const Opaque* opaque = value.ok() ? FindWithoutContent(*value) : nullptr;
  return opaque == nullptr
             ? std::string()
             : fmt::format("an object of type {}, of which only the type was read", opaque->type);
}

}  // namespace

std::vector<Unsupported> RestrictTo(const SaveFormat& format, StateDescription& description) {
  std::vector<Unsupported> out;
  std::erase_if(description.objects, [&out](const ObjectDescription& object) {
    std::string why = WhyIncomplete(object.value);
    const bool incomplete = !why.empty();
    if (incomplete) {
      out.push_back({object.key, std::move(why)});
    }
    return incomplete;
  });
  std::vector<Unsupported> others = format.Restrict(description);
  std::move(others.begin(), others.end(), std::back_inserter(out));
  return out;
}

}  // namespace reshard
