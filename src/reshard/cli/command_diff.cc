#include "reshard/cli/command_diff.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reshard/cli/address_space.h"
#include "reshard/cli/json.h"
#include "reshard/cli/open_path.h"
#include "reshard/cli/progress_bar.h"
#include "reshard/cli/text.h"
#include "reshard/engine/diff.h"

namespace reshard::cli {
namespace {

/// What leaves room for the verdict on one screen.
constexpr std::size_t kMostRows = 16;
constexpr std::size_t kMostFaults = 4;
constexpr std::size_t kCellColumns = 24;

struct DiffCommandOptions {
  std::string a;
  std::string b;
  std::string memory = "512MiB";
  DiffOptions engine;
  bool all = false;
  bool json = false;
};

/// One of the two.
struct Side {
  OpenedPath opened;
  OpenedCheckpoint checkpoint;

  std::string name() const {
    return fmt::format("{}@{}", Printable(opened.argument.path), opened.unique_id());
  }
};

Result<Side> OpenSide(const std::string& path) {
  RESHARD_TRY_ASSIGN(OpenedPath opened, OpenCheckpoint(path));
  RESHARD_TRY_ASSIGN(OpenedCheckpoint checkpoint, opened.Read());
  return Side{std::move(opened), std::move(checkpoint)};
}

/// The index of an element of the tensor.
Index ElementAt(const Catalog& catalog, std::string_view key, std::uint64_t element) {
  Index index;
  if (const std::optional<TensorId> tensor = catalog.Find(key)) {
    const auto shape = catalog.shape(*tensor);
    index.resize(shape.size());
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      index[axis] = element % shape[axis];
      element /= shape[axis];
    }
  }
  return index;
}

std::string IndexText(const Catalog& catalog, const Difference& difference) {
  return fmt::format(
      "[{}]",
      fmt::join(ElementAt(catalog, difference.key, difference.values->first.value_or(0)), ", "));
}

Json ToJson(const Side& side) {
  return {{"path", side.opened.argument.path},
          {"format", side.checkpoint.catalog.info().format},
          {"unique_id", side.opened.unique_id()}};
}

/// NaN and infinities as in objects.
Json ToJson(double number) { return cli::ToJson(Value(number)); }

Json ToJson(const Catalog& catalog, const Difference& difference) {
  Json out = {{"key", difference.key}, {"kind", ToString(difference.kind)}};
  if (difference.kind == DiffKind::kObject) {
    out["a"] = cli::ToJson(difference.object_a.value_or(Value()));
    out["b"] = cli::ToJson(difference.object_b.value_or(Value()));
    return out;
  }
  out["a"] = difference.a.empty() ? Json(nullptr) : Json(difference.a);
  out["b"] = difference.b.empty() ? Json(nullptr) : Json(difference.b);
  if (const auto& values = difference.values) {
    out["values"] = {{"elements", values->elements},
                     {"nans", values->nans},
                     {"max_abs", ToJson(values->max_abs)}};
    if (values->first) {
      out["values"]["first"] = ElementAt(catalog, difference.key, *values->first);
      out["values"]["first_a"] = values->first_a;
      out["values"]["first_b"] = values->first_b;
    }
  }
  return out;
}

Json ToJson(const Side& a, const Side& b, const DiffReport& report) {
  Json differences = Json::array();
  for (const Difference& difference : report.differences) {
    differences.push_back(ToJson(a.checkpoint.catalog, difference));
  }
  Json faults = Json::array();
  for (const DiffFault& fault : report.faults) {
    Json one = cli::ToJson(fault.error);
    one["key"] = fault.key;
    faults.push_back(std::move(one));
  }
  const bool unknown = report.differences.empty() && !report.faults.empty();
  return {{"a", ToJson(a)},
          {"b", ToJson(b)},
          {"equal", unknown ? Json(nullptr) : Json(report.equal())},
          {"tensors", report.tensors},
          {"objects", report.objects},
          {"bytes", report.bytes},
          {"by_digest", report.by_digest},
          {"by_reading", report.by_reading},
          {"bytes_read", report.bytes_read},
          {"differences", std::move(differences)},
          {"faults", std::move(faults)}};
}

std::string Cell(const std::string& text) {
  return text.empty() ? "-" : Shorten(Printable(text), kCellColumns);
}

std::string ObjectCell(const std::optional<Value>& value) {
  std::string text = value ? Line(cli::ToJson(*value)) : "\n";
  text.pop_back();
  return Cell(text);
}

std::vector<std::string> Row(const Catalog& catalog, const Difference& difference, bool values) {
  std::vector<std::string> row = {Printable(difference.key),
                                  std::string(ToString(difference.kind))};
  const auto& found = difference.values;
  if (difference.kind == DiffKind::kObject) {
    row.push_back(ObjectCell(difference.object_a));
    row.push_back(ObjectCell(difference.object_b));
  } else if (difference.kind == DiffKind::kContent && found) {
    row.push_back(Cell(found->first_a));
    row.push_back(Cell(found->first_b));
  } else {
    row.push_back(Cell(difference.a));
    row.push_back(Cell(difference.b));
  }
  if (values && found) {
    const std::optional<TensorId> tensor = catalog.Find(difference.key);
    row.push_back(
        fmt::format("{} of {}", found->elements, tensor ? NumElements(catalog.shape(*tensor)) : 0));
    row.push_back(found->nans == found->elements
                      ? (found->nans == 0 ? "0" : "-")
                      : fmt::format("{:.6g}{}", found->max_abs, found->nans > 0 ? " and NaN" : ""));
    row.push_back(found->first ? IndexText(catalog, difference) : "-");
  } else if (values) {
    row.insert(row.end(), {"-", "-", "-"});
  }
  return row;
}

std::string HowText(const DiffReport& report) {
  std::string out = fmt::format("{} compared by digest", Count(report.by_digest, "tensor"));
  if (report.by_reading > 0) {
    out += fmt::format(", {} by reading {}", report.by_reading, HumanBytes(report.bytes_read));
  }
  return out;
}

std::string Verdict(const Side& a, const Side& b, const DiffReport& report) {
  if (!report.differences.empty()) {
    return fmt::format("{} and {} differ: {}; {}\n", a.name(), b.name(),
                       Count(report.differences.size(), "difference"), HowText(report));
  }
  if (!report.faults.empty()) {
    return fmt::format("{} and {}: no difference found, but not all could be compared; {}\n",
                       a.name(), b.name(), HowText(report));
  }
  return fmt::format("{} and {} are equal: {} and {}, {}; {}\n", a.name(), b.name(),
                     Count(report.tensors, "tensor"), Count(report.objects, "object"),
                     HumanBytes(report.bytes), HowText(report));
}

std::string ToText(const DiffCommandOptions& options, const Side& a, const Side& b,
                   const DiffReport& report, std::size_t columns) {
  std::string out = Verdict(a, b, report);
  if (report.differences.empty()) {
    return out;
  }
  const bool values = options.engine.values;
  std::vector<std::string> header = {"KEY", "DIFFERENCE", "A", "B"};
  if (values) {
    header.insert(header.end(), {"ELEMENTS", "MAX ABS", "FIRST"});
  }
  Table table(std::move(header));
  const std::size_t rows =
      options.all ? report.differences.size() : std::min(report.differences.size(), kMostRows);
  for (std::size_t i = 0; i < rows; ++i) {
    table.AddRow(Row(a.checkpoint.catalog, report.differences[i], values));
  }
  out += table.Render(columns);
  if (rows < report.differences.size()) {
    out += fmt::format("... and {} more; --all lists them\n", report.differences.size() - rows);
  }
  return out;
}

class DiffCommand final : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText command_text = {
        "diff",
        "compare two checkpoints, whatever their formats and ranks",
        {"Compares keys, dtypes, shapes, nesting and objects, then the content of the tensors by "
         "their digests, which do not depend on format and ranks. Where both checkpoints have "
         "digests no data file is opened: milliseconds, whatever the size; damage in the files is "
         "for `reshard verify` to find. Where one has none, that side is read, or both. How the "
         "tensors are cut, and which share their bytes, is not compared.",
         "With --values, tensors that differ are read, and told: the first element that differs "
         "and its value in A and in B, how many do, and the largest absolute difference. "
         "Floating-point tensors of different dtypes are compared as values too. Elements of one "
         "dtype are equal when their bits are, so -0 differs from 0, by 0; NaN counts as a "
         "difference, but not in the largest.",
         "At most 16 differences are shown; --all shows every one, --json too."},
        {{"reshard diff run7/ckpt@3 run8/start", "are they the same?"},
         {"reshard diff --values --key 'model.*' run7/ckpt@3 run7/ckpt@4", "what a step changed"},
         {"reshard verify converted && reshard diff run7/ckpt converted",
          "whole, and nothing was lost"},
         {"reshard diff --json a b | jq -r '.differences[].key'", "keys that differ"}},
        "they are equal",
        "they differ",
        "could not find out (no such snapshot, damaged, not readable), or wrong usage"};
    return command_text;
  }

  void AddOptions(CLI::App& app) override {
    app.add_option("a", options_.a, "Checkpoint, or DIR@ID for one snapshot")->required();
    app.add_option("b", options_.b, "The other one")->required();
    app.add_flag("--values", options_.engine.values, "Compare differing tensors by element");
    app.add_option("--key", options_.engine.keys,
                   "Compare only keys that match the shell pattern; may be given again")
        ->type_name("GLOB")
        ->expected(1)
        ->take_all();
    app.add_flag("--all", options_.all, "Show every difference");
    app.add_option("--memory", options_.memory, "Buffers take at most so much (default: 512MiB)")
        ->type_name("SIZE");
    app.add_option("--threads", options_.engine.reading.threads,
                   "Readers at once (default: cores, at most 8)")
        ->type_name("N")
        ->check(CLI::Range(1, 256));
    app.add_flag("--json", options_.json, "Print one line of JSON");
  }

  Result<ExitCode> Run(Console& console) override {
    Result<ExitCode> code = Compare(console);
    if (!code.ok()) {
      // 1 says that they differ.
      console.Failure(code.error());
      return ExitCode::kFailed;
    }
    return code;
  }

 private:
  Result<ExitCode> Compare(Console& console) {
    SaveAddressSpace();
    RESHARD_TRY_ASSIGN(options_.engine.reading.memory_bytes, ParseSize(options_.memory));
    RESHARD_TRY_ASSIGN(const Side a, OpenSide(options_.a));
    RESHARD_TRY_ASSIGN(const Side b, OpenSide(options_.b));
    RESHARD_TRY_ASSIGN(const DiffReport report, CompareSides(a, b, console));
    console.Out(options_.json ? Line(ToJson(a, b, report))
                              : ToText(options_, a, b, report, console.out_columns()));
    const std::size_t shown = std::min(report.faults.size(), kMostFaults);
    for (std::size_t i = 0; i < shown; ++i) {
      const DiffFault& fault = report.faults[i];
      console.Message(Printable(fmt::format("warning: could not compare {}: {}",
                                            fault.key.empty() ? "all" : "'" + fault.key + "'",
                                            fault.error.message)));
    }
    if (shown < report.faults.size()) {
      console.Message(fmt::format("warning: and {} more; --json lists them",
                                  Count(report.faults.size() - shown, "key")));
    }
    return !report.differences.empty() ? ExitCode::kNo
           : report.faults.empty()     ? ExitCode::kYes
                                       : ExitCode::kFailed;
  }

  Result<DiffReport> CompareSides(const Side& a, const Side& b, const Console& console) {
    const SystemClock clock;
    ProgressBar bar(console, clock, "diff");
    options_.engine.reading.progress = [&bar](const Progress& progress) {
      bar.Update(progress);
      return OkStatus();
    };
    Result<DiffReport> report =
        Diff({a.checkpoint.catalog, *a.opened.storage, a.checkpoint.faults},
             {b.checkpoint.catalog, *b.opened.storage, b.checkpoint.faults}, options_.engine);
    if (!report.ok() && report.error().reason == "NO_SUCH_KEY") {
      report.error().message += "\n`reshard ls` lists the keys; quote the pattern";
    }
    return report;
  }

  DiffCommandOptions options_;
};

}  // namespace

std::unique_ptr<Command> NewDiffCommand() { return std::make_unique<DiffCommand>(); }

}  // namespace reshard::cli
