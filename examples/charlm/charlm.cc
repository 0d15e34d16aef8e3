// charlm: trains a character-level language model on any number of MPI ranks, and saves, resumes
// and re-cuts its checkpoints with reshard.
//
//   mpirun -n 4 charlm --out run --text book.txt --steps 200 --save-every 50 --mesh dp=2,tp=2
//   mpirun -n 3 charlm --out run --text book.txt --steps 400 --save-every 50 --mesh tp=3
//
// How a program uses reshard is in checkpoint.cc; this file is the training loop around it.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <optional>

#include "checkpoint.h"
#include "reshard/mpi/mpi_environment.h"
#include "reshard/mpi/mpi_process_group.h"

namespace charlm {
namespace {

using reshard::ErrorCode;
using reshard::MakeError;
using reshard::OkStatus;
using reshard::ProcessGroup;
using reshard::ProcessMesh;
using reshard::Result;
using reshard::Status;

/// Prints on rank 0.
template <typename... Arguments>
void Say(const ProcessGroup& world, fmt::format_string<Arguments...> format,
         Arguments&&... arguments) {
  if (world.rank() == 0) {
    fmt::print("{}\n", fmt::format(format, std::forward<Arguments>(arguments)...));
    std::fflush(stdout);
  }
}

/// Writes DIR/final in one step: a program that is killed leaves it whole or absent.
Status WriteFinal(const Run& run) {
  RESHARD_TRY_ASSIGN(const std::uint64_t digest, DigestOfSnapshot(run));
  const std::filesystem::path path = std::filesystem::path(run.options.out) / "final";
  const std::filesystem::path temporary = path.string() + ".tmp";
  std::ofstream file(temporary);
  file << fmt::format("step {}\nloss {:.6f}\ndigest {:016x}\n", run.step, run.loss, digest);
  file.close();
  std::error_code failed;
  if (file) {
    std::filesystem::rename(temporary, path, failed);
  }
  return file && !failed
             ? OkStatus()
             : MakeError(ErrorCode::kIo, "FINAL", path.string() + ": cannot be written");
}

Status SaveAndSay(Run& run, ProcessGroup& world) {
  RESHARD_TRY_ASSIGN(const std::uint64_t bytes, SaveSnapshot(run, world));
  Say(world, "saved step {} ({} KB)", run.step, bytes / 1000);
  return OkStatus();
}

/// Goes on with this run, or from where another one is, or from nothing.
Status StartOrResume(Run& run, ProcessGroup& world) {
  RESHARD_TRY_ASSIGN(const bool resumed, Resume(run.options.out, run, world));
  if (resumed) {
    Say(world, "resumed from step {}", run.step);
    return OkStatus();
  }
  if (run.options.from.empty()) {
    Say(world, "no snapshot in {}: starting from step 0", run.options.out);
    return OkStatus();
  }
  RESHARD_TRY_ASSIGN(const bool found, Resume(run.options.from, run, world));
  if (!found) {
    return MakeError(ErrorCode::kNotFound, "FROM", run.options.from + ": holds no snapshot");
  }
  Say(world, "resumed from step {} of {}", run.step, run.options.from);
  return SaveAndSay(run, world);  // so that this run stands alone from here on
}

Status TrainOneStep(Run& run) {
  const ProcessGroup& dp = run.model.dp();
  const reshard::AxisPart mine =
      reshard::CutEvenly(run.options.batch, static_cast<std::uint64_t>(dp.size()),
                         static_cast<std::uint64_t>(dp.rank()));
  const Batch batch = run.text.Samples(run.options.seed, run.step, mine.offset, mine.extent,
                                       run.model.config().context);
  RESHARD_TRY_ASSIGN(run.loss, run.model.Step(batch, run.options.batch, run.step + 1, run.lr));
  run.step += 1;
  run.samples_read += static_cast<std::int64_t>(batch.size);
  return OkStatus();
}

Result<ProcessMesh> MeshOf(const Options& options, const ProcessGroup& world) {
  const std::string text = options.mesh.empty() ? fmt::format("dp={}", world.size()) : options.mesh;
  RESHARD_TRY_ASSIGN(ProcessMesh mesh, ProcessMesh::Parse(text));
  const bool names = std::ranges::all_of(
      mesh.axis_names(), [](const std::string& name) { return name == "dp" || name == "tp"; });
  if (!names || mesh.ranks().size() != static_cast<std::size_t>(world.size())) {
    return MakeError(
        ErrorCode::kInvalidArgument, "MESH",
        fmt::format("--mesh {}: the axes are dp and tp, and their product is the number "
                    "of ranks, {}",
                    text, world.size()));
  }
  return mesh;
}

Status Train(const Options& options, ProcessGroup& world) {
  Result<Text> text = Text::Read(options.text);
  RESHARD_TRY(world.Agree(text.ok() ? OkStatus() : Status(tl::unexpected(text.error()))));
  RESHARD_TRY_ASSIGN(const ProcessMesh mesh, MeshOf(options, world));
  RESHARD_TRY_ASSIGN(
      Model model,
      Model::Create({.vocabulary = text->vocabulary(), .seed = options.seed}, mesh, world));
  Run run{options, std::move(*text), std::move(model)};
  run.lr = options.lr;

  RESHARD_TRY(StartOrResume(run, world));
  const std::uint64_t first = run.step + 1;
  while (run.step < options.steps) {
    RESHARD_TRY(TrainOneStep(run));
    if (run.step % options.log_every == 0 || run.step == first || run.step == options.steps) {
      Say(world, "step {:5}  loss {:.6f}", run.step, run.loss);
    }
    if (run.step % options.save_every == 0 || run.step == options.steps) {
      RESHARD_TRY(SaveAndSay(run, world));
    }
  }
  return world.Agree(world.rank() == 0 ? WriteFinal(run) : OkStatus());
}

/// Nothing when the options are good; else what the program ends with: 0 after --help, 2 after
/// wrong usage.
std::optional<int> Parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::string what = error.what();
    for (const std::string& argument : app.remaining()) {  // rather than what else is missing
      if (argument.starts_with('-')) {
        what = argument + ": no such option";
        break;
      }
    }
    fmt::print(stderr, "charlm: {}\nSee charlm --help.\n", what);
    return 2;
  }
  return std::nullopt;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Trains a character-level language model; resumes from --out if it holds a snapshot.");
  app.add_option("--out", options.out, "directory of the run: snapshots and `final`")->required();
  app.add_option("--text", options.text, "file to learn from")->required();
  app.add_option("--from", options.from, "start from the newest snapshot of another run");
  app.add_option("--mesh", options.mesh, "ranks per axis, as in dp=2,tp=2; default: all in dp");
  app.add_option("--steps", options.steps, "train up to this step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--save-every", options.save_every, "steps between snapshots")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--log-every", options.log_every, "steps between printed losses")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "samples per step, all ranks together")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lr", options.lr, "learning rate; a resumed run keeps its own")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of weights and data order")->capture_default_str();
  if (const std::optional<int> status = Parse(app, argc, argv)) {
    return *status;
  }
  const auto mpi = reshard::MpiEnvironment::Start(argc, argv);
  if (!mpi.ok()) {
    fmt::print(stderr, "charlm: {}\n", mpi.error().ToString());
    return 2;
  }
  const auto world = reshard::NewMpiProcessGroup(MPI_COMM_WORLD);
  const Status status =
      world.ok() ? Train(options, **world) : Status(tl::unexpected(world.error()));
  if (status.ok()) {
    return 0;
  }
  // All ranks have the same error, but for one that says that a rank is gone.
  const bool gone = status.error().code == ErrorCode::kPeerFailed;
  if (gone || !world.ok() || (*world)->rank() == 0) {
    fmt::print(stderr, "charlm: {}\n", status.error().ToString());
  }
  if (gone) {
    reshard::AbortJob(2);
  }
  return 2;
}

}  // namespace
}  // namespace charlm

// NOLINTNEXTLINE(bugprone-exception-escape): out of memory ends the job, as it should
int main(int argc, char** argv) { return charlm::Main(argc, argv); }
