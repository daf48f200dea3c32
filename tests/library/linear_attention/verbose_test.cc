// SPDX-License-Identifier: Apache-2.0
// The lines that HEADGATE_VERBOSE=1 prints of the operations around linear attention.

#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>
#include <string>
#include <vector>

#include "headgate/headgate.hpp"

namespace headgate {
namespace {

/// Before the first call, after which the variable is not read again.
class Verbose : public ::testing::Environment {
 public:
  void SetUp() override { setenv("HEADGATE_VERBOSE", "1", 1); }
};
const auto* const kVerbose = ::testing::AddGlobalTestEnvironment(new Verbose);

constexpr std::int64_t kHeads = 2, kTokens = 3, kDim = 4;

TensorView tensor(std::vector<float>& numbers, const Shape& shape) {
  numbers.assign(shape[0] * shape[1] * shape[2] * shape[3], 0.5F);
  return make_view(numbers.data(), shape);
}

template <class Call>
void expect_line(const Call& call, const std::string& pattern) {
  ::testing::internal::CaptureStderr();
  call();
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(std::regex_match(line, std::regex(pattern + R"(, [\d.]+ ms\n)"))) << line;
}

TEST(Verbose, LinearAttention_EachPass_PrintsOneLine) {
  std::vector<float> q, k, v, y, state, dk;
  const Shape shape{1, kHeads, kTokens, kDim};
  LinearAttentionInputs inputs;
  inputs.q = tensor(q, shape);
  inputs.k = tensor(k, shape);
  inputs.v = tensor(v, shape);
  inputs.state = tensor(state, {1, kHeads, kDim, kDim});
  LinearAttentionOptions options;
  options.rule = LinearRule::delta;
  options.context.threads = 1;
  const TensorView out = tensor(y, shape);
  const std::string rest =
      R"(, cpu \w+, 1 thread, q f32 \(1,2,3,4\), k f32 \(1,2,3,4\), v f32 \(1,2,3,4\), state, rule delta)";
  expect_line(
      [&] {
        linear_attention_forward({out, {}}, inputs, options);
      },
      "headgate: linear_attention_forward" + rest);
  LinearAttentionGradients gradients;
  gradients.dk = tensor(dk, shape);
  expect_line(
      [&] {
        linear_attention_backward(gradients, inputs, {out, {}}, options);
      },
      "headgate: linear_attention_backward" + rest);
  std::vector<float> reach, weights;
  LinearAttentionStatistics figures;
  figures.reach = tensor(reach, {1, kHeads, kTokens, 1});
  expect_line([&] { linear_attention_statistics(figures, inputs, options); },
              "headgate: linear_attention_statistics" + rest);
  const std::int64_t last = kTokens - 1;
  const LinearAttentionWeights rows{tensor(weights, {1, kHeads, 1, kTokens}), {}};
  expect_line(
      [&] {
        linear_attention_weights(rows, inputs, make_view(&last, Shape{1, 1, 1, 1}), options);
      },
      "headgate: linear_attention_weights" + rest);
}

TEST(Verbose, LinearAttention_Native16_NamesTheKernel) {
  std::vector<BFloat16> numbers(40 * kDim);
  const TensorView x = make_view(numbers.data(), {1, 1, 40, kDim});
  std::vector<BFloat16> results(40 * kDim);
  LinearAttentionInputs inputs;
  inputs.q = inputs.k = inputs.v = x;
  LinearAttentionOptions options;
  options.precision = Precision::native16;
  options.context.threads = 1;
  const std::string sizes = R"( bf16 \(1,1,40,4\))";
  expect_line(
      [&] {
        linear_attention_forward({make_view(results.data(), {1, 1, 40, kDim}), {}}, inputs, options);
      },
      R"(headgate: linear_attention_forward, cpu \w+, 1 thread, q)" + sizes + ", k" + sizes + ", v" + sizes +
          ", precision native16, kernel " +
          (native16_products().empty() ? R"(scan \(not native16: this CPU or target has no fast bf16 products\))"
                                       : "native16"));
}

TEST(Verbose, ConvolutionAndNorm_EachPass_PrintsOneLine) {
  std::vector<float> x, weight, bias, y, dx;
  const Shape shape{1, 1, kTokens, kDim};
  ShortConvolutionInputs inputs;
  inputs.x = tensor(x, shape);
  inputs.weight = tensor(weight, {1, 1, kDim, 2});
  inputs.bias = tensor(bias, {1, 1, 1, kDim});
  const TensorView out = tensor(y, shape);
  const std::string sizes = R"(, cpu \w+, 1 thread, x f32 \(1,1,3,4\), weight f32 \(1,1,4,2\), bias)";
  ShortConvolutionOptions sums;
  sums.activation = GateFn::none;
  expect_line(
      [&] {
        short_convolution_forward({out, {}}, inputs, sums);
      },
      "headgate: short_convolution_forward" + sizes + ", activation none");
  ShortConvolutionGradients gradients;
  gradients.dx = tensor(dx, shape);
  expect_line(
      [&] {
        short_convolution_backward(gradients, inputs, {out, {}}, {});
      },
      "headgate: short_convolution_backward" + sizes);

  const GatedNormInputs rows{inputs.x, {}, inputs.x};
  const std::string norm = R"(, cpu \w+, 1 thread, x f32 \(1,1,3,4\), gate)";
  expect_line([&] { gated_norm_forward(out, rows, {}); }, "headgate: gated_norm_forward" + norm);
  expect_line(
      [&] {
        gated_norm_backward({gradients.dx, {}, {}}, rows, out, {});
      },
      "headgate: gated_norm_backward" + norm);
}

}  // namespace
}  // namespace headgate
