// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string_view>

#include "models/families/hybrid_layers.hpp"

// Describes OLMo-Hybrid:
// - Gated DeltaNet layers have β up to 2, and norms before mixer and MLP.
// - Attention layers have no gate, norms after mixer and MLP, and mostly no RoPE.
// - In attention, one norm spans all heads of q, and another norm spans all heads of k.

namespace headgate::models {
namespace {

constexpr std::array kOfAttention{TensorRename{"attention_output_layernorm.weight", "post_attention_layernorm.weight"},
                                  TensorRename{"mlp_output_layernorm.weight", "post_feedforward_layernorm.weight"},
                                  TensorRename{"linear_attn.in_proj_z.weight", "linear_attn.g_proj.weight"},
                                  TensorRename{"linear_attn.in_proj_b.weight", "linear_attn.b_proj.weight"},
                                  TensorRename{"linear_attn.in_proj_a.weight", "linear_attn.a_proj.weight"},
                                  TensorRename{"linear_attn.norm.weight", "linear_attn.o_norm.weight"},
                                  TensorRename{"linear_attn.out_proj.weight", "linear_attn.o_proj.weight"}};

/// Locates the convolution's weights in three tensors, whose concatenated rows are the rows of the parameter. The
/// tensors hold the channels of q, k and v. In files saved by transformers, each holds a third of all channels instead.
/// Returns false if a tensor is missing, or if the numbers of rows do not add up.
bool locate_three(TensorLocation& out, const Parameter& parameter, const std::string& prefix, const ShapeOf& shape_of) {
  std::int64_t rows = 0;
  for (const char* part : {"q", "k", "v"}) {
    const std::string name = prefix + "linear_attn." + part + "_conv1d.weight";
    const std::vector<std::int64_t>* shape = shape_of(name);
    if (shape == nullptr || shape->size() != 3) return false;
    out.pieces.push_back({name, {shape->front(), 1, parameter.shape[1]}, {}});
    rows += shape->front();
  }
  if (rows == parameter.shape[0]) return true;
  out = {};
  return false;
}

/// Locates parameters that OLMo-Hybrid's files store in another form than this library. Projections of linear attention
/// and convolutions have separate tensors for q, k and v. Some norms have other names.
bool locate_olmo_hybrid(TensorLocation& out, const Parameter& parameter, std::string_view rest,
                        const std::string& prefix, const FileConfig& file, const LayerConfig& layer,
                        const ShapeOf& shape_of) {
  const LinearLayers& l = file.config.linear;
  const std::int64_t keys = l.key_heads * l.key_dim, values = l.value_heads * l.value_dim;
  if (rest == "linear_attn.in_proj_qkv.weight") {
    for (const char* part : {"q", "k", "v"}) {
      const std::int64_t rows = *part == 'v' ? values : keys;
      out.pieces.push_back({prefix + "linear_attn." + part + "_proj.weight", {rows, file.config.dim}, {}});
    }
    return true;
  }
  if (rest == "linear_attn.conv1d.weight" && locate_three(out, parameter, prefix, shape_of)) return true;
  if (locate_convolution(out, parameter, rest, prefix + std::string(rest))) return true;
  // Locates norms by their names in released checkpoints, which are also the names that transformers writes. If the
  // file has no tensor of such a name, returns false. The caller then tries the names of transformers' modules.
  const bool attention = layer.type != LayerType::linear_attention;
  struct Norm {
    std::string_view ours, theirs;
    bool here;
  };
  for (const Norm& norm : {Norm{"input_layernorm.weight", "attention_layer_norm.weight", !attention},
                           Norm{"post_attention_layernorm.weight", "feedforward_layer_norm.weight", !attention},
                           Norm{"attention_output_layernorm.weight", "feedforward_layer_norm.weight", attention}}) {
    const std::string name = prefix + std::string(norm.theirs);
    if (rest != norm.ours || !norm.here || shape_of(name) == nullptr) continue;
    out = whole_tensor(parameter, name);
    return true;
  }
  return false;
}

constexpr std::array<std::string_view, 6> kOlmoHybridKeys{"layer_types",          "linear_conv_kernel_dim",
                                                          "linear_key_head_dim",  "linear_value_head_dim",
                                                          "linear_num_key_heads", "linear_num_value_heads"};

/// Sets layer_types if the file lacks it: every fourth layer has full attention, the others linear attention. In a
/// model with fewer than four layers, the last one has full attention.
void complete_layers(ConfigReader& in) {
  constexpr std::int64_t kInterval = 4;
  const bool given = in.has("layer_types") && !in.find("layer_types")->is_null();
  complete_layer_types(in, nullptr, kInterval, LayerType::linear_attention);
  io::Json types = *in.find("layer_types");
  if (given || types.empty() || types.size() >= static_cast<std::size_t>(kInterval)) return;
  types.back() = word_of(LayerType::full_attention);
  in.put("layer_types", types);
}

void complete_olmo_hybrid(ConfigReader& in) {
  constexpr double kKeyShare = 0.75;
  complete_layers(in);
  complete_heads(in);
  if (in.get("rope_theta").is_null()) {  // null disables RoPE
    in.put("rope_theta", 1e4);
    in.put("partial_rotary_factor", 0.0);
  }
  const std::int64_t heads = integer_or(in, "num_attention_heads", 0), dim = integer_or(in, "hidden_size", 0);
  const std::int64_t key_heads = integer_or(in, "linear_num_key_heads", heads);
  in.put_default("linear_num_key_heads", heads);
  in.put_default("linear_num_value_heads", heads);
  if (key_heads > 0) {
    const auto key_dim =
        static_cast<std::int64_t>(kKeyShare * static_cast<double>(dim) / static_cast<double>(key_heads));
    in.put_default("linear_key_head_dim", key_dim);
  }
  in.put_default("linear_value_head_dim", 2 * integer_or(in, "linear_key_head_dim", 1));
  in.put("linear_beta_scale", boolean_or(in, "linear_allow_neg_eigval", true) ? 2.0 : 1.0);
  in.put("linear_norm_eps", 1e-5);
  for (const char* key : {"linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max",
                          "linear_dt_init_floor", "linear_use_gate"}) {
    in.ignore(key);
  }
}

}  // namespace

const Family kOlmoHybrid{.name = "olmo_hybrid",
                         .model_class = "OlmoHybridForCausalLM",
                         .architecture = {},
                         .features = Features::own,
                         .defaults = R"({"vocab_size": 100352, "hidden_size": 3840, "intermediate_size": 11008,
                                         "num_hidden_layers": 32, "num_attention_heads": 30,
                                         "max_position_embeddings": 65536, "rms_norm_eps": 1e-6,
                                         "tie_word_embeddings": false, "linear_conv_kernel_dim": 4})",
                         .shared_keys = kOlmoHybridKeys,
                         .complete = complete_olmo_hybrid,
                         .finish =
                             [](ConfigReader& in, FileConfig& out) {
                               out.config.norm_placement = NormPlacement::post;
                               out.config.qk_norm = QkNorm::all_heads;
                               read_attention_bias(in, out.config);
                             },
                         .finish_gguf = nullptr,
                         .renames = kOfAttention,
                         .locate = locate_olmo_hybrid};

}  // namespace headgate::models
