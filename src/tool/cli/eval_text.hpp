// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/data/data.hpp"
#include "models/decoder/config.hpp"
#include "models/evaluate/evaluation.hpp"

// Formats the output of `headgate eval`, and the part of its help text that explains the JSON keys.

namespace headgate::cli {

struct EvaluatedModel {
  std::string name;  ///< path of the model as given on the command line
  models::DecoderConfig config;
  train::Evaluation evaluation;
  std::shared_ptr<const train::SequenceSource> source;  ///< source of the evaluated sequences
};

/// Formats the metric values of one model, with a line for each layer and a line for the whole model.
/// With HeadFigures::included, adds a table for each metric value of heads: one line per layer, one column per head.
std::string layers_text(const EvaluatedModel& model, train::HeadFigures heads);

/// Formats a table that compares the metric values of several models on the same text. Each model has a line.
std::string comparison_text(const std::vector<EvaluatedModel>& models);

/// Returns the output of --json: an object for a single model, or a list of objects for several models.
/// Each object of a list also holds the model's name.
std::string json_text(const std::vector<EvaluatedModel>& models, train::HeadFigures heads);

/// Returns whether all metric values of a model are finite.
/// If not, prints on stderr where the first non-finite value is.
bool check_finite(const std::string& verb, const std::string& model, const train::Evaluation& evaluation);

/// Returns the help text that explains the keys of the --json output.
std::string json_keys_help();

}  // namespace headgate::cli
