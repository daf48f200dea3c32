// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tool/demo/spread.hpp"

// Describes the demo's metric values in sentences. All functions are pure: the sentences depend only on the values.

namespace headgate::demo {

/// Holds a model's name and its metric values over several runs. In a list of models, the first has no gate.
struct NamedSpread {
  std::string name;  ///< "headwise"
  Spread figures;
};

/// A model with at least this loss, in nats, counts as not having learnt to copy. The loss is measured where the model
/// must copy a token. A model that copies has a loss of almost 0. A model that guesses has about 3.
inline constexpr double kNotLearnt = 0.5;

/// Returns a sentence for each model: how much attention goes to BOS where there is nothing to copy.
/// With a gate, counts only the attention that passes it: training does not constrain attention behind a closed gate.
std::string backcopy_verdict(const std::vector<NamedSpread>& models);

/// Returns sentences that compare the loss of each gated model with that of the first model.
/// Adds a warning that one seed proves little. `tokens` is the number of training tokens.
std::string text_verdict(const std::vector<NamedSpread>& models, double tokens);

}  // namespace headgate::demo
