// SPDX-License-Identifier: Apache-2.0
#include "models/layers/rmsnorm.hpp"

#include "models/layers/support.hpp"

namespace headgate::layers {
namespace {

struct Sample {
  HeadShape shape;
  NormOptions options;
  Strided<double> x, y, dy;
  std::vector<double> w;

  explicit Sample(Random& random)
      : Sample(random, {random_int(random, 1, 5), random_int(random, 1, 4), random_int(random, 1, 70)}) {}
  Sample(Random& random, const HeadShape& sizes)
      : shape(sizes),
        x(random_strided(random, shape)),
        y(random_strided(random, shape)),
        dy(y.zeros()),  // gaps do not enter the loss
        w(random_values(random, shape[2])) {
    options.kind = random_int(random, 0, 1) != 0 ? NormKind::zero_centred : NormKind::plain;
    options.eps = 1e-3;
    const std::vector<double> values = random_values(random, dy.size());
    std::size_t next = 0;
    dy.each([&](std::int64_t n, std::int64_t h, std::int64_t d) { dy.view()(n, h, d) = values[next++]; });
  }

  /// Returns y, including what lies between its rows.
  std::vector<Number> formula(const Strided<Number>& of_x, const std::vector<Number>& of_w) const {
    Strided<Number> result = y.with<Number>(y.data);
    const std::int64_t D = shape[2];
    Number rms;
    y.each([&](std::int64_t n, std::int64_t h, std::int64_t d) {
      if (d == 0) {
        Number squares;
        for (std::int64_t c = 0; c < D; ++c) squares += of_x.at(n, h, c) * of_x.at(n, h, c);
        rms = sqrt(squares / static_cast<double>(D) + options.eps);
      }
      const double one = options.kind == NormKind::zero_centred ? 1.0 : 0.0;
      result.view()(n, h, d) = of_x.at(n, h, d) / rms * (of_w[static_cast<std::size_t>(d)] + one);
    });
    return result.data;
  }
};

template <typename T>
void check_forward(const Sample& s, const ExecutionContext& context) {
  const auto x = s.x.with<T>(s.x.data);
  auto y = s.y.with<T>(s.y.data), in_place = x;
  const std::vector<T> w = as<T>(s.w);
  rmsnorm_forward(y.view(), {}, x.view(), view_of(w, s.shape[2]), s.options, context);
  expect_within("y", y.data, s.formula(s.x.with<Number>(s.x.data), as<Number>(s.w)));
  rmsnorm_forward(in_place.view(), {}, in_place.view(), view_of(w, s.shape[2]), s.options, context);
  y.each([&](std::int64_t n, std::int64_t h, std::int64_t d) { EXPECT_EQ(in_place.at(n, h, d), y.at(n, h, d)); });
}

template <typename T>
void check_backward(const Sample& s, Random& random, const ExecutionContext& context) {
  Tape tape;
  const Strided<Number> of_x = s.x.of(tape.inputs(s.x.data));
  const std::vector<Number> of_w = tape.inputs(s.w);
  tape.differentiate(s.formula(of_x, of_w), s.dy.data);

  const auto x = s.x.with<T>(s.x.data), dy = s.dy.with<T>(s.dy.data);
  auto y = s.y.zeros<T>();
  const std::vector<T> w = as<T>(s.w);
  std::vector<T> rstd_values(static_cast<std::size_t>(s.shape[0] * s.shape[1]));
  const View<T, 2> rstd = view_of(rstd_values, s.shape[0], s.shape[1]);
  const View<const T, 1> weights = view_of(w, s.shape[2]);
  rmsnorm_forward(y.view(), rstd, x.view(), weights, s.options, context);
  const std::vector<double> base_x = random_values(random, s.x.size());
  const std::vector<double> base_w = random_values(random, s.shape[2]);
  auto dx = s.x.with<T>(base_x);
  std::vector<T> dw = as<T>(base_w);
  rmsnorm_backward(dx.view(), view_of(dw, s.shape[2]), dy.view(), x.view(), weights, rstd, s.options, Update::add,
                   context);
  expect_within("dx", dx.data, added(base_x, tape.gradients(of_x.data)));
  expect_within("dw", dw, added(base_w, tape.gradients(of_w)));

  // In place of dy, without dw.
  auto in_place = dy;
  rmsnorm_backward(in_place.view(), {}, in_place.view(), x.view(), weights, rstd, s.options, Update::overwrite,
                   context);
  const Strided<Number> expected = s.x.of(tape.gradients(of_x.data));
  y.each([&](std::int64_t n, std::int64_t h, std::int64_t d) {
    expect_within("dx in place", in_place.at(n, h, d), expected.at(n, h, d));
  });
}

class RmsNorm : public OnTarget {};

TEST_P(RmsNorm, Forward_StridedHeads_MatchesTheFormula) {
  Random random(21);
  for (int round = 0; round < 60; ++round) {
    const Sample s(random);
    check_forward<double>(s, on());
    check_forward<float>(s, on());
  }
}

TEST_P(RmsNorm, Gradients_AnySizes_MatchTheFormula) {
  Random random(22);
  for (int round = 0; round < 40; ++round) {
    const Sample s(random);
    check_backward<double>(s, random, on());
    check_backward<float>(s, random, on());
  }
}

TEST_P(RmsNorm, WeightGradient_ManyThreads_IsTheSame) {
  Random random(23);
  const Sample s(random, {400, 3, 50});
  for (const int threads : {1, 2, 3}) {
    check_forward<double>(s, on(threads));
    check_backward<double>(s, random, on(threads));
  }
}

TEST_P(RmsNorm, Row_OfZeros_StaysFinite) {
  const std::vector<double> x(8, 0.0), w(8, 2.0), dy(8, 1.0);
  std::vector<double> y(8, 5.0), rstd(1), dx(8, 0.0), dw(8, 0.0);
  NormOptions options;
  options.eps = 1e-4;
  rmsnorm_forward(view_of(y, 1, 1, 8), view_of(rstd, 1, 1), view_of(x, 1, 1, 8), view_of(w, 8), options, on());
  rmsnorm_backward(view_of(dx, 1, 1, 8), view_of(dw, 8), view_of(dy, 1, 1, 8), view_of(x, 1, 1, 8), view_of(w, 8),
                   view_of(rstd, 1, 1), options, Update::add, on());
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(y[i], 0.0);
    expect_within("dx", dx[i], dy[i] * Number(w[i]) / sqrt(Number(options.eps)));
    EXPECT_EQ(dw[i], 0.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, RmsNorm, ::testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
