// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tool/demo/spread.hpp"

// Puts the demo's figures into sentences. All functions are pure: the wording depends only on the numbers.

namespace headgate::demo {

/// A model and its figures; the first model of a list has no gate.
struct NamedSpread {
  std::string name;  ///< "headwise"
  Spread figures;
};

/// Least loss after a trigger, in nats, of a model that has not learnt to copy. Copying costs almost 0, guessing 3.
inline constexpr double kNotLearnt = 0.5;

/// Returns a sentence for each model: how much attention goes to BOS where there is nothing to copy, and for a gated
/// model how much passes the gate. Training does not constrain attention behind a closed gate.
std::string backcopy_verdict(const std::vector<NamedSpread>& models);

/// Returns sentences that compare the loss of the gated models with the first, and say how conclusive that is.
std::string text_verdict(const std::vector<NamedSpread>& models, double tokens);

}  // namespace headgate::demo
