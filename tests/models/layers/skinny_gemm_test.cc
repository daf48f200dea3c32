// SPDX-License-Identifier: Apache-2.0
#include "models/layers/skinny_gemm.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "library/core/convert.hpp"
#include "models/layers/linear.hpp"
#include "models/layers/support.hpp"

namespace headgate::layers {
namespace {

class SkinnyGemm : public OnTarget {};

template <typename M>
std::vector<M> stored(const std::vector<double>& values) {
  std::vector<M> out;
  for (const double value : values) {
    if constexpr (std::is_same_v<M, BFloat16>) {
      out.push_back(to_bf16(static_cast<float>(value)));
    } else {
      out.push_back(static_cast<M>(value));
    }
  }
  return out;
}

/// Returns the numbers that a matrix of M holds.
template <typename M>
std::vector<double> kept(std::vector<double> values) {
  if constexpr (std::is_same_v<M, BFloat16>) {
    for (double& value : values) value = to_f32(to_bf16(static_cast<float>(value)));
  }
  return values;
}

/// Checks a product of random sizes. Gaps between rows hold NaN, so that reads and writes there are detected.
template <typename M>
void check_product(Random& random, std::int64_t most_rows, const ExecutionContext& context) {
  using T = Widened<M>;
  const std::int64_t N = random_int(random, 1, most_rows), C = random_int(random, 1, 150);
  const std::int64_t O = random_int(random, 1, 70), gap = random_int(random, 0, 3);
  const std::vector<double> x = random_values(random, N * C), w = random_values(random, O * C);
  const std::vector<double> before = random_values(random, N * O), w_kept = kept<M>(w);
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const auto spaced = [gap, nan](const std::vector<double>& rows, std::int64_t width) {
    std::vector<double> out;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      out.push_back(rows[i]);
      if (static_cast<std::int64_t>(i) % width == width - 1) out.insert(out.end(), static_cast<std::size_t>(gap), nan);
    }
    return out;
  };
  const std::vector<T> x_data = as<T>(spaced(x, C));
  const std::vector<M> w_data = stored<M>(spaced(w, C));
  const View<const T, 2> x_view(x_data.data(), {N, C}, {C + gap, 1});
  const View<const M, 2> w_view(w_data.data(), {O, C}, {C + gap, 1});
  for (const Update update : {Update::overwrite, Update::add}) {
    std::vector<T> y = as<T>(spaced(before, O));
    for (T& value : y) value = update == Update::overwrite ? static_cast<T>(nan) : value;
    linear_forward(View<T, 2>(y.data(), {N, O}, {O + gap, 1}), x_view, w_view, update, context);
    for (std::int64_t n = 0; n < N && !::testing::Test::HasFailure(); ++n) {
      for (std::int64_t o = 0; o < O; ++o) {
        Number sum = update == Update::add ? Number(before[static_cast<std::size_t>(n * O + o)]) : Number();
        for (std::int64_t c = 0; c < C; ++c) {
          sum += Number(x[static_cast<std::size_t>(n * C + c)]) * Number(w_kept[static_cast<std::size_t>(o * C + c)]);
        }
        expect_within("y", y[static_cast<std::size_t>(n * (O + gap) + o)], sum);
      }
      for (std::int64_t i = 0; i < gap; ++i) {
        EXPECT_TRUE(std::isnan(y[static_cast<std::size_t>(n * (O + gap) + O + i)])) << "between rows";
      }
    }
  }
}

TEST_P(SkinnyGemm, Product_EveryNumberOfRows_IsTheSumOfProducts) {
  Random random(61);
  for (int round = 0; round < 40; ++round) {
    check_product<float>(random, kSkinnyRows, on());
    check_product<double>(random, kSkinnyRows, on());
    check_product<BFloat16>(random, kSkinnyRows, on());
  }
}

TEST_P(SkinnyGemm, Product_ManyRowsOfBf16Weights_IsTheSumOfProducts) {
  Random random(62);
  for (int round = 0; round < 10; ++round) check_product<BFloat16>(random, kSkinnyRows + 40, on());
}

/// Multiplies blocks of widened rows, on several threads.
TEST(WidenedGemm, Product_BlocksOfBf16Weights_IsTheSumOfProducts) {
  Random random(63);
  const std::int64_t N = kSkinnyRows + 4, C = 1500, O = 300;  // 87 rows of w a block
  const std::vector<double> x = random_values(random, N * C), w = kept<BFloat16>(random_values(random, O * C));
  const std::vector<float> x_data = as<float>(x), w_float = as<float>(w);
  const std::vector<BFloat16> w_data = stored<BFloat16>(w);
  for (const int threads : {1, 2, 3}) {
    std::vector<float> y(static_cast<std::size_t>(N * O));
    linear_forward(view_of(y, N, O), view_of(x_data, N, C), view_of(w_data, O, C), Update::overwrite,
                   with_threads(threads));
    for (std::int64_t i = 0; i < N * O && !::testing::Test::HasFailure(); ++i) {
      Number sum;
      for (std::int64_t c = 0; c < C; ++c) {
        sum += Number(x[static_cast<std::size_t>(i / O * C + c)]) * Number(w[static_cast<std::size_t>(i % O * C + c)]);
      }
      expect_within("y", y[static_cast<std::size_t>(i)], sum);
    }
  }
}

/// A row's result depends bitwise only on that row.
TEST_P(SkinnyGemm, Row_BesideOthersAndAnyNumberOfThreads_IsBitwiseIdentical) {
  Random random(64);
  const std::int64_t N = kSkinnyRows, C = 301, O = 403;
  const std::vector<float> x = as<float>(random_values(random, N * C));
  const std::vector<BFloat16> w = stored<BFloat16>(random_values(random, O * C));
  std::vector<float> all(static_cast<std::size_t>(N * O));
  linear_forward(view_of(all, N, O), view_of(x, N, C), view_of(w, O, C), Update::overwrite, on(1));
  for (std::int64_t rows = 1; rows <= N; ++rows) {
    for (const int threads : {1, 2, 5}) {
      std::vector<float> some(static_cast<std::size_t>(rows * O));
      linear_forward(view_of(some, rows, O), view_of(x, N, C).range(0, N - rows, rows), view_of(w, O, C),
                     Update::overwrite, on(threads));
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.end() - rows * O)) << rows << " rows, " << threads;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, SkinnyGemm, ::testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
