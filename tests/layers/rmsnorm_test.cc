// SPDX-License-Identifier: Apache-2.0
#include "layers/rmsnorm.hpp"

#include "layers/support.hpp"

namespace headgate::layers {
namespace {

struct Sample {
  HeadShape shape;
  NormOptions options;
  Strided<double> x, y, dy;
  std::vector<double> w;

  explicit Sample(Random& random)
      : shape{random_int(random, 1, 5), random_int(random, 1, 4), random_int(random, 1, 70)},
        x(random_strided(random, shape)),
        y(random_strided(random, shape)) {
    options.kind = random_int(random, 0, 1) != 0 ? NormKind::zero_centred : NormKind::plain;
    options.eps = 1e-3;
    const bool own = random_int(random, 0, 1) != 0;
    options.w_head_stride = own ? shape.D + random_int(random, 0, 2) : 0;
    w = random_values(random, own ? shape.H * options.w_head_stride : shape.D);
    dy = y.zeros();  // gaps take no part in the loss
    each([&](std::int64_t n, std::int64_t h, std::int64_t d) {
      dy.view().data[n * dy.token_stride + h * dy.head_stride + d] = random_values(random, 1)[0];
    });
  }

  template <class Visit>
  void each(const Visit& visit) const {
    for (std::int64_t n = 0; n < shape.N; ++n) {
      for (std::int64_t h = 0; h < shape.H; ++h) {
        for (std::int64_t d = 0; d < shape.D; ++d) visit(n, h, d);
      }
    }
  }

  Strided<double> expected() const {
    Strided<double> result = y;
    each([&](std::int64_t n, std::int64_t h, std::int64_t d) {
      double squares = 0.0;
      for (std::int64_t c = 0; c < shape.D; ++c) squares += x.at(n, h, c) * x.at(n, h, c);
      const double weight = w[static_cast<std::size_t>(h * options.w_head_stride + d)] +
                            (options.kind == NormKind::zero_centred ? 1.0 : 0.0);
      const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(shape.D) + options.eps);
      result.view().data[n * y.token_stride + h * y.head_stride + d] = x.at(n, h, d) * rstd * weight;
    });
    return result;
  }
};

class RmsNorm : public OnTarget {};

TEST_P(RmsNorm, ForwardOnStridedHeads) {
  Random random(21);
  for (int round = 0; round < 60; ++round) {
    const Sample s(random);
    Strided<double> y = s.y;
    rmsnorm_forward<double>(y.view(), nullptr, s.x.view(), s.w.data(), s.shape, s.options);
    expect_close("y", y.data, s.expected().data, 1e-14);
    auto y32 = s.y.with<float>(s.y.data);
    const auto x32 = s.x.with<float>(s.x.data);
    rmsnorm_forward<float>(y32.view(), nullptr, x32.view(), as<float>(s.w).data(), s.shape, s.options);
    expect_close("y in f32", y32.data, s.expected().data, kSingleTolerance);
    Strided<double> in_place = s.x;
    rmsnorm_forward<double>(in_place.view(), nullptr, in_place.view(), s.w.data(), s.shape, s.options);
    s.each([&](std::int64_t n, std::int64_t h, std::int64_t d) { EXPECT_EQ(in_place.at(n, h, d), y.at(n, h, d)); });
  }
}

TEST_P(RmsNorm, GradientsMatchFiniteDifferences) {
  Random random(22);
  for (int round = 0; round < 40; ++round) {
    Sample s(random);
    std::vector<double> rstd(static_cast<std::size_t>(s.shape.N * s.shape.H));
    const auto loss = [&] {
      Strided<double> y = s.y.zeros();
      rmsnorm_forward<double>(y.view(), rstd.data(), s.x.view(), s.w.data(), s.shape, s.options);
      return dot(s.dy.data, y.data);
    };
    (void)loss();
    const std::vector<double> saved = rstd;
    const Strided<double> base_x = s.x.with(random_values(random, s.x.size()));
    const std::vector<double> base_w = random_values(random, static_cast<std::int64_t>(s.w.size()));
    Strided<double> dx = base_x;
    std::vector<double> dw = base_w;
    rmsnorm_backward<double>(dx.view(), dw.data(), s.dy.view(), s.x.view(), s.w.data(), saved.data(), s.shape,
                             s.options);
    expect_gradient("dx", s.x.data, difference(dx.data, base_x.data), loss);
    expect_gradient("dw", s.w, difference(dw, base_w), loss);

    // In place of dy, without dw.
    Strided<double> in_place = s.dy;
    rmsnorm_backward<double>(in_place.view(), nullptr, in_place.view(), s.x.view(), s.w.data(), saved.data(), s.shape,
                             s.options, Store::overwrite);
    s.each([&](std::int64_t n, std::int64_t h, std::int64_t d) {
      EXPECT_NEAR(in_place.at(n, h, d), dx.at(n, h, d) - base_x.at(n, h, d), 1e-12);
    });

    auto dx32 = s.x.zeros<float>();
    std::vector<float> dw32(s.w.size(), 0.0F);
    const auto x32 = s.x.with<float>(s.x.data);
    const auto dy32 = s.dy.with<float>(s.dy.data);
    rmsnorm_backward<float>(dx32.view(), dw32.data(), dy32.view(), x32.view(), as<float>(s.w).data(),
                            as<float>(saved).data(), s.shape, s.options);
    expect_close("dx in f32", dx32.data, difference(dx.data, base_x.data), 1e-5);
    expect_close("dw in f32", dw32, difference(dw, base_w), kSingleTolerance);
  }
}

TEST_P(RmsNorm, ManyThreadsSumTheSameWeightGradient) {
  const HeadShape shape{400, 3, 50};
  const NormOptions options;
  Random random(23);
  const auto x = random_values(random, 400 * 150), dy = random_values(random, 400 * 150), w = random_values(random, 50);
  const HeadView<const double> xv{x.data(), 150, 50}, dyv{dy.data(), 150, 50};
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    std::vector<double> y(x.size()), rstd(1200), dx(x.size()), dw(50, 0.0);
    rmsnorm_forward<double>({y.data(), 150, 50}, rstd.data(), xv, w.data(), shape, options);
    rmsnorm_backward<double>({dx.data(), 150, 50}, dw.data(), dyv, xv, w.data(), rstd.data(), shape, options,
                             Store::overwrite);
    dw.insert(dw.end(), dx.begin(), dx.end());
    results.push_back(dw);
  }
  expect_close("two threads", results[1], results[0], 1e-14);
  expect_close("three threads", results[2], results[0], 1e-14);
}

TEST_P(RmsNorm, RowOfZerosStaysFinite) {
  const std::vector<double> x(8, 0.0), w(8, 2.0), dy(8, 1.0);
  std::vector<double> y(8, 5.0), rstd(1), dx(8, 0.0), dw(8, 0.0);
  const HeadShape shape{1, 1, 8};
  NormOptions options;
  options.eps = 1e-4;
  rmsnorm_forward<double>(rows_view(y.data(), 8), rstd.data(), rows_view(x.data(), 8), w.data(), shape, options);
  rmsnorm_backward<double>(rows_view(dx.data(), 8), dw.data(), rows_view(dy.data(), 8), rows_view(x.data(), 8),
                           w.data(), rstd.data(), shape, options);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(y[i], 0.0);
    EXPECT_NEAR(dx[i], 200.0, 1e-9);
    EXPECT_EQ(dw[i], 0.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, RmsNorm, testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
