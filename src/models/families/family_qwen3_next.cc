// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string_view>

#include "models/families/hybrid_layers.hpp"

// Describes Qwen3-Next. Its layers are the same as in Qwen3.5 with experts, but projections group their rows by key
// head. Each key head has R value heads and these rows:
// - in_proj_qkvz: q, then k, then v of all R value heads, then z of all R value heads;
// - in_proj_ba: b of all R value heads, then a of all R value heads.

namespace headgate::models {
namespace {

bool locate_qwen3_next(TensorLocation& out, const Parameter& parameter, std::string_view rest,
                       const std::string& prefix, const FileConfig& file, const LayerConfig&, const ShapeOf&) {
  const LinearLayers& l = file.config.linear;
  const std::int64_t C = file.config.dim, values = l.value_heads * l.value_dim;
  const bool z = rest == "linear_attn.in_proj_z.weight", a = rest == "linear_attn.in_proj_a.weight";
  if (z || rest == "linear_attn.in_proj_qkv.weight") {
    const std::int64_t rows = 2 * l.key_heads * l.key_dim + 2 * values;
    out.pieces.push_back({prefix + "linear_attn.in_proj_qkvz.weight", {rows, C}, rows_of_qkvz(l, z)});
    return true;
  }
  if (a || rest == "linear_attn.in_proj_b.weight") {
    out.pieces.push_back({prefix + "linear_attn.in_proj_ba.weight", {2 * l.value_heads, C}, rows_of_ba(l, a)});
    return true;
  }
  return locate_convolution(out, parameter, rest, prefix + std::string(rest));
}

constexpr std::array<std::string_view, 12> kQwen3NextKeys{
    "partial_rotary_factor", "layer_types",           "linear_conv_kernel_dim",          "linear_key_head_dim",
    "linear_value_head_dim", "linear_num_key_heads",  "linear_num_value_heads",          "num_experts",
    "num_experts_per_tok",   "moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob"};

void complete_qwen3_next(ConfigReader& in) {
  complete_qwen_experts(in);
  in.require_value("decoder_sparse_step", 1);
  in.require_value("mlp_only_layers", io::Json::array());
}

void locate_qwen3_next_gguf(TensorLocation& out, const Parameter& parameter, std::string_view rest,
                            const std::string& block, const DecoderConfig& config) {
  const bool a = rest == "linear_attn.in_proj_a.weight";
  if (a || rest == "linear_attn.in_proj_b.weight") {
    out.pieces = {{block + "ssm_ba.weight", {2 * config.linear.value_heads, config.dim}, rows_of_ba(config.linear, a)}};
    return;
  }
  locate_qwen_hybrid(out, parameter, rest, block, config, ValueHeads::grouped);
}

}  // namespace

const Family kQwen3Next{.name = "qwen3_next",
                        .model_class = "Qwen3NextForCausalLM",
                        .architecture = "qwen3next",
                        .features = Features::own,
                        .has_other_parts = true,
                        .defaults = R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
                                     "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
                                     "head_dim": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
                                     "tie_word_embeddings": false, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                                     "linear_value_head_dim": 128, "linear_num_key_heads": 16,
                                     "linear_num_value_heads": 32,
                                     "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
                                     "num_experts_per_tok": 10, "num_experts": 512, "norm_topk_prob": true})",
                        .shared_keys = kQwen3NextKeys,
                        .complete = complete_qwen3_next,
                        .finish = finish_qwen_hybrid,
                        .finish_gguf = read_qwen_experts,
                        .locate_gguf = locate_qwen3_next_gguf,
                        .renames = {},
                        .locate = locate_qwen3_next};

}  // namespace headgate::models
