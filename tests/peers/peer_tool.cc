// Loads and saves checkpoints of known content (peer_content.h), for tests in which another
// framework has written or will read them.
//
//   peer_tool check DIR SPEC.json [--id N] [--ranks N] [--cast] [--partial]
//   peer_tool save DIR SPEC.json [--format F] [--ranks N] [--overwrite]
//
// SPEC.json: {"tensors": [{"path": [...], "dtype": "...", "shape": [...], "seed": n, "boxes":
// ...}], "objects": [{"path": [...], "value": ...}]}, where a number in a path is a position in a
// list, and a value {"bytes": "hex"} or {"items": [[key, value], ...]} (a map with keys of any
// kind) or else as it stands. `check` loads whole tensors, rows and columns on 1, 2 and 3 ranks
// (threads; --ranks: on N only) and compares every byte. --partial: the checkpoint may hold more.
// `boxes`, for `save`: per rank a list of [offset, extent]; without it every rank has the whole
// tensor. Exit status: 0 done, all bytes right; 1 not: what, on stderr; 2 usage.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "reshard/engine/load.h"
#include "reshard/engine/save.h"
#include "tests/peers/peer_content.h"
#include "tests/support/ranks.h"

namespace reshard::testing {
namespace {

using Json = nlohmann::json;

struct SpecObject {
  Json path;
  Value value;
};

struct SpecTensor {
  Json path;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::uint64_t seed = 0;
  std::vector<std::vector<Box>> boxes;  // per rank; empty: whole on every rank
};

struct Options {
  std::string directory;
  std::vector<SpecTensor> tensors;
  std::vector<SpecObject> objects;
  std::optional<std::uint64_t> id;
  int ranks = 0;
  std::string format = "native";
  bool cast = false;
  bool partial = false;
  bool overwrite = false;
};

// Failures of all ranks, one line each.
class Failures {
 public:
  void Add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    std::fprintf(stderr, "peer_tool: %s\n", text.c_str());
    any_ = true;
  }

  bool any() const { return any_; }

 private:
  std::mutex mutex_;
  bool any_ = false;
};

std::vector<std::vector<Box>> ReadBoxes(const Json& ranks) {
  std::vector<std::vector<Box>> out;
  for (const Json& rank : ranks) {
    out.emplace_back();
    for (const Json& box : rank) {
      out.back().push_back({box.at(0).get<Index>(), box.at(1).get<Index>()});
    }
  }
  return out;
}

Bytes FromHex(const std::string& text) {
  Bytes out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    out.push_back(static_cast<std::byte>(std::stoul(text.substr(i, 2), nullptr, 16)));
  }
  return out;
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as the test's own file
Value ReadValue(const Json& json) {
  if (json.is_boolean()) {
    return json.get<bool>();
  }
  if (json.is_number_integer()) {
    return json.get<std::int64_t>();
  }
  if (json.is_number()) {
    return json.get<double>();
  }
  if (json.is_string()) {
    return json.get<std::string>();
  }
  if (json.is_array()) {
    Value::List list;
    for (const Json& item : json) {
      list.push_back(ReadValue(item));
    }
    return list;
  }
  if (!json.is_object()) {
    return {};
  }
  if (json.contains("bytes")) {
    return FromHex(json.at("bytes").get<std::string>());
  }
  Value::Map map;
  for (const Json& item : json.at("items")) {
    const Json& key = item.at(0);
    map.emplace_back(
        key.is_string() ? MapKey(key.get<std::string>()) : MapKey(key.get<std::int64_t>()),
        ReadValue(item.at(1)));
  }
  return map;
}

void ReadSpec(const std::string& path, Options& options) {
  std::ifstream in(path);
  const Json document = Json::parse(in);
  for (const Json& entry : document.at("tensors")) {
    SpecTensor tensor;
    tensor.path = entry.at("path");
    tensor.dtype = DTypeFromName(entry.at("dtype").get<std::string>()).value();
    tensor.shape = entry.at("shape").get<Shape>();
    tensor.seed = entry.at("seed").get<std::uint64_t>();
    if (entry.contains("boxes")) {
      tensor.boxes = ReadBoxes(entry.at("boxes"));
    }
    options.tensors.push_back(std::move(tensor));
  }
  for (const Json& entry : document.value("objects", Json::array())) {
    options.objects.push_back({entry.at("path"), ReadValue(entry.at("value"))});
  }
}

Value& At(StateDict& state, const Json& path) {
  Value* node = &state;
  for (const Json& part : path) {
    if (part.is_string()) {
      node = &(*node)[part.get<std::string>()];
      continue;
    }
    if (node->is_null()) {
      *node = Value::List();
    }
    auto& list = *node->get_if<Value::List>();
    const auto position = part.get<std::size_t>();
    list.resize(std::max(list.size(), position + 1));
    node = &list[position];
  }
  return *node;
}

Tensor MakeTensor(const SpecTensor& spec, std::vector<Box> boxes) {
  Tensor tensor{spec.dtype, spec.shape, {}};
  for (Box& box : boxes) {
    tensor.shards.push_back(AllocateShard(spec.dtype, std::move(box)));
  }
  return tensor;
}

// Elements of the tensor's shards that differ from the formula.
std::uint64_t CountOthers(const Tensor& tensor, std::uint64_t seed) {
  std::uint64_t wrong = 0;
  for (const TensorShard& shard : tensor.shards) {
    ForEachUnit(shard, tensor.global_shape, tensor.dtype,
                [&](const std::byte* unit, std::uint64_t at) {
                  std::byte want[kMaxElementBytes];
                  const std::uint32_t size = Info(tensor.dtype).unit_bytes;
                  const bool known = PutElement(tensor.dtype, at / size, seed, want) == size;
                  wrong += !known || std::memcmp(unit, want, size) != 0 ? 1 : 0;
                });
  }
  return wrong;
}

void Fill(Tensor& tensor, std::uint64_t seed) {
  for (TensorShard& shard : tensor.shards) {
    ForEachUnit(shard, tensor.global_shape, tensor.dtype, [&](std::byte* unit, std::uint64_t at) {
      PutElement(tensor.dtype, at / Info(tensor.dtype).unit_bytes, seed, unit);
    });
  }
}

// The boxes that a rank wants in a layout: the whole tensor, or its part of the first or last axis.
std::vector<Box> WantedBoxes(const SpecTensor& spec, const std::string& layout, int rank,
                             int ranks) {
  Box box = WholeBox(spec.shape);
  if (layout != "whole" && !spec.shape.empty()) {
    const std::size_t axis = layout == "row" ? 0 : spec.shape.size() - 1;
    const AxisPart part = CutEvenly(spec.shape[axis], static_cast<std::uint64_t>(ranks),
                                    static_cast<std::uint64_t>(rank));
    box.offset[axis] = part.offset;
    box.extent[axis] = part.extent;
  }
  return IsEmpty(box) ? std::vector<Box>() : std::vector<Box>{box};
}

// Keys that a framework adds by itself.
bool IsBookkeeping(const std::string& key) {
  return key.find("StructuredToParameterName@@") != std::string::npos;
}

void CheckRank(const Options& options, const std::string& layout, ProcessGroup& group,
               Failures& failures) {
  StateDict state = Value::Map();
  for (const SpecTensor& spec : options.tensors) {
    At(state, spec.path) = MakeTensor(spec, WantedBoxes(spec, layout, group.rank(), group.size()));
  }
  for (const SpecObject& spec : options.objects) {
    At(state, spec.path) = Value();
  }
  LoadOptions load;
  load.unique_id = options.id;
  load.dtype = options.cast ? DTypePolicy::kCast : DTypePolicy::kExact;
  const auto report = Load(state, options.directory, group, load);
  const std::string where = fmt::format("{} rank {} of {}", layout, group.rank(), group.size());
  if (!report.ok()) {
    failures.Add(fmt::format("{}: {}", where, report.error().ToString()));
    return;
  }
  for (const std::string& key : report->unexpected) {
    if (!options.partial && !IsBookkeeping(key)) {
      failures.Add(fmt::format("{}: unexpected {}", where, key));
    }
  }
  for (const SpecTensor& spec : options.tensors) {
    const std::uint64_t wrong = CountOthers(*At(state, spec.path).get_if<Tensor>(), spec.seed);
    if (wrong != 0) {
      failures.Add(fmt::format("{}: {} has {} wrong elements", where, spec.path.dump(), wrong));
    }
  }
  for (const SpecObject& spec : options.objects) {
    if (!(At(state, spec.path) == spec.value)) {
      failures.Add(fmt::format("{}: the object {} differs", where, spec.path.dump()));
    }
  }
}

void Check(const Options& options, Failures& failures) {
  for (int ranks = 1; ranks <= 3; ++ranks) {
    const int used = options.ranks > 0 ? options.ranks : ranks;
    for (const char* layout : {"whole", "row", "column"}) {
      RunRanks(used, [&](ProcessGroup& group) { CheckRank(options, layout, group, failures); });
    }
    if (options.ranks > 0) {
      return;
    }
  }
}

void SaveRank(const Options& options, ProcessGroup& group, Failures& failures) {
  StateDict state = Value::Map();
  for (const SpecTensor& spec : options.tensors) {
    std::vector<Box> boxes = {WholeBox(spec.shape)};
    if (!spec.boxes.empty()) {
      boxes = spec.boxes.at(static_cast<std::size_t>(group.rank()));
    }
    Tensor tensor = MakeTensor(spec, std::move(boxes));
    Fill(tensor, spec.seed);
    At(state, spec.path) = std::move(tensor);
  }
  for (const SpecObject& spec : options.objects) {
    At(state, spec.path) = spec.value;
  }
  SaveOptions save;
  save.format = options.format;
  save.overwrite = options.overwrite;
  save.unique_id = options.id;
  const auto saved = Save(state, options.directory, group, save);
  if (!saved.ok()) {
    failures.Add(fmt::format("save, rank {}: {}", group.rank(), saved.error().ToString()));
  }
}

int Usage(const std::string& problem) {
  std::fprintf(stderr, "peer_tool: %s; see the head of peer_tool.cc\n", problem.c_str());
  return 2;
}

// Options after DIR and SPEC; what is wrong with them, or nothing.
std::string ReadOptions(const std::vector<std::string>& words, Options& options) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--cast") {
      options.cast = true;
    } else if (word == "--partial") {
      options.partial = true;
    } else if (word == "--overwrite") {
      options.overwrite = true;
    } else if (i + 1 == words.size()) {
      return fmt::format("unknown option or no value: {}", word);
    } else if (word == "--id") {
      options.id = std::stoull(words[++i]);
    } else if (word == "--ranks") {
      options.ranks = std::stoi(words[++i]);
    } else if (word == "--format") {
      options.format = words[++i];
    } else {
      return fmt::format("unknown option: {}", word);
    }
  }
  return "";
}

int Run(const std::vector<std::string>& words) {
  if (words.size() < 3 || (words[0] != "check" && words[0] != "save")) {
    return Usage("wanted: check|save DIR SPEC.json [OPTIONS]");
  }
  Options options;
  options.directory = words[1];
  ReadSpec(words[2], options);
  const std::string problem = ReadOptions({words.begin() + 3, words.end()}, options);
  if (!problem.empty()) {
    return Usage(problem);
  }
  Failures failures;
  if (words[0] == "check") {
    Check(options, failures);
  } else {
    RunRanks(std::max(options.ranks, 1),
             [&](ProcessGroup& group) { SaveRank(options, group, failures); });
  }
  return failures.any() ? 1 : 0;
}

}  // namespace
}  // namespace reshard::testing

int main(int argc, char** argv) {
  return reshard::testing::Run(std::vector<std::string>(argv + 1, argv + argc));
}
