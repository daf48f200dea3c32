// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/config.hpp"
#include "train/choices.hpp"
#include "train/data.hpp"
#include "train/evaluation.hpp"

// What the demo trains: the same task for a model without a gate and for two with one.

namespace headgate::cli {

struct StoryModel {
  std::string name;  ///< "no gate", "headwise", "elementwise"
  models::DecoderConfig config;
};

struct TrainedModel {
  StoryModel model;
  train::Evaluation evaluation;
  double tokens_per_second = 0.0;  ///< of its training steps
};

struct Story {
  std::string name;  ///< the task's
  std::string introduction;
  train::RunChoices run;  ///< with the steps that are wanted
  std::int64_t least_steps = 1;
  std::vector<StoryModel> models;  ///< the one without a gate first
  std::unique_ptr<train::SequenceSource> source;
  /// Table and verdict; as many models as above.
  std::string (*result)(const std::vector<TrainedModel>& trained, std::int64_t tokens) = nullptr;
};

/// `run` has data and threads, `sizes` what is not to be as the task has it; the gates are the story's. Both throw
/// io::FileError and Error where the data will not do.
Story backcopy_story(train::RunChoices run, const train::ModelChoices& sizes);
Story text_story(train::RunChoices run, const train::ModelChoices& sizes);

/// Of the demo's own models and run. With separate embeddings, without QK-norm and in short sequences every seed that
/// was tried makes a sink without a gate (docs/notes/2026-11-21-backcopy.md); by the task's defaults some do not.
train::ModelChoices demo_backcopy_sizes();
void choose_demo_backcopy_run(train::RunChoices& run);

/// What `headgate train` would take minutes for, a size smaller.
train::ModelChoices demo_text_sizes();
void choose_demo_text_run(train::RunChoices& run);

/// The run's settings, for `steps` steps.
train::TrainSettings story_settings(const Story& story, std::int64_t steps);

/// The steps that are wanted.
std::int64_t wanted_steps(const Story& story);

}  // namespace headgate::cli
