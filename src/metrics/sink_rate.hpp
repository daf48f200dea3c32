// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "metrics/mean_by_head.hpp"

namespace headgate::metrics {

inline constexpr Figure kSinkRate{
    .key = "sink_rate", .null_for_one_token = true, .column = {"sinks", 8, 3}, .demo = {"sink", "rate", 2}};

/// A head whose mean attention to token 0 exceeds it rests there.
inline constexpr double kSinkThreshold = 0.3;

template <typename T>
class SinkRateSums : public Sums<T> {
 public:
  explicit SinkRateSums(const models::DecoderConfig& config) : heads_(config) {}

  void add_layer(const LayerSample<T>& sample) override { heads_.add(sample); }
  Values of_layer(std::int64_t layer) const override {
    Mean share;
    for (const Mean& head : heads_.of_layer(layer)) share.add(one_if(head.value() > kSinkThreshold, head.value()));
    return {share.value()};
  }

 private:
  MeanByHead<T> heads_;
};

inline constexpr Metric kSinkRateMetric{
    .name = "sink_rate",
    .definition = "share of heads whose own `first_token_attention` exceeds 0.3",
    .figures = {&kSinkRate, 1},
    .inputs = {Input::first_token_weights},
    .sums = kSumsOf<SinkRateSums>,
    .training_text = [](const FigureRow& row) { return fmt::format(", sink rate {:.2f}", row.or_zero(kSinkRate)); },
};

}  // namespace headgate::metrics
