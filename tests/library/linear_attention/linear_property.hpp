// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "support/problem_runs.hpp"
#include "verify/linear_attention_check.hpp"

namespace headgate {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// The case owns its inputs' memory and hands out read-only views.
inline TensorView writable(const ConstTensorView& x) {
  return {const_cast<void*>(x.data), x.dtype, x.shape, x.strides};
}

using CheckLinearCase = std::optional<std::string> (*)(verify::LinearCase&, const verify::LinearKernels&,
                                                       verify::WorstError*);

inline std::optional<std::string> linear_mismatch(const verify::LinearCaseSpec& spec, CheckLinearCase check,
                                                  const verify::LinearKernels& kernels = {}) {
  return verify::check_linear_on_every_target(
      spec, [&](verify::LinearCase& problem, const std::string&) { return check(problem, kernels, nullptr); });
}

/// Checks the pass on every vector target; the library's kernels, or what calls them.
inline void expect_right(const verify::LinearCaseSpec& spec, CheckLinearCase check,
                         const verify::LinearKernels& kernels = {}) {
  if (!meets_next_case()) return;
  EXPECT_EQ(linear_mismatch(spec, check, kernels).value_or(""), "");
}

/// Checks forward and backward pass.
inline void expect_both(const verify::LinearCaseSpec& spec, const verify::LinearKernels& kernels = {}) {
  expect_right(spec, verify::check_linear_forward_case, kernels);
  expect_right(spec, verify::check_linear_backward_case, kernels);
}

/// A type of the tensors and a precision of the products.
struct Arithmetic {
  DType dtype;
  Precision precision = Precision::exact;
};

/// Every type, and bf16 with native16.
inline constexpr std::array<Arithmetic, 5> kArithmetics{
    {{DType::f32}, {DType::f64}, {DType::bf16}, {DType::f16}, {DType::bf16, Precision::native16}}};

/// A layer of Gated DeltaNet: normalised queries and keys, a decay and a β for each head, a state in and out.
inline verify::LinearCaseSpec gated_delta_spec(std::int64_t T, std::int64_t D, std::int64_t Dv) {
  verify::LinearCaseSpec spec;
  spec.T = T;
  spec.D = D;
  spec.Dv = Dv;
  spec.l2_norm = 1e-6;
  spec.decay = verify::DecayInput::headwise;
  spec.beta = verify::BetaInput::headwise;
  spec.state = spec.new_state = spec.dstate = DType::f32;
  return spec;
}

}  // namespace headgate
