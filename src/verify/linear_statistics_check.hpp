// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "headgate/linear_attention_statistics.hpp"
#include "verify/compare.hpp"
#include "verify/linear_attention_case.hpp"
#include "verify/oracle/linear_statistics.hpp"
#include "verify/slab.hpp"

// Checks of linear_attention_weights and linear_attention_statistics against the oracle.

namespace headgate::verify {

/// The functions to check. By default, these are the functions of the library; tests of the checks replace or wrap
/// them.
struct LinearStatisticsKernels {
  std::function<void(const LinearAttentionWeights&, const LinearAttentionInputs&, const ConstTensorView& queries,
                     const LinearAttentionOptions&)>
      weights = linear_attention_weights;
  std::function<void(const LinearAttentionStatistics&, const LinearAttentionInputs&, const LinearAttentionOptions&)>
      statistics = linear_attention_statistics;
};

/// Holds the outputs of linear_attention_weights and linear_attention_statistics for one problem, filled with poison
/// bytes 0xFF. Also holds the queries that the problem's seed chooses.
class LinearFigures {
 public:
  explicit LinearFigures(const LinearCaseSpec& spec);

  const LinearAttentionWeights& weights() const { return weights_; }
  const LinearAttentionStatistics& statistics() const { return statistics_; }
  const std::vector<std::int64_t>& chosen() const { return chosen_; }
  ConstTensorView queries() const { return queries_; }
  void poison() { slabs_.poison(); }
  std::optional<std::string> spilled() const { return slabs_.spilled(); }
  /// Returns all bytes of the outputs, including the guard zones.
  std::vector<std::uint8_t> bytes() const { return slabs_.bytes(); }

 private:
  template <class Rows, class Struct>
  void place(const LinearCaseSpec& spec, const Rows& rows, Struct& outputs);

  Slabs slabs_, inputs_;
  std::vector<std::int64_t> chosen_;
  TensorView queries_;
  LinearAttentionWeights weights_;
  LinearAttentionStatistics statistics_;
};

/// The oracle's weights and statistics of a problem.
struct ExpectedLinearFigures {
  explicit ExpectedLinearFigures(const LinearCase& problem)
      : rows(reference::linear_weights(problem.inputs(), problem.options())),
        statistics(reference::linear_statistics(problem.inputs(), problem.options(), rows)) {}

  reference::LinearWeightRows rows;
  reference::LinearStatistics statistics;
};

/// Runs linear_attention_weights and linear_attention_statistics on the problem. Returns the first mismatch with the
/// oracle.
std::optional<std::string> check_linear_statistics_case(LinearCase& problem, const ExpectedLinearFigures& expected,
                                                        const LinearStatisticsKernels& kernels = {},
                                                        WorstError* worst = nullptr);

}  // namespace headgate::verify
