// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/config.hpp"

// All parameters lie in one flat buffer, all gradients in another of the same layout. Tensors that one GEMM reads
// together follow each other: q_proj, gate_proj, k_proj, v_proj; and the MLP's gate_proj, up_proj.
//
// Names are Hugging Face's for Qwen3:
//   model.embed_tokens.weight (vocab,dim)
//   model.layers.N.input_layernorm.weight (dim)
//   model.layers.N.self_attn.q_proj.weight (heads·head_dim,dim), .k_proj .v_proj (kv_heads·head_dim,dim)
//   model.layers.N.self_attn.q_norm.weight .k_norm.weight (head_dim)
//   model.layers.N.self_attn.o_proj.weight (dim,heads·head_dim)
//   model.layers.N.post_attention_layernorm.weight (dim)        the MLP's pre-norm
//   model.layers.N.mlp.gate_proj.weight .up_proj.weight (ffn,dim), .down_proj.weight (dim,ffn)
//   model.norm.weight (dim), lm_head.weight (vocab,dim) unless tied
// and beside them, where the config asks for it:
//   model.layers.N.self_attn.gate_proj.weight (logits,dim), .gate_proj.bias (logits)
//   model.layers.N.self_attn.gate (heads,features)              input-independent gate
//   model.layers.N.self_attn.sinks (heads)                      learned sinks
//   model.layers.N.self_attn.head_norm.weight (head_dim)        per-head RMSNorm on the attention output
//   model.layers.N.attention_output_layernorm.weight (dim)      sandwich norm
//   model.layers.N.mlp_output_layernorm.weight (dim)            sandwich norm

namespace headgate::models {

enum class ParameterKind : std::int32_t { embedding, matrix, gate_matrix, norm, gate_bias, gate_parameter, sinks };

/// AdamW's weight decay is for matrices and embeddings alone.
inline bool decays(ParameterKind kind) {
  return kind == ParameterKind::embedding || kind == ParameterKind::matrix || kind == ParameterKind::gate_matrix;
}

struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;  ///< rank 1 or 2
  ParameterKind kind = ParameterKind::matrix;
  std::int64_t offset = 0;  ///< elements from the start of the flat buffer
  std::int64_t count = 0;
};

/// Every parameter of a model, in the order of the flat buffer, without holes.
class ParameterTable {
 public:
  explicit ParameterTable(const DecoderConfig& config);

  const std::vector<Parameter>& entries() const { return entries_; }
  std::int64_t total() const { return total_; }
  /// Null when there is none of that name.
  const Parameter* find(std::string_view name) const;

 private:
  std::vector<Parameter> entries_;
  std::int64_t total_ = 0;
};

/// values(total) =: matrices N(0, init_std), norms 1 (0 where zero-centred), biases bias_init, gate parameters and
/// sinks 0. Each tensor draws from a stream of its own, chosen by seed and name: models that share a tensor start with
/// the same numbers in it, whatever else they hold. The C++ standard fixes the engine's bits; how normal numbers are
/// made of them is up to the standard library.
template <typename T>
void initialise(T* values, const ParameterTable& table, const DecoderConfig& config, std::uint64_t seed);

}  // namespace headgate::models
