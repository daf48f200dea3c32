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

/// Parses names of metrics, keys of their figures, or "all". A word can contain several names, separated by commas.
/// Without words, returns default_metrics(). If several metrics have a figure of the given key, selects the first
/// metric: loss_nats selects the loss of the model, not the loss per layer. Throws Error with the known names if a name
/// is unknown.
MetricList parse_metrics(const std::vector<std::string>& words);

/// Returns whether the words, in the format of parse_metrics(), name metrics one by one. Returns false without words
/// and with the word "all".
bool names_each_metric(const std::vector<std::string>& words);

/// Returns the metrics that apply to a task. Metrics of Scope::triggers apply to tasks with trigger tokens.
MetricList that_apply(const MetricList& metrics, bool has_triggers);

/// Returns the metrics with figures for each head.
MetricList of_heads(const MetricList& metrics);

/// Returns the figures of metrics that need trigger tokens (Scope::triggers) if `of_triggers` is true, otherwise the
/// figures of all other metrics. If two metrics have the same figure, lists it once.
std::vector<const Figure*> figures_of(const MetricList& metrics, bool of_triggers);

}  // namespace headgate::metrics
