// SPDX-License-Identifier: Apache-2.0
// The loop over problems and vector targets must notice kernels that are wrong on one target alone, or whose bits
// depend on the number of threads.

#include "verify/run.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/element.hpp"
#include "headgate/runtime.hpp"

namespace headgate::verify {
namespace {

constexpr auto kIgnoreProgress = [](double, std::size_t) {};

TEST(Run, NoticesATargetThatIsWrongAndNamesIt) {
  const std::string before = active_target();
  const std::string wrong = supported_targets().back();
  Kernels kernels;
  kernels.backward = [&wrong](const AttentionGradients& out, const AttentionInputs& in, const AttentionSaved& saved,
                              const AttentionIncoming& incoming, const AttentionOptions& options) {
    attention_backward(out, in, saved, incoming, options);
    if (active_target() == wrong) store(out.dq, 0, 0, 0, 0, -load(out.dq, 0, 0, 0, 0));
  };
  std::vector<std::size_t> numbers;
  const RunResult result = run(
      {}, [&](double, std::size_t number) { numbers.push_back(number); }, kernels);
  ASSERT_TRUE(result.mismatch.has_value());
  EXPECT_TRUE(result.mismatch->starts_with(wrong + ": dq[0,0,0,0]")) << *result.mismatch;
  EXPECT_EQ(result.problems, 1U);
  EXPECT_EQ(numbers, std::vector<std::size_t>{1});
  EXPECT_EQ(active_target(), before);
}

TEST(Run, NoticesBitsThatDependOnTheNumberOfThreads) {
  Kernels kernels;
  kernels.forward = [](const AttentionOutputs& out, const AttentionInputs& in, const AttentionOptions& options) {
    attention_forward(out, in, options);
    if (options.threads != 3 || out.y.dtype != DType::f32) return;
    auto* first = static_cast<float*>(out.y.data);  // the last bit alone: far within the tolerance
    *first = std::nextafter(*first, std::numeric_limits<float>::infinity());
  };
  const RunResult result = run({}, kIgnoreProgress, kernels);
  ASSERT_TRUE(result.mismatch.has_value());
  EXPECT_NE(result.mismatch->find("1 thread and 3 threads differ"), std::string::npos) << *result.mismatch;
}

TEST(Run, ChecksTheListAndThenAsManyRandomProblemsAsAsked) {
  std::vector<double> parts;
  // An error in a random problem alone, which the list does not draw: the run must come to it.
  const CaseSpec third = random_spec(9);
  Kernels kernels;
  std::size_t number = 0;
  const std::size_t listed = standard_cases().size();
  kernels.forward = [&](const AttentionOutputs& out, const AttentionInputs& in, const AttentionOptions& options) {
    if (number == listed + 3) throw Error("the third");
    attention_forward(out, in, options);
  };
  RunOptions options;
  options.problems = 5;
  options.seed = 7;
  const RunResult result = run(
      options,
      [&](double done, std::size_t now) {
        parts.push_back(done);
        number = now;
      },
      kernels);
  ASSERT_TRUE(result.mismatch.has_value());
  EXPECT_NE(result.mismatch->find("attention_forward threw \"the third\": " + describe(third)), std::string::npos)
      << *result.mismatch;
  EXPECT_EQ(result.problems, listed + 3);
  EXPECT_EQ(parts.front(), 0.0);
  EXPECT_DOUBLE_EQ(parts.back(), static_cast<double>(listed + 2) / static_cast<double>(listed + 5));
}

}  // namespace
}  // namespace headgate::verify
