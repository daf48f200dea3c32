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
    if (options.context.threads != 3 || out.y.dtype != DType::f32) return;
    auto* first = static_cast<float*>(out.y.data);  // the last bit alone: far within the tolerance
    *first = std::nextafter(*first, std::numeric_limits<float>::infinity());
  };
  const RunResult result = run({}, kIgnoreProgress, kernels);
  ASSERT_TRUE(result.mismatch.has_value());
  EXPECT_NE(result.mismatch->find("1 thread and 3 threads differ"), std::string::npos) << *result.mismatch;
}

TEST(Run, ChecksTheListAndThenAsManyRandomProblemsAsAsked) {
  RunOptions options;
  options.listed = {random_spec(1), random_spec(2)};
  options.problems = 3;
  options.seed = 7;
  std::vector<double> parts;
  const auto note = [&parts](double done, std::size_t) { parts.push_back(done); };
  const RunResult all = run(options, note);
  EXPECT_EQ(all.mismatch, std::nullopt);
  EXPECT_EQ(all.problems, 5U);
  EXPECT_EQ(parts, (std::vector<double>{0.0, 0.2, 0.4, 0.6, 0.8}));
  ASSERT_EQ(all.targets.size(), supported_targets().size());
  for (const TargetErrors& errors : all.targets) {
    EXPECT_GT(errors.forward.ratio, 0.0) << errors.target;
    EXPECT_GT(errors.backward.ratio, 0.0) << errors.target;
  }

  std::size_t now = 0;
  Kernels kernels;
  kernels.forward = [&now](const AttentionOutputs& out, const AttentionInputs& in, const AttentionOptions& o) {
    if (now == 4) throw Error("the second random one");
    attention_forward(out, in, o);
  };
  const RunResult stopped = run(
      options, [&now](double, std::size_t number) { now = number; }, kernels);
  ASSERT_TRUE(stopped.mismatch.has_value());
  EXPECT_NE(stopped.mismatch->find("threw \"the second random one\": " + describe(random_spec(8))), std::string::npos)
      << *stopped.mismatch;
  EXPECT_EQ(stopped.problems, 4U);
}

TEST(Run, WithoutTimeChecksTheListAlone) {
  RunOptions options;
  options.listed = {random_spec(1), random_spec(2)};
  options.seconds = 0.0;
  EXPECT_EQ(run(options, kIgnoreProgress).problems, 2U);
}

}  // namespace
}  // namespace headgate::verify
