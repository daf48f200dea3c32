// SPDX-License-Identifier: Apache-2.0
#include "models/train/start.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/core/check.hpp"
#include "models/data/corpus.hpp"
#include "models/io/file_error.hpp"
#include "models/io/output_guard.hpp"
#include "models/layers/gemm.hpp"
#include "models/train/checkpoint.hpp"
#include "models/train/memory.hpp"
#include "models/train/thread_limit.hpp"

namespace headgate::train {
namespace {

/// Calls work() and reports its io::FileError as an error of --out.
template <class Work>
auto checked_out(const std::string& directory, const Work& work) {
  try {
    return work();
  } catch (const io::FileError& error) {
    throw Error(fmt::format("--out {} cannot be used: {}", directory, error.what()));
  }
}

std::unique_ptr<RunDirectory> open_directory(const std::string& path, RunStart start, const Note& note) {
  auto directory = checked_out(path, [&] { return std::make_unique<RunDirectory>(path, start); });
  if (!directory->lock_unavailable().empty()) {
    note(fmt::format("{} cannot be locked ({}): a second trainer could use it at the same time", path,
                     directory->lock_unavailable()));
  }
  return directory;
}

/// Reads the state of a checkpoint. Error messages name `directory`.
TrainerState state_of(const Checkpoint& checkpoint, const std::string& directory) {
  try {
    return read_state(checkpoint.trainer_state);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", directory, error.what()));
  }
}

/// Returns the settings of the resumed run. Throws if its number of threads is too large for this machine.
TrainSettings settings_to_resume(const RunChoices& choices, const TrainSettings& run) {
  TrainSettings settings = resumed_settings(choices, run);
  const std::string complaint = thread_complaint(std::to_string(settings.threads));
  require(complaint.empty(), "the run's {}; --threads N continues it with fewer", complaint);
  return settings;
}

/// Calls work() in each process of the group. If it fails in any, throws the error in the first of those, and
/// OtherProcessFailed in the others.
template <class Work>
void in_each_process(ProcessGroup& group, const Work& work) {
  std::exception_ptr error;
  try {
    work();
  } catch (...) {
    error = std::current_exception();
  }
  const std::vector<double> failed = group.gather(error != nullptr ? 1.0 : 0.0);
  const auto first = std::find(failed.begin(), failed.end(), 1.0);
  if (first == failed.end()) return;
  if (first - failed.begin() == group.rank()) std::rethrow_exception(error);
  throw OtherProcessFailed("another process of the run has failed");
}

/// Returns, in words, what the processes of the group must have in common but do not; empty if they agree.
std::string disagreement(const Run& run) {
  const Trainer& trainer = *run.trainer;
  const auto differs = [&trainer](std::uint64_t own) {
    // As a double, half of the bits at a time are exact.
    bool same = true;
    for (const std::uint64_t half : {own >> 32, own & 0xFFFFFFFF}) {
      const std::vector<double> all = trainer.group().gather(static_cast<double>(half));
      same = same && std::all_of(all.begin(), all.end(), [&all](double each) { return each == all.front(); });
    }
    return !same;
  };
  const auto hash = [](std::string_view text) { return std::uint64_t{std::hash<std::string_view>()(text)}; };
  const std::vector<float>& parameters = trainer.parameters();
  const std::string_view bytes(reinterpret_cast<const char*>(parameters.data()), parameters.size() * sizeof(float));
  std::vector<std::string> different;
  if (differs(run.source->fingerprint())) different.emplace_back("data");
  TrainerState settings;
  settings.settings = trainer.settings();
  if (differs(hash(write_state(settings)))) different.emplace_back("settings");
  if (differs(hash(bytes))) different.emplace_back("parameters");
  if (differs(hash(active_target()))) different.emplace_back("vector targets (HEADGATE_ISA)");
  return fmt::format("{}", fmt::join(different, ", "));
}

void require_agreement(const Run& run) {
  if (run.trainer->group().size() == 1) return;
  const std::string different = disagreement(run);
  in_each_process(run.trainer->group(),
                  [&] { require(different.empty(), "the processes of the run differ in their {}", different); });
}

/// Throws Error if the run in `out` would overwrite files that it reads.
void require_separate_files(const std::string& out, const TrainSettings& settings, const std::string& config_file) {
  std::vector<io::NamedPath> written, read{{"--config", config_file}};
  for (const std::string& path : files_of_run(out)) written.push_back({"--out", path});
  for (const std::string& path : text_files(settings.paths, {settings.include, out})) read.push_back({"--data", path});
  io::check_overwrites(written, read);
}

/// Prepares everything of a new run except its directory.
Run prepared_run(const RunRequest& request, ProcessGroup& group) {
  const std::string& out = request.directory;
  require(!request.settings.of<&TrainSettings::paths>().empty(), "--data is required");
  require(checkpoints_of(out).empty(),
          "--out {} holds a run: continue it with --resume, or start a new one in another --out", out);
  if (group.leads()) checked_out(out, [&out] { require_no_run(out); });
  const Task task = request.settings.of<&TrainSettings::task>().value_or(Task::text);
  const Bos bos = request.settings.of<&TrainSettings::bos>().value_or(Bos::off);
  const models::DecoderConfig config = make_config(request.model, task, bos);
  const TrainSettings settings = make_settings(request.settings, config.seq_len);
  require_separate_files(out, settings, request.model.config_file);
  layers::require_products(settings.threads);
  Run run;
  run.source = open_data(data_of(settings, out));
  const std::string& config_file = request.model.config_file;
  require(config_file.empty() || config.vocab >= run.source->vocab(), "{}: vocab_size is {} but {} has tokens up to {}",
          config_file, config.vocab, run.source->name(), run.source->vocab() - 1);
  run.trainer = with_memory(training_memory(config, settings, *run.source, group), 0,
                            [&] { return std::make_unique<Trainer>(config, settings, *run.source, group); });
  return run;
}

/// Prepares a run that continues from the newest checkpoint of its directory.
Run continued_run(const RunRequest& request, const Note& note, ProcessGroup& group) {
  const std::string& out = request.directory;
  const std::vector<std::string> checkpoints = checkpoints_of(out);
  require(!checkpoints.empty(), "--resume: {} holds no checkpoint", newest_checkpoint(out));
  Run run;
  if (group.leads()) run.directory = open_directory(out, RunStart::resumed, note);
  const std::string directory = group.leads() ? run.directory->checkpoint() : checkpoints.front();
  Checkpoint checkpoint = load_checkpoint(directory, CheckpointParts::all);
  TrainerState state = state_of(checkpoint, directory);
  const int threads_before = state.settings.threads;
  state.settings = settings_to_resume(request.settings, state.settings);
  const bool same_model =
      !request.model.any() || make_config(request.model, state.settings.task, state.settings.bos) == checkpoint.config;
  require(same_model, "the options describe another model than the one in {}: omit them on --resume", directory);
  if (checkpoints.size() > 1) {
    note(fmt::format("{} holds {} checkpoints; the newest is {}, of step {}", out, checkpoints.size(), directory,
                     state.step));
  }
  if (state.settings.threads != threads_before) {
    note(fmt::format("the run had {} threads; with {} its numbers differ in the last bits", threads_before,
                     state.settings.threads));
  }
  require_separate_files(out, state.settings, "");
  layers::require_products(state.settings.threads);
  run.source = open_data(data_of(state.settings, out));
  const std::uint64_t read =
      3 * checkpoint.parameters.size() * sizeof(float);  // parameters and moments, which the plan counts
  run.trainer = with_memory(training_memory(checkpoint.config, state.settings, *run.source, group), read, [&] {
    return std::make_unique<Trainer>(std::move(checkpoint), state, *run.source, group);
  });
  return run;
}

}  // namespace

Run start_run(const RunRequest& request, const Note& note, ProcessGroup& group) {
  Run run;
  in_each_process(group, [&] { run = prepared_run(request, group); });
  require_agreement(run);
  in_each_process(group, [&] {
    if (group.leads()) run.directory = open_directory(request.directory, RunStart::fresh, note);
  });
  return run;
}

Run resume_run(const RunRequest& request, const Note& note, ProcessGroup& group) {
  Run run;
  in_each_process(group, [&] { run = continued_run(request, note, group); });
  require_agreement(run);
  return run;
}

}  // namespace headgate::train
