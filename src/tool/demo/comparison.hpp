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
  std::string name;  ///< "no gate", "headwise" or "elementwise"
  models::DecoderConfig config;
};

struct TrainedModel {
  ComparedModel model;
  std::vector<train::Evaluation> evaluations;  ///< one evaluation per seed
  std::vector<float> parameters;               ///< trained parameters of the first seed
  double tokens_per_second = 0.0;              ///< training speed, averaged over the seeds
};

struct Comparison {
  std::string name;  ///< name of the task
  std::string introduction;
  train::TrainSettings settings;
  std::vector<ComparedModel> models;  ///< compared models; the first has no gate
  /// Data sources, one for each of the seeds settings.seed, settings.seed + 1 and so on.
  /// Every model is trained with every seed.
  std::vector<std::unique_ptr<train::SequenceSource>> sources;
  metrics::MetricList metrics;  ///< metrics that the result table shows
};

/// Return a comparison of `model`, which has no gate, with its headwise and elementwise gated variants.
/// `settings` selects the data; its task, seq_len and warmup are replaced.
/// On text, gated models get narrower MLPs, so that all models have about the same number of parameters.
/// Throw io::FileError or Error if the data is not usable.
Comparison compare_on_backcopy(const models::DecoderConfig& model, train::TrainSettings settings,
                               std::int64_t seeds = 3);
Comparison compare_on_text(const models::DecoderConfig& model, train::TrainSettings settings);

/// Returns the demo's model for the task bigram-backcopy, in which the model must copy a token after each trigger.
/// The model has separate embeddings, no QK-norm and short sequences.
/// Without a gate, this model developed an attention sink with every seed that was tried (docs/design/training.md).
/// The task's default model developed one only with some seeds.
models::DecoderConfig demo_backcopy_model();
train::TrainSettings demo_backcopy_settings();

/// Returns the demo's model for text.
/// It is small, because in the available time a model learns most from many steps with small batches.
models::DecoderConfig demo_text_model();
train::TrainSettings demo_text_settings();

/// Returns a table of the trained models' metric values, followed by sentences that interpret them.
std::string result_text(const Comparison& comparison, const std::vector<TrainedModel>& trained);

/// Returns the demo's closing text: commands that train and evaluate such models for longer.
/// `tool` is the program's name and `data` the path of the text. This function quotes both for the shell.
std::string commands_to_try(const std::string& tool, const std::string& data);

}  // namespace headgate::demo
