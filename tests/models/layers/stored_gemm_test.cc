// SPDX-License-Identifier: Apache-2.0
#include "models/layers/stored_gemm.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "library/core/convert.hpp"
#include "models/layers/embedding.hpp"
#include "models/layers/linear.hpp"
#include "models/layers/skinny_gemm.hpp"
#include "models/layers/stored_sample.hpp"
#include "models/layers/support.hpp"

namespace headgate::layers {
namespace {

class StoredGemm : public OnTarget {};

/// Fills the bytes before, between and after rows of y, so that reads and writes there are detected.
constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

/// Rows of y with a gap after each.
struct Output {
  std::int64_t N, O, gap = 3;
  std::vector<float> values = std::vector<float>(static_cast<std::size_t>(N * (O + gap)), kPoison);

  View<float, 2> view() { return {values.data(), {N, O}, {O + gap, 1}}; }
  void expect_gaps_untouched() const {
    for (std::int64_t n = 0; n < N; ++n) {
      for (std::int64_t i = 0; i < gap; ++i) {
        EXPECT_TRUE(std::isnan(values[static_cast<std::size_t>(n * (O + gap) + O + i)])) << "row " << n;
      }
    }
  }
};

std::vector<const io::GgufFormat*> multiplied_formats() {
  std::vector<const io::GgufFormat*> out;
  for (const io::GgufFormat& format : io::gguf_formats()) {
    if (is_multiplied(format)) out.push_back(&format);
  }
  out.push_back(&io::mxfp4_apart());
  return out;
}

TEST(StoredFormats, Multiplied_AreThoseThatAreWidened) {
  for (const io::GgufFormat& format : io::gguf_formats()) {
    EXPECT_EQ(is_multiplied(format), format.widen != nullptr) << format.word;
  }
}

TEST_P(StoredGemm, WidenedRows_EveryFormat_AreBitwiseThoseOfWidenBlocks) {
  Random random(71);
  for (const io::GgufFormat* format : multiplied_formats()) {
    for (const bool ordered : {false, true}) {
      const std::int64_t C = format->numbers == 1 ? 37 : 3 * format->numbers;
      const StoredSample w(random, *format, 9, C, ordered);
      Output out{5, C};
      widen_rows(out.view(), {{w.part()}}, 3, on().target);
      for (std::int64_t r = 0; r < 5; ++r) {
        EXPECT_EQ(std::memcmp(out.view().at(r), w.widened.data() + (r + 3) * C, static_cast<std::size_t>(C) * 4), 0)
            << format->word << " row " << r;
      }
      out.expect_gaps_untouched();
    }
  }
}

/// Few rows: bitwise the product with the widened matrix, whatever the threads and the other rows.
TEST_P(StoredGemm, FewRows_EveryFormat_AreBitwiseTheProductWithTheWidenedMatrix) {
  Random random(72);
  for (const io::GgufFormat* format : multiplied_formats()) {
    for (std::int64_t N = 1; N <= kSkinnyRows; ++N) {
      const std::int64_t C =
          format->numbers == 1 ? random_int(random, 1, 150) : random_int(random, 1, 5) * format->numbers;
      const std::int64_t O = random_int(random, 1, 150);
      const StoredSample w(random, *format, O, C, N % 2 == 0);
      const std::vector<float> x = as<float>(random_values(random, N * C));
      for (const Update update : {Update::overwrite, Update::add}) {
        std::vector<float> expected(static_cast<std::size_t>(N * O), 0.5F);
        skinny_gemm<float>(view_of(expected, N, O), view_of(x, N, C), view_of(w.widened, O, C), update, on(1));
        for (const int threads : {1, 2, 3}) {
          Output y{N, O};
          if (update == Update::add) {
            for (std::int64_t n = 0; n < N; ++n) std::fill_n(y.view().at(n), O, 0.5F);
          }
          linear_forward(y.view(), view_of(x, N, C), {{w.part()}}, update, on(threads));
          for (std::int64_t n = 0; n < N; ++n) {
            EXPECT_EQ(std::memcmp(y.view().at(n), expected.data() + n * O, static_cast<std::size_t>(O) * 4), 0)
                << format->word << " N " << N << " row " << n << " threads " << threads;
          }
          y.expect_gaps_untouched();
        }
      }
    }
  }
}

/// As gate and up of experts lie that share a tensor, a row of each in turn.
TEST_P(StoredGemm, RowsWithAStep_AreThoseOfTheTensor) {
  Random random(75);
  for (const io::GgufFormat* format : {&io::mxfp4_apart(), io::find_gguf_format("BF16")}) {
    const std::int64_t C = 96, O = 10;
    const StoredSample w(random, *format, 2 * O, C, false);
    StoredRows odd = w.part().range(1, O);
    odd.step = 2;
    Output out{4, C};
    widen_rows(out.view(), rows_of(StoredMatrix{{odd}}, 3, 5), 1, on().target);
    for (std::int64_t r = 0; r < 4; ++r) {
      const float* expected = w.widened.data() + (1 + 2 * (3 + 1 + r)) * C;
      EXPECT_TRUE(std::equal(expected, expected + C, out.view().at(r))) << format->word << r;
    }
  }
}

TEST_P(StoredGemm, PartsOfSeveralFormats_AreOneMatrix) {
  Random random(73);
  const std::int64_t C = 512;
  const StoredSample q(random, *io::find_gguf_format("Q4_K"), 70, C, true);
  const StoredSample k(random, *io::find_gguf_format("Q4_K"), 13, C, true);
  const StoredSample v(random, *io::find_gguf_format("Q6_K"), 45, C, false);
  const StoredSample f(random, *io::find_gguf_format("F16"), 7, C, false);
  const StoredMatrix w{{q.part(), k.part(), v.part(), f.part()}};
  const std::int64_t O = w.rows();
  EXPECT_EQ(O, 135);
  EXPECT_EQ(w.bytes(), static_cast<std::size_t>(83 * 2 * 144 + 45 * 2 * 210 + 7 * 2 * C));
  std::vector<float> widened;
  for (const StoredSample* part : {&q, &k, &v, &f}) {
    widened.insert(widened.end(), part->widened.begin(), part->widened.end());
  }
  for (const std::int64_t N : {1, 3}) {
    const std::vector<float> x = as<float>(random_values(random, N * C));
    std::vector<float> expected(static_cast<std::size_t>(N * O));
    skinny_gemm<float>(view_of(expected, N, O), view_of(x, N, C), view_of(widened, O, C), Update::overwrite, on(1));
    for (const int threads : {1, 2, 3}) {
      std::vector<float> y(expected.size(), kPoison);
      linear_forward(view_of(y, N, O), view_of(x, N, C), w, Update::overwrite, on(threads));
      EXPECT_EQ(y, expected) << N << " rows, " << threads << " threads";
    }
  }
}

/// Many rows: within the tolerance rule, over several blocks of widened rows.
TEST_P(StoredGemm, ManyRows_EveryFormat_AreTheSumOfProducts) {
  Random random(74);
  for (const io::GgufFormat* format : multiplied_formats()) {
    for (const std::int64_t N : {9, 33, 100}) {
      const std::int64_t C = format->numbers == 1 ? 1501 : 1536, O = 120;  // 85 rows of w a block
      const StoredSample w(random, *format, O, C, N == 33);
      const std::vector<double> x = random_values(random, N * C);
      const std::vector<float> x_data = as<float>(x);
      std::vector<std::vector<float>> results;
      for (const int threads : {1, 2, 3}) {
        Output y{N, O};
        linear_forward(y.view(), view_of(x_data, N, C), {{w.part()}}, Update::overwrite, on(threads));
        y.expect_gaps_untouched();
        for (std::int64_t i = 0; i < 200; ++i) {  // a sample of the elements
          const std::int64_t n = random_int(random, 0, N - 1), o = random_int(random, 0, O - 1);
          Number sum;
          for (std::int64_t c = 0; c < C; ++c) {
            sum += Number(x[static_cast<std::size_t>(n * C + c)]) *
                   Number(static_cast<double>(w.widened[static_cast<std::size_t>(o * C + c)]));
          }
          expect_within(std::string(format->word), y.view()(n, o), sum);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(StoredGemm, Embedding_EveryFormat_GathersWidenedRows) {
  Random random(75);
  for (const io::GgufFormat* format : multiplied_formats()) {
    const std::int64_t V = 11, C = format->numbers == 1 ? 33 : format->numbers;
    const StoredSample table(random, *format, V, C, false);
    const auto tokens = random_tokens(random, 25, V);
    Output y{25, C};
    embedding_forward(y.view(), {{table.part()}}, view_of(tokens, 25), on(2));
    for (std::int64_t n = 0; n < 25; ++n) {
      const float* row = table.widened.data() + tokens[static_cast<std::size_t>(n)] * C;
      EXPECT_EQ(std::memcmp(y.view().at(n), row, static_cast<std::size_t>(C) * 4), 0) << format->word;
    }
    y.expect_gaps_untouched();
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, StoredGemm, ::testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
