// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "layers/view.hpp"

// What the tests of layers share: random data, strided tensors, finite differences, a run on every vector target.

namespace headgate::layers {

using Random = std::mt19937_64;

/// Values that f32 holds exactly, so that the f32 and f64 instances of a layer get the same input.
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

/// A (N,H,D) tensor with gaps between heads and between tokens. The gaps hold values too: whoever writes there is seen.
template <typename T>
struct Strided {
  std::vector<T> data;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t start = 0;

  HeadView<T> view() { return {data.data() + start, token_stride, head_stride}; }
  HeadView<const T> view() const { return {data.data() + start, token_stride, head_stride}; }
  T at(std::int64_t n, std::int64_t h, std::int64_t d) const {
    return data[static_cast<std::size_t>(start + n * token_stride + h * head_stride + d)];
  }
  /// Same layout, other values.
  template <typename U = T>
  Strided<U> with(std::vector<double> values) const {
    return {as<U>(values), token_stride, head_stride, start};
  }
  template <typename U = T>
  Strided<U> zeros() const {
    return {std::vector<U>(data.size(), U{0}), token_stride, head_stride, start};
  }
  std::int64_t size() const { return static_cast<std::int64_t>(data.size()); }
};

/// Random values under random strides.
inline Strided<double> random_strided(Random& random, const HeadShape& shape, double scale = 1.0) {
  Strided<double> s;
  s.head_stride = shape.D + random_int(random, 0, 3);
  s.token_stride = shape.H * s.head_stride + random_int(random, 0, 5);
  s.start = random_int(random, 0, 3);
  s.data = random_values(random, s.start + shape.N * s.token_stride + 1, scale);
  return s;
}

/// Σ weight·value, accumulated in f64: the scalar whose gradient a backward pass with dy = weight computes.
template <typename T>
double dot(const std::vector<double>& weight, const std::vector<T>& value) {
  double sum = 0.0;
  for (std::size_t i = 0; i < weight.size(); ++i) sum += weight[i] * static_cast<double>(value[i]);
  return sum;
}

/// `gradient` (same layout as x) against central differences of loss(), which reads x: every element of a small x, some
/// of a large one.
template <class Loss>
void expect_gradient(const char* what, std::vector<double>& x, const std::vector<double>& gradient, const Loss& loss,
                     double tolerance = 2e-8) {
  ASSERT_EQ(x.size(), gradient.size());
  constexpr std::size_t kChecked = 61;
  const std::size_t stride = std::max<std::size_t>(1, x.size() / kChecked);
  for (std::size_t i = 0; i < x.size(); i += stride) {
    const double kept = x[i];
    const double step = 1e-5 * std::max(1.0, std::abs(kept));
    x[i] = kept + step;
    const double above = loss();
    x[i] = kept - step;
    const double below = loss();
    x[i] = kept;
    const double expected = (above - below) / (2 * step);
    const double scale = std::max({1.0, std::abs(expected), std::abs(above)});
    EXPECT_NEAR(gradient[i], expected, tolerance * scale) << what << "[" << i << "] of " << x.size();
  }
}

/// Each element within `tolerance` times the largest magnitude.
template <typename T, typename U>
void expect_close(const char* what, const std::vector<T>& actual, const std::vector<U>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 1e-30;
  for (const U e : expected) largest = std::max(largest, std::abs(static_cast<double>(e)));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(actual[i]), static_cast<double>(expected[i]), tolerance * largest)
        << what << "[" << i << "] of " << actual.size();
  }
}

inline std::vector<double> difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] - b[i];
  return result;
}

/// What f32 results may differ from f64 ones by, relative to the largest.
inline constexpr double kSingleTolerance = 5e-6;

/// Runs on one vector target, with the threads that OpenMP offered before.
class OnTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { set_target(GetParam()); }
  void TearDown() override {
    set_target("");
    omp_set_num_threads(threads_);
  }

 private:
  int threads_ = omp_get_max_threads();
};

inline std::string target_label(const testing::TestParamInfo<std::string>& info) { return info.param; }

}  // namespace headgate::layers
