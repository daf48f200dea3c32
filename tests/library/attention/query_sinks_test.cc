// SPDX-License-Identifier: Apache-2.0
// Checks sinks of each query: both passes and statistics against the oracle on every vector target, threads, and that a
// logit that all queries of a head share gives the bits of a sink of the head.

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "library/attention/property.hpp"
#include "library/core/element.hpp"
#include "support/owned_tensor.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;

/// Makes a problem with sinks of each query for each kernel: tiles, small heads, few queries, and a packed batch.
std::vector<CaseSpec> problems() {
  std::vector<CaseSpec> list{sized(70, 300, 24, 20), sized(60, 90, 16, 16), sized(2, 1100, 32, 16),
                             sized(200, 300, 16, 24)};
  list.back().cu_seqlens = DType::i32;
  list.back().packed = 4;
  for (CaseSpec& spec : list) {
    spec.Hkv = spec.group = 2;
    spec.B = spec.cu_seqlens == DType::none ? 3 : 1;
    spec.sinks = DType::f32;
    spec.sinks_by_query = true;
    spec.dlse = DType::f64;
  }
  return list;
}

TEST(QuerySinks, BothPassesAndStatistics_EveryKernelAndShape_MatchTheOracle) {
  for (CaseSpec spec : problems()) {
    for (const DType dtype : kDTypes) {
      for (const bool by_batch : {false, true}) {
        spec.dtype = dtype;
        spec.sinks_by_batch = by_batch;
        spec.causality = by_batch ? Causality::causal : Causality::none;
        expect_both(spec);
        expect_right(spec, verify::check_statistics_case);
      }
    }
  }
}

TEST(QuerySinks, Native16_EveryShape_MatchesTheOracle) {
  for (CaseSpec spec : problems()) {
    spec.dtype = DType::bf16;
    spec.precision = Precision::native16;
    expect_both(spec);
  }
}

/// Copies a head's logit to all queries: the results have the bits of a call with sinks of heads.
TEST(QuerySinks, LogitThatQueriesShare_EveryKernel_HasTheBitsOfASinkOfTheHead) {
  for (CaseSpec spec : problems()) {
    spec.sinks_by_query = false;
    const auto error = verify::check_on_every_target(
        spec, [](verify::Case& problem, const std::string& /*target*/) -> std::optional<std::string> {
          const AttentionInputs& in = problem.inputs();
          const AttentionOutputs out = problem.saving_outputs();
          attention_forward(out, in, problem.options());
          const Owned y(out.y), lse(out.lse);
          Owned sinks(in.sinks.dtype, {1, in.q.shape[1], in.q.shape[2], 1});
          for (std::int64_t h = 0; h < in.q.shape[1]; ++h) {
            for (std::int64_t i = 0; i < in.q.shape[2]; ++i) {
              store(sinks.view, 0, h, i, 0, load(in.sinks, 0, 0, 0, h));
            }
          }
          AttentionInputs by_query = in;
          by_query.sinks = sinks.view;
          attention_forward({y.view, lse.view}, by_query, problem.options());
          expect_equal(y.view, out.y, "y of " + describe(problem.spec()));
          expect_equal(lse.view, out.lse, "lse of " + describe(problem.spec()));
          return std::nullopt;
        });
    EXPECT_EQ(error.value_or(""), "");
  }
}

/// The gradient of a sink that batches share is the sum of the batches' own gradients, in f64.
TEST(QuerySinks, GradientOfSharedSinks_AnyBatch_IsTheSumOverBatches) {
  CaseSpec spec = problems().front();
  spec.dtype = spec.sinks = DType::f64;
  verify::Case problem(spec);
  const AttentionInputs& in = problem.inputs();
  attention_forward(problem.saving_outputs(), in, problem.options());
  AttentionInputs own = in;
  own.sinks = broadcast_to(in.sinks, {spec.B, spec.Hq(), spec.T, 1});
  const Owned shared(in.sinks), each(own.sinks);
  AttentionGradients gradients;
  gradients.dsinks = shared.view;
  attention_backward(gradients, in, problem.saved(), problem.incoming(), problem.options());
  gradients.dsinks = each.view;
  attention_backward(gradients, own, problem.saved(), problem.incoming(), problem.options());
  for (std::int64_t h = 0; h < spec.Hq(); ++h) {
    for (std::int64_t i = 0; i < spec.T; ++i) {
      double sum = 0;
      for (std::int64_t b = 0; b < spec.B; ++b) sum += load(each.view, b, h, i, 0);
      EXPECT_EQ(load(shared.view, 0, h, i, 0), sum) << h << "," << i;
    }
  }
}

/// A logit of −∞ is no sink, beside queries that have one.
TEST(QuerySinks, LogitOfMinusInfinity_SomeQueries_HaveTheResultsOfNoSink) {
  for (CaseSpec spec : problems()) {
    spec.dtype = DType::f64;
    spec.lse = DType::f64;
    verify::Case problem(spec);
    const AttentionOutputs out = problem.saving_outputs();
    AttentionInputs in = problem.inputs();
    attention_forward(out, in, problem.options());
    const Owned y(out.y), lse(out.lse);
    const ConstTensorView sinks = in.sinks;
    in.sinks = {};
    attention_forward({y.view, lse.view}, in, problem.options());
    int without = 0;
    for (std::int64_t h = 0; h < spec.Hq(); ++h) {
      for (std::int64_t i = 0; i < spec.T; ++i) {
        if (std::isfinite(load(sinks, 0, h, i, 0))) continue;
        ++without;
        EXPECT_NEAR(load(out.lse, 0, h, i, 0), load(lse.view, 0, h, i, 0), 1e-13);
        EXPECT_NEAR(load(out.y, 0, h, i, 0), load(y.view, 0, h, i, 0), 1e-13);
      }
    }
    EXPECT_GT(without, 0) << describe(spec);
  }
}

}  // namespace
}  // namespace headgate
