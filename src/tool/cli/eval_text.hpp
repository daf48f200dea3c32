// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/data/data.hpp"
#include "models/decoder/config.hpp"
#include "models/evaluate/evaluation.hpp"

// What `headgate eval` prints, and its help on the keys of JSON.

namespace headgate::cli {

struct EvaluatedModel {
  std::string name;  ///< as it was given
  models::DecoderConfig config;
  train::Evaluation evaluation;
  std::shared_ptr<const train::SequenceSource> source;  ///< what it was evaluated on
};

/// One model, layer by layer; with figures of heads, a table of layers and heads for each such figure.
std::string layers_text(const EvaluatedModel& model, train::HeadFigures heads);

/// Models that were evaluated on the same text, side by side.
std::string comparison_text(const std::vector<EvaluatedModel>& models);

/// What --json prints: one object for one model; for several a list of such objects, each with its model.
std::string json_text(const std::vector<EvaluatedModel>& models, train::HeadFigures heads);

/// Says on stderr where a model's figures are not finite; false then.
bool check_finite(const std::string& verb, const std::string& model, const train::Evaluation& evaluation);

/// The keys that --json prints, for --help.
std::string json_keys_help();

}  // namespace headgate::cli
