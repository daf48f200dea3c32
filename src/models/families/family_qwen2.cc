// SPDX-License-Identifier: Apache-2.0
#include "models/families/family.hpp"

// Describes Qwen2 and Qwen2.5, which have biases of q, k and v. Refuses a window on some layers only
// (use_sliding_window).

namespace headgate::models {
namespace {

void set_features(DecoderConfig& config) {
  config.qk_norm = QkNorm::none;
  config.qkv_bias = QkvBias::learned;
}

}  // namespace

const Family kQwen2{.name = "qwen2",
                    .model_class = "Qwen2ForCausalLM",
                    .architecture = "qwen2",
                    .complete = complete_as_llama,
                    .finish = [](ConfigReader&, FileConfig& out) { set_features(out.config); },
                    .finish_gguf = [](GgufValues&, DecoderConfig& config) { set_features(config); }};

}  // namespace headgate::models
