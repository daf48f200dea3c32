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

constexpr std::string_view kFactors = "rope_freqs.weight";  // divisors of the angles

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
constexpr std::array<TensorName, 14> kOtherLayerNames{
    {{"self_attn.gate_proj.weight", "attn_gate.weight"},
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

/// Locates what llama.cpp stores in another way than under another name: for each kind of layer what is not above.
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

/// Returns the number of rows of the embedding tensor.
std::int64_t vocabulary(const io::GgufFile& file) {
  const io::GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr) fail(file.path(), "tensor 'token_embd.weight' is missing");
  return embedding->shape.front();
}

/// Recognises Llama 3's scaling, which is stored as divisors of the angles. All such models have the same parameters.
void read_factors(const io::GgufFile& file, DecoderConfig& config) {
  const io::GgufTensor* tensor = file.find(kFactors);
  if (tensor == nullptr) return;
  if (tensor->shape != std::vector<std::int64_t>{config.head_dim / 2}) {
    fail(file.path(), "tensor '{}' does not have one number for each pair of {} features", kFactors, config.head_dim);
  }
  std::vector<float> factors(static_cast<std::size_t>(tensor->numel()));
  file.read_f32(*tensor, factors.data());
  config.rope_factor = factors.empty() ? 1.0 : static_cast<double>(factors.back());
  if (config.rope_factor < 1.0) fail(file.path(), "tensor '{}' ends with {}, below 1", kFactors, config.rope_factor);
  if (config.rope_scaling != layers::RopeScalingKind::none) {
    fail(file.path(), "tensor '{}' together with another scaling of RoPE is not supported", kFactors);
  }
  config.rope_scaling = layers::RopeScalingKind::llama3;
  const layers::RopeScaling scaling{config.rope_scaling, config.rope_factor, config.rope_low_freq_factor,
                                    config.rope_high_freq_factor, config.rope_original_seq_len};
  const auto plain = layers::rope_frequencies(config.head_dim, config.rope_base);
  const auto scaled = layers::rope_frequencies(config.head_dim, config.rope_base, scaling);
  for (std::size_t i = 0; i < factors.size(); ++i) {
    constexpr double kRounding = 1e-5;  // relative error of factors computed in f32
    const double expected = plain[i] / scaled[i], found = static_cast<double>(factors[i]);
    if (std::abs(found - expected) <= kRounding * expected) continue;
    fail(file.path(), "tensor '{}' is not Llama 3's scaling of RoPE: element {} is {}, not {}", kFactors, i, found,
         expected);
  }
}

void read_rope(const io::GgufFile& file, GgufValues& in, DecoderConfig& config) {
  config.rope_base = in.number("rope.freq_base", 10000.0);
  config.rope_fraction =
      static_cast<double>(in.integer("rope.dimension_count", config.head_dim)) / static_cast<double>(config.head_dim);
  const std::string type = in.string("rope.scaling.type", "none");
  config.rope_original_seq_len = in.integer("rope.scaling.original_context_length", config.rope_original_seq_len);
  in.has("rope.scaling.finetuned");
  const double factor = in.number("rope.scaling.factor", 1.0);
  if (type == "linear") {
    config.rope_scaling = layers::RopeScalingKind::linear;
    config.rope_factor = factor;
  } else if (type != "none") {
    fail(file.path(), "{}.rope.scaling.type is '{}'; only none and linear are supported",
         file.string("general.architecture"), io::printable(type));
  }
  read_factors(file, config);
}

DecoderConfig read_values(const io::GgufFile& file, const Family& family) {
  GgufValues in(file, family.architecture);
  DecoderConfig config;
  config.vocab = vocabulary(file);
  in.has("vocab_size");
  config.dim = in.integer("embedding_length");
  config.layers = in.integer("block_count");
  config.heads = in.integer("attention.head_count");
  config.kv_heads = in.integer("attention.head_count_kv", config.heads);
  config.head_dim = in.integer("attention.key_length", config.heads > 0 ? config.dim / config.heads : 0);
  in.require_value("attention.value_length", config.head_dim);
  config.ffn = in.integer("feed_forward_length", in.integer("expert_feed_forward_length", 1));
  config.seq_len = in.integer("context_length");
  config.norm_eps = in.number("attention.layer_norm_rms_epsilon");
  config.embeddings = file.find("output.weight") == nullptr ? Embeddings::tied : Embeddings::separate;
  if (family.features == Features::of_qwen3) {
    in.require_value("expert_count", 0);
    in.require_value("expert_used_count", 0);
  }
  if (&family == &kLlama) config.window = in.integer("attention.sliding_window", 0);
  // Checks sizes before they are multiplied and tables of angles are allocated.
  validate(config, NamesIn::file);
  read_rope(file, in, config);
  family.finish_gguf(in, config);
  in.finish();
  return config;
}

}  // namespace

const Family& family_of_gguf(const io::GgufFile& file) {
  const std::string architecture = file.string("general.architecture");
  for (const Family* family : families()) {
    if (!family->architecture.empty() && family->architecture == architecture) return *family;
  }
  fail(file.path(), "general.architecture is '{}', not one of {}", io::printable(architecture), gguf_architectures());
}

DecoderConfig config_of_gguf(const io::GgufFile& file, const Family& family) {
  try {
    DecoderConfig config = read_values(file, family);
    validate(config, NamesIn::file);
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
