// SPDX-License-Identifier: Apache-2.0
#include "models/layers/delta_net.hpp"

#include <cstddef>
#include <type_traits>

#include "headgate/tensor.hpp"
#include "models/layers/activation_rounding.hpp"
#include "models/layers/elementwise.hpp"
#include "models/layers/gate_apply.hpp"
#include "models/layers/head_views.hpp"
#include "models/layers/linear.hpp"

namespace headgate::layers {

namespace {

/// epsilon of the L2 norm of q and k, the same in all models.
constexpr double kL2NormEps = 1e-6;

/// Reshapes the convolution's weights (channels,K) to (1,1,channels,K), as short_convolution_forward() expects.
template <typename U>
ViewOf<U> taps_view(const View<U, 2>& taps) {
  return make_view(taps.data, Shape{1, 1, taps.shape[0], taps.shape[1]});
}

/// Returns tokens [first, first + count) of a tensor (B,H,T,F).
template <typename Void>
BasicTensorView<Void> tokens_of(BasicTensorView<Void> tensor, std::int64_t first, std::int64_t count) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  tensor.data = static_cast<Byte*>(tensor.data) + first * tensor.strides[2] * bytes;
  tensor.shape[2] = count;
  return tensor;
}

}  // namespace

template <typename T>
DeltaNet<T>::DeltaNet(const DeltaNetShape& shape, const DeltaNetShared<T>& shared, const ExecutionContext& context)
    : shape_(shape), shared_(shared), context_(context) {
  validate(shape);
}

// --- arguments of the operations ---------------------------------------------------------------------------------

template <typename T>
template <typename U>
ViewOf<U> DeltaNet<T>::by_head(const View<U, 3>& tokens) const {
  return layers::by_head(tokens, shape_.B, shape_.T);
}

/// Views logits (N,H) as (B,H,T,1).
template <typename T>
template <typename U>
ViewOf<U> DeltaNet<T>::by_head(const View<U, 2>& logits) const {
  return by_head(logits.split_last(logits.shape[1], 1));
}

template <typename T>
ShortConvolutionInputs DeltaNet<T>::convolution_inputs(const DeltaNetVectors<const Wide<T>>& weights,
                                                       const DeltaNetState<T>& state) const {
  ShortConvolutionInputs inputs;
  inputs.x = by_head(one_head(state.mixed));
  inputs.weight = taps_view(weights.convolution);
  return inputs;
}

template <typename T>
LinearAttentionInputs DeltaNet<T>::rule_inputs(const DeltaNetState<T>& state) const {
  LinearAttentionInputs inputs;
  inputs.q = by_head(state.q);
  inputs.k = by_head(state.k);
  inputs.v = by_head(state.v);
  inputs.decay = by_head(state.decay);
  inputs.beta = by_head(state.beta);
  return inputs;
}

template <typename T>
LinearAttentionOptions DeltaNet<T>::rule_options() const {
  LinearAttentionOptions options;
  options.rule = LinearRule::gated_delta;
  options.l2_norm = kL2NormEps;
  options.context = context_;
  return options;
}

template <typename T>
GatedNormInputs DeltaNet<T>::norm_inputs(const DeltaNetVectors<const Wide<T>>& weights,
                                         const DeltaNetState<T>& state) const {
  GatedNormInputs inputs;
  inputs.x = by_head(state.o);
  inputs.weight = make_vector_view(weights.norm.data, shape_.Dv);
  inputs.gate = by_head(state.z);
  return inputs;
}

template <typename T>
GatedNormOptions DeltaNet<T>::norm_options() const {
  return {.eps = shape_.norm_eps, .gate_fn = shape_.output_gate, .context = context_};
}

template <typename T>
DeltaGates<T> DeltaNet<T>::gates(const DeltaNetVectors<const Wide<T>>& weights, const DeltaNetState<T>& state) const {
  return {state.a, state.b, weights.a_log, weights.dt_bias, shape_.beta_scale};
}

// --- forward -----------------------------------------------------------------------------------------------------

template <typename T>
template <typename O, typename M>
void DeltaNet<T>::forward(View<O, 2> out, ConstView<T, 2> h, const DeltaNetWeights<const Wide<T>, M>& weights,
                          const DeltaNetState<T>& state, Update update, DeltaNetCache* cache,
                          const HeadOverride<T>* replaced) const {
  if (shape_.N() == 0) return;
  linear_forward(state.projection, h, weights.in, Update::overwrite, context_);
  delta_gates_forward<T>(state.decay, state.beta, gates(weights, state), context_);
  if (cache == nullptr) {
    convolve(weights, state, {0, shape_.T}, nullptr);
    attend(state, {0, shape_.T}, nullptr);
  } else {
    cache->begin_pass();
    for (Part part; part.first < shape_.T; part.first += part.count) {
      part.count = cache->next_part(shape_.T - part.first);
      const DeltaNetCache::Pass pass = cache->begin_part();
      convolve(weights, state, part, &pass);
      attend(state, part, &pass);
      cache->commit(part.count);
    }
  }
  gate_output(weights, state, replaced);
  if constexpr (!kNarrow<T>) round_activations(side_by_side(state.y), shape_.rounding, context_);
  linear_forward(out, side_by_side<const T>(state.y), weights.out, update, context_);
}

template <typename T>
void DeltaNet<T>::convolve(const DeltaNetVectors<const Wide<T>>& weights, const DeltaNetState<T>& state,
                           const Part& part, const DeltaNetCache::Pass* pass) const {
  ShortConvolutionInputs inputs = convolution_inputs(weights, state);
  inputs.x = tokens_of(inputs.x, part.first, part.count);
  ShortConvolutionOutputs outputs;
  outputs.y = tokens_of(by_head(one_head(state.convolved)), part.first, part.count);
  if (pass != nullptr) {
    inputs.state = pass->convolution;
    outputs.state = pass->next_convolution;
  }
  short_convolution_forward(outputs, inputs, {.context = context_});
}

template <typename T>
void DeltaNet<T>::attend(const DeltaNetState<T>& state, const Part& part, const DeltaNetCache::Pass* pass) const {
  LinearAttentionInputs inputs = rule_inputs(state);
  for (ConstTensorView* each : {&inputs.q, &inputs.k, &inputs.v, &inputs.decay, &inputs.beta})
    *each = tokens_of(*each, part.first, part.count);
  LinearAttentionOutputs outputs;
  outputs.y = tokens_of(by_head(state.o), part.first, part.count);
  if (pass != nullptr) {
    inputs.state = pass->state;
    outputs.state = pass->next_state;
  }
  linear_attention_forward(outputs, inputs, rule_options());
}

template <typename T>
void DeltaNet<T>::gate_output(const DeltaNetVectors<const Wide<T>>& weights, const DeltaNetState<T>& state,
                              const HeadOverride<T>* replaced) const {
  GatedNormInputs inputs = norm_inputs(weights, state);
  gated_norm_forward(by_head(state.y), inputs, norm_options());
  if (replaced == nullptr) return;
  if (replaced->factors.present()) {
    inputs.gate = {};
    gated_norm_forward(by_head(replaced->ungated), inputs, norm_options());
  }
  replace_heads(state.y, *replaced);
}

// --- backward ----------------------------------------------------------------------------------------------------

template <typename T>
void DeltaNet<T>::backward(View<Wide<T>, 2> dh, const DeltaNetWeights<Wide<T>>& gradients, ConstView<T, 2> dout,
                           ConstView<T, 2> h, const DeltaNetWeights<const Wide<T>, const T>& weights,
                           const DeltaNetState<T>& state) const {
  if (shape_.N() == 0) return;
  const DeltaNetShared<T>& d = shared_;
  linear_backward_input(side_by_side(d.dy), dout, weights.out, Update::overwrite, context_);
  linear_backward_weight(gradients.out, dout, side_by_side<const T>(state.y), context_);
  gate_output_backward(gradients, weights, state);
  attend_backward(gradients, weights, state);
  convolve_backward(gradients, weights, state);
  linear_backward_input(dh, d.dprojection, weights.in, Update::overwrite, context_);
  linear_backward_weight(gradients.in, d.dprojection, h, context_);
}

/// Backpropagates through the output norm and its gate. Computes d_o and dz from dy, and adds the gradient of the
/// norm's weight.
template <typename T>
void DeltaNet<T>::gate_output_backward(const DeltaNetWeights<Wide<T>>& gradients,
                                       const DeltaNetWeights<const Wide<T>, const T>& weights,
                                       const DeltaNetState<T>& state) const {
  GatedNormGradients d;
  d.dx = by_head(shared_.d_o);
  d.dgate = by_head(shared_.dz);
  d.dweight = make_vector_view(shared_.dnorm.data, shape_.Dv);
  gated_norm_backward(d, norm_inputs(weights, state), by_head(shared_.dy), norm_options());
  add_to(gradients.norm, shared_.dnorm, context_);
}

/// Backpropagates through the delta rule and its gates. Computes dq, dk, dv, da and db from d_o, and adds the gradients
/// of a_log and dt_bias.
template <typename T>
void DeltaNet<T>::attend_backward(const DeltaNetWeights<Wide<T>>& gradients,
                                  const DeltaNetWeights<const Wide<T>, const T>& weights,
                                  const DeltaNetState<T>& state) const {
  LinearAttentionGradients d;
  d.dq = by_head(shared_.dq);
  d.dk = by_head(shared_.dk);
  d.dv = by_head(shared_.dv);
  d.ddecay = by_head(shared_.ddecay);
  d.dbeta = by_head(shared_.dbeta);
  LinearAttentionIncoming incoming;
  incoming.dy = by_head(shared_.d_o);
  linear_attention_backward(d, rule_inputs(state), incoming, rule_options());
  delta_gates_backward<T>(shared_.da, shared_.db, shared_.ddecay, shared_.dbeta, state.decay, gates(weights, state),
                          context_);
  add_column_sums<Wide<T>>(gradients.a_log, shared_.ddecay, context_);
  add_column_sums<Wide<T>, T>(gradients.dt_bias, shared_.da, context_);
}

/// Backpropagates through the convolution. Computes the gradient of its input, and adds the gradient of its weights.
template <typename T>
void DeltaNet<T>::convolve_backward(const DeltaNetWeights<Wide<T>>& gradients,
                                    const DeltaNetWeights<const Wide<T>, const T>& weights,
                                    const DeltaNetState<T>& state) const {
  ShortConvolutionGradients d;
  d.dx = by_head(one_head(shared_.dmixed));
  d.dweight = taps_view(shared_.dconvolution);
  ShortConvolutionIncoming incoming;
  incoming.dy = by_head(one_head(shared_.dconvolved));
  short_convolution_backward(d, convolution_inputs(weights, state), incoming, {.context = context_});
  add_to(gradients.convolution.flat(), shared_.dconvolution.flat(), context_);
}

template class DeltaNet<float>;
template class DeltaNet<double>;
template class DeltaNet<BFloat16>;

// Instantiates DeltaNet<T>::forward with output type O and matrix type M.
#define HEADGATE_DELTA_FORWARD(T, O, M)                                                                     \
  template void DeltaNet<T>::forward(View<O, 2>, ConstView<T, 2>, const DeltaNetWeights<const Wide<T>, M>&, \
                                     const DeltaNetState<T>&, Update, DeltaNetCache*, const HeadOverride<T>*) const;
HEADGATE_DELTA_FORWARD(float, float, const float)
HEADGATE_DELTA_FORWARD(double, double, const double)
HEADGATE_DELTA_FORWARD(float, float, const BFloat16)
HEADGATE_DELTA_FORWARD(float, float, const StoredBlocks)
HEADGATE_DELTA_FORWARD(BFloat16, float, const BFloat16)
HEADGATE_DELTA_FORWARD(BFloat16, BFloat16, const BFloat16)
HEADGATE_DELTA_FORWARD(BFloat16, float, const float)
HEADGATE_DELTA_FORWARD(BFloat16, BFloat16, const float)
HEADGATE_DELTA_FORWARD(BFloat16, float, const StoredBlocks)
HEADGATE_DELTA_FORWARD(BFloat16, BFloat16, const StoredBlocks)

#undef HEADGATE_DELTA_FORWARD

}  // namespace headgate::layers
