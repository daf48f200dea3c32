// SPDX-License-Identifier: Apache-2.0
#include "library/attention/problem.hpp"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <limits>
#include <new>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/attention/sample_call.hpp"
#include "library/core/element.hpp"
#include "library/core/gate_functions.hpp"

// Tests which calls are accepted, and the normal form that kernels read.

namespace headgate::testing {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

ForwardProblem forward(const SampleCall& call) { return check_forward(call.out, call.in, call.options); }

BackwardProblem backward(const SampleCall& call) {
  return check_backward(call.grad, call.in, call.saved, call.incoming, call.options);
}

/// Leaves only q, k, v and y, with these sizes.
void resize(SampleCall& call, std::int64_t B, std::int64_t Hq, std::int64_t Hkv, std::int64_t T, std::int64_t S) {
  call.in = {};
  call.out = {};
  call.in.q = call.tensor(DType::f32, {B, Hq, T, kD});
  call.in.k = call.tensor(DType::f32, {B, Hkv, S, kD});
  call.in.v = call.tensor(DType::f32, {B, Hkv, S, kDv});
  call.out.y = call.tensor(DType::f32, {B, Hq, T, kDv});
}

TEST(Problem, Problem_BothPasses_HoldsTheirSizes) {
  const SampleCall call;
  for (const Problem& p : {Problem(forward(call)), Problem(backward(call))}) {
    EXPECT_EQ((std::vector{p.B, p.Hq, p.Hkv, p.T, p.S, p.D, p.Dv}), (std::vector{kB, kHq, kHkv, kT, kS, kD, kDv}));
    EXPECT_EQ(p.group, 2);
    EXPECT_EQ(p.gate_fn, GateFn::sigmoid);
    EXPECT_FALSE(p.gate_headwise);
    EXPECT_EQ((std::vector{p.sequence(0).keys, p.sequence(1).keys}), (std::vector<std::int64_t>{5, 4}));
    EXPECT_EQ((std::vector{p.alibi_slope(0, 0), p.alibi_slope(1, 1), p.alibi_slope(0, 2), p.alibi_slope(1, 3)}),
              (std::vector{0.5, 0.25, 0.125, 0.0625}));
    EXPECT_EQ(p.sink(p.sequence(1), kHq - 1, 2), -std::numeric_limits<double>::infinity());
    EXPECT_FALSE(p.sinks_by_query);
  }
}

TEST(Problem, Problem_ForwardOrBackward_HoldsItsTensors) {
  const SampleCall call;
  const ForwardProblem f = forward(call);
  EXPECT_EQ((std::vector{f.inputs.q.data, f.inputs.k.data, f.inputs.v.data, f.inputs.gate.data}),
            (std::vector{call.in.q.data, call.in.k.data, call.in.v.data, call.in.gate.data}));
  EXPECT_EQ((std::vector{f.outputs.y.data, f.outputs.lse.data}), (std::vector{call.out.y.data, call.out.lse.data}));
  const BackwardProblem b = backward(call);
  EXPECT_EQ((std::vector{b.saved.y.data, b.saved.lse.data, b.incoming.dy.data}),
            (std::vector{call.saved.y.data, call.saved.lse.data, call.incoming.dy.data}));
  EXPECT_EQ((std::vector{b.gradients.dq.data, b.gradients.dk.data, b.gradients.dv.data}),
            (std::vector{call.grad.dq.data, call.grad.dk.data, call.grad.dv.data}));
}

TEST(Problem, Scale_NotGiven_IsOneOverRootD) {
  SampleCall call;
  EXPECT_DOUBLE_EQ(forward(call).scale, 0.35355339059327376);
  call.options.scale = -3.0;
  EXPECT_DOUBLE_EQ(forward(call).scale, -3.0);
}

TEST(Problem, OptionalInputs_Absent_AreNeutral) {
  SampleCall call;
  resize(call, kB, kHq, kHkv, kT, kS);
  const Problem p = forward(call);
  EXPECT_EQ(p.gate_fn, GateFn::none);
  EXPECT_EQ((std::vector{p.sequence(0).keys, p.sequence(1).keys}), (std::vector{kS, kS}));
  EXPECT_FALSE(p.inputs.alibi_slopes.present());
  EXPECT_FALSE(p.inputs.sinks.present());
  EXPECT_FALSE(p.inputs.bias.present());
  EXPECT_FALSE(p.inputs.mask.present());
}

TEST(Problem, GateFnNone_GateGiven_AppliesNone) {
  SampleCall call;
  call.options.gate_fn = GateFn::none;
  EXPECT_EQ(forward(call).gate_fn, GateFn::none);
  EXPECT_FALSE(forward(call).inputs.gate.present());
}

TEST(Problem, HeadwiseGate_Given_IsRecognisedByItsShape) {
  SampleCall call;
  call.in.gate = call.tensor(DType::f32, {kB, kHq, kT, 1});
  EXPECT_TRUE(forward(call).gate_headwise);
}

TEST(Problem, BiasAndMask_BroadcastDimensions_HaveStrideZero) {
  const SampleCall call;  // bias (1,Hq,1,S), mask (B,1,T,S)
  const Problem p = forward(call);
  EXPECT_EQ(p.inputs.bias.shape, (Shape{kB, kHq, kT, kS}));
  EXPECT_EQ(p.inputs.bias.strides, (Shape{0, kS, 0, 1}));
  EXPECT_EQ(p.inputs.mask.shape, (Shape{kB, kHq, kT, kS}));
  EXPECT_EQ(p.inputs.mask.strides, (Shape{kT * kS, 0, kS, 1}));
}

TEST(Problem, Causality_AnyWindow_BecomesPartOfTheWindow) {
  SampleCall call;
  call.options.causality = Causality::causal;
  EXPECT_EQ(forward(call).window_left, -1);
  EXPECT_EQ(forward(call).window_right, 0);
  call.options.window_left = 2;
  call.options.window_right = 1;
  EXPECT_EQ(forward(call).window_left, 2);
  EXPECT_EQ(forward(call).window_right, 0);
  call.options.window_right = -3;
  EXPECT_EQ(forward(call).window_right, -3);
  call.options.window_right = 1;
  call.options.causality = Causality::none;
  EXPECT_EQ(forward(call).window_right, 1);
}

TEST(Problem, Window_HidesNothing_BecomesUnlimited) {
  // Compares with the definition on every window up to the sizes and beyond.
  SampleCall call;
  const auto visible = [](std::int64_t i, std::int64_t j, std::int64_t left, std::int64_t right) {
    const std::int64_t at = i + kS - kT;
    return (left == -1 || j >= at - left) && (right == -1 || j <= at + right);
  };
  for (std::int64_t left = -4; left <= 9; ++left) {
    for (std::int64_t right = -4; right <= 9; ++right) {
      call.options.window_left = left;
      call.options.window_right = right;
      const Problem p = forward(call);
      EXPECT_LT(p.window_left, kS);
      EXPECT_LT(p.window_right, kT);
      for (std::int64_t i = 0; i < kT; ++i) {
        for (std::int64_t j = 0; j < kS; ++j) {
          EXPECT_EQ(visible(i, j, p.window_left, p.window_right), visible(i, j, left, right));
        }
      }
    }
  }
  call.options.window_left = call.options.window_right = kHuge;
  EXPECT_EQ(forward(call).window_left, -1);
  EXPECT_EQ(forward(call).window_right, -1);
}

TEST(Problem, Threads_ZeroAndFewQueries_AreOneForHalfTheWork) {
  SampleCall call;
  resize(call, 1, 1, 1, 7, (1 << 17) / (7 * (kD + kDv)));
  EXPECT_EQ(forward(call).context.threads, 1);
  resize(call, 1, 1, 1, 7, (1 << 17) / (7 * (kD + kDv)) + 1);
  EXPECT_EQ(forward(call).context.threads, default_threads());
  resize(call, 1, 1, 1, 8, (1 << 17) / (7 * (kD + kDv)) + 1);
  EXPECT_EQ(forward(call).context.threads, 1);
}

TEST(Problem, Threads_ZeroAndSmallWork_AreOne) {
  SampleCall call;
  resize(call, 1, 1, 1, (1 << 18) / (kD + kDv), 1);
  EXPECT_EQ(forward(call).context.threads, 1);
  call.options.context.threads = 3;
  EXPECT_EQ(forward(call).context.threads, 3);
}

TEST(Problem, Threads_ZeroOrTooMany_AreThoseOfOpenMp) {
  SampleCall call;
  resize(call, 1, 1, 1, 1 << 15, 1);
  EXPECT_EQ(forward(call).context.threads, default_threads());
  const int offered = omp_get_max_threads();
  omp_set_num_threads(100000);
  EXPECT_EQ(forward(call).context.threads, max_threads());
  omp_set_num_threads(offered);
  EXPECT_EQ(forward(call).context.threads, std::min(offered, max_threads()));
  call.options.context.threads = 3;
  EXPECT_EQ(forward(call).context.threads, 3);
  call.options.context.threads = std::numeric_limits<int>::max();
  EXPECT_EQ(forward(call).context.threads, max_threads());
  EXPECT_EQ(max_threads(), std::max(16, 4 * omp_get_num_procs()));
}

TEST(Problem, Arrays_EmptyDimensions_MayBeNull) {
  struct Sizes {
    std::int64_t B, Hq, Hkv, T, S;
  };
  for (const Sizes& s : {Sizes{0, 4, 2, 3, 5}, Sizes{2, 0, 0, 3, 5}, Sizes{2, 0, 2, 3, 5}, Sizes{2, 4, 2, 0, 5},
                         Sizes{2, 4, 2, 3, 0}, Sizes{0, 0, 0, 0, 0}}) {
    SampleCall call;
    resize(call, s.B, s.Hq, s.Hkv, s.T, s.S);
    for (ConstTensorView* view : {&call.in.q, &call.in.k, &call.in.v}) {
      if (view->numel() == 0) view->data = nullptr;
    }
    if (call.out.y.numel() == 0) call.out.y.data = nullptr;
    if (s.T == 0) call.in.q.strides = {0, -8, kHuge, 1};
    ASSERT_NO_THROW(forward(call));
    EXPECT_EQ(forward(call).S, s.S);
  }
}

TEST(Problem, Inputs_AnyStridesOrSharedMemory_AreAccepted) {
  SampleCall call;
  call.in.k = call.in.q;  // one head group, keys are the queries
  call.in.k.shape[1] = kHkv;
  call.in.k.shape[2] = kS;
  call.in.k.strides = {0, 0, -1, 0};
  call.in.k.data = static_cast<const float*>(call.in.q.data) + kS;
  call.in.v.strides = {3, 1, 2, 5};
  EXPECT_NO_THROW(forward(call));
}

TEST(Problem, Strides_DimensionOfSizeOne_AreNotRead) {
  SampleCall call;
  call.in.bias.strides[0] = kHuge;
  call.out.lse.strides[3] = std::numeric_limits<std::int64_t>::min();
  call.in.mask.strides[1] = std::numeric_limits<std::int64_t>::min();
  EXPECT_NO_THROW(forward(call));
}

TEST(Problem, Outputs_SlotsOfAFusedBuffer_DoNotOverlap) {
  // Rows [q | gate | k | v | y] per token, and the same for the gradients.
  constexpr std::int64_t H = 2, D = 4, W = 5 * H * D;
  SampleCall call;
  call.in = {};
  call.out = {};
  auto* rows = static_cast<float*>(call.tensor(DType::f32, {1, kB, kT, W}).data);
  auto* grads = static_cast<float*>(call.tensor(DType::f32, {1, kB, kT, W}).data);
  const auto slot = [&](float* data, int n) { return make_view(data + n * H * D, {kB, H, kT, D}, {kT * W, D, W, 1}); };
  call.in.q = slot(rows, 0);
  call.in.gate = slot(rows, 1);
  call.in.k = slot(rows, 2);
  call.in.v = slot(rows, 3);
  call.out.y = slot(rows, 4);
  EXPECT_NO_THROW(forward(call));
  call.saved.y = call.out.y;
  call.saved.attn = {};
  call.saved.lse = call.tensor(DType::f32, {kB, H, kT, 1});
  call.incoming = {slot(grads, 4), {}};
  call.grad = {slot(grads, 0), slot(grads, 2), slot(grads, 3), slot(grads, 1), {}, {}};
  EXPECT_NO_THROW(backward(call));
  call.grad.dq = slot(grads, 4);
  EXPECT_THROW(backward(call), Error);
}

TEST(Problem, Outputs_NegativeStrides_AreAccepted) {
  SampleCall call;
  call.out.y.data = static_cast<float*>(call.out.y.data) + (kT - 1) * kDv;
  call.out.y.strides[2] = -kDv;
  EXPECT_NO_THROW(forward(call));
}

TEST(Problem, Options_LargeValuesOfWideTypes_AreAccepted) {
  SampleCall call(DType::f64);
  call.options.scale = 1e300;
  call.options.softcap = 1e-300;
  call.in.sinks = call.vector<double>({1e300, 0.0, -1e300, 0.0});
  EXPECT_NO_THROW(forward(call));
  call.in.gate.dtype = call.in.bias.dtype = DType::f32;
  EXPECT_NO_THROW(forward(call));
}

TEST(Problem, Attn_YNotInvertibleAndDgateWanted_IsRequired) {
  for (const GateFunction& row : kGateFunctions) {
    const GateFn fn = row.value;
    const bool loses = row.has_zero;
    SampleCall call;
    call.saved.attn = {};
    call.options.gate_fn = fn;
    if (loses) {
      EXPECT_THROW(backward(call), Error);
    } else {
      EXPECT_NO_THROW(backward(call));
    }
    call.options.gate_op = GateOp::add;
    EXPECT_NO_THROW(backward(call));
    call.options.gate_op = GateOp::mul;
    call.grad.dgate = {};
    EXPECT_NO_THROW(backward(call));
  }
}

TEST(Problem, Sequences_ManyEmptyOnes_AreNoWork) {
  SampleCall call;
  resize(call, 1, 1, 1, 0, 0);
  call.out.y.shape[0] = kHuge;
  for (ConstTensorView* view : {&call.in.q, &call.in.k, &call.in.v}) view->shape[0] = kHuge;
  for (ConstTensorView* view : {&call.in.q, &call.in.k, &call.in.v}) view->strides[0] = 0;
  call.in.q.shape[3] = call.in.k.shape[3] = call.in.v.shape[3] = call.out.y.shape[3] = 1;
  call.out.y.strides[0] = 0;
  EXPECT_EQ(forward(call).B, 0);
}

TEST(Problem, Gradients_AllAbsent_IsAccepted) {
  SampleCall call;
  call.grad = {};
  EXPECT_NO_THROW(backward(call));
}

}  // namespace
}  // namespace headgate::testing
