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

  /// y, what lies between its rows included.
  std::vector<Number> formula(const Strided<Number>& of_x, const std::vector<Number>& of_w) const {
    Strided<Number> result = y.with<Number>(y.data);
    Number rms;
    each([&](std::int64_t n, std::int64_t h, std::int64_t d) {
      if (d == 0) {
        Number squares;
        for (std::int64_t c = 0; c < shape.D; ++c) squares += of_x.at(n, h, c) * of_x.at(n, h, c);
        rms = sqrt(squares / static_cast<double>(shape.D) + options.eps);
      }
      const Number weight = of_w[static_cast<std::size_t>(h * options.w_head_stride + d)] +
                            (options.kind == NormKind::zero_centred ? 1.0 : 0.0);
      result.view().data[n * y.token_stride + h * y.head_stride + d] = of_x.at(n, h, d) / rms * weight;
    });
    return result.data;
  }
};

template <typename T>
void check_forward(const Sample& s) {
  const auto x = s.x.with<T>(s.x.data);
  auto y = s.y.with<T>(s.y.data), in_place = x;
  const std::vector<T> w = as<T>(s.w);
  rmsnorm_forward<T>(y.view(), nullptr, x.view(), w.data(), s.shape, s.options);
  expect_within("y", y.data, s.formula(s.x.with<Number>(s.x.data), as<Number>(s.w)));
  rmsnorm_forward<T>(in_place.view(), nullptr, in_place.view(), w.data(), s.shape, s.options);
  s.each([&](std::int64_t n, std::int64_t h, std::int64_t d) { EXPECT_EQ(in_place.at(n, h, d), y.at(n, h, d)); });
}

template <typename T>
void check_backward(const Sample& s, Random& random) {
  Tape tape;
  const Strided<Number> of_x = s.x.of(tape.inputs(s.x.data));
  const std::vector<Number> of_w = tape.inputs(s.w);
  tape.differentiate(s.formula(of_x, of_w), s.dy.data);

  const auto x = s.x.with<T>(s.x.data), dy = s.dy.with<T>(s.dy.data);
  auto y = s.y.zeros<T>();
  const std::vector<T> w = as<T>(s.w);
  std::vector<T> rstd(static_cast<std::size_t>(s.shape.N * s.shape.H));
  rmsnorm_forward<T>(y.view(), rstd.data(), x.view(), w.data(), s.shape, s.options);
  const std::vector<double> base_x = random_values(random, s.x.size());
  const std::vector<double> base_w = random_values(random, static_cast<std::int64_t>(s.w.size()));
  auto dx = s.x.with<T>(base_x);
  std::vector<T> dw = as<T>(base_w);
  rmsnorm_backward<T>(dx.view(), dw.data(), dy.view(), x.view(), w.data(), rstd.data(), s.shape, s.options);
  expect_within("dx", dx.data, added(base_x, tape.gradients(of_x.data)));
  expect_within("dw", dw, added(base_w, tape.gradients(of_w)));

  // In place of dy, without dw.
  auto in_place = dy;
  rmsnorm_backward<T>(in_place.view(), nullptr, in_place.view(), x.view(), w.data(), rstd.data(), s.shape, s.options,
                      Store::overwrite);
  const Strided<Number> expected = s.x.of(tape.gradients(of_x.data));
  s.each([&](std::int64_t n, std::int64_t h, std::int64_t d) {
    expect_within("dx in place", in_place.at(n, h, d), expected.at(n, h, d));
  });
}

class RmsNorm : public OnTarget {};

TEST_P(RmsNorm, ForwardOnStridedHeads) {
  Random random(21);
  for (int round = 0; round < 60; ++round) {
    const Sample s(random);
    check_forward<double>(s);
    check_forward<float>(s);
  }
}

TEST_P(RmsNorm, GradientsAreThoseOfTheFormula) {
  Random random(22);
  for (int round = 0; round < 40; ++round) {
    const Sample s(random);
    check_backward<double>(s, random);
    check_backward<float>(s, random);
  }
}

TEST_P(RmsNorm, ManyThreadsSumTheSameWeightGradient) {
  Random random(23);
  Sample s(random);
  s.shape = {400, 3, 50};
  s.options = {};
  s.x = {random_values(random, 400 * 150), 150, 50, 0};
  s.dy = s.x.with(random_values(random, 400 * 150));
  s.y = s.x.zeros();
  s.w = random_values(random, 50);
  for (const int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    check_forward<double>(s);
    check_backward<double>(s, random);
  }
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
    expect_within("dx", dx[i], dy[i] * Number(w[i]) / sqrt(Number(options.eps)));
    EXPECT_EQ(dw[i], 0.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, RmsNorm, testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
