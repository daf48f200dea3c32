// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/verdict.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

#include "models/evaluate/first_token_attention.hpp"
#include "models/evaluate/first_token_attention_gated.hpp"
#include "models/evaluate/first_token_attention_uniform.hpp"
#include "models/evaluate/layer_heads.hpp"
#include "models/evaluate/mean.hpp"
#include "models/evaluate/sink_attention.hpp"
#include "models/evaluate/sink_rate.hpp"
#include "models/io/units.hpp"

namespace headgate::xray {
namespace {

using console::percent_text;

/// A layer, and the share of its heads that have an attention sink, with their number.
struct SinkLayer {
  std::size_t layer;
  metrics::Mean rate;
};

/// Returns the layers for which metrics::kSinkRate was measured. It is 1 for a head with a sink, 0 for others.
std::vector<SinkLayer> sink_layers(const metrics::Report& report) {
  std::vector<SinkLayer> out;
  for (std::size_t layer = 0; layer < report.heads.size(); ++layer) {
    metrics::Mean rate;
    for (const metrics::FigureRow& head : report.heads[layer]) {
      if (const auto sink = head.find(metrics::kSinkRate)) rate.add(*sink);
    }
    if (rate.count > 0.0) out.push_back({layer, rate});
  }
  return out;
}

/// Returns the share of heads with sinks in the layers from `first` on.
double rate_from(const std::vector<SinkLayer>& layers, std::size_t first) {
  metrics::Mean rate;
  for (std::size_t i = first; i < layers.size(); ++i) rate.add(layers[i].rate);
  return rate.value();
}

/// Describes which layers have sinks. Requires at least one layer with sinks.
/// Returns "from layer L on" for the first layer L with these properties:
/// - L is not the last layer.
/// - At least half of the heads of L have sinks.
/// - At least half of the heads of L and all later layers have sinks.
/// If there is no such layer, returns the range from the first to the last layer with sinks.
std::string where_sinks_are(const std::vector<SinkLayer>& layers) {
  constexpr double kMost = 0.5;
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    if (layers[i].rate.value() >= kMost && rate_from(layers, i) >= kMost) {
      return fmt::format("from layer {} on", layers[i].layer);
    }
  }
  std::vector<std::size_t> some;
  for (const SinkLayer& each : layers) {
    if (each.rate.sum > 0.0) some.push_back(each.layer);
  }
  return some.size() == 1 ? fmt::format("in layer {}", some.front())
                          : fmt::format("in layers {} to {}", some.front(), some.back());
}

std::string sinks_text(const ModelXray& model) {
  const metrics::FigureRow& figures = model.evaluation.report.overall;
  const std::optional<double> first = figures.find(metrics::kFirstTokenAttention);
  if (!first) {
    return metrics::most_query_heads(model.config) == 0
               ? "Linear attention has no softmax, and so no sinks."
               : "Sinks are not measured: windows hide the first token from later ones.";
  }
  if (!std::isfinite(*first)) return "The model gives numbers that are not finite.";
  const std::vector<SinkLayer> layers = sink_layers(model.evaluation.report);
  const double rate = rate_from(layers, 0);
  const std::string threshold = percent_text(metrics::kSinkThreshold);
  std::string out =
      rate > 0.0 ? fmt::format(
                       "Sinks {}: {} of the heads give more than {} of their attention to the "
                       "first token.",
                       where_sinks_are(layers), percent_text(rate), threshold)
                 : fmt::format("No sinks: no head gives more than {} of its attention to the first token.", threshold);
  out += fmt::format(" It gets {} of all attention; if heads looked at all tokens alike, it would get {}.",
                     percent_text(*first), percent_text(figures.at(metrics::kFirstTokenAttentionUniform)));
  if (const auto gated = figures.find(metrics::kFirstTokenAttentionGated)) {
    out += fmt::format(" {} passes the gate.", percent_text(*gated));
  }
  return out;
}

}  // namespace

std::string verdict(const ModelXray& model) {
  std::string out = sinks_text(model);
  if (const auto sink = model.evaluation.report.overall.find(metrics::kSinkAttention)) {
    out += fmt::format(" {} of the attention goes to the sink logits of the heads.", percent_text(*sink));
  }
  const LargestActivation& largest = model.largest_activation;
  if (!std::isfinite(largest.value)) {
    return out +
           fmt::format(" The activations are not finite from layer {}, token {} on.", largest.layer, largest.token);
  }
  return out + fmt::format(" The largest activation is {:.{}f}, at token {}, channel {}, after layer {}.",
                           largest.value, largest.value < 100.0 ? 2 : 0, largest.token, largest.channel, largest.layer);
}

}  // namespace headgate::xray
