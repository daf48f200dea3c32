// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/config.hpp"
#include "train/evaluation.hpp"

// What `headgate eval` prints without --json.

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

}  // namespace headgate::cli
