// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/core/view.hpp"
#include "models/layers/arguments.hpp"
#include "models/layers/magnitude.hpp"

// Provides what tests of layers share: random data, strided tensors, comparisons, runs on every vector target.

namespace headgate::layers {

using Random = std::mt19937_64;

/// Returns values that f32 holds exactly, so that the f32 and f64 instances of a layer get the same input.
inline std::vector<double> random_values(Random& random, std::int64_t n, double scale = 1.0) {
  std::normal_distribution<double> normal(0.0, scale);
  std::vector<double> values(static_cast<std::size_t>(n));
  for (double& value : values) value = static_cast<float>(normal(random));
  return values;
}

inline std::int64_t random_int(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

inline std::vector<std::int32_t> random_tokens(Random& random, std::int64_t n, std::int64_t V) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(n));
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random_int(random, 0, V - 1));
  return tokens;
}

template <typename T>
std::vector<T> as(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// The shape of tokens with heads: (N,H,D).
using HeadShape = std::array<std::int64_t, 3>;

/// Holds a (N,H,D) tensor with gaps between heads and between tokens. The gaps hold values too, so that writes there
/// are detected.
template <typename T>
struct Strided {
  std::vector<T> data;
  HeadShape shape{};
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t start = 0;

  View<T, 3> view() { return {data.data() + start, shape, {token_stride, head_stride, 1}}; }
  View<const T, 3> view() const { return {data.data() + start, shape, {token_stride, head_stride, 1}}; }
  T at(std::int64_t n, std::int64_t h, std::int64_t d) const { return view()(n, h, d); }
  /// Calls visit(n, h, d) for each element.
  template <class Visit>
  void each(const Visit& visit) const {
    for (std::int64_t n = 0; n < shape[0]; ++n) {
      for (std::int64_t h = 0; h < shape[1]; ++h) {
        for (std::int64_t d = 0; d < shape[2]; ++d) visit(n, h, d);
      }
    }
  }
  /// Returns the same layout with other values.
  template <typename U = T>
  Strided<U> with(std::vector<double> values) const {
    return {as<U>(values), shape, token_stride, head_stride, start};
  }
  template <typename U = T>
  Strided<U> zeros() const {
    return {std::vector<U>(data.size(), U{0}), shape, token_stride, head_stride, start};
  }
  /// Returns the same layout with numbers, which may be on a tape.
  Strided<Number> of(std::vector<Number> numbers) const {
    return {std::move(numbers), shape, token_stride, head_stride, start};
  }
  std::int64_t size() const { return static_cast<std::int64_t>(data.size()); }
};

/// Returns random values with random strides.
inline Strided<double> random_strided(Random& random, const HeadShape& shape, double scale = 1.0) {
  Strided<double> s;
  s.shape = shape;
  s.head_stride = shape[2] + random_int(random, 0, 3);
  s.token_stride = shape[1] * s.head_stride + random_int(random, 0, 5);
  s.start = random_int(random, 0, 3);
  s.data = random_values(random, s.start + shape[0] * s.token_stride + 1, scale);
  return s;
}

/// Returns a context of `threads` threads, by default as many as OpenMP offers.
inline ExecutionContext with_threads(int threads = 0) { return resolved({.threads = threads}); }

/// Bounds |actual − expected| by the roundings of both.
template <typename T>
void expect_within(const std::string& what, T actual, const Number& expected) {
  const double tolerance = tolerance_of(dtype_of<T>(), expected);
  const double ratio = verify::error_ratio(static_cast<double>(actual), expected.value, tolerance, dtype_of<T>());
  EXPECT_LE(ratio, 1.0) << what << ": " << actual << " for " << expected.value << ", magnitude " << expected.magnitude
                        << ", terms " << expected.terms;
}

/// Stops at the first element that is out of tolerance.
template <typename T>
void expect_within(const std::string& what, const std::vector<T>& actual, const std::vector<Number>& expected) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size() && !testing::Test::HasNonfatalFailure(); ++i) {
    expect_within(what + '[' + std::to_string(i) + "] of " + std::to_string(actual.size()), actual[i], expected[i]);
  }
}

/// Returns the sum of `base` and a gradient.
inline std::vector<Number> added(const std::vector<double>& base, const std::vector<Number>& gradient) {
  std::vector<Number> sums;
  for (std::size_t i = 0; i < base.size(); ++i) sums.push_back(base[i] + gradient[i]);
  return sums;
}

/// Runs on one vector target.
class OnTarget : public testing::TestWithParam<std::string> {
 protected:
  /// Returns a context of that target.
  static ExecutionContext on(int threads = 0) {
    return resolved({.threads = threads, .target = find_target(GetParam())});
  }
};

inline std::string target_label(const testing::TestParamInfo<std::string>& info) { return info.param; }

}  // namespace headgate::layers
