// SPDX-License-Identifier: Apache-2.0
#include "models/train/start.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/core/check.hpp"
#include "models/data/corpus.hpp"
#include "models/data/encoded_text.hpp"
#include "models/io/file_error.hpp"
#include "models/io/output_guard.hpp"
#include "models/io/staged_directory.hpp"
#include "models/layers/gemm.hpp"
#include "models/tokenize/byte_model.hpp"
#include "models/train/checkpoint.hpp"
#include "models/train/initial_model.hpp"
#include "models/train/memory.hpp"
#include "models/train/thread_limit.hpp"

namespace headgate::train {
namespace {

/// Calls work() and converts its io::FileError to an Error about --out.
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

/// Calls note() if the next step, `step`, exists and has a different learning rate in the schedule `now` than in
/// `before`.
void note_learning_rate(const Schedule& before, const Schedule& now, std::int64_t step, const Note& note) {
  if (step > now.steps) return;
  const double was = learning_rate(before, std::min(step, before.steps)), is = learning_rate(now, step);
  if (is == was) return;
  note(fmt::format("the learning rate of step {} is {:.3g}, not {:.3g}: its schedule ends at step {}, not {}", step, is,
                   was, now.steps, before.steps));
}

/// Calls work() in each process of the group. If it throws in some processes, the one with the lowest rank among them
/// rethrows its error. All other processes throw OtherProcessFailed.
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

/// Returns the names of the inputs that must be the same in all processes of the group but are not. Empty if there are
/// none.
std::string disagreement(const Run& run) {
  const Trainer& trainer = *run.trainer;
  const auto differs = [&trainer](std::uint64_t own) {
    // Gathers 32 bits at a time, which a double represents exactly.
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

/// Throws Error about --data if one of the paths does not exist.
void require_data(const TrainSettings& settings, RunStart start) {
  for (const std::string& path : settings.paths) {
    std::error_code error;
    if (std::filesystem::exists(path, error)) continue;
    const std::string moved = start == RunStart::fresh ? "" : "; if it has moved, give its new place with --data";
    throw Error(fmt::format("--data {}: {}{}", io::shown_path(path),
                            error ? error.message() : "No such file or directory", moved));
  }
}

/// Throws Error if the run in `out` would overwrite files that it reads.
void require_separate_files(const std::string& out, const TrainSettings& settings, const std::string& config_file,
                            const std::string& init) {
  std::vector<io::NamedPath> written, read{{"--config", config_file}};
  for (const std::string& path : files_of_run(out)) written.push_back({"--out", path});
  for (const std::string& path : text_files(settings.paths, {settings.include, out})) read.push_back({"--data", path});
  if (!init.empty()) {
    for (const std::string& path : files_of_model_or_run(init)) read.push_back({"--init", path});
  }
  if (!settings.tokenizer.empty()) read.push_back({"--tokenizer", settings.tokenizer});
  io::check_overwrites(written, read);
}

/// Inputs of a run's trainer besides the run's directory and data.
struct Prepared {
  models::DecoderConfig config;
  TrainSettings settings;
  std::shared_ptr<const tokenize::TokenizerFile> tokenizer;  ///< tokenizer of the run; null: bytes are tokens
  std::vector<float> parameters;  ///< parameters of the initial model; empty: random parameters
  Checkpoint checkpoint;          ///< checkpoint of a resumed run
  TrainerState state;             ///< state of a resumed run
};

std::shared_ptr<const tokenize::TokenizerFile> open_tokenizer(const std::string& path) {
  return std::make_shared<tokenize::TokenizerFile>(tokenize::open_tokenizer_file(path));
}

/// Returns whether the tokenizer puts a token before each text. Throws Error if `chosen`, the value of --bos,
/// contradicts it.
Bos bos_of(const std::optional<Bos>& chosen, const std::string& path, const tokenize::TokenizerFile& tokenizer) {
  const Bos bos = tokenize::leading_special_ids(*tokenizer.tokenizer).empty() ? Bos::off : Bos::on;
  require(chosen.value_or(bos) == bos, "--bos {}: {} puts {} before a text", word_of(*chosen), path,
          bos == Bos::on ? "a token" : "no token");
  return bos;
}

/// Returns whether sequences of bytes begin with BOS if --bos is not given. The initial model decides, or for a text
/// the bos_token_id of --config.
Bos default_bos(const std::optional<InitialModel>& init, Task task, const std::string& config_file) {
  if (init) return init->bos();
  return task == Task::text && !config_file.empty() && tokenize::has_byte_bos(config_file) ? Bos::on : Bos::off;
}

/// Returns the path of the tokenizer of a new run; empty if bytes are tokens.
std::string tokenizer_of(const RunRequest& request, Task task, const std::optional<InitialModel>& init) {
  const auto& given = request.settings.of<&TrainSettings::tokenizer>();
  if (given || !init || init->tokenizer().empty()) return given.value_or("");
  require(task == Task::text, "--task {}: its sequences are drawn from bytes, and --init {} reads other tokens",
          word_of(task), init->path());
  return init->tokenizer();
}

/// Reads the parameters of the initial model. Before reading, throws Error if there is too little memory to train them.
std::vector<float> initial_parameters(const InitialModel& init, const Prepared& run) {
  return with_memory(parameter_memory(run.config, run.settings.trained), 0,
                     [&] { return init.parameters(run.config); });
}

/// Sets the config and the settings of a new run, but not the settings of the tokenizer. Throws Error if the config's
/// vocabulary is smaller than the tokenizer's.
void choose_model(Prepared& run, const RunRequest& request, Bos bos, const std::string& tokenizer,
                  const std::optional<InitialModel>& init) {
  const Task task = request.settings.of<&TrainSettings::task>().value_or(Task::text);
  const std::int64_t ids = run.tokenizer ? run.tokenizer->tokenizer->vocab() : 0;
  std::string vocabulary = "--vocab";
  std::int64_t seq_len = 0;
  if (init) {
    vocabulary = fmt::format("the vocabulary of --init {}:", init->path());
    run.config = make_config_from(request.model, init->config(), init->path());
    seq_len = sequence_length_from(request.model, task, run.config, init->path());
  } else {
    run.config = make_config(request.model, task, bos, ids);
    seq_len = run.config.seq_len;
  }
  require(ids <= run.config.vocab, "{} {} is less than the {} ids of {}", vocabulary, run.config.vocab, ids, tokenizer);
  run.settings = make_settings(request.settings, seq_len);
}

Prepared prepared_run(const RunRequest& request, ProcessGroup& group) {
  const std::string& out = request.directory;
  require(!request.settings.of<&TrainSettings::paths>().empty(), "--data is required");
  require(checkpoints_of(out).empty(),
          "--out {} holds a run: continue it with --resume, or start a new one in another --out", out);
  if (group.leads()) checked_out(out, [&out] { require_no_run(out); });
  const Task task = request.settings.of<&TrainSettings::task>().value_or(Task::text);
  std::optional<InitialModel> init;
  if (const auto& path = request.settings.of<&TrainSettings::init>()) init.emplace(*path);
  const std::string tokenizer = tokenizer_of(request, task, init);
  const auto& chosen_bos = request.settings.of<&TrainSettings::bos>();
  Bos bos = chosen_bos ? *chosen_bos : default_bos(init, task, request.model.config_file);
  Prepared run;
  if (!tokenizer.empty() && task == Task::text) {
    run.tokenizer = open_tokenizer(tokenizer);
    bos = bos_of(chosen_bos, tokenizer, *run.tokenizer);
  }
  choose_model(run, request, bos, tokenizer, init);
  run.settings.bos = bos;
  if (run.tokenizer) {
    run.settings.tokenizer = tokenizer;
    run.settings.tokenizer_hash = run.tokenizer->hash;
  }
  trained_parameters(models::ParameterTable(run.config), run.settings.trained);  // throws if no parameters are trained
  require_equal_shares(run.settings, group);  // early, because encoding the text may take long
  require_data(run.settings, RunStart::fresh);
  require_separate_files(out, run.settings, request.model.config_file, run.settings.init);
  layers::require_products(run.settings.threads);
  if (init) run.parameters = initial_parameters(*init, run);
  return run;
}

/// Returns the tokenizer of a resumed run: the one that the user gave, otherwise the one in the checkpoint. Throws
/// Error if the run was trained with another tokenizer.
std::shared_ptr<const tokenize::TokenizerFile> tokenizer_to_resume(const RunChoices& choices,
                                                                   const TrainSettings& settings,
                                                                   const std::string& checkpoint) {
  const auto& given = choices.of<&TrainSettings::tokenizer>();
  require(!given || !settings.tokenizer_hash.empty(), "--tokenizer {}: the tokens of the run are bytes",
          given.value_or(""));
  if (settings.tokenizer_hash.empty()) return nullptr;
  const std::string path = given.value_or(checkpoint + "/tokenizer.json");
  auto tokenizer = open_tokenizer(path);
  require(tokenizer->hash == settings.tokenizer_hash, "{}{} is another tokenizer than the run's",
          given ? "--tokenizer " : "", path);
  return tokenizer;
}

/// Throws Error that names the option, if a given option contradicts the model of a resumed run.
void require_model_of_run(const ModelChoices& choices, const Prepared& run, std::int64_t ids,
                          const std::string& checkpoint) {
  const TrainSettings& s = run.settings;
  if (s.init.empty() && repeats_config(choices, s.task, s.bos, ids, run.config)) return;
  models::DecoderConfig config = run.config;
  config.seq_len = s.seq_len;  // --init allows sequences shorter than config.seq_len
  require_options_of(choices, config, checkpoint);
}

/// Prepares a run that continues from the newest checkpoint of its directory, and locks the directory.
Prepared continued_run(Run& run, const RunRequest& request, const Note& note, ProcessGroup& group) {
  const std::string& out = request.directory;
  const std::vector<std::string> checkpoints = checkpoints_of(out);
  require(!checkpoints.empty(), "--resume: {} holds no checkpoint", newest_checkpoint(out));
  if (group.leads()) run.directory = open_directory(out, RunStart::resumed, note);
  const std::string directory = group.leads() ? run.directory->checkpoint() : checkpoints.front();
  Prepared p;
  p.checkpoint = load_checkpoint(directory, CheckpointParts::all);
  p.config = p.checkpoint.config;
  p.state = state_of(p.checkpoint, directory);
  require(request.stop_at.value_or(p.state.step + 1) > p.state.step, "--stop-at {}: {} has done {} steps already",
          request.stop_at.value_or(0), directory, p.state.step);
  const TrainSettings before = p.state.settings;
  p.state.settings = p.settings = settings_to_resume(request.settings, p.state.settings);
  p.tokenizer = tokenizer_to_resume(request.settings, p.settings, io::present_directory(directory));
  const std::int64_t ids = p.tokenizer ? p.tokenizer->tokenizer->vocab() : 0;
  require_model_of_run(request.model, p, ids, directory);
  if (checkpoints.size() > 1) {
    note(fmt::format("{} holds {} checkpoints; the newest is {}, of step {}", out, checkpoints.size(), directory,
                     p.state.step));
  }
  if (p.settings.threads != before.threads) {
    note(fmt::format("the run had {} thread{}; with {} its numbers differ in the last bits", before.threads,
                     before.threads == 1 ? "" : "s", p.settings.threads));
  }
  note_learning_rate(before.schedule, p.settings.schedule, p.state.step + 1, note);
  require_equal_shares(p.settings, group);
  require_data(p.settings, RunStart::resumed);
  require_separate_files(out, p.settings, "", "");
  layers::require_products(p.settings.threads);
  return p;
}

/// Tokenizes the text of a run into a file that all processes read. Does nothing if bytes are tokens. Runs only in the
/// leading process. For a new run, first creates the directory.
void encode_text(Run& run, const RunRequest& request, const Prepared& prepared, const Note& note, ProcessGroup& group) {
  if (!prepared.tokenizer || !group.leads()) return;
  if (!run.directory) run.directory = open_directory(request.directory, RunStart::fresh, note);
  const bool resumed = prepared.state.step > 0;
  const std::string replaced = prepare_token_file(data_of(prepared.settings, request.directory, prepared.tokenizer));
  if (resumed && !replaced.empty()) note(fmt::format("{}; the text was encoded again", replaced));
}

void open_source(Run& run, const RunRequest& request, const Prepared& prepared) {
  run.source = open_data(data_of(prepared.settings, request.directory, prepared.tokenizer));
  const std::string& config_file = request.model.config_file;
  require(config_file.empty() || prepared.config.vocab >= run.source->vocab(),
          "{}: vocab_size is {} but {} has tokens up to {}", config_file, prepared.config.vocab, run.source->name(),
          run.source->vocab() - 1);
}

}  // namespace

Run start_run(const RunRequest& request, const Note& note, ProcessGroup& group) {
  Run run;
  Prepared p;
  in_each_process(group, [&] { p = prepared_run(request, group); });
  in_each_process(group, [&] { encode_text(run, request, p, note, group); });
  in_each_process(group, [&] {
    open_source(run, request, p);
    const std::uint64_t read = p.parameters.size() * sizeof(float);
    run.trainer = with_memory(training_memory(p.config, p.settings, *run.source, group), read, [&] {
      if (p.settings.init.empty()) return std::make_unique<Trainer>(p.config, p.settings, *run.source, group);
      return std::make_unique<Trainer>(p.config, p.settings, std::move(p.parameters), *run.source, group);
    });
  });
  require_agreement(run);
  in_each_process(group, [&] {
    if (group.leads() && !run.directory) run.directory = open_directory(request.directory, RunStart::fresh, note);
  });
  return run;
}

Run resume_run(const RunRequest& request, const Note& note, ProcessGroup& group) {
  Run run;
  Prepared p;
  in_each_process(group, [&] { p = continued_run(run, request, note, group); });
  in_each_process(group, [&] { encode_text(run, request, p, note, group); });
  in_each_process(group, [&] {
    open_source(run, request, p);
    const std::uint64_t read =  // planned bytes that are already allocated: parameters and moments
        (p.checkpoint.parameters.size() + 2 * p.checkpoint.first_moment.size()) * sizeof(float);
    run.trainer = with_memory(training_memory(p.config, p.settings, *run.source, group), read, [&] {
      return std::make_unique<Trainer>(std::move(p.checkpoint), p.state, *run.source, group);
    });
  });
  require_agreement(run);
  return run;
}

}  // namespace headgate::train
