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

// What the demo trains: a model without a gate and two with one on the same task, which are then compared.

namespace headgate::demo {

struct ComparedModel {
  std::string name;  ///< "no gate", "headwise", "elementwise"
  models::DecoderConfig config;
};

struct TrainedModel {
  ComparedModel model;
  std::vector<train::Evaluation> evaluations;  ///< one a seed
  std::vector<float> parameters;               ///< of the first seed
  double tokens_per_second = 0.0;              ///< of a run's training steps: the mean
};

struct Comparison {
  std::string name;  ///< the task's
  std::string introduction;
  train::TrainSettings settings;      ///< with the wanted number of steps
  std::int64_t least_steps = 1;       ///< with fewer the result would not be meaningful
  std::vector<ComparedModel> models;  ///< the one without a gate first
  /// One a seed: settings.seed and those that follow. Every model is trained with every seed.
  std::vector<std::unique_ptr<train::SequenceSource>> sources;
  metrics::MetricList metrics;  ///< shown in the result
  /// Table and verdict on all models, in their order, after training on so many tokens each.
  std::string (*result)(const std::vector<TrainedModel>& trained, std::int64_t tokens) = nullptr;
  /// Called then; may be empty.
  std::function<void(const std::vector<TrainedModel>& trained)> after{};
};

/// `model` is the one without a gate. `settings` name the data; task and seq_len are set here. Both throw io::FileError
/// and Error if the data is not usable. On text, the MLPs of gated models are narrowed to the same number of
/// parameters.
Comparison compare_on_backcopy(const models::DecoderConfig& model, train::TrainSettings settings,
                               std::int64_t seeds = 5);
Comparison compare_on_text(const models::DecoderConfig& model, train::TrainSettings settings);

/// What the demo compares on bigram-backcopy. With separate embeddings, without QK-norm and in short sequences a model
/// without a gate developed a sink for every seed that was tried (docs/design/training.md); with the task's
/// defaults, not for every one.
models::DecoderConfig demo_backcopy_model();
train::TrainSettings demo_backcopy_settings();

/// What the demo compares on text: a small model, which many steps of small batches teach the most in so short a time.
models::DecoderConfig demo_text_model();
train::TrainSettings demo_text_settings();

/// What the demo prints last: the commands that train and evaluate such models for longer. `tool`: the program's name,
/// `data`: the path of the text, both as a user would write them without quotes.
std::string commands_to_try(const std::string& tool, const std::string& data);

/// The comparison's settings for a run of `steps` steps.
train::TrainSettings settings_of(const Comparison& comparison, std::int64_t steps);

}  // namespace headgate::demo
