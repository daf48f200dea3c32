// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
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
  std::vector<train::Evaluation> evaluations;  ///< one for each seed
  std::vector<float> parameters;               ///< those of the first seed
  double tokens_per_second = 0.0;              ///< mean over the runs' training steps
};

struct Comparison {
  std::string name;  ///< name of the task
  std::string introduction;
  train::TrainSettings settings;      ///< with the wanted number of steps
  std::int64_t least_steps = 1;       ///< fewest steps for a meaningful result
  std::vector<ComparedModel> models;  ///< the one without a gate first
  /// One for each seed: settings.seed and those that follow. Every model is trained with every seed.
  std::vector<std::unique_ptr<train::SequenceSource>> sources;
  metrics::MetricList metrics;  ///< metrics that the result shows
  /// Returns table and verdict on all models, in their order, after training on so many tokens each.
  std::string (*result)(const std::vector<TrainedModel>& trained, std::int64_t tokens) = nullptr;
  /// Called after the result; may be empty.
  std::function<void(const std::vector<TrainedModel>& trained)> after{};
};

/// `model` is the one without a gate. `settings` name the data; task and seq_len are set here. Both throw io::FileError
/// and Error if the data is not usable. On text, the MLPs of gated models are narrowed to the same number of
/// parameters.
Comparison compare_on_backcopy(const models::DecoderConfig& model, train::TrainSettings settings,
                               std::int64_t seeds = 3);
Comparison compare_on_text(const models::DecoderConfig& model, train::TrainSettings settings);

/// Returns the model that the demo compares on bigram-backcopy. With separate embeddings, without QK-norm and in short
/// sequences, a model without a gate developed a sink for every seed that was tried (docs/design/training.md); with the
/// task's defaults it did not for every seed.
models::DecoderConfig demo_backcopy_model();
train::TrainSettings demo_backcopy_settings();

/// Returns the model that the demo compares on text: a small one, which learns the most in so short a time from many
/// steps of small batches.
models::DecoderConfig demo_text_model();
train::TrainSettings demo_text_settings();

/// Returns what the demo prints last: the commands that train and evaluate such models for longer. `tool`: the
/// program's name, `data`: the path of the text, both as a user would type them, unquoted.
std::string commands_to_try(const std::string& tool, const std::string& data);

/// Returns the comparison's settings for a run of `steps` steps.
train::TrainSettings settings_of(const Comparison& comparison, std::int64_t steps);

}  // namespace headgate::demo
