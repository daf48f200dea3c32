// SPDX-License-Identifier: Apache-2.0
// Problems whose sums are of equal terms: with a scale of 0 all queries weigh the keys alike, and under
// Layout::broadcast they all come with one gate and one incoming gradient. Equal terms round alike, and their errors
// add up in full.

#include <array>

#include "attention/property.hpp"

namespace headgate {
namespace {

using cases::CaseSpec;

/// dv, dbias, dsinks and dgate sum equal terms; with a sink the softmax does, too.
CaseSpec equal_terms(DType dtype, std::uint64_t seed) {
  constexpr std::array<std::int64_t, 5> kKeys{1, 3, 24, 129, 385};
  CaseSpec spec;
  spec.dtype = dtype;
  spec.layout = cases::Layout::broadcast;
  spec.scale = 0.0;
  spec.group = 1 + static_cast<std::int64_t>(seed % 3);
  spec.T = 257;
  spec.S = kKeys[seed % kKeys.size()];
  spec.Dv = seed % 2 == 0 ? 1 : 24;
  spec.gate_grain = seed % 3 == 0 ? cases::GateGrain::none : cases::GateGrain::headwise;
  spec.gate_op = seed % 5 < 2 ? GateOp::mul : GateOp::add;
  if (seed % 4 < 2) spec.bias = {true, false, false, false};
  if (seed % 7 < 5) spec.sinks = DType::f64;
  spec.lse = DType::f64;
  if (seed % 8 < 4) spec.dlse = DType::f64;
  spec.seed = seed;
  return spec;
}

class EqualTerms : public ::testing::TestWithParam<DType> {};

TEST_P(EqualTerms, StayWithinTheRuleForward) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed)
    expect_right(equal_terms(GetParam(), seed), cases::check_forward_case);
}

TEST_P(EqualTerms, StayWithinTheRuleBackward) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed)
    expect_right(equal_terms(GetParam(), seed), cases::check_backward_case);
}

INSTANTIATE_TEST_SUITE_P(F32AndF64, EqualTerms, ::testing::Values(DType::f32, DType::f64), dtype_test_name);

TEST(EqualTerms, TheProblemThatVerifyMeetsAtSeed3486) {
  expect_right(cases::random_spec(3486), cases::check_backward_case);
}

}  // namespace
}  // namespace headgate
