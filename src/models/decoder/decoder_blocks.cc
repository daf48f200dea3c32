// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/decoder_blocks.hpp"

#include <cstddef>

#include "headgate/tensor.hpp"
#include "models/layers/activation_rounding.hpp"
#include "models/layers/elementwise.hpp"
#include "models/layers/embedding.hpp"
#include "models/layers/linear.hpp"
#include "models/layers/rmsnorm.hpp"
#include "models/layers/swiglu.hpp"

namespace headgate::models {

using layers::rows_of;
using layers::Update;

template <typename T>
DecoderBlocks<T>::DecoderBlocks(const DecoderSizes& sizes, const DecoderBuffers<T>& buffers,
                                const ExecutionContext& context)
    : sizes_(sizes), buffers_(buffers), context_(context) {
  if (sizes.full) full_.emplace(*sizes.full, *buffers.full, context);
  if (sizes.sliding) sliding_.emplace(*sizes.sliding, *buffers.sliding, context);
  if (sizes.linear) delta_.emplace(*sizes.linear, *buffers.linear, context);
}

template <typename T>
void DecoderBlocks<T>::set_first_position(std::int64_t first) {
  if (full_) full_->set_first_position(first);
  if (sliding_) sliding_->set_first_position(first);
}

template <typename T>
template <typename M>
void DecoderBlocks<T>::embed(View<Wide<T>, 2> x, const OuterWeights<const Wide<T>, M>& w,
                             View<const std::int32_t, 1> tokens) const {
  layers::embedding_forward(x, w.embedding, tokens, context_);
  if (sizes_.embedding_scale != 1.0) layers::scale(x.flat(), static_cast<Wide<T>>(sizes_.embedding_scale), context_);
}

template <typename T>
ConstView<T, 2> DecoderBlocks<T>::normed(const LayerConfig& layer, View<T, 2> h, View<Wide<T>, 2> rstd,
                                         ConstView<Wide<T>, 2> x, ConstView<Wide<T>, 1> w) const {
  if (layer.has_input_norms) {
    norm<T, Wide<T>>(h, rstd, x, w);
  } else {
    if constexpr (!kNarrow<T>) {
      if (sizes_.rounding == layers::ActivationRounding::none) return x;
    }
    layers::copy_to<T, Wide<T>>(h.flat(), x.flat(), context_);
  }
  if constexpr (!kNarrow<T>) layers::round_activations(h, sizes_.rounding, context_);
  return h;
}

template <typename T>
template <typename O, typename M>
void DecoderBlocks<T>::mix(View<O, 2> out, ConstView<T, 2> h, const LayerConfig& layer,
                           const LayerWeights<const Wide<T>, M>& w, const SavedLayer<T>& s, Update update,
                           const MixerCall<T>& call) const {
  LayerCache* const cache = call.cache;
  if (layer.type == LayerType::linear_attention) {
    delta_->forward(out, h, w.delta, *s.delta, update, cache == nullptr ? nullptr : &*cache->delta, call.replaced);
  } else {
    attention(layer.type)
        .forward(out, h, w.attention, *s.attention, update, call.skip, cache == nullptr ? nullptr : &*cache->attention,
                 call.replaced);
  }
}

template <typename T>
template <typename M>
void DecoderBlocks<T>::mixer_block(const LayerConfig& layer, const LayerWeights<const Wide<T>, M>& w,
                                   const SavedLayer<T>& s, const MixerCall<T>& call) const {
  const ConstView<T, 2> h = normed(layer, s.h, s.rstd, s.x, w.input_norm);
  if (layer.has_output_norms) {
    mix(s.mixer_out, h, layer, w, s, Update::overwrite, call);
    norm<Wide<T>, T>(s.x_middle, s.mixer_out_rstd, s.mixer_out, w.mixer_out_norm);
    layers::add_to(s.x_middle.flat(), s.x.flat(), context_);
  } else {
    layers::copy_to(s.x_middle.flat(), s.x.flat(), context_);
    mix(s.x_middle, h, layer, w, s, Update::add, call);
  }
}

template <typename T>
template <typename O, typename M>
void DecoderBlocks<T>::mlp(View<O, 2> out, ConstView<T, 2> h, const LayerWeights<const Wide<T>, M>& w,
                           const SavedLayer<T>& s, Update update) const {
  layers::linear_forward(s.gate_up, h, w.gate_up, Update::overwrite, context_);
  layers::swiglu_forward(buffers_.activation, s.gate_up, sizes_.activation, context_);
  if constexpr (!kNarrow<T>) layers::round_activations(buffers_.activation, sizes_.rounding, context_);
  layers::linear_forward(out, buffers_.activation, w.down, update, context_);
}

template <typename T>
template <typename M>
void DecoderBlocks<T>::experts(View<Wide<T>, 2> out, ConstView<Wide<T>, 2> h, const LayerConfig& layer,
                               const DecoderExperts<const Wide<T>, M>& w, Update update) const {
  layers::ExpertsShape shape = *sizes_.experts;
  shape.limit = layer.limit;
  shape.shared_limit = layer.shared_limit;
  const std::int64_t I = shape.I, S = shape.S, C = shape.C;
  const auto expert = [&w, I, C](std::int64_t e) -> layers::ExpertMatrices<M> {
    return {rows_of(w.gate_up, 2 * e * I, I), rows_of(w.gate_up, (2 * e + 1) * I, I), rows_of(w.down, e * C, C)};
  };
  layers::ExpertsWeights<const Wide<T>, M> weights{w.router, w.router_bias, w.logit_bias,   expert,
                                                   {},       w.shared_gate, w.gate_up_bias, w.down_bias};
  if (S > 0) weights.shared = {rows_of(w.shared_gate_up, 0, S), rows_of(w.shared_gate_up, S, S), w.shared_down};
  layers::experts_forward(out, h, weights, *buffers_.experts, shape, update, context_);
}

template <typename T>
template <typename M>
void DecoderBlocks<T>::experts_block(View<Wide<T>, 2> x_out, const LayerConfig& layer,
                                     const LayerWeights<const Wide<T>, M>& w, const SavedLayer<T>& s) const {
  ConstView<Wide<T>, 2> h = s.x_middle;
  if (layer.has_input_norms) {
    norm<Wide<T>, Wide<T>>(buffers_.experts_in, s.rstd_middle, s.x_middle, w.middle_norm);
    h = buffers_.experts_in;
  } else if (sizes_.rounding != layers::ActivationRounding::none) {
    layers::copy_to<Wide<T>, Wide<T>>(buffers_.experts_in.flat(), s.x_middle.flat(), context_);
    h = buffers_.experts_in;
  }
  layers::round_activations(buffers_.experts_in, sizes_.rounding, context_);
  if (layer.has_output_norms) {
    experts(buffers_.experts_out, h, layer, w.experts, Update::overwrite);
    norm<Wide<T>, Wide<T>>(x_out, s.mlp_out_rstd, buffers_.experts_out, w.mlp_out_norm);
    layers::add_to(x_out.flat(), s.x_middle.flat(), context_);
  } else {
    layers::copy_to(x_out.flat(), s.x_middle.flat(), context_);
    experts(x_out, h, layer, w.experts, Update::add);
  }
}

template <typename T>
template <typename M>
void DecoderBlocks<T>::mlp_block(View<Wide<T>, 2> x_out, const LayerConfig& layer,
                                 const LayerWeights<const Wide<T>, M>& w, const SavedLayer<T>& s) const {
  if (layer.experts) return experts_block(x_out, layer, w, s);
  const ConstView<T, 2> h = normed(layer, s.h_middle, s.rstd_middle, s.x_middle, w.middle_norm);
  if (layer.has_output_norms) {
    mlp(s.mlp_out, h, w, s, Update::overwrite);
    norm<Wide<T>, T>(x_out, s.mlp_out_rstd, s.mlp_out, w.mlp_out_norm);
    layers::add_to(x_out.flat(), s.x_middle.flat(), context_);
  } else {
    layers::copy_to(x_out.flat(), s.x_middle.flat(), context_);
    mlp(x_out, h, w, s, Update::add);
  }
}

// Instantiates the templates for activations of type T and matrices of type M.
// clang-format off
#define HEADGATE_BLOCKS(T, M)                                                                                      \
  template void DecoderBlocks<T>::embed(View<Wide<T>, 2>, const OuterWeights<const Wide<T>, const M>&,                         \
                                        View<const std::int32_t, 1>) const;                                        \
  template void DecoderBlocks<T>::mixer_block(const LayerConfig&, const LayerWeights<const Wide<T>, const M>&,           \
                                              const SavedLayer<T>&, const MixerCall<T>&) const;                    \
  template void DecoderBlocks<T>::mlp_block(View<Wide<T>, 2>, const LayerConfig&, const LayerWeights<const Wide<T>, const M>&, \
                                            const SavedLayer<T>&) const;
// clang-format on

template class DecoderBlocks<float>;
template class DecoderBlocks<double>;
template class DecoderBlocks<BFloat16>;
HEADGATE_BLOCKS(float, float)
HEADGATE_BLOCKS(double, double)
HEADGATE_BLOCKS(float, BFloat16)
HEADGATE_BLOCKS(float, layers::StoredBlocks)
HEADGATE_BLOCKS(BFloat16, BFloat16)
HEADGATE_BLOCKS(BFloat16, float)
HEADGATE_BLOCKS(BFloat16, layers::StoredBlocks)

#undef HEADGATE_BLOCKS

}  // namespace headgate::models
