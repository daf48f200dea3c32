// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/evaluate/metric.hpp"

namespace headgate::metrics {

/// Metrics in the order of the registry, which is that of JSON and of the tables.
using MetricList = std::vector<const Metric*>;

/// Returns all metrics.
MetricList all_metrics();

/// Returns the metrics of an evaluation that names none.
MetricList default_metrics();

/// "loss, layer_loss, …".
std::string metric_names(const MetricList& metrics);

/// Parses names of metrics or keys of their figures, several in one word separated by commas, or "all"; no word:
/// default_metrics(). A key that several metrics print, such as loss_nats of the model and of its layers, selects the
/// first of them. Throws Error, which lists the known names.
MetricList parse_metrics(const std::vector<std::string>& words);

/// Returns those of `metrics` that a task with or without triggers has.
MetricList that_apply(const MetricList& metrics, bool has_triggers);

/// Returns those whose figures exist for each head too.
MetricList of_heads(const MetricList& metrics);

/// Returns the figures without those of Scope::triggers, or only these. A figure that two metrics give, of the model
/// and of its layers, is listed once.
std::vector<const Figure*> figures_of(const MetricList& metrics, bool of_triggers);

}  // namespace headgate::metrics
