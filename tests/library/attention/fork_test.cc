// SPDX-License-Identifier: Apache-2.0
// Checks calls in a child that fork() makes of a process whose OpenMP threads were running: bitwise identical results,
// without hanging.

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "headgate/merge.hpp"
#include "headgate/statistics.hpp"
#include "library/attention/property.hpp"
#include "support/forked.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::GateInput;

struct Bits {
  PassBits passes;
  std::vector<float> entropy, merged;

  bool operator==(const Bits&) const = default;
};

/// Calls every function with parallel regions: forward, backward, statistics and merge.
Bits run(verify::Case& problem, int threads) {
  Bits bits{run_passes(problem, threads), {}, {}};
  const ConstTensorView lse = problem.saved().lse, y = problem.saved().y;
  bits.entropy.resize(static_cast<std::size_t>(lse.numel()));
  AttentionStatistics statistics;
  statistics.entropy = make_view(bits.entropy.data(), lse.shape);
  attention_statistics(statistics, problem.inputs(), lse, {}, problem.options());

  bits.merged.resize(static_cast<std::size_t>(y.numel()));
  AttentionOutputs merged;
  merged.y = make_view(bits.merged.data(), y.shape);
  const std::array<MergePart, 2> parts{MergePart{y, lse}, MergePart{y, lse}};
  attention_merge(merged, parts, {}, problem.options());
  return bits;
}

CaseSpec spec_of(std::int64_t T) {
  CaseSpec spec;
  spec.B = 2;
  spec.Hkv = 4;
  spec.T = T;
  spec.S = 300;
  spec.D = spec.Dv = 32;
  spec.gate_input = GateInput::elementwise;
  return spec;
}

TEST(Fork, ForkedChild_SameProblem_IsBitwiseIdentical) {
  if (!testing::kCanFork) GTEST_SKIP() << "the thread sanitizer allows no threads after a fork";
  for (const std::int64_t T : {300, 2}) {  // the dense kernel, and the kernel for few queries
    verify::Case problem(spec_of(T));
    const Bits expected = run(problem, 4);
    EXPECT_FALSE(forked_thread());
    for (const int threads : {1, 2, 4, 1}) {
      EXPECT_EQ(testing::in_forked_child([&] { return forked_thread() && run(problem, threads) == expected; }),
                "passed")
          << threads << " threads, T = " << T;
    }
    EXPECT_TRUE(run(problem, 4) == expected) << "in the parent, afterwards";
  }
}

TEST(Fork, ForkedChild_OfAChildAndInThreads_IsBitwiseIdentical) {
  if (!testing::kCanFork) GTEST_SKIP() << "the thread sanitizer allows no threads after a fork";
  verify::Case problem(spec_of(40));
  const Bits expected = run(problem, 2);
  const auto in_a_new_thread = [&] {
    bool same = false;
    std::thread([&] { same = !forked_thread() && run(problem, 2) == expected; }).join();
    return same;
  };
  EXPECT_EQ(testing::in_forked_child([&] {
              const bool here = run(problem, 2) == expected && in_a_new_thread();
              return here && testing::in_forked_child([&] { return run(problem, 2) == expected; }) == "passed";
            }),
            "passed");
}

/// Lets the calling process start no thread, as a user without rights: root has no limit. Returns whether it could.
bool forbid_threads() {
  constexpr uid_t kNobody = 65534;
  const rlimit limit{1, 1};
  return (getuid() != 0 || setuid(kNobody) == 0) && setrlimit(RLIMIT_NPROC, &limit) == 0;
}

TEST(Fork, ForkedChild_WithoutAThreadToStart_IsBitwiseIdentical) {
  if (!testing::kCanFork) GTEST_SKIP() << "the thread sanitizer allows no threads after a fork";
  if (testing::in_forked_child(forbid_threads) != "passed") GTEST_SKIP() << "this user may not limit its threads";
  verify::Case problem(spec_of(40));
  const Bits expected = run(problem, 2);
  EXPECT_EQ(testing::in_forked_child([&] { return forbid_threads() && run(problem, 2) == expected; }), "passed");
}

TEST(Fork, ForkedChild_BadArgument_ThrowsToTheCaller) {
  if (!testing::kCanFork) GTEST_SKIP() << "the thread sanitizer allows no threads after a fork";
  verify::Case problem(spec_of(40));
  run(problem, 2);
  EXPECT_EQ(testing::in_forked_child([&] {
              AttentionOptions options = problem.options();
              options.context.threads = 2;
              options.softcap = -1;
              try {
                attention_forward(problem.outputs(), problem.inputs(), options);
              } catch (const Error&) {
                return true;
              }
              return false;
            }),
            "passed");
}

}  // namespace
}  // namespace headgate
