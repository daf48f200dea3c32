// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "models/decoder/config_keys.hpp"
#include "models/families/gguf_values.hpp"
#include "models/families/hybrid_layers.hpp"

// Describes Step-3.5 and the text model of Step-3.7:
// - attention with a headwise gate; of four layers, three have a sliding window and one has full attention;
// - layers with a window have another number of query heads and another RoPE than layers with full attention;
// - zero-centred norms;
// - experts chosen by a sigmoid router; some layers clamp their activations.
// Multi-token-prediction (MTP) layers follow the model's own layers and are not read. Lists in the config may have
// elements for them.

namespace headgate::models {
namespace {

constexpr double kSlidingBase = 1e4;  // default RoPE base of layers with a window
// Keys of kConfigKeys that Step-3.5 uses with the same meaning. partial_rotary_factor is valid only inside
// rope_parameters.
constexpr std::array<std::string_view, 6> kStep3p5Keys{"layer_types",          "num_experts_per_tok",
                                                       "swiglu_limits",        "moe_intermediate_size",
                                                       "swiglu_limits_shared", "partial_rotary_factor"};

constexpr std::array kStep3p5Renames{
    TensorRename{"self_attn.gate_proj.weight", "self_attn.g_proj.weight"},
    TensorRename{"mlp.gate.weight", "moe.gate.weight"},
    TensorRename{"mlp.expert_bias", "moe.router_bias"},
    TensorRename{"mlp.shared_expert.gate_proj.weight", "share_expert.gate_proj.weight"},
    TensorRename{"mlp.shared_expert.up_proj.weight", "share_expert.up_proj.weight"},
    TensorRename{"mlp.shared_expert.down_proj.weight", "share_expert.down_proj.weight"}};

bool locate_step3p5(TensorLocation& out, const Parameter&, std::string_view rest, const std::string& prefix,
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

/// Unifies keys with the same meaning. Removes all `keys`, and stores the first value that is not null under the last
/// of them.
void rename(ConfigReader& in, const std::vector<const char*>& keys) {
  io::Json value;
  for (const char* key : keys) {
    io::Json found = in.take(key);
    if (value.is_null()) value = std::move(found);
  }
  if (!value.is_null()) in.put(keys.back(), value);
}

/// Removes a list from the config and returns its first `layers` elements. Drops further elements, which belong to
/// multi-token-prediction (MTP) layers.
io::Json list_of(ConfigReader& in, const char* key, std::int64_t layers) {
  io::Json list = in.take(key);
  if (list.is_null()) return list;
  if (!list.is_array() || std::ssize(list) < layers || std::ssize(list) > 2 * kMaxLayers) {
    io::fail(in.path(), "{} is not a list with an element for each of {} layers", key, layers);
  }
  list.erase(list.begin() + layers, list.end());
  return list;
}

/// Reads whole numbers from a string, in which commas separate them.
std::set<std::int64_t> indices_in(const ConfigReader& in, const char* key, const io::Json& value) {
  std::set<std::int64_t> out;
  const std::string text = value.is_string() ? value.get<std::string>() : "?";
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::size_t first = std::min(text.find_first_not_of(' ', begin), comma);
    const std::size_t end = std::min(text.find(' ', first), comma);
    std::int64_t index = 0;
    const auto [read, error] = std::from_chars(text.data() + first, text.data() + end, index);
    const bool whole =
        error == std::errc() && read == text.data() + end && index >= 0 && text.find_first_not_of(' ', end) >= comma;
    if (first < comma && !whole) io::fail(in.path(), "{} is {}, not a list of layers", key, value.dump());
    if (first < comma) out.insert(index);
    begin = comma + 1;
  }
  return out;
}

/// Sets num_dense_layers to the index of the first layer with experts. Throws if a later layer has no experts.
void complete_dense_layers(ConfigReader& in, std::int64_t layers) {
  constexpr std::int64_t kDense = 3;
  const io::Json types = list_of(in, "mlp_layer_types", layers);
  io::Json listed = in.take("moe_layers_enum");
  std::set<std::int64_t> sparse;
  if (types.is_array()) {
    for (std::int64_t i = 0; i < layers; ++i) {
      const io::Json& type = types[static_cast<std::size_t>(i)];
      if (type != "sparse" && type != "dense") {
        io::fail(in.path(), "mlp_layer_types has {}; only \"dense\" and \"sparse\" are supported", type.dump());
      }
      if (type == "sparse") sparse.insert(i);
    }
  } else if (listed.is_array()) {
    for (const io::Json& layer : listed) {
      std::int64_t at = 0;
      in.read(at, "moe_layers_enum", layer);
      sparse.insert(at);
    }
  } else if (!listed.is_null()) {
    sparse = indices_in(in, "moe_layers_enum", listed);
  } else {
    for (std::int64_t i = kDense; i < layers; ++i) sparse.insert(i);
  }
  const std::int64_t first = sparse.empty() ? layers : *sparse.begin();
  for (std::int64_t i = first; i < layers; ++i) {
    if (sparse.contains(i)) continue;
    io::fail(in.path(), "{}: layer {} has no experts, but layer {} has",
             types.is_array() ? "mlp_layer_types" : "moe_layers_enum", i, first);
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

/// Sets the RoPE base and partial_rotary_factor of layers with full attention and of layers with a window. Reads
/// rope_parameters if the file has it. Otherwise reads rope_theta and partial_rotary_factors, which may be lists with
/// one element per layer. Throws if layers of one type have different elements.
void complete_rope(ConfigReader& in, std::int64_t layers, const io::Json& types) {
  const io::Json base = in.get("rope_theta"), shares = list_of(in, "partial_rotary_factors", layers);
  const std::vector<std::string>& own = in.rope_types();
  const io::Json bases = base.is_array() ? list_of(in, "rope_theta", layers) : io::Json();
  io::Json given = io::Json::object();
  const auto put = [&](const std::string& key, const char* list, std::int64_t layer, const io::Json& value) {
    if (given.value(key, value) != value) {
      io::fail(in.path(), "{}: layer {} has {}, but an earlier layer of its type {}", list, layer, value.dump(),
               given[key].dump());
    }
    given[key] = value;
    in.put(key, value);
  };
  for (std::int64_t i = 0; i < layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const bool sliding = types.is_array() && types[at] == "sliding_attention";
    if (!own.empty()) {
      const std::string type = sliding ? "sliding_attention" : "full_attention";
      if (std::find(own.begin(), own.end(), type) == own.end()) {
        io::fail(in.path(), "rope_parameters has no {}, which layer_types has", type);
      }
      continue;
    }
    const std::string prefix = sliding ? "sliding_" : "";
    put(prefix + "rope_theta", "rope_theta", i, bases.is_array() ? bases[at] : base);
    if (shares.is_array()) put(prefix + "partial_rotary_factor", "partial_rotary_factors", i, shares[at]);
  }
  if (!in.has("rope_theta")) in.put("rope_theta", kSlidingBase);
}

/// Sets the number of query heads in layers with a window. Throws if per_layer_config gives another number.
void complete_sliding_heads(ConfigReader& in, std::int64_t layers, const io::Json& types) {
  constexpr const char* kHeads = "num_attention_heads";
  const bool repeats = in.has("per_layer_config");
  const io::Json other = in.take("attention_other_setting"), repeated = in.take("per_layer_config");
  if (other.is_object() && other.contains(kHeads)) in.put_default("num_sliding_attention_heads", other[kHeads]);
  in.put_default("num_sliding_attention_heads", in.get(kHeads));
  const io::Json heads = in.take("num_sliding_attention_heads");
  in.put("sliding_num_attention_heads", heads);
  io::Json expected = io::Json::object();
  for (std::int64_t i = 0; i < layers && types.is_array(); ++i) {
    if (types[static_cast<std::size_t>(i)] == "sliding_attention") expected[std::to_string(i)] = {{kHeads, heads}};
  }
  if (!repeats || repeated == expected) return;
  io::fail(in.path(),
           "per_layer_config differs from num_sliding_attention_heads {} in the sliding_attention of layer_types",
           heads.dump());
}

void complete_step3p5(ConfigReader& in) {
  const std::int64_t layers = std::min(integer_or(in, "num_hidden_layers", 0), kMaxLayers);
  rename(in, {"num_attention_groups", "num_key_value_heads"});
  rename(in, {"moe_num_experts", "n_routed_experts", "num_experts"});
  in.require_value("num_local_experts", in.get("num_experts"));
  rename(in, {"moe_top_k", "num_experts_per_tok"});
  rename(in, {"share_expert_dims", "share_expert_dim", "shared_expert_intermediate_size"});
  const io::Json scale = in.take("moe_router_scaling_factor");
  if (!scale.is_null()) {
    double value = 0.0;
    in.read(value, "moe_router_scaling_factor", scale);
    require_in(kPositive, "moe_router_scaling_factor", value);
    in.put("route_scale", value);
  }
  const io::Json types = list_of(in, "layer_types", layers);
  in.put("layer_types", types.is_null() ? io::Json::array() : types);
  complete_rope(in, layers, types);
  complete_heads(in);
  complete_sliding_heads(in, layers, types);
  complete_window(in);
  complete_dense_layers(in, layers);
  for (const char* key : {"swiglu_limits", "swiglu_limits_shared"}) complete_limits(in, key, layers);
  in.put("expert_router", "sigmoid");
  constexpr const char* kScalar = "query_pre_attn_scalar";
  const io::Json scalar = in.take(kScalar);
  if (!scalar.is_null()) {
    double value = 0.0;
    in.read(value, kScalar, scalar);
    require_in(kPositive, kScalar, value);
    in.put("attention_scale", 1.0 / std::sqrt(value));
  }
  in.require_value("gating", true);
  in.require_value("use_head_wise_attn_gate", true);
  in.require_value("use_bidirectional_attention", false);
  for (const char* key :
       {"mtp_layer_types", "mtp_mlp_layer_types", "output_router_logits", "yarn_only_types", "use_moe", "use_qk_norm",
        "zero_centered", "norm_expert_weight", "moe_every_n_layer", "use_moe_router_bias", "moe_router_activation",
        "need_fp32_gate", "sink", "att_impl_type", "use_rope_layers"}) {
    in.ignore(key);
  }
}

void refuse_dense_limits(const Experts& e, const std::string& path, const char* limits, const char* layers) {
  for (std::int64_t i = 0; i < std::min<std::int64_t>(e.dense_layers, std::ssize(e.shared_limits)); ++i) {
    if (e.shared_limits[static_cast<std::size_t>(i)] == 0.0) continue;
    io::fail(path, "{} clamps layer {}, which {} leaves without experts", limits, i, layers);
  }
}

void finish(ConfigReader& in, FileConfig& out) {
  out.config.norm = layers::NormKind::zero_centred;
  out.config.gate.site = layers::GateSite::g1;
  out.config.gate.grain = layers::GateGrain::headwise;
  out.further_layers = std::min(integer_or(in, "num_nextn_predict_layers", 0), kMaxLayers);
  refuse_dense_limits(out.config.experts, in.path(), "swiglu_limits_shared", "mlp_layer_types or moe_layers_enum");
}

// --- GGUF --------------------------------------------------------------------------------------------------------

/// Returns the activation limit of each layer, or an empty list if no layer is clamped. Drops the limits of
/// multi-token-prediction (MTP) layers.
std::vector<double> limits_of(GgufValues& in, const char* key, std::int64_t layers) {
  std::vector<double> limits = in.numbers(key, layers);
  if (!limits.empty() && std::ssize(limits) < layers) {
    io::fail(in.file().path(), "{} has {} elements, fewer than {} layers", key, limits.size(), layers);
  }
  if (!limits.empty()) limits.resize(static_cast<std::size_t>(layers));
  const bool clamps = std::any_of(limits.begin(), limits.end(), [](double limit) { return limit != 0.0; });
  return clamps ? limits : std::vector<double>{};
}

/// Reads which layers have a window, and the numbers of heads in layers with and without a window.
void read_layer_types(GgufValues& in, DecoderConfig& config) {
  const std::vector<bool> windows = in.booleans("attention.sliding_window_pattern");
  const std::vector<std::int64_t> heads = in.integers("attention.head_count");
  if (std::ssize(windows) < config.layers || (heads.size() > 1 && std::ssize(heads) < config.layers)) {
    io::fail(in.file().path(), "sliding_window_pattern has {} and head_count {} elements, fewer than {} layers",
             windows.size(), heads.size(), config.layers);
  }
  for (std::int64_t i = config.layers - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    config.layer_types.insert(config.layer_types.begin(),
                              windows[at] ? LayerType::sliding_attention : LayerType::full_attention);
    (windows[at] ? config.sliding.heads : config.heads) = heads.size() > 1 ? heads[at] : heads.front();
  }
  config.window = in.integer("attention.sliding_window");
}

/// Returns the number of dense layers, which come before the first layer with a router.
std::int64_t dense_layers_of(const io::GgufFile& file, std::int64_t layers) {
  std::int64_t dense = 0;
  while (dense < layers && file.find(fmt::format("blk.{}.ffn_gate_inp.weight", dense)) == nullptr) ++dense;
  return dense;
}

void finish_step3p5_gguf(GgufValues& in, DecoderConfig& config) {
  constexpr std::int64_t kSigmoid = 2;
  config.gate.site = layers::GateSite::g1;
  config.gate.grain = layers::GateGrain::headwise;
  leave_out_further_layers(in, config);
  read_layer_types(in, config);
  config.sliding.rope_base = in.number("rope.freq_base_swa", kSlidingBase);
  config.sliding.rope_fraction = config.rope_fraction;
  if (in.has("rope.dimension_count_swa")) {
    config.sliding.rope_fraction =
        rope_fraction_of(in.even_integer("rope.dimension_count_swa", config.head_dim), config.head_dim);
  }
  config.rope_fraction /= 2;  // layers with full attention rotate half as many features as the file says
  Experts& e = config.experts;
  read_experts(in, e);
  e.dense_layers = dense_layers_of(in.file(), config.layers);
  e.router = ExpertRouter::sigmoid;
  e.scale = in.number("expert_weights_scale", 1.0);
  e.renormalise = in.boolean("expert_weights_norm", false) ? Switch::on : Switch::off;
  e.limits = limits_of(in, "swiglu_clamp_exp", config.layers);
  e.shared_limits = limits_of(in, "swiglu_clamp_shexp", config.layers);
  refuse_dense_limits(e, in.file().path(), "swiglu_clamp_shexp", "the lack of ffn_gate_inp.weight");
  in.require_value("expert_gating_func", kSigmoid);
  in.require_value("moe_every_n_layers", 1);
}

}  // namespace

const Family kStep3p5{.name = "step3p5",
                      .model_class = "Step3p5ForCausalLM",
                      .architecture = "step35",
                      .outer_name = "step3p7",
                      .features = Features::own,
                      .has_other_parts = true,
                      .defaults = R"({"vocab_size": 128815, "hidden_size": 4096, "intermediate_size": 11264,
                                      "num_hidden_layers": 45, "num_attention_heads": 64, "num_key_value_heads": 8,
                                      "head_dim": 128, "max_position_embeddings": 128000, "rms_norm_eps": 1e-5,
                                      "tie_word_embeddings": false, "num_experts_per_tok": 8, "n_routed_experts": 288,
                                      "moe_intermediate_size": 1280, "share_expert_dim": 1280,
                                      "sliding_window": null})",
                      .shared_keys = kStep3p5Keys,
                      .rope = RopeObject::by_layer_type,
                      .complete = complete_step3p5,
                      .finish = finish,
                      .finish_gguf = finish_step3p5_gguf,
                      .renames = kStep3p5Renames,
                      .locate = locate_step3p5};

}  // namespace headgate::models
