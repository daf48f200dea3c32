// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/config.hpp"

#include <string>
#include <string_view>

#include "library/core/check.hpp"
#include "models/decoder/parameters.hpp"

namespace headgate::models {

namespace {

constexpr std::int64_t kMaxTotal = std::int64_t{1} << 40;  // parameters: 4 TiB in f32
constexpr std::int64_t kFfnStep = 4;

std::string_view name_of(const FieldText& row, NamesIn names) {
  if (names == NamesIn::code) return row.name;
  return names == NamesIn::file || row.option.empty() ? row.key : row.option;
}

/// Estimates the number of parameters in double. Sizes are at most 2^20 each, so a matrix has at most 2^50 entries, and
/// 1024 layers of a dozen matrices fit in 63 bits.
double estimated_parameters(const DecoderConfig& c) {
  const auto product = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
  const double q_width = product(c.heads, c.head_dim);
  const double layer = 5.0 * q_width * static_cast<double>(c.dim) + product(c.dim, c.dim) + 3.0 * product(c.dim, c.ffn);
  return static_cast<double>(c.layers) * layer + 2.0 * product(c.vocab, c.dim);
}

}  // namespace

void validate(const DecoderConfig& c, NamesIn names) {
  const std::string where = names == NamesIn::code ? "config: " : "";
  const auto name = [&](const FieldText& row) { return where + std::string(name_of(row, names)); };
  for_each_row(kConfigKeys, [&](const auto& row) { require_in(row.range, name(row), row.of(c)); });
  require(c.heads % c.kv_heads == 0, "{} {} is not a multiple of {} {}",
          name(row_of<kConfigKeys, &DecoderConfig::heads>()), c.heads,
          name_of(row_of<kConfigKeys, &DecoderConfig::kv_heads>(), names), c.kv_heads);
  layers::validate(c.gate);
  require(c.rope_low_freq_factor < c.rope_high_freq_factor, "{} {} is not below {} {}",
          name(row_of<kConfigKeys, &DecoderConfig::rope_low_freq_factor>()), c.rope_low_freq_factor,
          name_of(row_of<kConfigKeys, &DecoderConfig::rope_high_freq_factor>(), names), c.rope_high_freq_factor);
  const double total = estimated_parameters(c);
  require(total <= static_cast<double>(kMaxTotal), "{}about {:.3g} parameters, more than {}", where, total, kMaxTotal);
}

bool is_qwen3(const DecoderConfig& config) {
  const DecoderConfig defaults;
  bool same = rotary_dim(config) == config.head_dim;
  for_each_row(kConfigKeys, [&](const auto& row) {
    same = same && (row.in_qwen3 == InQwen3::any || row.of(config) == row.of(defaults));
  });
  return same;
}

std::int64_t rotary_dim(const DecoderConfig& config) {
  const auto turning = static_cast<std::int64_t>(config.rope_fraction * static_cast<double>(config.head_dim));
  return turning / 2 * 2;
}

std::int64_t parameter_count(const DecoderConfig& config) { return ParameterTable(config).total(); }

DecoderConfig baseline_of(DecoderConfig config) {
  config.gate = {};
  config.norm_placement = NormPlacement::pre;
  return config;
}

DecoderConfig match_params(const DecoderConfig& config) {
  const std::int64_t extra = parameter_count(config) - parameter_count(baseline_of(config));
  const std::int64_t per_step = kFfnStep * 3 * config.dim * config.layers;
  const std::int64_t steps = (extra + per_step / 2) / per_step;
  DecoderConfig matched = config;
  matched.ffn -= steps * kFfnStep;
  require(matched.ffn >= 1, "config: {} parameters more than the baseline cannot be taken from an ffn of {}", extra,
          config.ffn);
  return matched;
}

double training_flops(const DecoderConfig& config, std::int64_t batch, std::int64_t seq) {
  double weights = 0.0;
  const ParameterTable table(config);
  for (const Parameter& parameter : table.entries()) {
    const bool gathered = parameter.kind == ParameterKind::embedding && config.embeddings == Embeddings::separate;
    if (decays(parameter.kind) && !gathered) weights += static_cast<double>(parameter.count);
  }
  const double tokens = static_cast<double>(batch) * static_cast<double>(seq);
  const double pairs = static_cast<double>(batch) * static_cast<double>(seq) * static_cast<double>(seq + 1) / 2.0;
  const double attention = static_cast<double>(config.layers * config.heads * config.head_dim) * 2.0 * pairs;
  return 6.0 * (weights * tokens + attention);
}

}  // namespace headgate::models
