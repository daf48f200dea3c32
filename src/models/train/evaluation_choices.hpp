// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/data/data.hpp"
#include "models/decoder/config.hpp"
#include "models/evaluate/evaluation.hpp"
#include "models/evaluate/registry.hpp"
#include "models/train/checkpoint.hpp"
#include "models/train/settings.hpp"

// From the options of `headgate eval` and the models to an evaluation: the data, the metrics and the sequences. Errors
// name options.

namespace headgate::train {

/// The options that were given.
struct EvaluationChoices {
  std::vector<std::string> data, include, metrics;
  std::string token_ids;  ///< a .npy file in place of `data`
  std::string task;       ///< empty: the task that the models were trained on
  std::optional<std::int64_t> seq_len, tokens;
  std::optional<std::int64_t> text_bytes;  ///< that a tokenizer reads of the text, from its beginning
  std::int64_t longest_of_others = 512;    ///< tokens of a sequence of models that do not read bytes, without seq_len
  std::optional<std::uint64_t> seed;
  std::int64_t batch = 16;
  bool held_out = false;
};

/// A model that was read from its directory.
struct LoadedModel {
  std::string name;  ///< the path that was given
  models::DecoderConfig config;
  std::vector<float> parameters;
  std::optional<TrainSettings> trained;  ///< empty: the directory does not have a trainer's state
  bool reads_bytes = true;               ///< its tokens are the bytes of a text; else those of a tokenizer of its own
  std::string tokenizer{};               ///< where that is: a path for tokenize::open_tokenizer
};

/// The directory or file of the model in `path`, resolved by io::given_path, from which models::ModelFile opens it: a
/// checkpoint, the newest one of a run's directory, a directory of another program's, or a GGUF file. Throws
/// io::FileError.
std::string model_path(const std::string& path);

/// Loads the model in model_path(`path`). Throws Error and io::FileError.
LoadedModel load_model(const std::string& path);

/// What the evaluation of a model runs on.
struct EvaluationInput {
  std::shared_ptr<const SequenceSource> source;
  metrics::MetricList metrics;
  EvaluationPlan plan;
};

/// One for each model. An option that was given decides; otherwise what the models were trained with; otherwise the
/// defaults of a text. Models that read a text as the same tokens share a source; others have sequences of as many
/// tokens of their own, over the same text. Throws Error where the models differ in what an option would have to
/// decide, for options that contradict the models or each other, and for a tokenizer with more tokens than its model.
std::vector<EvaluationInput> evaluation_inputs(const EvaluationChoices& choices,
                                               const std::vector<LoadedModel>& models);

}  // namespace headgate::train
