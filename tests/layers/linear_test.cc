// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.hpp"

#include "layers/support.hpp"

namespace headgate::layers {
namespace {

struct Sample {
  LinearShape shape;
  std::vector<double> x, w, y, dy;  // with gaps after each row where the leading dimension says so

  explicit Sample(Random& random) : Sample(random, random_shape(random)) {}
  Sample(Random& random, const LinearShape& sizes) : shape(sizes) {
    x = random_values(random, shape.N * ldx());
    w = random_values(random, shape.O * ldw());
    y = random_values(random, shape.N * ldy());
    dy = random_values(random, shape.N * ldy());
    for (std::int64_t n = 0; n < shape.N; ++n) {  // gaps of y take no part in the loss
      for (std::int64_t o = shape.O; o < ldy(); ++o) dy[static_cast<std::size_t>(n * ldy() + o)] = 0.0;
    }
  }

  static LinearShape random_shape(Random& random) {
    LinearShape shape{random_int(random, 1, 9), random_int(random, 1, 20), random_int(random, 1, 20)};
    if (random_int(random, 0, 2) != 0) {
      shape.ldx = shape.C + random_int(random, 0, 4);
      shape.ldy = shape.O + random_int(random, 0, 4);
      shape.ldw = shape.C + random_int(random, 0, 4);
    }
    return shape;
  }
  std::int64_t ldx() const { return shape.ldx != 0 ? shape.ldx : shape.C; }
  std::int64_t ldy() const { return shape.ldy != 0 ? shape.ldy : shape.O; }
  std::int64_t ldw() const { return shape.ldw != 0 ? shape.ldw : shape.C; }

  /// y, what lies between its rows included.
  std::vector<Number> formula(const std::vector<Number>& of_x, const std::vector<Number>& of_w, Store store) const {
    std::vector<Number> result(y.begin(), y.end());
    for (std::int64_t n = 0; n < shape.N; ++n) {
      for (std::int64_t o = 0; o < shape.O; ++o) {
        Number& sum = result[static_cast<std::size_t>(n * ldy() + o)];
        if (store == Store::overwrite) sum = {};
        for (std::int64_t c = 0; c < shape.C; ++c) {
          sum += of_x[static_cast<std::size_t>(n * ldx() + c)] * of_w[static_cast<std::size_t>(o * ldw() + c)];
        }
      }
    }
    return result;
  }
};

template <typename T>
void check_forward(const Sample& s) {
  for (const Store store : {Store::overwrite, Store::add}) {
    std::vector<T> y = as<T>(s.y);
    linear_forward(y.data(), as<T>(s.x).data(), as<T>(s.w).data(), s.shape, store);
    expect_within("y", y, s.formula(as<Number>(s.x), as<Number>(s.w), store));
  }
}

template <typename T>
void check_backward(const Sample& s, Random& random) {
  Tape tape;
  const std::vector<Number> of_x = tape.inputs(s.x), of_w = tape.inputs(s.w);
  tape.differentiate(s.formula(of_x, of_w, Store::overwrite), s.dy);
  const std::vector<T> x = as<T>(s.x), w = as<T>(s.w), dy = as<T>(s.dy);
  const std::vector<double> base_x = random_values(random, static_cast<std::int64_t>(x.size()));
  const std::vector<double> base_w = random_values(random, static_cast<std::int64_t>(w.size()));
  std::vector<T> dx = as<T>(base_x), dw = as<T>(base_w);
  linear_backward(dx.data(), dw.data(), dy.data(), x.data(), w.data(), s.shape, Store::add);
  expect_within("dx", dx, added(base_x, tape.gradients(of_x)));
  expect_within("dw", dw, added(base_w, tape.gradients(of_w)));

  // Overwriting, one gradient at a time: what is not asked for is not touched.
  std::vector<T> only_x(x.size(), T{0}), only_w(w.size(), T{0});
  linear_backward<T>(only_x.data(), nullptr, dy.data(), nullptr, w.data(), s.shape);
  linear_backward<T>(nullptr, only_w.data(), dy.data(), x.data(), nullptr, s.shape);
  expect_within("dx alone", only_x, tape.gradients(of_x));
  expect_within("dw alone", only_w, tape.gradients(of_w));
}

TEST(Linear, ForwardIsTheSumOfProductsOnViewsToo) {
  Random random(11);
  for (int round = 0; round < 60; ++round) {
    const Sample s(random);
    check_forward<double>(s);
    check_forward<float>(s);
  }
}

TEST(Linear, GradientsAreThoseOfTheFormula) {
  Random random(12);
  for (int round = 0; round < 30; ++round) {
    const Sample s(random);
    check_backward<double>(s, random);
    check_backward<float>(s, random);
  }
}

TEST(Linear, ManyThreadsCutEitherSide) {
  const int before = omp_get_max_threads();
  Random random(13);
  for (const LinearShape& shape : {LinearShape{257, 67, 31}, LinearShape{31, 67, 257}, LinearShape{300, 5, 1}}) {
    const Sample s(random, shape);
    for (const int threads : {1, 2, 5}) {
      omp_set_num_threads(threads);
      check_forward<double>(s);
      check_backward<float>(s, random);
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
