// SPDX-License-Identifier: Apache-2.0
// Tests problems whose sums have equal terms. With a scale of 0 all queries weigh the keys alike, and under
// Layout::broadcast they share one gate and one incoming gradient. Equal terms round alike, and their errors add up in
// full.

#include <array>

#include "library/attention/cpu/small/small_heads.hpp"
#include "library/attention/property.hpp"
#include "library/core/element.hpp"
#include "verify/case.hpp"
#include "verify/fill.hpp"
#include "verify/oracle/sums.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::GateInput;

/// dv sums equal terms, and so do dbias, dsinks and dgate if present; with a sink the softmax does, too.
CaseSpec equal_terms(DType dtype, std::uint64_t seed) {
  constexpr std::array<std::int64_t, 4> kQueries{96, 192, 257, 384};
  constexpr std::array<std::int64_t, 5> kKeys{1, 3, 24, 129, 385};
  CaseSpec spec;
  spec.dtype = dtype;
  spec.layout = verify::Layout::broadcast;
  spec.scale = 0.0;
  spec.T = kQueries[seed % kQueries.size()];
  spec.S = kKeys[seed % kKeys.size()];
  spec.lse = DType::f64;
  spec.seed = seed;
  if (seed % 2 == 0) return spec;  // no other feature: logits of 0, and the tightest rule
  spec.group = 1 + static_cast<std::int64_t>(seed % 3);
  spec.Dv = 24;
  spec.gate_input = GateInput::headwise;
  spec.gate_op = seed % 4 == 1 ? GateOp::mul : GateOp::add;
  if (seed % 7 < 4) spec.bias = {true, false, false, false};
  if (seed % 5 < 3) spec.sinks = DType::f64;
  if (seed % 3 == 0) spec.dlse = DType::f64;
  return spec;
}

class EqualTerms : public ::testing::TestWithParam<DType> {};

TEST_P(EqualTerms, Forward_EqualTerms_StaysWithinTheToleranceRule) {
  for (std::uint64_t seed = 1; seed <= 2 * problem_runs(); ++seed)
    expect_right(equal_terms(GetParam(), seed), verify::check_forward_case);
}

TEST_P(EqualTerms, Backward_EqualTerms_StaysWithinTheToleranceRule) {
  for (std::uint64_t seed = 1; seed <= 2 * problem_runs(); ++seed)
    expect_right(equal_terms(GetParam(), seed), verify::check_backward_case);
}

INSTANTIATE_TEST_SUITE_P(F32AndF64, EqualTerms, ::testing::Values(DType::f32, DType::f64), dtype_test_name);

/// The softmax starts from the sink and sums equal terms that are not 1.
TEST_P(EqualTerms, Softmax_EqualTermsBesideASink_StaysWithinTheToleranceRule) {
  for (std::uint64_t seed = 1; seed <= problem_runs(); ++seed) {
    CaseSpec spec;
    spec.dtype = GetParam();
    spec.scale = 0.0;
    spec.T = 2;
    spec.S = 384;
    spec.group = 4;
    spec.sinks = DType::f64;
    spec.lse = DType::f64;
    spec.weights = true;
    spec.seed = seed;
    expect_right(spec, verify::check_forward_case);
    expect_right(spec, verify::check_backward_case);
  }
}

/// Stores 1 + d / 8 in feature d of every row.
void fill_with_equal_rows(const ConstTensorView& rows) {
  const TensorView to{const_cast<void*>(rows.data), rows.dtype, rows.shape, rows.strides};
  verify::for_each_index(to.shape, [&to](std::int64_t b, std::int64_t h, std::int64_t j, std::int64_t d) {
    store(to, b, h, j, d, 1.0 + 0.125 * static_cast<double>(d));
  });
}

/// Narrow heads with a mask sum up to 512 keys without cutting them into blocks. With equal keys and values, the terms
/// of y and, because of dlse, those of dq are equal.
TEST_P(EqualTerms, NarrowHeads_EqualTerms_StayWithinTheToleranceRule) {
  static_assert(kNarrowHeadRows == reference::kUncutKeys);
  for (const std::int64_t S : {385, 500, 512}) {
    for (const DType sinks : {DType::none, DType::f64}) {
      CaseSpec spec;
      spec.dtype = GetParam();
      spec.scale = 0.0;
      spec.B = 8;
      spec.T = 10;
      spec.S = S;
      spec.D = spec.Dv = 5;
      spec.mask = {true, false, false, true};
      spec.sinks = sinks;
      spec.lse = spec.dlse = DType::f64;
      verify::Case problem(spec);
      fill_with_equal_rows(problem.inputs().k);
      fill_with_equal_rows(problem.inputs().v);
      EXPECT_EQ(verify::check_forward_case(problem, {}, nullptr).value_or(""), "");
      EXPECT_EQ(verify::check_backward_case(problem, {}, nullptr).value_or(""), "");
    }
  }
}

/// Problems of `headgate verify` that correct kernels met but the rule did not allow: an oracle that rounded as much as
/// f64 kernels do (1733, 3486), an overflow to the other sign (6094), a saved attn below the smallest normal number
/// (7236).
TEST(ToleranceRule, ToleranceRule_CorrectKernels_AllowsTheirRounding) {
  for (const std::uint64_t seed : {1733U, 3486U, 6094U, 7236U}) {
    expect_right(verify::random_spec(seed), verify::check_forward_case);
    expect_right(verify::random_spec(seed), verify::check_backward_case);
  }
}

}  // namespace
}  // namespace headgate
