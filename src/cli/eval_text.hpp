// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/config.hpp"
#include "train/evaluation.hpp"

// What `headgate eval` prints, and its help on the keys of JSON.

namespace headgate::cli {

struct EvaluatedModel {
  std::string name;  ///< as it was given
  models::DecoderConfig config;
  train::Evaluation evaluation;
};

/// One model, layer by layer.
std::string layers_text(const EvaluatedModel& model);

/// Models that were evaluated on the same tokens, side by side.
std::string comparison_text(const std::vector<EvaluatedModel>& models);

/// What --json prints: one object for one model; for several a list of such objects, each with its model.
std::string json_text(const std::vector<EvaluatedModel>& models);

/// The keys that --json prints, for --help.
std::string json_keys_help();

}  // namespace headgate::cli
