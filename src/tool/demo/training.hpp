// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "tool/demo/comparison.hpp"

namespace headgate::demo {

/// Trains the models of the comparison, prints a table and a verdict, and returns the trained models.
/// Each run uses one thread. Up to settings.threads runs are active at the same time.
/// Calls interrupted() after every step and during evaluations, from one thread at a time.
/// If interrupted() returns true, ends the training and returns no models. Throws train::Diverged.
std::vector<TrainedModel> show_training(const Comparison& comparison, const std::function<bool()>& interrupted);

}  // namespace headgate::demo
