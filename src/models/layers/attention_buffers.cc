// SPDX-License-Identifier: Apache-2.0
#include "models/layers/attention_buffers.hpp"

#include "library/core/gate_functions.hpp"

namespace headgate::layers {

namespace {

/// Returns whether the backward pass needs a saved copy of o, the attention output before the gate. It does if o cannot
/// be recovered from the gated output y:
/// - y = o·g(z), and g(z) can be 0.
/// - y = o + g(z), where cancellation would make the recovered o inexact.
bool keeps_attn(const GateVariant& gate, DType type) {
  return gates_attention(gate) && keeps_output(shares_gate(gate) ? GateFn::identity : gate.fn, gate.op, type);
}

}  // namespace

GateLogits gate_logits(const GateVariant& gate, std::int64_t C, std::int64_t Hq, std::int64_t Hkv, std::int64_t D) {
  const GateSiteRow* site = find_site(gate.site);
  if (site == nullptr) return {};
  GateLogits logits{site->heads == GateHeads::query ? Hq : Hkv, D};
  if (site->heads == GateHeads::none) logits = {1, C};
  if (gate.grain == GateGrain::headwise) logits.features = 1;
  return logits;
}

GateLogits gate_logits(const GatedAttentionShape& shape) {
  return gate_logits(shape.gate, shape.C, shape.Hq, shape.Hkv, shape.D);
}

ProjectionColumns projection_columns(const GatedAttentionShape& shape) {
  const bool projected = shape.gate.source == GateSource::input;
  ProjectionColumns columns;
  columns.gate = shape.Hq * shape.D;
  columns.k = columns.gate + (projected ? gate_logits(shape).count() : 0);
  columns.v = columns.k + shape.Hkv * shape.D;
  columns.width = columns.v + shape.Hkv * shape.D;
  return columns;
}

template <typename T>
AttentionState<T>::AttentionState(Workspace& ws, const GatedAttentionShape& shape) {
  constexpr const char* kName = "attention, saved";
  const std::int64_t N = shape.N(), Hq = shape.Hq, Hkv = shape.Hkv, D = shape.D;
  const ProjectionColumns columns = projection_columns(shape);
  projection = ws.take<T>(kName, N, columns.width);
  projected_q = projection.range(1, columns.q, Hq * D).split_last(Hq, D);
  projected_k = projection.range(1, columns.k, Hkv * D).split_last(Hkv, D);
  projected_v = projection.range(1, columns.v, Hkv * D).split_last(Hkv, D);
  if (has_gate(shape.gate) && shape.gate.source == GateSource::input) {
    logits = projection.range(1, columns.gate, columns.k - columns.gate);
  }

  gated_q = projected_q;
  gated_k = projected_k;
  v = projected_v;
  if (gates_projection(shape.gate)) {
    const auto column = find_site(shape.gate.site)->column;
    View<T, 3>& chosen = column == &ProjectionColumns::q ? gated_q : column == &ProjectionColumns::k ? gated_k : v;
    ungated = chosen;
    gated = chosen = ws.take<T>(kName, N, ungated.shape[1], D);
  }
  q = gated_q;
  k = gated_k;
  if (shape.qk_norm != QkNorm::none) {
    const bool per_head = shape.qk_norm == QkNorm::per_head;
    q = ws.take<T>(kName, N, Hq, D);
    k = ws.take<T>(kName, N, Hkv, D);
    q_rstd = ws.take<Wide<T>>(kName, N, per_head ? Hq : 1);
    k_rstd = ws.take<Wide<T>>(kName, N, per_head ? Hkv : 1);
  }

  if (shares_gate(shape.gate)) shared_gate = ws.take<T>(kName, N, D);
  if (keeps_attn(shape.gate, dtype_of<T>())) attn = ws.take<T>(kName, N, Hq, D);
  y = controlled = ws.take<T>(kName, N, Hq, D);
  lse = ws.take<Wide<T>>(kName, shape.B, Hq, shape.T);
  if (shape.gate.output_control != OutputControl::none) controlled = ws.take<T>(kName, N, Hq, D);
  if (shape.gate.output_control == OutputControl::head_rmsnorm) head_rstd = ws.take<Wide<T>>(kName, N, Hq);
  if (gates_layer_output(shape.gate)) ungated_out = ws.take<T>(kName, N, shape.C);
}

template <typename T>
AttentionShared<T>::AttentionShared(Workspace& ws, const GatedAttentionShape& shape, bool training) {
  const std::int64_t N = shape.N(), Hq = shape.Hq, Hkv = shape.Hkv, D = shape.D;
  cos = ws.take<Wide<T>>("RoPE tables", shape.T, shape.rotary_dim / 2);
  sin = ws.take<Wide<T>>("RoPE tables", shape.T, shape.rotary_dim / 2);
  if (shape.gate.sinks == SinkKind::off_by_one) zero_sinks = ws.take<Wide<T>>("sinks", Hq);
  const GateLogits logits = gate_logits(shape);
  if (kNarrow<T> && shape.gate.source == GateSource::parameter) {
    gate_parameter = ws.take<T>("gate", logits.heads, logits.features);
  }
  if (!training) return;

  constexpr const char* kName = "attention, backward";
  const ProjectionColumns columns = projection_columns(shape);
  dprojection = ws.take<T>(kName, N, columns.width);
  dq = dprojection.range(1, columns.q, Hq * D).split_last(Hq, D);
  dk = dprojection.range(1, columns.k, Hkv * D).split_last(Hkv, D);
  dv = dprojection.range(1, columns.v, Hkv * D).split_last(Hkv, D);
  if (gates_projection(shape.gate)) {
    const auto column = find_site(shape.gate.site)->column;
    dgated = column == &ProjectionColumns::q ? dq : column == &ProjectionColumns::k ? dk : dv;
  }
  dy = ws.take<T>(kName, N, Hq, D);
  if (gates_layer_output(shape.gate)) dungated_out = ws.take<T>(kName, N, shape.C);
  if (shape.gate.source == GateSource::parameter) {
    dlogits = ws.take<T>(kName, N, logits.count());
  } else {
    dlogits = dprojection.range(1, columns.gate, columns.k - columns.gate);
  }
  if (shape.gate.sinks == SinkKind::learned) dsinks = ws.take<Wide<T>>(kName, Hq);
}

template struct AttentionState<float>;
template struct AttentionState<double>;
template struct AttentionState<BFloat16>;
template struct AttentionShared<float>;
template struct AttentionShared<double>;
template struct AttentionShared<BFloat16>;

}  // namespace headgate::layers
