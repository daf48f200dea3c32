// SPDX-License-Identifier: Apache-2.0
#include "models/families/hybrid_layers.hpp"

#include <algorithm>
#include <string>

#include "models/decoder/config_keys.hpp"

namespace headgate::models {

std::int64_t integer_or(ConfigReader& in, std::string_view key, std::int64_t otherwise) {
  const io::Json* value = in.find(key);
  if (value != nullptr && !value->is_null()) in.read(otherwise, key, *value);
  return otherwise;
}

bool boolean_or(ConfigReader& in, std::string_view key, bool otherwise) {
  const io::Json* value = in.find(key);
  if (value != nullptr && !value->is_null()) in.read(otherwise, key, *value);
  return otherwise;
}

void complete_layer_types(ConfigReader& in, std::int64_t interval, LayerType other) {
  const std::int64_t layers = integer_or(in, "num_hidden_layers", 0);
  if (interval < 1) io::fail(in.path(), "full attention in every {}th layer", interval);
  io::Json types = io::Json::array();
  for (std::int64_t i = 0; i < std::min(layers, kMaxLayers); ++i) {
    types.push_back(std::string(word_of((i + 1) % interval == 0 ? LayerType::full_attention : other)));
  }
  in.put_default("layer_types", types);
}

void complete_qwen_hybrid(ConfigReader& in) {
  constexpr std::int64_t kHeadDim = 256, kLinearDim = 128, kKeyHeads = 16, kValueHeads = 32, kInterval = 4;
  in.put_default("head_dim", kHeadDim);
  complete_as_llama(in);
  in.put_default("partial_rotary_factor", 0.25);
  complete_layer_types(in, integer_or(in, "full_attention_interval", kInterval), LayerType::linear_attention);
  in.put_default("linear_key_head_dim", kLinearDim);
  in.put_default("linear_value_head_dim", kLinearDim);
  in.put_default("linear_num_key_heads", kKeyHeads);
  in.put_default("linear_num_value_heads", kValueHeads);
  for (const char* key : {"mrope_section", "mrope_interleaved", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings",
                          "mamba_ssm_dtype", "output_router_logits", "router_aux_loss_coef"}) {
    in.ignore(key);
  }
  in.require_value("attn_output_gate", true);
}

void finish_qwen_hybrid(ConfigReader&, FileConfig& out) {
  out.config.norm = layers::NormKind::zero_centred;
  out.config.gate.site = layers::GateSite::g1;
  out.config.gate.grain = layers::GateGrain::elementwise;
  out.layout = GateLayout::per_query_head;
}

bool locate_convolution(TensorLocation& out, const Parameter& parameter, std::string_view rest,
                        const std::string& name) {
  if (rest != "linear_attn.conv1d.weight") return false;
  out.pieces.push_back({name, {parameter.shape[0], 1, parameter.shape[1]}, {}, {}});
  return true;
}

}  // namespace headgate::models
