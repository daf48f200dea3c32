// SPDX-License-Identifier: Apache-2.0
// Tests Precision::native16: bf16 products if the CPU has them, exact arithmetic otherwise. Other tests check its
// accuracy: random problems and standard cases of bf16 use it, with every kind of product that the CPU has.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "library/attention/property.hpp"
#include "library/core/convert.hpp"

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

/// dbias is a sum over batch elements, heads or queries, or has a term for each score.
TEST(Native16, BiasGradient_EveryShape_IsRight) {
  CaseSpec spec = in_native16(many_queries());
  spec.B = spec.group = spec.threads = 2;
  spec.Hkv = 1;
  spec.T = 70;
  spec.S = 401;
  spec.D = spec.Dv = 24;
  spec.sinks = DType::f32;
  for (unsigned full = 0; full < 8; ++full) {
    spec.bias = {true, (full & 1) != 0, (full & 2) != 0, (full & 4) != 0};
    spec.causality = full < 5 ? Causality::none : Causality::causal;
    spec.bias_f32 = !spec.bias_f32;
    spec.bias_hides = full % 3 == 0;
    spec.softcap = full % 3 == 1 ? 20.0 : 0.0;
    spec.key_bias = full % 3 == 2 ? DType::f32 : DType::none;
    expect_both(spec);
    ++spec.seed;
  }
}

/// One kernel clears and sums the whole dbias of a packed batch, whatever the lengths of its sequences.
TEST(Native16, BiasGradient_PackedSequencesOfAllLengths_IsRight) {
  CaseSpec spec = in_native16(many_queries());
  spec.cu_seqlens = DType::i32;
  spec.packed_queries = {130, 0, 3, 40, 97};
  spec.packed_keys = {390, 5, 70, 0, 33};
  spec.packed = 5;
  spec.T = 130 + 3 + 40 + 97;
  spec.S = 390 + 5 + 70 + 33;
  for (const bool full_h : {true, false}) {
    spec.bias = {true, true, full_h, true};
    expect_right(spec, verify::check_backward_case);
  }
}

/// Holds results of a call in which each of 100 queries sees almost all of 700 keys.
struct RuleResults {
  std::vector<float> y, dq, dk, dv, dbias;
  bool operator==(const RuleResults& other) const = default;
};

/// Runs both passes in native16 with the bias, key bias and mask of `rules`. The window hides the first key from the
/// last query: calls with a window read strided tensors in place.
RuleResults results_with(const AttentionInputs& rules) {
  const Shape queries{1, 1, 100, 16}, keys{1, 1, 700, 16}, map{1, 1, 100, 700};
  std::vector<BFloat16> x(700 * 16);
  for (std::size_t n = 0; n < x.size(); ++n) x[n] = to_bf16(static_cast<float>(std::sin(0.7 * static_cast<double>(n))));
  AttentionInputs in = rules;
  in.q = {x.data(), DType::bf16, queries, contiguous_strides(queries)};
  in.k = in.v = {x.data(), DType::bf16, keys, contiguous_strides(keys)};
  AttentionOptions options;
  options.precision = Precision::native16;
  options.window_left = 698;
  std::vector<BFloat16> y(100 * 16), dq(100 * 16), dk(700 * 16), dv(700 * 16);
  std::vector<double> lse(100);
  std::vector<float> dbias(rules.bias.present() ? 100 * 700 : 0);
  const TensorView out{y.data(), DType::bf16, queries, contiguous_strides(queries)};
  const TensorView lse_out = make_view(lse.data(), Shape{1, 1, 100, 1});
  attention_forward({.y = out, .lse = lse_out}, in, options);
  AttentionGradients gradients;
  gradients.dq = {dq.data(), DType::bf16, queries, contiguous_strides(queries)};
  gradients.dk = {dk.data(), DType::bf16, keys, contiguous_strides(keys)};
  gradients.dv = {dv.data(), DType::bf16, keys, contiguous_strides(keys)};
  if (!dbias.empty()) gradients.dbias = {dbias.data(), DType::f32, map, contiguous_strides(map)};
  attention_backward(gradients, in, {.y = out, .lse = lse_out}, {.dy = in.q}, options);
  const auto widened = [](const std::vector<BFloat16>& from) {
    std::vector<float> to(from.size());
    for (std::size_t n = 0; n < from.size(); ++n) to[n] = to_f32(from[n]);
    return to;
  };
  return {widened(y), widened(dq), widened(dk), widened(dv), dbias};
}

/// Strides decide whether rules are applied in registers. The bias may rise so much that running maxima move.
TEST(Native16, ScoreRules_AnyStrides_GiveTheSameBits) {
  const Shape map{1, 1, 100, 700}, keys{1, 1, 1, 700}, dense = contiguous_strides(map), strided{0, 0, 1400, 2};
  const ProductsGuard guard;
  std::vector<std::string> products = supported_native16_products();
  if (products.empty()) products.emplace_back();
  for (const std::string& name : products) {
    set_native16_products(name);
    for (const float slope : {0.0F, 0.1F, -0.1F}) {
      std::vector<float> bias(100 * 700), every_second(2 * bias.size());
      std::vector<std::uint8_t> mask(bias.size()), every_second_mark(2 * bias.size());
      for (std::size_t n = 0; n < bias.size(); ++n) {
        const double wave = std::sin(static_cast<double>(n * n % 1000));
        bias[n] = static_cast<float>(wave) + slope * static_cast<float>(n % 700);
        if (n % 11 == 0) bias[n] = -std::numeric_limits<float>::infinity();
        every_second[2 * n] = bias[n];
        mask[n] = every_second_mark[2 * n] = wave < 0.8 ? 1 : 0;
      }
      const std::size_t last = 99 * 700;  // the last row of the bias serves as key bias
      AttentionInputs given, in_place;
      given.bias = {bias.data(), DType::f32, map, dense};
      given.mask = {mask.data(), DType::boolean, map, dense};
      given.key_bias = {bias.data() + last, DType::f32, keys, contiguous_strides(keys)};
      in_place.bias = {every_second.data(), DType::f32, map, strided};
      in_place.mask = {every_second_mark.data(), DType::boolean, map, strided};
      in_place.key_bias = {every_second.data() + 2 * last, DType::f32, keys, strided};
      for (int rules = 1; rules < 8; ++rules) {
        const auto some_of = [rules](AttentionInputs in) {
          if ((rules & 1) == 0) in.bias = {};
          if ((rules & 2) == 0) in.mask = {};
          if ((rules & 4) == 0) in.key_bias = {};
          return in;
        };
        EXPECT_EQ(results_with(some_of(given)), results_with(some_of(in_place)))
            << name << ", slope " << slope << ", rules " << rules;
      }
    }
  }
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
