// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"
#include "support/test_runs.hpp"

// Tests that meet many problems of an operation, listed ones and random ones.

namespace headgate {

/// Restores the default target.
class TargetGuard {
 public:
  TargetGuard() = default;
  TargetGuard(const TargetGuard&) = delete;
  TargetGuard& operator=(const TargetGuard&) = delete;
  ~TargetGuard() { set_target(""); }
};

inline constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

inline std::string dtype_test_name(const ::testing::TestParamInfo<DType>& info) { return dtype_name(info.param); }

/// How many problems a property meets: HEADGATE_TEST_RUNS, 60 by default.
inline constexpr std::uint64_t kProblemRuns = 60;
inline std::uint64_t problem_runs() { return test_runs().value_or(kProblemRuns); }

/// Whether a test of many cases meets the next one. HEADGATE_TEST_RUNS=N leaves the first N of a test, and of the
/// others every (60/N)th.
inline bool meets_next_case() {
  static const ::testing::TestInfo* last = nullptr;
  static std::uint64_t cases = 0;
  const ::testing::TestInfo* current = ::testing::UnitTest::GetInstance()->current_test_info();
  if (current != last) cases = 0;
  last = current;
  const std::uint64_t number = cases++, runs = std::max<std::uint64_t>(problem_runs(), 1);
  return number < runs || number % std::max<std::uint64_t>(kProblemRuns / runs, 1) == 0;
}

/// A number in [0,n) of the random problem at hand; 0 is what it shrinks to.
inline std::int64_t picked(std::int64_t n) {
  // Uses RapidCheck's full size in every run: otherwise early runs narrow all ranges, including those of features.
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::int64_t>(0, n));
}

/// Calls mismatch_of_next() for problem_runs() random problems, drawn by picked(). The sequence is the same in every
/// run, so that failures can be reproduced. RC_PARAMS, RapidCheck's own variable, overrides both.
template <typename MismatchOfNext>
bool holds_on_drawn_problems(const std::string& what, const MismatchOfNext& mismatch_of_next) {
  const std::string parameters = "seed=20250506 max_success=" + std::to_string(problem_runs());
  setenv("RC_PARAMS", parameters.c_str(), 0);
  return rc::check(what, [mismatch_of_next] {
    if (const std::optional<std::string> mismatch = mismatch_of_next()) RC_FAIL(*mismatch);
  });
}

}  // namespace headgate
