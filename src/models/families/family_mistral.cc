// SPDX-License-Identifier: Apache-2.0
#include "models/families/family.hpp"

// Describes Llama with a window of `sliding_window` keys: 4096 if the key is missing, none if it is null.

namespace headgate::models {

const Family kMistral{.name = "mistral",
                      .model_class = "MistralForCausalLM",
                      .architecture = {},
                      .complete = complete_as_llama,
                      .finish = [](ConfigReader& in, FileConfig& out) {
                        constexpr std::int64_t kDefaultWindow = 4096;
                        out.config.qk_norm = QkNorm::none;
                        out.config.window = kDefaultWindow;
                        const io::Json* window = in.find("sliding_window");
                        if (window == nullptr) return;
                        out.config.window = 0;
                        if (!window->is_null()) in.read(out.config.window, "sliding_window", *window);
                      }};

}  // namespace headgate::models
