// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "models/evaluate/mean_by_head.hpp"

namespace headgate::metrics {

inline constexpr std::array<Figure, 2> kDecayFigures{{
    {.key = "mean_decay",
     .is_share = true,
     .decimals = 4,
     .meaning = "What a token leaves of the state that linear attention holds, before it writes its own: 1 keeps all "
                "of it."},
    {.key = "half_life",
     .may_overflow = true,
     .decimals = 1,
     .meaning = "After how many tokens the decay has halved what a state holds."},
}};
inline constexpr const Figure& kMeanDecay = kDecayFigures[0];
inline constexpr const Figure& kHalfLife = kDecayFigures[1];

template <typename T>
class DecaySums : public Sums<T> {
 public:
  explicit DecaySums(const models::DecoderConfig& config) : decays_(config), logarithms_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    add_states(decays_, sample, sample.rule.mean_decay, [](double decay) { return decay; });
    add_states(logarithms_, sample, sample.rule.half_life, [](double half_life) { return -kLn2 / half_life; });
  }
  Values of_layer(std::int64_t layer) const override {
    return values(decays_.of_layer(layer), logarithms_.of_layer(layer));
  }
  Values of_head(std::int64_t layer, std::int64_t head) const override {
    return values(decays_.at(layer, head), logarithms_.at(layer, head));
  }

 private:
  static constexpr double kLn2 = 0.69314718055994530942;

  /// Computes 0 − g instead of −g: without decay, g is 0 and ln 2 / −0.0 would be −∞.
  static Values values(const Mean& decay, const Mean& logarithm) {
    return {decay.value(), kLn2 / (0.0 - logarithm.value())};
  }

  MeanByHead decays_, logarithms_;  // means of the decay e^g and of its logarithm g
};

inline constexpr Metric kDecay{
    .name = "decay",
    .definition =
        "of linear attention: mean of e^g over tokens and value heads; ln 2 / −(mean of g) in tokens, infinite where "
        "nothing decays",
    .figures = kDecayFigures,
    .layers = MetricLayers::linear_attention,
    .inputs = {Input::rule_means},
    .of_heads = true,
    .sums = kSumsOf<DecaySums>,
};

}  // namespace headgate::metrics
