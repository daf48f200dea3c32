// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "layers/gated_attention.hpp"
#include "models/parameters.hpp"

namespace headgate::models {

/// One layer's weights (Pointer = const T*) or gradients (Pointer = T*) in a flat buffer.
template <typename Pointer>
struct LayerWeights {
  Pointer input_norm = nullptr;  ///< (C)
  layers::AttentionWeights<Pointer> attention;
  Pointer attention_out_norm = nullptr;  ///< (C), sandwich
  Pointer middle_norm = nullptr;         ///< (C)
  Pointer gate_up = nullptr;             ///< (2F,C)
  Pointer down = nullptr;                ///< (C,F)
  Pointer mlp_out_norm = nullptr;        ///< (C), sandwich
};

/// Where a decoder's weights start in the flat buffer. The layers are alike: one layer's places and a stride.
struct WeightOffsets {
  WeightOffsets(const ParameterTable& table, const DecoderConfig& config);

  template <typename Pointer>
  LayerWeights<Pointer> layer(std::int64_t index, Pointer values) const {
    const auto at = [&](std::int64_t offset) {
      return offset < 0 ? Pointer{} : values + offset + index * layer_stride;
    };
    LayerWeights<Pointer> w;
    w.input_norm = at(first.input_norm);
    w.attention.in = at(first.in);
    w.attention.gate_bias = at(first.gate_bias);
    w.attention.gate_parameter = at(first.gate_parameter);
    w.attention.q_norm = at(first.q_norm);
    w.attention.k_norm = at(first.k_norm);
    w.attention.head_norm = at(first.head_norm);
    w.attention.sinks = at(first.sinks);
    w.attention.out = at(first.out);
    w.attention_out_norm = at(first.attention_out_norm);
    w.middle_norm = at(first.middle_norm);
    w.gate_up = at(first.gate_up);
    w.down = at(first.down);
    w.mlp_out_norm = at(first.mlp_out_norm);
    return w;
  }

  std::int64_t embedding = 0;
  std::int64_t norm = 0;
  std::int64_t head = 0;  ///< the embedding's where tied
  std::int64_t layer_stride = 0;

  /// Of layer 0; −1 where the model has no such tensor.
  struct Layer {
    std::int64_t input_norm, in, gate_bias, gate_parameter, q_norm, k_norm, head_norm, sinks, out, attention_out_norm,
        middle_norm, gate_up, down, mlp_out_norm;
  };
  Layer first{};
};

}  // namespace headgate::models
