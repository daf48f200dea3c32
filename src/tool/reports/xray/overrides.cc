// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/overrides.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "models/evaluate/gates.hpp"

namespace headgate::xray {

namespace {

std::size_t product(std::initializer_list<std::int64_t> sizes) {
  std::size_t out = 1;
  for (const std::int64_t size : sizes) out *= static_cast<std::size_t>(size);
  return out;
}

/// Returns whether a gate multiplies the attention output, so that it can be fixed at 1 or at its mean.
bool multiplies(const layers::GateVariant& gate) { return layers::can_skip_attention(gate); }

std::int64_t parts_of_layer(const models::DecoderConfig& config, OverriddenPart part) {
  return part == OverriddenPart::heads ? config.heads : 1;
}

/// Keeps what overrides start from: the residual stream before each layer except the first, and mean gates.
class BasePass : public models::LayerObserver<float> {
 public:
  BasePass(const models::DecoderConfig& config, std::int64_t tokens, const ExecutionContext& context)
      : config_(config),
        tokens_(tokens),
        context_(resolved(context)),
        streams_(product({config.layers - 1, tokens, config.dim})) {
    if (!multiplies(config.gate)) return;
    mean_gates_.resize(product({config.layers, config.heads, config.head_dim}));
    gates_.resize(product({tokens, metrics::gate_width(config)}));
  }

  models::Taps taps() const override {
    models::Taps out{models::Tap::output};
    if (multiplies(config_.gate)) out |= {models::Tap::gate_logits};
    return out;
  }

  void after_layer(const models::LayerView<float>& view) override {
    if (view.layer + 1 < config_.layers) {
      std::copy_n(view.output.data, view.output.count(), streams_.data() + view.layer * tokens_ * config_.dim);
    }
    if (multiplies(config_.gate)) add_mean_gates(view);
  }

  /// Returns (N,dim); absent for the first layer.
  View<const float, 2> input_of(std::int64_t layer) const {
    if (layer == 0) return {};
    return {streams_.data() + (layer - 1) * tokens_ * config_.dim, {tokens_, config_.dim}};
  }
  /// Returns (Hq,D).
  View<const float, 2> mean_gates_of(std::int64_t layer) const {
    const std::int64_t Hq = config_.heads, D = config_.head_dim;
    return {mean_gates_.data() + layer * Hq * D, {Hq, D}};
  }

 private:
  void add_mean_gates(const models::LayerView<float>& view) {
    const std::int64_t Hq = config_.heads, D = config_.head_dim, width = metrics::gate_width(config_);
    const View<float, 2> gates = view_of(gates_, tokens_, width);
    metrics::gate_values_of(gates, view, config_, context_);
    for (std::int64_t i = 0; i < Hq * D; ++i) {
      // A gate is for a head, for a feature of all heads, or for a feature of one head.
      const std::int64_t x = width == Hq * D ? i : layers::shares_gate(config_.gate) ? i % D : i / D;
      double sum = 0.0;
      for (std::int64_t t = 0; t < tokens_; ++t) sum += static_cast<double>(gates(t, x));
      mean_gates_[static_cast<std::size_t>(view.layer * Hq * D + i)] =
          static_cast<float>(sum / static_cast<double>(tokens_));
    }
  }

  const models::DecoderConfig& config_;
  std::int64_t tokens_;
  ExecutionContext context_;
  std::vector<float> streams_;     // (layers − 1,N,dim)
  std::vector<float> mean_gates_;  // (layers,Hq,D)
  std::vector<float> gates_;       // (N,gate_width)
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

std::vector<const OverrideRow*> overrides_of(const layers::GateVariant& gate) {
  std::vector<const OverrideRow*> out;
  for (const OverrideRow& row : kOverrides) {
    if (reason_left_out(gate, row.value).empty()) out.push_back(&row);
  }
  return out;
}

std::int64_t planned_passes(const models::DecoderConfig& config, OverriddenPart part) {
  const auto overrides = static_cast<std::int64_t>(overrides_of(config.gate).size());
  return 1 + config.layers * parts_of_layer(config, part) * overrides;
}

std::size_t override_bytes(const models::DecoderConfig& config, std::int64_t tokens) {
  std::size_t numbers = product({config.layers - 1, tokens, config.dim});
  if (multiplies(config.gate)) {
    numbers += product({config.layers + 1, config.heads, config.head_dim}) +
               product({tokens, metrics::gate_width(config)}) + product({tokens, config.heads, config.head_dim});
  }
  return numbers * sizeof(float);
}

OverrideRun override_parts(metrics::Report& report, const models::DecoderConfig& config, const float* parameters,
                           const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                           OverriddenPart part, const ExecutionContext& context,
                           const std::function<void(double)>& progress) {
  const auto N = static_cast<std::int64_t>(tokens.size());
  const std::int64_t Hq = config.heads, D = config.head_dim, parts = parts_of_layer(config, part);
  models::Decoder<float> decoder(config, {1, N}, models::Purpose::evaluate, context);
  BasePass base(config, N, context);
  OverrideRun run{part, N, planned_passes(config, part)};
  run.loss = decoder.loss(parameters, tokens.data(), targets.data(), &base);

  std::vector<float> ones, ungated;
  if (multiplies(config.gate)) {
    ones.assign(product({Hq, D}), 1.0F);
    ungated.resize(product({N, Hq, D}));
  }
  const auto rise_of = [&](Override kind, std::int64_t layer, std::int64_t first, std::int64_t count) {
    models::LayerOverride<float> replaced;
    replaced.layer = layer;
    replaced.input = base.input_of(layer);
    replaced.heads.first = first;
    replaced.heads.count = count;
    if (kind != Override::closed) {
      View<const float, 2> factors = base.mean_gates_of(layer);
      if (kind == Override::open) factors = view_of(ones, Hq, D);
      replaced.heads.factors = factors.range(0, first, count);
      replaced.heads.ungated = view_of(ungated, N, Hq, D);
    }
    return decoder.loss_with(replaced, parameters, tokens.data(), targets.data()) - run.loss;
  };
  std::int64_t done = 1;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    for (std::int64_t p = 0; p < parts; ++p) {
      metrics::FigureRow& row = part == OverriddenPart::heads
                                    ? report.heads[static_cast<std::size_t>(layer)][static_cast<std::size_t>(p)]
                                    : report.layers[static_cast<std::size_t>(layer)];
      for (const OverrideRow& kind : kOverrides) row.set(kind.figure, std::nullopt);
      for (const OverrideRow* kind : overrides_of(config.gate)) {
        row.set(kind->figure, rise_of(kind->value, layer, p * (Hq / parts), Hq / parts));
        progress(static_cast<double>(++done) / static_cast<double>(run.passes));
      }
    }
  }
  return run;
}

}  // namespace headgate::xray
