// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/config_keys.hpp"
#include "models/families/family.hpp"

// Describes Mistral: Llama with a window of `sliding_window` keys. The default is 4096; null means no window.

namespace headgate::models {

const Family kMistral{.name = "mistral",
                      .model_class = "MistralForCausalLM",
                      .architecture = {},
                      .defaults = R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
                                      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                                      "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
                                      "tie_word_embeddings": false, "sliding_window": 4096})",
                      .complete = complete_heads,
                      .finish = [](ConfigReader& in, FileConfig& out) {
                        out.config.qk_norm = QkNorm::none;
                        in.take("attention_bias");  // has no effect: Mistral has no biases
                        const io::Json& window = in.get("sliding_window");
                        if (window.is_null()) return;
                        in.read(out.config.window, "sliding_window", window);
                        require_in(Range<std::int64_t>{1, kMaxSize}, "sliding_window", out.config.window);
                      }};

}  // namespace headgate::models
