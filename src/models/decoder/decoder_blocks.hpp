// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/decoder/decoder_buffers.hpp"
#include "models/decoder/weights.hpp"
#include "models/layers/attention_cache.hpp"
#include "models/layers/delta_net.hpp"
#include "models/layers/gated_attention.hpp"
#include "models/layers/rmsnorm.hpp"

namespace headgate::models {

/// Holds the cache of one layer: keys and values of attention, or states of Gated DeltaNet. Exactly one member is
/// present.
struct LayerCache {
  std::optional<layers::AttentionCache> attention;
  std::optional<layers::DeltaNetCache> delta;

  std::int64_t length() const { return attention ? attention->length() : delta->length(); }
  /// Saves the current length as a mark, to which truncate() can go back. The number of newest marks that stay valid
  /// depends on the layer:
  /// - recurrent layers: `most`
  /// - attention with a window: one
  void mark(std::int64_t most) { attention ? attention->mark() : delta->mark(most); }
  /// Returns the largest number of tokens, at most `length`, to which truncate() can shorten the cache.
  std::int64_t reachable(std::int64_t length) const {
    return attention ? attention->reachable(length) : delta->reachable(length);
  }
  void truncate(std::int64_t length) { attention ? attention->truncate(length) : delta->truncate(length); }
  std::size_t bytes() const { return attention ? attention->bytes() : delta->bytes(); }
  std::size_t step_bytes() const { return attention ? attention->step_bytes() : delta->step_bytes(); }
};

/// Optional arguments for the forward pass of a mixer. Null members are not used.
template <typename T>
struct MixerCall {
  layers::AttentionSkip* skip = nullptr;
  LayerCache* cache = nullptr;
  const layers::HeadOverride<T>* replaced = nullptr;
};

/// Computes the forward pass of a layer's mixer and MLP, with or without a cache. Weight vectors have type Wide<T>,
/// weight matrices type M.
template <typename T>
class DecoderBlocks {
 public:
  /// `sizes`, `buffers` and the memory that `buffers` views must outlive this object. `context` must come from
  /// resolved().
  DecoderBlocks(const DecoderSizes& sizes, const DecoderBuffers<T>& buffers, const ExecutionContext& context);

  /// Sets the positions of the T tokens of each sequence to first … first + T−1.
  void set_first_position(std::int64_t first);

  /// Computes x(N,C): the embeddings of tokens(N), multiplied by embedding_scale.
  template <typename M>
  void embed(View<Wide<T>, 2> x, const OuterWeights<const Wide<T>, M>& w, View<const std::int32_t, 1> tokens) const;
  /// Adds the mixer's output to the residual stream: s.x_middle = s.x + mixer(norm(s.x)).
  template <typename M>
  void mixer_block(const LayerConfig& layer, const LayerWeights<const Wide<T>, M>& w, const SavedLayer<T>& s,
                   const MixerCall<T>& call) const;
  /// Adds the MLP's output to the residual stream: x_out = s.x_middle + MLP(norm(s.x_middle)). x_out may be s.x.
  template <typename M>
  void mlp_block(View<Wide<T>, 2> x_out, const LayerConfig& layer, const LayerWeights<const Wide<T>, M>& w,
                 const SavedLayer<T>& s) const;

  /// Computes y = RMSNorm(x). x has type X and y has type Y.
  template <typename Y, typename X>
  void norm(View<Y, 2> y, View<Wide<T>, 2> rstd, ConstView<X, 2> x, ConstView<Wide<T>, 1> w) const {
    layers::rmsnorm_forward<Y, X>(layers::one_head(y), rstd, layers::one_head(x), w, sizes_.norm, context_);
  }

  /// Returns the attention mixer for layers of this type. The model must have such a layer.
  const layers::GatedAttention<T>& attention(LayerType type) const {
    return type == LayerType::sliding_attention ? *sliding_ : *full_;
  }
  const layers::DeltaNet<T>& delta() const { return *delta_; }

 private:
  template <typename O, typename M>
  void mix(View<O, 2> out, ConstView<T, 2> h, const LayerConfig& layer, const LayerWeights<const Wide<T>, M>& w,
           const SavedLayer<T>& s, layers::Update update, const MixerCall<T>& call) const;
  template <typename O, typename M>
  void mlp(View<O, 2> out, ConstView<T, 2> h, const LayerWeights<const Wide<T>, M>& w, const SavedLayer<T>& s,
           layers::Update update) const;
  template <typename M>
  void experts(View<Wide<T>, 2> out, ConstView<Wide<T>, 2> h, const LayerConfig& layer,
               const DecoderExperts<const Wide<T>, M>& w, layers::Update update) const;
  /// Does the work of mlp_block() for a layer with experts. Activations and sums have type Wide<T>: f32 if T is bf16.
  template <typename M>
  void experts_block(View<Wide<T>, 2> x_out, const LayerConfig& layer, const LayerWeights<const Wide<T>, M>& w,
                     const SavedLayer<T>& s) const;
  /// Returns the input of a mixer or MLP, rounded as DecoderSizes::rounding selects:
  /// - in layers with an input norm, norm(x), written to h
  /// - in other layers, x itself, or a rounded copy of x in h
  ConstView<T, 2> normed(const LayerConfig& layer, View<T, 2> h, View<Wide<T>, 2> rstd, ConstView<Wide<T>, 2> x,
                         ConstView<Wide<T>, 1> w) const;

  const DecoderSizes& sizes_;
  const DecoderBuffers<T>& buffers_;
  std::optional<layers::GatedAttention<T>> full_, sliding_;
  std::optional<layers::DeltaNet<T>> delta_;
  ExecutionContext context_;
};

}  // namespace headgate::models
