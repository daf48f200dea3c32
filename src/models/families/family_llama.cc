// SPDX-License-Identifier: Apache-2.0
#include "models/families/family.hpp"

// Describes Llama 2 and 3, SmolLM2 and similar models. GGUF files of Mistral say "llama" too. Such files store the rows
// of each head of q and k in llama.cpp's order, with neighbours rotated together.

namespace headgate::models {

const Family kLlama{.name = "llama",
                    .model_class = "LlamaForCausalLM",
                    .architecture = "llama",
                    .gguf_pairs = RopePairs::neighbours,
                    .complete = complete_as_llama,
                    .finish =
                        [](ConfigReader& in, FileConfig& out) {
                          in.require_value("rope_interleaved", false);
                          out.config.qk_norm = QkNorm::none;
                        },
                    .finish_gguf = [](GgufValues&, DecoderConfig& config) { config.qk_norm = QkNorm::none; }};

}  // namespace headgate::models
