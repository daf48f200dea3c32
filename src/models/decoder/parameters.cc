// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace headgate::models {

namespace {

/// Returns the random engine of one tensor, seeded with `seed` and the tensor's name.
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

/// Fills `tensor` with log(rate) for rates drawn uniformly from [0.01, 16), as in Qwen3.5.
template <typename T>
void draw_decay_rates(T* tensor, const Parameter& parameter, std::uint64_t seed) {
  std::mt19937_64 random = stream_of(seed, parameter.name);
  std::uniform_real_distribution<double> rates(0.01, 16.0);
  for (std::int64_t i = 0; i < parameter.count; ++i) tensor[i] = static_cast<T>(std::log(rates(random)));
}

}  // namespace

ParameterTable::ParameterTable(const DecoderConfig& config) {
  validate(config);
  std::string prefix;
  const auto add = [&](const TensorRow& row, const auto&) {
    if (!row.present) return;
    const auto* sizes = row.shape.sizes.data();
    entries_.push_back(
        {prefix + std::string(row.name), {sizes, sizes + row.shape.rank}, row.kind, total_, row.shape.count()});
    total_ += row.shape.count();
  };
  const auto add_layers = [&] {
    LayerWeights<const float> weights;
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      prefix = fmt::format("model.layers.{}.", layer);
      visit_layer_tensors(add, config, layer_config(config, layer), weights);
    }
    prefix.clear();
  };
  OuterWeights<const float> weights;
  visit_outer_tensors(add, add_layers, config, weights);
}

const Parameter* ParameterTable::find(std::string_view name) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [name](const Parameter& p) { return p.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

ParameterTable ParameterTable::gates() const {
  ParameterTable out;
  for (const Parameter& parameter : entries_) {
    if (!is_gate(parameter.kind)) continue;
    out.entries_.push_back(parameter);
    out.entries_.back().offset = out.total_;
    out.total_ += parameter.count;
  }
  return out;
}

template <typename T>
void initialise(T* values, const ParameterTable& table, const DecoderConfig& config, std::uint64_t seed) {
  const T norm = config.norm == layers::NormKind::plain ? T{1} : T{0};
  for (const Parameter& parameter : table.entries()) {
    T* tensor = values + parameter.offset;
    const auto draw = [&](double std) { fill_normal(tensor, parameter.count, std, stream_of(seed, parameter.name)); };
    switch (parameter.kind) {
      case ParameterKind::embedding:
      case ParameterKind::matrix:
      case ParameterKind::router: draw(config.init_std); break;
      case ParameterKind::gate_matrix: draw(config.gate.init_std); break;
      case ParameterKind::norm: std::fill_n(tensor, parameter.count, norm); break;
      case ParameterKind::plain_norm:
      case ParameterKind::decay_bias: std::fill_n(tensor, parameter.count, T{1}); break;
      case ParameterKind::convolution: draw(1.0 / std::sqrt(3.0 * static_cast<double>(config.linear.kernel))); break;
      case ParameterKind::decay_rate: draw_decay_rates(tensor, parameter, seed); break;
      case ParameterKind::gate_bias: std::fill_n(tensor, parameter.count, static_cast<T>(config.gate.bias_init)); break;
      case ParameterKind::projection_bias:
      case ParameterKind::router_bias:
      case ParameterKind::gate_parameter:
      case ParameterKind::sinks: std::fill_n(tensor, parameter.count, T{0}); break;
    }
  }
}

template void initialise(float*, const ParameterTable&, const DecoderConfig&, std::uint64_t);
template void initialise(double*, const ParameterTable&, const DecoderConfig&, std::uint64_t);

}  // namespace headgate::models
