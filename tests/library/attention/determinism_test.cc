// SPDX-License-Identifier: Apache-2.0
// Checks that results are bitwise identical for any number of threads, forward and backward, on every vector target.

#include <cmath>

#include "library/attention/property.hpp"
#include "library/attention/rule_maps.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::GateInput;
using verify::Layout;

void expect_same_bits(const CaseSpec& spec) {
  const TargetGuard guard;
  verify::Case problem(spec);
  for (const std::string& target : supported_targets()) {
    set_target(target);
    const PassBits one = run_passes(problem, 1);
    for (const int threads : {1, 2, 3, 5}) {
      const PassBits many = run_passes(problem, threads);
      EXPECT_TRUE(one.outputs == many.outputs) << target << ", " << threads << " threads: " << describe(spec);
      EXPECT_TRUE(one.gradients == many.gradients) << target << ", " << threads << " threads: " << describe(spec);
    }
  }
}

/// A problem with every reduction that threads could share: group, batch and query sums of dk, dv, dbias and dsinks.
CaseSpec reducing() {
  CaseSpec spec;
  spec.D = 24;
  spec.Dv = 20;
  spec.gate_input = GateInput::headwise;
  spec.sinks = DType::f32;
  spec.dlse = DType::f32;
  spec.attn = spec.weights = true;
  return spec;
}

TEST(Determinism, OneLongHead_AnyNumberOfThreads_IsBitwiseIdentical) {
  for (const Causality causality : {Causality::none, Causality::causal}) {
    CaseSpec spec = reducing();
    spec.T = spec.S = 700;
    spec.causality = causality;
    expect_same_bits(spec);
  }
}

TEST(Determinism, ManyHeads_AnyNumberOfThreads_AreBitwiseIdentical) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    CaseSpec spec = reducing();
    spec.B = 2;
    spec.Hkv = 3;
    spec.group = 4;
    spec.T = 65;
    spec.S = 130;
    spec.dtype = dtype;
    spec.bias = {true, false, false, false};
    expect_same_bits(spec);
  }
}

/// With few threads, tasks are heads; with many, they are tiles.
TEST(Determinism, HeadsAsTasks_AnyNumberOfThreads_AreBitwiseIdentical) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    CaseSpec spec = reducing();
    spec.B = 5;
    spec.Hkv = 3;
    spec.group = 2;
    spec.T = 100;
    spec.S = 405;
    spec.dtype = dtype;
    expect_same_bits(spec);
    spec.weights = false;
    spec.B = 17;
    spec.Hkv = 2;
    spec.T = 20;
    spec.S = 30;
    expect_same_bits(spec);
  }
}

/// Few small heads are split into pieces by the number of threads.
TEST(Determinism, SmallHeads_AnyNumberOfThreads_AreBitwiseIdentical) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const std::int64_t heads : {1, 3, 8}) {
      for (const double closed_share : {-1.0, 0.4}) {
        CaseSpec spec = reducing();
        spec.Hkv = heads;
        spec.group = 2;
        spec.T = 190;
        spec.S = 150;
        spec.dtype = dtype;
        spec.causality = Causality::causal;
        spec.sinks = DType::none;
        spec.weights = false;
        spec.closed_share = closed_share;
        expect_same_bits(spec);
      }
    }
  }
}

TEST(Determinism, OneKeyHead_AnyNumberOfThreads_IsBitwiseIdentical) {
  CaseSpec spec = reducing();
  spec.group = 8;
  spec.T = 100;
  spec.S = 300;
  spec.bias = {true, false, false, true};
  expect_same_bits(spec);
}

/// Returns y and lse of 100 queries against 700 keys of D = 16, for the tiles kernel with the bias, key bias and mask
/// of `rules`. The window hides the first key from the last query: calls with a window read strided tensors in place.
std::vector<double> results_with(const AttentionInputs& rules, std::int64_t target) {
  const Shape shape{1, 1, 700, 16}, rows{1, 1, 100, 16};
  std::vector<float> x(700 * 16), y(100 * 16);
  for (std::size_t n = 0; n < x.size(); ++n) x[n] = static_cast<float>(std::sin(0.7 * static_cast<double>(n)));
  std::vector<double> results(100);
  AttentionInputs in = rules;
  in.q = make_view<const float>(x.data(), rows);
  in.k = in.v = make_view<const float>(x.data(), shape);
  AttentionOptions options;
  options.window_left = 698;
  options.context.target = target;
  const TensorView lse = make_view(results.data(), Shape{1, 1, 100, 1});
  attention_forward({.y = make_view(y.data(), rows), .lse = lse}, in, options);
  results.insert(results.end(), y.begin(), y.end());
  return results;
}

/// A bias may rise so much that running maxima move. Strides and dtypes decide whether rules are applied in registers.
TEST(Determinism, ScoreRules_AnyStrides_GiveTheSameBits) {
  for (const float slope : {0.0F, 0.1F, -0.1F}) {
    const RuleMaps maps(slope, false);
    for (const std::string& target : supported_targets()) {
      const std::int64_t number = find_target(target);
      for (int rules = 1; rules < 8; ++rules) {
        EXPECT_EQ(results_with(maps.adjacent(rules), number), results_with(maps.apart(rules), number))
            << target << ", slope " << slope << ", rules " << rules;
      }
    }
  }
}

TEST(Determinism, EveryLayout_AnyNumberOfThreads_IsBitwiseIdentical) {
  for (int layout = 0; layout < 6; ++layout) {
    CaseSpec spec = reducing();
    spec.B = spec.Hkv = spec.group = 2;
    spec.T = spec.S = 97;
    spec.layout = static_cast<Layout>(layout);
    spec.softcap = 3.0;
    spec.key_lengths = DType::i32;
    spec.bias = {true, true, false, false};
    expect_same_bits(spec);
  }
}

}  // namespace
}  // namespace headgate
