// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/decoder_blocks.hpp"

#include "headgate/tensor.hpp"
#include "models/layers/elementwise.hpp"
#include "models/layers/linear.hpp"
#include "models/layers/rmsnorm.hpp"
#include "models/layers/swiglu.hpp"

namespace headgate::models {

using layers::Update;

template <typename T>
DecoderBlocks<T>::DecoderBlocks(const DecoderSizes& sizes, const DecoderBuffers<T>& buffers,
                                const ExecutionContext& context)
    : sandwich_(sizes.sandwich),
      norm_(sizes.attention.norm),
      activation_(buffers.activation),
      attention_(sizes.attention, buffers.attention, context),
      context_(context) {}

template <typename T>
template <typename M>
void DecoderBlocks<T>::attention_block(const LayerWeights<const T, M>& w, const SavedLayer<T>& s,
                                       layers::AttentionSkip* skip, layers::AttentionCache* cache,
                                       const layers::HeadOverride<T>* replaced) const {
  norm(s.h, s.rstd, s.x, w.input_norm);
  if (sandwich_) {
    attention_.forward(s.attention_out, s.h, w.attention, s.attention, Update::overwrite, skip, cache, replaced);
    norm(s.x_middle, s.attention_out_rstd, s.attention_out, w.attention_out_norm);
    layers::add_to(s.x_middle.flat(), s.x.flat(), context_);
  } else {
    layers::copy_to(s.x_middle.flat(), s.x.flat(), context_);
    attention_.forward(s.x_middle, s.h, w.attention, s.attention, Update::add, skip, cache, replaced);
  }
}

template <typename T>
template <typename M>
void DecoderBlocks<T>::mlp_block(View<T, 2> x_out, const LayerWeights<const T, M>& w, const SavedLayer<T>& s) const {
  norm(s.h_middle, s.rstd_middle, s.x_middle, w.middle_norm);
  layers::linear_forward(s.gate_up, s.h_middle, w.gate_up, Update::overwrite, context_);
  layers::swiglu_forward(activation_, s.gate_up, context_);
  if (sandwich_) {
    layers::linear_forward(s.mlp_out, activation_, w.down, Update::overwrite, context_);
    norm(x_out, s.mlp_out_rstd, s.mlp_out, w.mlp_out_norm);
    layers::add_to(x_out.flat(), s.x_middle.flat(), context_);
  } else {
    layers::copy_to(x_out.flat(), s.x_middle.flat(), context_);
    layers::linear_forward(x_out, activation_, w.down, Update::add, context_);
  }
}

template <typename T>
void DecoderBlocks<T>::norm(View<T, 2> y, View<T, 2> rstd, ConstView<T, 2> x, ConstView<T, 1> w) const {
  layers::rmsnorm_forward(layers::one_head(y), rstd, layers::one_head(x), w, norm_, context_);
}

template class DecoderBlocks<float>;
template class DecoderBlocks<double>;
template void DecoderBlocks<float>::attention_block(const LayerWeights<const float>&, const SavedLayer<float>&,
                                                    layers::AttentionSkip*, layers::AttentionCache*,
                                                    const layers::HeadOverride<float>*) const;
template void DecoderBlocks<double>::attention_block(const LayerWeights<const double>&, const SavedLayer<double>&,
                                                     layers::AttentionSkip*, layers::AttentionCache*,
                                                     const layers::HeadOverride<double>*) const;
template void DecoderBlocks<float>::attention_block(const LayerWeights<const float, const BFloat16>&,
                                                    const SavedLayer<float>&, layers::AttentionSkip*,
                                                    layers::AttentionCache*, const layers::HeadOverride<float>*) const;
template void DecoderBlocks<float>::mlp_block(View<float, 2>, const LayerWeights<const float>&,
                                              const SavedLayer<float>&) const;
template void DecoderBlocks<double>::mlp_block(View<double, 2>, const LayerWeights<const double>&,
                                               const SavedLayer<double>&) const;
template void DecoderBlocks<float>::mlp_block(View<float, 2>, const LayerWeights<const float, const BFloat16>&,
                                              const SavedLayer<float>&) const;

}  // namespace headgate::models
