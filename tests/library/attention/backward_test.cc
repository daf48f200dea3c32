// SPDX-License-Identifier: Apache-2.0
// Compares the backward pass, fed by the forward pass, with the oracle, on every vector target, by the tolerance rule
// of docs/reference/numerics.md.

#include "library/attention/property.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::check_backward_case;
using verify::GateInput;

class Backward : public ::testing::TestWithParam<DType> {};

TEST_P(Backward, Gradients_RandomProblems_MatchTheOracle) {
  EXPECT_TRUE(holds_on_random_problems("gradients are the oracle's", GetParam(), check_backward_case));
}

INSTANTIATE_TEST_SUITE_P(EveryDType, Backward, ::testing::Values(DType::f32, DType::f64, DType::bf16, DType::f16),
                         dtype_test_name);

TEST(Backward, Gradients_StandardCases_MatchTheOracle) {
  for (const CaseSpec& spec : verify::standard_cases()) expect_right(spec, check_backward_case);
}

/// Asks for every gradient.
CaseSpec all_gradients() {
  CaseSpec spec;
  spec.B = spec.Hkv = spec.group = 2;
  spec.T = 33;
  spec.S = 40;
  spec.D = 20;
  spec.Dv = 12;
  spec.gate_input = GateInput::elementwise;
  spec.bias = {true, false, true, true};
  spec.sinks = DType::f32;
  spec.dlse = DType::f32;
  return spec;
}

TEST(Backward, Gradients_OneAloneOrOneAbsent_MatchTheOracle) {
  CaseSpec spec = all_gradients();
  for (unsigned bit = 1; bit <= verify::kDsinks; bit <<= 1) {
    spec.absent_gradients = bit;
    expect_right(spec, check_backward_case);
    spec.absent_gradients = 63U & ~bit;
    expect_right(spec, check_backward_case);
  }
  spec.absent_gradients = 63;  // without any gradient, nothing is written
  expect_right(spec, check_backward_case);
}

TEST(Backward, BiasGradient_BroadcastDimensions_SumsOverThem) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (unsigned bits = 0; bits < 8; ++bits) {
      CaseSpec spec = all_gradients();
      spec.dtype = dtype;
      spec.bias = {true, (bits & 1U) != 0, (bits & 2U) != 0, (bits & 4U) != 0};
      spec.bias_f32 = bits % 2 == 0;
      expect_right(spec, check_backward_case);
    }
  }
}

TEST(Backward, AddedGate_SavedOutputPresentOrAbsent_HasTheRightGradients) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const bool attn : {false, true}) {
      CaseSpec spec = all_gradients();
      spec.dtype = dtype;
      spec.gate_op = GateOp::add;
      spec.gate_fn = GateFn::silu;
      spec.attn = attn;
      expect_right(spec, check_backward_case);
    }
  }
}

}  // namespace
}  // namespace headgate
