// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/overrides.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <optional>

#include "models/evaluate/gates.hpp"
#include "models/evaluate/layer_heads.hpp"

namespace headgate::xray {

namespace {

std::size_t product(std::initializer_list<std::int64_t> sizes) {
  std::size_t out = 1;
  for (const std::int64_t size : sizes) out *= static_cast<std::size_t>(size);
  return out;
}

/// Returns whether the gate multiplies the attention output.
/// Only then can an override fix the gate at 1 or at its mean.
bool multiplies(const layers::GateVariant& gate) { return layers::can_skip_attention(gate); }

std::int64_t parts_of_layer(const models::DecoderConfig& config, std::int64_t layer, OverriddenPart part) {
  return part == OverriddenPart::heads ? metrics::heads_of_layer(config, layer) : 1;
}

/// Returns whether a gate multiplies the head outputs of a layer, so that constant factors can replace the gate.
bool takes_factors(const models::DecoderConfig& config, std::int64_t layer) {
  return metrics::is_linear(config, layer) || multiplies(config.gate);
}

std::int64_t features_of(const models::DecoderConfig& config, std::int64_t layer) {
  return metrics::is_linear(config, layer) ? config.linear.value_dim : config.head_dim;
}

/// Returns the number of factors that replace the gates of a layer, one per head and feature.
/// Returns 0 if takes_factors() is false.
std::size_t factors_of(const models::DecoderConfig& config, std::int64_t layer) {
  if (!takes_factors(config, layer)) return 0;
  return product({metrics::heads_of_layer(config, layer), features_of(config, layer)});
}

std::size_t most_factors(const models::DecoderConfig& config) {
  std::size_t most = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) most = std::max(most, factors_of(config, layer));
  return most;
}

bool has_override(const models::DecoderConfig& config, std::int64_t layer, Override kind) {
  if (metrics::is_linear(config, layer)) return kind != Override::open;
  return reason_left_out(config.gate, kind).empty();
}

/// Observes a pass of the unchanged model and records what the overrides need:
/// the residual stream before each layer except the first, and the mean of each gate over the tokens.
class BasePass : public models::LayerObserver<float> {
 public:
  BasePass(const models::DecoderConfig& config, std::int64_t tokens, const ExecutionContext& context)
      : config_(config),
        tokens_(tokens),
        context_(resolved(context)),
        streams_(product({config.layers - 1, tokens, config.dim})) {
    for (std::int64_t layer = 0; layer < config.layers; ++layer) mean_gates_.emplace_back(factors_of(config, layer));
    if (multiplies(config.gate)) gates_.resize(product({tokens, metrics::most_gates(config)}));
  }

  models::Taps taps() const override {
    models::Taps out{models::Tap::output};
    if (most_factors(config_) > 0) out |= {models::Tap::gate_logits};
    return out;
  }

  void after_layer(const models::LayerView<float>& view) override {
    if (view.layer + 1 < config_.layers) {
      std::copy_n(view.output.data, view.output.count(), streams_.data() + view.layer * tokens_ * config_.dim);
    }
    if (view.type == models::LayerType::linear_attention) {
      add_mean_output_gates(view);
    } else if (multiplies(config_.gate)) {
      add_mean_gates(view);
    }
  }

  /// Returns the residual stream before a layer, (N,dim). The view is absent for the first layer, whose input is not
  /// recorded.
  View<const float, 2> input_of(std::int64_t layer) const {
    if (layer == 0) return {};
    return {streams_.data() + (layer - 1) * tokens_ * config_.dim, {tokens_, config_.dim}};
  }
  /// Returns the gates of a layer, averaged over the tokens, (heads,D). Requires takes_factors().
  View<const float, 2> mean_gates_of(std::int64_t layer) const {
    return {mean_gates_[static_cast<std::size_t>(layer)].data(),
            {metrics::heads_of_layer(config_, layer), features_of(config_, layer)}};
  }

 private:
  void add_mean_gates(const models::LayerView<float>& view) {
    const std::int64_t D = config_.head_dim, width = metrics::gate_width(config_, view.layer);
    const View<float, 2> gates{gates_.data(), {tokens_, width}};  // gates_ fits the layer with most gates
    metrics::gate_values_of(gates, view, config_, context_);
    std::vector<float>& means = mean_gates_[static_cast<std::size_t>(view.layer)];
    for (std::int64_t i = 0; i < std::ssize(means); ++i) {
      // Factor i belongs to head i / D and feature i % D. It replaces the gate with index x of each token.
      // The index x depends on the shape of one token's gates:
      // - (heads,D): x = i
      // - (D), shared by all heads: x = i % D
      // - (heads), shared by the features of a head: x = i / D
      const std::int64_t x = width == std::ssize(means) ? i : layers::shares_gate(config_.gate) ? i % D : i / D;
      means[static_cast<std::size_t>(i)] = mean_over_tokens([&](std::int64_t t) { return gates(t, x); });
    }
  }

  void add_mean_output_gates(const models::LayerView<float>& view) {
    const std::int64_t D = view.gate.shape[2];
    std::vector<float>& means = mean_gates_[static_cast<std::size_t>(view.layer)];
    for (std::int64_t i = 0; i < std::ssize(means); ++i) {
      means[static_cast<std::size_t>(i)] = mean_over_tokens([&](std::int64_t t) {
        const auto z = static_cast<double>(view.gate(t, i / D, i % D));
        return z / (1.0 + std::exp(-z));
      });
    }
  }

  template <class Gate>
  float mean_over_tokens(const Gate& gate) const {
    double sum = 0.0;
    for (std::int64_t t = 0; t < tokens_; ++t) sum += static_cast<double>(gate(t));
    return static_cast<float>(sum / static_cast<double>(tokens_));
  }

  const models::DecoderConfig& config_;
  std::int64_t tokens_;
  ExecutionContext context_;
  std::vector<float> streams_;  // (layers − 1,N,dim) residual stream before each layer except the first
  std::vector<std::vector<float>> mean_gates_;  // mean gates (heads,D) of each layer; empty if takes_factors() is false
  std::vector<float> gates_;                    // (N,gate_width)
};

}  // namespace

std::string reason_left_out(const layers::GateVariant& gate, Override kind) {
  if (kind == Override::closed || multiplies(gate)) return {};
  if (!layers::has_gate(gate)) return "the model has no gate";
  if (!layers::gates_attention(gate)) {
    return fmt::format("the gate acts on {}, not on the attention output", layers::explanation_of(gate.site));
  }
  return "the gate is added to the attention output and does not multiply it";
}

std::string reason_left_out(const models::DecoderConfig& config, Override kind) {
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (has_override(config, layer, kind)) return {};
  }
  if (metrics::value_heads(config) == 0) return reason_left_out(config.gate, kind);
  const char* const silu = "SiLU, the output gate of linear attention, has no open value";
  if (metrics::most_query_heads(config) == 0) return silu;
  if (!layers::has_gate(config.gate)) return fmt::format("attention has no gate, and {}", silu);
  return fmt::format("{}, and {}", reason_left_out(config.gate, kind), silu);
}

std::vector<const OverrideRow*> overrides_of(const models::DecoderConfig& config, std::int64_t layer) {
  std::vector<const OverrideRow*> out;
  for (const OverrideRow& row : kOverrides) {
    if (has_override(config, layer, row.value)) out.push_back(&row);
  }
  return out;
}

std::vector<const OverrideRow*> overrides_of(const models::DecoderConfig& config) {
  std::vector<const OverrideRow*> out;
  for (const OverrideRow& row : kOverrides) {
    if (reason_left_out(config, row.value).empty()) out.push_back(&row);
  }
  return out;
}

std::int64_t planned_passes(const models::DecoderConfig& config, OverriddenPart part) {
  std::int64_t passes = 1;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    passes += parts_of_layer(config, layer, part) * std::ssize(overrides_of(config, layer));
  }
  return passes;
}

std::size_t override_bytes(const models::DecoderConfig& config, std::int64_t tokens) {
  const std::size_t most = most_factors(config);
  std::size_t numbers =
      product({config.layers - 1, tokens, config.dim}) + most * (1 + static_cast<std::size_t>(tokens));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) numbers += factors_of(config, layer);
  if (multiplies(config.gate)) numbers += product({tokens, metrics::most_gates(config)});
  return numbers * sizeof(float);
}

OverrideRun override_parts(metrics::Report& report, const models::DecoderConfig& config, const float* parameters,
                           const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                           OverriddenPart part, const ExecutionContext& context,
                           const std::function<void(double)>& progress) {
  const auto N = static_cast<std::int64_t>(tokens.size());
  models::Decoder<float> decoder(config, {1, N}, models::Purpose::evaluate, context);
  BasePass base(config, N, context);
  OverrideRun run{part, N, planned_passes(config, part)};
  run.loss = decoder.loss(parameters, tokens.data(), targets.data(), &base);

  std::vector<float> ones(most_factors(config), 1.0F), ungated(ones.size() * tokens.size());
  const auto rise_of = [&](Override kind, std::int64_t layer, std::int64_t first, std::int64_t count) {
    models::LayerOverride<float> replaced;
    replaced.layer = layer;
    replaced.input = base.input_of(layer);
    replaced.heads.first = first;
    replaced.heads.count = count;
    if (kind != Override::closed) {
      const std::int64_t H = metrics::heads_of_layer(config, layer), D = features_of(config, layer);
      View<const float, 2> factors = base.mean_gates_of(layer);
      if (kind == Override::open) factors = {ones.data(), {H, D}};
      replaced.heads.factors = factors.range(0, first, count);
      replaced.heads.ungated = {ungated.data(), {N, H, D}};
    }
    return decoder.loss_with(replaced, parameters, tokens.data(), targets.data()) - run.loss;
  };
  std::int64_t done = 1;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::int64_t parts = parts_of_layer(config, layer, part);
    const std::int64_t heads = metrics::heads_of_layer(config, layer) / parts;
    for (std::int64_t p = 0; p < parts; ++p) {
      metrics::FigureRow& row = part == OverriddenPart::heads
                                    ? report.heads[static_cast<std::size_t>(layer)][static_cast<std::size_t>(p)]
                                    : report.layers[static_cast<std::size_t>(layer)];
      for (const OverrideRow& kind : kOverrides) row.set(kind.figure, std::nullopt);
      for (const OverrideRow* kind : overrides_of(config, layer)) {
        row.set(kind->figure, rise_of(kind->value, layer, p * heads, heads));
        progress(static_cast<double>(++done) / static_cast<double>(run.passes));
      }
    }
  }
  return run;
}

}  // namespace headgate::xray
