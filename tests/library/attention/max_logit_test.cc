// SPDX-License-Identifier: Apache-2.0
// Tests max_logit: its exact value where running maxima lag or a sink exceeds all scores, and its two shapes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "library/attention/property.hpp"
#include "library/core/element.hpp"
#include "verify/case.hpp"

namespace headgate {
namespace {

using verify::Case;
using verify::CaseSpec;
using verify::check_forward_case;
using verify::GateInput;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A problem of one head with D = 1, in which the score of key j is scores[j] for all queries.
struct OneHead {
  std::int64_t T, S;
  std::vector<float> q, k, v, y, logits;
  AttentionInputs in;
  AttentionOutputs out;
  AttentionOptions options;

  OneHead(std::int64_t queries, const std::vector<float>& scores)
      : T(queries),
        S(std::ssize(scores)),
        q(T, 1.0F),
        k(scores),
        v(S, 1.0F),
        y(T),
        logits(T, std::numeric_limits<float>::quiet_NaN()) {
    in.q = make_view(q.data(), Shape{1, 1, T, 1});
    in.k = make_view(k.data(), Shape{1, 1, S, 1});
    in.v = make_view(v.data(), Shape{1, 1, S, 1});
    out.y = make_view(y.data(), Shape{1, 1, T, 1});
    out.max_logit = make_view(logits.data(), Shape{1, 1, T, 1});
    options.scale = 1.0;
  }
  const std::vector<float>& run() {
    attention_forward(out, in, options);
    return logits;
  }
};

/// Numbers of queries that different kernels compute: few queries, small heads and tiles.
constexpr std::int64_t kQueries[] = {1, 20, 300};

TEST(MaxLogit, Scores_RisingSlowly_GiveTheLastOne) {
  for (const std::int64_t T : kQueries) {
    for (const std::int64_t S : {200, 1000}) {  // the online softmax keeps maxima that scores exceed by up to 16 log 2
      std::vector<float> scores(S);
      for (std::int64_t j = 0; j < S; ++j) scores[j] = 0.01F * static_cast<float>(j);
      OneHead problem(T, scores);
      for (const float logit : problem.run()) EXPECT_NEAR(logit, scores.back(), 1e-5) << T << " " << S;
      problem.options.causality = Causality::causal;
      problem.run();
      for (std::int64_t i = 0; i < T; ++i) {
        const std::int64_t last = i + S - T;
        if (last < 0) {
          EXPECT_EQ(problem.logits[i], -kInfinity) << S << " " << i;
        } else {
          EXPECT_NEAR(problem.logits[i], scores[last], 1e-5) << T << " " << S << " " << i;
        }
      }
    }
  }
}

TEST(MaxLogit, Sink_LargerThanAllScores_IsLeftOut) {
  const double sink = 3.0;
  for (const std::int64_t T : kQueries) {
    OneHead problem(T, std::vector<float>(300, -2.0F));
    problem.in.sinks = make_view(&sink, Shape{1, 1, 1, 1});
    for (const float logit : problem.run()) EXPECT_NEAR(logit, -2.0F, 1e-6) << T;
  }
}

TEST(MaxLogit, Score_NotANumber_GivesNaN) {
  for (const std::int64_t T : kQueries) {
    std::vector<float> scores(300, 1.0F);
    scores[150] = std::numeric_limits<float>::quiet_NaN();
    OneHead problem(T, scores);
    for (const float logit : problem.run()) EXPECT_TRUE(std::isnan(logit)) << T;
    float head = 0.0F;
    problem.out.max_logit = make_view(&head, Shape{1, 1, 1, 1});
    problem.run();
    EXPECT_TRUE(std::isnan(head)) << T;
  }
}

TEST(MaxLogit, Heads_WithoutQueries_GetMinusInfinity) {
  OneHead problem(0, {1.0F});
  float head = 0.0F;
  problem.out.max_logit = make_view(&head, Shape{1, 1, 1, 1});
  problem.run();
  EXPECT_EQ(head, -kInfinity);
}

TEST(MaxLogit, RandomShapesAndRules_OfHeadsAndRows_MatchTheOracle) {
  for (const bool by_head : {false, true}) {
    for (const DType dtype : kDTypes) {
      for (const std::int64_t T : {1, 33, 270}) {
        CaseSpec spec = sized(T, 290, 24, 16);
        spec.B = spec.group = 2;
        spec.dtype = dtype;
        spec.max_logit = DType::f64;
        spec.max_logit_by_head = by_head;
        expect_right(spec, check_forward_case);
        spec.sinks = DType::f32;
        spec.softcap = 5.0;
        spec.mask = {true, false, true, true};
        spec.closed_share = 0.4;
        expect_right(spec, check_forward_case);
      }
    }
  }
}

TEST(MaxLogit, PackedBatch_OfHeadsAndRows_MatchesTheOracle) {
  CaseSpec spec = sized(330, 1200, 16, 16);
  spec.cu_seqlens = DType::i32;
  spec.packed = 5;
  spec.packed_queries = {1, 300, 0, 1, 28};
  spec.packed_keys = {700, 310, 40, 0, 150};
  spec.causality = Causality::causal;
  spec.max_logit = DType::f32;
  for (const bool by_head : {false, true}) {
    spec.max_logit_by_head = by_head;
    expect_right(spec, check_forward_case);
  }
}

TEST(MaxLogit, OtherOutputs_WithIt_KeepTheirBits) {
  for (const std::int64_t T : {1, 33, 270}) {
    CaseSpec spec = sized(T, 290, 24, 16);
    spec.max_logit = DType::f32;
    spec.causality = Causality::causal;
    Case problem(spec);
    AttentionOutputs out = problem.outputs();
    attention_forward(out, problem.inputs(), problem.options());
    std::vector<std::uint8_t> with = problem.output_bytes();
    out.max_logit = {};
    attention_forward(out, problem.inputs(), problem.options());
    EXPECT_EQ(problem.output_bytes(), with) << T;
  }
}

}  // namespace
}  // namespace headgate
