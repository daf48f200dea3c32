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

/// Checks fields one by one, by the names that the reader of a message knows.
class FieldChecks {
 public:
  FieldChecks(const DecoderConfig& config, const FieldNames& names) : c_(config), names_(names) {}

  void size(const char* name, std::int64_t value, std::int64_t most) const {
    require(value >= 1 && value <= most, "{}{} is {}, not between 1 and {}", names_.where, name, value, most);
  }
  void positive(const char* name, double value) const {
    require(std::isfinite(value) && value > 0.0, "{}{} is {}, not a finite number above 0", names_.where, name, value);
  }
  void heads() const {
    require(c_.heads % c_.kv_heads == 0, "{}{} {} is not a multiple of {} {}", names_.where, names_.heads, c_.heads,
            names_.kv_heads, c_.kv_heads);
  }
  void rope_fraction() const {
    require(c_.rope_fraction >= 0.0 && c_.rope_fraction <= 1.0, "{}{} {} is not between 0 and 1", names_.where,
            names_.rope_fraction, c_.rope_fraction);
  }
  void init_std() const {
    require(std::isfinite(c_.init_std) && c_.init_std >= 0.0, "{}{} {} is not a finite number >= 0", names_.where,
            names_.init_std, c_.init_std);
  }
  /// Sizes are at most 2^20 each, so a matrix has at most 2^50 entries here and 1024 layers of a dozen of them fit in
  /// 63 bits by way of double.
  void total() const {
    const auto product = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
    const double q_width = product(c_.heads, c_.head_dim);
    const double layer =
        5.0 * q_width * static_cast<double>(c_.dim) + product(c_.dim, c_.dim) + 3.0 * product(c_.dim, c_.ffn);
    const double total = static_cast<double>(c_.layers) * layer + 2.0 * product(c_.vocab, c_.dim);
    require(total <= static_cast<double>(kMaxTotal), "{}about {:.3g} parameters, more than {}", names_.where, total,
            kMaxTotal);
  }

 private:
  const DecoderConfig& c_;
  const FieldNames& names_;
};

}  // namespace

void validate(const DecoderConfig& c, const FieldNames& names) {
  const FieldChecks check(c, names);
  check.size(names.vocab, c.vocab, kMaxSize);
  check.size(names.dim, c.dim, kMaxSize);
  check.size(names.layers, c.layers, kMaxLayers);
  check.size(names.heads, c.heads, kMaxSize);
  check.size(names.kv_heads, c.kv_heads, kMaxSize);
  check.size(names.head_dim, c.head_dim, kMaxHeadDim);
  check.size(names.ffn, c.ffn, kMaxSize);
  check.size(names.seq_len, c.seq_len, kMaxSize);
  check.heads();
  check.positive(names.norm_eps, c.norm_eps);
  check.positive(names.rope_base, c.rope_base);
  check.rope_fraction();
  check.init_std();
  layers::validate(c.gate);
  check.total();
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
