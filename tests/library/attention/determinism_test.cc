// SPDX-License-Identifier: Apache-2.0
// Checks that results are bitwise identical for any number of threads, forward and backward, on every vector target.

#include "library/attention/property.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::GateInput;
using verify::Layout;

struct Bits {
  std::vector<std::uint8_t> outputs, gradients;
};

Bits run(verify::Case& problem, int threads) {
  problem.options().context.threads = threads;
  problem.poison_outputs();
  problem.poison_gradients();
  attention_forward(problem.outputs(), problem.inputs(), problem.options());
  Bits bits;
  bits.outputs = problem.output_bytes();
  attention_forward(problem.saving_outputs(), problem.inputs(), problem.backward_options());
  attention_backward(problem.gradients(), problem.inputs(), problem.saved(), problem.incoming(),
                     problem.backward_options());
  bits.gradients = problem.gradient_bytes();
  return bits;
}

void expect_same_bits(const CaseSpec& spec) {
  const TargetGuard guard;
  verify::Case problem(spec);
  for (const std::string& target : supported_targets()) {
    set_target(target);
    const Bits one = run(problem, 1);
    for (const int threads : {1, 2, 3, 5}) {
      const Bits many = run(problem, threads);
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
