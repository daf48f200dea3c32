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

// Turns the options of `headgate eval` and the models into an evaluation: data, metrics and sequences. Errors name
// options.

namespace headgate::train {

/// Most tokens of a sequence that pass through a layer at a time, without an option. With so many rows a product reads
/// its weights in little of its time.
inline constexpr std::int64_t kPartTokens = 2048;

/// Most tokens of an evaluation, without an option: minutes of a model of a billion parameters.
inline constexpr std::int64_t kDefaultTokens = 65536;
/// As EvaluationChoices::tokens: every sequence of the text.
inline constexpr std::int64_t kAllTokens = std::numeric_limits<std::int64_t>::max();
/// Bytes of the text that models with different tokens read without an option, from its beginning: the same text for
/// each of them.
inline constexpr std::int64_t kDefaultBytes = 4 * kDefaultTokens;

/// The options that the user gave.
struct EvaluationChoices {
  std::vector<std::string> data, include, metrics;
  std::string token_ids;  ///< a .npy file in place of `data`
  std::string task;       ///< empty: the task that the models were trained on
  std::optional<std::int64_t> seq_len;
  std::optional<std::int64_t> tokens;      ///< most tokens; empty: kDefaultTokens
  std::optional<std::int64_t> text_bytes;  ///< bytes of the text that a tokenizer reads, from its beginning
  std::int64_t longest_of_others =
      512;  ///< most tokens of a sequence, without seq_len, of models that do not read bytes
  std::optional<std::uint64_t> seed;
  std::int64_t batch = 16;
  std::int64_t part = kPartTokens;  ///< EvaluationPlan::part
  bool held_out = false;
  /// One sequence of each model, over the longest beginning of the text that is at most `tokens` tokens of every model.
  bool same_text = false;
  models::ModelPrecision precision = models::ModelPrecision::f32;
};

/// A model that was read from its directory.
struct LoadedModel {
  std::string name;  ///< the path that was given
  models::DecoderConfig config;
  std::vector<float> parameters;
  std::optional<TrainSettings> trained;  ///< empty: the directory has no trainer's state
  bool reads_bytes = true;               ///< its tokens are the bytes of a text; else it has its own tokenizer
  Bos bos = Bos::off;                    ///< whether a text of bytes begins with BOS
  std::string tokenizer{};               ///< path of that tokenizer, for tokenize::open_tokenizer
};

/// Returns the directory or file of the model in `path`, resolved by io::given_path, which models::ModelFile opens: a
/// checkpoint, the newest one of a run's directory, a directory of another program, or a GGUF file. Throws
/// io::FileError.
std::string model_path(const std::string& path);

/// Loads the model in model_path(`path`). Throws Error and io::FileError.
LoadedModel load_model(const std::string& path);
/// Returns the same without parameters. `path` is the one that was given, and `file` is in model_path(path).
LoadedModel describe_model(const std::string& path, const models::ModelFile& file);

/// The data, metrics and sequences for the evaluation of a model.
struct EvaluationInput {
  std::shared_ptr<const SequenceSource> source;
  metrics::MetricList metrics;
  EvaluationPlan plan;
  /// "65536 of the text's 80000 tokens, …" where the default of `tokens` leaves out a part of the text; else empty.
  std::string limit;
};

/// Returns one input for each model. Options that were given come first, then what the models were trained with, then
/// the defaults of a text. Models with the same tokens of a text share a source. Others have sequences of as many of
/// their own tokens, over the same text. Throws Error if the models disagree on something that no option decides, if
/// options contradict the models or each other, and if a tokenizer has more tokens than its model.
std::vector<EvaluationInput> evaluation_inputs(const EvaluationChoices& choices,
                                               const std::vector<LoadedModel>& models);

}  // namespace headgate::train
