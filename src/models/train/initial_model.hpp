// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/data/data.hpp"
#include "models/decoder/config.hpp"
#include "models/families/model_file.hpp"
#include "models/train/evaluation_choices.hpp"

namespace headgate::train {

/// Reads the initial model of a run (--init). All functions throw Error, with a message that names the option and the
/// file.
class InitialModel {
 public:
  /// Opens the model at model_path(path). Throws Error for a model that cannot be trained.
  explicit InitialModel(const std::string& path);

  const std::string& path() const { return about_.name; }
  const models::DecoderConfig& config() const { return about_.config; }
  /// Returns the path of the model's tokenizer; empty if bytes are tokens.
  std::string tokenizer() const { return about_.reads_bytes ? "" : about_.tokenizer; }
  /// Returns whether BOS precedes a text, for a model that reads bytes.
  Bos bos() const { return about_.bos; }

  /// Returns all parameters for `config` in one flat buffer. `config` is the model's config, possibly with an added
  /// gate, whose parameters are 0.
  std::vector<float> parameters(const models::DecoderConfig& config) const;

 private:
  models::ModelFile file_;
  LoadedModel about_;  ///< the model without its parameters
};

}  // namespace headgate::train
