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

// Converts the options of `headgate eval` and the models to evaluations: data, metrics and sequences. Error messages
// name options.

namespace headgate::train {

/// Default for the maximum number of tokens that pass through a layer at a time. With this many rows, reading the
/// weights takes only a small part of the time of a matrix product.
inline constexpr std::int64_t kPartTokens = 2048;

/// Default for the maximum number of tokens of an evaluation: minutes for a model of a billion parameters.
inline constexpr std::int64_t kDefaultTokens = 65536;
/// Value of EvaluationChoices::tokens that selects every sequence of the text.
inline constexpr std::int64_t kAllTokens = std::numeric_limits<std::int64_t>::max();
/// Default number of bytes, from the beginning of the text, that models with different tokens read. All of them thus
/// read the same text.
inline constexpr std::int64_t kDefaultBytes = 4 * kDefaultTokens;

/// The options of an evaluation that the user gave.
struct EvaluationChoices {
  std::vector<std::string> data, include, metrics;
  std::string token_ids;  ///< path of a .npy file of token ids, in place of `data`
  std::string task;       ///< name of the task; empty: the task on which the models were trained
  std::optional<std::int64_t> seq_len;
  std::optional<std::int64_t> tokens;      ///< maximum number of tokens; empty: kDefaultTokens
  std::optional<std::int64_t> text_bytes;  ///< number of bytes, from the beginning of the text, that a tokenizer reads
  std::int64_t longest_of_others = 512;    ///< default maximum of seq_len for models that do not read bytes
  std::optional<std::uint64_t> seed;
  std::int64_t batch = 16;
  std::int64_t part = kPartTokens;  ///< EvaluationPlan::part
  bool held_out = false;
  /// Evaluates one sequence per model. All sequences cover the same text: its longest beginning with at most `tokens`
  /// tokens for every model.
  bool same_text = false;
  models::ModelPrecision precision = models::ModelPrecision::f32;
};

/// A model that was loaded from a directory or a GGUF file.
struct LoadedModel {
  std::string name;  ///< path of the model, as the user gave it
  models::DecoderConfig config;
  std::vector<float> parameters;
  std::optional<TrainSettings> trained;  ///< settings of the model's training run; empty: there is no trainer state
  bool reads_bytes = true;               ///< bytes are tokens; otherwise the model has its own tokenizer
  Bos bos = Bos::off;                    ///< whether BOS precedes a text of bytes
  std::string tokenizer{};               ///< path of the model's tokenizer, for tokenize::open_tokenizer()
};

/// Resolves `path` with io::given_path() and returns the directory or file for models::ModelFile. The path may name a
/// checkpoint, a run (its newest checkpoint is used), a directory of another program, or a GGUF file. Throws
/// io::FileError.
std::string model_path(const std::string& path);

/// Loads the model in model_path(`path`). Throws Error and io::FileError.
LoadedModel load_model(const std::string& path);
/// Returns the LoadedModel without parameters. `path`: path of the model, as the user gave it. `file`: opened from
/// model_path(path).
LoadedModel describe_model(const std::string& path, const models::ModelFile& file);

/// The data, metrics and sequences for the evaluation of a model.
struct EvaluationInput {
  std::shared_ptr<const SequenceSource> source;
  metrics::MetricList metrics;
  EvaluationPlan plan;
  /// Describes the evaluated part of the text, "65536 of the text's 80000 tokens, …", if the default of `tokens` omits
  /// the rest. Otherwise empty.
  std::string limit;
};

/// Returns one input for each model. Given options take precedence over the models' training settings, which take
/// precedence over the defaults. Models that read the same tokens share a source. Other models read the same text in
/// sequences of an equal number of their own tokens. Throws Error if the models disagree on something that no option
/// sets, if options contradict the models or each other, or if a tokenizer has more tokens than its model.
std::vector<EvaluationInput> evaluation_inputs(const EvaluationChoices& choices,
                                               const std::vector<LoadedModel>& models);

}  // namespace headgate::train
