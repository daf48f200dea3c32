// SPDX-License-Identifier: Apache-2.0
// Tests Precision::native16: bf16 products if the CPU has them, exact arithmetic otherwise. Other tests check its
// accuracy: random problems and standard cases of bf16 use it, with every kind of product that the CPU has.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "library/attention/property.hpp"
#include "library/attention/rule_maps.hpp"
#include "library/core/convert.hpp"
#include "library/core/element.hpp"
#include "support/owned_tensor.hpp"
#include "support/products.hpp"

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

TEST(Native16, Output_CpuWithProducts_IsRounded) {
  const CaseSpec exact = many_queries();
  for_each_products([&](const std::string& products) {
    const bool is_exact = native16_products().empty();
    EXPECT_EQ(forward_bits(in_native16(exact)) == forward_bits(exact), is_exact) << products;
    EXPECT_EQ(backward_bits(in_native16(exact)) == backward_bits(exact), is_exact) << products;
  });
}

TEST(Native16, Products_EachOfTheCpu_HaveDifferentBits) {
  const ProductsGuard guard;
  const TargetGuard target;
  const std::vector<std::string> all = supported_native16_products();
  if (!all.empty()) set_target("avx3");
  std::set<std::vector<std::uint8_t>> bits;
  for (const std::string& name : all) {
    set_native16_products(name);
    EXPECT_EQ(native16_products(), name);
    bits.insert(forward_bits(in_native16(many_queries())));
  }
  EXPECT_EQ(bits.size(), all.size());
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

/// A mask or a bias hides whole squares of keys, which the kernels do not visit.
TEST(Native16, KeysOfOtherDocuments_BothPasses_AreRight) {
  for (int n = 0; n < 6; ++n) {
    CaseSpec spec = in_native16(many_queries());
    spec.T = 310;
    spec.S = 900;
    spec.D = spec.Dv = 24;
    spec.seed = static_cast<std::uint64_t>(n + 1);
    spec.hidden = verify::Hidden::documents;
    if (n % 3 != 0) spec.mask = {true, n == 1, n == 2, true};
    if (n % 3 != 1) spec.bias = {true, false, n != 0, true};
    spec.bias_hides = true;
    spec.bias_f32 = n == 2;
    spec.causality = n == 3 ? Causality::causal : Causality::none;
    spec.window_left = n == 4 ? 200 : -1;
    spec.max_logit = n == 5 ? DType::f32 : DType::none;
    expect_both(spec);
  }
}

constexpr std::int64_t kRuleQueries = RuleMaps::kQueries, kRuleKeys = RuleMaps::kKeys, kRuleDim = 16;

/// Holds numbers whose bits tests compare: q, k and v of 100 queries and 700 keys.
struct RuleOperands {
  std::vector<BFloat16> q = wave(kRuleQueries, 0.7), k = wave(kRuleKeys, 0.7), v = wave(kRuleKeys, 0.3);

  static std::vector<BFloat16> wave(std::int64_t rows, double step) {
    std::vector<BFloat16> x(static_cast<std::size_t>(rows * kRuleDim));
    for (std::size_t n = 0; n < x.size(); ++n)
      x[n] = to_bf16(static_cast<float>(std::sin(step * static_cast<double>(n))));
    return x;
  }
};

/// Returns the bits of y, dq, dk, dv and dbias in native16 with the bias, key bias and mask of `rules`. The window
/// hides the first key from the last query: calls with a window read strided tensors in place. If `apart`, the elements
/// of dbias are not adjacent in memory.
std::vector<std::uint32_t> results_with(const AttentionInputs& rules, const RuleOperands& x = {}, bool apart = false) {
  const Shape queries{1, 1, kRuleQueries, kRuleDim}, keys{1, 1, kRuleKeys, kRuleDim};
  const auto view = [](const std::vector<BFloat16>& from, const Shape& shape) {
    return ConstTensorView{from.data(), DType::bf16, shape, contiguous_strides(shape)};
  };
  AttentionInputs in = rules;
  in.q = view(x.q, queries);
  in.k = view(x.k, keys);
  in.v = view(x.v, keys);
  AttentionOptions options;
  options.precision = Precision::native16;
  options.window_left = kRuleKeys - 2;
  const Owned y(in.q), dq(in.q), dk(in.k), dv(in.v), lse(DType::f64, {1, 1, kRuleQueries, 1});
  const std::int64_t step = apart ? 2 : 1;
  std::vector<float> dbias(static_cast<std::size_t>(step * kRuleQueries * kRuleKeys));
  AttentionGradients gradients{.dq = dq.view, .dk = dk.view, .dv = dv.view};
  if (rules.bias.present())
    gradients.dbias = {dbias.data(), rules.bias.dtype, RuleMaps::kMap, {0, 0, step * kRuleKeys, step}};
  attention_forward({.y = y.view, .lse = lse.view}, in, options);
  attention_backward(gradients, in, {.y = y.view, .lse = lse.view}, {.dy = in.q}, options);
  std::vector<std::uint32_t> bits;
  const auto add = [&bits](const ConstTensorView& from) {
    for (std::int64_t i = 0; from.present() && i < from.shape[2]; ++i) {
      for (std::int64_t c = 0; c < from.shape[3]; ++c)
        bits.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(load(from, 0, 0, i, c))));
    }
  };
  for (const TensorView& each : {y.view, dq.view, dk.view, dv.view, gradients.dbias}) add(each);
  return bits;
}

/// Strides decide whether rules are applied in registers. The bias may rise so much that running maxima move.
TEST(Native16, ScoreRules_AnyStrides_GiveTheSameBits) {
  for (const float slope : {0.0F, 0.1F, -0.1F}) {
    const RuleMaps maps(slope, true);
    for_each_products([&](const std::string& products) {
      for (int rules = 1; rules < 8; ++rules) {
        EXPECT_EQ(results_with(maps.adjacent(rules)), results_with(maps.apart(rules)))
            << products << ", slope " << slope << ", rules " << rules;
      }
    });
  }
}

/// A bias of -FLT_MAX hides no key, so that NaN in k stays visible. Two biases whose products with log2(e) overflow may
/// add up to 0.
TEST(Native16, ScoreRules_OverflowingBiases_GiveTheSameBits) {
  constexpr std::int64_t kKey = 300;
  for (const bool with_key_bias : {false, true}) {
    RuleOperands x;
    if (!with_key_bias) x.k[kKey * kRuleDim] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    std::vector<float> bias(kRuleQueries * kRuleKeys), of_keys(kRuleKeys);
    of_keys[kKey] = -3e38F;
    for (std::int64_t i = 0; i < kRuleQueries; ++i)
      bias[i * kRuleKeys + kKey] = with_key_bias ? 3e38F : -std::numeric_limits<float>::max();
    const std::vector<float> bias_apart = RuleMaps::apart(bias);
    AttentionInputs adjacent;
    adjacent.bias = {bias.data(), DType::f32, RuleMaps::kMap, contiguous_strides(RuleMaps::kMap)};
    if (with_key_bias)
      adjacent.key_bias = {of_keys.data(), DType::f32, RuleMaps::kKeyMap, contiguous_strides(RuleMaps::kKeyMap)};
    AttentionInputs apart = adjacent;
    apart.bias = {bias_apart.data(), DType::f32, RuleMaps::kMap, RuleMaps::kApart};
    for_each_products([&](const std::string& products) {
      EXPECT_EQ(results_with(adjacent, x), results_with(apart, x)) << products << ", key bias " << with_key_bias;
    });
  }
}

/// The kernel stores adjacent elements of a bf16 dbias in vectors. Some of the gradients here are subnormal numbers.
TEST(Native16, BiasGradient_AnyStrides_HasTheSameBits) {
  std::vector<BFloat16> bias(kRuleQueries * kRuleKeys);
  for (std::size_t n = 0; n < bias.size(); ++n)
    bias[n] = to_bf16(n % 7 == 0 ? 0.0F : -80.0F - static_cast<float>(n % 8));
  AttentionInputs rules;
  rules.bias = {bias.data(), DType::bf16, RuleMaps::kMap, contiguous_strides(RuleMaps::kMap)};
  for_each_products(
      [&](const std::string& products) { EXPECT_EQ(results_with(rules), results_with(rules, {}, true)) << products; });
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
