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
#include "support/test_runs.hpp"
#include "verify/check.hpp"
#include "verify/spec.hpp"

namespace headgate {

/// Restores the default target.
class TargetGuard {
 public:
  TargetGuard() = default;
  TargetGuard(const TargetGuard&) = delete;
  TargetGuard& operator=(const TargetGuard&) = delete;
  ~TargetGuard() { set_target(""); }
};

/// Draws a random spec of `dtype`; it shrinks towards the plainest problem of that dtype.
inline verify::CaseSpec drawn_spec(DType dtype) {
  // Uses RapidCheck's full size in every run: otherwise early runs narrow all ranges, including those of features.
  verify::CaseSpec spec = verify::draw_spec(
      [](std::int64_t n) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::int64_t>(0, n)); });
  spec.dtype = dtype;
  if (dtype != DType::bf16) spec.precision = Precision::exact;
  return spec;
}

using CheckCase = std::optional<std::string> (*)(verify::Case&, const verify::Kernels&, verify::WorstError*);

inline std::optional<std::string> check_on_every_target(const verify::CaseSpec& spec, CheckCase check) {
  return verify::check_on_every_target(
      spec, [check](verify::Case& problem, const std::string&) { return check(problem, {}, nullptr); });
}

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

inline void expect_right(const verify::CaseSpec& spec, CheckCase check) {
  if (!meets_next_case()) return;
  const auto mismatch = check_on_every_target(spec, check);
  EXPECT_FALSE(mismatch.has_value()) << mismatch.value_or("");
}

inline constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

/// Checks forward and backward pass.
inline void expect_both(const verify::CaseSpec& spec) {
  expect_right(spec, verify::check_forward_case);
  expect_right(spec, verify::check_backward_case);
}

/// Makes a problem of one head of these sizes, with an elementwise gate.
inline verify::CaseSpec sized(std::int64_t T, std::int64_t S, std::int64_t D, std::int64_t Dv) {
  verify::CaseSpec spec;
  spec.T = T;
  spec.S = S;
  spec.D = D;
  spec.Dv = Dv;
  spec.gate_input = verify::GateInput::elementwise;
  return spec;
}

/// Runs `check` on problem_runs() random problems of `dtype`. The sequence is the same in every run, so that failures
/// can be reproduced. RC_PARAMS, RapidCheck's own variable, overrides both.
inline bool holds_on_random_problems(const std::string& what, DType dtype, CheckCase check) {
  const std::string parameters = "seed=20250506 max_success=" + std::to_string(problem_runs());
  setenv("RC_PARAMS", parameters.c_str(), 0);
  return rc::check(what, [dtype, check] {
    if (const auto mismatch = check_on_every_target(drawn_spec(dtype), check)) RC_FAIL(*mismatch);
  });
}

inline std::string dtype_test_name(const ::testing::TestParamInfo<DType>& info) { return dtype_name(info.param); }

}  // namespace headgate
