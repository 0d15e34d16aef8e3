#include "reshard/catalog/resolve.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/catalog/cbor.h"
#include "reshard/catalog/master_weights.h"
#include "reshard/tensor/cast.h"

namespace reshard {
namespace {

class Resolver {
 public:
  Resolver(const Catalog& catalog, const ResolveOptions& options)
      : catalog_(catalog), options_(options) {}

  Result<Resolution> Run(const std::vector<MutableFlatEntry>& wanted) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      RESHARD_TRY_ASSIGN(const std::optional<std::string> stored, StoredKey(wanted[i].key));
      if (!stored) {
        out_.missing.push_back(wanted[i].key);
        continue;
      }
      if (*stored != wanted[i].key) {
        out_.renamed.emplace_back(wanted[i].key, *stored);
      }
      out_.stored_keys.push_back(*stored);
      if (const auto* tensor = wanted[i].leaf->get_if<Tensor>()) {
        ResolveTensor(i, wanted[i].key, *stored, *tensor);
      } else {
        RESHARD_TRY(ResolveObject(i, wanted[i].key, *stored));
      }
    }
    std::sort(out_.stored_keys.begin(), out_.stored_keys.end());
    const auto last = std::unique(out_.stored_keys.begin(), out_.stored_keys.end());
    out_.stored_keys.erase(last, out_.stored_keys.end());
    return std::move(out_);
  }

 private:
  bool IsStored(std::string_view key) const {
    if (catalog_.Find(key)) {
      return true;
    }
    const auto [first, last] = catalog_.FindObjects(key);
    return first != last;
  }

  Result<std::optional<std::string>> StoredKey(const std::string& key) const {
    if (IsStored(key)) {
      return std::optional(key);
    }
    if (options_.rename) {
      std::optional<std::string> renamed = options_.rename(key);
      if (renamed && IsStored(*renamed)) {
        return renamed;
      }
    }
    if (!options_.mw_name_compatibility) {
      return std::optional<std::string>();
    }
    return ResolveMasterWeight(key, [this](std::string_view name) { return IsStored(name); });
  }

  void ResolveTensor(std::size_t leaf, const std::string& key, const std::string& stored,
                     const Tensor& wanted) {
    const std::optional<TensorId> tensor = catalog_.Find(stored);
    if (!tensor) {
      out_.mismatched.push_back({key, "stored as an object, wanted as a tensor"});
      return;
    }
    const DType dtype = catalog_.dtype(*tensor);
    const bool dtype_fits = dtype == wanted.dtype ||
                            (options_.dtype == DTypePolicy::kCast && CanCast(dtype, wanted.dtype));
    if (dtype_fits && ShapeFits(catalog_.shape(*tensor), wanted.global_shape)) {
      out_.tensors.push_back({leaf, *tensor});
      return;
    }
    out_.mismatched.push_back(
        {key, fmt::format("stored {} {}, wanted {} {}", Info(dtype).name,
                          ToString(catalog_.shape(*tensor)), Info(wanted.dtype).name,
                          ToString(wanted.global_shape))});
  }

  bool ShapeFits(std::span<const std::uint64_t> stored, const Shape& wanted) const {
    if (options_.shape == ShapePolicy::kExact || stored.size() != wanted.size()) {
      return std::ranges::equal(stored, wanted);
    }
    return std::equal(stored.begin(), stored.end(), wanted.begin(),
                      [](std::uint64_t s, std::uint64_t w) { return s <= w; });
  }

  Status ResolveObject(std::size_t leaf, const std::string& key, const std::string& stored) {
    const auto [first, last] = catalog_.FindObjects(stored);
    if (first == last) {
      out_.mismatched.push_back({key, "stored as a tensor, wanted as an object"});
      return OkStatus();
    }
    if (catalog_.object_rank(first) < 0) {
      RESHARD_TRY_ASSIGN(Value value, DecodeObject(catalog_.object_value(first)));
      out_.objects.push_back({leaf, std::move(value)});
      return OkStatus();
    }
    return ResolvePerRank(leaf, key, first, last);
  }

  Status ResolvePerRank(std::size_t leaf, const std::string& key, std::size_t first,
                        std::size_t last) {
    const auto stored = last - first;
    if (options_.per_rank == PerRankPolicy::kAll) {
      Value::List all;
      for (std::size_t i = first; i < last; ++i) {
        RESHARD_TRY_ASSIGN(Value value, DecodeObject(catalog_.object_value(i)));
        all.push_back(std::move(value));
      }
      out_.objects.push_back({leaf, Value(PerRank(Value(std::move(all))))});
      return OkStatus();
    }
    if (options_.per_rank == PerRankPolicy::kExact &&
        stored != static_cast<std::size_t>(options_.world_size)) {
      out_.mismatched.push_back(
          {key,
           fmt::format("a per-rank value of {} ranks, wanted by {}; pass per_rank same_rank or all",
                       stored, options_.world_size)});
      return OkStatus();
    }
    for (std::size_t i = first; i < last; ++i) {
      if (catalog_.object_rank(i) == options_.rank) {
        RESHARD_TRY_ASSIGN(Value value, DecodeObject(catalog_.object_value(i)));
        out_.objects.push_back({leaf, Value(PerRank(std::move(value)))});
        return OkStatus();
      }
    }
    out_.missing.push_back(key);
    return OkStatus();
  }

  const Catalog& catalog_;
  const ResolveOptions& options_;
  Resolution out_;
};

}  // namespace

Result<Resolution> Resolve(const Catalog& catalog, const std::vector<MutableFlatEntry>& wanted,
                           const ResolveOptions& options) {
  return Resolver(catalog, options).Run(wanted);
}

std::vector<std::string> UnaskedKeys(const Catalog& catalog,
                                     const std::vector<std::string>& asked) {
  std::vector<std::string> out;
  const auto add = [&](std::string_view key) {
    const bool known = std::binary_search(asked.begin(), asked.end(), key, std::less<>());
    if (!known && (out.empty() || out.back() != key)) {
      out.emplace_back(key);
    }
  };
  for (TensorId tensor = 0; tensor < catalog.num_tensors(); ++tensor) {
    add(catalog.key(tensor));
  }
  for (std::size_t object = 0; object < catalog.num_objects(); ++object) {
    add(catalog.object_key(object));
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace reshard
