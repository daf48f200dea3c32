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

/// Reads the model that a run starts from (--init). All functions throw Error, which names the option and the file.
class InitialModel {
 public:
  /// Opens what model_path finds in `path`. Refuses models that cannot be trained.
  explicit InitialModel(const std::string& path);

  const std::string& path() const { return about_.name; }
  const models::DecoderConfig& config() const { return about_.config; }
  /// Returns the path of its tokenizer; empty if its tokens are bytes.
  std::string tokenizer() const { return about_.reads_bytes ? "" : about_.tokenizer; }
  /// Returns whether its text of bytes begins with a token of its own.
  Bos bos() const { return about_.bos; }

  /// Returns parameters (total) for `config`, that of the model or the same with a gate: the model's own, and zeros in
  /// the gate.
  std::vector<float> parameters(const models::DecoderConfig& config) const;

 private:
  models::ModelFile file_;
  LoadedModel about_;  ///< without parameters
};

}  // namespace headgate::train
