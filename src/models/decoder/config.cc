// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/config.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

#include "library/core/check.hpp"
#include "models/decoder/config_keys.hpp"
#include "models/decoder/parameters.hpp"

namespace headgate::models {

namespace {

constexpr std::int64_t kMaxTotal = std::int64_t{1} << 40;  // maximum number of parameters: 4 TiB in f32
constexpr std::int64_t kFfnStep = 4;

std::string_view name_of(const FieldText& row, NamesIn names) {
  if (names == NamesIn::code) return row.name;
  return names == NamesIn::file || row.option.empty() ? row.key : row.option;
}

/// Estimates the number of parameters. Computes in double, because large sizes could overflow 63 bits.
double estimated_parameters(const DecoderConfig& c) {
  const auto product = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
  const double dim = static_cast<double>(c.dim);
  const double q_width = product(std::max(c.heads, c.sliding.heads), c.head_dim);
  const double linear =
      product(c.linear.key_heads, c.linear.key_dim) + product(c.linear.value_heads, c.linear.value_dim);
  const double experts = product(c.experts.count, c.experts.ffn) + static_cast<double>(c.experts.shared_ffn);
  const double layer = 5.0 * q_width * dim + 4.0 * linear * dim + product(c.dim, c.dim) +
                       3.0 * dim * (static_cast<double>(c.ffn) + experts);
  return static_cast<double>(c.layers) * layer + 2.0 * product(c.vocab, c.dim);
}

/// Throws Error if the list has a wrong length. It must be empty or have one element per layer. The message begins with
/// `what`.
template <typename Element>
void require_one_for_each_layer(const std::string& what, const std::vector<Element>& list, std::int64_t layers) {
  require(list.empty() || std::ssize(list) == layers, "{} has {} elements, not one for each of {} layers", what,
          list.size(), layers);
}

/// Checks all fields of a config. Each message begins with the text `where` and the name that `of` returns for the
/// field.
void check_fields(const DecoderConfig& c, const std::string& where, const FieldNames& of) {
  const auto name = [&](const FieldText& row) { return where + of(row); };
  for_each_row(kConfigKeys, [&](const auto& row) {
    if constexpr (kIsList<ValueOf<std::remove_cvref_t<decltype(row)>>>) {
      for (const auto& element : row.of(c)) require_in(row.range, name(row), element);
      require_one_for_each_layer(name(row), row.of(c), c.layers);
    } else {
      require_in(row.range, name(row), row.of(c));
    }
  });
  require(c.heads % c.kv_heads == 0, "{} {} is not a multiple of {} {}",
          name(row_of<kConfigKeys, &DecoderConfig::heads>()), c.heads,
          of(row_of<kConfigKeys, &DecoderConfig::kv_heads>()), c.kv_heads);
  layers::validate(c.gate);
  require(c.rope_low_freq_factor < c.rope_high_freq_factor, "{} {} is not below {} {}",
          name(row_of<kConfigKeys, &DecoderConfig::rope_low_freq_factor>()), c.rope_low_freq_factor,
          of(row_of<kConfigKeys, &DecoderConfig::rope_high_freq_factor>()), c.rope_high_freq_factor);
  const auto check_yarn = [&](const FieldText& row, double base) {
    require(c.rope_scaling != layers::RopeScalingKind::yarn || base > 1.0, "{} is {}, but {} yarn needs one above 1",
            name(row), base, of(row_of<kConfigKeys, &DecoderConfig::rope_scaling>()));
  };
  check_yarn(row_of<kConfigKeys, &DecoderConfig::rope_base>(), c.rope_base);
  if (c.sliding.rope_scaled == Switch::on && c.sliding.rope_base > 0.0) {
    check_yarn(row_of<kConfigKeys, &SlidingLayers::rope_base>(), c.sliding.rope_base);
  }
  require(c.sliding.heads % c.kv_heads == 0, "{} {} is not a multiple of {} {}",
          name(row_of<kConfigKeys, &SlidingLayers::heads>()), c.sliding.heads,
          of(row_of<kConfigKeys, &DecoderConfig::kv_heads>()), c.kv_heads);
  if (has_layer(c, LayerType::sliding_attention)) {
    require(c.window > 0, "{} has sliding_attention, but {} is {}",
            name(row_of<kConfigKeys, &DecoderConfig::layer_types>()), of(row_of<kConfigKeys, &DecoderConfig::window>()),
            c.window);
  }
  if (has_layer(c, LayerType::linear_attention)) {
    const auto& key_heads = row_of<kConfigKeys, &LinearLayers::key_heads>();
    require(c.linear.key_heads > 0, "{} has linear_attention, but {} is {}",
            name(row_of<kConfigKeys, &DecoderConfig::layer_types>()), of(key_heads), c.linear.key_heads);
    require(c.linear.value_heads > 0 && c.linear.value_heads % c.linear.key_heads == 0,
            "{} {} is not a multiple of {} {}", name(row_of<kConfigKeys, &LinearLayers::value_heads>()),
            c.linear.value_heads, of(key_heads), c.linear.key_heads);
  }
  if (c.experts.count > 0) {
    require(c.experts.active >= 1 && c.experts.active <= c.experts.count, "{} is {}, not from 1 to {} {}",
            name(row_of<kConfigKeys, &Experts::active>()), c.experts.active, of(row_of<kConfigKeys, &Experts::count>()),
            c.experts.count);
    require(c.experts.ffn >= 1, "{} is {} with {} {}", name(row_of<kConfigKeys, &Experts::ffn>()), c.experts.ffn,
            of(row_of<kConfigKeys, &Experts::count>()), c.experts.count);
  }
  const double total = estimated_parameters(c);
  require(total <= static_cast<double>(kMaxTotal), "{}about {:.3g} parameters, more than {}", where, total, kMaxTotal);
}

}  // namespace

void validate(const DecoderConfig& config, NamesIn names) {
  check_fields(config, names == NamesIn::code ? "config: " : "",
               [names](const FieldText& row) { return std::string(name_of(row, names)); });
}

void validate(const DecoderConfig& config, const FieldNames& names) { check_fields(config, "", names); }

LayerConfig layer_config(const DecoderConfig& c, std::int64_t layer) {
  const auto at = static_cast<std::size_t>(layer);
  LayerConfig out;
  if (!c.layer_types.empty()) out.type = c.layer_types[at];
  const bool sliding = out.type == LayerType::sliding_attention;
  out.heads = sliding && c.sliding.heads > 0 ? c.sliding.heads : c.heads;
  out.window = sliding || c.layer_types.empty() ? c.window : 0;
  const bool own_rope = sliding && c.sliding.rope_base > 0.0;
  out.rope_base = own_rope ? c.sliding.rope_base : c.rope_base;
  out.rope_fraction = own_rope ? c.sliding.rope_fraction : c.rope_fraction;
  if (!own_rope || c.sliding.rope_scaled == Switch::on) {
    out.rope_scaling = {c.rope_scaling,          c.rope_factor,           c.rope_low_freq_factor,
                        c.rope_high_freq_factor, c.rope_original_seq_len, c.rope_truncate == Switch::on,
                        c.rope_attention_factor};
  }
  const bool post = c.norm_placement == NormPlacement::post && out.type != LayerType::linear_attention;
  out.has_input_norms = !post;
  out.has_output_norms = post || c.norm_placement == NormPlacement::sandwich;
  out.experts = c.experts.count > 0 && layer >= c.experts.dense_layers;
  if (!c.experts.limits.empty()) out.limit = c.experts.limits[at];
  if (!c.experts.shared_limits.empty()) out.shared_limit = c.experts.shared_limits[at];
  return out;
}

bool has_layer(const DecoderConfig& config, LayerType type) {
  if (config.layer_types.empty()) return type == LayerType::full_attention;
  return std::find(config.layer_types.begin(), config.layer_types.end(), type) != config.layer_types.end();
}

DecoderConfig canonical_config(DecoderConfig config) {
  if (config.layer_types.empty()) return config;
  if (!has_layer(config, LayerType::sliding_attention)) config.window = 0;
  const auto is_full = [](LayerType type) { return type == LayerType::full_attention; };
  if (std::all_of(config.layer_types.begin(), config.layer_types.end(), is_full)) config.layer_types.clear();
  return config;
}

bool is_qwen3(const DecoderConfig& config) {
  const DecoderConfig defaults;
  bool same = rotary_dim(config.rope_fraction, config.head_dim) == config.head_dim;
  for_each_row(kConfigKeys, [&](const auto& row) {
    same = same && (row.in_qwen3 == InQwen3::any || row.of(config) == row.of(defaults));
  });
  return same;
}

std::int64_t rotary_dim(double rope_fraction, std::int64_t head_dim) {
  const auto turning = static_cast<std::int64_t>(rope_fraction * static_cast<double>(head_dim));
  return turning / 2 * 2;
}

double rope_fraction_of(std::int64_t features, std::int64_t head_dim) {
  const double fraction = static_cast<double>(features) / static_cast<double>(head_dim);
  const bool truncated = fraction * static_cast<double>(head_dim) < static_cast<double>(features);
  return truncated ? std::nextafter(fraction, std::numeric_limits<double>::infinity()) : fraction;
}

std::string reason_not_trained(const DecoderConfig& config) {
  return config.experts.count > 0 ? "it has experts, which have no backward pass" : "";
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

namespace {

/// Returns the number of (query, key) pairs that a causal mask with a window allows. A window of 0 means none.
double visible_pairs(std::int64_t seq, std::int64_t window) {
  const auto keys = static_cast<double>(window == 0 ? seq : std::min(seq, window));
  return keys * (keys + 1.0) / 2.0 + (static_cast<double>(seq) - keys) * keys;
}

}  // namespace

double training_flops(const DecoderConfig& config, const ParameterTable& trained, std::int64_t batch,
                      std::int64_t seq) {
  const auto weights_of = [&config](const ParameterTable& table) {
    double weights = 0.0;
    for (const Parameter& parameter : table.entries()) {
      const bool gathered = parameter.kind == ParameterKind::embedding && config.embeddings == Embeddings::separate;
      if (is_matrix(parameter.kind) && !gathered) weights += static_cast<double>(parameter.count);
    }
    return weights;
  };
  const double tokens = static_cast<double>(batch) * static_cast<double>(seq);
  double attention = 0.0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const LayerConfig c = layer_config(config, layer);
    if (c.type == LayerType::linear_attention) continue;
    const double pairs = static_cast<double>(batch) * visible_pairs(seq, c.window);
    attention += static_cast<double>(c.heads * config.head_dim) * 2.0 * pairs;
  }
  return (4.0 * weights_of(ParameterTable(config)) + 2.0 * weights_of(trained)) * tokens + 6.0 * attention;
}

}  // namespace headgate::models
