// SPDX-License-Identifier: Apache-2.0
#include "models/config.hpp"

#include <algorithm>
#include <cmath>

#include "core/check.hpp"
#include "models/parameters.hpp"

namespace headgate::models {

namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 20;   // of vocab, dim, ffn, heads and seq_len
constexpr std::int64_t kMaxTotal = std::int64_t{1} << 40;  // parameters: 4 TiB in f32
constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxHeadDim = 512;  // the attention kernels'
constexpr std::int64_t kFfnStep = 4;

void require_size(const char* name, std::int64_t value, std::int64_t most) {
  require(value >= 1 && value <= most, "config: {} is {}, not between 1 and {}", name, value, most);
}

void require_positive(const char* name, double value) {
  require(std::isfinite(value) && value > 0.0, "config: {} is {}, not a finite number above 0", name, value);
}

/// Sizes are at most 2^20 each, so a matrix has at most 2^50 entries here and 1024 layers of a dozen of them fit in 63
/// bits by way of double.
void require_total(const DecoderConfig& c) {
  const auto product = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
  const double q_width = product(c.heads, c.head_dim);
  const double layer = 5.0 * q_width * static_cast<double>(c.dim) + product(c.dim, c.dim) + 3.0 * product(c.dim, c.ffn);
  const double total = static_cast<double>(c.layers) * layer + 2.0 * product(c.vocab, c.dim);
  require(total <= static_cast<double>(kMaxTotal), "config: about {:.3g} parameters, more than {}", total, kMaxTotal);
}

}  // namespace

void validate(const DecoderConfig& c) {
  require_size("vocab", c.vocab, kMaxSize);
  require_size("dim", c.dim, kMaxSize);
  require_size("layers", c.layers, kMaxLayers);
  require_size("heads", c.heads, kMaxSize);
  require_size("kv_heads", c.kv_heads, kMaxSize);
  require_size("head_dim", c.head_dim, kMaxHeadDim);
  require_size("ffn", c.ffn, kMaxSize);
  require_size("seq_len", c.seq_len, kMaxSize);
  require(c.heads % c.kv_heads == 0, "config: heads {} is not a multiple of kv_heads {}", c.heads, c.kv_heads);
  require_positive("norm_eps", c.norm_eps);
  require_positive("rope_base", c.rope_base);
  require(c.rope_fraction >= 0.0 && c.rope_fraction <= 1.0, "config: rope_fraction {} is not between 0 and 1",
          c.rope_fraction);
  require(std::isfinite(c.init_std) && c.init_std >= 0.0, "config: init_std {} is not a finite number >= 0",
          c.init_std);
  layers::validate(c.gate);
  require_total(c);
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
    const bool gathered = parameter.kind == ParameterKind::embedding && config.embeddings != Embeddings::tied &&
                          parameter.name == "model.embed_tokens.weight";
    if (decays(parameter.kind) && !gathered) weights += static_cast<double>(parameter.count);
  }
  const double tokens = static_cast<double>(batch) * static_cast<double>(seq);
  const double pairs = static_cast<double>(batch) * static_cast<double>(seq) * static_cast<double>(seq + 1) / 2.0;
  const double attention = static_cast<double>(config.layers * config.heads * config.head_dim) * 2.0 * pairs;
  return 6.0 * (weights * tokens + attention);
}

}  // namespace headgate::models
