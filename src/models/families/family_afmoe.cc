// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "models/decoder/config_keys.hpp"
#include "models/families/gguf_values.hpp"
#include "models/families/hybrid_layers.hpp"

// Describes AFMoE, the architecture of Trinity. Of four layers, three have a sliding window and RoPE; the fourth has
// full attention without RoPE. Attention is gated. RMSNorm is applied before and after attention and MLP. A sigmoid
// router chooses the experts.

namespace headgate::models {
namespace {

constexpr std::array kAfmoeRenames{
    TensorRename{"attention_output_layernorm.weight", "post_attention_layernorm.weight"},
    TensorRename{"post_attention_layernorm.weight", "pre_mlp_layernorm.weight"},
    TensorRename{"mlp_output_layernorm.weight", "post_mlp_layernorm.weight"},
    TensorRename{"mlp.gate.weight", "mlp.router.gate.weight"},
    TensorRename{"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    TensorRename{"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    TensorRename{"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"}};

constexpr std::array<std::string_view, 6> kAfmoeKeys{"layer_types",           "num_experts",      "num_experts_per_tok",
                                                     "moe_intermediate_size", "num_dense_layers", "route_scale"};

void complete_afmoe(ConfigReader& in) {
  constexpr std::int64_t kInterval = 4;
  complete_heads(in);
  in.put("sliding_rope_theta", in.get("rope_theta"));
  in.put("sliding_rope_scaled", true);
  in.put("partial_rotary_factor", 0.0);
  complete_layer_types(in, "global_attn_every_n_layers", kInterval, LayerType::sliding_attention);
  complete_window(in);
  const std::int64_t width = integer_or(in, "moe_intermediate_size", 0);
  in.put("shared_expert_intermediate_size", std::min(integer_or(in, "num_shared_experts", 0), kMaxExperts) * width);
  in.put("expert_router", "sigmoid");
  in.require_value("score_func", "sigmoid");
  in.require_value("route_norm", true);
  for (const char* key : {"n_group", "topk_group", "num_expert_groups", "num_limited_groups"}) in.require_value(key, 1);
  if (boolean_or(in, "mup_enabled", false)) {
    in.put("embedding_scale", std::sqrt(static_cast<double>(integer_or(in, "hidden_size", 1))));
  }
  for (const char* key : {"output_router_logits", "load_balance_coeff", "use_grouped_mm"}) in.ignore(key);
}

void finish_afmoe_gguf(GgufValues& in, DecoderConfig& config) {
  constexpr std::int64_t kInterval = 4, kSigmoid = 2;
  Experts& e = config.experts;
  config.norm_placement = NormPlacement::sandwich;
  config.gate.site = layers::GateSite::g1;
  config.gate.grain = layers::GateGrain::elementwise;
  config.embedding_scale = std::sqrt(static_cast<double>(config.dim));
  config.window = in.integer("attention.sliding_window", 0);
  config.sliding.rope_base = in.number("rope.freq_base_swa", config.rope_base);
  config.sliding.rope_fraction = std::exchange(config.rope_fraction, 0.0);
  config.sliding.rope_scaled = Switch::on;
  for (std::int64_t i = 0; i < config.layers && config.window > 0; ++i) {
    config.layer_types.push_back((i + 1) % kInterval == 0 ? LayerType::full_attention : LayerType::sliding_attention);
  }
  read_experts(in, e);
  e.dense_layers = in.integer("leading_dense_block_count", 0);
  e.shared_ffn = std::min(in.integer("expert_shared_count", 0), kMaxExperts) * e.ffn;
  in.require_value("expert_shared_feed_forward_length", e.shared_ffn);
  e.router = ExpertRouter::sigmoid;
  e.scale = in.number("expert_weights_scale", 1.0);
  e.renormalise = in.boolean("expert_weights_norm", false) ? Switch::on : Switch::off;
  in.require_value("expert_gating_func", kSigmoid);
}

}  // namespace

const Family kAfmoe{.name = "afmoe",
                    .model_class = "AfmoeForCausalLM",
                    .architecture = "afmoe",
                    .features = Features::own,
                    .defaults = R"({"vocab_size": 200192, "hidden_size": 2048, "intermediate_size": 6144,
                                    "moe_intermediate_size": 1408, "num_hidden_layers": 32, "num_dense_layers": 1,
                                    "num_attention_heads": 16, "head_dim": 128, "max_position_embeddings": 16384,
                                    "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "num_experts": 64,
                                    "num_experts_per_tok": 6, "num_shared_experts": 2, "sliding_window": 1024})",
                    .shared_keys = kAfmoeKeys,
                    .complete = complete_afmoe,
                    .finish =
                        [](ConfigReader&, FileConfig& out) {
                          out.config.norm_placement = NormPlacement::sandwich;
                          out.config.gate.site = layers::GateSite::g1;
                          out.config.gate.grain = layers::GateGrain::elementwise;
                        },
                    .finish_gguf = finish_afmoe_gguf,
                    .renames = kAfmoeRenames,
                    .locate = nullptr};

}  // namespace headgate::models
