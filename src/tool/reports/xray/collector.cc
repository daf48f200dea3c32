// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/collector.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "headgate/linear_attention_statistics.hpp"
#include "library/core/cancellation.hpp"
#include "models/evaluate/attention_call.hpp"
#include "models/evaluate/gates.hpp"
#include "models/evaluate/layer_heads.hpp"
#include "models/evaluate/mean.hpp"
#include "models/layers/attention_cache.hpp"
#include "models/layers/gate_variant.hpp"
#include "models/layers/parallel.hpp"

namespace headgate::xray {

namespace {

/// Maximum number R of queries whose attention weights are computed at once. The buffer holds Hq · R · T weights.
/// For example, Hq = 8 query heads and T = 2048 tokens take 8 MiB in f32.
constexpr std::int64_t kHeldQueries = 128;
/// Maximum number of weights in the buffer: 32 MiB in f32. For long texts, fewer queries are computed at once.
constexpr std::int64_t kHeldWeights = std::int64_t{1} << 23;

std::int64_t most_heads(const models::DecoderConfig& config) {
  return std::max(metrics::most_query_heads(config), metrics::value_heads(config));
}

std::int64_t held_queries(std::int64_t heads, std::int64_t tokens) {
  const std::int64_t of_query = std::max<std::int64_t>(1, heads * tokens);
  return std::clamp<std::int64_t>(kHeldWeights / of_query, 1, std::min(kHeldQueries, tokens));
}

std::size_t held_weights(const models::DecoderConfig& config, std::int64_t tokens) {
  const std::int64_t heads = most_heads(config);
  return static_cast<std::size_t>(heads * held_queries(heads, tokens) * layers::AttentionCache::slots(tokens));
}

/// Returns the largest number of output features per head in any layer.
std::int64_t most_features(const models::DecoderConfig& config) {
  return std::max(config.head_dim, metrics::value_heads(config) > 0 ? config.linear.value_dim : 0);
}

std::size_t bin_of(double gate) {
  const double place = std::floor(gate * static_cast<double>(kGateBins));
  return place > 0.0 ? static_cast<std::size_t>(std::min(place, static_cast<double>(kGateBins - 1))) : 0;
}

/// Replaces the weights a of one query, which may be negative, by |a| / Σ|a|. If all weights are 0, they stay 0.
void make_shares(float* weights, std::int64_t count) {
  double sum = 0.0;
  for (std::int64_t j = 0; j < count; ++j) sum += std::abs(static_cast<double>(weights[j]));
  const double factor = sum == 0.0 ? 0.0 : 1.0 / sum;
  for (std::int64_t j = 0; j < count; ++j) {
    weights[j] = static_cast<float>(std::abs(static_cast<double>(weights[j])) * factor);
  }
}

/// Returns the mean distance Σ w_j (t − j) / Σ w_j between query t and its keys j = first … t.
/// Returns 0 if all w_j are 0.
double distance_of(const float* weights, std::int64_t first, std::int64_t t) {
  double sum = 0.0, weighted = 0.0;
  for (std::int64_t j = first; j <= t; ++j) {
    const auto w = static_cast<double>(weights[j]);
    sum += w;
    weighted += w * static_cast<double>(t - j);
  }
  return sum == 0.0 ? 0.0 : weighted / sum;
}

/// Returns the output of head h for the tokens in `view`, (N,D), before the output projection W_o.
View<const float, 2> written_by(const models::LayerView<float>& view, std::int64_t h) {
  const View<const float, 3>& y = view.head_outputs;
  return {y.at(0, h), {y.shape[0], y.shape[2]}, {y.strides[0], y.strides[2]}};
}

}  // namespace

Collector::Collector(const models::DecoderConfig& config, const float* parameters, std::int64_t tokens,
                     std::int64_t part, std::int64_t cells, const ExecutionContext& context)
    : config_(config),
      parameters_(parameters),
      layout_(config),
      tokens_(tokens),
      cells_(cells),
      context_(resolved(context)),
      layers_(static_cast<std::size_t>(config.layers)),
      rows_(held_weights(config, tokens)),
      gates_(static_cast<std::size_t>(part * metrics::most_gates(config))) {}

std::size_t Collector::planned_bytes(const models::DecoderConfig& config, std::int64_t tokens, std::int64_t part,
                                     std::int64_t cells) {
  const auto T = static_cast<std::size_t>(tokens), P = static_cast<std::size_t>(part);
  const auto H = static_cast<std::size_t>(most_heads(config)), D = static_cast<std::size_t>(most_features(config));
  const std::size_t of_head = HeadMap::planned_bytes(tokens, cells) + (T + D * D) * sizeof(double);
  return held_weights(config, tokens) * sizeof(float) + H * of_head + T * sizeof(double) + P * D * sizeof(double) +
         P * static_cast<std::size_t>(metrics::most_gates(config)) * sizeof(float);
}

models::Taps Collector::taps() const {
  models::Taps out{models::Tap::scores, models::Tap::sequence_delta_inputs, models::Tap::head_outputs,
                   models::Tap::output};
  if (layers::has_gate(config_.gate) || metrics::value_heads(config_) > 0) out |= {models::Tap::gate_logits};
  return out;
}

void Collector::after_layer(const models::LayerView<float>& view) {
  if (view.first_position == 0) begin(view);
  find_largest_activation(view);
  if (view.type != models::LayerType::linear_attention) {
    add_looks(view);
    if (view.gate.present()) add_gates(view);
  } else {
    add_output_gates(view);
    if (view.ends_sequence()) add_looks(view);
  }
  for (std::int64_t h = 0; h < std::ssize(heads_); ++h) {
    throw_if_cancelled(context_);
    heads_[static_cast<std::size_t>(h)].written.add(gram_of_columns(written_by(view, h)));
  }
  if (view.ends_sequence()) finish(view);
}

void Collector::find_largest_activation(const models::LayerView<float>& view) {
  const auto [N, C] = view.output.shape;
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t c = 0; c < C; ++c) {
      const double size = std::abs(static_cast<double>(view.output(n, c)));
      const bool found = !std::isnan(largest_activation_.value);
      if (found && (std::isnan(size) || size > largest_activation_.value)) {
        largest_activation_ = {size, view.layer, view.first_position + n, c};
      }
    }
  }
}

/// Begins a layer: clears the sums of its heads.
void Collector::begin(const models::LayerView<float>& view) {
  const bool linear = view.type == models::LayerType::linear_attention;
  const std::int64_t D = view.head_outputs.shape[2];
  const bool own_gates = linear || metrics::gate_owners(config_, view.layer) > 0;
  HeadSums empty{HeadMap(tokens_, cells_), Gram{D, std::vector<double>(static_cast<std::size_t>(D * D))}};
  if (own_gates) empty.gate.resize(static_cast<std::size_t>(tokens_));
  heads_.assign(static_cast<std::size_t>(metrics::heads_of_layer(config_, view.layer)), empty);
  gate_.assign(view.gate.present() ? static_cast<std::size_t>(tokens_) : 0, 0.0);
}

/// Adds attention weights to the sums of each head:
/// - softmax attention: the weights of the queries in `view`
/// - linear attention: the weights of all queries; call it only after the last part of the sequence
void Collector::add_looks(const models::LayerView<float>& view) {
  const bool linear = view.type == models::LayerType::linear_attention;
  const std::int64_t H = std::ssize(heads_), N = linear ? tokens_ : view.shape.seq;
  const std::int64_t position = linear ? 0 : view.first_position, held = held_queries(most_heads(config_), tokens_);
  for (std::int64_t begin = 0; begin < N; begin += held) {
    const std::int64_t count = std::min(held, N - begin);
    const std::int64_t S = weigh(view, begin, count);
#pragma omp parallel for schedule(static) num_threads(layers::team_size(context_))
    for (std::int64_t h = 0; h < H; ++h) {
      HeadSums& head = heads_[static_cast<std::size_t>(h)];
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t t = position + begin + i;
        const std::int64_t first = view.window > 0 ? std::max<std::int64_t>(0, t - view.window + 1) : 0;
        float* weights = rows_.data() + (h * count + i) * S;
        if (linear) make_shares(weights, t + 1);
        head.map.add_row(t, first, weights + first);
        head.distances += distance_of(weights, first, t);
      }
    }
  }
}

/// Computes the attention weights of `count` queries, from query `begin` of `view` on, into rows_ (heads,count,S).
/// Returns S, the number of weights per query.
std::int64_t Collector::weigh(const models::LayerView<float>& view, std::int64_t begin, std::int64_t count) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), begin);
  const ConstTensorView queries(indices.data(), DType::i64, {1, 1, 1, count}, contiguous_strides({1, 1, 1, count}));
  const auto rows_of = [&](std::int64_t S) { return make_view(rows_.data(), Shape{1, std::ssize(heads_), count, S}); };
  if (view.type == models::LayerType::linear_attention) {
    linear_attention_weights({.weights = rows_of(tokens_)}, view.sequence_delta_inputs, queries, view.delta_options);
    return tokens_;
  }
  const metrics::AttentionCall call = metrics::attention_call(view, context_);
  const std::int64_t S =
      view.cache != nullptr ? layers::AttentionCache::slots(view.first_position + view.shape.seq) : view.shape.seq;
  StatisticsSelection selection;
  selection.queries = queries;
  AttentionStatistics statistics;
  statistics.rows = rows_of(S);
  attention_statistics(statistics, call.inputs, call.lse, selection, call.options);
  return S;
}

void Collector::add_gates(const models::LayerView<float>& view) {
  const std::int64_t N = view.shape.seq, width = metrics::gate_width(config_, view.layer);
  const std::int64_t owners = metrics::gate_owners(config_, view.layer), heads = std::ssize(heads_);
  const View<float, 2> gates{gates_.data(), {N, width}};  // gates_ fits the layer with the most gates
  metrics::gate_values_of(gates, view, config_, context_);
  const auto add_means = [&](std::vector<double>& out, std::int64_t first, std::int64_t count) {  // one mean per token
    for (std::int64_t n = 0; n < N; ++n) {
      double sum = 0.0;
      for (std::int64_t x = first; x < first + count; ++x) sum += static_cast<double>(gates(n, x));
      out[static_cast<std::size_t>(view.first_position + n)] = sum / static_cast<double>(count);
    }
  };
  add_means(gate_, 0, width);
  if (owners == 0) return;
  const std::int64_t features = width / owners, queries = heads / owners;
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::int64_t first = h / queries * features;
    HeadSums& head = heads_[static_cast<std::size_t>(h)];
    add_means(head.gate, first, features);
    for (std::int64_t n = 0; n < N; ++n) {
      for (std::int64_t x = first; x < first + features; ++x) {
        ++head.histogram[bin_of(static_cast<double>(gates(n, x)))];
      }
    }
  }
}

/// Adds the values |silu(z)| of the output gates of linear attention to means and histograms. A value may exceed 1.
void Collector::add_output_gates(const models::LayerView<float>& view) {
  const auto [N, H, D] = view.gate.shape;
  for (std::int64_t h = 0; h < H; ++h) {
    HeadSums& head = heads_[static_cast<std::size_t>(h)];
    for (std::int64_t n = 0; n < N; ++n) {
      double sum = 0.0;
      for (std::int64_t d = 0; d < D; ++d) {
        const double gate = metrics::silu_magnitude(static_cast<double>(view.gate(n, h, d)));
        sum += gate;
        ++head.histogram[bin_of(gate)];
      }
      const auto t = static_cast<std::size_t>(view.first_position + n);
      head.gate[t] = sum / static_cast<double>(D);
      gate_[t] += sum / static_cast<double>(D * H);
    }
  }
}

/// Ends a layer: computes its LayerRecord from the sums of its heads.
void Collector::finish(const models::LayerView<float>& view) {
  LayerRecord& record = layers_[static_cast<std::size_t>(view.layer)];
  record.heads.resize(heads_.size());
  std::vector<double> mean(static_cast<std::size_t>(tokens_));
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    const HeadSums& sums = heads_[h];
    HeadRecord& head = record.heads[h];
    const std::vector<double> received = sums.map.received();
    head.map = as_roots(sums.map.cells());
    head.received = as_roots(received);
    for (const std::size_t key : largest(received, kTopKeys)) {
      head.top_keys.emplace_back(static_cast<std::int64_t>(key), received[key]);
    }
    head.mean_distance = sums.distances / static_cast<double>(std::max<std::int64_t>(1, tokens_ - 1));
    for (std::size_t t = 0; t < mean.size(); ++t) mean[t] += received[t] / static_cast<double>(heads_.size());
    if (sums.gate.empty()) continue;
    head.gate = as_bytes(sums.gate);
    head.gate_histogram = sums.histogram;
  }
  record.received = as_roots(mean);
  if (!gate_.empty()) record.gate = as_bytes(gate_);
  add_ranks(record, view.layer);
  heads_.clear();
}

/// Computes the effective ranks of each head and stores them in `record`.
/// Linear attention has no rank of W_v W_o, because a convolution and SiLU stand between the two matrices.
void Collector::add_ranks(LayerRecord& record, std::int64_t layer) const {
  const bool linear = metrics::is_linear(config_, layer);
  const models::LayerWeights<const float> weights = layout_.layer(layer, parameters_);
  const View<const float, 2>& out = linear ? weights.delta.out : weights.attention.out;
  const View<const float, 2>& in = weights.attention.in;
  const std::int64_t D = heads_.front().written.n, queries = std::ssize(heads_) / config_.kv_heads;
  Gram values;
  for (std::int64_t h = 0; h < std::ssize(heads_); ++h) {
    throw_if_cancelled(context_);
    HeadRecord& head = record.heads[static_cast<std::size_t>(h)];
    const Gram outputs = gram_of_columns(out.range(1, h * D, D));
    head.written_rank = effective_rank(singular_values(heads_[static_cast<std::size_t>(h)].written, outputs));
    if (linear) continue;
    // Row of `in` at which W_v begins. W_v is the last part of `in`.
    const std::int64_t first_value = in.shape[0] - config_.kv_heads * D;
    if (h % queries == 0) values = gram_of_rows(in.range(0, first_value + h / queries * D, D));
    head.value_output_singular_values = singular_values(values, outputs);
    head.value_output_rank = effective_rank(head.value_output_singular_values);
  }
}

}  // namespace headgate::xray
