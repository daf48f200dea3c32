// SPDX-License-Identifier: Apache-2.0
#include "models/weights.hpp"

#include <string>

namespace headgate::models {

WeightOffsets::WeightOffsets(const ParameterTable& table, const DecoderConfig& config) {
  const auto offset = [&table](const std::string& name) {
    const Parameter* parameter = table.find(name);
    return parameter == nullptr ? std::int64_t{-1} : parameter->offset;
  };
  const auto in_layer = [&offset](const char* name) { return offset(std::string("model.layers.0.") + name); };
  embedding = offset("model.embed_tokens.weight");
  norm = offset("model.norm.weight");
  head = config.embeddings == Embeddings::tied ? embedding : offset("lm_head.weight");
  first.input_norm = in_layer("input_layernorm.weight");
  first.in = in_layer("self_attn.q_proj.weight");
  first.gate_bias = in_layer("self_attn.gate_proj.bias");
  first.gate_parameter = in_layer("self_attn.gate");
  first.q_norm = in_layer("self_attn.q_norm.weight");
  first.k_norm = in_layer("self_attn.k_norm.weight");
  first.head_norm = in_layer("self_attn.head_norm.weight");
  first.sinks = in_layer("self_attn.sinks");
  first.out = in_layer("self_attn.o_proj.weight");
  first.attention_out_norm = in_layer("attention_output_layernorm.weight");
  first.middle_norm = in_layer("post_attention_layernorm.weight");
  first.gate_up = in_layer("mlp.gate_proj.weight");
  first.down = in_layer("mlp.down_proj.weight");
  first.mlp_out_norm = in_layer("mlp_output_layernorm.weight");
  layer_stride = (norm - first.input_norm) / config.layers;
}

}  // namespace headgate::models
