// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/data/data.hpp"
#include "models/decoder/config.hpp"
#include "models/evaluate/evaluation.hpp"
#include "models/evaluate/registry.hpp"
#include "models/train/settings.hpp"

// Describes what the demo trains and compares: models with and without a gate on the same task.

namespace headgate::demo {

struct ComparedModel {
  std::string name;  ///< "no gate", "headwise", "elementwise"
  models::DecoderConfig config;
};

struct TrainedModel {
  ComparedModel model;
  std::vector<train::Evaluation> evaluations;  ///< one evaluation per seed
  std::vector<float> parameters;               ///< parameters of the first seed's run
  double tokens_per_second = 0.0;              ///< training speed, averaged over the seeds
};

struct Comparison {
  std::string name;  ///< name of the task
  std::string introduction;
  train::TrainSettings settings;
  std::vector<ComparedModel> models;  ///< models, the one without a gate first
  /// Data sources, one per seed: settings.seed and the seeds that follow. Every model is trained with every seed.
  std::vector<std::unique_ptr<train::SequenceSource>> sources;
  metrics::MetricList metrics;  ///< metrics that the result shows
};

/// Return the comparison of `model`, which has no gate, with its gated variants. `settings` name the data; task and
/// seq_len are set here. Both throw io::FileError and Error if the data is not usable. On text, the MLPs of gated
/// models are narrowed to the same number of parameters.
Comparison compare_on_backcopy(const models::DecoderConfig& model, train::TrainSettings settings,
                               std::int64_t seeds = 3);
Comparison compare_on_text(const models::DecoderConfig& model, train::TrainSettings settings);

/// Returns the model for the comparison on bigram-backcopy, with separate embeddings, no QK-norm and short sequences.
/// Without a gate this model developed a sink for every seed that was tried (docs/design/training.md). With the task's
/// defaults it did so only for some seeds.
models::DecoderConfig demo_backcopy_model();
train::TrainSettings demo_backcopy_settings();

/// Returns the model for the comparison on text. It is small, because many steps of small batches teach it the most in
/// the available time.
models::DecoderConfig demo_text_model();
train::TrainSettings demo_text_settings();

/// Returns the table of the trained models and the verdict on them.
std::string result_text(const Comparison& comparison, const std::vector<TrainedModel>& trained);

/// Returns the last text of the demo: commands that train and evaluate such models for longer. `tool` is the program's
/// name and `data` the path of the text, both unquoted.
std::string commands_to_try(const std::string& tool, const std::string& data);

}  // namespace headgate::demo
