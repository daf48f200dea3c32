// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/decoder/decoder_buffers.hpp"
#include "models/decoder/weights.hpp"
#include "models/layers/gated_attention.hpp"

namespace headgate::models {

/// Computes the forward pass of a layer's two halves. Decoders for whole sequences and decoders with a cache share it.
/// Weights have vectors of T and matrices of M.
template <typename T>
class DecoderBlocks {
 public:
  /// `buffers` and the memory that they view must outlive this. `context`: a context returned by resolved().
  DecoderBlocks(const DecoderSizes& sizes, const DecoderBuffers<T>& buffers, const ExecutionContext& context);

  /// s.x_middle = s.x + attention(norm(s.x)).
  template <typename M>
  void attention_block(const LayerWeights<const T, M>& w, const SavedLayer<T>& s, layers::AttentionSkip* skip,
                       layers::AttentionCache* cache = nullptr,
                       const layers::HeadOverride<T>* replaced = nullptr) const;
  /// x_out = s.x_middle + MLP(norm(s.x_middle)). x_out may be s.x.
  template <typename M>
  void mlp_block(View<T, 2> x_out, const LayerWeights<const T, M>& w, const SavedLayer<T>& s) const;

  void norm(View<T, 2> y, View<T, 2> rstd, ConstView<T, 2> x, ConstView<T, 1> w) const;

  const layers::GatedAttention<T>& attention() const { return attention_; }
  layers::GatedAttention<T>& attention() { return attention_; }

 private:
  bool sandwich_;
  layers::NormOptions norm_;
  View<T, 2> activation_;
  layers::GatedAttention<T> attention_;
  ExecutionContext context_;
};

}  // namespace headgate::models
