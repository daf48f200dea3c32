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
#include "models/layers/attention_buffers.hpp"
#include "models/layers/gate_variant.hpp"
#include "models/layers/parallel.hpp"
#include "tool/reports/xray/ranks.hpp"

namespace headgate::xray {

namespace {

/// Queries whose weights are held at a time: the buffer then has Hq · R · T numbers, some 10 MB at T = 2048.
constexpr std::int64_t kHeldQueries = 128;

std::int64_t most_heads(const models::DecoderConfig& config) {
  return std::max(metrics::most_query_heads(config), metrics::value_heads(config));
}

std::size_t bin_of(double gate) {
  const double place = std::floor(gate * static_cast<double>(kGateBins));
  return place > 0.0 ? static_cast<std::size_t>(std::min(place, static_cast<double>(kGateBins - 1))) : 0;
}

/// Divides the weights of a query, which may be negative, by the sum of their magnitudes.
void make_shares(float* weights, std::int64_t count) {
  double sum = 0.0;
  for (std::int64_t j = 0; j < count; ++j) sum += std::abs(static_cast<double>(weights[j]));
  const double factor = sum == 0.0 ? 0.0 : 1.0 / sum;
  for (std::int64_t j = 0; j < count; ++j) {
    weights[j] = static_cast<float>(std::abs(static_cast<double>(weights[j])) * factor);
  }
}

/// Returns Σ w_j (t − j) / Σ w_j over the keys first … t of query t; 0 if its weights are 0.
double distance_of(const float* weights, std::int64_t first, std::int64_t t) {
  double sum = 0.0, weighted = 0.0;
  for (std::int64_t j = first; j <= t; ++j) {
    const auto w = static_cast<double>(weights[j]);
    sum += w;
    weighted += w * static_cast<double>(t - j);
  }
  return sum == 0.0 ? 0.0 : weighted / sum;
}

/// Views what head h writes over the text, (T,D).
View<const float, 2> written_by(const models::LayerView<float>& view, std::int64_t h) {
  const View<const float, 3>& y = view.head_outputs;
  return {y.at(0, h), {y.shape[0], y.shape[2]}, {y.strides[0], y.strides[2]}};
}

}  // namespace

Collector::Collector(const models::DecoderConfig& config, const float* parameters, std::int64_t tokens,
                     std::int64_t cells, const ExecutionContext& context)
    : config_(config),
      parameters_(parameters),
      places_(config),
      tokens_(tokens),
      cells_(cells),
      context_(resolved(context)),
      layers_(static_cast<std::size_t>(config.layers)),
      rows_(static_cast<std::size_t>(most_heads(config) * std::min(kHeldQueries, tokens) * tokens)),
      gates_(static_cast<std::size_t>(tokens * metrics::most_gates(config))) {}

std::size_t Collector::planned_bytes(const models::DecoderConfig& config, std::int64_t tokens, std::int64_t cells) {
  const auto T = static_cast<std::size_t>(tokens), H = static_cast<std::size_t>(most_heads(config));
  const std::size_t rows = H * static_cast<std::size_t>(std::min(kHeldQueries, tokens)) * T * sizeof(float);
  return rows + T * static_cast<std::size_t>(metrics::most_gates(config)) * sizeof(float) +
         H * HeadMap::planned_bytes(tokens, cells);
}

models::Taps Collector::taps() const {
  models::Taps out{models::Tap::scores, models::Tap::head_outputs};
  if (layers::has_gate(config_.gate) || metrics::value_heads(config_) > 0) out |= {models::Tap::gate_logits};
  return out;
}

void Collector::after_layer(const models::LayerView<float>& view) {
  LayerRecord& record = layers_[static_cast<std::size_t>(view.layer)];
  const auto [maps, distances] = looks_of(view);
  record.heads.resize(maps.size());
  std::vector<double> mean(static_cast<std::size_t>(tokens_));
  for (std::size_t h = 0; h < maps.size(); ++h) {
    HeadRecord& head = record.heads[h];
    const std::vector<double> received = maps[h].received();
    head.map = as_roots(maps[h].cells());
    head.received = as_roots(received);
    for (const std::size_t key : largest(received, kTopKeys)) {
      head.top_keys.emplace_back(static_cast<std::int64_t>(key), received[key]);
    }
    head.mean_distance = distances[h] / static_cast<double>(std::max<std::int64_t>(1, tokens_ - 1));
    for (std::size_t t = 0; t < mean.size(); ++t) mean[t] += received[t] / static_cast<double>(maps.size());
  }
  record.received = as_roots(mean);
  if (view.type == models::LayerType::linear_attention) {
    add_output_gates(record, view);
    add_written_ranks(record, view);
    return;
  }
  if (view.gate.present()) add_gates(record, view);
  add_ranks(record, view);
}

Collector::Looks Collector::looks_of(const models::LayerView<float>& view) {
  const std::int64_t H = metrics::heads_of_layer(config_, view.layer), T = tokens_;
  const bool linear = view.type == models::LayerType::linear_attention;
  Looks out{std::vector<HeadMap>(static_cast<std::size_t>(H), HeadMap(T, cells_)),
            std::vector<double>(static_cast<std::size_t>(H))};
  for (std::int64_t begin = 0; begin < T; begin += kHeldQueries) {
    const std::int64_t count = std::min(kHeldQueries, T - begin);
    weigh(view, begin, count);
#pragma omp parallel for schedule(static) num_threads(layers::team_size(context_))
    for (std::int64_t h = 0; h < H; ++h) {
      HeadMap& map = out.maps[static_cast<std::size_t>(h)];
      for (std::int64_t i = begin; i < begin + count; ++i) {
        const std::int64_t first = view.window > 0 ? std::max<std::int64_t>(0, i - view.window + 1) : 0;
        float* weights = rows_.data() + (h * count + i - begin) * T;
        if (linear) make_shares(weights, i + 1);
        map.add_row(i, first, weights + first);
        out.distances[static_cast<std::size_t>(h)] += distance_of(weights, first, i);
      }
    }
  }
  return out;
}

/// rows_(heads,count,T) = the weights of queries begin … begin+count−1.
void Collector::weigh(const models::LayerView<float>& view, std::int64_t begin, std::int64_t count) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), begin);
  const ConstTensorView queries(indices.data(), DType::i64, {1, 1, 1, count}, contiguous_strides({1, 1, 1, count}));
  const TensorView rows =
      make_view(rows_.data(), Shape{1, metrics::heads_of_layer(config_, view.layer), count, tokens_});
  if (view.type == models::LayerType::linear_attention) {
    linear_attention_weights({.weights = rows}, view.rule_inputs, queries, view.rule_options);
    return;
  }
  const metrics::AttentionCall call = metrics::attention_call(view, context_);
  StatisticsSelection selection;
  selection.queries = queries;
  AttentionStatistics statistics;
  statistics.rows = rows;
  attention_statistics(statistics, call.inputs, call.lse, selection, call.options);
}

void Collector::add_gates(LayerRecord& record, const models::LayerView<float>& view) {
  const std::int64_t width = metrics::gate_width(config_, view.layer);
  const std::int64_t owners = metrics::gate_owners(config_, view.layer), heads = std::ssize(record.heads);
  const View<float, 2> gates{gates_.data(), {tokens_, width}};  // the buffer suits the widest layer
  metrics::gate_values_of(gates, view, config_, context_);
  const auto mean_of = [&](std::int64_t first, std::int64_t count) {  // over features, of each token
    std::vector<double> out(static_cast<std::size_t>(tokens_));
    for (std::int64_t t = 0; t < tokens_; ++t) {
      double sum = 0.0;
      for (std::int64_t x = first; x < first + count; ++x) sum += static_cast<double>(gates(t, x));
      out[static_cast<std::size_t>(t)] = sum / static_cast<double>(count);
    }
    return out;
  };
  record.gate = as_bytes(mean_of(0, width));
  if (owners == 0) return;
  const std::int64_t features = width / owners, queries = heads / owners;
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::int64_t first = h / queries * features;
    HeadRecord& head = record.heads[static_cast<std::size_t>(h)];
    head.gate = as_bytes(mean_of(first, features));
    GateHistogram histogram{};
    for (std::int64_t t = 0; t < tokens_; ++t) {
      for (std::int64_t x = first; x < first + features; ++x) ++histogram[bin_of(static_cast<double>(gates(t, x)))];
    }
    head.gate_histogram = histogram;
  }
}

/// Gates of linear attention are SiLU: they are shown by their magnitude, which may exceed 1.
void Collector::add_output_gates(LayerRecord& record, const models::LayerView<float>& view) const {
  const auto [N, H, D] = view.gate.shape;
  std::vector<double> of_layer(static_cast<std::size_t>(N));
  for (std::int64_t h = 0; h < H; ++h) {
    std::vector<double> of_head(of_layer.size());
    GateHistogram histogram{};
    for (std::int64_t t = 0; t < N; ++t) {
      double sum = 0.0;
      for (std::int64_t d = 0; d < D; ++d) {
        const double gate = metrics::silu_magnitude(static_cast<double>(view.gate(t, h, d)));
        sum += gate;
        ++histogram[bin_of(gate)];
      }
      of_head[static_cast<std::size_t>(t)] = sum / static_cast<double>(D);
      of_layer[static_cast<std::size_t>(t)] += sum / static_cast<double>(D * H);
    }
    HeadRecord& head = record.heads[static_cast<std::size_t>(h)];
    head.gate = as_bytes(of_head);
    head.gate_histogram = histogram;
  }
  record.gate = as_bytes(of_layer);
}

void Collector::add_ranks(LayerRecord& record, const models::LayerView<float>& view) const {
  const std::int64_t D = config_.head_dim, heads = std::ssize(record.heads), queries = heads / config_.kv_heads;
  const auto& weights = places_.layer(view.layer, parameters_).attention;
  const std::int64_t first_value = weights.in.shape[0] - config_.kv_heads * D;  // rows of v_proj come last
  Gram values;
  for (std::int64_t h = 0; h < heads; ++h) {
    throw_if_cancelled(context_);
    HeadRecord& head = record.heads[static_cast<std::size_t>(h)];
    if (h % queries == 0) values = gram_of_rows(weights.in.range(0, first_value + h / queries * D, D));
    const Gram outputs = gram_of_columns(weights.out.range(1, h * D, D));
    head.value_output_singular_values = singular_values(values, outputs);
    head.value_output_rank = effective_rank(head.value_output_singular_values);
    head.written_rank = effective_rank(singular_values(gram_of_columns(written_by(view, h)), outputs));
  }
}

/// A value head of linear attention has no W_v W_o: the convolution and SiLU stand between the two.
void Collector::add_written_ranks(LayerRecord& record, const models::LayerView<float>& view) const {
  const auto& weights = places_.layer(view.layer, parameters_).delta;
  const std::int64_t D = config_.linear.value_dim;
  for (std::int64_t h = 0; h < std::ssize(record.heads); ++h) {
    throw_if_cancelled(context_);
    const Gram outputs = gram_of_columns(weights.out.range(1, h * D, D));
    record.heads[static_cast<std::size_t>(h)].written_rank =
        effective_rank(singular_values(gram_of_columns(written_by(view, h)), outputs));
  }
}

}  // namespace headgate::xray
