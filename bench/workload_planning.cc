// planning: a job of many ranks, simulated in one process, without any I/O.

#include <fmt/format.h>

#include <cstdlib>

#include "bench/harness.h"
#include "reshard/catalog/description.h"
#include "reshard/catalog/save_plan.h"
#include "reshard/engine/load_decision.h"
#include "reshard/format/native/catalog_codec.h"
#include "reshard/tensor/mesh.h"

namespace reshard::bench {
namespace {

template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) {
    fmt::print(stderr, "reshard_bench: {}\n", result.error().ToString());
    std::exit(2);
  }
  return std::move(*result);
}

constexpr std::uint64_t kRows = 8192;
constexpr std::uint64_t kColumns = 8192;

/// The box of tensor `i` on a rank: a third replicated, a third by row, a third by column.
Box BoxOf(std::size_t i, std::uint64_t rank, std::uint64_t ranks) {
  if (i % 3 == 0) {
    return {{0, 0}, {kRows, kColumns}};
  }
  if (i % 3 == 1) {
    const AxisPart cut = CutEvenly(kRows, ranks, rank);
    return {{cut.offset, 0}, {cut.extent, kColumns}};
  }
  const AxisPart cut = CutEvenly(kColumns, ranks, rank);
  return {{0, cut.offset}, {kRows, cut.extent}};
}

std::vector<TensorDescription> Describe(std::uint64_t rank, std::uint64_t ranks,
                                        std::size_t tensors) {
  std::vector<TensorDescription> out;
  for (std::size_t i = 0; i < tensors; ++i) {
    TensorDescription tensor;
    tensor.key = fmt::format("model.layers.{:04}.weight", i);
    tensor.dtype = DType::kBfloat16;
    tensor.shape = {kRows, kColumns};
    tensor.same_as = static_cast<std::uint32_t>(i);
    tensor.boxes = {BoxOf(i, rank, ranks)};
    out.push_back(std::move(tensor));
  }
  return out;
}

/// The reports that ranks would send after writing.
std::vector<WriteReport> MakeReports(const SavePlan& plan) {
  std::vector<WriteReport> reports;
  for (std::size_t rank = 0; rank < plan.by_writer.size(); ++rank) {
    WriteReport report;
    report.writer = static_cast<std::uint32_t>(rank);
    report.file_name = fmt::format("{}_0.safetensors", rank);
    report.payload_offset = 4096 * 256;
    report.file_size = report.payload_offset + plan.payload_bytes[rank];
    report.block_checksums.assign((plan.payload_bytes[rank] + kBlockBytes - 1) / kBlockBytes, 1);
    report.digest_parts.assign(plan.by_writer[rank].size(), 2);
    reports.push_back(std::move(report));
  }
  return reports;
}

/// Gather, check, plan, encode; then open and plan one rank's load.
void RunSize(std::uint64_t ranks, std::size_t tensors, const std::string& goal, bool with_load,
             Report& report) {
  std::vector<Bytes> sent(ranks);
  std::vector<int> global(ranks);
  ResetPeakMemory();
  const std::uint64_t before = CurrentMemory();
  double describing = 0;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    global[rank] = static_cast<int>(rank);
    const auto tensors_of_rank = Describe(rank, ranks, tensors);
    describing += Seconds([&] { sent[rank] = EncodeTensorDescriptions(tensors_of_rank); });
  }
  Bytes encoded;
  std::uint64_t plan_bytes = 0;
  const double seconds = Seconds([&] {
    const std::vector<Bytes> gathered = std::move(sent);
    const std::vector<ByteSpan> spans(gathered.begin(), gathered.end());
    const SavePlan plan = Must(PlanSave(spans, global));
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      plan_bytes += plan.EncodeFor(rank).size();
    }
    std::vector<WriteReport> reports = MakeReports(plan);
    // The reports' block checksums are data of the save, not of the plan.
    encoded = native::EncodeCatalog(Must(MakeCatalog({}, plan, reports, {}, global)));
  });
  report.Add(fmt::format("planning, {} ranks x {} tensors: check, plan, encode", ranks, tensors),
             seconds, "s", goal);
  report.Add(fmt::format("planning, {} ranks x {} tensors: peak memory", ranks, tensors),
             static_cast<double>(PeakMemory() - before) / (1 << 20), "MiB",
             with_load ? "<= 1024" : "");
  report.Note(fmt::format(
      "all ranks together spent {:.2f} s encoding; plans {:.1f} MB, catalog {:.1f} MB", describing,
      static_cast<double>(plan_bytes) / 1e6, static_cast<double>(encoded.size()) / 1e6));
  if (!with_load) {
    return;
  }
  const double opening = Seconds([&] {
    const Catalog catalog = Must(native::DecodeCatalog(encoded));
    std::vector<LoadRequest> requests;
    const std::uint64_t other = ranks / 2;
    for (TensorId tensor = 0; tensor < catalog.num_tensors(); ++tensor) {
      LoadRequest request;
      request.tensor = tensor;
      request.box = BoxOf(tensor, 3, other);
      requests.push_back(std::move(request));
    }
    Must(Summarize(catalog, requests, true));
  });
  report.Add(fmt::format("opening the catalog and planning one rank's load, {} ranks saved", ranks),
             opening * 1e3, "ms", "<= 50");
}

}  // namespace

void RunPlanning(const Options& options, Report& report) {
  static_cast<void>(options);
  RunSize(256, 1000, "", false, report);
  RunSize(1024, 1000, "<= 2", true, report);
  RunSize(8192, 1000, "<= 20", false, report);
}

}  // namespace reshard::bench
