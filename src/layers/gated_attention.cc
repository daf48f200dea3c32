// SPDX-License-Identifier: Apache-2.0
#include "layers/gated_attention.hpp"

#include <algorithm>
#include <cmath>

#include "gates/gate_functions.hpp"
#include "layers/elementwise.hpp"
#include "layers/gate_apply.hpp"
#include "layers/linear.hpp"

namespace headgate::layers {

namespace {

/// (N,H,F) memory as the kernels' (B,H,T,F).
template <typename T>
ViewOf<T> kernel_view(const HeadView<T>& view, std::int64_t B, std::int64_t seq, std::int64_t H, std::int64_t F) {
  return make_view(view.data, Shape{B, H, seq, F},
                   Shape{seq * view.token_stride, view.head_stride, view.token_stride, 1});
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

ProjectionColumns projection_columns(const GatedAttentionShape& shape) {
  const bool projected = shape.gate.source == GateSource::input;
  const GateLogits logits = gate_logits(shape.gate, shape.C, shape.Hq, shape.Hkv, shape.D);
  ProjectionColumns columns;
  columns.gate = shape.Hq * shape.D;
  columns.k = columns.gate + (projected ? logits.count() : 0);
  columns.v = columns.k + shape.Hkv * shape.D;
  columns.width = columns.v + shape.Hkv * shape.D;
  return columns;
}

template <typename T>
GatedAttention<T>::GatedAttention(const GatedAttentionShape& shape)
    : shape_(shape),
      site_(find_site(shape.gate.site)),
      gate_(gate_logits(shape.gate, shape.C, shape.Hq, shape.Hkv, shape.D)),
      columns_(projection_columns(shape)) {
  validate(shape.gate);
}

// --- memory ------------------------------------------------------------------------------------------------------

template <typename T>
void GatedAttention<T>::plan_shared(BufferPlan& plan, bool training) {
  const std::int64_t N = shape_.N();
  plan.add("RoPE tables", cos_, shape_.T * shape_.rotary_dim / 2);
  plan.add("RoPE tables", sin_, shape_.T * shape_.rotary_dim / 2);
  if (shape_.gate.sinks == SinkKind::off_by_one) plan.add("sinks", zero_sinks_, shape_.Hq);
  if (!training) return;
  const std::string name = "attention, backward";
  plan.add(name, dprojection_, N * columns_.width);
  plan.add(name, dy_, N * shape_.Hq * shape_.D);
  if (gates_output()) plan.add(name, dout_ungated_, N * shape_.C);
  if (shape_.gate.source == GateSource::parameter) plan.add(name, dlogits_, N * gate_.count());
  if (shape_.gate.sinks == SinkKind::learned) plan.add(name, dsinks_, shape_.Hq);
}

template <typename T>
void GatedAttention<T>::plan_saved(BufferPlan& plan, AttentionSavedState<T>& saved) const {
  const std::string name = "attention, saved";
  const std::int64_t N = shape_.N(), q_width = shape_.Hq * shape_.D, kv_width = shape_.Hkv * shape_.D;
  plan.add(name, saved.projection, N * columns_.width);
  if (gates_projection()) plan.add(name, saved.gated, N * gated_shape().H * shape_.D);
  if (shape_.qk_norm == QkNorm::per_head) {
    plan.add(name, saved.q, N * q_width);
    plan.add(name, saved.k, N * kv_width);
    plan.add(name, saved.q_rstd, N * shape_.Hq);
    plan.add(name, saved.k_rstd, N * shape_.Hkv);
  }
  if (shared()) plan.add(name, saved.shared_gate, N * shape_.D);
  if (keeps_attn()) plan.add(name, saved.attn, N * q_width);
  plan.add(name, saved.y, N * q_width);
  plan.add(name, saved.lse, N * shape_.Hq);
  if (shape_.gate.output_control != OutputControl::none) plan.add(name, saved.controlled, N * q_width);
  if (shape_.gate.output_control == OutputControl::head_rmsnorm) plan.add(name, saved.head_rstd, N * shape_.Hq);
  if (gates_output()) plan.add(name, saved.ungated_out, N * shape_.C);
}

template <typename T>
void GatedAttention<T>::prepare() {
  if (shape_.rotary_dim > 0) rope_tables(cos_, sin_, shape_.T, shape_.rotary_dim, shape_.rope_base);
  if (zero_sinks_ != nullptr) std::fill_n(zero_sinks_, shape_.Hq, T{0});
}

/// Where g has zeros, or is added, o cannot be had from y without loss.
template <typename T>
bool GatedAttention<T>::keeps_attn() const {
  return gates_attention() && keeps_output(effective_fn(), shape_.gate.op);
}

// --- views -------------------------------------------------------------------------------------------------------

template <typename T>
HeadView<T> GatedAttention<T>::columns(T* projection, std::int64_t column) const {
  return {projection + column, columns_.width, shape_.D};
}

template <typename T>
HeadView<T> GatedAttention<T>::heads_of(T* data, std::int64_t heads) const {
  return {data, heads * shape_.D, shape_.D};
}

/// q, k or v before norm and RoPE: projected, and through its gate where it has one.
template <typename T>
HeadView<T> GatedAttention<T>::projected(const AttentionSavedState<T>& saved, std::int64_t ProjectionColumns::*column,
                                         std::int64_t heads) const {
  const bool gated = gates_projection() && site_->column == column;
  return gated ? heads_of(saved.gated, heads) : columns(saved.projection, columns_.*column);
}

template <typename T>
HeadView<const T> GatedAttention<T>::query(const AttentionSavedState<T>& saved) const {
  return saved.q != nullptr ? heads_of(saved.q, shape_.Hq) : projected(saved, &ProjectionColumns::q, shape_.Hq);
}

template <typename T>
HeadView<const T> GatedAttention<T>::key(const AttentionSavedState<T>& saved) const {
  return saved.k != nullptr ? heads_of(saved.k, shape_.Hkv) : projected(saved, &ProjectionColumns::k, shape_.Hkv);
}

template <typename T>
HeadView<const T> GatedAttention<T>::value(const AttentionSavedState<T>& saved) const {
  return projected(saved, &ProjectionColumns::v, shape_.Hkv);
}

template <typename T>
HeadView<const T> GatedAttention<T>::logits(const AttentionWeights<const T*>& weights,
                                            const AttentionSavedState<T>& saved) const {
  if (!has_gate(shape_.gate)) return {};
  if (shape_.gate.source == GateSource::parameter) return {weights.gate_parameter, 0, gate_.features};
  return {saved.projection + columns_.gate, columns_.width, gate_.features};
}

/// What the gate's place reads: z, or the gate itself where the heads share it.
template <typename T>
HeadView<const T> GatedAttention<T>::effective_gate(const AttentionWeights<const T*>& weights,
                                                    const AttentionSavedState<T>& saved) const {
  return shared() ? HeadView<const T>{saved.shared_gate, shape_.D, 0} : logits(weights, saved);
}

/// Where dz goes: (N,heads,features) in the gradient of the projection, or apart.
template <typename T>
HeadView<T> GatedAttention<T>::logit_gradients() const {
  if (shape_.gate.source == GateSource::parameter) return {dlogits_, gate_.count(), gate_.features};
  return {dprojection_ + columns_.gate, columns_.width, gate_.features};
}

/// Of what the gate acts on.
template <typename T>
HeadShape GatedAttention<T>::gated_shape() const {
  if (gates_output()) return {shape_.N(), 1, shape_.C};
  return site_->heads == GateHeads::query ? q_heads() : kv_heads();
}

template <typename T>
const T* GatedAttention<T>::output_of(const AttentionSavedState<T>& saved) const {
  return saved.controlled != nullptr ? saved.controlled : saved.y;
}

// --- attention's own arguments -----------------------------------------------------------------------------------

template <typename T>
double GatedAttention<T>::scale() const {
  return 1.0 / std::sqrt(static_cast<double>(shape_.D));
}

template <typename T>
AttentionOptions GatedAttention<T>::options() const {
  AttentionOptions options;
  options.scale = scale();
  options.causality = Causality::causal;
  options.gate_fn = effective_fn();
  options.gate_op = shape_.gate.op;
  return options;
}

template <typename T>
AttentionInputs GatedAttention<T>::inputs(const AttentionWeights<const T*>& weights,
                                          const AttentionSavedState<T>& saved) const {
  AttentionInputs inputs;
  inputs.q = kernel_view(query(saved), shape_.B, shape_.T, shape_.Hq, shape_.D);
  inputs.k = kernel_view(key(saved), shape_.B, shape_.T, shape_.Hkv, shape_.D);
  inputs.v = kernel_view(value(saved), shape_.B, shape_.T, shape_.Hkv, shape_.D);
  if (gates_attention()) {
    inputs.gate = kernel_view(effective_gate(weights, saved), shape_.B, shape_.T, shape_.Hq, gate_.features);
  }
  if (shape_.gate.sinks == SinkKind::learned) inputs.sinks = make_vector_view(weights.sinks, shape_.Hq);
  if (shape_.gate.sinks == SinkKind::off_by_one) {
    inputs.sinks = make_vector_view(static_cast<const T*>(zero_sinks_), shape_.Hq);
  }
  return inputs;
}

// --- forward -----------------------------------------------------------------------------------------------------

template <typename T>
void GatedAttention<T>::forward(T* out, const T* h, const AttentionWeights<const T*>& weights,
                                const AttentionSavedState<T>& saved, Store store) {
  const std::int64_t N = shape_.N();
  linear_forward(saved.projection, h, weights.in, {.N = N, .C = shape_.C, .O = columns_.width});
  if (weights.gate_bias != nullptr) {
    add_bias(saved.projection + columns_.gate, weights.gate_bias, N, gate_.count(), columns_.width);
  }
  if (shared()) {
    shared_gate_forward(saved.shared_gate, logits(weights, saved), {N, gate_.heads, gate_.features}, shape_.gate.fn);
  }
  if (gates_projection()) {
    gate(heads_of(saved.gated, gated_shape().H), columns(saved.projection, columns_.*site_->column), weights, saved,
         Store::overwrite);
  }
  norm_and_rotate(weights, saved);
  attend(weights, saved);
  control(weights, saved);

  const LinearShape projection{.N = N, .C = shape_.Hq * shape_.D, .O = shape_.C};
  if (gates_output()) {
    linear_forward(saved.ungated_out, output_of(saved), weights.out, projection);
    gate(rows_view(out, shape_.C), rows_view(saved.ungated_out, shape_.C), weights, saved, store);
  } else {
    linear_forward(out, output_of(saved), weights.out, projection, store);
  }
}

/// v = or += u through the gate, where that is not the attention kernel's work.
template <typename T>
void GatedAttention<T>::gate(HeadView<T> v, HeadView<const T> u, const AttentionWeights<const T*>& weights,
                             const AttentionSavedState<T>& saved, Store store) const {
  gate_forward(v, u, effective_gate(weights, saved), gated_shape(), gate_.features, effective_fn(), shape_.gate.op,
               store);
}

template <typename T>
void GatedAttention<T>::norm_and_rotate(const AttentionWeights<const T*>& weights,
                                        const AttentionSavedState<T>& saved) const {
  HeadView<T> q = projected(saved, &ProjectionColumns::q, shape_.Hq);
  HeadView<T> k = projected(saved, &ProjectionColumns::k, shape_.Hkv);
  if (shape_.qk_norm == QkNorm::per_head) {
    rmsnorm_forward(heads_of(saved.q, shape_.Hq), saved.q_rstd, q, weights.q_norm, q_heads(), shape_.norm);
    rmsnorm_forward(heads_of(saved.k, shape_.Hkv), saved.k_rstd, k, weights.k_norm, kv_heads(), shape_.norm);
    q = heads_of(saved.q, shape_.Hq);
    k = heads_of(saved.k, shape_.Hkv);
  }
  if (shape_.rotary_dim == 0) return;
  const RopeShape rope{shape_.T, shape_.rotary_dim};
  rope_forward(q, cos_, sin_, q_heads(), rope);
  rope_forward(k, cos_, sin_, kv_heads(), rope);
}

template <typename T>
void GatedAttention<T>::attend(const AttentionWeights<const T*>& weights, const AttentionSavedState<T>& saved) const {
  AttentionOutputs outputs;
  outputs.y = kernel_view(heads_of(saved.y, shape_.Hq), shape_.B, shape_.T, shape_.Hq, shape_.D);
  outputs.lse = make_view(saved.lse, Shape{shape_.B, shape_.Hq, shape_.T, 1});
  if (saved.attn != nullptr) {
    outputs.attn = kernel_view(heads_of(saved.attn, shape_.Hq), shape_.B, shape_.T, shape_.Hq, shape_.D);
  }
  attention_forward(outputs, inputs(weights, saved), options());
}

template <typename T>
void GatedAttention<T>::control(const AttentionWeights<const T*>& weights, const AttentionSavedState<T>& saved) const {
  if (saved.controlled == nullptr) return;
  const HeadView<T> controlled = heads_of(saved.controlled, shape_.Hq), y = heads_of(saved.y, shape_.Hq);
  if (shape_.gate.output_control == OutputControl::head_rmsnorm) {
    rmsnorm_forward(controlled, saved.head_rstd, y, weights.head_norm, q_heads(), shape_.norm);
  } else {
    silu_forward(controlled, y, q_heads());
  }
}

// --- backward ----------------------------------------------------------------------------------------------------

template <typename T>
void GatedAttention<T>::backward(T* dh, const AttentionWeights<T*>& gradients, const T* dout, const T* h,
                                 const AttentionWeights<const T*>& weights, const AttentionSavedState<T>& saved) {
  output_backward(gradients, dout, weights, saved);
  control_backward(gradients, weights, saved);
  attend_backward(gradients, weights, saved);
  norm_and_rotate_backward(gradients, weights, saved);
  if (gates_projection()) {
    const HeadView<T> du = columns(dprojection_, columns_.*site_->column);
    gate_backward(du, du, columns(saved.projection, columns_.*site_->column), weights, saved);
  }
  logits_backward(gradients, weights, saved);
  linear_backward(dh, gradients.in, dprojection_, h, weights.in, {.N = shape_.N(), .C = shape_.C, .O = columns_.width});
}

/// du = and dz = from dv, where the gate is not the attention kernel's work. du may be dv.
template <typename T>
void GatedAttention<T>::gate_backward(HeadView<T> du, HeadView<const T> dv, HeadView<const T> u,
                                      const AttentionWeights<const T*>& weights,
                                      const AttentionSavedState<T>& saved) const {
  layers::gate_backward(du, logit_gradients(), dv, u, effective_gate(weights, saved), gated_shape(), gate_.features,
                        effective_fn(), shape_.gate.op);
}

/// dy_ =, through the gate on W_o's output and W_o.
template <typename T>
void GatedAttention<T>::output_backward(const AttentionWeights<T*>& gradients, const T* dout,
                                        const AttentionWeights<const T*>& weights,
                                        const AttentionSavedState<T>& saved) {
  if (gates_output()) {
    gate_backward(rows_view(dout_ungated_, shape_.C), rows_view(dout, shape_.C), rows_view(saved.ungated_out, shape_.C),
                  weights, saved);
    dout = dout_ungated_;
  }
  linear_backward(dy_, gradients.out, dout, output_of(saved), weights.out,
                  {.N = shape_.N(), .C = shape_.Hq * shape_.D, .O = shape_.C});
}

/// dy_ in place.
template <typename T>
void GatedAttention<T>::control_backward(const AttentionWeights<T*>& gradients,
                                         const AttentionWeights<const T*>& weights,
                                         const AttentionSavedState<T>& saved) {
  if (saved.controlled == nullptr) return;
  const HeadView<T> dy = heads_of(dy_, shape_.Hq), y = heads_of(saved.y, shape_.Hq);
  if (shape_.gate.output_control == OutputControl::head_rmsnorm) {
    rmsnorm_backward(dy, gradients.head_norm, dy, y, weights.head_norm, saved.head_rstd, q_heads(), shape_.norm,
                     Store::overwrite);
  } else {
    silu_backward(dy, dy, y, q_heads());
  }
}

/// The q, k and v columns of dprojection_ = gradients of what the kernel read; dz = where the gate is its own.
template <typename T>
void GatedAttention<T>::attend_backward(const AttentionWeights<T*>& gradients,
                                        const AttentionWeights<const T*>& weights,
                                        const AttentionSavedState<T>& saved) {
  const std::int64_t B = shape_.B, seq = shape_.T, Hq = shape_.Hq, Hkv = shape_.Hkv, D = shape_.D;
  AttentionGradients d;
  d.dq = kernel_view(columns(dprojection_, columns_.q), B, seq, Hq, D);
  d.dk = kernel_view(columns(dprojection_, columns_.k), B, seq, Hkv, D);
  d.dv = kernel_view(columns(dprojection_, columns_.v), B, seq, Hkv, D);
  if (gates_attention()) d.dgate = kernel_view(logit_gradients(), B, seq, Hq, gate_.features);
  if (gradients.sinks != nullptr) d.dsinks = make_vector_view(dsinks_, Hq);
  AttentionSaved forward;
  forward.y = kernel_view(heads_of(saved.y, Hq), B, seq, Hq, D);
  forward.lse = make_view(saved.lse, Shape{B, Hq, seq, 1});
  if (saved.attn != nullptr) forward.attn = kernel_view(heads_of(saved.attn, Hq), B, seq, Hq, D);
  AttentionIncoming incoming;
  incoming.dy = kernel_view(heads_of(dy_, Hq), B, seq, Hq, D);
  attention_backward(d, inputs(weights, saved), forward, incoming, options());
  if (gradients.sinks != nullptr) add_to(gradients.sinks, dsinks_, Hq);
}

/// The q and k columns of dprojection_ in place.
template <typename T>
void GatedAttention<T>::norm_and_rotate_backward(const AttentionWeights<T*>& gradients,
                                                 const AttentionWeights<const T*>& weights,
                                                 const AttentionSavedState<T>& saved) {
  const HeadView<T> dq = columns(dprojection_, columns_.q), dk = columns(dprojection_, columns_.k);
  if (shape_.rotary_dim > 0) {
    const RopeShape rope{shape_.T, shape_.rotary_dim};
    rope_backward(dq, cos_, sin_, q_heads(), rope);
    rope_backward(dk, cos_, sin_, kv_heads(), rope);
  }
  if (shape_.qk_norm != QkNorm::per_head) return;
  rmsnorm_backward(dq, gradients.q_norm, dq, projected(saved, &ProjectionColumns::q, shape_.Hq), weights.q_norm,
                   saved.q_rstd, q_heads(), shape_.norm, Store::overwrite);
  rmsnorm_backward(dk, gradients.k_norm, dk, projected(saved, &ProjectionColumns::k, shape_.Hkv), weights.k_norm,
                   saved.k_rstd, kv_heads(), shape_.norm, Store::overwrite);
}

/// dz from the gradient of a shared gate, and what z is made of besides h·Wz.
template <typename T>
void GatedAttention<T>::logits_backward(const AttentionWeights<T*>& gradients,
                                        const AttentionWeights<const T*>& weights,
                                        const AttentionSavedState<T>& saved) {
  const HeadView<T> dz = logit_gradients();
  if (shared()) {
    shared_gate_backward(dz, logits(weights, saved), {shape_.N(), gate_.heads, gate_.features}, shape_.gate.fn);
  }
  T* constant = gradients.gate_parameter != nullptr ? gradients.gate_parameter : gradients.gate_bias;
  if (constant != nullptr) add_column_sums(constant, dz.data, shape_.N(), gate_.count(), dz.token_stride);
}

template class GatedAttention<float>;
template class GatedAttention<double>;

}  // namespace headgate::layers
