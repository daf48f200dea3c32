// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/evaluator.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>

#include "headgate/linear_attention_statistics.hpp"
#include "library/core/check.hpp"
#include "models/evaluate/attention_call.hpp"
#include "models/evaluate/gates.hpp"
#include "models/evaluate/layer_heads.hpp"
#include "models/evaluate/mean.hpp"
#include "models/layers/cross_entropy.hpp"

namespace headgate::metrics {

namespace {

using models::DecoderConfig;
using models::LayerView;
using models::Tap;

Inputs inputs_of(const MetricList& metrics) {
  Inputs out;
  for (const Metric* metric : metrics) out |= metric->inputs;
  return out;
}

/// Returns the given metrics, without metrics of linear attention if the model has no such layer.
MetricList metrics_of(const MetricList& metrics, const DecoderConfig& config) {
  MetricList out;
  for (const Metric* metric : metrics) {
    if (metric->layers != MetricLayers::linear_attention || value_heads(config) > 0) out.push_back(metric);
  }
  return out;
}

template <typename T>
std::unique_ptr<Sums<T>> sums_of(const Metric& metric, const DecoderConfig& config) {
  if constexpr (std::is_same_v<T, float>) {
    return metric.sums.f32(config);
  } else {
    return metric.sums.f64(config);
  }
}

/// Holds the number of elements in each buffer of an evaluator.
struct Sizes {
  std::size_t token_losses = 0, first_token_weights = 0, entropies = 0, gates = 0, rule = 0;

  /// `shape` is the shape of a batch. `part` is the shape of the tokens that a layer processes at a time.
  Sizes(const DecoderConfig& config, models::BatchShape shape, models::BatchShape part, Inputs inputs) {
    const auto all = static_cast<std::size_t>(shape.batch * shape.seq);
    const auto N = static_cast<std::size_t>(part.batch * part.seq);
    if (inputs.has(Input::token_losses)) token_losses = all;
    const std::size_t of_queries = N * static_cast<std::size_t>(most_query_heads(config));
    if (inputs.has(Input::first_token_weights)) first_token_weights = of_queries;
    if (inputs.has(Input::entropies)) entropies = of_queries;
    if (inputs.has(Input::gates)) gates = N * static_cast<std::size_t>(most_gates(config));
    const auto Hv = static_cast<std::size_t>(value_heads(config));
    const std::size_t of_states = static_cast<std::size_t>(shape.batch) * Hv;
    if (inputs.has(Input::rule_means)) rule += 3 * of_states;
    if (inputs.has(Input::state_ranks)) rule += of_states;
    if (inputs.has(Input::hidden_weights)) rule += 2 * all * Hv;
  }
};

/// Combines the layers' values of `figure`, one of the numbers that `metric` computes, to a value for the whole model.
/// Returns nothing if no layer has a value.
std::optional<double> over_layers(const std::vector<FigureRow>& layers, const Metric& metric, const Figure& figure) {
  const Figure& compared = figure.over_layers == OverLayers::of_the_maximum ? metric.figures[0] : figure;
  const FigureRow* largest = nullptr;
  Mean mean;
  for (const FigureRow& layer : layers) {
    const std::optional<double> value = layer.find(compared);
    if (!value) continue;
    mean.add(*value);
    if (largest == nullptr || exceeds(*value, largest->at(compared))) largest = &layer;
  }
  if (figure.over_layers == OverLayers::mean) return mean.maybe();
  return largest == nullptr ? std::nullopt : largest->find(figure);
}

}  // namespace

models::PartOptions parts_of(std::int64_t tokens, const MetricList& metrics) {
  return {.tokens = tokens, .stores_delta_inputs = inputs_of(metrics).has(Input::hidden_weights)};
}

template <typename T>
Evaluator<T>::Evaluator(models::SequenceDecoder<T>& decoder, const MetricList& metrics)
    : decoder_(decoder), inputs_(inputs_of(metrics_of(metrics, decoder.config()))) {
  for (const Metric* metric : metrics_of(metrics, decoder.config()))
    running_.push_back({metric, sums_of<T>(*metric, decoder.config())});
  const Sizes sizes(decoder.config(), decoder.shape(), decoder.part_shape(), inputs_);
  token_losses_.resize(sizes.token_losses);
  first_token_weights_.resize(sizes.first_token_weights);
  entropies_.resize(sizes.entropies);
  gates_.resize(sizes.gates);
  rule_.resize(sizes.rule);
}

template <typename T>
std::size_t Evaluator<T>::planned_bytes(const DecoderConfig& config, models::BatchShape shape,
                                        const MetricList& metrics, const models::PartOptions& parts) {
  const Sizes sizes(config, shape, models::part_shape(shape, parts), inputs_of(metrics_of(metrics, config)));
  return sizeof(T) * (sizes.token_losses + sizes.gates) +
         sizeof(double) * (sizes.first_token_weights + sizes.entropies + sizes.rule);
}

template <typename T>
models::Taps Evaluator<T>::taps() const {
  models::Taps out;
  if (inputs_.has(Input::exit_loss)) out |= {Tap::exit_loss};
  if (inputs_.has(Input::output)) out |= {Tap::output};
  if (inputs_.has(Input::values)) out |= {Tap::values};
  if (inputs_.has(Input::cached)) out |= {Tap::scores, Tap::values};
  for (const Input input :
       {Input::first_token_weights, Input::entropies, Input::sink_weights, Input::rule_means, Input::state_ranks}) {
    if (inputs_.has(input)) out |= {Tap::scores};
  }
  if (inputs_.has(Input::hidden_weights)) out |= {Tap::sequence_delta_inputs};
  if (inputs_.has(Input::gates) || inputs_.has(Input::output_gates)) out |= {Tap::gate_logits};
  return out;
}

template <typename T>
void Evaluator<T>::add(const T* parameters, const std::int32_t* tokens, const std::int32_t* targets,
                       const std::uint8_t* triggers) {
  any_triggers_ = any_triggers_ || triggers != nullptr;
  any_plain_ = any_plain_ || triggers == nullptr;
  require(!any_triggers_ || !any_plain_, "evaluation: some batches name their triggers and some do not");
  const std::int64_t N = decoder_.shape().batch * decoder_.shape().seq;
  triggers_ = {triggers, {N}};
  targets_ = {targets, {N}};
  decoder_.loss(parameters, tokens, targets, this, token_losses_.empty() ? nullptr : token_losses_.data());
  const LossSample<T> sample{{token_losses_.data(), {N}}, {targets, {N}}, triggers_};
  for (const Running& running : running_) {
    const bool applies = triggers_.present() || running.metric->scope != Scope::triggers;
    if (applies && running.metric->inputs.has(Input::token_losses)) running.sums->add_losses(sample);
  }
}

template <typename T>
void Evaluator<T>::after_layer(const LayerView<T>& view) {
  const std::int64_t N = view.shape.batch * view.shape.seq;
  LayerSample<T> sample{view, decoder_.context(), {}, {}, {}, {}, {}};
  if (triggers_.present()) sample.triggers = triggers_.range(0, view.first_position, N);
  if (inputs_.has(Input::exit_loss)) {
    const std::int32_t* const targets = targets_.at(view.first_position);
    sample.counted_targets = N - std::count(targets, targets + N, layers::kIgnoredTarget);
  }
  if (view.type == models::LayerType::linear_attention) {
    sample.rule = rule_statistics_of(view);
  } else {
    if (inputs_.has(Input::first_token_weights)) sample.first_token_weights = first_token_weights_of(view);
    if (inputs_.has(Input::entropies)) sample.entropies = entropies_of(view);
    if (inputs_.has(Input::gates) && view.gate.present()) sample.gates = gates_of(view);
  }
  for (const Running& running : running_) {
    if (!is_about(*running.metric, decoder_.config(), view.layer, view.seq_len)) continue;
    if (!triggers_.present() && running.metric->scope == Scope::triggers) continue;
    if (!sample.gates.present() && running.metric->inputs.has(Input::gates)) continue;
    running.sums->add_layer(sample);
  }
}

namespace {

/// Views the first elements of a buffer as (rows, columns). The buffer is large enough for every layer.
template <typename N>
View<N, 2> first_of(std::vector<N>& buffer, std::int64_t rows, std::int64_t columns) {
  return {buffer.data(), {rows, columns}};
}

/// Views `out` (Hq,B·seq), which has one number per query, in the shape (B,Hq,seq,1) that attention_statistics writes.
TensorView of_queries(const View<double, 2>& out, std::int64_t B, std::int64_t seq) {
  return make_view(out.data, {B, out.shape[0], seq, 1}, {seq, out.strides[0], 1, 1});
}

}  // namespace

template <typename T>
View<const double, 2> Evaluator<T>::first_token_weights_of(const LayerView<T>& view) {
  const View<double, 2> weights = first_of(first_token_weights_, view.q.shape[1], view.shape.batch * view.shape.seq);
  const AttentionCall call = with_all_visible(attention_call(view, decoder_.context()));
  AttentionStatistics statistics;
  statistics.first = of_queries(weights, view.shape.batch, view.shape.seq);
  attention_statistics(statistics, call.inputs, call.lse, {}, call.options);
  return weights;
}

template <typename T>
View<const double, 2> Evaluator<T>::entropies_of(const LayerView<T>& view) {
  const View<double, 2> entropies = first_of(entropies_, view.q.shape[1], view.shape.batch * view.shape.seq);
  const AttentionCall call = attention_call(view, decoder_.context());
  AttentionStatistics statistics;
  statistics.entropy = of_queries(entropies, view.shape.batch, view.shape.seq);
  attention_statistics(statistics, call.inputs, call.lse, {}, call.options);
  return entropies;
}

template <typename T>
View<const T, 2> Evaluator<T>::gates_of(const LayerView<T>& view) {
  const View<T, 2> gates = first_of(gates_, view.gate.shape[0], gate_width(decoder_.config(), view.layer));
  gate_values_of(gates, view, decoder_.config(), decoder_.context());
  return gates;
}

/// Computes only the statistics that some metric reads.
template <typename T>
RuleStatistics Evaluator<T>::rule_statistics_of(const LayerView<T>& view) {
  const std::int64_t B = view.shape.batch, Hv = value_heads(decoder_.config());
  RuleStatistics out;
  LinearAttentionStatistics of_part, of_sequence;
  double* next = rule_.data();
  const auto take = [&next](std::int64_t rows, std::int64_t columns) {
    const View<double, 2> taken{next, {rows, columns}};
    next += rows * columns;
    return taken;
  };
  const auto of_states = [&](View<const double, 2>& figures, TensorView& output) {
    const View<double, 2> taken = take(B, Hv);
    figures = taken;
    output = make_view(taken.data, {B, Hv, 1, 1});
  };
  const auto of_each_query = [&](View<const double, 2>& figures, TensorView& output) {
    const View<double, 2> taken = take(Hv, B * view.seq_len);
    figures = taken;
    output = of_queries(taken, B, view.seq_len);
  };
  if (inputs_.has(Input::rule_means)) {
    of_states(out.mean_decay, of_part.mean_decay);
    of_states(out.mean_beta, of_part.mean_beta);
    of_states(out.half_life, of_part.half_life);
  }
  const bool ends = view.ends_sequence();
  if (inputs_.has(Input::state_ranks) && ends) of_states(out.effective_rank, of_part.effective_rank);
  if (next != rule_.data()) linear_attention_statistics(of_part, view.delta_inputs, view.delta_options);
  if (inputs_.has(Input::hidden_weights) && ends) {
    of_each_query(out.first_shares, of_sequence.first_share);
    of_each_query(out.reaches, of_sequence.reach);
    linear_attention_statistics(of_sequence, view.sequence_delta_inputs, view.delta_options);
  }
  return out;
}

template <typename T>
Report Evaluator<T>::report() const {
  const DecoderConfig& config = decoder_.config();
  Report out;
  out.layers.resize(static_cast<std::size_t>(config.layers));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    out.heads.emplace_back(static_cast<std::size_t>(heads_of_layer(config, layer)));
  }
  if (any_triggers_) out.backcopy.emplace();
  for (const Running& running : running_) {
    out.metrics.push_back(running.metric);
    add_figures(out, running);
  }
  return out;
}

/// Adds a metric's results to a report. They are null for layers that the metric does not cover.
template <typename T>
void Evaluator<T>::add_figures(Report& out, const Running& running) const {
  const Metric& metric = *running.metric;
  const DecoderConfig& config = decoder_.config();
  const std::int64_t seq = decoder_.shape().seq;
  const auto set = [&](FigureRow& row, bool defined, const Values& values) {
    require(values.size() == metric.figures.size(), "metric {}: {} values for {} figures", metric.name, values.size(),
            metric.figures.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Figure& figure = metric.figures[i];
      row.set(figure, !defined || (seq < 2 && figure.null_for_one_token) ? std::nullopt : values[i]);
    }
  };
  const bool in_model = is_about(metric, config, seq);
  if (metric.scope == Scope::model) set(out.overall, in_model, running.sums->of_model());
  if (metric.scope == Scope::triggers && any_triggers_) set(*out.backcopy, in_model, running.sums->of_model());
  if (metric.scope != Scope::layers && metric.scope != Scope::layers_and_mean) return;
  for (std::size_t i = 0; i < out.layers.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    const bool in_layer = is_about(metric, config, layer, seq);
    set(out.layers[i], in_layer, running.sums->of_layer(layer));
    if (!metric.of_heads) continue;
    const Values none(metric.figures.size());
    std::int64_t head = 0;
    for (FigureRow& row : out.heads[i]) {
      set(row, in_layer, in_layer ? running.sums->of_head(layer, head++) : none);
    }
  }
  if (metric.scope == Scope::layers) return;
  for (const Figure& figure : metric.figures) out.overall.set(figure, over_layers(out.layers, metric, figure));
}

template class Evaluator<float>;
template class Evaluator<double>;

}  // namespace headgate::metrics
