// SPDX-License-Identifier: Apache-2.0
#include "models/layers/gated_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "headgate/tensor.hpp"
#include "library/core/stopwatch.hpp"
#include "models/layers/activation_rounding.hpp"
#include "models/layers/elementwise.hpp"
#include "models/layers/head_views.hpp"
#include "models/layers/linear.hpp"
#include "models/layers/rope.hpp"

namespace headgate::layers {

template <typename T>
GatedAttention<T>::GatedAttention(const GatedAttentionShape& shape, const AttentionShared<T>& shared,
                                  const ExecutionContext& context)
    : shape_(shape),
      shared_(shared),
      context_(context),
      frequencies_(rope_frequencies(shape.rotary_dim, shape.rope_base, shape.rope_scaling)) {
  validate(shape.gate);
  set_first_position(0);
  if (shared.zero_sinks.present()) std::fill_n(shared.zero_sinks.data, shape.Hq, Wide<T>{0});
}

template <typename T>
void GatedAttention<T>::set_first_position(std::int64_t first) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(shape_.T));
  std::iota(positions.begin(), positions.end(), first);
  rope_tables<Wide<T>>(shared_.cos, shared_.sin, view_of(positions, shape_.T), frequencies_,
                       rope_attention_factor(shape_.rope_scaling));
}

// --- arguments of attention --------------------------------------------------------------------------------------

/// Views activations (N,H,F) of N = B·T tokens as tensors (B,H,T,F), the layout of the attention kernels.
template <typename T>
template <typename U>
ViewOf<U> GatedAttention<T>::by_head(const View<U, 3>& tokens) const {
  return layers::by_head(tokens, shape_.B, shape_.T);
}

template <typename T>
template <typename U>
View<U, 3> GatedAttention<T>::normed_together(const View<U, 3>& heads) const {
  if (shape_.qk_norm == QkNorm::per_head) return heads;
  const auto [N, H, D] = heads.shape;
  return {heads.data, {N, 1, H * D}, {heads.strides[0], H * D, 1}};
}

template <typename T>
View<const T, 3> GatedAttention<T>::logits(const AttentionVectors<const Wide<T>>& weights,
                                           const AttentionState<T>& state) const {
  if (!has_gate(shape_.gate)) return {};
  const auto [heads, features] = gate_logits(shape_);
  if (shape_.gate.source == GateSource::input) return state.logits.split_last(heads, features);
  const auto every_token = [heads = heads, features = features, N = shape_.N()](const T* gate) {
    return View<const T, 3>(gate, {N, heads, features}, {0, features, 1});
  };
  if constexpr (!kNarrow<T>) {
    return every_token(weights.gate_parameter.data);
  } else {
    copy_to<T, Wide<T>>(shared_.gate_parameter.flat(), weights.gate_parameter.flat(), context_);
    return every_token(shared_.gate_parameter.data);
  }
}

/// Returns the numbers to which rule() applies its function. These are the gate logits. If all heads share one gate,
/// they are the values of the shared gate.
template <typename T>
View<const T, 3> GatedAttention<T>::effective_logits(const AttentionVectors<const Wide<T>>& weights,
                                                     const AttentionState<T>& state) const {
  if (!shares_gate(shape_.gate)) return logits(weights, state);
  return {state.shared_gate.data, {shape_.N(), gate_logits(shape_).heads, shape_.D}, {shape_.D, 0, 1}};
}

/// Returns the function and the operation of the gate. If all heads share one gate, the function is the identity,
/// because effective_logits() already returns values of the function.
template <typename T>
GateRule GatedAttention<T>::rule() const {
  return {shares_gate(shape_.gate) ? GateFn::identity : shape_.gate.fn, shape_.gate.op};
}

template <typename T>
View<const Wide<T>, 1> GatedAttention<T>::sinks(const AttentionVectors<const Wide<T>>& weights) const {
  if (shape_.gate.sinks == SinkKind::learned) return weights.sinks;
  return shape_.gate.sinks == SinkKind::off_by_one ? shared_.zero_sinks : View<const Wide<T>, 1>();
}

template <typename T>
double GatedAttention<T>::scale() const {
  return shape_.scale > 0.0 ? shape_.scale : 1.0 / std::sqrt(static_cast<double>(shape_.D));
}

template <typename T>
AttentionOptions GatedAttention<T>::options() const {
  AttentionOptions options;
  options.scale = scale();
  options.causality = Causality::causal;
  if (shape_.window > 0) options.window_left = shape_.window - 1;
  options.gate_fn = rule().fn;
  options.gate_op = rule().op;
  if constexpr (std::is_same_v<T, BFloat16>) options.precision = Precision::native16;
  options.context = context_;
  return options;
}

template <typename T>
AttentionInputs GatedAttention<T>::inputs(const AttentionVectors<const Wide<T>>& weights,
                                          const AttentionState<T>& state) const {
  AttentionInputs inputs;
  inputs.q = by_head(state.q);
  inputs.k = by_head(state.k);
  inputs.v = by_head(state.v);
  if (gates_attention(shape_.gate)) inputs.gate = by_head(effective_logits(weights, state));
  if (const View<const Wide<T>, 1> sinks = this->sinks(weights); sinks.present()) {
    inputs.sinks = make_vector_view(sinks.data, shape_.Hq);
  }
  return inputs;
}

template <typename T>
template <typename U, typename V, class Visit>
void GatedAttention<T>::each_bias(const AttentionVectors<U>& weights, const View<V, 2>& projection,
                                  const Visit& visit) const {
  if (shape_.qkv_bias == QkvBias::none) return;
  const ProjectionColumns columns = projection_columns(shape_);
  visit(weights.q_bias, projection.range(1, columns.q, shape_.Hq * shape_.D));
  visit(weights.k_bias, projection.range(1, columns.k, shape_.Hkv * shape_.D));
  visit(weights.v_bias, projection.range(1, columns.v, shape_.Hkv * shape_.D));
}

// --- forward -----------------------------------------------------------------------------------------------------

template <typename T>
template <typename O, typename M>
void GatedAttention<T>::forward(View<O, 2> out, ConstView<T, 2> h, const AttentionWeights<const Wide<T>, M>& weights,
                                const AttentionState<T>& state, Update update, AttentionSkip* skip,
                                AttentionCache* cache, const HeadOverride<T>* replaced) const {
  const GateVariant& gate = shape_.gate;
  linear_forward(state.projection, h, weights.in, Update::overwrite, context_);
  each_bias(weights, state.projection,
            [this](const auto& bias, const auto& part) { add_bias<T>(part, bias, context_); });
  if (weights.gate_bias.present()) add_bias(state.logits, weights.gate_bias, context_);
  if (shares_gate(gate)) shared_gate(state.shared_gate, logits(weights, state), gate.fn, context_);
  if (gates_projection(gate)) {
    gate_apply<T>(state.gated, state.ungated, effective_logits(weights, state), rule(), Update::overwrite, context_);
  }

  if (shape_.qk_norm != QkNorm::none) {
    const auto norm = [this](const auto& y, const auto& rstd, const auto& x, const auto& w) {
      rmsnorm_forward<T>(normed_together(y), rstd, normed_together(x), w, shape_.norm, context_);
    };
    norm(state.q, state.q_rstd, state.gated_q, weights.q_norm);
    norm(state.k, state.k_rstd, state.gated_k, weights.k_norm);
  }
  rope_forward(state.q.split(0, shape_.B, shape_.T), shared_.cos, shared_.sin, context_);
  rope_forward(state.k.split(0, shape_.B, shape_.T), shared_.cos, shared_.sin, context_);

  attend(weights, state, skip, cache, replaced);

  if (gate.output_control == OutputControl::head_rmsnorm) {
    rmsnorm_forward(state.controlled, state.head_rstd, state.y, weights.head_norm, shape_.norm, context_);
  } else if (gate.output_control == OutputControl::silu) {
    silu_forward(state.controlled, state.y, context_);
  }
  if (replaced != nullptr) replace_heads(state.controlled, *replaced);

  if constexpr (!kNarrow<T>) round_activations(side_by_side(state.controlled), shape_.rounding, context_);
  const View<const T, 2> y = side_by_side(state.controlled);
  const bool biased = weights.out_bias.present();
  if (gates_layer_output(gate)) {
    linear_forward(state.ungated_out, y, weights.out, Update::overwrite, context_);
    if (biased) add_bias(state.ungated_out, weights.out_bias, context_);
    gate_apply<O, T>(one_head(out), one_head(state.ungated_out), effective_logits(weights, state), rule(), update,
                     context_);
  } else {
    linear_forward(out, y, weights.out, update, context_);
    if (biased) add_bias(out, weights.out_bias, context_);
  }
}

/// Computes attention: its output y and lse. Also stores the output before the gate if the backward pass or `replaced`
/// needs it.
template <typename T>
void GatedAttention<T>::attend(const AttentionVectors<const Wide<T>>& weights, const AttentionState<T>& state,
                               AttentionSkip* skip, AttentionCache* cache, const HeadOverride<T>* replaced) const {
  AttentionOutputs outputs;
  outputs.y = by_head(state.y);
  outputs.lse = make_view(state.lse.data, Shape{shape_.B, shape_.Hq, shape_.T, 1});
  const bool wants_ungated = replaced != nullptr && replaced->factors.present();
  const View<T, 3> ungated = wants_ungated ? replaced->ungated : state.attn;
  if (ungated.present()) outputs.attn = by_head(ungated);
  AttentionOptions how = options();
  AttentionInputs in = inputs(weights, state);
  CacheBatch cached;
  if (cache != nullptr) {
    cached = cache->append(in.k, in.v);
    if (std::is_same_v<T, BFloat16> && cache->dtype() == DType::f32) {
      // Rounds all keys and values to bf16, because attention with bf16 queries cannot read an f32 cache. Numbers that
      // were bf16 when appended do not change. The last keys belong to the current tokens, as bottom-right causal
      // alignment requires.
      const AttentionCache::RoundedKeys keys = cache->rounded_keys(context_);
      in.k = keys.k;
      in.v = keys.v;
    } else {
      cached.set(in);
    }
  }
  if (skip == nullptr) return attention_forward(outputs, in, how);
  how.gate_threshold = skip->threshold;
  const Stopwatch watch;
  attention_forward(outputs, in, how);
  skip->attention_seconds += watch.seconds();
  const std::int64_t rows = state.lse.count();
  skip->rows += rows;
  skip->closed_rows += std::count(state.lse.data, state.lse.data + rows, std::numeric_limits<Wide<T>>::infinity());
}

// --- backward ----------------------------------------------------------------------------------------------------

template <typename T>
void GatedAttention<T>::backward(View<Wide<T>, 2> dh, const AttentionWeights<Wide<T>>& gradients, ConstView<T, 2> dout,
                                 ConstView<T, 2> h, const AttentionWeights<const Wide<T>, const T>& weights,
                                 const AttentionState<T>& state) const {
  const AttentionShared<T>& d = shared_;
  const GateVariant& gate = shape_.gate;
  const auto [heads, features] = gate_logits(shape_);
  const View<T, 3> dz = has_gate(gate) ? d.dlogits.split_last(heads, features) : View<T, 3>();

  View<const T, 2> dout_of_product = dout;
  if (gates_layer_output(gate)) {
    gate_apply_backward<T>(one_head(d.dungated_out), dz, one_head(dout), one_head(state.ungated_out),
                           effective_logits(weights, state), rule(), context_);
    dout_of_product = d.dungated_out;
  }
  linear_backward_input(side_by_side(d.dy), dout_of_product, weights.out, Update::overwrite, context_);
  linear_backward_weight(gradients.out, dout_of_product, side_by_side(state.controlled), context_);
  if (gradients.out_bias.present()) add_column_sums<Wide<T>, T>(gradients.out_bias, dout_of_product, context_);

  control_backward(gradients, weights, state);
  attend_backward(gradients, weights, state);

  rope_backward(d.dq.split(0, shape_.B, shape_.T), d.cos, d.sin, context_);
  rope_backward(d.dk.split(0, shape_.B, shape_.T), d.cos, d.sin, context_);
  if (shape_.qk_norm != QkNorm::none) {
    const auto norm = [this](const auto& dx, const auto& dw, const auto& x, const auto& w, const auto& rstd) {
      rmsnorm_backward<T>(normed_together(dx), dw, normed_together(dx), normed_together(x), w, rstd, shape_.norm,
                          Update::overwrite, context_);
    };
    norm(d.dq, gradients.q_norm, state.gated_q, weights.q_norm, state.q_rstd);
    norm(d.dk, gradients.k_norm, state.gated_k, weights.k_norm, state.k_rstd);
  }

  if (gates_projection(gate)) {
    gate_apply_backward<T>(d.dgated, dz, d.dgated, state.ungated, effective_logits(weights, state), rule(), context_);
  }
  if (shares_gate(gate)) shared_gate_backward(dz, dz, logits(weights, state), gate.fn, context_);
  if (gradients.gate_bias.present()) add_column_sums<Wide<T>, T>(gradients.gate_bias, d.dlogits, context_);
  if (gradients.gate_parameter.present()) {
    add_column_sums<Wide<T>, T>(gradients.gate_parameter.flat(), d.dlogits, context_);
  }

  each_bias(gradients, d.dprojection,
            [this](const auto& dbias, const auto& part) { add_column_sums<Wide<T>, T>(dbias, part, context_); });
  linear_backward_input(dh, d.dprojection, weights.in, Update::overwrite, context_);
  const bool gates_alone = gradients.in.present() && gradients.in.shape[0] != weights.in.shape[0];
  linear_backward_weight(gradients.in, gates_alone ? d.dlogits : d.dprojection, h, context_);
}

/// Backpropagates through OutputControl. Replaces the contents of shared_.dy, the gradient of W_o's input, by the
/// gradient of y.
template <typename T>
void GatedAttention<T>::control_backward(const AttentionWeights<Wide<T>>& gradients,
                                         const AttentionWeights<const Wide<T>, const T>& weights,
                                         const AttentionState<T>& state) const {
  const View<T, 3>& dy = shared_.dy;
  if (shape_.gate.output_control == OutputControl::head_rmsnorm) {
    rmsnorm_backward(dy, gradients.head_norm, dy, state.y, weights.head_norm, state.head_rstd, shape_.norm,
                     Update::overwrite, context_);
  } else if (shape_.gate.output_control == OutputControl::silu) {
    silu_backward(dy, dy, state.y, context_);
  }
}

/// Computes dq, dk and dv, and adds the gradient of the sinks. Computes dz if the gate acts on the attention output.
template <typename T>
void GatedAttention<T>::attend_backward(const AttentionWeights<Wide<T>>& gradients,
                                        const AttentionWeights<const Wide<T>, const T>& weights,
                                        const AttentionState<T>& state) const {
  AttentionGradients d;
  d.dq = by_head(shared_.dq);
  d.dk = by_head(shared_.dk);
  d.dv = by_head(shared_.dv);
  if (gates_attention(shape_.gate)) {
    const auto [heads, features] = gate_logits(shape_);
    d.dgate = by_head(shared_.dlogits.split_last(heads, features));
  }
  if (gradients.sinks.present()) d.dsinks = make_vector_view(shared_.dsinks.data, shape_.Hq);
  AttentionSaved saved;
  saved.y = by_head(state.y);
  saved.lse = make_view(state.lse.data, Shape{shape_.B, shape_.Hq, shape_.T, 1});
  if (state.attn.present()) saved.attn = by_head(state.attn);
  AttentionIncoming incoming;
  incoming.dy = by_head(shared_.dy);
  attention_backward(d, inputs(weights, state), saved, incoming, options());
  if (gradients.sinks.present()) add_to(gradients.sinks, shared_.dsinks, context_);
}

template class GatedAttention<float>;
template class GatedAttention<double>;
template class GatedAttention<BFloat16>;

// Instantiates GatedAttention<T>::forward with output type O and matrix type M.
#define HEADGATE_ATTENTION_FORWARD(T, O, M)                                                                        \
  template void GatedAttention<T>::forward(View<O, 2>, ConstView<T, 2>, const AttentionWeights<const Wide<T>, M>&, \
                                           const AttentionState<T>&, Update, AttentionSkip*, AttentionCache*,      \
                                           const HeadOverride<T>*) const;
HEADGATE_ATTENTION_FORWARD(float, float, const float)
HEADGATE_ATTENTION_FORWARD(double, double, const double)
HEADGATE_ATTENTION_FORWARD(float, float, const BFloat16)
HEADGATE_ATTENTION_FORWARD(float, float, const StoredBlocks)
HEADGATE_ATTENTION_FORWARD(BFloat16, float, const BFloat16)
HEADGATE_ATTENTION_FORWARD(BFloat16, BFloat16, const BFloat16)
HEADGATE_ATTENTION_FORWARD(BFloat16, float, const float)
HEADGATE_ATTENTION_FORWARD(BFloat16, BFloat16, const float)
HEADGATE_ATTENTION_FORWARD(BFloat16, float, const StoredBlocks)
HEADGATE_ATTENTION_FORWARD(BFloat16, BFloat16, const StoredBlocks)

#undef HEADGATE_ATTENTION_FORWARD

}  // namespace headgate::layers
