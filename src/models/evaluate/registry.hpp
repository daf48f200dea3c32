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

/// Splits `text` at its commas.
std::vector<std::string_view> split_at_commas(std::string_view text);

/// Returns the metrics that `words` select. A word contains one or more names, separated by commas:
/// - the name of a metric
/// - the key of a number that a metric computes (Figure::key); selects the first metric that computes it, so that
///   loss_nats selects the loss of the model, not the loss per layer
/// - "all"
///
/// Without words, returns default_metrics(). Throws Error with the known names if a name is unknown.
MetricList parse_metrics(const std::vector<std::string>& words);

/// Returns whether the user chose single metrics by name. `words` are the argument of parse_metrics(). Returns false if
/// there are no words or if they contain the name "all".
bool names_each_metric(const std::vector<std::string>& words);

/// Returns the metrics that apply to a task. Metrics of Scope::triggers apply to tasks with trigger tokens.
MetricList that_apply(const MetricList& metrics, bool has_triggers);

/// Returns those of the metrics that have numbers for each head (Metric::of_heads).
MetricList of_heads(const MetricList& metrics);

/// Returns which numbers the metrics compute. If `of_triggers` is true, considers only metrics with Scope::triggers,
/// which need trigger tokens. Otherwise considers only other metrics. A number that two metrics share is listed once.
std::vector<const Figure*> figures_of(const MetricList& metrics, bool of_triggers);

}  // namespace headgate::metrics
