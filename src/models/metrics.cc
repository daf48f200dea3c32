// SPDX-License-Identifier: Apache-2.0
#include "models/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "core/check.hpp"
#include "layers/cross_entropy.hpp"
#include "layers/gate_apply.hpp"
#include "layers/gate_variant.hpp"

namespace headgate::models {

namespace {

/// A sum and how many it is of.
struct Mean {
  double sum = 0.0;
  double count = 0.0;

  void add(double value, double weight = 1.0) {
    sum += value;
    count += weight;
  }
  void add(const Mean& other) { add(other.sum, other.count); }
  double value() const { return count > 0.0 ? sum / count : 0.0; }
  std::optional<double> maybe() const { return count > 0.0 ? std::optional(sum / count) : std::nullopt; }
};

/// The larger of two, NaN where one is: std::max hides a NaN on one side.
double larger(double a, double b) { return std::isnan(b) || b > a ? b : a; }

/// 1 or 0 for a share of values below or above a bound; NaN, which compares as neither, for NaN.
double one_if(bool holds, double value) { return std::isnan(value) ? value : holds ? 1.0 : 0.0; }

struct LayerSums {
  Mean exit_loss;                 // over the targets that count
  std::vector<Mean> first_token;  // a head each
  Mean first_token_uniform;
  double massive_activation = 0.0;
  Mean gate, gate_below_tenth, gate_below_hundredth;
};

/// A figure at trigger positions and at the others.
struct Split {
  Mean trigger, other;

  Mean& at(bool is_trigger) { return is_trigger ? trigger : other; }
};

/// Attention of query n's head h to its sequence's first token.
template <typename T>
double first_token_weight(const LayerView<T>& view, std::int64_t b, std::int64_t h, std::int64_t kv, std::int64_t t,
                          std::int64_t D, std::int64_t Hq) {
  const std::int64_t seq = view.shape.seq;
  const T* q = view.q.data + (b * seq + t) * view.q.token_stride + h * view.q.head_stride;
  const T* k = view.k.data + b * seq * view.k.token_stride + kv * view.k.head_stride;
  double score = 0.0;
  for (std::int64_t d = 0; d < D; ++d) score += static_cast<double>(q[d]) * static_cast<double>(k[d]);
  return std::exp(view.scale * score - static_cast<double>(view.lse[(b * Hq + h) * seq + t]));
}

}  // namespace

template <typename T>
struct Evaluator<T>::Sums {
  explicit Sums(const DecoderConfig& config_in, BatchShape shape) : config(config_in) {
    layers.resize(static_cast<std::size_t>(config.layers));
    for (LayerSums& layer : layers) layer.first_token.resize(static_cast<std::size_t>(config.heads));
    const auto N = static_cast<std::size_t>(shape.batch * shape.seq);
    token_losses.resize(N);
    attention.resize(N * static_cast<std::size_t>(config.heads));
    gates.resize(N * gate_width(config));
  }

  /// Gates of a token.
  static std::size_t gate_width(const DecoderConfig& c) {
    const layers::GateLogits logits = layers::gate_logits(c.gate, c.dim, c.heads, c.kv_heads, c.head_dim);
    const bool shared = c.gate.grain == layers::GateGrain::head_shared;
    return static_cast<std::size_t>(shared ? logits.features : logits.count());
  }

  bool shared() const { return config.gate.grain == layers::GateGrain::head_shared; }
  bool is_trigger(std::int64_t n) const { return triggers[n] != 0; }

  void add_losses(const std::int32_t* targets, std::int64_t N);
  void add_attention(const LayerView<T>& view);
  void add_gates(const LayerView<T>& view);
  void add_values(const LayerView<T>& view);
  void add_activation(const LayerView<T>& view);

  DecoderConfig config;
  const std::uint8_t* triggers = nullptr;  // of the batch at hand
  std::int64_t counted = 0;                // targets of the batch at hand that count
  bool any_triggers = false;
  bool any_plain = false;

  Mean loss;
  std::vector<LayerSums> layers;
  Split bos_attention, gate, trigger_loss;
  Mean bos_value_norm_ratio;

  std::vector<T> token_losses;    // (N)
  std::vector<double> attention;  // (Hq,N) on token 0
  std::vector<T> gates;           // (N,heads·features) g(z)
};

template <typename T>
Evaluator<T>::Evaluator(Decoder<T>& decoder)
    : decoder_(decoder), sums_(std::make_unique<Sums>(decoder.config(), decoder.shape())) {}

template <typename T>
Evaluator<T>::~Evaluator() = default;

template <typename T>
void Evaluator<T>::add(const T* parameters, const std::int32_t* tokens, const std::int32_t* targets,
                       const std::uint8_t* triggers) {
  Sums& s = *sums_;
  s.any_triggers = s.any_triggers || triggers != nullptr;
  s.any_plain = s.any_plain || triggers == nullptr;
  require(!s.any_triggers || !s.any_plain, "evaluation: some batches name their triggers and some do not");
  s.triggers = triggers;
  const std::int64_t N = decoder_.shape().batch * decoder_.shape().seq;
  s.counted = N - std::count(targets, targets + N, layers::kIgnoredTarget);
  decoder_.loss(parameters, tokens, targets, this, s.token_losses.data());
  s.add_losses(targets, N);
}

template <typename T>
void Evaluator<T>::after_layer(const LayerView<T>& view) {
  sums_->add_attention(view);
  if (view.gate.data != nullptr) sums_->add_gates(view);
  if (sums_->triggers != nullptr) sums_->add_values(view);
  sums_->add_activation(view);
  const double counted = static_cast<double>(sums_->counted);
  sums_->layers[static_cast<std::size_t>(view.layer)].exit_loss.add(view.exit_loss * counted, counted);
}

template <typename T>
void Evaluator<T>::Sums::add_losses(const std::int32_t* targets, std::int64_t N) {
  for (std::int64_t n = 0; n < N; ++n) {
    if (targets[n] == layers::kIgnoredTarget) continue;
    const auto value = static_cast<double>(token_losses[static_cast<std::size_t>(n)]);
    loss.add(value);
    if (triggers != nullptr) trigger_loss.at(is_trigger(n)).add(value);
  }
}

template <typename T>
void Evaluator<T>::Sums::add_attention(const LayerView<T>& view) {
  const std::int64_t B = view.shape.batch, seq = view.shape.seq, N = B * seq;
  const std::int64_t Hq = config.heads, group = Hq / config.kv_heads, D = config.head_dim;
#pragma omp parallel for collapse(2) schedule(static)
  for (std::int64_t h = 0; h < Hq; ++h) {
    for (std::int64_t n = 0; n < N; ++n) {
      attention[static_cast<std::size_t>(h * N + n)] = first_token_weight(view, n / seq, h, h / group, n % seq, D, Hq);
    }
  }
  LayerSums& sums = layers[static_cast<std::size_t>(view.layer)];
  for (std::int64_t h = 0; h < Hq; ++h) {
    for (std::int64_t n = 0; n < N; ++n) {
      if (n % seq == 0) continue;
      const double weight = attention[static_cast<std::size_t>(h * N + n)];
      sums.first_token[static_cast<std::size_t>(h)].add(weight);
      if (triggers != nullptr) bos_attention.at(is_trigger(n)).add(weight);
    }
  }
  for (std::int64_t t = 1; t < seq; ++t) {
    sums.first_token_uniform.add(static_cast<double>(B) / static_cast<double>(t + 1), static_cast<double>(B));
  }
}

/// The gates as they act: after the function, and after the mean over heads where they share one.
template <typename T>
void Evaluator<T>::Sums::add_gates(const LayerView<T>& view) {
  const std::int64_t N = view.shape.batch * view.shape.seq, H = view.gate_heads, F = view.gate_features;
  const std::int64_t width = shared() ? F : H * F;
  if (shared()) {
    layers::shared_gate_forward(gates.data(), view.gate, {N, H, F}, config.gate.fn);
  } else {
    layers::gate_values(gates.data(), view.gate, {N, H, F}, config.gate.fn);
  }
  LayerSums& sums = layers[static_cast<std::size_t>(view.layer)];
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t w = 0; w < width; ++w) {
      const auto g = static_cast<double>(gates[static_cast<std::size_t>(n * width + w)]);
      sums.gate.add(g);
      sums.gate_below_tenth.add(one_if(g < 0.1, g));
      sums.gate_below_hundredth.add(one_if(g < 0.01, g));
      if (triggers != nullptr && n % view.shape.seq != 0) gate.at(is_trigger(n)).add(g);
    }
  }
}

template <typename T>
void Evaluator<T>::Sums::add_values(const LayerView<T>& view) {
  const std::int64_t seq = view.shape.seq;
  if (seq < 2) return;
  const auto norm = [&](std::int64_t n, std::int64_t h) {
    const T* v = view.v.data + n * view.v.token_stride + h * view.v.head_stride;
    double sum = 0.0;
    for (std::int64_t d = 0; d < config.head_dim; ++d) sum += static_cast<double>(v[d]) * static_cast<double>(v[d]);
    return std::sqrt(sum);
  };
  for (std::int64_t b = 0; b < view.shape.batch; ++b) {
    for (std::int64_t h = 0; h < config.kv_heads; ++h) {
      Mean others;
      for (std::int64_t t = 1; t < seq; ++t) others.add(norm(b * seq + t, h));
      if (others.sum != 0.0) bos_value_norm_ratio.add(norm(b * seq, h) / others.value());
    }
  }
}

template <typename T>
void Evaluator<T>::Sums::add_activation(const LayerView<T>& view) {
  const std::int64_t count = view.shape.batch * view.shape.seq * config.dim;
  double largest = 0.0;
#pragma omp declare reduction(larger:double : omp_out = larger(omp_out, omp_in)) initializer(omp_priv = 0.0)
#pragma omp parallel for schedule(static) reduction(larger : largest)
  for (std::int64_t i = 0; i < count; ++i) largest = larger(largest, std::abs(static_cast<double>(view.output[i])));
  double& so_far = layers[static_cast<std::size_t>(view.layer)].massive_activation;
  so_far = larger(so_far, largest);
}

namespace {

AttentionStatistics statistics_of(const LayerSums& sums) {
  AttentionStatistics out;
  Mean attention, sinks;
  for (const Mean& head : sums.first_token) {
    attention.add(head);
    sinks.add(one_if(head.value() > kSinkThreshold, head.value()));
  }
  out.first_token_attention = attention.value();
  out.first_token_attention_uniform = sums.first_token_uniform.value();
  out.sink_rate = sinks.value();
  out.massive_activation = sums.massive_activation;
  out.gate_mean = sums.gate.maybe();
  out.gate_below_tenth = sums.gate_below_tenth.maybe();
  out.gate_below_hundredth = sums.gate_below_hundredth.maybe();
  return out;
}

LossFigures loss_figures(const Mean& loss) {
  const double nats = loss.value();
  return {nats, nats / std::log(2.0), std::exp(nats)};
}

/// Means over layers: all layers have as many heads, queries and gates.
AttentionStatistics mean_over_layers(const std::vector<Figures>& layers) {
  AttentionStatistics out;
  const double share = 1.0 / static_cast<double>(layers.size());
  const auto join = [share](std::optional<double>& sum, const std::optional<double>& value) {
    if (value) sum = sum.value_or(0.0) + share * *value;
  };
  for (const Figures& figures : layers) {
    const AttentionStatistics& layer = figures.attention;
    out.first_token_attention += share * layer.first_token_attention;
    out.first_token_attention_uniform += share * layer.first_token_attention_uniform;
    out.sink_rate += share * layer.sink_rate;
    out.massive_activation += share * layer.massive_activation;
    join(out.gate_mean, layer.gate_mean);
    join(out.gate_below_tenth, layer.gate_below_tenth);
    join(out.gate_below_hundredth, layer.gate_below_hundredth);
  }
  return out;
}

}  // namespace

bool is_finite(const Figures& figures) {
  return std::isfinite(figures.loss.nats) && std::isfinite(figures.attention.first_token_attention) &&
         std::isfinite(figures.attention.massive_activation);
}

template <typename T>
std::size_t Evaluator<T>::planned_bytes(const DecoderConfig& config, BatchShape shape) {
  const std::size_t heads = static_cast<std::size_t>(config.heads);
  const std::size_t of_token = sizeof(T) * (1 + Sums::gate_width(config)) + sizeof(double) * heads;
  return static_cast<std::size_t>(shape.batch * shape.seq) * of_token;
}

template <typename T>
EvaluationReport Evaluator<T>::report() const {
  EvaluationReport out;
  out.layers.reserve(sums_->layers.size());
  for (const LayerSums& layer : sums_->layers) {
    out.layers.push_back({loss_figures(layer.exit_loss), statistics_of(layer)});
  }
  out.overall = {loss_figures(sums_->loss), mean_over_layers(out.layers)};
  return out;
}

template <typename T>
std::optional<BackcopyReport> Evaluator<T>::backcopy() const {
  const Sums& s = *sums_;
  if (!s.any_triggers) return std::nullopt;
  BackcopyReport out;
  out.bos_attention_trigger = s.bos_attention.trigger.value();
  out.bos_attention_other = s.bos_attention.other.value();
  out.gate_trigger = s.gate.trigger.maybe();
  out.gate_other = s.gate.other.maybe();
  out.loss_trigger = s.trigger_loss.trigger.value();
  out.loss_other = s.trigger_loss.other.value();
  out.bos_value_norm_ratio = s.bos_value_norm_ratio.value();
  return out;
}

template class Evaluator<float>;
template class Evaluator<double>;

}  // namespace headgate::models
