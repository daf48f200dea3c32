// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/evaluate/metric.hpp"

namespace headgate::metrics {

/// Metrics in the order of the registry, which is that of JSON and of the tables.
using MetricList = std::vector<const Metric*>;

/// All that there are.
MetricList all_metrics();

/// Those of an evaluation that names none.
MetricList default_metrics();

/// "loss, layer_loss, …".
std::string metric_names(const MetricList& metrics);

/// Names of metrics or keys of their figures, several in one word by commas, or "all"; no word: default_metrics(). A
/// key that several metrics print, as loss_nats of the model and of its layers, stands for the first of them. Throws
/// Error with the names that exist.
MetricList parse_metrics(const std::vector<std::string>& words);

/// Those of `metrics` that a task with or without triggers has.
MetricList that_apply(const MetricList& metrics, bool has_triggers);

/// Those whose figures stand for each head too.
MetricList of_heads(const MetricList& metrics);

/// Their figures without those of Scope::triggers, or these alone. Two metrics may give one figure, of the model and of
/// its layers: it stands once.
std::vector<const Figure*> figures_of(const MetricList& metrics, bool of_triggers);

}  // namespace headgate::metrics
