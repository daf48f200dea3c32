// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/data/data.hpp"
#include "models/decoder/config.hpp"
#include "models/evaluate/evaluation.hpp"

// Formats what `headgate eval` prints, and its help on the keys of JSON.

namespace headgate::cli {

struct EvaluatedModel {
  std::string name;  ///< the path, as it was given
  models::DecoderConfig config;
  train::Evaluation evaluation;
  std::shared_ptr<const train::SequenceSource> source;  ///< data that it was evaluated on
};

/// Formats one model, layer by layer. With figures of heads, adds a table of layers and heads for each such figure.
std::string layers_text(const EvaluatedModel& model, train::HeadFigures heads);

/// Formats models that were evaluated on the same text, side by side.
std::string comparison_text(const std::vector<EvaluatedModel>& models);

/// Returns what --json prints: one object for one model; for several a list of such objects, each naming its model.
std::string json_text(const std::vector<EvaluatedModel>& models, train::HeadFigures heads);

/// Reports on stderr where a model's figures are not finite; returns false then.
bool check_finite(const std::string& verb, const std::string& model, const train::Evaluation& evaluation);

/// Returns the keys that --json prints, for --help.
std::string json_keys_help();

}  // namespace headgate::cli
