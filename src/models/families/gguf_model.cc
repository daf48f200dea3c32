// SPDX-License-Identifier: Apache-2.0
#include "models/families/gguf_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "headgate/error.hpp"
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

/// Reads the values NAME.… of an architecture, and refuses those that nobody asked for.
class Values {
 public:
  Values(const io::GgufFile& file, const Family& family)
      : file_(file), prefix_(std::string(family.architecture) + ".") {}

  bool has(std::string_view name) {
    known_.push_back(prefix_ + std::string(name));
    return file_.has(known_.back());
  }
  std::int64_t integer(std::string_view name) {
    has(name);
    return file_.integer(known_.back());
  }
  std::int64_t integer(std::string_view name, std::int64_t otherwise) { return has(name) ? integer(name) : otherwise; }
  double number(std::string_view name) {
    has(name);
    return file_.number(known_.back());
  }
  double number(std::string_view name, double otherwise) { return has(name) ? number(name) : otherwise; }
  std::string string(std::string_view name, const std::string& otherwise) {
    return has(name) ? file_.string(known_.back()) : otherwise;
  }
  /// Throws unless the integer is missing or has this value.
  void require_value(std::string_view name, std::int64_t value) {
    const std::int64_t found = integer(name, value);
    if (found != value) fail(file_.path(), "{}{} is {}; only {} is supported", prefix_, name, found, value);
  }
  void finish() const {
    for (const auto& [key, value] : file_.values()) {
      const bool ours = key.starts_with(prefix_);
      if (ours && std::find(known_.begin(), known_.end(), key) == known_.end()) {
        fail(file_.path(), "{} is not supported", io::printable(key, 80));
      }
    }
  }

 private:
  const io::GgufFile& file_;
  std::string prefix_;
  std::vector<std::string> known_;
};

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

void read_rope(const io::GgufFile& file, Values& in, DecoderConfig& config) {
  config.rope_base = in.number("rope.freq_base", 10000.0);
  in.require_value("rope.dimension_count", config.head_dim);
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
  Values in(file, family);
  DecoderConfig config;
  config.vocab = vocabulary(file);
  in.has("vocab_size");
  config.dim = in.integer("embedding_length");
  config.layers = in.integer("block_count");
  config.heads = in.integer("attention.head_count");
  config.kv_heads = in.integer("attention.head_count_kv", config.heads);
  config.head_dim = in.integer("attention.key_length", config.heads > 0 ? config.dim / config.heads : 0);
  in.require_value("attention.value_length", config.head_dim);
  config.ffn = in.integer("feed_forward_length");
  config.seq_len = in.integer("context_length");
  config.norm_eps = in.number("attention.layer_norm_rms_epsilon");
  config.embeddings = file.find("output.weight") == nullptr ? Embeddings::tied : Embeddings::separate;
  in.require_value("expert_count", 0);
  in.require_value("expert_used_count", 0);
  if (&family == &kLlama) config.window = in.integer("attention.sliding_window", 0);
  // Checks sizes before they are multiplied and tables of angles are allocated.
  validate(config, NamesIn::file);
  read_rope(file, in, config);
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
    family.finish_gguf(file, config);
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
  TensorLocation out = whole_tensor(parameter, parameter.name);
  for (const TensorName& row : kLayerNames) {
    if (rest == row.ours) out.pieces.front().tensor = fmt::format("blk.{}.{}", layer, row.theirs);
  }
  const bool turned = rest == "self_attn.q_proj.weight" || rest == "self_attn.k_proj.weight";
  if (!turned || family.gguf_pairs == RopePairs::halves) return out;
  const std::int64_t D = config.head_dim, half = D / 2;
  for (std::int64_t row = 0; row < parameter.shape[0]; ++row) {
    const std::int64_t feature = row % D, pair = feature % half;
    out.pieces.front().rows.push_back(row - feature + 2 * pair + feature / half);
  }
  return out;
}

bool is_extra_tensor_in_gguf(const std::string& name, const DecoderConfig&) { return name == kFactors; }

}  // namespace headgate::models
