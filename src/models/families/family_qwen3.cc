// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string_view>

#include "models/families/hybrid_layers.hpp"

// Describes dense Qwen3, and the public research models that add a sigmoid gate on the attention output:
// - headwise_attn_output_gate or elementwise_attn_output_gate selects the gate.
// - q_proj.weight stores, for each GQA group, the rows of q and then the rows of the gate.
// - qkv_bias must be false, because it also adds a bias to o_proj.

namespace headgate::models {
namespace {

constexpr std::array<std::string_view, 1> kQwen3Keys{"layer_types"};

void finish(ConfigReader& in, FileConfig& out) {
  const bool headwise = boolean_or(in, "headwise_attn_output_gate", false);
  const bool elementwise = boolean_or(in, "elementwise_attn_output_gate", false);
  if (headwise && elementwise) {
    io::fail(in.path(), "headwise_attn_output_gate and elementwise_attn_output_gate are both true");
  }
  if (headwise || elementwise) {
    out.config.gate.site = layers::GateSite::g1;
    out.config.gate.grain = headwise ? layers::GateGrain::headwise : layers::GateGrain::elementwise;
    out.layout = GateLayout::per_group;
  }
  if (in.find("use_qk_norm") != nullptr && !boolean_or(in, "use_qk_norm", false)) out.config.qk_norm = QkNorm::none;
  // A bias of a q_proj that includes the gate's rows would also be a bias of the gate, which is not supported.
  if (out.layout == GateLayout::separate) read_attention_bias(in, out.config);
  in.require_value("qkv_bias", false);
}

}  // namespace

const Family kQwen3{.name = "qwen3",
                    .model_class = "Qwen3ForCausalLM",
                    .architecture = "qwen3",
                    .defaults = R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
                                    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
                                    "head_dim": 128, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
                                    "tie_word_embeddings": false, "sliding_window": 4096, "max_window_layers": 28})",
                    .shared_keys = kQwen3Keys,
                    .complete =
                        [](ConfigReader& in) {
                          complete_heads(in);
                          complete_last_windows(in);
                        },
                    .finish = finish,
                    .finish_gguf = [](GgufValues&, DecoderConfig&) {}};

}  // namespace headgate::models
