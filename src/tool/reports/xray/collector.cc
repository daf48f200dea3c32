// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/collector.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "library/core/cancellation.hpp"
#include "models/evaluate/attention_call.hpp"
#include "models/evaluate/gates.hpp"
#include "models/layers/attention_buffers.hpp"
#include "models/layers/gate_variant.hpp"
#include "models/layers/parallel.hpp"
#include "tool/reports/xray/ranks.hpp"

namespace headgate::xray {

namespace {

/// Queries whose weights are held at a time: the buffer then has Hq · R · T numbers, some 10 MB at T = 2048.
constexpr std::int64_t kHeldQueries = 128;

std::size_t bin_of(double gate) {
  const double place = std::floor(gate * static_cast<double>(kGateBins));
  return place > 0.0 ? static_cast<std::size_t>(std::min(place, static_cast<double>(kGateBins - 1))) : 0;
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
      rows_(static_cast<std::size_t>(config.heads * std::min(kHeldQueries, tokens) * tokens)),
      gates_(static_cast<std::size_t>(tokens * metrics::gate_width(config))) {}

std::size_t Collector::planned_bytes(const models::DecoderConfig& config, std::int64_t tokens, std::int64_t cells) {
  const auto T = static_cast<std::size_t>(tokens), Hq = static_cast<std::size_t>(config.heads);
  const std::size_t rows = Hq * static_cast<std::size_t>(std::min(kHeldQueries, tokens)) * T * sizeof(float);
  return rows + T * static_cast<std::size_t>(metrics::gate_width(config)) * sizeof(float) +
         Hq * HeadMap::planned_bytes(tokens, cells);
}

models::Taps Collector::taps() const {
  models::Taps out{models::Tap::scores, models::Tap::head_outputs};
  if (layers::has_gate(config_.gate)) out |= {models::Tap::gate_logits};
  return out;
}

void Collector::after_layer(const models::LayerView<float>& view) {
  LayerRecord& record = layers_[static_cast<std::size_t>(view.layer)];
  record.heads.resize(static_cast<std::size_t>(config_.heads));
  const std::vector<HeadMap> maps = maps_of(view);
  std::vector<double> mean(static_cast<std::size_t>(tokens_));
  for (std::size_t h = 0; h < maps.size(); ++h) {
    HeadRecord& head = record.heads[h];
    const std::vector<double> received = maps[h].received();
    head.map = as_roots(maps[h].cells());
    head.received = as_roots(received);
    for (const std::size_t key : largest(received, kTopKeys)) {
      head.top_keys.emplace_back(static_cast<std::int64_t>(key), received[key]);
    }
    for (std::size_t t = 0; t < mean.size(); ++t) mean[t] += received[t] / static_cast<double>(maps.size());
  }
  record.received = as_roots(mean);
  if (view.gate.present()) add_gates(record, view);
  add_ranks(record, view);
}

/// One for each query head.
std::vector<HeadMap> Collector::maps_of(const models::LayerView<float>& view) {
  const std::int64_t Hq = config_.heads, T = tokens_;
  std::vector<HeadMap> maps(static_cast<std::size_t>(Hq), HeadMap(T, cells_));
  const metrics::AttentionCall call = metrics::attention_call(view, context_);
  for (std::int64_t begin = 0; begin < T; begin += kHeldQueries) {
    const std::int64_t count = std::min(kHeldQueries, T - begin);
    std::vector<std::int64_t> queries(static_cast<std::size_t>(count));
    std::iota(queries.begin(), queries.end(), begin);
    StatisticsSelection selection;
    selection.queries =
        ConstTensorView(queries.data(), DType::i64, {1, 1, 1, count}, contiguous_strides({1, 1, 1, count}));
    AttentionStatistics statistics;
    statistics.rows = make_view(rows_.data(), Shape{1, Hq, count, T});
    attention_statistics(statistics, call.inputs, call.lse, selection, call.options);
#pragma omp parallel for schedule(static) num_threads(layers::team_size(context_))
    for (std::int64_t h = 0; h < Hq; ++h) {
      HeadMap& map = maps[static_cast<std::size_t>(h)];
      for (std::int64_t i = begin; i < begin + count; ++i) {
        const std::int64_t first = view.window > 0 ? std::max<std::int64_t>(0, i - view.window + 1) : 0;
        map.add_row(i, first, rows_.data() + (h * count + i - begin) * T + first);
      }
    }
  }
  return maps;
}

void Collector::add_gates(LayerRecord& record, const models::LayerView<float>& view) {
  const std::int64_t width = metrics::gate_width(config_), owners = metrics::gate_owners(config_);
  const View<float, 2> gates = view_of(gates_, tokens_, width);
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
  const std::int64_t features = width / owners, queries = config_.heads / owners;
  for (std::int64_t h = 0; h < config_.heads; ++h) {
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

void Collector::add_ranks(LayerRecord& record, const models::LayerView<float>& view) const {
  const std::int64_t D = config_.head_dim, queries = config_.heads / config_.kv_heads;
  const auto& weights = places_.layer(view.layer, parameters_).attention;
  const std::int64_t first_value = weights.in.shape[0] - config_.kv_heads * D;  // rows of v_proj come last
  Gram values;
  for (std::int64_t h = 0; h < config_.heads; ++h) {
    throw_if_cancelled(context_);
    HeadRecord& head = record.heads[static_cast<std::size_t>(h)];
    if (h % queries == 0) values = gram_of_rows(weights.in.range(0, first_value + h / queries * D, D));
    const Gram outputs = gram_of_columns(weights.out.range(1, h * D, D));
    head.value_output_singular_values = singular_values(values, outputs);
    head.value_output_rank = effective_rank(head.value_output_singular_values);
    View<const float, 2> written;  // (T,D)
    written.data = view.head_outputs.at(0, h);
    written.shape = {tokens_, D};
    written.strides = {view.head_outputs.strides[0], view.head_outputs.strides[2]};
    head.written_rank = effective_rank(singular_values(gram_of_columns(written), outputs));
  }
}

}  // namespace headgate::xray
