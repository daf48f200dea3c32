// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "library/core/view.hpp"
#include "models/decoder/config.hpp"
#include "models/layers/gated_attention.hpp"

// Describes every tensor of a model in one row: its name in files, its kind and shape, the configs that have it, and
// the member through which the decoder reads it. The parameter table, initial values, offsets in the flat buffer and
// files are all made from the rows, in their order.
// | Names are Hugging Face's for Qwen3; those of gates, sinks, head norms and sandwich norms are this library's.

namespace headgate::models {

enum class ParameterKind : std::int32_t {
  embedding,
  matrix,
  gate_matrix,
  norm,
  gate_bias,
  gate_parameter,
  sinks,
  projection_bias
};

/// Views one layer's weights (of const T) or gradients (of T). Matrices may have another element type M. A member is
/// absent if the model has no such tensor.
template <typename T, typename M = T>
struct LayerWeights {
  View<T, 1> input_norm;  ///< (C)
  layers::AttentionWeights<T, M> attention;
  View<T, 1> attention_out_norm;  ///< (C), sandwich
  View<T, 1> middle_norm;         ///< (C)
  View<M, 2> gate_up;             ///< (2F,C): rows of gate_proj, up_proj
  View<M, 2> down;                ///< (C,F)
  View<T, 1> mlp_out_norm;        ///< (C), sandwich
};

/// Views the weights outside the layers.
template <typename T, typename M = T>
struct OuterWeights {
  View<M, 2> embedding;  ///< (V,C)
  View<T, 1> norm;       ///< (C)
  View<M, 2> head;       ///< (V,C); the embedding if tied
};

struct TensorShape {
  std::array<std::int64_t, 2> sizes{};
  int rank = 0;

  explicit TensorShape(std::int64_t n) : sizes{n, 1}, rank(1) {}
  TensorShape(std::int64_t rows, std::int64_t columns) : sizes{rows, columns}, rank(2) {}
  std::int64_t count() const { return sizes[0] * sizes[1]; }
};

struct TensorRow {
  std::string_view name;  ///< a layer's tensor: what follows "model.layers.N."
  ParameterKind kind;
  TensorShape shape;
  bool present = true;  ///< whether a model of this config has the tensor
};

/// Stands in a row in place of a member: the tensor's rows follow those of `member`, and one product reads both through
/// it.
template <typename T>
struct AppendedRows {
  View<T, 2>& member;
};
template <typename T>
AppendedRows<T> appended_to(View<T, 2>& member) {
  return {member};
}

/// Calls at(row, member), or at(row, appended_to(member)), for each tensor of a layer, present or not.
template <class Visit, typename T, typename M>
void visit_layer_tensors(const Visit& at, const DecoderConfig& c, LayerWeights<T, M>& w) {
  using enum ParameterKind;
  const layers::GateVariant& gate = c.gate;
  const layers::GateLogits logits = layers::gate_logits(gate, c.dim, c.heads, c.kv_heads, c.head_dim);
  const bool gate_of_input = has_gate(gate) && gate.source == layers::GateSource::input;
  const bool gate_of_parameter = has_gate(gate) && gate.source == layers::GateSource::parameter;
  const bool gate_has_bias = gate.bias == layers::GateBias::learned;
  const bool head_norm = gate.output_control == layers::OutputControl::head_rmsnorm;
  const bool sinks_learned = gate.sinks == layers::SinkKind::learned;
  const bool qk_norm = c.qk_norm == QkNorm::per_head;
  const bool qkv_bias = c.qkv_bias == QkvBias::learned;
  const bool sandwich = c.norm_placement == NormPlacement::sandwich;
  const TensorShape channels(c.dim);
  const TensorShape features(c.head_dim);
  const TensorShape q_features(c.heads * c.head_dim), kv_features(c.kv_heads * c.head_dim);
  const TensorShape kv_rows(c.kv_heads * c.head_dim, c.dim);
  auto& a = w.attention;
  at(TensorRow{"input_layernorm.weight", norm, channels}, w.input_norm);
  at(TensorRow{"self_attn.q_proj.weight", matrix, {c.heads * c.head_dim, c.dim}}, a.in);
  at(TensorRow{"self_attn.gate_proj.weight", gate_matrix, {logits.count(), c.dim}, gate_of_input}, appended_to(a.in));
  at(TensorRow{"self_attn.k_proj.weight", matrix, kv_rows}, appended_to(a.in));
  at(TensorRow{"self_attn.v_proj.weight", matrix, kv_rows}, appended_to(a.in));
  at(TensorRow{"self_attn.q_proj.bias", projection_bias, q_features, qkv_bias}, a.q_bias);
  at(TensorRow{"self_attn.k_proj.bias", projection_bias, kv_features, qkv_bias}, a.k_bias);
  at(TensorRow{"self_attn.v_proj.bias", projection_bias, kv_features, qkv_bias}, a.v_bias);
  at(TensorRow{"self_attn.q_norm.weight", norm, features, qk_norm}, a.q_norm);
  at(TensorRow{"self_attn.k_norm.weight", norm, features, qk_norm}, a.k_norm);
  at(TensorRow{"self_attn.gate_proj.bias", gate_bias, TensorShape(logits.count()), gate_has_bias}, a.gate_bias);
  at(TensorRow{"self_attn.gate", gate_parameter, {logits.heads, logits.features}, gate_of_parameter}, a.gate_parameter);
  at(TensorRow{"self_attn.sinks", sinks, TensorShape(c.heads), sinks_learned}, a.sinks);
  at(TensorRow{"self_attn.head_norm.weight", norm, features, head_norm}, a.head_norm);
  at(TensorRow{"self_attn.o_proj.weight", matrix, {c.dim, c.heads * c.head_dim}}, a.out);
  at(TensorRow{"attention_output_layernorm.weight", norm, channels, sandwich}, w.attention_out_norm);
  at(TensorRow{"post_attention_layernorm.weight", norm, channels}, w.middle_norm);  // norm before the MLP
  at(TensorRow{"mlp.gate_proj.weight", matrix, {c.ffn, c.dim}}, w.gate_up);
  at(TensorRow{"mlp.up_proj.weight", matrix, {c.ffn, c.dim}}, appended_to(w.gate_up));
  at(TensorRow{"mlp.down_proj.weight", matrix, {c.dim, c.ffn}}, w.down);
  at(TensorRow{"mlp_output_layernorm.weight", norm, channels, sandwich}, w.mlp_out_norm);
}

/// Calls at(row, member) for the tensors outside the layers, and `layers()` between those before and those after the
/// layers.
template <class Visit, class Layers, typename T, typename M>
void visit_outer_tensors(const Visit& at, const Layers& layers, const DecoderConfig& c, OuterWeights<T, M>& w) {
  const TensorShape table(c.vocab, c.dim);
  at(TensorRow{"model.embed_tokens.weight", ParameterKind::embedding, table}, w.embedding);
  layers();
  at(TensorRow{"model.norm.weight", ParameterKind::norm, TensorShape(c.dim)}, w.norm);
  at(TensorRow{"lm_head.weight", ParameterKind::matrix, table, c.embeddings == Embeddings::separate}, w.head);
}

/// Points the members of LayerWeights or OuterWeights with elements of type T into a buffer that holds their tensors
/// one after the other.
template <typename T>
class PlaceTensors {
 public:
  explicit PlaceTensors(T*& next) : next_(next) {}

  template <std::size_t kRank>
  void operator()(const TensorRow& row, View<T, kRank>& member) const {
    if (!row.present) return;
    std::array<std::int64_t, kRank> shape{};
    std::copy_n(row.shape.sizes.begin(), kRank, shape.begin());
    member = {next_, shape};
    next_ += row.shape.count();
  }
  void operator()(const TensorRow& row, AppendedRows<T> place) const {
    if (!row.present) return;
    place.member.shape[0] += row.shape.sizes[0];
    next_ += row.shape.count();
  }

 private:
  T*& next_;  // after the last tensor
};

/// Does the same with a buffer for each of two types.
template <typename T, typename M>
struct PlaceInTwo : PlaceTensors<T>, PlaceTensors<M> {
  PlaceInTwo(T*& next, M*& next_matrix) : PlaceTensors<T>(next), PlaceTensors<M>(next_matrix) {}
  using PlaceTensors<T>::operator();
  using PlaceTensors<M>::operator();
};

/// Locates a model's weights, or their gradients, in a flat buffer. All layers have the same layout and are adjacent.
class WeightPlaces {
 public:
  explicit WeightPlaces(const DecoderConfig& config);

  template <typename T>
  LayerWeights<T> layer(std::int64_t index, T* values) const {
    LayerWeights<T> weights;
    T* next = values + layers_ + index * layer_count_;
    visit_layer_tensors(PlaceTensors<T>(next), config_, weights);
    return weights;
  }

  template <typename T>
  OuterWeights<T> outer(T* values) const {
    OuterWeights<T> weights;
    T* next = values;
    const auto skip_layers = [&] { next += config_.layers * layer_count_; };
    visit_outer_tensors(PlaceTensors<T>(next), skip_layers, config_, weights);
    if (config_.embeddings == Embeddings::tied) weights.head = weights.embedding;
    return weights;
  }

 private:
  DecoderConfig config_;
  std::int64_t layers_ = 0;       // elements before the first layer
  std::int64_t layer_count_ = 0;  // elements of one layer
};

}  // namespace headgate::models
