// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "library/core/range.hpp"
#include "library/core/rows.hpp"
#include "models/data/data.hpp"
#include "models/decoder/model_precision.hpp"
#include "models/train/schedule.hpp"
#include "models/train/trained_part.hpp"

namespace headgate::train {

/// Settings that determine what a run computes, besides the model's config.
struct TrainSettings {
  std::vector<std::string> paths;
  std::vector<std::string> include;  ///< patterns that select files in directories of `paths` (FileChoice)
  Task task = Task::text;
  Bos bos = Bos::off;
  std::string init;            ///< path of the initial model; empty: random parameters
  std::string tokenizer;       ///< path of the tokenizer; empty: bytes are tokens
  std::string tokenizer_hash;  ///< TokenizerFile::hash
  std::int64_t seq_len = 256;
  std::int64_t batch = 8;       ///< number of sequences in one forward and backward pass
  std::int64_t accumulate = 1;  ///< number of forward and backward passes per training step
  Schedule schedule;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double clip = 1.0;             ///< largest gradient norm; 0: no limit
  std::uint64_t seed = 1;        ///< seed of the initial parameters and of the data's order
  std::int64_t eval_every = 0;   ///< number of steps between evaluations; 0: never
  std::int64_t eval_tokens = 0;  ///< most held-out tokens of an evaluation, at least seq_len; 0: no evaluation
  std::int64_t save_every = 0;   ///< number of steps between saves; 0: only at the end
  models::ModelPrecision precision = models::ModelPrecision::f32;
  TrainedPart trained = TrainedPart::all;
  int threads = 1;

  std::int64_t tokens_per_step() const { return seq_len * batch * accumulate; }
};

// --- the rows ----------------------------------------------------------------------------------------------------

/// Says whether --resume may change the setting.
enum class OnResume { stays, may_change };

/// Says whether a saved state must have the setting.
enum class InState { required, optional };

/// The section of --help that lists a setting's option.
enum class SettingGroup { data, run, model, optimizer };

template <typename V>
struct SettingRules {
  SettingGroup group;
  OnResume on_resume = OnResume::stays;
  Range<V> range = {};
  InState in_state = InState::required;
};

/// Describes one field of TrainSettings or of its schedule, for the saved state, the command line, the checks and the
/// documents.
template <class Owner, typename V>
struct Setting : FieldText, SettingRules<V> {
  using Value = V;
  V Owner::*member;

  constexpr Setting(V Owner::*member_in, const FieldText& text, const SettingRules<V>& rules)
      : FieldText(with_key(text)), SettingRules<V>(rules), member(member_in) {}

  template <class Settings>
  constexpr auto& of(Settings& settings) const {
    if constexpr (std::is_same_v<Owner, Schedule>) {
      return (settings.schedule.*member);
    } else {
      return (settings.*member);
    }
  }
};

inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 31;
inline constexpr Range<std::int64_t> kFromOne{1, kMaxCount};
inline constexpr Range<std::int64_t> kFromZero{0, kMaxCount};
inline constexpr Range<double> kDecayShare{.least = 0.0, .most = 1.0, .at_most = Bound::excluded};

/// Describes every setting in one row, in the order of trainer_state.json.
inline constexpr std::tuple kSettings{
    Setting(&TrainSettings::task,
            {.name = "task",
             .option = "--task",
             .type = "TASK",
             .help = "text (default), or bigram-backcopy: sequences that follow the data's bigrams, but after t, e and "
                     "space repeat the token before it. Each task has its own default sizes",
             .default_text = ""},
            {.group = SettingGroup::data}),
    Setting(
        &TrainSettings::bos,
        {.name = "bos",
         .option = "--bos",
         .type = "NAME",
         .help =
             "on: every sequence of a text begins with a token of its own (256), as those of bigram-backcopy do. With "
             "--tokenizer the tokenizer decides whether they do"},
        {.group = SettingGroup::data, .in_state = InState::optional}),
    Setting(&TrainSettings::init,
            {.name = "init",
             .option = "--init",
             .type = "MODEL",
             .help = "Start from MODEL, which `headgate eval` reads, in place of random parameters. Its sizes and, "
                     "without --tokenizer, its tokenizer are the run's. --gate may add a gate that starts as the "
                     "identity, such as headwise-sigmoid2; --seq-len may be less than MODEL's. A good --lr is smaller "
                     "than that of a new model",
             .default_text = ""},
            {.group = SettingGroup::model, .in_state = InState::optional}),
    Setting(&TrainSettings::tokenizer,
            {.name = "tokenizer",
             .option = "--tokenizer",
             .type = "PATH",
             .help = "Train on the ids of a tokenizer: a tokenizer.json, a directory that holds one, or a GGUF file. "
                     "Without it bytes are tokens",
             .default_text = ""},
            {.group = SettingGroup::data, .on_resume = OnResume::may_change, .in_state = InState::optional}),
    Setting(&TrainSettings::tokenizer_hash,
            {.name = "tokenizer_hash", .help = "Hash of its tokenizer.json, which stays", .default_text = ""},
            {.group = SettingGroup::data, .in_state = InState::optional}),
    Setting(&Schedule::decay,
            {.name = "schedule", .option = "--schedule", .type = "NAME", .help = "Learning rate after the warm-up"},
            {.group = SettingGroup::optimizer}),
    Setting(&TrainSettings::include,
            {.name = "include",
             .option = "--include",
             .type = "GLOB",
             .help = "Of the files below a directory of text, use only those whose name, or path below it, matches "
                     "GLOB: '*.txt', 'docs/*' (* also matches /). May be repeated; one match is enough",
             .default_text = ""},
            {.group = SettingGroup::data, .on_resume = OnResume::may_change, .in_state = InState::optional}),
    Setting(&TrainSettings::paths,
            {.name = "data",
             .option = "--data",
             .type = "PATH...",
             .help = "UTF-8 text: files, or directories with all files below them, except those that are not UTF-8 "
                     "and those that runs wrote. Without --tokenizer bytes are tokens; the tail (a twentieth, at most "
                     "4 MiB) is held out for evaluation",
             .default_text = ""},
            {.group = SettingGroup::data, .on_resume = OnResume::may_change}),
    Setting(&TrainSettings::seq_len,
            {.name = "seq_len", .help = "Tokens of a sequence: the model's", .default_text = ""},
            {.group = SettingGroup::run, .range = kFromOne}),
    Setting(&TrainSettings::batch, {.name = "batch", .option = "--batch", .type = "N", .help = "Sequences of one pass"},
            {.group = SettingGroup::optimizer, .range = kFromOne}),
    Setting(&TrainSettings::accumulate,
            {.name = "accumulate",
             .option = "--accumulate",
             .type = "N",
             .help = "Passes whose gradients are averaged for a step"},
            {.group = SettingGroup::optimizer, .range = kFromOne}),
    Setting(&Schedule::steps,
            {.name = "steps", .option = "--steps", .type = "N", .help = "Steps of the run, and of its schedule"},
            {.group = SettingGroup::optimizer, .on_resume = OnResume::may_change, .range = kFromOne}),
    Setting(&Schedule::peak, {.name = "lr", .option = "--lr", .type = "X", .help = "Largest learning rate"},
            {.group = SettingGroup::optimizer, .range = {0.0, 1e6}}),
    Setting(&Schedule::floor,
            {.name = "lr_floor",
             .option = "--lr-floor",
             .type = "X",
             .help = "Learning rate of the last step, as a share of --lr"},
            {.group = SettingGroup::optimizer, .range = {0.0, 1.0}}),
    Setting(&Schedule::warmup,
            {.name = "warmup",
             .option = "--warmup",
             .type = "N",
             .help = "Steps of linear warm-up",
             .default_text = "a tenth of --steps, at most 100"},
            {.group = SettingGroup::optimizer, .range = kFromZero}),
    Setting(&TrainSettings::weight_decay,
            {.name = "weight_decay",
             .option = "--weight-decay",
             .type = "X",
             .help = "Decoupled weight decay of matrices and embeddings"},
            {.group = SettingGroup::optimizer, .range = {0.0, 1e6}}),
    Setting(&TrainSettings::beta1, {.name = "beta1", .help = "Decay of the first moment"},
            {.group = SettingGroup::optimizer, .range = kDecayShare}),
    Setting(&TrainSettings::beta2,
            {.name = "beta2", .option = "--beta2", .type = "X", .help = "Decay of the second moment"},
            {.group = SettingGroup::optimizer, .range = kDecayShare}),
    Setting(&TrainSettings::eps, {.name = "eps", .help = "Added to the root of the second moment"},
            {.group = SettingGroup::optimizer, .range = {std::numeric_limits<float>::min(), 1.0}}),
    Setting(&TrainSettings::clip,
            {.name = "clip",
             .option = "--clip",
             .type = "X",
             .help = "Largest norm of the gradient",
             .remark = "0: no limit"},
            {.group = SettingGroup::optimizer, .range = {0.0, 1e30}}),
    Setting(&TrainSettings::seed,
            {.name = "seed",
             .option = "--seed",
             .type = "N",
             .help = "Seed of the initial parameters and of the order of the data"},
            {.group = SettingGroup::optimizer}),
    Setting(&TrainSettings::eval_every,
            {.name = "eval_every",
             .option = "--eval-every",
             .type = "N",
             .help = "Evaluate every N steps and at the end",
             .remark = "0: never"},
            {.group = SettingGroup::run, .on_resume = OnResume::may_change, .range = kFromZero}),
    Setting(&TrainSettings::eval_tokens,
            {.name = "eval_tokens",
             .option = "--eval-tokens",
             .type = "N",
             .help = "Held-out tokens of an evaluation, at most, in whole sequences"},
            {.group = SettingGroup::run, .on_resume = OnResume::may_change, .range = kFromZero}),
    Setting(&TrainSettings::save_every,
            {.name = "save_every",
             .option = "--save-every",
             .type = "N",
             .help = "Save every N steps and at the end",
             .remark = "0: at the end only"},
            {.group = SettingGroup::run, .on_resume = OnResume::may_change, .range = kFromZero}),
    Setting(&TrainSettings::precision,
            {.name = "precision",
             .option = models::kPrecisionOption,
             .type = "NAME",
             .help = "bf16: matrices and activations are rounded to bf16 for products and attention, which sum in f32. "
                     "Parameters, optimizer, norms, the residual stream and the loss stay f32"},
            {.group = SettingGroup::optimizer, .in_state = InState::optional}),
    Setting(&TrainSettings::trained,
            {.name = "train_only",
             .option = "--train-only",
             .type = "PART",
             .help = "Parameters that are trained. The others keep their values and have no moments"},
            {.group = SettingGroup::optimizer, .in_state = InState::optional}),
    Setting(&TrainSettings::threads,
            {.name = "threads",
             .option = "--threads",
             .type = "N",
             .help = "Threads",
             .default_text = "all cores",
             .remark = "on --resume as before"},
            {.group = SettingGroup::run, .on_resume = OnResume::may_change, .range = {1, 1024}})};

/// Throws Error that names the setting and its value, if a setting is invalid.
void validate(const TrainSettings& settings);

/// Returns whether the run's sequences begin with BOS. Sequences of bigram_backcopy always begin with it.
Bos bos_of(const TrainSettings& settings);

/// Returns the data options of a run in the directory `run`, which need not exist yet. `tokenizer` is the opened
/// tokenizer that the settings name.
DataOptions data_of(const TrainSettings& settings, const std::string& run,
                    std::shared_ptr<const tokenize::TokenizerFile> tokenizer = nullptr);

/// The state of a run besides its parameters and moments. A run that continues with all three computes the same as if
/// it had never been interrupted. The data has no state, because the index of a sequence determines its tokens.
struct TrainerState {
  TrainSettings settings;
  std::int64_t step = 0;  ///< steps done
  std::uint64_t data_fingerprint = 0;
  std::int64_t spikes = 0;
  bool inside_spike = false;
  std::vector<double> recent_losses;
};

/// Formats the state as JSON text. Numbers are bitwise identical when read back.
std::string write_state(const TrainerState& state);
/// Parses the untrusted text of a state and validates the result. Throws Error that names the key.
TrainerState read_state(const std::string& text);
/// Returns which parameters have moments, according to the untrusted text of a state, or TrainedPart::all if the text
/// does not say. Throws Error.
TrainedPart read_trained_part(const std::string& text);

}  // namespace headgate::train
