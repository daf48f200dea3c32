// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "library/core/workspace.hpp"
#include "models/decoder/decoder.hpp"
#include "models/layers/attention_buffers.hpp"

// Holds a decoder's working memory: what it keeps of each layer for the backward pass, and what all layers share.

namespace headgate::models {

/// Returns `config` after checking it and the shape, before any sizes are multiplied. Throws Error.
const DecoderConfig& checked_shape(const DecoderConfig& config, BatchShape shape);

/// Sizes of a decoder's buffers.
struct DecoderSizes {
  DecoderSizes(const DecoderConfig& config, BatchShape shape, Purpose purpose);

  std::int64_t N, C, F, V;  ///< tokens, channels, width of the MLP, vocabulary
  std::int64_t layers;      ///< layers kept at a time: all, or one for Purpose::evaluate
  std::int64_t logit_rows;  ///< rows of a chunk of logits
  bool sandwich;            ///< outputs of attention and MLP are normed too
  bool training;
  layers::GatedAttentionShape attention;
};

/// Holds what one layer keeps from its forward pass for its backward pass.
template <typename T>
struct SavedLayer {
  SavedLayer(Workspace& ws, const DecoderSizes& sizes);

  View<T, 2> x;                   ///< (N,C) the layer's input: the residual stream
  View<T, 2> rstd;                ///< (N,1)
  View<T, 2> h;                   ///< (N,C) normed x
  View<T, 2> x_middle;            ///< (N,C) the residual stream after attention
  View<T, 2> rstd_middle;         ///< (N,1)
  View<T, 2> h_middle;            ///< (N,C) normed x_middle
  View<T, 2> attention_out;       ///< (N,C) before its sandwich norm
  View<T, 2> attention_out_rstd;  ///< (N,1)
  View<T, 2> mlp_out;             ///< (N,C) before its sandwich norm
  View<T, 2> mlp_out_rstd;        ///< (N,1)
  layers::AttentionState<T> attention;
  View<T, 2> gate_up, dgate_up;  ///< (N,2F) in the same memory: the gradient overwrites the activation
};

template <typename T>
struct DecoderBuffers {
  DecoderBuffers(Workspace& ws, const DecoderSizes& sizes);

  std::vector<SavedLayer<T>> layers;
  layers::AttentionShared<T> attention;
  View<T, 2> x_last;                   ///< (N,C) the residual stream after the last layer
  View<T, 2> rstd_last;                ///< (N,1)
  View<T, 2> h_last;                   ///< (N,C) normed x_last
  View<T, 2> activation, dactivation;  ///< (N,F) silu(gate)∘up and its gradient, in the same memory in turn
  View<T, 2> logits, dlogits;          ///< (logit_rows,V), in the same memory in turn
  View<T, 2> dx;                       ///< (N,C) gradient of the residual stream
  View<T, 2> dh;                       ///< (N,C) gradient of a normed tensor
  View<T, 2> dout;                     ///< (N,C) gradient of an output before its sandwich norm
};

}  // namespace headgate::models
