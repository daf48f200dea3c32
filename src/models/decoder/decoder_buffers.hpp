// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "library/core/workspace.hpp"
#include "models/decoder/decoder.hpp"
#include "models/layers/attention_buffers.hpp"
#include "models/layers/delta_net_buffers.hpp"
#include "models/layers/experts.hpp"

// Holds a decoder's working memory: what it keeps of each layer for the backward pass, and what all layers share.

namespace headgate::models {

/// Returns `config` after checking it and the shape, before any sizes are multiplied. Throws Error.
const DecoderConfig& checked_shape(const DecoderConfig& config, BatchShape shape);

/// Sizes of a decoder's buffers.
struct DecoderSizes {
  DecoderSizes(const DecoderConfig& config, BatchShape shape, Purpose purpose);

  std::int64_t N, C, F, V;  ///< tokens, channels, width of the MLP, vocabulary
  std::int64_t logit_rows;  ///< rows of a chunk of logits
  bool training;
  layers::NormOptions norm;
  layers::Activation activation;
  double embedding_scale;
  std::vector<LayerConfig> layers;

  // Shapes of the mixers, if the model has such layers.
  std::optional<layers::GatedAttentionShape> full, sliding;
  std::optional<layers::DeltaNetShape> linear;
  std::optional<layers::ExpertsShape> experts;  ///< if a layer has experts, without its limits

  bool norms_outputs() const;  ///< in any layer
};

/// Holds what one layer keeps from its forward pass for its backward pass.
template <typename T>
struct SavedLayer {
  SavedLayer(Workspace& ws, const DecoderSizes& sizes);
  /// Takes the memory of what the layer's mixer keeps.
  void take_mixer(Workspace& ws, const DecoderSizes& sizes, LayerType type);

  View<Wide<T>, 2> x;               ///< (N,C) the layer's input: the residual stream
  View<Wide<T>, 2> rstd;            ///< (N,1)
  View<T, 2> h;                     ///< (N,C) normed x
  View<Wide<T>, 2> x_middle;        ///< (N,C) the residual stream after the mixer
  View<Wide<T>, 2> rstd_middle;     ///< (N,1)
  View<T, 2> h_middle;              ///< (N,C) normed x_middle
  View<T, 2> mixer_out;             ///< (N,C) before its norm
  View<Wide<T>, 2> mixer_out_rstd;  ///< (N,1)
  View<T, 2> mlp_out;               ///< (N,C) before its norm
  View<Wide<T>, 2> mlp_out_rstd;    ///< (N,1)
  std::optional<layers::AttentionState<T>> attention;
  std::optional<layers::DeltaNetState<T>> delta;
  View<T, 2> gate_up, dgate_up;  ///< (N,2F) in the same memory: the gradient overwrites the activation
};

template <typename T>
struct DecoderBuffers {
  DecoderBuffers(Workspace& ws, const DecoderSizes& sizes);

  /// Returns what layer `index` keeps. For evaluation, all layers of one type use the same memory in turn, and the
  /// residual stream of all types is the same.
  const SavedLayer<T>& layer(std::int64_t index) const { return saved[of_layer[static_cast<std::size_t>(index)]]; }

  std::vector<SavedLayer<T>> saved;
  std::vector<std::size_t> of_layer;  ///< index in `saved` of each layer
  std::optional<layers::AttentionShared<T>> full, sliding;
  std::optional<layers::DeltaNetShared<T>> linear;
  std::optional<layers::ExpertsState<Wide<T>>> experts;
  View<Wide<T>, 2> experts_in;         ///< (N,C) normed x_middle of a layer with experts
  View<Wide<T>, 2> experts_out;        ///< (N,C) their output, before its norm
  View<Wide<T>, 2> x_last;             ///< (N,C) the residual stream after the last layer
  View<Wide<T>, 2> rstd_last;          ///< (N,1)
  View<T, 2> h_last;                   ///< (N,C) normed x_last
  View<T, 2> activation, dactivation;  ///< (N,F) act(gate)∘up and its gradient, in the same memory in turn
  View<Wide<T>, 2> logits;             ///< (logit_rows,V), then their gradients
  View<T, 2> dlogits;   ///< (logit_rows,V) those gradients as products read them: the same memory, or bf16
  View<Wide<T>, 2> dx;  ///< (N,C) gradient of the residual stream
  View<Wide<T>, 2> dh;  ///< (N,C) gradient of a normed tensor
  View<T, 2> dout;      ///< (N,C) gradient of an output before its norm, or dx in bf16
};

}  // namespace headgate::models
