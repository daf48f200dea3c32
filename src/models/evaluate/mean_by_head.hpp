// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "models/evaluate/gates.hpp"
#include "models/evaluate/layer_heads.hpp"
#include "models/evaluate/mean.hpp"
#include "models/evaluate/metric.hpp"
#include "models/evaluate/per_layer.hpp"

namespace headgate::metrics {

/// Accumulates a mean for each head of each layer. A layer's mean is the mean of all numbers that were added to its
/// heads.
class MeanByHead {
 public:
  /// Starts the means. heads_of(layer) returns the number of heads of a layer.
  template <class HeadsOf>
  MeanByHead(const models::DecoderConfig& config, const HeadsOf& heads_of) : layers_(config) {
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      layers_.at(layer).resize(static_cast<std::size_t>(heads_of(layer)));
    }
  }
  explicit MeanByHead(const models::DecoderConfig& config)
      : MeanByHead(config, [&](std::int64_t layer) { return heads_of_layer(config, layer); }) {}

  std::int64_t heads(std::int64_t layer) const { return std::ssize(layers_.at(layer)); }
  Mean& at(std::int64_t layer, std::int64_t head) { return layers_.at(layer)[static_cast<std::size_t>(head)]; }
  const Mean& at(std::int64_t layer, std::int64_t head) const {
    return layers_.at(layer)[static_cast<std::size_t>(head)];
  }
  Mean of_layer(std::int64_t layer) const {
    Mean mean;
    for (const Mean& head : layers_.at(layer)) mean.add(head);
    return mean;
  }

 private:
  PerLayer<std::vector<Mean>> layers_;
};

/// Adds value(h, n) to the mean of head h, for each head and each query n. Omits queries at the first token of a
/// sequence.
template <typename T, class Value>
void add_queries(MeanByHead& mean, const LayerSample<T>& sample, const Value& value) {
  for (std::int64_t h = 0; h < mean.heads(sample.view.layer); ++h) {
    Mean& head = mean.at(sample.view.layer, h);
    for (std::int64_t n = 0; n < sample.tokens(); ++n) {
      if (sample.position(n) != 0) head.add(value(h, n));
    }
  }
}

/// Base of metrics that compute one number, the mean over some numbers of a head. The mean is null if there are no such
/// numbers.
template <typename T>
class HeadMeanSums : public Sums<T> {
 public:
  explicit HeadMeanSums(const models::DecoderConfig& config) : heads_(config) {}

  Values of_layer(std::int64_t layer) const override { return {heads_.of_layer(layer).maybe()}; }
  Values of_head(std::int64_t layer, std::int64_t head) const override { return {heads_.at(layer, head).maybe()}; }

 protected:
  MeanByHead heads_;
};

/// Accumulates for each query head the mean over queries of kOfQueries(Hq,N). The template argument kOfQueries is a
/// member of LayerSample with one number per query.
template <typename T, View<const double, 2> LayerSample<T>::*kOfQueries>
class QueryMeanSums : public HeadMeanSums<T> {
 public:
  using HeadMeanSums<T>::HeadMeanSums;

  void add_layer(const LayerSample<T>& sample) override {
    add_queries(this->heads_, sample, [&](std::int64_t h, std::int64_t n) { return (sample.*kOfQueries)(h, n); });
  }
};

/// Accumulates for each value head of linear attention the mean over queries of kOfQueries(Hv,B·seq_len). The template
/// argument kOfQueries is a member of RuleStatistics with one number per query of whole sequences.
template <typename T, View<const double, 2> RuleStatistics::*kOfQueries>
class RuleQueryMeanSums : public HeadMeanSums<T> {
 public:
  using HeadMeanSums<T>::HeadMeanSums;

  void add_layer(const LayerSample<T>& sample) override {
    const View<const double, 2>& of_queries = sample.rule.*kOfQueries;
    for (std::int64_t h = 0; h < of_queries.shape[0]; ++h) {
      Mean& head = this->heads_.at(sample.view.layer, h);
      for (std::int64_t n = 0; n < of_queries.shape[1]; ++n) {
        if (n % sample.view.seq_len != 0) head.add(of_queries(h, n));
      }
    }
  }
};

/// Adds value(x) to the mean of head h, for each number x = states(b, h) of sequence b. Its weight in the mean is the
/// sample's number of tokens per sequence.
template <typename T, class Value>
void add_states(MeanByHead& mean, const LayerSample<T>& sample, const View<const double, 2>& states,
                const Value& value) {
  const auto tokens = static_cast<double>(sample.view.shape.seq);
  for (std::int64_t b = 0; b < states.shape[0]; ++b) {
    for (std::int64_t h = 0; h < states.shape[1]; ++h) {
      mean.at(sample.view.layer, h).add(tokens * value(states(b, h)), tokens);
    }
  }
}

/// Accumulates for each value head of linear attention the mean over sequences of kOfStates(B,Hv). The template
/// argument kOfStates is a member of RuleStatistics with one number per sequence and head.
template <typename T, View<const double, 2> RuleStatistics::*kOfStates>
class StateMeanSums : public HeadMeanSums<T> {
 public:
  using HeadMeanSums<T>::HeadMeanSums;

  void add_layer(const LayerSample<T>& sample) override {
    add_states(this->heads_, sample, sample.rule.*kOfStates, [](double x) { return x; });
  }
};

/// Accumulates the mean of the gates of each layer and of each query head. If the gate is on keys or values, a query
/// head has the gates of its key/value head. Heads have no mean if they share one gate, or if the gate is on the
/// layer's output.
class MeanByGate {
 public:
  explicit MeanByGate(const models::DecoderConfig& config)
      : queries_(config), mean_(config, [&](std::int64_t layer) { return one_or(gate_owners(config, layer)); }) {
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      const std::int64_t owners = gate_owners(config, layer);
      queries_.at(layer) = owners == 0 ? 0 : heads_of_layer(config, layer) / owners;
    }
  }

  /// Adds value(g) to the means, for every gate g = g(z) of the sample's layer.
  template <typename T, class Value>
  void add(const LayerSample<T>& sample, const Value& value) {
    const std::int64_t features = sample.gates.shape[1] / mean_.heads(sample.view.layer);
    for (std::int64_t n = 0; n < sample.gates.shape[0]; ++n) {
      for (std::int64_t x = 0; x < sample.gates.shape[1]; ++x) {
        mean_.at(sample.view.layer, x / features).add(value(static_cast<double>(sample.gates(n, x))));
      }
    }
  }
  std::optional<double> of_layer(std::int64_t layer) const { return mean_.of_layer(layer).maybe(); }
  std::optional<double> of_head(std::int64_t layer, std::int64_t head) const {
    const std::int64_t queries = queries_.at(layer);
    return queries == 0 ? std::nullopt : mean_.at(layer, head / queries).maybe();
  }

 private:
  static std::int64_t one_or(std::int64_t count) { return count == 0 ? 1 : count; }

  /// For each layer: number of query heads that share a head's gates; 0 if heads have no gates of their own.
  PerLayer<std::int64_t> queries_;
  MeanByHead mean_;
};

}  // namespace headgate::metrics
