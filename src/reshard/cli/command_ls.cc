#include "reshard/cli/command_ls.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "reshard/catalog/cbor.h"
#include "reshard/cli/json.h"
#include "reshard/cli/open_path.h"
#include "reshard/cli/text.h"
#include "reshard/engine/key_pattern.h"

namespace reshard::cli {
namespace {

/// Longer values are left out of --json, and shown in part in the table.
constexpr std::size_t kMostValueBytes = std::size_t{64} * 1024;
constexpr std::size_t kValueColumns = 48;

struct LsOptions {
  std::string path;
  std::vector<std::string> patterns;
  bool chunks = false;
  bool json = false;
};

/// One object of the listing: a shared value, or the values of all ranks under one key.
struct ObjectRow {
  std::string_view key;
  Path path;
  std::string_view type;
  std::optional<Json> value;
};

Result<std::vector<ObjectRow>> ReadObjects(const Catalog& catalog,
                                           const std::vector<std::string>& patterns) {
  std::vector<ObjectRow> rows;
  for (std::size_t i = 0; i < catalog.num_objects();) {
    const std::string_view key = catalog.object_key(i);
    const std::size_t last = catalog.FindObjects(key).second;
    ObjectRow row{key, catalog.object_path(i), "per-rank", Json::object()};
    std::size_t bytes = 0;
    for (; i < last; ++i) {
      bytes += catalog.object_value(i).size();
      RESHARD_TRY_ASSIGN(const Value value, DecodeObject(catalog.object_value(i)));
      if (catalog.object_rank(i) >= 0) {
        (*row.value)[std::to_string(catalog.object_rank(i))] = ToJson(value);
      } else {
        row.type = value.kind();
        row.value = ToJson(value);
      }
    }
    if (bytes > kMostValueBytes) {
      row.value.reset();
    }
    if (MatchesAnyKey(patterns, key)) {
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

Json ChunkToJson(const Catalog& catalog, TensorId tensor, std::size_t index) {
  const Chunk chunk = catalog.chunk(tensor, index);
  return {{"offset", chunk.box.ToBox().offset},
          {"extent", chunk.box.ToBox().extent},
          {"file", catalog.files()[chunk.file].name},
          {"byte_offset", chunk.byte_offset},
          {"bytes", catalog.chunk_bytes(tensor, index)}};
}

Json TensorToJson(const Catalog& catalog, TensorId tensor) {
  Json chunks = Json::array();
  for (std::size_t i = 0; i < catalog.num_chunks(tensor); ++i) {
    chunks.push_back(ChunkToJson(catalog, tensor, i));
  }
  const std::optional<std::uint64_t> digest = catalog.digest(tensor);
  const auto shape = catalog.shape(tensor);
  return {{"key", catalog.key(tensor)},
          {"path", ToJson(catalog.path(tensor))},
          {"dtype", Info(catalog.dtype(tensor)).name},
          {"shape", Shape(shape.begin(), shape.end())},
          {"bytes", catalog.num_bytes(tensor)},
          {"digest", digest ? Json(DigestText(*digest)) : Json(nullptr)},
          {"chunks", std::move(chunks)}};
}

std::string AllToJson(const Catalog& catalog, const std::vector<TensorId>& tensors,
                      const std::vector<ObjectRow>& objects) {
  Json out = {{"format", catalog.info().format},
              {"unique_id", catalog.info().unique_id},
              {"tensors", Json::array()},
              {"objects", Json::array()}};
  for (const TensorId tensor : tensors) {
    out["tensors"].push_back(TensorToJson(catalog, tensor));
  }
  for (const ObjectRow& object : objects) {
    Json entry = {{"key", object.key}, {"path", ToJson(object.path)}, {"type", object.type}};
    if (object.value) {
      entry["value"] = *object.value;
    }
    out["objects"].push_back(std::move(entry));
  }
  return Line(out);
}

std::string TensorsToText(const Catalog& catalog, const std::vector<TensorId>& tensors,
                          std::size_t columns) {
  Table table({"TENSOR", "DTYPE", "SHAPE", "SIZE", "CHUNKS", "DIGEST"});
  std::uint64_t bytes = 0;
  std::set<TensorId> stored;  // tensors that share memory count once
  for (const TensorId tensor : tensors) {
    const std::optional<std::uint64_t> digest = catalog.digest(tensor);
    bytes += stored.insert(catalog.alias_of(tensor)).second ? catalog.num_bytes(tensor) : 0;
    table.AddRow({Printable(catalog.key(tensor)), std::string(Info(catalog.dtype(tensor)).name),
                  ToString(catalog.shape(tensor)), HumanBytes(catalog.num_bytes(tensor)),
                  std::to_string(catalog.num_chunks(tensor)), digest ? DigestText(*digest) : "-"});
  }
  return table.Render(columns) +
         fmt::format("{}, {}\n", Count(tensors.size(), "tensor"), HumanBytes(bytes));
}

std::string ChunksToText(const Catalog& catalog, const std::vector<TensorId>& tensors,
                         std::size_t columns) {
  Table table({"TENSOR", "CHUNK", "FILE", "BYTES"});
  for (const TensorId tensor : tensors) {
    for (std::size_t i = 0; i < catalog.num_chunks(tensor); ++i) {
      const Chunk chunk = catalog.chunk(tensor, i);
      table.AddRow({Printable(catalog.key(tensor)), ToString(chunk.box),
                    Printable(catalog.files()[chunk.file].name),
                    fmt::format("[{}, {})", chunk.byte_offset,
                                chunk.byte_offset + catalog.chunk_bytes(tensor, i))});
    }
  }
  return table.Render(columns);
}

std::string ObjectsToText(const std::vector<ObjectRow>& objects, std::size_t columns) {
  Table table({"OBJECT", "TYPE", "VALUE"});
  for (const ObjectRow& object : objects) {
    std::string value = object.value ? Line(*object.value) : "(large)\n";
    value.pop_back();
    table.AddRow({Printable(object.key), std::string(object.type),
                  Shorten(Printable(value), kValueColumns)});
  }
  return table.Render(columns);
}

class LsCommand final : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText command_text = {
        "ls",
        "list the tensors and objects of a checkpoint",
        {"Lists every tensor with its dtype, shape, size, number of stored chunks and digest, then "
         "every object (a leaf that is no tensor) with its value. The digest is the CRC-64/XZ of "
         "the whole tensor and does not depend on how it was cut: equal tensors have equal "
         "digests. "
         "Only the catalog is read.",
         "Each PATTERN is a shell pattern for whole keys: '*' stands for any text, dots included. "
         "With several patterns, keys that match any of them are listed."},
        {{"reshard ls run7/step-100", "everything"},
         {"reshard ls run7/step-100 'model.layers.0.*'", "one layer"},
         {"reshard ls --chunks run7/step-100 '*.weight'", "which file holds which box, and where"},
         {"reshard ls --json run7/ckpt@3", "all of it for a program"}},
        "something was listed, or no pattern was given",
        "there is no such snapshot, its catalog is damaged, or nothing matches the patterns",
        "could not find out, or wrong usage"};
    return command_text;
  }

  void AddOptions(CLI::App& app) override {
    app.add_option("path", options_.path, "Checkpoint directory, or DIR@ID for one snapshot")
        ->required();
    app.add_option("pattern", options_.patterns, "Keys to list, as shell patterns");
    app.add_flag("--chunks", options_.chunks, "List the stored chunks of the tensors instead");
    app.add_flag("--json", options_.json, "Print one line of JSON");
  }

  Result<ExitCode> Run(Console& console) override {
    RESHARD_TRY_ASSIGN(const OpenedPath opened, OpenCheckpoint(options_.path));
    RESHARD_TRY_ASSIGN(const OpenedCheckpoint checkpoint, opened.Read());
    ReportFaults(checkpoint, options_.path, console);
    const Catalog& catalog = checkpoint.catalog;
    std::vector<TensorId> tensors;
    for (TensorId tensor = 0; tensor < catalog.num_tensors(); ++tensor) {
      if (MatchesAnyKey(options_.patterns, catalog.key(tensor))) {
        tensors.push_back(tensor);
      }
    }
    RESHARD_TRY_ASSIGN(const std::vector<ObjectRow> objects,
                       ReadObjects(catalog, options_.patterns));
    if (options_.json) {
      console.Out(AllToJson(catalog, tensors, objects));
    } else {
      Print(catalog, tensors, objects, console);
    }
    if (tensors.empty() && objects.empty() && !options_.patterns.empty()) {
      console.Message(fmt::format(
          "nothing in {0} matches '{1}'; `reshard ls {0}` lists all keys", Printable(options_.path),
          Printable(fmt::format("{}", fmt::join(options_.patterns, "', '")))));
      return ExitCode::kNo;
    }
    return ExitCode::kYes;
  }

 private:
  void Print(const Catalog& catalog, const std::vector<TensorId>& tensors,
             const std::vector<ObjectRow>& objects, Console& console) const {
    const std::size_t columns = console.out_columns();
    if (catalog.num_tensors() == 0 && objects.empty() && options_.patterns.empty()) {
      console.Out("no tensors\n");
      return;
    }
    if (options_.chunks) {
      console.Out(ChunksToText(catalog, tensors, columns));
      return;
    }
    if (!tensors.empty()) {
      console.Out(TensorsToText(catalog, tensors, columns));
    }
    if (!objects.empty()) {
      console.Out((tensors.empty() ? "" : "\n") + ObjectsToText(objects, columns));
    }
  }

  LsOptions options_;
};

}  // namespace

std::unique_ptr<Command> NewLsCommand() { return std::make_unique<LsCommand>(); }

}  // namespace reshard::cli
