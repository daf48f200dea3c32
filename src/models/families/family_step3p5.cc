// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>

#include "models/decoder/config_keys.hpp"
#include "models/families/hybrid_layers.hpp"

// Describes Step-3.5 and the text part of Step-3.7: attention with a headwise gate, one layer that sees everything for
// each three with a window, which have another number of heads and another RoPE, zero-centred norms, and experts that a
// sigmoid router chooses, whose activations some layers clamp. Layers that predict further tokens follow the model's
// own and are not read; lists in the config may count them.

namespace headgate::models {
namespace {

constexpr std::array kRenames{TensorRename{"self_attn.gate_proj.weight", "self_attn.g_proj.weight"},
                              TensorRename{"mlp.gate.weight", "moe.gate.weight"},
                              TensorRename{"mlp.expert_bias", "moe.router_bias"},
                              TensorRename{"mlp.shared_expert.gate_proj.weight", "share_expert.gate_proj.weight"},
                              TensorRename{"mlp.shared_expert.up_proj.weight", "share_expert.up_proj.weight"},
                              TensorRename{"mlp.shared_expert.down_proj.weight", "share_expert.down_proj.weight"}};

bool locate(TensorLocation& out, const Parameter&, std::string_view rest, const std::string& prefix,
            const FileConfig& file, const LayerConfig&, const ShapeOf&) {
  const Experts& e = file.config.experts;
  if (rest == "mlp.experts.gate_up_proj") {
    out = interleaved_experts(file.config, prefix + "moe.gate_proj.weight", prefix + "moe.up_proj.weight");
    return true;
  }
  if (rest != "mlp.experts.down_proj") return false;
  out.pieces.push_back({prefix + "moe.down_proj.weight", {e.count, file.config.dim, e.ffn}, {}});
  return true;
}

/// Gives the first of `keys` that the file has the name of the last, and accepts the others.
void rename(ConfigReader& in, const std::vector<const char*>& keys) {
  io::Json value;
  for (const char* key : keys) {
    io::Json found = in.take(key);
    if (value.is_null()) value = std::move(found);
  }
  if (!value.is_null()) in.put(keys.back(), value);
}

/// Returns a list that has an element for each layer, or for those that follow too.
io::Json list_of(ConfigReader& in, const char* key, std::int64_t layers) {
  io::Json list = in.take(key);
  if (list.is_null()) return list;
  if (!list.is_array() || std::ssize(list) < layers || std::ssize(list) > 2 * kMaxLayers) {
    io::fail(in.path(), "{} is not a list with an element for each of {} layers", key, layers);
  }
  list.erase(list.begin() + layers, list.end());
  return list;
}

/// Reads which layers have experts: all behind the first dense ones.
void complete_dense_layers(ConfigReader& in, std::int64_t layers) {
  constexpr std::int64_t kDense = 3;
  const io::Json types = list_of(in, "mlp_layer_types", layers);
  io::Json listed = in.take("moe_layers_enum");
  std::set<std::int64_t> sparse;
  if (types.is_array()) {
    for (std::int64_t i = 0; i < layers; ++i) {
      if (types[static_cast<std::size_t>(i)] == "sparse") sparse.insert(i);
    }
  } else if (listed.is_string()) {
    std::string text = listed.get<std::string>();
    std::replace(text.begin(), text.end(), ',', ' ');
    for (std::size_t at = text.find_first_of("0123456789"); at != std::string::npos;) {
      const std::size_t end = std::min(text.size(), text.find(' ', at));
      if (end - at < 5) sparse.insert(std::stoll(text.substr(at, end - at)));
      at = text.find_first_of("0123456789", end);
    }
  } else {
    for (std::int64_t i = kDense; i < layers; ++i) sparse.insert(i);
  }
  const std::int64_t first = sparse.empty() ? layers : *sparse.begin();
  for (std::int64_t i = first; i < layers; ++i) {
    if (!sparse.contains(i)) io::fail(in.path(), "layer {} has no experts, but layer {} has", i, first);
  }
  in.put("num_dense_layers", first);
}

void complete_limits(ConfigReader& in, const char* key, std::int64_t layers) {
  io::Json limits = list_of(in, key, layers);
  if (limits.is_null()) return;
  bool clamps = false;
  for (io::Json& limit : limits) {
    if (limit.is_null()) limit = 0.0;
    clamps = clamps || limit != 0.0;
  }
  if (clamps) in.put(key, limits);
}

/// Reads RoPE of both types of layers where a file has a base and a share for each layer.
void complete_rope(ConfigReader& in, std::int64_t layers, const io::Json& types) {
  constexpr double kBase = 1e4;
  const io::Json* base = in.find("rope_theta");
  if (base == nullptr || !base->is_array()) {
    in.put_default("rope_theta", kBase);
    in.put_default("sliding_rope_theta", *in.find("rope_theta"));
    in.ignore("partial_rotary_factors");
    return;
  }
  const io::Json bases = list_of(in, "rope_theta", layers), shares = list_of(in, "partial_rotary_factors", layers);
  for (std::int64_t i = layers - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    const std::string prefix = types[at] == "sliding_attention" ? "sliding_" : "";
    in.put(prefix + "rope_theta", bases[at]);
    if (shares.is_array()) in.put(prefix + "partial_rotary_factor", shares[at]);
  }
}

void complete(ConfigReader& in) {
  constexpr std::int64_t kHeadDim = 128, kExperts = 288, kActive = 8, kWidth = 1280;
  const std::int64_t layers = std::min(integer_or(in, "num_hidden_layers", 0), kMaxLayers);
  rename(in, {"num_attention_groups", "num_key_value_heads"});
  rename(in, {"n_routed_experts", "moe_num_experts", "num_local_experts", "num_experts"});
  rename(in, {"moe_top_k", "num_experts_per_tok"});
  rename(in, {"share_expert_dim", "share_expert_dims", "shared_expert_intermediate_size"});
  rename(in, {"moe_router_scaling_factor", "route_scale"});
  in.put_default("head_dim", kHeadDim);
  in.put_default("rms_norm_eps", 1e-5);
  in.put_default("num_experts", kExperts);
  in.put_default("num_experts_per_tok", kActive);
  in.put_default("moe_intermediate_size", kWidth);
  in.put_default("shared_expert_intermediate_size", kWidth);
  const io::Json types = list_of(in, "layer_types", layers);
  in.put("layer_types", types.is_null() ? io::Json::array() : types);
  complete_rope(in, layers, types);
  complete_as_llama(in);
  const io::Json other = in.take("attention_other_setting");
  if (other.is_object() && other.contains("num_attention_heads")) {
    in.put_default("num_sliding_attention_heads", other["num_attention_heads"]);
  }
  rename(in, {"num_sliding_attention_heads", "sliding_num_attention_heads"});
  in.put("attention_window", integer_or(in, "sliding_window", 0));
  complete_dense_layers(in, layers);
  for (const char* key : {"swiglu_limits", "swiglu_limits_shared"}) complete_limits(in, key, layers);
  in.put("expert_router", "sigmoid");
  const io::Json scalar = in.take("query_pre_attn_scalar");
  if (scalar.is_number() && scalar.get<double>() > 0.0)
    in.put("attention_scale", 1.0 / std::sqrt(scalar.get<double>()));
  in.require_value("gating", true);
  in.require_value("use_head_wise_attn_gate", true);
  in.require_value("use_bidirectional_attention", false);
  for (const char* key :
       {"per_layer_config", "mtp_layer_types", "mtp_mlp_layer_types", "output_router_logits", "yarn_only_types",
        "use_moe", "use_qk_norm", "zero_centered", "norm_expert_weight", "moe_every_n_layer", "use_moe_router_bias",
        "moe_router_activation", "need_fp32_gate", "sink", "att_impl_type", "use_rope_layers"}) {
    in.ignore(key);
  }
}

void finish(ConfigReader& in, FileConfig& out) {
  out.config.norm = layers::NormKind::zero_centred;
  out.config.gate.site = layers::GateSite::g1;
  out.config.gate.grain = layers::GateGrain::headwise;
  out.further_layers = std::min(integer_or(in, "num_nextn_predict_layers", 0), kMaxLayers);
  const Experts& e = out.config.experts;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(e.dense_layers, std::ssize(e.shared_limits)); ++i) {
    if (e.shared_limits[static_cast<std::size_t>(i)] == 0.0) continue;
    io::fail(in.path(), "swiglu_limits_shared clamps layer {}, which has no experts", i);
  }
}

}  // namespace

const Family kStep3p5{.name = "step3p5",
                      .model_class = "Step3p5ForCausalLM",
                      .architecture = {},
                      .outer_name = "step3p7",
                      .features = Features::own,
                      .has_other_parts = true,
                      .complete = complete,
                      .finish = finish,
                      .finish_gguf = nullptr,
                      .renames = kRenames,
                      .locate = locate};

}  // namespace headgate::models
