// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "headgate/cache.hpp"
#include "library/core/element.hpp"
#include "library/core/view.hpp"
#include "models/evaluate/metric.hpp"
#include "models/evaluate/per_layer.hpp"
#include "models/evaluate/token_ranges.hpp"
#include "models/layers/activation_rounding.hpp"
#include "models/layers/arguments.hpp"

// Measures the error of symmetric int8 rounding, x̂ = s · round(x / s). The scale is s = max|x| / 127, and round()
// rounds to nearest even.

namespace headgate::metrics {

/// Holds three sums over the numbers x of a tensor:
/// - squares: Σ x².
/// - per_tensor: Σ (x − x̂)², where all numbers share one scale.
/// - per_token: Σ (x − x̂)², where the numbers of each token share a scale.
struct RoundingErrors {
  double squares = 0.0, per_tensor = 0.0, per_token = 0.0;

  void join(const RoundingErrors& other) {
    squares += other.squares;
    per_tensor += other.per_tensor;
    per_token += other.per_token;
  }
  /// Returns the relative error ‖x − x̂‖ / ‖x‖. `errors` is ‖x − x̂‖². Returns nothing if all numbers are 0.
  std::optional<double> relative(double errors) const {
    return squares == 0.0 ? std::nullopt : std::optional(std::sqrt(errors / squares));
  }
};

/// Holds two sums of rounding errors: `all` covers all tokens, `without_first` omits the first token of each sequence.
struct Int8Rounding {
  RoundingErrors all, without_first;

  void join(const Int8Rounding& other) {
    all.join(other.all);
    without_first.join(other.without_first);
  }
  /// Returns four relative errors: one scale per tensor, with and without the first token; then one scale per token,
  /// with and without the first token. kInt8KeysFigures and kInt8ValuesFigures have the same order.
  Values values() const {
    return {all.relative(all.per_tensor), without_first.relative(without_first.per_tensor), all.relative(all.per_token),
            without_first.relative(without_first.per_token)};
  }
};

/// Returns element i of a row in f64.
template <typename E>
double number_at(const View<const E, 1>& row, std::int64_t i) {
  return static_cast<double>(layers::widened(row(i)));
}

/// Returns Σ (x − x̂)² over a row, where x̂ is x rounded to int8 with the scale of max|x| = largest. Infinities give
/// NaN.
template <typename E>
double squared_error(const View<const E, 1>& row, double largest) {
  const double scale = layers::int8_scale(largest);
  double sum = 0.0;
  for (std::int64_t i = 0; i < row.shape[0]; ++i) {
    const double x = number_at(row, i), error = x - layers::rounded_to_int8(x, scale);
    sum += error * error;
  }
  return sum;
}

/// Returns the rounding errors of a tensor whose row(t) holds the numbers of token t of a sequence. In `without_first`,
/// row 0 contributes no error and does not influence the scale.
template <class Row>
Int8Rounding int8_rounding(std::int64_t tokens, const ExecutionContext& context, const Row& row) {
  const auto largest_of = [](const auto& numbers) {
    double largest = 0.0;
    for (std::int64_t i = 0; i < numbers.shape[0]; ++i) largest = std::max(largest, std::abs(number_at(numbers, i)));
    return largest;
  };
  struct Largest {
    double first = 0.0, others = 0.0;

    void join(const Largest& other) {
      first = std::max(first, other.first);
      others = std::max(others, other.others);
    }
  };
  const auto largest = over_tokens<Largest>(tokens, context, [&](Largest& found, std::int64_t t) {
    double& kept = t == 0 ? found.first : found.others;
    kept = std::max(kept, largest_of(row(t)));
  });
  return over_tokens<Int8Rounding>(tokens, context, [&](Int8Rounding& sums, std::int64_t t) {
    const auto numbers = row(t);
    RoundingErrors errors;
    for (std::int64_t i = 0; i < numbers.shape[0]; ++i) errors.squares += std::pow(number_at(numbers, i), 2);
    errors.per_token = squared_error(numbers, largest_of(numbers));
    errors.per_tensor = squared_error(numbers, std::max(largest.first, largest.others));
    sums.all.join(errors);
    if (t == 0) return;
    errors.per_tensor = squared_error(numbers, largest.others);
    sums.without_first.join(errors);
  });
}

/// Returns the rounding errors of keys or values `x` of type E, summed over heads and sequences. Each key/value head of
/// each sequence is rounded as a tensor of its own. The shape of `x` is (B,Hkv,T,D) without a cache, and
/// (pages,Hkv,page,D) for a tensor of a paged cache.
template <typename E, typename T>
Int8Rounding int8_rounding_of_heads(const LayerSample<T>& sample, const ConstTensorView& x) {
  const CacheBatch* const cache = sample.view.cache;
  Int8Rounding out;
  for (std::int64_t b = 0; b < sample.view.shape.batch; ++b) {
    for (std::int64_t h = 0; h < x.shape[1]; ++h) {
      const auto row = [&](std::int64_t t) {
        const auto page = static_cast<std::size_t>(t / x.shape[2]);
        const std::int64_t block = cache != nullptr ? cache->block_table[page] : b;
        const E* const data = static_cast<const E*>(x.data) + offset_of(x, block, h, t % x.shape[2], 0);
        return View<const E, 1>(data, {x.shape[3]}, {x.strides[3]});
      };
      out.join(int8_rounding(sample.view.seq_len, sample.context, row));
    }
  }
  return out;
}

/// Returns the rounding errors of the keys or values of whole sequences (see int8_rounding_of_heads). Sequences that
/// are processed in parts have a cache: its tensor `cached` holds the numbers. Otherwise own(B,Hkv,T,D) holds them.
template <typename T>
Int8Rounding int8_rounding_of(const LayerSample<T>& sample, const ConstTensorView& own,
                              TensorView CacheTensors::*cached) {
  const ConstTensorView x = sample.view.cache != nullptr ? sample.view.cache->tensors.*cached : own;
  return x.dtype == DType::bf16 ? int8_rounding_of_heads<BFloat16>(sample, x) : int8_rounding_of_heads<T>(sample, x);
}

/// Accumulates int8 rounding errors for each layer. kRounding(sample) must return the errors of whole sequences.
/// Samples that end before their sequences do are skipped.
template <typename T, Int8Rounding (*kRounding)(const LayerSample<T>& sample)>
class Int8RoundingSums : public Sums<T> {
 public:
  explicit Int8RoundingSums(const models::DecoderConfig& config) : layers_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    if (sample.view.ends_sequence()) layers_.at(sample.view.layer).join(kRounding(sample));
  }
  Values of_layer(std::int64_t layer) const override { return layers_.at(layer).values(); }

 private:
  PerLayer<Int8Rounding> layers_;
};

}  // namespace headgate::metrics
