// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "tool/demo/comparison.hpp"

namespace headgate::demo {

/// Trains the models of the comparison. Prints their table and verdict.
/// Each run uses one thread; settings.threads runs are active at once.
/// Calls `interrupted` after every step and during evaluations, from one thread at a time.
/// Training ends if it returns true.
/// Returns the trained models, or none if training was interrupted. Throws train::Diverged.
std::vector<TrainedModel> show_training(const Comparison& comparison, const std::function<bool()>& interrupted);

}  // namespace headgate::demo
