#include "reshard/engine/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "reshard/catalog/cbor.h"
#include "reshard/engine/key_pattern.h"

namespace reshard {
namespace {

/// Where a key is on one side.
struct Entry {
  std::optional<TensorId> tensor;
  std::optional<std::size_t> object;  // the first of the key
};

std::string DigestText(std::optional<std::uint64_t> digest) {
  return digest ? fmt::format("{:016x}", *digest) : std::string();
}

/// Whether the path is the key in one part: nothing is known of the nesting.
bool IsFlat(const Path& path, std::string_view key) {
  const auto* text = path.size() == 1 ? std::get_if<std::string>(&path[0]) : nullptr;
  return text != nullptr && *text == key;
}

bool SamePart(const PathPart& a, const PathPart& b, bool lenient) {
  if (a == b || !lenient) {
    return a == b;
  }
  const auto number = [](const PathPart& part) -> std::optional<std::int64_t> {
    if (const auto* position = std::get_if<ListIndex>(&part)) {
      return static_cast<std::int64_t>(position->position);
    }
    const auto* integer = std::get_if<std::int64_t>(&part);
    return integer == nullptr ? std::nullopt : std::optional(*integer);
  };
  return number(a) && number(a) == number(b);
}

enum class Sameness { kEqual, kUnknown, kDifferent };

/// Opaque values of which only the type is known may be equal or not.
Sameness Compare(const Value& a, const Value& b) {
  const auto* opaque_a = a.get_if<Opaque>();
  const auto* opaque_b = b.get_if<Opaque>();
  if (opaque_a != nullptr && opaque_b != nullptr && opaque_a->type == opaque_b->type &&
      !(opaque_a->has_content() && opaque_b->has_content())) {
    return Sameness::kUnknown;
  }
  const auto* list_a = a.get_if<Value::List>();
  const auto* list_b = b.get_if<Value::List>();
  Sameness out = Sameness::kEqual;
  if (list_a != nullptr && list_b != nullptr && list_a->size() == list_b->size()) {
    for (std::size_t i = 0; out != Sameness::kDifferent && i < list_a->size(); ++i) {
      out = std::max(out, Compare((*list_a)[i], (*list_b)[i]));
    }
    return out;
  }
  const auto* map_a = a.get_if<Value::Map>();
  const auto* map_b = b.get_if<Value::Map>();
  if (map_a != nullptr && map_b != nullptr && map_a->size() == map_b->size()) {
    for (auto x = map_a->begin(), y = map_b->begin();
         out != Sameness::kDifferent && x != map_a->end(); ++x, ++y) {
      out = x->first == y->first ? std::max(out, Compare(x->second, y->second))
                                 : Sameness::kDifferent;
    }
    return out;
  }
  return a == b ? Sameness::kEqual : Sameness::kDifferent;
}

/// A key whose tensors are read.
struct ReadKey {
  std::string key;
  std::size_t job = 0;
  std::optional<std::size_t> dtype_difference;  // among the differences
};

class Differ {
 public:
  Differ(const DiffSource& a, const DiffSource& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {}

  Result<DiffReport> Run() {
    CollectFaults();
    const std::map<std::string_view, std::pair<Entry, Entry>> keys = CollectKeys();
    if (keys.empty() && !options_.keys.empty() && report_.faults.empty()) {
      return MakeError(ErrorCode::kNotFound, "NO_SUCH_KEY",
                       fmt::format("no key in {} or {} matches '{}'", a_.storage.description(),
                                   b_.storage.description(), options_.keys.front()));
    }
    for (const auto& [key, sides] : keys) {
      RESHARD_TRY(CompareKey(key, sides.first, sides.second));
    }
    RESHARD_TRY_ASSIGN(report_.bytes_read,
                       ReadAndCompare({a_.catalog, a_.storage}, {b_.catalog, b_.storage}, jobs_,
                                      options_.reading));
    for (const ReadKey& read : read_) {
      Judge(read, jobs_[read.job]);
    }
    std::stable_sort(report_.differences.begin(), report_.differences.end(),
                     [](const Difference& x, const Difference& y) { return x.key < y.key; });
    std::stable_sort(report_.faults.begin(), report_.faults.end(),
                     [](const DiffFault& x, const DiffFault& y) { return x.key < y.key; });
    return std::move(report_);
  }

 private:
  /// What could not be read when the checkpoints were opened is unknown, not missing.
  void CollectFaults() {
    for (const DiffSource* side : {&a_, &b_}) {
      for (const ForeignFault& fault : side->faults) {
        const Error error = fault.error.WithContext(side->storage.description());
        for (const std::string& key : fault.keys) {
          if (MatchesAnyKey(options_.keys, key) && unknown_.insert(key).second) {
            report_.faults.push_back({key, error});
          }
        }
        if (fault.keys.empty() && options_.keys.empty()) {
          report_.faults.push_back({"", error});
        }
      }
    }
  }

  std::map<std::string_view, std::pair<Entry, Entry>> CollectKeys() const {
    std::map<std::string_view, std::pair<Entry, Entry>> out;
    const auto collect = [&](const Catalog& catalog, auto side) {
      const auto wanted = [this](std::string_view key) {
        return MatchesAnyKey(options_.keys, key) && unknown_.count(std::string(key)) == 0;
      };
      for (TensorId tensor = 0; tensor < catalog.num_tensors(); ++tensor) {
        if (wanted(catalog.key(tensor))) {
          side(out[catalog.key(tensor)]).tensor = tensor;
        }
      }
      for (std::size_t i = 0; i < catalog.num_objects();
           i = catalog.FindObjects(catalog.object_key(i)).second) {
        if (wanted(catalog.object_key(i))) {
          side(out[catalog.object_key(i)]).object = i;
        }
      }
    };
    collect(a_.catalog, [](auto& pair) -> Entry& { return pair.first; });
    collect(b_.catalog, [](auto& pair) -> Entry& { return pair.second; });
    return out;
  }

  Difference& Add(std::string_view key, DiffKind kind, std::string a = "", std::string b = "") {
    Difference& out = report_.differences.emplace_back();
    out.key = std::string(key);
    out.kind = kind;
    out.a = std::move(a);
    out.b = std::move(b);
    return out;
  }

  static std::string Describe(const Catalog& catalog, const Entry& entry) {
    return entry.tensor ? fmt::format("{} {}", Info(catalog.dtype(*entry.tensor)).name,
                                      ToString(catalog.shape(*entry.tensor)))
                        : "object";
  }

  Status CompareKey(std::string_view key, const Entry& a, const Entry& b) {
    const bool in_a = a.tensor || a.object;
    const bool in_b = b.tensor || b.object;
    if (!in_a || !in_b) {
      Add(key, in_a ? DiffKind::kOnlyInA : DiffKind::kOnlyInB, in_a ? Describe(a_.catalog, a) : "",
          in_b ? Describe(b_.catalog, b) : "");
      return OkStatus();
    }
    if (a.tensor.has_value() != b.tensor.has_value()) {
      Add(key, DiffKind::kKind, Describe(a_.catalog, a), Describe(b_.catalog, b));
      return OkStatus();
    }
    if (a.tensor) {
      ++report_.tensors;
      report_.bytes += a_.catalog.num_bytes(*a.tensor);
      ComparePaths(key, a_.catalog.path(*a.tensor), b_.catalog.path(*b.tensor));
      CompareTensors(key, *a.tensor, *b.tensor);
      return OkStatus();
    }
    ++report_.objects;
    ComparePaths(key, a_.catalog.object_path(*a.object), b_.catalog.object_path(*b.object));
    return CompareObjects(key);
  }

  void ComparePaths(std::string_view key, const Path& a, const Path& b) {
    const bool lenient = a_.catalog.info().format != b_.catalog.info().format;
    const bool same = IsFlat(a, key) || IsFlat(b, key) ||
                      std::equal(a.begin(), a.end(), b.begin(), b.end(),
                                 [lenient](const PathPart& x, const PathPart& y) {
                                   return SamePart(x, y, lenient);
                                 });
    if (!same) {
      Add(key, DiffKind::kPath, ToString(a), ToString(b));
    }
  }

  void CompareTensors(std::string_view key, TensorId a, TensorId b) {
    const auto shape_a = a_.catalog.shape(a);
    const auto shape_b = b_.catalog.shape(b);
    const DType dtype_a = a_.catalog.dtype(a);
    const DType dtype_b = b_.catalog.dtype(b);
    const bool same_shape = std::ranges::equal(shape_a, shape_b);
    if (!same_shape) {
      Add(key, DiffKind::kShape, ToString(shape_a), ToString(shape_b));
    }
    std::optional<std::size_t> dtype_difference;
    if (dtype_a != dtype_b) {
      dtype_difference = report_.differences.size();
      Add(key, DiffKind::kDType, std::string(Info(dtype_a).name), std::string(Info(dtype_b).name));
    }
    if (!same_shape ||
        (dtype_a != dtype_b && !(options_.values && AreComparable(dtype_a, dtype_b)))) {
      return;
    }
    const auto digest_a = a_.catalog.digest(a);
    const auto digest_b = b_.catalog.digest(b);
    const bool known = dtype_a == dtype_b && digest_a && digest_b;
    if (NumElements(shape_a) == 0 || (known && *digest_a == *digest_b)) {
      ++report_.by_digest;
    } else if (known && !options_.values) {
      ++report_.by_digest;
      Add(key, DiffKind::kContent, DigestText(digest_a), DigestText(digest_b));
    } else {
      const bool one = dtype_a == dtype_b && !options_.values && (digest_a || digest_b);
      const DiffJob::Mode both = options_.values ? DiffJob::Mode::kValues : DiffJob::Mode::kBytes;
      const DiffJob::Mode other = digest_a ? DiffJob::Mode::kDigestOfB : DiffJob::Mode::kDigestOfA;
      read_.push_back({std::string(key), JobOf(a, b, one ? other : both), dtype_difference});
    }
  }

  /// Tensors that share their bytes on both sides are read once.
  std::size_t JobOf(TensorId a, TensorId b, DiffJob::Mode mode) {
    ++report_.by_reading;
    const std::tuple stored(a_.catalog.alias_of(a), b_.catalog.alias_of(b), mode);
    const auto [at, is_new] = jobs_by_tensors_.emplace(stored, jobs_.size());
    if (is_new) {
      DiffJob& job = jobs_.emplace_back();
      job.a = a;
      job.b = b;
      job.mode = mode;
    }
    return at->second;
  }

  void Judge(const ReadKey& read, const DiffJob& job) {
    if (job.error) {
      report_.faults.push_back({read.key, *job.error});
    } else if (read.dtype_difference) {  // says how far apart they are
      report_.differences[*read.dtype_difference].values = job.values;
    } else if (!job.equal) {
      const bool of_a = job.mode == DiffJob::Mode::kDigestOfA;
      const bool of_b = job.mode == DiffJob::Mode::kDigestOfB;
      Difference& made =
          Add(read.key, DiffKind::kContent,
              DigestText(of_a ? std::optional(job.digest) : a_.catalog.digest(job.a)),
              DigestText(of_b ? std::optional(job.digest) : b_.catalog.digest(job.b)));
      if (job.mode == DiffJob::Mode::kValues) {
        made.values = job.values;
      }
    }
  }

  Status CompareObjects(std::string_view key) {
    const auto [first_a, last_a] = a_.catalog.FindObjects(key);
    const auto [first_b, last_b] = b_.catalog.FindObjects(key);
    bool same_ranks = last_a - first_a == last_b - first_b;
    bool same_bytes = true;
    bool opaque = false;
    for (std::size_t i = 0; same_ranks && i < last_a - first_a; ++i) {
      const ByteSpan bytes = a_.catalog.object_value(first_a + i);
      same_ranks = a_.catalog.object_rank(first_a + i) == b_.catalog.object_rank(first_b + i);
      same_bytes = same_bytes && std::ranges::equal(bytes, b_.catalog.object_value(first_b + i));
      opaque = opaque || MayHoldOpaque(bytes);
    }
    if (same_ranks && same_bytes && !opaque) {
      return OkStatus();
    }
    RESHARD_TRY_ASSIGN(Value value_a, ObjectAt(a_.catalog, first_a, last_a));
    RESHARD_TRY_ASSIGN(Value value_b, ObjectAt(b_.catalog, first_b, last_b));
    const Sameness sameness = same_ranks ? Compare(value_a, value_b) : Sameness::kDifferent;
    if (sameness == Sameness::kUnknown) {
      AddUnknown(key, value_a, value_b);
    }
    if (sameness != Sameness::kDifferent) {
      return OkStatus();
    }
    Difference& made = Add(key, DiffKind::kObject);
    made.object_a = std::move(value_a);
    made.object_b = std::move(value_b);
    return OkStatus();
  }

  void AddUnknown(std::string_view key, const Value& a, const Value& b) {
    const Opaque* in_a = FindWithoutContent(a);
    const Opaque* unknown = in_a != nullptr ? in_a : FindWithoutContent(b);
    report_.faults.push_back(
        {std::string(key),
         {ErrorCode::kUnsupported, "OPAQUE_CONTENT",
          fmt::format("{}: of an object of type {} only the type is known",
                      (in_a != nullptr ? a_ : b_).storage.description(), unknown->type),
          false, false}});
  }

  static Result<Value> ObjectAt(const Catalog& catalog, std::size_t first, std::size_t last) {
    if (catalog.object_rank(first) < 0) {
      return DecodeObject(catalog.object_value(first));
    }
    Value::Map by_rank;
    for (std::size_t i = first; i < last; ++i) {
      RESHARD_TRY_ASSIGN(Value value, DecodeObject(catalog.object_value(i)));
      by_rank.emplace_back(catalog.object_rank(i), std::move(value));
    }
    return Value(std::move(by_rank));
  }

  const DiffSource& a_;
  const DiffSource& b_;
  const DiffOptions& options_;
  DiffReport report_;
  std::set<std::string> unknown_;
  std::vector<DiffJob> jobs_;
  std::map<std::tuple<TensorId, TensorId, DiffJob::Mode>, std::size_t> jobs_by_tensors_;
  std::vector<ReadKey> read_;
};

}  // namespace

std::string_view ToString(DiffKind kind) {
  switch (kind) {
    case DiffKind::kOnlyInA:
      return "only in A";
    case DiffKind::kOnlyInB:
      return "only in B";
    case DiffKind::kKind:
      return "kind";
    case DiffKind::kDType:
      return "dtype";
    case DiffKind::kShape:
      return "shape";
    case DiffKind::kPath:
      return "path";
    case DiffKind::kContent:
      return "content";
    case DiffKind::kObject:
      break;
  }
  return "object";
}

Result<DiffReport> Diff(const DiffSource& a, const DiffSource& b, const DiffOptions& options) {
  return Differ(a, b, options).Run();
}

}  // namespace reshard
