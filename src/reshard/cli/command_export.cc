#include "reshard/cli/command_export.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/cli/interrupt.h"
#include "reshard/cli/npy.h"
#include "reshard/cli/open_path.h"
#include "reshard/cli/output_file.h"
#include "reshard/cli/progress_bar.h"
#include "reshard/cli/slice.h"
#include "reshard/cli/text.h"
#include "reshard/engine/tensor_reader.h"
#include "reshard/storage/staging_buffer.h"

namespace reshard::cli {
namespace {

constexpr std::uint64_t kMostPartBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kLeastMemory = std::uint64_t{4} << 20;
constexpr std::size_t kCachedBlocks = 4;
constexpr std::string_view kStdout = "-";

struct ExportOptions {
  std::string path;
  std::string key;
  std::string output;
  std::string memory = "64MiB";
  bool force = false;
};

/// What is exported.
struct Selection {
  TensorId tensor = 0;
  std::vector<AxisSlice> slice;
};

Error NoSuchKey(const Catalog& catalog, const std::string& path, const std::string& text) {
  const std::string key = text.substr(0, text.find('['));
  const auto [first, last] = catalog.FindObjects(key);
  if (first < last) {
    return {ErrorCode::kNotFound, "NO_SUCH_KEY",
            fmt::format("'{}' is no tensor but an object\n`reshard ls {} '{}'` shows its value",
                        Printable(key), Printable(path), Printable(key))};
  }
  std::vector<std::string> keys;
  for (TensorId tensor = 0; tensor < catalog.num_tensors(); ++tensor) {
    keys.emplace_back(catalog.key(tensor));
  }
  const std::optional<std::string> near = Nearest(key, keys);
  return {ErrorCode::kNotFound, "NO_SUCH_KEY",
          fmt::format("{} has no tensor '{}'\n{}", Printable(path), Printable(text),
                      near ? fmt::format("did you mean '{}'?", Printable(*near))
                           : fmt::format("`reshard ls {}` lists the keys", Printable(path)))};
}

/// Whether KEY or KEY[slice] is not a tensor that the checkpoint has but that cannot be read.
Status CheckReadable(const OpenedCheckpoint& checkpoint, const std::string& text) {
  if (checkpoint.catalog.Find(text)) {
    return OkStatus();
  }
  const std::string key = text.substr(0, text.rfind('['));
  for (const ForeignFault& fault : checkpoint.faults) {
    if (std::any_of(fault.keys.begin(), fault.keys.end(),
                    [&](const std::string& one) { return one == text || one == key; })) {
      return tl::unexpected<Error>(fault.error);
    }
  }
  return OkStatus();
}

/// KEY or KEY[slice]; a key that is literally there wins.
Result<Selection> Select(const Catalog& catalog, const std::string& path, const std::string& text) {
  if (const std::optional<TensorId> whole = catalog.Find(text)) {
    return Selection{*whole, WholeSlice(catalog.shape(*whole))};
  }
  const std::size_t bracket = text.rfind('[');
  const std::optional<TensorId> tensor = bracket != std::string::npos && text.back() == ']'
                                             ? catalog.Find(text.substr(0, bracket))
                                             : std::nullopt;
  if (!tensor) {
    return tl::unexpected<Error>(NoSuchKey(catalog, path, text));
  }
  const auto shape = catalog.shape(*tensor);
  Result<std::vector<AxisSlice>> slice =
      ParseSlice(std::string_view(text).substr(bracket + 1, text.size() - bracket - 2), shape);
  if (!slice.ok()) {
    return tl::unexpected<Error>(slice.error().WithContext(
        fmt::format("tensor '{}' of shape {}", Printable(catalog.key(*tensor)), ToString(shape))));
  }
  return Selection{*tensor, std::move(*slice)};
}

/// Writes the elements, part by part.
class Exporter {
 public:
  using Sink = std::function<Status(ByteSpan)>;

  Exporter(TensorReader& reader, const Selection& selection, Sink sink, ProgressBar& bar)
      : reader_(reader), selection_(selection), sink_(std::move(sink)), bar_(bar) {}

  Status Run(std::uint64_t memory_bytes) {
    const Catalog& catalog = reader_.catalog();
    item_bytes_ = Info(catalog.dtype(selection_.tensor)).unit_bytes;
    total_ = NumElements(ShapeOf(selection_.slice)) * item_bytes_;
    const std::uint64_t fixed = (kCachedBlocks + 2) * kBlockBytes;
    const std::uint64_t part = std::min(kMostPartBytes, (memory_bytes - fixed) / 2);
    return ForEachPart(selection_.slice, item_bytes_, part,
                       [this](const std::vector<AxisSlice>& slice) { return WritePart(slice); });
  }

 private:
  Status WritePart(const std::vector<AxisSlice>& slice) {
    RESHARD_TRY(InterruptGuard::Check());
    const Box box = CoverOf(slice);
    const std::uint64_t bytes = NumElements(ShapeOf(slice)) * item_bytes_;
    RESHARD_TRY_ASSIGN(const MutableByteSpan cover,
                       Memory(cover_, NumElements(box.extent) * item_bytes_));
    RESHARD_TRY(reader_.ReadBox(selection_.tensor, box, cover));
    if (std::all_of(slice.begin(), slice.end(), [](const AxisSlice& a) { return a.step == 1; })) {
      RESHARD_TRY(sink_(cover));
    } else {
      RESHARD_TRY_ASSIGN(const MutableByteSpan picked, Memory(picked_, bytes));
      PickFromCover(slice, item_bytes_, cover.data(), picked.data());
      RESHARD_TRY(sink_(picked));
    }
    done_ += bytes;
    bar_.Update({done_, total_});
    return OkStatus();
  }

  /// The first part is the largest but for rounding, so the buffer is made about once.
  static Result<MutableByteSpan> Memory(StagingBuffer& buffer, std::uint64_t bytes) {
    if (buffer.size() < bytes) {
      buffer = StagingBuffer();
      RESHARD_TRY_ASSIGN(buffer, StagingBuffer::Allocate(bytes));
    }
    return buffer.span().first(bytes);
  }

  TensorReader& reader_;
  const Selection& selection_;
  Sink sink_;
  ProgressBar& bar_;
  std::uint32_t item_bytes_ = 1;
  std::uint64_t total_ = 0;
  std::uint64_t done_ = 0;
  StagingBuffer cover_;
  StagingBuffer picked_;
};

class ExportCommand final : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText command_text = {
        "export",
        "write a tensor, or a slice of one, as a NumPy .npy file",
        {"KEY is a flat key as `reshard ls` shows it, or KEY[SLICE] with NumPy's meaning: integers "
         "drop an axis, ranges START:STOP:STEP, negative numbers, and '...'. Quote it for the "
         "shell. A key that is literally in the checkpoint wins over a slice of another one.",
         "Only the blocks that hold the slice are read, and verified, in parts of bounded memory. "
         "The file appears when it is complete; an interrupted export leaves nothing.",
         "NumPy has no bfloat16 and no 8-bit floats: they are written as raw elements, as NumPy "
         "itself saves arrays of ml_dtypes. Load them with np.load(f).view(ml_dtypes.bfloat16), or "
         "ml_dtypes.float8_e4m3fn and so on. Types of less than a byte cannot be exported."},
        {{"reshard export run7/ckpt model.w", "the whole tensor to model.w.npy"},
         {"reshard export run7/ckpt 'model.w[0:4, ::2]' -o w.npy", "every other column of 4 rows"},
         {"reshard export run7/ckpt@3 'model.emb[-1]' -o - | sha256sum",
          "the last row, to a program"}},
        "the file was written",
        "there is no such snapshot or tensor, or bytes that are needed are damaged or missing",
        "a slice that does not fit, could not read or write, or wrong usage"};
    return command_text;
  }

  void AddOptions(CLI::App& app) override {
    app.add_option("path", options_.path, "Checkpoint directory, or DIR@ID for one snapshot")
        ->required();
    app.add_option("key", options_.key, "Key of a tensor, or KEY[SLICE]")->required();
    app.add_option("-o,--output", options_.output,
                   "File to write, - for stdout (default: KEY.npy in this folder)")
        ->type_name("FILE");
    app.add_option("--memory", options_.memory,
                   "Buffers take at most so much (default: 64MiB, least: 4MiB)")
        ->type_name("SIZE");
    app.add_flag("--force", options_.force, "Replace FILE if it exists");
  }

  Result<ExitCode> Run(Console& console) override {
    RESHARD_TRY_ASSIGN(memory_bytes_, ParseSize(options_.memory));
    if (memory_bytes_ < kLeastMemory) {
      return MakeError(
          ErrorCode::kInvalidArgument, "BAD_SIZE",
          fmt::format("--memory {} is too small\ngive 4MiB or more", Printable(options_.memory)));
    }
    RESHARD_TRY_ASSIGN(const OpenedPath opened, OpenCheckpoint(options_.path));
    RESHARD_TRY_ASSIGN(const OpenedCheckpoint checkpoint, opened.Read());
    ReportFaults(checkpoint, options_.path, console);
    const Catalog& catalog = checkpoint.catalog;
    RESHARD_TRY(CheckReadable(checkpoint, options_.key));
    RESHARD_TRY_ASSIGN(const Selection selection, Select(catalog, options_.path, options_.key));
    const DType dtype = catalog.dtype(selection.tensor);
    RESHARD_TRY_ASSIGN(const std::string descr, NpyDescr(dtype));
    const Shape shape = ShapeOf(selection.slice);
    const std::string header = NpyHeader(descr, shape);
    TensorReader reader(catalog, *opened.storage, {true, kCachedBlocks, 16});
    if (options_.output == kStdout) {
      return ToStdout(console, reader, selection, header);
    }
    const std::string name =
        options_.output.empty() ? SafeFileName(fmt::format("{}.npy", catalog.key(selection.tensor)))
                                : options_.output;
    RESHARD_TRY(ToFile(console, reader, selection, header, name));
    const std::string view = NpyView(dtype);
    console.Out(fmt::format("{}: {} {}, {}{}\n", Printable(name), Info(dtype).name, ToString(shape),
                            HumanBytes(NumBytes(shape, dtype)),
                            view.empty() ? "" : fmt::format("; np.load(FILE).{}", view)));
    return ExitCode::kYes;
  }

 private:
  Result<ExitCode> ToStdout(Console& console, TensorReader& reader, const Selection& selection,
                            const std::string& header) const {
    if (console.out_columns() > 0) {
      return MakeError(ErrorCode::kInvalidArgument, "USAGE",
                       "stdout is a terminal\nsend it to a program or a file, or name a file "
                       "with -o");
    }
    RESHARD_TRY(Write(console, reader, selection, header, [&console](ByteSpan bytes) {
      console.Out(AsText(bytes));
      return console.Finish();
    }));
    return ExitCode::kYes;
  }

  Status ToFile(const Console& console, TensorReader& reader, const Selection& selection,
                const std::string& header, const std::string& name) const {
    const InterruptGuard guard;
    RESHARD_TRY_ASSIGN(OutputFile file, OutputFile::Create(name, options_.force));
    RESHARD_TRY(Write(console, reader, selection, header,
                      [&file](ByteSpan bytes) { return file.Write(bytes); }));
    return file.Commit();
  }

  Status Write(const Console& console, TensorReader& reader, const Selection& selection,
               const std::string& header, const Exporter::Sink& sink) const {
    const SystemClock clock;
    ProgressBar bar(console, clock, "export");
    RESHARD_TRY(sink(AsBytes(header)));
    return Exporter(reader, selection, sink, bar).Run(memory_bytes_);
  }

  ExportOptions options_;
  std::uint64_t memory_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Command> NewExportCommand() { return std::make_unique<ExportCommand>(); }

}  // namespace reshard::cli
