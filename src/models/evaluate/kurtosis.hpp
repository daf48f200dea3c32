// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "models/evaluate/metric.hpp"
#include "models/evaluate/per_layer.hpp"
#include "models/evaluate/token_ranges.hpp"

namespace headgate::metrics {

inline constexpr std::array<Figure, 2> kKurtosisFigures{{
    {.key = "kurtosis",
     .decimals = 1,
     .meaning =
         "How far outliers dominate the residual stream: its fourth central moment over its squared variance, 3 for "
         "normally distributed entries."},
    {.key = "kurtosis_without_first",
     .null_for_one_token = true,
     .decimals = 1,
     .meaning = "The kurtosis of the residual stream without the first token, which often holds massive activations."},
}};

/// Sums of the first four powers of numbers.
struct PowerSums {
  double count = 0.0, first = 0.0, second = 0.0, third = 0.0, fourth = 0.0;

  void add(double x) {
    const double square = x * x;
    count += 1.0;
    first += x;
    second += square;
    third += square * x;
    fourth += square * square;
  }
  void join(const PowerSums& other) {
    count += other.count;
    first += other.first;
    second += other.second;
    third += other.third;
    fourth += other.fourth;
  }
  /// Returns the fourth central moment divided by the squared variance. Returns nothing if |mean| exceeds about 300
  /// standard deviations, for example if all numbers are equal. The variance would then be mostly rounding error.
  std::optional<double> kurtosis() const {
    if (count == 0.0) return std::nullopt;
    const double mean = first / count;
    const double variance = second / count - mean * mean;
    const double moment =
        fourth / count - mean * (4.0 * third / count - mean * (6.0 * second / count - 3.0 * mean * mean));
    return variance <= 1e-5 * second / count ? std::nullopt : std::optional(moment / (variance * variance));
  }
};

/// Power sums of the first tokens of sequences, and power sums of all other tokens.
struct StreamSums {
  PowerSums first_tokens, others;

  void join(const StreamSums& other) {
    first_tokens.join(other.first_tokens);
    others.join(other.others);
  }
};

template <typename T>
class KurtosisSums : public Sums<T> {
 public:
  explicit KurtosisSums(const models::DecoderConfig& config) : layers_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    const auto add = [](StreamSums& sums, double x, std::int64_t token, std::int64_t /*channel*/) {
      (token == 0 ? sums.first_tokens : sums.others).add(x);
    };
    layers_.at(sample.view.layer).join(over_stream<StreamSums>(sample, add));
  }
  Values of_layer(std::int64_t layer) const override {
    const StreamSums& sums = layers_.at(layer);
    PowerSums all = sums.first_tokens;
    all.join(sums.others);
    return {all.kurtosis(), sums.others.kurtosis()};
  }

 private:
  PerLayer<StreamSums> layers_;
};

inline constexpr Metric kKurtosisMetric{
    .name = "kurtosis",
    .definition =
        "n Σ (x − m)⁴ / (Σ (x − m)²)² of the n entries x of the residual stream after the layer: all tokens and "
        "channels, "
        "with mean m. The second leaves out token 0 of each sequence",
    .figures = kKurtosisFigures,
    .inputs = {Input::output},
    .sums = kSumsOf<KurtosisSums>,
};

}  // namespace headgate::metrics
