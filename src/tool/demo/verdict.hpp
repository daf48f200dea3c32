// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tool/demo/spread.hpp"

// Puts the demo's figures into sentences. All functions are pure: the wording depends only on the numbers.

namespace headgate::demo {

/// Holds a model's name and figures. The first model of a list has no gate.
struct NamedSpread {
  std::string name;  ///< "headwise"
  Spread figures;
};

/// Lowest loss, in nats, of a model that has not learnt to copy. It is measured where the model must copy a token.
/// A model that copies has a loss of almost 0. A model that guesses has about 3.
inline constexpr double kNotLearnt = 0.5;

/// Returns a sentence for each model: how much attention goes to BOS where there is nothing to copy.
/// With a gate, counts only the attention that passes it: training does not constrain attention behind a closed gate.
std::string backcopy_verdict(const std::vector<NamedSpread>& models);

/// Returns sentences that compare the loss of each gated model with that of the first model.
/// Adds a warning that one seed proves little. `tokens` is the number of training tokens.
std::string text_verdict(const std::vector<NamedSpread>& models, double tokens);

}  // namespace headgate::demo
