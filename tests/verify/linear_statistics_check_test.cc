// SPDX-License-Identifier: Apache-2.0
// Checks of the comparison of linear attention's weights and statistics with the oracle: it notices each output that is
// off, and weights by a wrong order of decay and delta.

#include "verify/linear_statistics_check.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "library/core/element.hpp"
#include "library/core/linear_statistics_rows.hpp"
#include "verify/fill.hpp"

namespace headgate::verify {
namespace {

LinearCaseSpec figures_spec(DType dtype) {
  LinearCaseSpec spec;
  spec.Hq = spec.Hv = 2;
  spec.T = 90;
  spec.D = 12;
  spec.Dv = 8;
  spec.dtype = dtype;
  spec.decay = DecayInput::headwise;
  spec.beta = BetaInput::headwise;
  spec.state = DType::f32;
  spec.seed = 5;  // which chooses queries
  return spec;
}

std::string mismatch_of(const LinearCaseSpec& spec, const LinearStatisticsKernels& kernels = {}) {
  LinearCase problem(spec);
  return check_linear_statistics_case(problem, ExpectedLinearFigures(problem), kernels).value_or("none");
}

void multiply(const TensorView& view, double factor) {
  for_each_index(view.shape, [&](std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    store(view, a, b, c, d, factor * load(view, a, b, c, d));
  });
}

TEST(LinearStatisticsCheck, Library_EachDType_Passes) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) EXPECT_EQ(mismatch_of(figures_spec(dtype)), "none");
}

TEST(LinearStatisticsCheck, Output_OffByAThousandth_IsNoticed) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const LinearStatisticsOutput& row : kLinearStatistics) {
      LinearStatisticsKernels wrong;
      wrong.statistics = [&row](const LinearAttentionStatistics& out, const LinearAttentionInputs& in,
                                const LinearAttentionOptions& options) {
        linear_attention_statistics(out, in, options);
        multiply(out.*row.member, 1.001);
      };
      EXPECT_EQ(mismatch_of(figures_spec(dtype), wrong).rfind(std::string(row.name) + "[", 0), 0U) << row.name;
    }
    for (const LinearWeightsOutput& row : kLinearWeights) {
      LinearStatisticsKernels wrong;
      wrong.weights = [&row](const LinearAttentionWeights& out, const LinearAttentionInputs& in,
                             const ConstTensorView& queries, const LinearAttentionOptions& options) {
        linear_attention_weights(out, in, queries, options);
        multiply(out.*row.member, 1.001);
      };
      EXPECT_EQ(mismatch_of(figures_spec(dtype), wrong).rfind(std::string(row.name) + "[", 0), 0U) << row.name;
    }
  }
}

/// The walk of figures_spec's problem, with the decay before the delta or behind it.
void walk(const LinearAttentionWeights& out, const LinearAttentionInputs& in, const ConstTensorView& queries,
          bool decay_first) {
  const std::int64_t D = in.q.shape[3];
  for_each_index({in.q.shape[0], in.v.shape[1], queries.shape[3], 1},
                 [&](std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t /*one*/) {
                   const std::int64_t key = h / (in.v.shape[1] / in.k.shape[1]), t = load_index(queries, r);
                   std::vector<double> x;
                   for (std::int64_t d = 0; d < D; ++d)
                     x.push_back(load(in.q, b, h, t, d) / std::sqrt(static_cast<double>(D)));
                   for (std::int64_t j = in.q.shape[2] - 1; j > t; --j) store(out.weights, b, h, r, j, 0.0);
                   for (std::int64_t j = t; j >= 0; --j) {
                     const double e = std::exp(load(in.decay, b, h, j, 0));
                     double dot = 0.0;
                     for (std::int64_t d = 0; d < D; ++d)
                       dot += (decay_first ? e : 1.0) * x[d] * load(in.k, b, key, j, d);
                     const double weight = load(in.beta, b, h, j, 0) * dot;
                     store(out.weights, b, h, r, j, weight);
                     for (std::int64_t d = 0; d < D; ++d)
                       x[d] = e * x[d] - (decay_first ? 1.0 : e) * weight * load(in.k, b, key, j, d);
                   }
                   for (std::int64_t d = 0; d < D; ++d) store(out.state_query, b, h, r, d, x[d]);
                 });
}

TEST(LinearStatisticsCheck, DecayBeforeDelta_IsNoticed) {
  for (const bool decay_first : {false, true}) {
    LinearStatisticsKernels kernels;
    kernels.weights = [decay_first](const LinearAttentionWeights& out, const LinearAttentionInputs& in,
                                    const ConstTensorView& queries,
                                    const LinearAttentionOptions& /*options*/) { walk(out, in, queries, decay_first); };
    const std::string mismatch = mismatch_of(figures_spec(DType::f32), kernels);
    EXPECT_EQ(decay_first ? mismatch.substr(0, 8) : mismatch, decay_first ? "weights[" : "none");
  }
}

}  // namespace
}  // namespace headgate::verify
