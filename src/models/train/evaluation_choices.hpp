// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/data/data.hpp"
#include "models/decoder/config.hpp"
#include "models/decoder/model_precision.hpp"
#include "models/evaluate/evaluation.hpp"
#include "models/evaluate/registry.hpp"
#include "models/families/model_file.hpp"
#include "models/train/checkpoint.hpp"
#include "models/train/settings.hpp"

// Chooses the data, metrics and sequences of evaluations from the models and the options of `headgate eval`. Error
// messages name options.

namespace headgate::train {

/// Default for EvaluationChoices::part, the number of tokens processed at a time. With this many rows, a matrix product
/// spends only a small part of its time reading weights.
inline constexpr std::int64_t kPartTokens = 2048;

/// Default for the largest number of tokens of an evaluation. A model of a billion parameters takes minutes for them.
inline constexpr std::int64_t kDefaultTokens = 65536;
/// Value of EvaluationChoices::tokens that selects every sequence of the text.
inline constexpr std::int64_t kAllTokens = std::numeric_limits<std::int64_t>::max();
/// Default number of bytes at the beginning of the text that models with different tokenizers read. They thus all read
/// the same text.
inline constexpr std::int64_t kDefaultBytes = 4 * kDefaultTokens;

/// The options of an evaluation that the user gave.
struct EvaluationChoices {
  std::vector<std::string> data, include, metrics;
  std::string token_ids;  ///< path of a .npy file of token ids, in place of `data`
  std::string task;       ///< name of the task; empty: the task on which the models were trained
  std::optional<std::int64_t> seq_len;
  std::optional<std::int64_t> tokens;      ///< maximum number of tokens; empty: kDefaultTokens
  std::optional<std::int64_t> text_bytes;  ///< number of bytes at the beginning of the text to tokenize; empty: all
  std::int64_t longest_of_others = 512;    ///< maximum default seq_len if a model has its own tokenizer
  std::optional<std::uint64_t> seed;
  std::int64_t batch = 16;
  std::int64_t part = kPartTokens;  ///< EvaluationPlan::part
  bool held_out = false;
  /// Whether every model reads the same beginning of the text, as one sequence. This part of the text is as long as
  /// possible, but has at most `tokens` tokens for each model.
  bool same_text = false;
  models::ModelPrecision precision = models::ModelPrecision::f32;
  DType cache = DType::none;     ///< EvaluationPlan::cache
  std::int64_t cache_first = 0;  ///< EvaluationPlan::cache_first
  /// Names of the roundings for EvaluationPlan::activations. One string may contain several names, separated by commas.
  std::vector<std::string> activations;
  bool against = false;  ///< whether the last model is the reference for all others
};

/// A model that was loaded from a directory or a GGUF file.
struct LoadedModel {
  std::string name;  ///< path of the model, as the user gave it
  models::DecoderConfig config;
  std::vector<float> parameters;
  std::optional<TrainSettings> trained;  ///< settings of the model's training run; empty: there is no trainer state
  bool reads_bytes = true;               ///< whether bytes are tokens; false: the model has its own tokenizer
  Bos bos = Bos::off;                    ///< whether BOS precedes a text of bytes
  std::string tokenizer{};               ///< path of the model's tokenizer, for tokenize::open_tokenizer()
};

/// Returns the directory or file from which models::ModelFile opens the model at `path`, after io::given_path() has
/// resolved it. The path may name a checkpoint, a run, a directory of another program, or a GGUF file. For a run,
/// returns its newest checkpoint. Throws io::FileError.
std::string model_path(const std::string& path);

/// Loads the model in model_path(`path`). Throws Error and io::FileError.
LoadedModel load_model(const std::string& path);
/// Returns the result of load_model(path) with empty parameters. `path` is the path that the user gave. `file` was
/// opened from model_path(path).
LoadedModel describe_model(const std::string& path, const models::ModelFile& file);

/// The data, metrics and sequences for the evaluation of a model.
struct EvaluationInput {
  std::shared_ptr<const SequenceSource> source;
  metrics::MetricList metrics;
  EvaluationPlan plan;
  /// Describes the evaluated part of the text if defaults limit it: "65536 of the text's 80000 tokens, …". Otherwise
  /// empty.
  std::string limit;
};

/// Returns one input for each model, including the reference. Options of the user come first, then the models' training
/// settings, then the defaults. Models that read the same tokens share a source. Models with different tokenizers read
/// the same text, each in its own tokens.
///
/// Throws Error if:
/// - the models disagree on something that no option sets;
/// - options contradict the models or each other;
/// - a tokenizer has more tokens than its model.
std::vector<EvaluationInput> evaluation_inputs(const EvaluationChoices& choices,
                                               const std::vector<LoadedModel>& models);

/// Compares a model with variants of itself, one for each rounding of the evaluator's plan. Then compares the model
/// with `reference`, unless it is null.
std::vector<Comparison> comparisons_of(HeldOutEvaluator& evaluator, const LoadedModel& model,
                                       const LoadedModel* reference);

}  // namespace headgate::train
