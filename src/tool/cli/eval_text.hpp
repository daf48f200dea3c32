// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/data/data.hpp"
#include "models/decoder/config.hpp"
#include "models/evaluate/evaluation.hpp"

// Formats the output of `headgate eval`, and its help text on JSON keys.

namespace headgate::cli {

struct EvaluatedModel {
  std::string name;  ///< path of the model, as the user gave it
  models::DecoderConfig config;
  train::Evaluation evaluation;
  std::shared_ptr<const train::SequenceSource> source;  ///< data of the evaluation
};

/// Formats the figures of one model, layer by layer. HeadFigures::included adds a table of layers and heads for each
/// figure of heads.
std::string layers_text(const EvaluatedModel& model, train::HeadFigures heads);

/// Formats the figures of several models on the same text, side by side.
std::string comparison_text(const std::vector<EvaluatedModel>& models);

/// Returns the output of --json: one object for one model; for several models, a list of objects that name their
/// models.
std::string json_text(const std::vector<EvaluatedModel>& models, train::HeadFigures heads);

/// Returns whether all figures of a model are finite. Otherwise reports the first non-finite figure on stderr.
bool check_finite(const std::string& verb, const std::string& model, const train::Evaluation& evaluation);

/// Returns the help text on the keys that --json prints.
std::string json_keys_help();

}  // namespace headgate::cli
