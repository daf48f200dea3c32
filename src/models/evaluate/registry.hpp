// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/evaluate/metric.hpp"

namespace headgate::metrics {

/// List of metrics in registry order. JSON and tables use the same order.
using MetricList = std::vector<const Metric*>;

MetricList all_metrics();

/// Returns the metrics that an evaluation computes if none are named.
MetricList default_metrics();

/// Returns the names separated by commas: "loss, layer_loss, …".
std::string metric_names(const MetricList& metrics);

/// Returns the words between the commas of `text`.
std::vector<std::string_view> split_at_commas(std::string_view text);

/// Parses names of metrics, keys of figures, or "all". A word can hold several, separated by commas. Without words,
/// returns default_metrics(). If several metrics share a key, selects the first: loss_nats selects the model's loss,
/// not that of its layers. Throws Error with the known names if a name is unknown.
MetricList parse_metrics(const std::vector<std::string>& words);

/// Returns whether `words`, as parse_metrics() takes them, name each metric. No words select the defaults, and "all"
/// selects every metric; both return false.
bool names_each_metric(const std::vector<std::string>& words);

/// Returns the metrics that apply to a task; those of Scope::triggers need a task with triggers.
MetricList that_apply(const MetricList& metrics, bool has_triggers);

/// Returns the metrics with figures for each head.
MetricList of_heads(const MetricList& metrics);

/// Returns the figures of metrics with Scope::triggers if `of_triggers`, otherwise those of all other metrics. A figure
/// that two metrics share is listed once.
std::vector<const Figure*> figures_of(const MetricList& metrics, bool of_triggers);

}  // namespace headgate::metrics
