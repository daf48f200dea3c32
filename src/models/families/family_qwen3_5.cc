// SPDX-License-Identifier: Apache-2.0
#include "models/families/hybrid_layers.hpp"

// Describes the text part of Qwen3.5, dense and with experts: layers of Gated DeltaNet and, as every fourth, of gated
// attention. Its checkpoints also hold a model of images and one that predicts further tokens, which are not read.

namespace headgate::models {
namespace {

bool locate_qwen3_5(TensorLocation& out, const Parameter& parameter, std::string_view rest, const std::string& prefix,
                    const FileConfig&, const LayerConfig&, const ShapeOf&) {
  return locate_convolution(out, parameter, rest, prefix + std::string(rest));
}

void complete_experts(ConfigReader& in) {
  constexpr std::int64_t kExperts = 256, kActive = 8;
  in.put("norm_topk_prob", true);
  complete_qwen_experts(in, kExperts, kActive);
}

/// llama.cpp's converter puts one value head of each key head after the other.
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
                        .complete = complete_experts,
                        .finish = finish_qwen_hybrid,
                        .finish_gguf = read_qwen_experts,
                        .locate_gguf = locate_qwen3_5_gguf,
                        .renames = {},
                        .locate = locate_qwen3_5};

}  // namespace headgate::models
