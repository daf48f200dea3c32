// SPDX-License-Identifier: Apache-2.0
#include "models/layers/linear.hpp"

#include "models/layers/skinny_gemm.hpp"
#include "models/layers/support.hpp"

namespace headgate::layers {
namespace {

/// Holds rows with gaps after each; the gaps hold values too.
struct Rows {
  std::int64_t count, width, spacing;

  std::int64_t size() const { return count * spacing; }
  std::size_t at(std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(row * spacing + column);
  }
  template <typename T>
  View<T, 2> of(std::vector<T>& values) const {
    return {values.data(), {count, width}, {spacing, 1}};
  }
  template <typename T>
  View<const T, 2> of(const std::vector<T>& values) const {
    return {values.data(), {count, width}, {spacing, 1}};
  }
};

struct LinearSample {
  Rows x_rows, w_rows, y_rows;
  std::vector<double> x, w, y, dy;

  LinearSample(Random& random, std::int64_t N, std::int64_t C, std::int64_t O, std::int64_t most_gap)
      : x_rows{N, C, C + random_int(random, 0, most_gap)},
        w_rows{O, C, C + random_int(random, 0, most_gap)},
        y_rows{N, O, O + random_int(random, 0, most_gap)},
        x(random_values(random, x_rows.size())),
        w(random_values(random, w_rows.size())),
        y(random_values(random, y_rows.size())),
        dy(random_values(random, y_rows.size())) {
    for (std::int64_t n = 0; n < N; ++n) {  // gaps of y do not enter the loss
      for (std::int64_t o = O; o < y_rows.spacing; ++o) dy[y_rows.at(n, o)] = 0.0;
    }
  }
  explicit LinearSample(Random& random)
      : LinearSample(random, random_int(random, 1, 9), random_int(random, 1, 20), random_int(random, 1, 20),
                     random_int(random, 0, 2) != 0 ? 4 : 0) {}

  /// Returns y, including what lies between its rows.
  std::vector<Number> formula(const std::vector<Number>& of_x, const std::vector<Number>& of_w, Update update) const {
    std::vector<Number> result(y.begin(), y.end());
    for (std::int64_t n = 0; n < y_rows.count; ++n) {
      for (std::int64_t o = 0; o < y_rows.width; ++o) {
        Number& sum = result[y_rows.at(n, o)];
        if (update == Update::overwrite) sum = {};
        for (std::int64_t c = 0; c < x_rows.width; ++c) sum += of_x[x_rows.at(n, c)] * of_w[w_rows.at(o, c)];
      }
    }
    return result;
  }
};

template <typename T>
void check_forward(const LinearSample& s, const ExecutionContext& context) {
  const std::vector<T> x = as<T>(s.x), w = as<T>(s.w);
  for (const Update update : {Update::overwrite, Update::add}) {
    std::vector<T> y = as<T>(s.y);
    linear_forward(s.y_rows.of(y), s.x_rows.of(x), s.w_rows.of(w), update, context);
    expect_within("y", y, s.formula(as<Number>(s.x), as<Number>(s.w), update));
  }
}

template <typename T>
void check_backward(const LinearSample& s, Random& random, const ExecutionContext& context) {
  Tape tape;
  const std::vector<Number> of_x = tape.inputs(s.x), of_w = tape.inputs(s.w);
  tape.differentiate(s.formula(of_x, of_w, Update::overwrite), s.dy);
  const std::vector<T> x = as<T>(s.x), w = as<T>(s.w), dy = as<T>(s.dy);
  const std::vector<double> base_x = random_values(random, s.x_rows.size());
  const std::vector<double> base_w = random_values(random, s.w_rows.size());
  std::vector<T> dx = as<T>(base_x), dw = as<T>(base_w), overwritten(x.size(), T{0});
  linear_backward_input(s.x_rows.of(dx), s.y_rows.of(dy), s.w_rows.of(w), Update::add, context);
  expect_within("dx +=", dx, added(base_x, tape.gradients(of_x)));
  linear_backward_input(s.x_rows.of(overwritten), s.y_rows.of(dy), s.w_rows.of(w), Update::overwrite, context);
  expect_within("dx", overwritten, tape.gradients(of_x));
  linear_backward_weight(s.w_rows.of(dw), s.y_rows.of(dy), s.x_rows.of(x), context);
  expect_within("dw", dw, added(base_w, tape.gradients(of_w)));
}

TEST(Linear, Forward_AnyViews_IsTheSumOfProducts) {
  Random random(11);
  for (int round = 0; round < 60; ++round) {
    const LinearSample s(random);
    check_forward<double>(s, with_threads());
    check_forward<float>(s, with_threads());
  }
}

TEST(Linear, Gradients_AnySizes_MatchTheFormula) {
  Random random(12);
  for (int round = 0; round < 30; ++round) {
    const LinearSample s(random);
    check_backward<double>(s, random, with_threads());
    check_backward<float>(s, random, with_threads());
  }
}

TEST(Linear, Products_ManyThreads_MatchTheFormula) {
  Random random(13);
  const std::int64_t sizes[][3] = {{257, 67, 31}, {31, 67, 257}, {300, 5, 1}};
  for (const auto& [N, C, O] : sizes) {
    const LinearSample s(random, N, C, O, 0);
    for (const int threads : {1, 2, 5}) {
      check_forward<double>(s, with_threads(threads));
      check_backward<float>(s, random, with_threads(threads));
    }
  }
}

TEST(Linear, Products_NoTokens_AreNoWork) {
  const std::vector<double> w{1, 2, 3, 4, 5, 6};
  std::vector<double> dw(6, 1.0);
  double nothing = 7.0;
  const View<double, 2> x(&nothing, {0, 3}), y(&nothing, {0, 2});
  linear_forward(y, x, view_of(w, 2, 3), Update::overwrite, with_threads());
  linear_backward_input(x, y, view_of(w, 2, 3), Update::overwrite, with_threads());
  linear_backward_weight(view_of(dw, 2, 3), y, x, with_threads());
  EXPECT_EQ(nothing, 7.0);
  EXPECT_EQ(dw, std::vector<double>(6, 1.0));
}

}  // namespace
}  // namespace headgate::layers
