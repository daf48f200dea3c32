// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.hpp"

#include "layers/support.hpp"

namespace headgate::layers {
namespace {

struct Sample {
  LinearShape shape;
  std::vector<double> x, w, y, dy;  // with gaps after each row where the leading dimension says so

  explicit Sample(Random& random) {
    shape = {random_int(random, 1, 9), random_int(random, 1, 20), random_int(random, 1, 20)};
    if (random_int(random, 0, 2) != 0) {
      shape.ldx = shape.C + random_int(random, 0, 4);
      shape.ldy = shape.O + random_int(random, 0, 4);
      shape.ldw = shape.C + random_int(random, 0, 4);
    }
    x = random_values(random, shape.N * ldx());
    w = random_values(random, shape.O * ldw());
    y = random_values(random, shape.N * ldy());
    dy = random_values(random, shape.N * ldy());
    for (std::int64_t n = 0; n < shape.N; ++n) {  // gaps of y take no part in the loss
      for (std::int64_t o = shape.O; o < ldy(); ++o) dy[static_cast<std::size_t>(n * ldy() + o)] = 0.0;
    }
  }
  std::int64_t ldx() const { return shape.ldx != 0 ? shape.ldx : shape.C; }
  std::int64_t ldy() const { return shape.ldy != 0 ? shape.ldy : shape.O; }
  std::int64_t ldw() const { return shape.ldw != 0 ? shape.ldw : shape.C; }

  std::vector<double> expected(Store store) const {
    std::vector<double> result = y;
    for (std::int64_t n = 0; n < shape.N; ++n) {
      for (std::int64_t o = 0; o < shape.O; ++o) {
        double sum = store == Store::add ? y[static_cast<std::size_t>(n * ldy() + o)] : 0.0;
        for (std::int64_t c = 0; c < shape.C; ++c) {
          sum += x[static_cast<std::size_t>(n * ldx() + c)] * w[static_cast<std::size_t>(o * ldw() + c)];
        }
        result[static_cast<std::size_t>(n * ldy() + o)] = sum;
      }
    }
    return result;
  }
};

TEST(Linear, ForwardIsTheSumOfProductsOnViewsToo) {
  Random random(11);
  for (int round = 0; round < 60; ++round) {
    const Sample s(random);
    for (const Store store : {Store::overwrite, Store::add}) {
      std::vector<double> y = s.y;
      linear_forward(y.data(), s.x.data(), s.w.data(), s.shape, store);
      expect_close("y", y, s.expected(store), 1e-14);
      std::vector<float> single = as<float>(s.y);
      linear_forward(single.data(), as<float>(s.x).data(), as<float>(s.w).data(), s.shape, store);
      expect_close("y in f32", single, s.expected(store), kSingleTolerance);
    }
  }
}

TEST(Linear, GradientsMatchFiniteDifferences) {
  Random random(12);
  for (int round = 0; round < 30; ++round) {
    Sample s(random);
    const auto loss = [&] {
      std::vector<double> y = s.y;
      linear_forward(y.data(), s.x.data(), s.w.data(), s.shape);
      return dot(s.dy, y);
    };
    const std::vector<double> base_x = random_values(random, static_cast<std::int64_t>(s.x.size()));
    const std::vector<double> base_w = random_values(random, static_cast<std::int64_t>(s.w.size()));
    std::vector<double> dx = base_x, dw = base_w;
    linear_backward(dx.data(), dw.data(), s.dy.data(), s.x.data(), s.w.data(), s.shape, Store::add);
    expect_gradient("dx", s.x, difference(dx, base_x), loss);
    expect_gradient("dw", s.w, difference(dw, base_w), loss);

    // Overwriting, one gradient at a time: what is not asked for is not touched.
    std::vector<double> only_x(s.x.size(), 0.0), only_w(s.w.size(), 0.0);
    linear_backward<double>(only_x.data(), nullptr, s.dy.data(), nullptr, s.w.data(), s.shape);
    linear_backward<double>(nullptr, only_w.data(), s.dy.data(), s.x.data(), nullptr, s.shape);
    expect_close("dx alone", only_x, difference(dx, base_x), 1e-13);
    expect_close("dw alone", only_w, difference(dw, base_w), 1e-13);

    std::vector<float> dx32(s.x.size(), 0.0F), dw32(s.w.size(), 0.0F);
    linear_backward(dx32.data(), dw32.data(), as<float>(s.dy).data(), as<float>(s.x).data(), as<float>(s.w).data(),
                    s.shape);
    expect_close("dx in f32", dx32, only_x, kSingleTolerance);
    expect_close("dw in f32", dw32, only_w, kSingleTolerance);
  }
}

TEST(Linear, ManyThreadsCutEitherSide) {
  const int before = omp_get_max_threads();
  Random random(13);
  for (const LinearShape& shape : {LinearShape{257, 67, 31}, LinearShape{31, 67, 257}, LinearShape{300, 5, 1}}) {
    const auto x = random_values(random, shape.N * shape.C), w = random_values(random, shape.O * shape.C);
    const auto dy = random_values(random, shape.N * shape.O);
    std::vector<std::vector<double>> results[3];
    for (const int threads : {1, 2, 5}) {
      omp_set_num_threads(threads);
      std::vector<double> y(dy.size()), dx(x.size()), dw(w.size(), 0.0);
      linear_forward(y.data(), x.data(), w.data(), shape);
      linear_backward(dx.data(), dw.data(), dy.data(), x.data(), w.data(), shape);
      results[0].push_back(y);
      results[1].push_back(dx);
      results[2].push_back(dw);
    }
    for (const auto& values : results) {
      expect_close("two threads", values[1], values[0], 1e-14);
      expect_close("five threads", values[2], values[0], 1e-14);
    }
  }
  omp_set_num_threads(before);
}

TEST(Linear, NoTokensIsNoWork) {
  const LinearShape shape{0, 3, 2};
  const double w[6] = {1, 2, 3, 4, 5, 6};
  double dw[6] = {1, 1, 1, 1, 1, 1};
  double nothing = 7.0;
  linear_forward(&nothing, w, w, shape);
  linear_backward(&nothing, dw, w, w, w, shape);
  EXPECT_EQ(nothing, 7.0);
  for (const double value : dw) EXPECT_EQ(value, 1.0);
}

}  // namespace
}  // namespace headgate::layers
