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

// Defines a decoder's working memory: activations that each layer saves for the backward pass, and buffers that all
// layers share.

namespace headgate::models {

/// Returns `config`. Throws Error if the config or the batch shape is invalid. Must be called before sizes are
/// multiplied, so that the products do not overflow.
const DecoderConfig& require_valid(const DecoderConfig& config, BatchShape shape);

/// Holds the sizes of a decoder's buffers.
struct DecoderSizes {
  DecoderSizes(const DecoderConfig& config, BatchShape shape, Purpose purpose,
               layers::ActivationRounding its_rounding = layers::ActivationRounding::none);

  std::int64_t N, C, F, V;  ///< number of tokens, model width, width of the MLP, size of the vocabulary
  std::int64_t logit_rows;  ///< number of rows in a chunk of logits
  bool training;
  layers::NormOptions norm;
  layers::Activation activation;
  double embedding_scale;
  layers::ActivationRounding rounding;  ///< rounding of the inputs of all matrix products
  std::vector<LayerConfig> layers;

  // Shapes of the mixers. A shape is absent if no layer has that type.
  std::optional<layers::GatedAttentionShape> full, sliding;
  std::optional<layers::DeltaNetShape> linear;
  /// Shape of the experts; absent if no layer has experts. Bounds of activations are not set here, because they differ
  /// by layer.
  std::optional<layers::ExpertsShape> experts;

  bool has_output_norms() const;  ///< whether any layer normalizes its outputs
};

/// Views the activations that one layer saves in its forward pass for its backward pass.
template <typename T>
struct SavedLayer {
  SavedLayer(Workspace& ws, const DecoderSizes& sizes);
  /// Allocates the activations that a mixer of this type saves.
  void take_mixer(Workspace& ws, const DecoderSizes& sizes, LayerType type);

  /// Returns the mixer's input: the normalized or rounded copy `h` if the layer has an input norm or T is bf16,
  /// otherwise the residual stream `x`.
  View<const T, 2> mixer_input(const LayerConfig& layer) const { return input(layer, h, x); }
  /// Returns the MLP's input: the normalized or rounded copy `h_middle` if the layer has an input norm or T is bf16,
  /// otherwise the residual stream `x_middle`.
  View<const T, 2> mlp_input(const LayerConfig& layer) const { return input(layer, h_middle, x_middle); }

  View<Wide<T>, 2> x;               ///< (N,C) the residual stream, which is the layer's input
  View<Wide<T>, 2> rstd;            ///< (N,1) 1/rms of x
  View<T, 2> h;                     ///< (N,C) norm(x)
  View<Wide<T>, 2> x_middle;        ///< (N,C) the residual stream after the mixer
  View<Wide<T>, 2> rstd_middle;     ///< (N,1) 1/rms of x_middle
  View<T, 2> h_middle;              ///< (N,C) norm(x_middle)
  View<T, 2> mixer_out;             ///< (N,C) output of the mixer, before the output norm
  View<Wide<T>, 2> mixer_out_rstd;  ///< (N,1) 1/rms of mixer_out
  View<T, 2> mlp_out;               ///< (N,C) output of the MLP, before the output norm
  View<Wide<T>, 2> mlp_out_rstd;    ///< (N,1) 1/rms of mlp_out
  std::optional<layers::AttentionState<T>> attention;
  std::optional<layers::DeltaNetState<T>> delta;
  View<T, 2> gate_up, dgate_up;  ///< (N,2F) gate and up projections; dgate_up views the same memory

 private:
  static View<const T, 2> input(const LayerConfig& layer, const View<T, 2>& normed,
                                [[maybe_unused]] const View<Wide<T>, 2>& stream) {
    if constexpr (!kNarrow<T>) {
      if (!layer.has_input_norms) return stream;
    }
    return normed;
  }
};

template <typename T>
struct DecoderBuffers {
  DecoderBuffers(Workspace& ws, const DecoderSizes& sizes);

  /// Returns the saved activations of layer `index`. In an evaluation, layers share buffers: one set for the mixers of
  /// each layer type, and one for everything else.
  const SavedLayer<T>& layer(std::int64_t index) const { return saved[of_layer[static_cast<std::size_t>(index)]]; }

  std::vector<SavedLayer<T>> saved;
  std::vector<std::size_t> of_layer;  ///< element i is the index in `saved` of layer i's activations
  std::optional<layers::AttentionShared<T>> full, sliding;
  std::optional<layers::DeltaNetShared<T>> linear;
  std::optional<layers::ExpertsState<Wide<T>>> experts;
  View<Wide<T>, 2> experts_in;         ///< (N,C) norm(x_middle) in layers with experts
  View<Wide<T>, 2> experts_out;        ///< (N,C) output of the experts, before the output norm
  View<Wide<T>, 2> x_last;             ///< (N,C) the residual stream after the last layer
  View<Wide<T>, 2> rstd_last;          ///< (N,1) 1/rms of x_last
  View<T, 2> h_last;                   ///< (N,C) norm(x_last)
  View<T, 2> activation, dactivation;  ///< (N,F) act(gate) ∘ up; the backward pass overwrites it with its gradient
  /// (logit_rows,V) logits of a chunk; the backward pass overwrites them with their gradients.
  View<Wide<T>, 2> logits;
  /// (logit_rows,V) gradients of the logits in type T. If T is bf16, this is a copy. Otherwise it views the memory of
  /// `logits`.
  View<T, 2> dlogits;
  View<Wide<T>, 2> dx;  ///< (N,C) gradient of the residual stream
  View<Wide<T>, 2> dh;  ///< (N,C) gradient of norm(x), the input of a mixer or MLP
  View<T, 2> dout;      ///< (N,C) gradient of mixer_out or mlp_out, or dx rounded to bf16
};

}  // namespace headgate::models
