// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "library/core/view.hpp"
#include "models/decoder/config.hpp"
#include "models/layers/delta_net.hpp"
#include "models/layers/gated_attention.hpp"

// Describes every tensor of a model in one row:
// - its name in files, its kind and its shape
// - whether a given config has the tensor
// - the member of LayerWeights or OuterWeights that views the tensor
//
// The parameter table, initial values, offsets in the flat buffer and files follow the order of the rows. Names are
// those of Hugging Face for Qwen3 and Qwen3.5. Tensors that those models lack, such as gates and sinks, have names of
// this library.

namespace headgate::models {

enum class ParameterKind : std::int32_t {
  embedding,
  matrix,
  gate_matrix,
  norm,
  plain_norm,  ///< norm of the output of linear attention; always NormKind::plain
  gate_bias,
  gate_parameter,
  sinks,
  projection_bias,
  convolution,
  decay_rate,  ///< logarithm of a head's decay rate
  decay_bias,
  router,
  router_bias
};

/// Views the weights of a mixture of E experts of width I, and of a shared expert of width S.
template <typename T, typename M = T>
struct DecoderExperts {
  View<T, 2> router;       ///< (E,C) router
  View<T, 1> router_bias;  ///< (E) biases that are added to the router's scores only to choose experts
  /// (E·2I,C) for each expert, I rows of its gate projection, then I rows of its up projection.
  layers::MatrixOf<M> gate_up;
  layers::MatrixOf<M> down;            ///< (E·C,I) down projections of the experts
  layers::MatrixOf<M> shared_gate_up;  ///< (2S,C) gate and up projections of the shared expert
  layers::MatrixOf<M> shared_down;     ///< (C,S) down projection of the shared expert
  View<T, 2> shared_gate;              ///< (1,C) gate of the shared expert
  View<T, 1> logit_bias;               ///< (E) biases of the router's logits
  View<T, 1> gate_up_bias;             ///< (E·2I) biases of the gate and up projections, in the row order of gate_up
  View<T, 1> down_bias;                ///< (E·C) biases of the down projections
};

/// Views one layer's weights (elements const T) or gradients (elements T). Matrices can have another element type M. A
/// member is absent if the layer has no such tensor.
template <typename T, typename M = T>
struct LayerWeights {
  /// (C) norm of the mixer's input; absent if the layer has no input norms
  View<T, 1> input_norm;
  layers::AttentionWeights<T, M> attention;  ///< weights of attention, in layers with attention
  layers::DeltaNetWeights<T, M> delta;       ///< weights of Gated DeltaNet, in layers of linear attention
  /// (C) norm of the mixer's output; absent if the layer has no output norms
  View<T, 1> mixer_out_norm;
  /// (C) norm of the MLP's input; absent if the layer has no input norms
  View<T, 1> middle_norm;
  layers::MatrixOf<M> gate_up;   ///< (2F,C) rows of gate_proj, then rows of up_proj
  layers::MatrixOf<M> down;      ///< (C,F) rows of down_proj
  DecoderExperts<T, M> experts;  ///< weights of the experts; in layers with experts, gate_up and down are absent
  /// (C) norm of the MLP's output; absent if the layer has no output norms
  View<T, 1> mlp_out_norm;
};

/// Views the weights outside the layers.
template <typename T, typename M = T>
struct OuterWeights {
  layers::MatrixOf<M> embedding;  ///< (V,C) embedding table
  View<T, 1> norm;                ///< (C) norm after the last layer
  layers::MatrixOf<M> head;       ///< (V,C) matrix that computes the logits; views the embedding if tied
};

struct TensorShape {
  std::array<std::int64_t, 2> sizes{};
  int rank = 0;

  explicit TensorShape(std::int64_t n) : sizes{n, 1}, rank(1) {}
  TensorShape(std::int64_t rows, std::int64_t columns) : sizes{rows, columns}, rank(2) {}
  std::int64_t count() const { return sizes[0] * sizes[1]; }
};

struct TensorRow {
  std::string_view name;  ///< name in files; for a layer's tensor, without the prefix "model.layers.N."
  ParameterKind kind;
  TensorShape shape;
  bool present = true;  ///< whether this config has the tensor
};

/// Tells a visitor to append the rows of a tensor to the matrix `member`, which earlier tensors of the flat buffer
/// began. `member` then views the rows of all these tensors, and one matrix product reads them.
template <typename T>
struct AppendTarget {
  View<T, 2>& member;
};
template <typename T>
AppendTarget<T> appended_to(View<T, 2>& member) {
  return {member};
}

/// Tells a visitor to append the rows of a tensor to the matrix `member`. Does for matrices that stay in the model's
/// files what AppendTarget does for matrices in a flat buffer.
struct StoredAppendTarget {
  layers::StoredMatrix& member;
};
inline StoredAppendTarget appended_to(layers::StoredMatrix& member) { return {member}; }

/// Visits the tensors of attention.
template <class Visit, typename T, typename M>
void visit_attention_tensors(const Visit& at, const DecoderConfig& c, const LayerConfig& layer,
                             layers::AttentionWeights<T, M>& a) {
  using enum ParameterKind;
  const layers::GateVariant& gate = c.gate;
  const layers::GateLogits logits = layers::gate_logits(gate, c.dim, layer.heads, c.kv_heads, c.head_dim);
  const bool here = layer.type != LayerType::linear_attention;
  const bool gate_of_input = here && has_gate(gate) && gate.source == layers::GateSource::input;
  const bool gate_of_parameter = here && has_gate(gate) && gate.source == layers::GateSource::parameter;
  const bool gate_has_bias = here && gate.bias == layers::GateBias::learned;
  const bool head_norm = here && gate.output_control == layers::OutputControl::head_rmsnorm;
  const bool sinks_learned = here && gate.sinks == layers::SinkKind::learned;
  const bool qk_norm = here && c.qk_norm != QkNorm::none;
  const bool qkv_bias = here && c.qkv_bias == QkvBias::learned;
  const bool out_bias = here && c.out_bias == Switch::on;
  const std::int64_t q_width = layer.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  const bool norm_spans_heads = c.qk_norm == QkNorm::all_heads;
  const TensorShape q_features(q_width), kv_features(kv_width), features(c.head_dim);
  at(TensorRow{"self_attn.q_proj.weight", matrix, {q_width, c.dim}, here}, a.in);
  at(TensorRow{"self_attn.gate_proj.weight", gate_matrix, {logits.count(), c.dim}, gate_of_input}, appended_to(a.in));
  at(TensorRow{"self_attn.k_proj.weight", matrix, {kv_width, c.dim}, here}, appended_to(a.in));
  at(TensorRow{"self_attn.v_proj.weight", matrix, {kv_width, c.dim}, here}, appended_to(a.in));
  at(TensorRow{"self_attn.q_proj.bias", projection_bias, q_features, qkv_bias}, a.q_bias);
  at(TensorRow{"self_attn.k_proj.bias", projection_bias, kv_features, qkv_bias}, a.k_bias);
  at(TensorRow{"self_attn.v_proj.bias", projection_bias, kv_features, qkv_bias}, a.v_bias);
  at(TensorRow{"self_attn.q_norm.weight", norm, norm_spans_heads ? q_features : features, qk_norm}, a.q_norm);
  at(TensorRow{"self_attn.k_norm.weight", norm, norm_spans_heads ? kv_features : features, qk_norm}, a.k_norm);
  at(TensorRow{"self_attn.gate_proj.bias", gate_bias, TensorShape(logits.count()), gate_has_bias}, a.gate_bias);
  at(TensorRow{"self_attn.gate", gate_parameter, {logits.heads, logits.features}, gate_of_parameter}, a.gate_parameter);
  at(TensorRow{"self_attn.sinks", sinks, TensorShape(layer.heads), sinks_learned}, a.sinks);
  at(TensorRow{"self_attn.head_norm.weight", norm, features, head_norm}, a.head_norm);
  at(TensorRow{"self_attn.o_proj.weight", matrix, {c.dim, q_width}, here}, a.out);
  at(TensorRow{"self_attn.o_proj.bias", projection_bias, TensorShape(c.dim), out_bias}, a.out_bias);
}

/// Visits the tensors of linear attention.
template <class Visit, typename T, typename M>
void visit_delta_tensors(const Visit& at, const DecoderConfig& c, const LayerConfig& layer,
                         layers::DeltaNetWeights<T, M>& d) {
  using enum ParameterKind;
  const LinearLayers& l = c.linear;
  const bool here = layer.type == LayerType::linear_attention;
  const std::int64_t channels = 2 * l.key_heads * l.key_dim + l.value_heads * l.value_dim;
  const std::int64_t values = l.value_heads * l.value_dim;
  const TensorShape of_heads(l.value_heads);
  at(TensorRow{"linear_attn.in_proj_qkv.weight", matrix, {channels, c.dim}, here}, d.in);
  at(TensorRow{"linear_attn.in_proj_z.weight", matrix, {values, c.dim}, here}, appended_to(d.in));
  at(TensorRow{"linear_attn.in_proj_b.weight", matrix, {l.value_heads, c.dim}, here}, appended_to(d.in));
  at(TensorRow{"linear_attn.in_proj_a.weight", matrix, {l.value_heads, c.dim}, here}, appended_to(d.in));
  at(TensorRow{"linear_attn.conv1d.weight", convolution, {channels, l.kernel}, here}, d.convolution);
  at(TensorRow{"linear_attn.A_log", decay_rate, of_heads, here}, d.a_log);
  at(TensorRow{"linear_attn.dt_bias", decay_bias, of_heads, here}, d.dt_bias);
  at(TensorRow{"linear_attn.norm.weight", plain_norm, TensorShape(l.value_dim), here}, d.norm);
  at(TensorRow{"linear_attn.out_proj.weight", matrix, {c.dim, values}, here}, d.out);
}

/// Visits the tensors of a mixture of experts.
template <class Visit, typename T, typename M>
void visit_expert_tensors(const Visit& at, const DecoderConfig& c, const LayerConfig& layer, DecoderExperts<T, M>& w) {
  using enum ParameterKind;
  const Experts& e = c.experts;
  const bool here = layer.experts, shared = here && e.shared_ffn > 0;
  const bool biased = here && e.router == ExpertRouter::sigmoid, gated = shared && e.shared_gate == Switch::on;
  const bool own_biases = here && e.biases == Switch::on;
  const TensorShape in(e.shared_ffn, c.dim), wide(e.count * 2 * e.ffn), outputs(e.count * c.dim);
  at(TensorRow{"mlp.gate.weight", router, {e.count, c.dim}, here}, w.router);
  at(TensorRow{"mlp.expert_bias", router_bias, TensorShape(e.count), biased}, w.router_bias);
  at(TensorRow{"mlp.gate.bias", projection_bias, TensorShape(e.count), own_biases}, w.logit_bias);
  at(TensorRow{"mlp.experts.gate_up_proj", matrix, {e.count * 2 * e.ffn, c.dim}, here}, w.gate_up);
  at(TensorRow{"mlp.experts.gate_up_proj_bias", projection_bias, wide, own_biases}, w.gate_up_bias);
  at(TensorRow{"mlp.experts.down_proj", matrix, {e.count * c.dim, e.ffn}, here}, w.down);
  at(TensorRow{"mlp.experts.down_proj_bias", projection_bias, outputs, own_biases}, w.down_bias);
  at(TensorRow{"mlp.shared_expert.gate_proj.weight", matrix, in, shared}, w.shared_gate_up);
  at(TensorRow{"mlp.shared_expert.up_proj.weight", matrix, in, shared}, appended_to(w.shared_gate_up));
  at(TensorRow{"mlp.shared_expert.down_proj.weight", matrix, {c.dim, e.shared_ffn}, shared}, w.shared_down);
  at(TensorRow{"mlp.shared_expert_gate.weight", router, {1, c.dim}, gated}, w.shared_gate);
}

/// Calls at(row, member) for every tensor that a layer can have, even if this layer does not have the tensor. `member`
/// is the member of LayerWeights that views the tensor. If several tensors form one matrix, their rows follow one
/// another: the first call is at(row, member), and later calls are at(row, appended_to(member)).
template <class Visit, typename T, typename M>
void visit_layer_tensors(const Visit& at, const DecoderConfig& c, const LayerConfig& layer, LayerWeights<T, M>& w) {
  using enum ParameterKind;
  const TensorShape channels(c.dim);
  at(TensorRow{"input_layernorm.weight", norm, channels, layer.has_input_norms}, w.input_norm);
  visit_attention_tensors(at, c, layer, w.attention);
  visit_delta_tensors(at, c, layer, w.delta);
  at(TensorRow{"attention_output_layernorm.weight", norm, channels, layer.has_output_norms}, w.mixer_out_norm);
  // Despite its name, post_attention_layernorm is the norm before the MLP.
  at(TensorRow{"post_attention_layernorm.weight", norm, channels, layer.has_input_norms}, w.middle_norm);
  const bool dense = !layer.experts;
  at(TensorRow{"mlp.gate_proj.weight", matrix, {c.ffn, c.dim}, dense}, w.gate_up);
  at(TensorRow{"mlp.up_proj.weight", matrix, {c.ffn, c.dim}, dense}, appended_to(w.gate_up));
  at(TensorRow{"mlp.down_proj.weight", matrix, {c.dim, c.ffn}, dense}, w.down);
  visit_expert_tensors(at, c, layer, w.experts);
  at(TensorRow{"mlp_output_layernorm.weight", norm, channels, layer.has_output_norms}, w.mlp_out_norm);
}

/// Calls at(row, member) for the tensors outside the layers. Calls layers() after the embedding, so that the caller can
/// visit the layers' tensors there. All visits then follow the order of the flat buffer.
template <class Visit, class Layers, typename T, typename M>
void visit_outer_tensors(const Visit& at, const Layers& layers, const DecoderConfig& c, OuterWeights<T, M>& w) {
  const TensorShape table(c.vocab, c.dim);
  at(TensorRow{"model.embed_tokens.weight", ParameterKind::embedding, table}, w.embedding);
  layers();
  at(TensorRow{"model.norm.weight", ParameterKind::norm, TensorShape(c.dim)}, w.norm);
  at(TensorRow{"lm_head.weight", ParameterKind::matrix, table, c.embeddings == Embeddings::separate}, w.head);
}

/// Visitor that sets members of LayerWeights or OuterWeights to views of a buffer of type T. The buffer holds the
/// visited tensors contiguously, in the order of the visits.
template <typename T>
class AssignViews {
 public:
  explicit AssignViews(T*& next) : next_(next) {}

  template <std::size_t kRank>
  void operator()(const TensorRow& row, View<T, kRank>& member) const {
    if (!row.present) return;
    std::array<std::int64_t, kRank> shape{};
    for (std::size_t i = 0; i < kRank; ++i) shape[i] = row.shape.sizes[i];
    member = {next_, shape};
    next_ += row.shape.count();
  }
  void operator()(const TensorRow& row, AppendTarget<T> target) const {
    if (!row.present) return;
    target.member.shape[0] += row.shape.sizes[0];
    next_ += row.shape.count();
  }

 private:
  T*& next_;  // address after the last visited tensor
};

/// Visitor that sets members of type T to views of one buffer, and members of type M to views of another. Each buffer
/// holds only tensors of its own type.
template <typename T, typename M>
struct AssignViewsByType : AssignViews<T>, AssignViews<M> {
  AssignViewsByType(T*& next, M*& next_matrix) : AssignViews<T>(next), AssignViews<M>(next_matrix) {}
  using AssignViews<T>::operator();
  using AssignViews<M>::operator();
};

/// Visitor that sets vectors to views of one buffer, and matrices to views of another. Both buffers have room for all
/// tensors. A tensor thus has the same offset in both.
template <typename T, typename M>
class AssignViewsAtSameOffset {
 public:
  AssignViewsAtSameOffset(T*& next, M*& next_matrix) : next_(next), next_matrix_(next_matrix) {}

  template <std::size_t kRank>
  void operator()(const TensorRow& row, View<T, kRank>& member) const {
    AssignViews<T>{next_}(row, member);
    if (row.present) next_matrix_ += row.shape.count();
  }
  template <std::size_t kRank>
  void operator()(const TensorRow& row, View<M, kRank>& member) const {
    AssignViews<M>{next_matrix_}(row, member);
    if (row.present) next_ += row.shape.count();
  }
  void operator()(const TensorRow& row, AppendTarget<M> target) const {
    AssignViews<M>{next_matrix_}(row, target);
    if (row.present) next_ += row.shape.count();
  }

 private:
  T*& next_;
  M*& next_matrix_;
};

/// Visitor for weights whose matrices stay in the model's files. Sets vectors to views of a buffer. Sets each matrix to
/// the next element of an array of StoredMatrix, in the order of the visits.
class AssignStoredMatrices : public AssignViews<const float> {
 public:
  AssignStoredMatrices(const float*& next, const layers::StoredMatrix*& next_matrix)
      : AssignViews<const float>(next), next_matrix_(next_matrix) {}
  using AssignViews<const float>::operator();

  void operator()(const TensorRow& row, layers::StoredMatrix& member) const {
    if (row.present) member = *next_matrix_++;
  }
  /// Appends the rows of the next StoredMatrix to the matrix target.member. Both matrices have the same column order.
  void operator()(const TensorRow& row, StoredAppendTarget target) const {
    if (!row.present) return;
    const layers::StoredMatrix& next = *next_matrix_++;
    target.member.parts.insert(target.member.parts.end(), next.parts.begin(), next.parts.end());
  }

 private:
  const layers::StoredMatrix*& next_matrix_;
};

/// Holds the offsets of a model's weights or gradients in a flat buffer, and returns views of them. Matrices can also
/// be views of a second buffer with the same layout and another element type.
class WeightLayout {
 public:
  explicit WeightLayout(const DecoderConfig& config);

  template <typename T>
  LayerWeights<T> layer(std::int64_t index, T* values) const {
    LayerWeights<T> weights;
    T* next = values + begins_[static_cast<std::size_t>(index)];
    visit_layer_tensors(AssignViews<T>(next), config_, layer_config(config_, index), weights);
    return weights;
  }
  template <typename T, typename M>
  LayerWeights<T, M> layer(std::int64_t index, T* values, M* matrices) const {
    LayerWeights<T, M> weights;
    T* next = values + begins_[static_cast<std::size_t>(index)];
    M* next_matrix = matrices + begins_[static_cast<std::size_t>(index)];
    visit_layer_tensors(AssignViewsAtSameOffset<T, M>(next, next_matrix), config_, layer_config(config_, index),
                        weights);
    return weights;
  }

  template <typename T>
  OuterWeights<T> outer(T* values) const {
    OuterWeights<T> weights;
    T* next = values;
    const auto skip_layers = [&] { next = values + begins_.back(); };
    visit_outer_tensors(AssignViews<T>(next), skip_layers, config_, weights);
    if (config_.embeddings == Embeddings::tied) weights.head = weights.embedding;
    return weights;
  }

 private:
  DecoderConfig config_;
  // Offset of each layer in elements. The last entry is the end of the last layer.
  std::vector<std::int64_t> begins_;
};

}  // namespace headgate::models
