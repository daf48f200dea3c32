// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/problem_runs.hpp"
#include "verify/check.hpp"
#include "verify/spec.hpp"

namespace headgate {

/// Draws a random spec of `dtype`; it shrinks towards the plainest problem of that dtype.
inline verify::CaseSpec drawn_spec(DType dtype) {
  verify::CaseSpec spec = verify::draw_spec(picked);
  spec.dtype = dtype;
  if (dtype != DType::bf16) spec.precision = Precision::exact;
  return spec;
}

using CheckCase = std::optional<std::string> (*)(verify::Case&, const verify::Kernels&, verify::WorstError*);

inline std::optional<std::string> check_on_every_target(const verify::CaseSpec& spec, CheckCase check) {
  return verify::check_on_every_target(
      spec, [check](verify::Case& problem, const std::string&) { return check(problem, {}, nullptr); });
}

inline void expect_right(const verify::CaseSpec& spec, CheckCase check) {
  if (!meets_next_case()) return;
  const auto mismatch = check_on_every_target(spec, check);
  EXPECT_FALSE(mismatch.has_value()) << mismatch.value_or("");
}

/// Checks forward and backward pass.
inline void expect_both(const verify::CaseSpec& spec) {
  expect_right(spec, verify::check_forward_case);
  expect_right(spec, verify::check_backward_case);
}

/// The bytes that the passes of a problem write.
struct PassBits {
  std::vector<std::uint8_t> outputs, gradients;

  bool operator==(const PassBits&) const = default;
};

/// Runs both passes on poisoned outputs with this number of threads.
inline PassBits run_passes(verify::Case& problem, int threads) {
  problem.options().context.threads = threads;
  problem.poison_outputs();
  problem.poison_gradients();
  attention_forward(problem.outputs(), problem.inputs(), problem.options());
  PassBits bits{problem.output_bytes(), {}};
  attention_forward(problem.saving_outputs(), problem.inputs(), problem.backward_options());
  attention_backward(problem.gradients(), problem.inputs(), problem.saved(), problem.incoming(),
                     problem.backward_options());
  bits.gradients = problem.gradient_bytes();
  return bits;
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

/// Runs `check` on problem_runs() random problems of `dtype`.
inline bool holds_on_random_problems(const std::string& what, DType dtype, CheckCase check) {
  return holds_on_drawn_problems(what, [dtype, check] { return check_on_every_target(drawn_spec(dtype), check); });
}

}  // namespace headgate
