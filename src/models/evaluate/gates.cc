// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/gates.hpp"

#include <algorithm>

#include "models/evaluate/layer_heads.hpp"
#include "models/layers/attention_buffers.hpp"
#include "models/layers/gate_apply.hpp"
#include "models/layers/gate_variant.hpp"

namespace headgate::metrics {

namespace {

layers::GateLogits logits_of(const models::DecoderConfig& c, std::int64_t layer) {
  return layers::gate_logits(c.gate, c.dim, models::layer_config(c, layer).heads, c.kv_heads, c.head_dim);
}

}  // namespace

std::int64_t gate_width(const models::DecoderConfig& config, std::int64_t layer) {
  if (is_linear(config, layer)) return 0;
  const layers::GateLogits logits = logits_of(config, layer);
  return layers::shares_gate(config.gate) ? logits.features : logits.count();
}

std::int64_t most_gates(const models::DecoderConfig& config) {
  std::int64_t most = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) most = std::max(most, gate_width(config, layer));
  return most;
}

std::int64_t gate_owners(const models::DecoderConfig& config, std::int64_t layer) {
  const layers::GateVariant& gate = config.gate;
  if (is_linear(config, layer)) return 0;
  if (!layers::has_gate(gate) || layers::shares_gate(gate) || layers::gates_layer_output(gate)) return 0;
  return logits_of(config, layer).heads;
}

template <typename T>
void gate_values_of(View<T, 2> out, const models::LayerView<T>& view, const models::DecoderConfig& config,
                    const ExecutionContext& context) {
  if (layers::shares_gate(config.gate)) {
    layers::shared_gate(out, view.gate, config.gate.fn, context);
  } else {
    layers::gate_values(out.split_last(view.gate.shape[1], view.gate.shape[2]), view.gate, config.gate.fn, context);
  }
}

template void gate_values_of(View<float, 2>, const models::LayerView<float>&, const models::DecoderConfig&,
                             const ExecutionContext&);
template void gate_values_of(View<double, 2>, const models::LayerView<double>&, const models::DecoderConfig&,
                             const ExecutionContext&);

}  // namespace headgate::metrics
