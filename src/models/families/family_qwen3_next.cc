// SPDX-License-Identifier: Apache-2.0
#include "models/families/hybrid_layers.hpp"

// Describes Qwen3-Next. Its layers are those of Qwen3.5 with experts, but the rows of their projections are stored key
// head by key head: in_proj_qkvz has for each key head its q, its k, and the v and z of its R value heads; in_proj_ba
// has the b and the a of those.

namespace headgate::models {
namespace {

/// Returns the rows of in_proj_qkvz that are in_proj_qkv's, or in_proj_z's.
std::vector<std::int64_t> rows_of_qkvz(const LinearLayers& l, bool z) {
  const std::int64_t R = l.value_heads / l.key_heads, D = l.key_dim, values = R * l.value_dim;
  const std::int64_t group = 2 * D + 2 * values;
  std::vector<std::int64_t> rows;
  const auto add = [&](std::int64_t offset, std::int64_t count) {
    for (std::int64_t head = 0; head < l.key_heads; ++head) {
      for (std::int64_t i = 0; i < count; ++i) rows.push_back(head * group + offset + i);
    }
  };
  if (z) {
    add(2 * D + values, values);
  } else {
    add(0, D);
    add(D, D);
    add(2 * D, values);
  }
  return rows;
}

std::vector<std::int64_t> rows_of_ba(const LinearLayers& l, bool a) {
  const std::int64_t R = l.value_heads / l.key_heads;
  std::vector<std::int64_t> rows;
  for (std::int64_t head = 0; head < l.value_heads; ++head) rows.push_back(head / R * 2 * R + (a ? R : 0) + head % R);
  return rows;
}

bool locate(TensorLocation& out, const Parameter& parameter, std::string_view rest, const std::string& prefix,
            const FileConfig& file, const LayerConfig&, const ShapeOf&) {
  const LinearLayers& l = file.config.linear;
  const std::int64_t C = file.config.dim, values = l.value_heads * l.value_dim;
  const bool z = rest == "linear_attn.in_proj_z.weight", a = rest == "linear_attn.in_proj_a.weight";
  if (z || rest == "linear_attn.in_proj_qkv.weight") {
    const std::int64_t rows = 2 * l.key_heads * l.key_dim + 2 * values;
    out.pieces.push_back({prefix + "linear_attn.in_proj_qkvz.weight", {rows, C}, rows_of_qkvz(l, z), {}});
    return true;
  }
  if (a || rest == "linear_attn.in_proj_b.weight") {
    out.pieces.push_back({prefix + "linear_attn.in_proj_ba.weight", {2 * l.value_heads, C}, rows_of_ba(l, a), {}});
    return true;
  }
  return locate_convolution(out, parameter, rest, prefix + std::string(rest));
}

void complete(ConfigReader& in) {
  constexpr std::int64_t kWidth = 512, kExperts = 512, kActive = 10;
  complete_qwen_hybrid(in);
  in.put_default("moe_intermediate_size", kWidth);
  in.put_default("shared_expert_intermediate_size", kWidth);
  in.put_default("num_experts", kExperts);
  in.put_default("num_experts_per_tok", kActive);
  in.put_default("intermediate_size", in.get("moe_intermediate_size"));
  in.put_default("norm_topk_prob", true);
  in.put("shared_expert_gate", true);
  in.require_value("decoder_sparse_step", 1);
  in.require_value("mlp_only_layers", io::Json::array());
}

}  // namespace

const Family kQwen3Next{.name = "qwen3_next",
                        .model_class = "Qwen3NextForCausalLM",
                        .architecture = {},
                        .features = Features::own,
                        .complete = complete,
                        .finish = finish_qwen_hybrid,
                        .finish_gguf = nullptr,
                        .renames = {},
                        .locate = locate};

}  // namespace headgate::models
