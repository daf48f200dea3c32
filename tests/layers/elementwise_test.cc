// SPDX-License-Identifier: Apache-2.0
#include "layers/elementwise.hpp"

#include "layers/support.hpp"
#include "layers/swiglu.hpp"

namespace headgate::layers {
namespace {

double silu(double x) { return x / (1.0 + std::exp(-x)); }

class Elementwise : public OnTarget {};

TEST_P(Elementwise, SwigluForward) {
  Random random(41);
  for (int round = 0; round < 40; ++round) {
    const std::int64_t N = random_int(random, 1, 6), F = random_int(random, 1, 70);
    const std::vector<double> ab = random_values(random, N * 2 * F, 4.0);
    std::vector<double> expected;
    for (std::int64_t n = 0; n < N; ++n) {
      for (std::int64_t f = 0; f < F; ++f) {
        const auto at = static_cast<std::size_t>(n * 2 * F + f);
        expected.push_back(silu(ab[at]) * ab[at + static_cast<std::size_t>(F)]);
      }
    }
    std::vector<double> h(expected.size());
    swiglu_forward(h.data(), ab.data(), N, F);
    expect_close("h", h, expected, 1e-14);
    std::vector<float> single(expected.size());
    swiglu_forward(single.data(), as<float>(ab).data(), N, F);
    expect_close("h in f32", single, expected, kSingleTolerance);
  }
}

TEST_P(Elementwise, SwigluGradient) {
  Random random(42);
  for (int round = 0; round < 30; ++round) {
    const std::int64_t N = random_int(random, 1, 4), F = random_int(random, 1, 40);
    std::vector<double> ab = random_values(random, N * 2 * F, 2.0);
    const std::vector<double> dh = random_values(random, N * F);
    std::vector<double> h(dh.size()), dab(ab.size()), again(dh.size());
    const auto loss = [&] {
      swiglu_forward(h.data(), ab.data(), N, F);
      return dot(dh, h);
    };
    swiglu_backward<double>(dab.data(), nullptr, dh.data(), ab.data(), N, F);
    expect_gradient("dab", ab, dab, loss);

    // In place, h made anew over dh.
    (void)loss();
    std::vector<double> in_place = ab, over = dh;
    swiglu_backward(in_place.data(), over.data(), over.data(), in_place.data(), N, F);
    EXPECT_EQ(in_place, dab);
    EXPECT_EQ(over, h);
    swiglu_backward(dab.data(), again.data(), dh.data(), ab.data(), N, F);
    EXPECT_EQ(again, h);

    std::vector<float> single(ab.size());
    swiglu_backward<float>(single.data(), nullptr, as<float>(dh).data(), as<float>(ab).data(), N, F);
    expect_close("dab in f32", single, dab, kSingleTolerance);
  }
}

TEST_P(Elementwise, SwigluAtTheFarEnds) {
  const std::vector<float> ab = {-200.0F, 200.0F, 1e30F, -1e30F, 3.0F, 3.0F, 1.0F, 1.0F};
  std::vector<float> h(4), dab(8);
  const std::vector<float> dh(4, 1.0F);
  swiglu_forward(h.data(), ab.data(), 1, 4);
  swiglu_backward<float>(dab.data(), nullptr, dh.data(), ab.data(), 1, 4);
  EXPECT_EQ(h, (std::vector<float>{0.0F, 600.0F, 1e30F, 0.0F}));
  EXPECT_EQ(dab, (std::vector<float>{0.0F, 3.0F, 1.0F, 0.0F, 0.0F, 200.0F, 1e30F, 0.0F}));
}

TEST_P(Elementwise, SiluOnStridedHeads) {
  Random random(43);
  for (int round = 0; round < 30; ++round) {
    const HeadShape shape{random_int(random, 1, 5), random_int(random, 1, 3), random_int(random, 1, 40)};
    Strided<double> x = random_strided(random, shape, 2.0);
    const Strided<double> dy = x.with(random_values(random, x.size()));
    const auto loss = [&] {
      Strided<double> y = x;
      silu_forward<double>(y.view(), x.view(), shape);
      return dot(dy.data, y.data);
    };
    Strided<double> expected = x, y = x;
    for (std::int64_t n = 0; n < shape.N; ++n) {
      for (std::int64_t h = 0; h < shape.H; ++h) {
        double* row = expected.view().data + n * x.token_stride + h * x.head_stride;
        std::transform(row, row + shape.D, row, silu);
      }
    }
    silu_forward<double>(y.view(), y.view(), shape);
    expect_close("y", y.data, expected.data, 1e-14);
    auto single = x.with<float>(x.data);
    silu_forward<float>(single.view(), single.view(), shape);
    expect_close("y in f32", single.data, expected.data, kSingleTolerance);

    Strided<double> dx = dy;  // gaps pass through: their gradient is dy
    silu_backward<double>(dx.view(), dx.view(), x.view(), shape);
    expect_gradient("dx", x.data, dx.data, loss);
    Strided<double> over_x = x;
    silu_backward<double>(over_x.view(), dy.view(), over_x.view(), shape);
    EXPECT_EQ(over_x.at(0, 0, 0), dx.at(0, 0, 0));
    EXPECT_EQ(over_x.at(shape.N - 1, shape.H - 1, shape.D - 1), dx.at(shape.N - 1, shape.H - 1, shape.D - 1));
  }
}

TEST_P(Elementwise, AddAndFillReachExactlyTheirRange) {
  Random random(44);
  for (const std::int64_t n : {0, 1, 15, 16, 17, 1000, 100003}) {
    for (const int threads : {1, 2, 3}) {
      omp_set_num_threads(threads);
      const auto x = random_values(random, n), start = random_values(random, n + 1);
      std::vector<double> y = start;
      add_to(y.data(), x.data(), n);
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], start[i] + x[i]) << i << " of " << n;
      EXPECT_EQ(y.back(), start.back());
      fill_zero(y.data(), n);
      EXPECT_EQ(std::count(y.begin(), y.end() - 1, 0.0), n);
      EXPECT_EQ(y.back(), start.back());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Elementwise, testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
