// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <string_view>

#include "models/decoder/config_keys.hpp"
#include "models/families/gguf_values.hpp"
#include "models/families/hybrid_layers.hpp"

// Describes gpt-oss:
// - attention without a gate, with a learned sink per query head and with YaRN
// - layers alternately with and without a window
// - biases in all projections
// - experts in MXFP4 with a bounded activation

namespace headgate::models {
namespace {

constexpr double kLimit = 7.0;
constexpr std::array<std::string_view, 2> kGptOssKeys{"layer_types", "num_experts_per_tok"};
constexpr std::int64_t kInterval = 2;  // every second layer has full attention

constexpr std::array kGptOssRenames{TensorRename{"mlp.gate.weight", "mlp.router.weight"},
                                    TensorRename{"mlp.gate.bias", "mlp.router.bias"}};

/// Locates the experts' tensors. They are stored as MXFP4 blocks, or transposed with shape (E,in,out). Rows of gate and
/// up alternate: gate 0, up 0, gate 1, up 1, …
bool locate_gpt_oss(TensorLocation& out, const Parameter& /*parameter*/, std::string_view rest,
                    const std::string& prefix, const FileConfig& file, const LayerConfig& /*layer*/,
                    const ShapeOf& shape_of) {
  if (!rest.starts_with("mlp.experts.")) return false;
  const std::int64_t E = file.config.experts.count, I = file.config.experts.ffn, C = file.config.dim;
  const std::string name = prefix + std::string(rest), blocks = name + "_blocks";
  const bool packed = shape_of && shape_of(blocks) != nullptr;
  if (rest == "mlp.experts.gate_up_proj_bias") {
    out = alternating_experts(E, I, name, {E, 2 * I});
  } else if (rest == "mlp.experts.down_proj_bias") {
    out.pieces.push_back({name, {E, C}, {}});
  } else if (rest == "mlp.experts.gate_up_proj") {
    out = packed ? alternating_experts(E, I, blocks, {E, 2 * I, C}) : alternating_experts(E, I, name, {E, C, 2 * I});
    out.transposed = !packed;
  } else {
    out.pieces.push_back(packed ? TensorPiece{blocks, {E, C, I}, {}} : TensorPiece{name, {E, I, C}, {}});
    out.transposed = !packed;
  }
  return true;
}

/// Throws if quantization_config names a method other than MXFP4. Which tensors are MXFP4 follows from their names.
void check_quantisation(ConfigReader& in) {
  const io::Json* quantisation = in.find("quantization_config");
  if (quantisation == nullptr || quantisation->is_null()) return;
  const bool named = quantisation->is_object() && quantisation->contains("quant_method");
  if (!named || (*quantisation)["quant_method"] != "mxfp4") {
    io::fail(in.path(), "quantization_config has another quant_method than \"mxfp4\", which alone is supported");
  }
}

/// Sets gpt-oss' YaRN parameters if config.json has neither rope_parameters nor rope_scaling.
void complete_rope(ConfigReader& in) {
  if (in.has_rope_object()) return;
  constexpr double kFactor = 32.0, kFast = 32.0;
  constexpr std::int64_t kOriginal = 4096;
  in.put_default("rope_scaling_type", "yarn");
  in.put_default("rope_scaling_factor", kFactor);
  in.put_default("rope_high_freq_factor", kFast);
  in.put_default("rope_low_freq_factor", 1.0);
  in.put_default("rope_original_seq_len", kOriginal);
  in.put_default("rope_truncate", false);
}

void complete_gpt_oss(ConfigReader& in) {
  complete_rope(in);
  complete_heads(in);
  complete_layer_types(in, nullptr, kInterval, LayerType::sliding_attention);
  complete_window(in);
  in.put("num_experts", in.get("num_local_experts"));
  in.put("moe_intermediate_size", in.get("intermediate_size"));
  double limit = kLimit;
  const io::Json* given = in.find("swiglu_limit");
  if (given != nullptr) in.read(limit, "swiglu_limit", *given);
  require_in(kPositive, "swiglu_limit", limit);
  const std::int64_t layers = std::min(integer_or(in, "num_hidden_layers", 0), kMaxLayers);
  in.put("swiglu_limits", io::Json(std::vector<double>(static_cast<std::size_t>(layers), limit)));
  in.require_value("swiglu_alpha", layers::kShiftedGain);
  in.require_value("attention_bias", true);
  in.take("attention_bias");
  check_quantisation(in);
  for (const char* key :
       {"router_aux_loss_coef", "output_router_logits", "initial_context_length", "experts_per_token"}) {
    in.ignore(key);
  }
}

/// Sets the features that all models of the family have.
void set_features(DecoderConfig& config) {
  config.gate.sinks = layers::SinkKind::learned;
  config.qk_norm = QkNorm::none;
  config.qkv_bias = QkvBias::learned;
  config.out_bias = Switch::on;
  config.experts.biases = Switch::on;
  config.experts.activation = ExpertActivation::shifted_swiglu;
}

/// Reads the window and the experts. Sets features that a GGUF file does not contain:
/// - which layers have a window
/// - the limit of activations
/// - YaRN without rounding of its range (truncate = false)
void finish_gpt_oss_gguf(GgufValues& in, DecoderConfig& config) {
  constexpr std::int64_t kSoftmaxOfChosen = 3;
  set_features(config);
  config.embeddings = Embeddings::separate;  // never tied: a file must have output.weight
  config.window = in.integer("attention.sliding_window");
  for (std::int64_t i = 0; i < config.layers; ++i) {
    config.layer_types.push_back((i + 1) % kInterval == 0 ? LayerType::full_attention : LayerType::sliding_attention);
  }
  if (config.rope_scaling == layers::RopeScalingKind::yarn) config.rope_truncate = Switch::off;
  read_experts(in, config.experts);
  config.experts.limits.assign(static_cast<std::size_t>(config.layers), kLimit);
  in.require_value("expert_gating_func", kSoftmaxOfChosen);
}

void locate_gpt_oss_gguf(TensorLocation& out, const Parameter& parameter, std::string_view rest,
                         const std::string& block, const DecoderConfig& /*config*/) {
  if (rest == "post_attention_layernorm.weight") out = whole_tensor(parameter, block + "post_attention_norm.weight");
}

}  // namespace

const Family kGptOss{.name = "gpt_oss",
                     .model_class = "GptOssForCausalLM",
                     .architecture = "gpt-oss",
                     .features = Features::own,
                     .defaults = R"({"num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088,
                                     "hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64,
                                     "num_attention_heads": 64, "num_key_value_heads": 8, "sliding_window": 128,
                                     "tie_word_embeddings": false, "max_position_embeddings": 131072,
                                     "rms_norm_eps": 1e-5, "num_experts_per_tok": 4})",
                     .shared_keys = kGptOssKeys,
                     .rope_base = 150000.0,
                     .complete = complete_gpt_oss,
                     .finish = [](ConfigReader&, FileConfig& out) { set_features(out.config); },
                     .finish_gguf = finish_gpt_oss_gguf,
                     .locate_gguf = locate_gpt_oss_gguf,
                     .renames = kGptOssRenames,
                     .locate = locate_gpt_oss};

}  // namespace headgate::models
