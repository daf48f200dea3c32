// SPDX-License-Identifier: Apache-2.0
#include "headgate/linear_attention_statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <deque>
#include <vector>

#include "headgate/headgate.h"
#include "library/capi/to_c.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "library/core/linear_statistics_rows.hpp"

// Checks that the weights and statistics of linear attention by the C API are bitwise those of the C++ API.

namespace headgate::testing {
namespace {

/// B 2, Hq 4, Hk 1, Hv 2, T 5, D 3, Dv 2, R 3.
struct FigureCall {
  static constexpr LinearOutputSizes kSizes{2, 2, 2, 4, 5, 3, 3};

  FigureCall() {
    in.q = input({2, 4, 5, 3});
    in.k = input({2, 1, 5, 3});
    in.v = input({2, 2, 5, 2});
    in.beta = input({2, 2, 5, 1});
    in.state = input({2, 2, 3, 2});
    for (const LinearWeightsOutput& row : kLinearWeights) weights.*row.member = output(row.dims);
    for (const LinearStatisticsOutput& row : kLinearStatistics) statistics.*row.member = output(row.dims);
  }
  FigureCall(const FigureCall&) = delete;
  FigureCall& operator=(const FigureCall&) = delete;

  ConstTensorView input(const Shape& shape) {
    std::vector<double>& block = take(shape);
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = std::sin(static_cast<double>(7 * i + memory.size()));
    return make_view(static_cast<const double*>(block.data()), shape);
  }
  TensorView output(LinearOutputDims of) {
    const Shape shape = kSizes.shape(of);
    return make_view(take(shape).data(), shape);
  }
  std::vector<double>& take(const Shape& shape) {
    return memory.emplace_back(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]), -7.0);
  }
  ConstTensorView queries() const { return make_vector_view(chosen.data(), 3); }

  headgate_status weights_by_c() const {
    headgate_linear_attention_weights_outputs to = HEADGATE_LINEAR_ATTENTION_WEIGHTS_OUTPUTS_INIT;
    to = tensors_to_c<kLinearWeights>(to, weights);
    headgate_linear_attention_inputs from = HEADGATE_LINEAR_ATTENTION_INPUTS_INIT;
    from = tensors_to_c<kLinearInputs>(from, in);
    const headgate_const_tensor rows = to_c(queries());
    const headgate_linear_attention_options with = c_options();
    return headgate_linear_attention_weights(&to, &from, &rows, &with);
  }
  headgate_status statistics_by_c() const {
    headgate_linear_attention_statistics_outputs to = HEADGATE_LINEAR_ATTENTION_STATISTICS_OUTPUTS_INIT;
    to = tensors_to_c<kLinearStatistics>(to, statistics);
    headgate_linear_attention_inputs from = HEADGATE_LINEAR_ATTENTION_INPUTS_INIT;
    from = tensors_to_c<kLinearInputs>(from, in);
    const headgate_linear_attention_options with = c_options();
    return headgate_linear_attention_statistics(&to, &from, &with);
  }
  headgate_linear_attention_options c_options() const {
    const headgate_linear_attention_options zeros = HEADGATE_LINEAR_ATTENTION_OPTIONS_INIT;
    return options_to_c<kLinearOptions>(zeros, options);
  }

  std::deque<std::vector<double>> memory;
  std::vector<std::int64_t> chosen{4, 0, 2};
  LinearAttentionInputs in;
  LinearAttentionOptions options{.rule = LinearRule::delta, .scale = 0.5, .l2_norm = 0.25};
  LinearAttentionWeights weights;
  LinearAttentionStatistics statistics;
};

TEST(CApiLinearStatistics, Weights_HaveTheBitsOfCpp) {
  const FigureCall cpp, c, before;
  linear_attention_weights(cpp.weights, cpp.in, cpp.queries(), cpp.options);
  ASSERT_EQ(c.weights_by_c(), HEADGATE_OK) << headgate_last_error();
  EXPECT_EQ(c.memory, cpp.memory);
  EXPECT_NE(c.memory, before.memory);
}

TEST(CApiLinearStatistics, Statistics_HaveTheBitsOfCpp) {
  const FigureCall cpp, c, before;
  linear_attention_statistics(cpp.statistics, cpp.in, cpp.options);
  ASSERT_EQ(c.statistics_by_c(), HEADGATE_OK) << headgate_last_error();
  EXPECT_EQ(c.memory, cpp.memory);
  EXPECT_NE(c.memory, before.memory);
}

TEST(CApiLinearStatistics, Message_BadArgument_NamesTheFunctionOfC) {
  FigureCall call;
  call.chosen[1] = 5;
  EXPECT_EQ(call.weights_by_c(), HEADGATE_INVALID_ARGUMENT);
  EXPECT_STREQ(headgate_last_error(),
               "headgate_linear_attention_weights: queries[1] is 5 but must be at least 0 and less than T = 5");
  call.statistics.reach.shape[2] = 4;
  EXPECT_EQ(call.statistics_by_c(), HEADGATE_INVALID_ARGUMENT);
  EXPECT_STREQ(headgate_last_error(),
               "headgate_linear_attention_statistics: reach has shape (2,4,4,1) but (B,Ho,T,1) is (2,4,5,1)");
  headgate_linear_attention_inputs from = HEADGATE_LINEAR_ATTENTION_INPUTS_INIT;
  from = tensors_to_c<kLinearInputs>(from, call.in);
  EXPECT_EQ(headgate_linear_attention_statistics(nullptr, &from, nullptr), HEADGATE_INVALID_ARGUMENT);
  EXPECT_STREQ(headgate_last_error(), "headgate_linear_attention_statistics: outputs is null");
  const headgate_linear_attention_weights_outputs to = HEADGATE_LINEAR_ATTENTION_WEIGHTS_OUTPUTS_INIT;
  EXPECT_EQ(headgate_linear_attention_weights(&to, &from, nullptr, nullptr), HEADGATE_INVALID_ARGUMENT);
  EXPECT_STREQ(headgate_last_error(), "headgate_linear_attention_weights: queries is null");
}

}  // namespace
}  // namespace headgate::testing
