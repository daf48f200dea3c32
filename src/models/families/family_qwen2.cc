// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string_view>

#include "models/families/family.hpp"

// Describes Qwen2 and Qwen2.5, which have biases of q, k and v, and may have a window in their last layers.

namespace headgate::models {
namespace {

constexpr std::array<std::string_view, 1> kQwen2Keys{"layer_types"};

void set_features(DecoderConfig& config) {
  config.qk_norm = QkNorm::none;
  config.qkv_bias = QkvBias::learned;
}

}  // namespace

const Family kQwen2{.name = "qwen2",
                    .model_class = "Qwen2ForCausalLM",
                    .architecture = "qwen2",
                    .defaults = R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
                                    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
                                    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
                                    "tie_word_embeddings": false, "sliding_window": 4096, "max_window_layers": 28})",
                    .shared_keys = kQwen2Keys,
                    .complete =
                        [](ConfigReader& in) {
                          complete_heads(in);
                          complete_last_windows(in);
                          in.take("attention_bias");  // has no effect: q, k and v of Qwen2 always have biases
                        },
                    .finish = [](ConfigReader&, FileConfig& out) { set_features(out.config); },
                    .finish_gguf = [](GgufValues&, DecoderConfig& config) { set_features(config); }};

}  // namespace headgate::models
