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

// Defines a decoder's working memory: the activations that each layer saves for the backward pass, and the buffers that
// all layers share.

namespace headgate::models {

/// Returns `config` after validating it and the batch shape. Throws Error if one of them is invalid. Called before
/// sizes are multiplied, so that their products do not overflow.
const DecoderConfig& checked_shape(const DecoderConfig& config, BatchShape shape);

/// Sizes of a decoder's buffers.
struct DecoderSizes {
  DecoderSizes(const DecoderConfig& config, BatchShape shape, Purpose purpose,
               layers::ActivationRounding its_rounding = layers::ActivationRounding::none);

  std::int64_t N, C, F, V;  ///< tokens, channels, width of the MLP, vocabulary
  std::int64_t logit_rows;  ///< number of rows in a chunk of logits
  bool training;
  layers::NormOptions norm;
  layers::Activation activation;
  double embedding_scale;
  layers::ActivationRounding rounding;  ///< rounding of the inputs of all products
  std::vector<LayerConfig> layers;

  // Shapes of the mixers; absent if the model has no layers of that type.
  std::optional<layers::GatedAttentionShape> full, sliding;
  std::optional<layers::DeltaNetShape> linear;
  std::optional<layers::ExpertsShape>
      experts;  ///< absent if no layer has experts; `limit` and `shared_limit` are unset, because they differ by layer

  bool norms_outputs() const;  ///< whether any layer norms its outputs
};

/// Views the activations that one layer saves in its forward pass for its backward pass.
template <typename T>
struct SavedLayer {
  SavedLayer(Workspace& ws, const DecoderSizes& sizes);
  /// Allocates the activations that the mixer of a layer of this type saves.
  void take_mixer(Workspace& ws, const DecoderSizes& sizes, LayerType type);

  /// Returns the mixer's input: h, or x if the layer does not norm its inputs and T is not bf16.
  View<const T, 2> mixer_input(const LayerConfig& layer) const { return input(layer, h, x); }
  /// Returns the MLP's input: h_middle, or x_middle if the layer does not norm its inputs and T is not bf16.
  View<const T, 2> mlp_input(const LayerConfig& layer) const { return input(layer, h_middle, x_middle); }

  View<Wide<T>, 2> x;               ///< (N,C) the layer's input: the residual stream
  View<Wide<T>, 2> rstd;            ///< (N,1) 1/rms of x
  View<T, 2> h;                     ///< (N,C) normed x
  View<Wide<T>, 2> x_middle;        ///< (N,C) the residual stream after the mixer
  View<Wide<T>, 2> rstd_middle;     ///< (N,1) 1/rms of x_middle
  View<T, 2> h_middle;              ///< (N,C) normed x_middle
  View<T, 2> mixer_out;             ///< (N,C) output of the mixer, before its norm
  View<Wide<T>, 2> mixer_out_rstd;  ///< (N,1) 1/rms of mixer_out
  View<T, 2> mlp_out;               ///< (N,C) output of the MLP, before its norm
  View<Wide<T>, 2> mlp_out_rstd;    ///< (N,1) 1/rms of mlp_out
  std::optional<layers::AttentionState<T>> attention;
  std::optional<layers::DeltaNetState<T>> delta;
  View<T, 2> gate_up, dgate_up;  ///< (N,2F) gate and up projections; the gradient overwrites them in the same memory

 private:
  static View<const T, 2> input(const LayerConfig& layer, const View<T, 2>& normed,
                                [[maybe_unused]] const View<Wide<T>, 2>& stream) {
    if constexpr (!kNarrow<T>) {
      if (!layer.norms_inputs) return stream;
    }
    return normed;
  }
};

template <typename T>
struct DecoderBuffers {
  DecoderBuffers(Workspace& ws, const DecoderSizes& sizes);

  /// Returns the saved activations of layer `index`. For evaluation, all layers of one type share the same buffers, and
  /// all types share the buffer of the residual stream.
  const SavedLayer<T>& layer(std::int64_t index) const { return saved[of_layer[static_cast<std::size_t>(index)]]; }

  std::vector<SavedLayer<T>> saved;
  std::vector<std::size_t> of_layer;  ///< index in `saved`, for each layer
  std::optional<layers::AttentionShared<T>> full, sliding;
  std::optional<layers::DeltaNetShared<T>> linear;
  std::optional<layers::ExpertsState<Wide<T>>> experts;
  View<Wide<T>, 2> experts_in;         ///< (N,C) normed x_middle of a layer with experts
  View<Wide<T>, 2> experts_out;        ///< (N,C) output of the experts, before its norm
  View<Wide<T>, 2> x_last;             ///< (N,C) the residual stream after the last layer
  View<Wide<T>, 2> rstd_last;          ///< (N,1) 1/rms of x_last
  View<T, 2> h_last;                   ///< (N,C) normed x_last
  View<T, 2> activation, dactivation;  ///< (N,F) act(gate) ∘ up; later holds its gradient
  View<Wide<T>, 2> logits;             ///< (logit_rows,V) logits of a chunk, later overwritten by their gradients
  /// (logit_rows,V) gradients of the logits, in the type that matrix products take: `logits` itself, or a bf16 copy
  View<T, 2> dlogits;
  View<Wide<T>, 2> dx;  ///< (N,C) gradient of the residual stream
  View<Wide<T>, 2> dh;  ///< (N,C) gradient of h, the normed input of a mixer or MLP
  View<T, 2> dout;      ///< (N,C) gradient of an output before its norm, or a bf16 copy of dx
};

}  // namespace headgate::models
