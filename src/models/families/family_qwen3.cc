// SPDX-License-Identifier: Apache-2.0
#include "models/families/family.hpp"

// Describes Qwen3, dense, and the public research models that add a gate: headwise_attn_output_gate or
// elementwise_attn_output_gate, a sigmoid gate of the attention output. Its rows are stored in q_proj.weight after
// those of their group. Their qkv_bias includes a bias of o_proj.

namespace headgate::models {
namespace {

bool is_true(ConfigReader& in, const char* key) {
  bool out = false;
  const io::Json* value = in.find(key);
  if (value != nullptr && !value->is_null()) in.read(out, key, *value);
  return out;
}

void finish(ConfigReader& in, FileConfig& out) {
  const bool headwise = is_true(in, "headwise_attn_output_gate");
  const bool elementwise = is_true(in, "elementwise_attn_output_gate");
  if (headwise && elementwise) {
    io::fail(in.path(), "headwise_attn_output_gate and elementwise_attn_output_gate are both true");
  }
  if (headwise || elementwise) {
    out.config.gate.site = layers::GateSite::g1;
    out.config.gate.grain = headwise ? layers::GateGrain::headwise : layers::GateGrain::elementwise;
    out.layout = GateLayout::per_group;
  }
  if (in.find("use_qk_norm") != nullptr && !is_true(in, "use_qk_norm")) out.config.qk_norm = QkNorm::none;
  in.require_value("qkv_bias", false);
}

}  // namespace

const Family kQwen3{.name = "qwen3",
                    .model_class = "Qwen3ForCausalLM",
                    .architecture = "qwen3",
                    .complete = nullptr,
                    .finish = finish,
                    .finish_gguf = [](GgufValues&, DecoderConfig&) {}};

}  // namespace headgate::models
