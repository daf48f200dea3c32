// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "library/core/gate_functions.hpp"
#include "library/core/random.hpp"
#include "models/decoder/decoder.hpp"

// Makes models small enough for finite differences, with numbers large enough that no term hides in rounding.

namespace headgate::models {

inline DecoderConfig tiny_config() {
  DecoderConfig config;
  config.vocab = 11;
  config.dim = 8;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 6;
  config.ffn = 10;
  config.seq_len = 7;
  return config;
}

/// Mixes layers as Qwen3.5, OLMo-Hybrid, Gemma 3, Trinity and Step do, without experts.
inline std::vector<DecoderConfig> mixed_families() {
  using enum LayerType;
  DecoderConfig qwen = tiny_config();
  qwen.layer_types = {linear_attention, full_attention};
  qwen.linear = {.key_heads = 1, .value_heads = 2, .key_dim = 3, .value_dim = 4, .kernel = 3};
  qwen.gate = layers::parse_gate("g1-elementwise");
  qwen.norm = layers::NormKind::zero_centred;
  qwen.rope_fraction = 0.4;
  qwen.norm_eps = 1e-3;
  DecoderConfig olmo = tiny_config();
  olmo.layer_types = {linear_attention, full_attention};
  olmo.linear = {.key_heads = 2, .value_heads = 2, .key_dim = 2, .value_dim = 4, .kernel = 2, .beta_scale = 2.0};
  olmo.linear.norm_eps = 1e-2;
  olmo.norm_placement = NormPlacement::post;
  olmo.qk_norm = QkNorm::all_heads;
  olmo.rope_fraction = 0.0;
  DecoderConfig gemma = tiny_config();
  gemma.layer_types = {sliding_attention, full_attention};
  gemma.window = 3;
  gemma.sliding.rope_base = 20.0;
  gemma.rope_scaling = layers::RopeScalingKind::linear;
  gemma.rope_factor = 4.0;
  gemma.norm_placement = NormPlacement::sandwich;
  gemma.activation = Activation::gelu_tanh;
  gemma.attention_scale = 0.6;
  gemma.embedding_scale = 1.5;
  DecoderConfig trinity = gemma;
  trinity.activation = Activation::silu;
  trinity.gate = layers::parse_gate("g1-elementwise");
  trinity.rope_scaling = layers::RopeScalingKind::none;
  trinity.rope_fraction = 0.0;
  DecoderConfig step = tiny_config();
  step.layer_types = {full_attention, sliding_attention};
  step.window = 2;
  step.sliding = {.heads = 6, .rope_base = 10.0, .rope_fraction = 0.7};
  step.gate = layers::parse_gate("g1-headwise");
  DecoderConfig long_trinity = trinity;
  long_trinity.rope_scaling = layers::RopeScalingKind::yarn;
  long_trinity.rope_original_seq_len = 8;
  long_trinity.rope_low_freq_factor = 0.3;
  long_trinity.rope_high_freq_factor = 1.0;
  long_trinity.sliding.rope_scaled = Switch::on;
  return {qwen, olmo, gemma, trinity, long_trinity, step};
}

/// Has sinks, YaRN, biases and experts as gpt-oss.
inline DecoderConfig gpt_oss_like() {
  DecoderConfig config = tiny_config();
  config.layer_types = {LayerType::sliding_attention, LayerType::full_attention};
  config.window = 3;
  config.gate.sinks = layers::SinkKind::learned;
  config.qk_norm = QkNorm::none;
  config.qkv_bias = QkvBias::learned;
  config.out_bias = Switch::on;
  config.rope_base = 20.0;
  config.rope_scaling = layers::RopeScalingKind::yarn;
  config.rope_factor = 4.0;
  config.rope_original_seq_len = 8;
  config.rope_low_freq_factor = 0.3;
  config.rope_high_freq_factor = 1.0;
  config.rope_truncate = Switch::off;
  config.experts.count = 4;
  config.experts.active = 2;
  config.experts.ffn = 3;
  config.experts.biases = Switch::on;
  config.experts.activation = ExpertActivation::shifted_swiglu;
  config.experts.limits = {0.3, 0.3};
  return config;
}

/// Has experts as Qwen3-Next, as Step, whose first layer is dense, and as gpt-oss.
inline std::vector<DecoderConfig> expert_families() {
  std::vector<DecoderConfig> out = mixed_families();
  DecoderConfig next = out.front(), step = out.back();
  next.experts.count = 4;
  next.experts.active = 2;
  next.experts.ffn = 3;
  next.experts.shared_ffn = 5;
  next.experts.shared_gate = Switch::on;
  step.experts = next.experts;
  step.experts.router = ExpertRouter::sigmoid;
  step.experts.shared_gate = Switch::off;
  step.experts.scale = 1.5;
  step.experts.dense_layers = 1;
  step.experts.limits = {0.0, 0.3};
  step.experts.shared_limits = {0.0, 0.2};
  DecoderConfig raw = next;
  raw.experts.renormalise = Switch::off;
  return {next, step, raw, gpt_oss_like()};
}

/// Has features of Qwen2, Mistral, Llama 3 and gpt-oss that Qwen3 lacks, some on each side of every limit, and a gate.
inline std::array<DecoderConfig, 3> other_families() {
  DecoderConfig config = tiny_config();
  config.qk_norm = QkNorm::none;
  config.qkv_bias = QkvBias::learned;
  config.window = 3;
  config.rope_base = 20.0;
  config.rope_scaling = layers::RopeScalingKind::llama3;
  config.rope_factor = 4.0;
  config.rope_original_seq_len = 8;  // the three pairs make 1.3, 0.5 and 0.2 rotations in it
  config.rope_low_freq_factor = 0.3;
  config.rope_high_freq_factor = 1.0;
  DecoderConfig gated = config;
  gated.gate = layers::parse_gate("g2-elementwise");
  gated.qk_norm = QkNorm::per_head;
  gated.rope_scaling = layers::RopeScalingKind::linear;
  gated.window = 2;
  DecoderConfig yarn = config;
  yarn.rope_scaling = layers::RopeScalingKind::yarn;
  yarn.rope_attention_factor = 1.3;
  yarn.out_bias = Switch::on;
  yarn.gate = layers::parse_gate("g5-elementwise");
  return {config, gated, yarn};
}

/// Returns all of these: layers of several kinds, experts, other features.
inline std::vector<DecoderConfig> all_families() {
  std::vector<DecoderConfig> out = mixed_families();
  for (const DecoderConfig& config : expert_families()) out.push_back(config);
  for (const DecoderConfig& config : other_families()) out.push_back(config);
  return out;
}

inline constexpr BatchShape kTinyBatch{2, 7};

/// Returns the test name of a gate variant.
inline std::string name_of_variant(const ::testing::TestParamInfo<std::string>& variant) {
  std::string name = variant.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// Returns every gate and control of the paper, by name.
inline std::vector<std::string> all_variants() {
  std::vector<std::string> names{"none", "head_rmsnorm", "output_silu", "learned_sinks", "off_by_one"};
  for (const char* site : {"g1", "g2", "g3", "g4", "g5"}) {
    for (const char* grain : {"headwise", "elementwise", "head_shared"}) {
      if (std::string(site) == "g5" && std::string(grain) == "head_shared") continue;
      for (const char* rest : {"", "-add-silu", "-parameter", "-bias-ns_sigmoid"}) {
        names.push_back(std::string(site) + "-" + grain + rest);
      }
    }
  }
  for (const GateFunction& function : kGateFunctions) {
    for (const char* rest : {"g1-elementwise-", "g1-headwise-add-", "g1-head_shared-", "g2-headwise-"}) {
      names.push_back(rest + std::string(function.word));
    }
  }
  names.push_back("g1-headwise-learned_sinks");
  names.push_back("g1-head_shared-off_by_one");
  names.push_back("output_silu-learned_sinks");
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

/// Draws test data that is the same on every machine.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : random_(seed) {}

  std::uint64_t bits() { return random_.next(); }
  /// Returns a number in [−1, 1).
  double symmetric() { return static_cast<double>(static_cast<std::int64_t>(bits())) * 0x1p-63; }
  std::int32_t token(std::int64_t vocab) {
    return static_cast<std::int32_t>(random_.below(static_cast<std::uint64_t>(vocab)));
  }

 private:
  SplitMix64 random_;
};

/// Holds tokens and the tokens that follow them. The last two targets of every sequence are ignored.
struct TinyBatch {
  std::vector<std::int32_t> tokens, targets;

  TinyBatch(const DecoderConfig& config, BatchShape shape, std::uint64_t seed) {
    Draws draws(seed);
    for (std::int64_t n = 0; n < shape.batch * shape.seq; ++n) {
      tokens.push_back(draws.token(config.vocab));
      targets.push_back(n % shape.seq + 2 < shape.seq ? draws.token(config.vocab) : -1);
    }
  }
};

/// Returns parameters of order 1: gates differ from ½, scores from each other, norms from 1.
inline std::vector<double> large_parameters(const ParameterTable& table, std::uint64_t seed) {
  Draws draws(seed);
  std::vector<double> values;
  for (std::int64_t i = 0; i < table.total(); ++i) values.push_back(0.8 * draws.symmetric());
  for (const Parameter& parameter : table.entries()) {
    if (parameter.kind != ParameterKind::norm && parameter.kind != ParameterKind::plain_norm) continue;
    for (std::int64_t i = 0; i < parameter.count; ++i) values[static_cast<std::size_t>(parameter.offset + i)] += 1.0;
  }
  return values;
}

/// Rounds to f32, so that decoders of either precision get the same parameters.
inline std::vector<double> single_precision(std::vector<double> values) {
  for (double& value : values) value = static_cast<float>(value);
  return values;
}

}  // namespace headgate::models
