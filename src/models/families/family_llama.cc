// SPDX-License-Identifier: Apache-2.0
#include "models/families/family.hpp"

// Llama 2 and 3, SmolLM2 and others of the kind. GGUF files of Mistral say "llama" too. Such files have the rows of
// each head of q and k in the order in which llama.cpp turns them, neighbours together.

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
                    .finish_gguf = [](const io::GgufFile&, DecoderConfig& config) { config.qk_norm = QkNorm::none; }};

}  // namespace headgate::models
