// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/workload.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "library/core/element.hpp"
#include "tool/bench/timing.hpp"

namespace headgate::bench {
namespace {

using verify::CaseSpec;
using verify::GateInput;

CaseSpec small_spec() {
  CaseSpec spec;
  spec.B = spec.Hkv = spec.group = 2;
  spec.T = 19;
  spec.S = 33;
  spec.D = 16;
  spec.Dv = 8;
  spec.gate_input = GateInput::elementwise;
  spec.causality = Causality::causal;
  return spec;
}

/// Counts visible_pairs by checking each pair.
std::int64_t counted_pairs(const CaseSpec& spec) {
  std::int64_t pairs = 0;
  for (std::int64_t i = 0; i < spec.T; ++i) {
    for (std::int64_t j = 0; j < spec.S; ++j) {
      const std::int64_t ahead = j - (i + spec.S - spec.T);  // relative to the query's own key
      if (spec.causality == Causality::causal && ahead > 0) continue;
      if (spec.window_left >= 0 && -ahead > spec.window_left) continue;
      if (spec.window_right >= 0 && ahead > spec.window_right) continue;
      ++pairs;
    }
  }
  return pairs;
}

TEST(Workload, VisiblePairs_AnyMask_AreCounted) {
  for (const Causality causality : {Causality::none, Causality::causal}) {
    for (const std::int64_t left : {-1, 0, 3, 100}) {
      for (const std::int64_t right : {-1, 0, 2, 100}) {
        for (const auto& [T, S] : {std::pair{9, 9}, std::pair{5, 12}, std::pair{12, 5}}) {
          CaseSpec spec;
          spec.T = T;
          spec.S = S;
          spec.causality = causality;
          spec.window_left = left;
          spec.window_right = right;
          EXPECT_EQ(visible_pairs(spec), counted_pairs(spec)) << verify::describe(spec);
        }
      }
    }
  }
}

TEST(Workload, VisiblePairs_PackedBatch_AreThoseOfItsSequences) {
  CaseSpec spec = small_spec();
  spec.causality = Causality::causal;
  std::int64_t pairs = 0;
  for (const auto& [T, S] : {std::pair{5, 9}, std::pair{0, 3}, std::pair{7, 7}}) {
    spec.T = T;
    spec.S = S;
    pairs += counted_pairs(spec);
    spec.packed_queries.push_back(T);
    spec.packed_keys.push_back(S);
  }
  spec.cu_seqlens = DType::i32;
  spec.packed = 3;
  EXPECT_EQ(visible_pairs(spec), pairs);
}

TEST(Workload, Flops_EachPass_AreTwoAMultiplyAddAndTwoAndAHalfTimesThatBackward) {
  CaseSpec spec = small_spec();
  spec.causality = Causality::none;
  const double forward = 2.0 * 2 * 4 * 19 * 33 * (16 + 8);
  EXPECT_EQ(flops_of(spec, BenchOp::forward), forward);
  EXPECT_EQ(flops_of(spec, BenchOp::backward), 2.5 * forward);
}

void expect_timed_layout(const ConstTensorView& view) {
  ASSERT_TRUE(view.present());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % 64, 0U);
  EXPECT_EQ(view.strides, contiguous_strides(view.shape));
}

TEST(Workload, Tensors_EachOperation_AreContiguousAlignedAndNoMore) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    CaseSpec spec = small_spec();
    spec.dtype = dtype;
    const Workload forward(spec, BenchOp::forward);
    const verify::Case& f = forward.problem();
    for (const ConstTensorView& view : {f.inputs().q, f.inputs().k, f.inputs().v, f.inputs().gate}) {
      expect_timed_layout(view);
      EXPECT_EQ(view.dtype, dtype);
    }
    expect_timed_layout(f.outputs().y);
    expect_timed_layout(f.outputs().lse);
    EXPECT_FALSE(f.outputs().attn.present() || f.outputs().weights.present());
    EXPECT_FALSE(f.incoming().dy.present() || f.gradients().dq.present());

    const Workload backward(spec, BenchOp::backward);
    const verify::Case& b = backward.problem();
    expect_timed_layout(b.incoming().dy);
    for (const TensorView& view : {b.gradients().dq, b.gradients().dk, b.gradients().dv, b.gradients().dgate}) {
      expect_timed_layout(view);
    }
  }
}

/// Compares each element, because the largest difference by std::max() would pass NaN.
void expect_near(const ConstTensorView& view, const std::vector<double>& expected, double tolerance) {
  for (std::int64_t i = 0; i < view.numel(); ++i) {
    EXPECT_NEAR(load_element(view.data, view.dtype, i), expected.at(static_cast<std::size_t>(i)), tolerance) << i;
  }
}

TEST(Workload, Passes_OfAProblem_Run) {
  const CaseSpec spec = small_spec();
  verify::Case problem(spec);
  Workload workload(spec, BenchOp::backward);
  workload.run();
  expect_near(workload.problem().saved().y, problem.expected_forward().y, 1e-5);
  expect_near(workload.problem().gradients().dq, problem.expected_backward().dq, 1e-4);
  expect_near(workload.problem().gradients().dgate, problem.expected_backward().dgate, 1e-4);
  workload.forward();
  expect_near(workload.problem().outputs().y, problem.expected_forward().y, 1e-5);
}

TEST(Timing, Median_OddOrEvenCount_IsTheMiddleOrTheMeanOfTwo) {
  EXPECT_EQ(median({3.0}), 3.0);
  EXPECT_EQ(median({9.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(median({8.0, 1.0, 4.0, 2.0}), 3.0);
}

}  // namespace
}  // namespace headgate::bench
