// SPDX-License-Identifier: Apache-2.0
// The loop over problems and vector targets must notice kernels that are wrong on one target alone, or whose bits
// depend on the number of threads.

#include "verify/run.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/core/element.hpp"

namespace headgate::verify {
namespace {

constexpr auto kIgnoreProgress = [](double, std::size_t) {};

/// Returns the first seed from `seed` on that gives a problem of linear attention in exact arithmetic. With native16 a
/// problem is only computed on targets that have bf16 products.
std::uint64_t exact_linear_seed(std::uint64_t seed) {
  while (random_linear_spec(seed).precision != Precision::exact) ++seed;
  return seed;
}

TEST(Run, Run_WrongTarget_NamesIt) {
  const std::string before = active_target();
  const std::string wrong = supported_targets().back();
  Kernels kernels;
  kernels.backward = [&wrong](const AttentionGradients& out, const AttentionInputs& in, const AttentionSaved& saved,
                              const AttentionIncoming& incoming, const AttentionOptions& options) {
    attention_backward(out, in, saved, incoming, options);
    if (active_target() == wrong) store(out.dq, 0, 0, 0, 0, -load(out.dq, 0, 0, 0, 0));
  };
  std::vector<std::size_t> numbers;
  const RunResult result =
      run({}, [&](double, std::size_t number) { numbers.push_back(number); }, {.attention = kernels});
  ASSERT_TRUE(result.mismatch.has_value());
  EXPECT_TRUE(result.mismatch->starts_with(wrong + ": dq[0,0,0,0]")) << *result.mismatch;
  EXPECT_EQ(result.problems, 1U);
  EXPECT_EQ(numbers, std::vector<std::size_t>{1});
  EXPECT_EQ(active_target(), before);
}

TEST(Run, Run_BitsDependOnThreads_IsNoticed) {
  Kernels kernels;
  kernels.forward = [](const AttentionOutputs& out, const AttentionInputs& in, const AttentionOptions& options) {
    attention_forward(out, in, options);
    if (options.context.threads != 3 || out.y.dtype != DType::f32) return;
    auto* first = static_cast<float*>(out.y.data);  // the last bit alone: far within the tolerance
    *first = std::nextafter(*first, std::numeric_limits<float>::infinity());
  };
  const RunResult result = run({}, kIgnoreProgress, {.attention = kernels});
  ASSERT_TRUE(result.mismatch.has_value());
  EXPECT_NE(result.mismatch->find("1 thread and 3 threads differ"), std::string::npos) << *result.mismatch;
}

TEST(Run, Run_CountGiven_ChecksTheListsThenRandomProblems) {
  RunOptions options;
  options.listed = {random_spec(1), random_spec(2)};
  options.listed_linear = {random_linear_spec(1), random_linear_spec(2)};
  options.listed_convolution = {random_convolution_spec(1), random_convolution_spec(2)};
  options.listed_norm = {random_norm_spec(1), random_norm_spec(2)};
  options.problems = 3;
  options.seed = 7;
  std::vector<double> parts;
  const auto note = [&parts](double done, std::size_t) { parts.push_back(done); };
  const RunResult all = run(options, note);
  EXPECT_EQ(all.mismatch, std::nullopt);
  EXPECT_EQ(all.problems, 20U);
  ASSERT_EQ(parts.size(), 20U);
  for (std::size_t n = 0; n < parts.size(); ++n) EXPECT_EQ(parts[n], static_cast<double>(n) / 20.0);
  const std::vector<Implementation> each = implementations();
  const LinearCaseSpec exact_linear;
  ASSERT_EQ(all.targets.size(), each.size());
  for (std::size_t n = 0; n < each.size(); ++n) {
    EXPECT_EQ(all.targets[n].target, each[n].name);
    EXPECT_EQ(all.targets[n].is_plain, each[n].takes(exact_linear));
    for (const auto error :
         {&TargetErrors::linear_forward, &TargetErrors::linear_backward, &TargetErrors::linear_statistics}) {
      EXPECT_TRUE(!each[n].takes(exact_linear) || (all.targets[n].*error).ratio > 0.0) << each[n].name;
    }
    for (const auto error : {&TargetErrors::convolution_forward, &TargetErrors::convolution_backward,
                             &TargetErrors::norm_forward, &TargetErrors::norm_backward}) {
      EXPECT_EQ((all.targets[n].*error).ratio > 0.0, all.targets[n].is_plain) << each[n].name;
    }
    if (!each[n].takes(random_spec(1))) continue;
    EXPECT_GT(all.targets[n].forward.ratio, 0.0) << each[n].name;
    EXPECT_GT(all.targets[n].backward.ratio, 0.0) << each[n].name;
  }

  std::size_t now = 0;
  Kernels kernels;
  kernels.forward = [&now](const AttentionOutputs& out, const AttentionInputs& in, const AttentionOptions& o) {
    if (now == 13) throw Error("the second random one");
    attention_forward(out, in, o);
  };
  const RunResult stopped = run(options, [&now](double, std::size_t number) { now = number; }, {.attention = kernels});
  ASSERT_TRUE(stopped.mismatch.has_value());
  EXPECT_NE(stopped.mismatch->find("threw \"the second random one\": " + describe(random_spec(8))), std::string::npos)
      << *stopped.mismatch;
  EXPECT_EQ(stopped.problems, 13U);
}

TEST(Run, Run_WrongLinearAttention_NamesProblemAndTarget) {
  const std::string wrong = supported_targets().back();
  RunOptions options;
  options.listed = {random_spec(1)};
  options.listed_linear = {};
  options.listed_convolution = {};
  options.listed_norm = {};
  options.problems = 2;
  options.seed = exact_linear_seed(7);
  LinearKernels linear;
  linear.backward = [&wrong](const LinearAttentionGradients& out, const LinearAttentionInputs& in,
                             const LinearAttentionIncoming& incoming, const LinearAttentionOptions& o) {
    linear_attention_backward(out, in, incoming, o);
    if (active_target() == wrong) throw Error("wrong");
  };
  const RunResult result = run(options, kIgnoreProgress, {.linear = linear});
  ASSERT_TRUE(result.mismatch.has_value());
  EXPECT_EQ(*result.mismatch,
            wrong + ": linear_attention_backward threw \"wrong\": " + describe(random_linear_spec(options.seed)));
  EXPECT_EQ(result.problems, 3U);
}

TEST(Run, Run_WrongStatisticsOfLinearAttention_NamesProblemAndTarget) {
  const LinearCaseSpec spec = random_linear_spec(exact_linear_seed(2));
  RunOptions options;
  options.listed = {};
  options.listed_linear = {spec};
  options.listed_convolution = {};
  options.listed_norm = {};
  options.problems = 0;
  RunKernels kernels;
  kernels.linear_statistics.statistics = [](const LinearAttentionStatistics& out, const LinearAttentionInputs& in,
                                            const LinearAttentionOptions& o) {
    linear_attention_statistics(out, in, o);
    throw Error("wrong");
  };
  const RunResult result = run(options, kIgnoreProgress, kernels);
  ASSERT_TRUE(result.mismatch.has_value());
  EXPECT_EQ(*result.mismatch,
            supported_targets().front() + ": linear attention's statistics threw \"wrong\": " + describe(spec));
}

/// Only one problem of the operation, which throws on one target.
TEST(Run, Run_WrongConvolutionOrNorm_NamesProblemAndTarget) {
  const std::string wrong = supported_targets().back();
  RunOptions options;
  options.listed = {};
  options.listed_linear = {};
  options.listed_convolution = {random_convolution_spec(3)};
  options.listed_norm = {random_norm_spec(4)};
  options.problems = 0;
  RunKernels kernels;
  kernels.norm.backward = [&wrong](const auto& out, const auto& in, const auto& dy, const auto& o) {
    gated_norm_backward(out, in, dy, o);
    if (active_target() == wrong) throw Error("wrong");
  };
  RunResult result = run(options, kIgnoreProgress, kernels);
  ASSERT_TRUE(result.mismatch.has_value());
  EXPECT_EQ(*result.mismatch, wrong + ": gated_norm_backward threw \"wrong\": " + describe(random_norm_spec(4)));
  EXPECT_EQ(result.problems, 2U);
  kernels.convolution.forward = [&wrong](const auto& out, const auto& in, const auto& o) {
    short_convolution_forward(out, in, o);
    if (active_target() == wrong) throw Error("wrong");
  };
  result = run(options, kIgnoreProgress, kernels);
  ASSERT_TRUE(result.mismatch.has_value());
  EXPECT_EQ(*result.mismatch,
            wrong + ": short_convolution_forward threw \"wrong\": " + describe(random_convolution_spec(3)));
  EXPECT_EQ(result.problems, 1U);
}

TEST(Run, Run_Native16_ChecksItsProductsOnly) {
  RunOptions options;
  CaseSpec spec;
  spec.T = spec.S = 100;
  spec.D = spec.Dv = 16;
  spec.dtype = DType::bf16;
  spec.precision = Precision::native16;
  options.listed = {spec};
  options.listed_linear = {};
  options.listed_convolution = {};
  options.listed_norm = {};
  options.problems = 0;
  const RunResult result = run(options, kIgnoreProgress);
  EXPECT_EQ(result.mismatch, std::nullopt);
  for (const TargetErrors& errors : result.targets) {
    const bool has_products = errors.target.find(' ') != std::string::npos;
    EXPECT_EQ(errors.forward.ratio > 0.0, has_products || supported_native16_products().empty()) << errors.target;
  }
}

TEST(Run, ConvolutionAndNorm_ListedProblems_AgreeOnEveryTarget) {
  RunOptions options;
  options.listed = {};
  options.listed_linear = {};
  options.problems = 0;
  const RunResult result = run(options, kIgnoreProgress);
  EXPECT_EQ(result.mismatch, std::nullopt);
  EXPECT_EQ(result.problems, options.listed_convolution.size() + options.listed_norm.size());
}

TEST(Run, Run_WithoutTime_ChecksOneOfEachOperation) {
  RunOptions options;
  options.listed = {random_spec(1), random_spec(2)};
  options.listed_linear = {random_linear_spec(1)};
  options.listed_convolution = {random_convolution_spec(1)};
  options.listed_norm = {random_norm_spec(1)};
  options.seconds = 0.0;
  const RunResult result = run(options, kIgnoreProgress);
  EXPECT_EQ(result.problems, 4U);
  EXPECT_EQ(result.left_out, 1U);
}

}  // namespace
}  // namespace headgate::verify
