// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/gates.hpp"

#include "models/layers/attention_buffers.hpp"
#include "models/layers/gate_apply.hpp"
#include "models/layers/gate_variant.hpp"

namespace headgate::metrics {

namespace {

layers::GateLogits logits_of(const models::DecoderConfig& c) {
  return layers::gate_logits(c.gate, c.dim, c.heads, c.kv_heads, c.head_dim);
}

}  // namespace

std::int64_t gate_width(const models::DecoderConfig& config) {
  const layers::GateLogits logits = logits_of(config);
  return layers::shares_gate(config.gate) ? logits.features : logits.count();
}

std::int64_t gate_owners(const models::DecoderConfig& config) {
  const layers::GateVariant& gate = config.gate;
  if (!layers::has_gate(gate) || layers::shares_gate(gate) || layers::gates_layer_output(gate)) return 0;
  return logits_of(config).heads;
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
