// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string_view>

#include "models/families/hybrid_layers.hpp"

// Describes the text model of Qwen3.5, dense or with experts. Every fourth layer has gated attention, the others Gated
// DeltaNet. Checkpoints also hold a vision model and a multi-token-prediction (MTP) module; neither is read.

namespace headgate::models {
namespace {

bool locate_qwen3_5(TensorLocation& out, const Parameter& parameter, std::string_view rest, const std::string& prefix,
                    const FileConfig&, const LayerConfig&, const ShapeOf&) {
  return locate_convolution(out, parameter, rest, prefix + std::string(rest));
}

constexpr std::array<std::string_view, 7> kQwen35Keys{
    "partial_rotary_factor", "layer_types",          "linear_conv_kernel_dim", "linear_key_head_dim",
    "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads"};
constexpr std::array<std::string_view, 12> kQwen35MoeKeys{
    "partial_rotary_factor", "layer_types",           "linear_conv_kernel_dim",          "linear_key_head_dim",
    "linear_value_head_dim", "linear_num_key_heads",  "linear_num_value_heads",          "num_experts",
    "num_experts_per_tok",   "moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob"};

/// Sets intermediate_size if the file lacks it. Only layers without experts would use the value.
void complete_experts(ConfigReader& in) {
  complete_qwen_experts(in);
  in.put_default("intermediate_size", in.get("moe_intermediate_size"));
  in.require_value("norm_topk_prob", true);
}

/// Locates parameters in GGUF files, in which llama.cpp's converter has reordered the value heads (ValueHeads::tiled).
void locate_qwen3_5_gguf(TensorLocation& out, const Parameter& parameter, std::string_view rest,
                         const std::string& block, const DecoderConfig& config) {
  locate_qwen_hybrid(out, parameter, rest, block, config, ValueHeads::tiled);
}

}  // namespace

const Family kQwen35{.name = "qwen3_5_text",
                     .model_class = "Qwen3_5ForCausalLM",
                     .architecture = "qwen35",
                     .outer_name = "qwen3_5",
                     .features = Features::own,
                     .has_other_parts = true,
                     .defaults = R"({"vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288,
                                     "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4,
                                     "head_dim": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
                                     "tie_word_embeddings": false, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                                     "linear_value_head_dim": 128, "linear_num_key_heads": 16,
                                     "linear_num_value_heads": 32})",
                     .shared_keys = kQwen35Keys,
                     .complete = complete_qwen_hybrid,
                     .finish = finish_qwen_hybrid,
                     .finish_gguf = read_qwen_hybrid,
                     .locate_gguf = locate_qwen3_5_gguf,
                     .renames = {},
                     .locate = locate_qwen3_5};

const Family kQwen35Moe{.name = "qwen3_5_moe_text",
                        .model_class = "Qwen3_5MoeForCausalLM",
                        .architecture = "qwen35moe",
                        .outer_name = "qwen3_5_moe",
                        .features = Features::own,
                        .has_other_parts = true,
                        .defaults = R"({"vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40,
                                     "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
                                     "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
                                     "tie_word_embeddings": false, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                                     "linear_value_head_dim": 128, "linear_num_key_heads": 16,
                                     "linear_num_value_heads": 32,
                                     "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
                                     "num_experts_per_tok": 8, "num_experts": 256})",
                        .shared_keys = kQwen35MoeKeys,
                        .complete = complete_experts,
                        .finish = finish_qwen_hybrid,
                        .finish_gguf = read_qwen_experts,
                        .locate_gguf = locate_qwen3_5_gguf,
                        .renames = {},
                        .locate = locate_qwen3_5};

}  // namespace headgate::models
