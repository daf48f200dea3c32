// SPDX-License-Identifier: Apache-2.0
#include "models/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

namespace headgate::models {

namespace {

using layers::GateBias;
using layers::GateSource;
using layers::OutputControl;
using layers::SinkKind;

class Builder {
 public:
  void add(std::string name, std::vector<std::int64_t> shape, ParameterKind kind) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    entries.push_back({std::move(name), std::move(shape), kind, total, count});
    total += count;
  }

  std::vector<Parameter> entries;
  std::int64_t total = 0;
};

void add_attention(Builder& builder, const std::string& prefix, const DecoderConfig& c) {
  const auto& gate = c.gate;
  const layers::GateLogits logits = layers::gate_logits(gate, c.dim, c.heads, c.kv_heads, c.head_dim);
  const bool projected = has_gate(gate) && gate.source == GateSource::input;
  builder.add(prefix + "q_proj.weight", {c.heads * c.head_dim, c.dim}, ParameterKind::matrix);
  if (projected) builder.add(prefix + "gate_proj.weight", {logits.count(), c.dim}, ParameterKind::gate_matrix);
  builder.add(prefix + "k_proj.weight", {c.kv_heads * c.head_dim, c.dim}, ParameterKind::matrix);
  builder.add(prefix + "v_proj.weight", {c.kv_heads * c.head_dim, c.dim}, ParameterKind::matrix);
  if (c.qk_norm == QkNorm::per_head) {
    builder.add(prefix + "q_norm.weight", {c.head_dim}, ParameterKind::norm);
    builder.add(prefix + "k_norm.weight", {c.head_dim}, ParameterKind::norm);
  }
  if (gate.bias == GateBias::learned) {
    builder.add(prefix + "gate_proj.bias", {logits.count()}, ParameterKind::gate_bias);
  }
  if (has_gate(gate) && !projected) {
    builder.add(prefix + "gate", {logits.heads, logits.features}, ParameterKind::gate_parameter);
  }
  if (gate.sinks == SinkKind::learned) builder.add(prefix + "sinks", {c.heads}, ParameterKind::sinks);
  if (gate.output_control == OutputControl::head_rmsnorm) {
    builder.add(prefix + "head_norm.weight", {c.head_dim}, ParameterKind::norm);
  }
  builder.add(prefix + "o_proj.weight", {c.dim, c.heads * c.head_dim}, ParameterKind::matrix);
}

void add_layer(Builder& builder, std::int64_t layer, const DecoderConfig& c) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const bool sandwich = c.norm_placement == NormPlacement::sandwich;
  builder.add(prefix + "input_layernorm.weight", {c.dim}, ParameterKind::norm);
  add_attention(builder, prefix + "self_attn.", c);
  if (sandwich) builder.add(prefix + "attention_output_layernorm.weight", {c.dim}, ParameterKind::norm);
  builder.add(prefix + "post_attention_layernorm.weight", {c.dim}, ParameterKind::norm);
  builder.add(prefix + "mlp.gate_proj.weight", {c.ffn, c.dim}, ParameterKind::matrix);
  builder.add(prefix + "mlp.up_proj.weight", {c.ffn, c.dim}, ParameterKind::matrix);
  builder.add(prefix + "mlp.down_proj.weight", {c.dim, c.ffn}, ParameterKind::matrix);
  if (sandwich) builder.add(prefix + "mlp_output_layernorm.weight", {c.dim}, ParameterKind::norm);
}

/// The random numbers of one tensor, chosen by seed and name.
std::mt19937_64 stream_of(std::uint64_t seed, const std::string& name) {
  std::vector<std::uint32_t> words{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (const char letter : name) words.push_back(static_cast<unsigned char>(letter));
  std::seed_seq sequence(words.begin(), words.end());
  return std::mt19937_64(sequence);
}

template <typename T>
void fill_normal(T* values, std::int64_t count, double std, std::mt19937_64 random) {
  std::normal_distribution<double> normal;
  for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<T>(std * normal(random));
}

}  // namespace

ParameterTable::ParameterTable(const DecoderConfig& config) {
  validate(config);
  Builder builder;
  builder.add("model.embed_tokens.weight", {config.vocab, config.dim}, ParameterKind::embedding);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) add_layer(builder, layer, config);
  builder.add("model.norm.weight", {config.dim}, ParameterKind::norm);
  if (config.embeddings == Embeddings::separate) {
    builder.add("lm_head.weight", {config.vocab, config.dim}, ParameterKind::embedding);
  }
  entries_ = std::move(builder.entries);
  total_ = builder.total;
}

const Parameter* ParameterTable::find(std::string_view name) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [name](const Parameter& p) { return p.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

template <typename T>
void initialise(T* values, const ParameterTable& table, const DecoderConfig& config, std::uint64_t seed) {
  const T norm = config.norm == layers::NormKind::plain ? T{1} : T{0};
  for (const Parameter& parameter : table.entries()) {
    T* tensor = values + parameter.offset;
    const auto draw = [&](double std) { fill_normal(tensor, parameter.count, std, stream_of(seed, parameter.name)); };
    switch (parameter.kind) {
      case ParameterKind::embedding:
      case ParameterKind::matrix: draw(config.init_std); break;
      case ParameterKind::gate_matrix: draw(config.gate.init_std); break;
      case ParameterKind::norm: std::fill_n(tensor, parameter.count, norm); break;
      case ParameterKind::gate_bias: std::fill_n(tensor, parameter.count, static_cast<T>(config.gate.bias_init)); break;
      case ParameterKind::gate_parameter:
      case ParameterKind::sinks: std::fill_n(tensor, parameter.count, T{0}); break;
    }
  }
}

template void initialise(float*, const ParameterTable&, const DecoderConfig&, std::uint64_t);
template void initialise(double*, const ParameterTable&, const DecoderConfig&, std::uint64_t);

}  // namespace headgate::models
