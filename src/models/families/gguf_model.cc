// SPDX-License-Identifier: Apache-2.0
#include "models/families/gguf_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "headgate/error.hpp"
#include "models/families/gguf_values.hpp"
#include "models/io/input_file.hpp"
#include "models/layers/rope.hpp"

namespace headgate::models {
namespace {

using io::fail;

constexpr std::string_view kFactors = "rope_freqs.weight";  // divisors of RoPE's angles, one per feature pair

struct TensorName {
  std::string_view ours, theirs;
};
constexpr std::array<TensorName, 3> kOuterNames{{{"model.embed_tokens.weight", "token_embd.weight"},
                                                 {"model.norm.weight", "output_norm.weight"},
                                                 {"lm_head.weight", "output.weight"}}};
constexpr std::array<TensorName, 14> kLayerNames{{{"input_layernorm.weight", "attn_norm.weight"},
                                                  {"self_attn.q_proj.weight", "attn_q.weight"},
                                                  {"self_attn.k_proj.weight", "attn_k.weight"},
                                                  {"self_attn.v_proj.weight", "attn_v.weight"},
                                                  {"self_attn.q_proj.bias", "attn_q.bias"},
                                                  {"self_attn.k_proj.bias", "attn_k.bias"},
                                                  {"self_attn.v_proj.bias", "attn_v.bias"},
                                                  {"self_attn.q_norm.weight", "attn_q_norm.weight"},
                                                  {"self_attn.k_norm.weight", "attn_k_norm.weight"},
                                                  {"self_attn.o_proj.weight", "attn_output.weight"},
                                                  {"post_attention_layernorm.weight", "ffn_norm.weight"},
                                                  {"mlp.gate_proj.weight", "ffn_gate.weight"},
                                                  {"mlp.up_proj.weight", "ffn_up.weight"},
                                                  {"mlp.down_proj.weight", "ffn_down.weight"}}};
constexpr std::array<TensorName, 17> kOtherLayerNames{
    {{"self_attn.gate_proj.weight", "attn_gate.weight"},
     {"self_attn.sinks", "attn_sinks.weight"},
     {"self_attn.o_proj.bias", "attn_output.bias"},
     {"mlp.gate.bias", "ffn_gate_inp.bias"},
     {"attention_output_layernorm.weight", "post_attention_norm.weight"},
     {"mlp_output_layernorm.weight", "post_ffw_norm.weight"},
     {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight"},
     {"linear_attn.in_proj_z.weight", "attn_gate.weight"},
     {"linear_attn.in_proj_b.weight", "ssm_beta.weight"},
     {"linear_attn.in_proj_a.weight", "ssm_alpha.weight"},
     {"linear_attn.conv1d.weight", "ssm_conv1d.weight"},
     {"linear_attn.norm.weight", "ssm_norm.weight"},
     {"linear_attn.out_proj.weight", "ssm_out.weight"},
     {"mlp.gate.weight", "ffn_gate_inp.weight"},
     {"mlp.expert_bias", "exp_probs_b.bias"},
     {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
     {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"}}};

/// Locates a layer's parameter that kLayerNames and kOtherLayerNames do not list. Most of these parameters have another
/// form in llama.cpp's files than in this library. Returns false for parameters that are not handled here.
bool stored_otherwise(TensorLocation& out, const Parameter& parameter, std::string_view rest, const std::string& block,
                      const DecoderConfig& config) {
  const Experts& e = config.experts;
  if (rest == "linear_attn.dt_bias") {
    out = whole_tensor(parameter, block + "ssm_dt.bias");
  } else if (rest == "linear_attn.A_log") {
    out = whole_tensor(parameter, block + "ssm_a");
    out.form = StoredForm::negative_exponential;
  } else if (rest == "mlp.experts.gate_up_proj") {
    out = interleaved_experts(config, block + "ffn_gate_exps.weight", block + "ffn_up_exps.weight");
  } else if (rest == "mlp.experts.gate_up_proj_bias") {
    out = interleaved_experts(config, block + "ffn_gate_exps.bias", block + "ffn_up_exps.bias");
    for (TensorPiece& piece : out.pieces) piece.shape.pop_back();
  } else if (rest == "mlp.experts.down_proj_bias") {
    out.pieces.push_back({block + "ffn_down_exps.bias", {e.count, config.dim}, {}});
  } else if (rest == "mlp.experts.down_proj") {
    out.pieces.push_back({block + "ffn_down_exps.weight", {e.count, config.dim, e.ffn}, {}});
  } else if (rest == "mlp.shared_expert.down_proj.weight") {
    out = whole_tensor(parameter, block + "ffn_down_shexp.weight");
  } else if (rest == "mlp.shared_expert_gate.weight") {
    out.pieces.push_back({block + "ffn_gate_inp_shexp.weight", {config.dim}, {}});
  } else {
    return false;
  }
  return true;
}

/// Maps a config field, by its name in the code, to its key in GGUF files.
struct FieldName {
  std::string_view field, key;
};
constexpr std::array<FieldName, 31> kFieldNames{
    {{"dim", "embedding_length"},
     {"layers", "block_count"},
     {"heads", "attention.head_count"},
     {"kv_heads", "attention.head_count_kv"},
     {"head_dim", "attention.key_length"},
     {"ffn", "feed_forward_length"},
     {"seq_len", "context_length"},
     {"norm_eps", "attention.layer_norm_rms_epsilon"},
     {"window", "attention.sliding_window"},
     {"layer_types", "attention.sliding_window_pattern"},
     {"rope_base", "rope.freq_base"},
     {"rope_fraction", "rope.dimension_count / attention.key_length"},
     {"rope_scaling", "rope.scaling.type"},
     {"rope_factor", "rope.scaling.factor"},
     {"rope_low_freq_factor", "rope.scaling.yarn_beta_slow"},
     {"rope_high_freq_factor", "rope.scaling.yarn_beta_fast"},
     {"rope_original_seq_len", "rope.scaling.original_context_length"},
     {"sliding_heads", "attention.head_count"},
     {"sliding_rope_base", "rope.freq_base_swa"},
     {"sliding_rope_fraction", "rope.dimension_count_swa / attention.key_length"},
     {"linear_key_heads", "ssm.group_count"},
     {"linear_value_heads", "ssm.time_step_rank"},
     {"linear_key_dim", "ssm.state_size"},
     {"linear_value_dim", "ssm.inner_size / ssm.time_step_rank"},
     {"linear_kernel", "ssm.conv_kernel"},
     {"experts", "expert_count"},
     {"experts_active", "expert_used_count"},
     {"expert_ffn", "expert_feed_forward_length"},
     {"shared_expert_ffn", "expert_shared_feed_forward_length"},
     {"dense_layers", "leading_dense_block_count"},
     {"expert_scale", "expert_weights_scale"}}};

/// Throws Error if the config is invalid. Messages name the file's keys.
void validate_values(const DecoderConfig& config, const Family& family) {
  validate(config, [&family](const FieldText& row) {
    if (row.name == "vocab") return std::string("the number of rows of token_embd.weight");
    for (const FieldName& name : kFieldNames) {
      if (row.name == name.field) return fmt::format("{}.{}", family.architecture, name.key);
    }
    return std::string(row.key);
  });
}

/// Returns the size of the vocabulary, which is the number of rows of token_embd.weight.
std::int64_t vocabulary(const io::GgufFile& file) {
  const io::GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr) fail(file.path(), "tensor 'token_embd.weight' is missing");
  return embedding->shape.front();
}

/// Parameters of Llama 3's RoPE scaling in released models. A GGUF file does not store them, only the resulting
/// divisors of RoPE's frequencies.
struct ScalingParameters {
  double low, high;
  std::int64_t original_seq_len;
};
// Holds the parameters of Llama 3, then those of Step-3.5.
constexpr std::array<ScalingParameters, 2> kScalings{{{1.0, 4.0, 8192}, {1.0, 32.0, 131072}}};

/// Compares `factors`, a file's divisors of RoPE's frequencies, with the divisors that a scaling of RoPE gives. `plain`
/// holds the frequencies without this scaling, `scaled` the frequencies with it. The scaling gives plain[i] / scaled[i]
/// as divisor i, or 1 if i ≥ plain.size(). Returns the index of the first divisor that differs, or factors.size() if
/// none differs.
std::size_t first_other_factor(const std::vector<float>& factors, const std::vector<double>& plain,
                               const std::vector<double>& scaled) {
  constexpr double kRounding = 1e-5;  // largest relative rounding error of divisors stored in f32
  std::size_t i = 0;
  while (i < factors.size()) {
    const double expected = i < plain.size() ? plain[i] / scaled[i] : 1.0;
    if (!(std::abs(static_cast<double>(factors[i]) - expected) <= kRounding * expected)) break;
    ++i;
  }
  return i;
}

/// Reads Llama 3's RoPE scaling from the divisors in rope_freqs.weight. There is one divisor per feature pair. Divisors
/// of pairs that full attention does not rotate must be 1.
void read_factors(const io::GgufFile& file, DecoderConfig& config) {
  const io::GgufTensor* tensor = file.find(kFactors);
  if (tensor == nullptr) return;
  if (tensor->shape != std::vector<std::int64_t>{config.head_dim / 2}) {
    fail(file.path(), "tensor '{}' does not have one number for each pair of {} features", kFactors, config.head_dim);
  }
  const std::int64_t R = rotary_dim(config.rope_fraction, config.head_dim);
  if (R == 0) fail(file.path(), "tensor '{}' of a model without RoPE", kFactors);
  std::vector<float> factors(static_cast<std::size_t>(tensor->numel()));
  file.read_f32(*tensor, factors.data());
  const auto last = static_cast<std::size_t>(R / 2 - 1);
  config.rope_factor = static_cast<double>(factors[last]);
  if (config.rope_factor < 1.0) {
    fail(file.path(), "tensor '{}': element {} is {}, below 1", kFactors, last, config.rope_factor);
  }
  if (config.rope_scaling != layers::RopeScalingKind::none) {
    fail(file.path(), "tensor '{}' together with another scaling of RoPE is not supported", kFactors);
  }
  config.rope_scaling = layers::RopeScalingKind::llama3;
  const auto plain = layers::rope_frequencies(R, config.rope_base);
  std::size_t other = 0;
  for (const auto& [low, high, original_seq_len] : kScalings) {
    config.rope_low_freq_factor = low;
    config.rope_high_freq_factor = high;
    config.rope_original_seq_len = original_seq_len;
    const auto scaled = layers::rope_frequencies(
        R, config.rope_base, {config.rope_scaling, config.rope_factor, low, high, original_seq_len});
    const std::size_t found = first_other_factor(factors, plain, scaled);
    if (found == factors.size()) return;
    other = std::max(other, found);
  }
  fail(file.path(), "tensor '{}' is not Llama 3's scaling of RoPE: element {} is {}", kFactors, other, factors[other]);
}

/// Reads RoPE's keys as llama.cpp does. A factor without a type means linear scaling; a factor of 0 means no scaling.
void read_rope(const io::GgufFile& file, const Family& family, GgufValues& in, DecoderConfig& config) {
  config.rope_base = in.number("rope.freq_base", 10000.0);
  if (family.gguf_pairs == RopePairs::neighbours) in.require_value("rope.dimension_count", config.head_dim);
  config.rope_fraction = rope_fraction_of(in.even_integer("rope.dimension_count", config.head_dim), config.head_dim);
  const std::string type = in.string("rope.scaling.type", "linear");
  constexpr const char* kFormerName = "rope.scale_linear";
  double factor = in.number("rope.scaling.factor", in.number(kFormerName, 1.0));
  if (factor == 0.0) factor = 1.0;
  if (type == "linear") {
    if (factor == 1.0) return;
    config.rope_scaling = layers::RopeScalingKind::linear;
    config.rope_factor = factor;
  } else if (type == "yarn") {
    config.rope_scaling = layers::RopeScalingKind::yarn;
    config.rope_factor = factor;
    config.rope_original_seq_len = in.integer("rope.scaling.original_context_length", config.seq_len);
    config.rope_high_freq_factor = in.number("rope.scaling.yarn_beta_fast", 32.0);
    config.rope_low_freq_factor = in.number("rope.scaling.yarn_beta_slow", 1.0);
  } else if (type != "none") {
    fail(file.path(), "{}.rope.scaling.type is '{}'; only none, linear and yarn are supported",
         file.string("general.architecture"), io::printable(type));
  }
}

/// Throws if RoPE is scaled and sliding-window layers have another RoPE base. In these layers, llama.cpp would scale
/// RoPE too, but this library would not. Gemma 3 is accepted, because llama.cpp does not scale these layers there.
void check_scaled_windows(const io::GgufFile& file, const Family& family, const DecoderConfig& config) {
  const bool own_base = has_layer(config, LayerType::sliding_attention) && config.sliding.rope_base > 0.0;
  if (config.rope_scaling == layers::RopeScalingKind::none || !own_base || &family == &kGemma3) return;
  fail(file.path(), "{}.rope.scaling.factor is {}; scaled RoPE of layers with a window is not supported",
       family.architecture, config.rope_factor);
}

/// Throws if the file's lists `heads` and `kv_heads` differ from `config` in some layer. Does not check lists with
/// fewer than two elements. Ignores elements after the last layer, which describe multi-token-prediction (MTP) layers.
void check_heads(const io::GgufFile& file, const DecoderConfig& config, const std::vector<std::int64_t>& heads,
                 const std::vector<std::int64_t>& kv_heads) {
  const auto check = [&](const char* key, const std::vector<std::int64_t>& list, std::int64_t layer,
                         std::int64_t expected) {
    if (list.size() < 2) return;
    const std::int64_t found = layer < std::ssize(list) ? list[static_cast<std::size_t>(layer)] : 0;
    if (found == expected) return;
    fail(file.path(), "{}.attention.{} is {} in layer {}; only {} is supported there",
         file.string("general.architecture"), key, found, layer, expected);
  };
  for (std::int64_t i = 0; i < config.layers; ++i) {
    check("head_count", heads, i, layer_config(config, i).heads);
    check("head_count_kv", kv_heads, i, config.kv_heads);
  }
}

DecoderConfig read_values(const io::GgufFile& file, const Family& family) {
  GgufValues in(file, family.architecture);
  DecoderConfig config;
  config.vocab = vocabulary(file);
  in.has("vocab_size");
  config.dim = in.integer("embedding_length");
  config.layers = in.integer("block_count");
  const std::vector<std::int64_t> heads = in.integers("attention.head_count");
  if (heads.empty()) fail(file.path(), "{}.attention.head_count is missing", family.architecture);
  const std::vector<std::int64_t> kv_heads = in.integers("attention.head_count_kv");
  config.heads = heads.front();
  config.kv_heads = kv_heads.empty() ? config.heads : kv_heads.front();
  config.head_dim = in.integer("attention.key_length", config.heads > 0 ? config.dim / config.heads : 0);
  in.require_value("attention.value_length", config.head_dim);
  const char* const ffn = "feed_forward_length";
  config.ffn = in.has(ffn) ? in.integer(ffn) : in.integer("expert_feed_forward_length", 1);
  config.seq_len = in.integer("context_length");
  config.norm_eps = in.number("attention.layer_norm_rms_epsilon");
  config.embeddings = file.find("output.weight") == nullptr ? Embeddings::tied : Embeddings::separate;
  if (family.features == Features::of_qwen3) {
    in.require_value("expert_count", 0);
    in.require_value("expert_used_count", 0);
  }
  if (&family == &kLlama) config.window = in.integer("attention.sliding_window", 0);
  // Validates sizes before they are multiplied and before tables of angles are allocated.
  validate_values(config, family);
  read_rope(file, family, in, config);
  family.finish_gguf(in, config);
  in.finish();
  validate_values(config, family);
  check_scaled_windows(file, family, config);
  check_heads(file, config, heads, kv_heads);
  read_factors(file, config);
  return config;
}

}  // namespace

const Family& family_of_gguf(const io::GgufFile& file) {
  constexpr const char* kType = "general.type";
  const std::string type = file.has(kType) ? file.string(kType) : "model";
  if (type != "model") {
    fail(file.path(), "{} is '{}'; only files of type 'model' are read", kType, io::printable(type));
  }
  const std::string architecture = file.string("general.architecture");
  for (const Family* family : families()) {
    if (!family->architecture.empty() && family->architecture == architecture) return *family;
  }
  fail(file.path(), "general.architecture is '{}', not one of {}", io::printable(architecture), gguf_architectures());
}

DecoderConfig config_of_gguf(const io::GgufFile& file, const Family& family) {
  try {
    DecoderConfig config = read_values(file, family);
    validate_values(config, family);
    return config;
  } catch (const Error& error) {
    fail(file.path(), "{}", error.what());
  }
}

TensorLocation stored_in_gguf(const Parameter& parameter, const DecoderConfig& config, const Family& family) {
  std::string_view layer, rest;
  if (!split_layer_name(parameter.name, layer, rest)) {
    for (const TensorName& row : kOuterNames) {
      if (parameter.name == row.ours) return whole_tensor(parameter, std::string(row.theirs));
    }
    return whole_tensor(parameter, parameter.name);
  }
  const std::string block = fmt::format("blk.{}.", layer);
  TensorLocation out;
  if (!stored_otherwise(out, parameter, rest, block, config)) {
    std::string name = parameter.name;
    for (const TensorName& row : kOtherLayerNames) {
      if (rest == row.ours) name = block + std::string(row.theirs);
    }
    for (const TensorName& row : kLayerNames) {
      if (rest == row.ours) name = block + std::string(row.theirs);
    }
    out = whole_tensor(parameter, name);
  }
  if (family.locate_gguf != nullptr) family.locate_gguf(out, parameter, rest, block, config);
  const bool turned = rest == "self_attn.q_proj.weight" || rest == "self_attn.k_proj.weight";
  if (!turned || family.gguf_pairs == RopePairs::halves) return out;
  const std::int64_t D = config.head_dim, half = D / 2;
  for (std::int64_t row = 0; row < parameter.shape[0]; ++row) {
    const std::int64_t feature = row % D, pair = feature % half;
    out.pieces.front().rows.push_back(row - feature + 2 * pair + feature / half);
  }
  return out;
}

bool is_extra_tensor_in_gguf(const std::string& name, const FileConfig& file) {
  return name == kFactors || is_of_further_layer(name, "blk.", file);
}

std::int64_t further_layers_of_gguf(const io::GgufFile& file, const DecoderConfig& config) {
  return file.integer(file.string("general.architecture") + ".block_count") - config.layers;
}

}  // namespace headgate::models
