// SPDX-License-Identifier: Apache-2.0
// Tests Precision::native16: bf16 products if the CPU has them, exact arithmetic otherwise. Other tests check its
// accuracy: random problems and standard cases of bf16 use it, with every kind of product that the CPU has.

#include "library/attention/property.hpp"

namespace headgate {
namespace {

using verify::Case;
using verify::CaseSpec;
using verify::GateInput;

/// Makes a problem for the kernel of many queries.
CaseSpec many_queries() {
  CaseSpec spec;
  spec.Hkv = 2;
  spec.T = 130;
  spec.S = 450;
  spec.D = spec.Dv = 40;
  spec.dtype = DType::bf16;
  spec.gate_input = GateInput::elementwise;
  return spec;
}

std::vector<std::uint8_t> forward_bits(const CaseSpec& spec) {
  Case problem(spec);
  problem.poison_outputs();
  attention_forward(problem.outputs(), problem.inputs(), problem.options());
  return problem.output_bytes();
}

/// Returns gradients from the outputs of exact arithmetic.
std::vector<std::uint8_t> backward_bits(const CaseSpec& spec) {
  Case problem(spec);
  problem.poison_outputs();
  problem.poison_gradients();
  AttentionOptions exact = problem.backward_options();
  exact.precision = Precision::exact;
  attention_forward(problem.saving_outputs(), problem.inputs(), exact);
  attention_backward(problem.gradients(), problem.inputs(), problem.saved(), problem.incoming(),
                     problem.backward_options());
  return problem.gradient_bytes();
}

CaseSpec in_native16(CaseSpec spec) {
  spec.precision = Precision::native16;
  return spec;
}

/// Restores the default choice of products.
class ProductsGuard {
 public:
  ProductsGuard() = default;
  ProductsGuard(const ProductsGuard&) = delete;
  ProductsGuard& operator=(const ProductsGuard&) = delete;
  ~ProductsGuard() { set_native16_products(""); }
};

TEST(Native16, Output_CpuWithProducts_IsRounded) {
  if (native16_products().empty()) GTEST_SKIP() << "left out: this CPU has no bf16 products that native16 uses";
  const CaseSpec exact = many_queries();
  EXPECT_NE(forward_bits(in_native16(exact)), forward_bits(exact));
  EXPECT_NE(backward_bits(in_native16(exact)), backward_bits(exact));
}

TEST(Native16, Products_EachOfTheCpu_HaveDifferentBits) {
  const ProductsGuard guard;
  const TargetGuard target;
  const std::vector<std::string> all = supported_native16_products();
  if (all.size() < 2) GTEST_SKIP() << "left out: this CPU has fewer than two kinds of bf16 products";
  set_target("avx3");
  CaseSpec spec = in_native16(many_queries());
  std::vector<std::vector<std::uint8_t>> bits;
  for (const std::string& name : all) {
    set_native16_products(name);
    EXPECT_EQ(native16_products(), name);
    bits.push_back(forward_bits(spec));
  }
  EXPECT_NE(bits[0], bits[1]);
}

TEST(Native16, Output_OtherTargets_IsExact) {
  const TargetGuard guard;
  for (const std::string& name : supported_targets()) {
    if (name == "avx3") continue;
    set_target(name);
    EXPECT_EQ(native16_products(), "");
    EXPECT_EQ(forward_bits(in_native16(many_queries())), forward_bits(many_queries())) << name;
    EXPECT_EQ(backward_bits(in_native16(many_queries())), backward_bits(many_queries())) << name;
  }
}

/// Squares of keys that no query sees have zero gradients, whatever the previous tile left in their memory.
TEST(Native16, Keys_BeyondAllQueries_HaveZeroGradients) {
  CaseSpec spec = in_native16(many_queries());
  spec.B = 3;
  spec.Hkv = 1;
  spec.T = 17;
  spec.S = 100;
  spec.causality = Causality::causal;
  spec.query_offsets = DType::i32;
  for (spec.seed = 1; spec.seed <= 8; ++spec.seed) expect_right(spec, verify::check_backward_case);
}

/// Cases that its kernels decline are computed exactly.
TEST(Native16, Output_InputsWithoutAKernel_IsExact) {
  const auto expect_exact = [](const char* what, const auto& change) {
    CaseSpec spec = many_queries();
    change(spec);
    EXPECT_EQ(forward_bits(in_native16(spec)), forward_bits(spec)) << what;
  };
  expect_exact("weights", [](CaseSpec& s) { s.weights = true; });
  expect_exact("gate_threshold", [](CaseSpec& s) { s.closed_share = 0.5; });
  expect_exact("int8", [](CaseSpec& s) { s.quantized = true; });
  expect_exact("few queries", [](CaseSpec& s) { s.T = 3; });
  expect_exact("few queries of few keys", [](CaseSpec& s) { s.T = s.S = 16; });
  CaseSpec spec = many_queries();
  spec.bias = {true, true, true, true};
  EXPECT_EQ(backward_bits(in_native16(spec)), backward_bits(spec));
  spec = many_queries();
  spec.T = spec.S = 32;  // 32 for tiles; 63 for dots
  EXPECT_EQ(backward_bits(in_native16(spec)), backward_bits(spec));
  spec.S = 64;
  EXPECT_EQ(backward_bits(in_native16(spec)) == backward_bits(spec), native16_products().empty());
}

std::string refusal_of(DType dtype, Precision precision) {
  CaseSpec spec = many_queries();
  spec.dtype = dtype;
  spec.precision = precision;
  try {
    forward_bits(spec);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Native16, Precision_OtherTypes_IsRefused) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16}) {
    EXPECT_EQ(refusal_of(dtype, Precision::native16),
              "attention_forward: precision is native16 but q is " + std::string(dtype_name(dtype)) + ", not bf16");
  }
  EXPECT_EQ(refusal_of(DType::bf16, static_cast<Precision>(2)), "attention_forward: precision is 2 but must be 0 to 1");
}

TEST(Native16, ForceProduct_UnknownName_IsRefused) {
  try {
    set_native16_products("abacus");
    FAIL() << "abacus was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("set_native16_products names 'abacus'"), std::string::npos);
  }
}

}  // namespace
}  // namespace headgate
