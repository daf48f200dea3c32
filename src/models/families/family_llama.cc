// SPDX-License-Identifier: Apache-2.0
#include "models/families/family.hpp"

// Describes Llama 2 and 3, SmolLM2 and similar models. GGUF files of Mistral also have the architecture "llama". GGUF
// files of this architecture permute the rows of each q and k head, since llama.cpp rotates neighbouring features
// together.

namespace headgate::models {

const Family kLlama{.name = "llama",
                    .model_class = "LlamaForCausalLM",
                    .architecture = "llama",
                    .gguf_pairs = RopePairs::neighbours,
                    .defaults = R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
                                    "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6,
                                    "max_position_embeddings": 2048, "tie_word_embeddings": false})",
                    .complete = complete_heads,
                    .finish =
                        [](ConfigReader& in, FileConfig& out) {
                          in.require_value("rope_interleaved", false);
                          out.config.qk_norm = QkNorm::none;
                          read_attention_bias(in, out.config);
                        },
                    .finish_gguf = [](GgufValues&, DecoderConfig& config) { config.qk_norm = QkNorm::none; }};

}  // namespace headgate::models
