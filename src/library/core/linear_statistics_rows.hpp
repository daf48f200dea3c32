// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "headgate/headgate.h"
#include "headgate/linear_attention_statistics.hpp"

// Tables of the outputs of linear_attention_weights and linear_attention_statistics, one row per output. Argument
// checks, the C API, the Python package, and the code that reads and writes files iterate over these tables.

namespace headgate {

/// The dimensions of an output.
enum class LinearOutputDims {
  query_and_token,    ///< (B,Ho,R,T): a number for each of R selected queries and each token
  query_and_feature,  ///< (B,Ho,R,D): a number for each of R selected queries and each feature
  query,              ///< (B,Ho,T,1)
  sequence,           ///< (N,Ho,1,1)
  state               ///< (N,Hv,1,1)
};

/// The sizes that determine the shapes of a call's outputs.
struct LinearOutputSizes {
  std::int64_t B = 0, N = 0, Hv = 0, Ho = 0, T = 0, D = 0, R = 0;

  Shape shape(LinearOutputDims dims) const {
    switch (dims) {
      case LinearOutputDims::query_and_token: return {B, Ho, R, T};
      case LinearOutputDims::query_and_feature: return {B, Ho, R, D};
      case LinearOutputDims::query: return {B, Ho, T, 1};
      case LinearOutputDims::sequence: return {N, Ho, 1, 1};
      case LinearOutputDims::state: break;
    }
    return {N, Hv, 1, 1};
  }
};

/// Returns how many trailing dimensions of size 1 the user's array lacks.
constexpr std::size_t dims_left_out(LinearOutputDims dims) {
  if (dims == LinearOutputDims::query_and_token || dims == LinearOutputDims::query_and_feature) return 0;
  return dims == LinearOutputDims::query ? 1 : 2;
}

/// Returns whether the first dimension is N, the number of sequences.
constexpr bool counts_sequences(LinearOutputDims dims) {
  return dims == LinearOutputDims::sequence || dims == LinearOutputDims::state;
}

/// Returns the shape of the rank-4 view as text, for example "(B,Ho,R,T)".
constexpr const char* view_letters(LinearOutputDims dims) {
  constexpr const char* kLetters[] = {"(B,Ho,R,T)", "(B,Ho,R,D)", "(B,Ho,T,1)", "(N,Ho,1,1)", "(N,Hv,1,1)"};
  return kLetters[static_cast<std::size_t>(dims)];
}

/// Returns the shape of a user's array as text, without trailing dimensions of size 1.
constexpr std::string_view array_letters(LinearOutputDims dims) {
  constexpr std::string_view kLetters[] = {"(B,Ho,R,T)", "(B,Ho,R,D)", "(B,Ho,T)", "(N,Ho)", "(N,Hv)"};
  return kLetters[static_cast<std::size_t>(dims)];
}

/// A row of the tables: one output.
template <class StructOf, class CStruct>
struct LinearOutputRow {
  using Struct = StructOf;

  const char* name;  ///< name of the field in both structs, and of the Python attribute
  TensorView Struct::*member;
  headgate_tensor CStruct::*c_member;
  LinearOutputDims dims;
  std::string_view help;  ///< description that begins with a lower-case letter
};

using LinearWeightsOutput = LinearOutputRow<LinearAttentionWeights, headgate_linear_attention_weights_outputs>;
using LinearStatisticsOutput = LinearOutputRow<LinearAttentionStatistics, headgate_linear_attention_statistics_outputs>;

/// The outputs of linear_attention_weights. In both tables of this file, rows have the order of the struct's members.
inline constexpr auto kLinearWeights = [] {
  using W = LinearAttentionWeights;
  using C = headgate_linear_attention_weights_outputs;
  using enum LinearOutputDims;
  return std::array<LinearWeightsOutput, 2>{{
      {"weights", &W::weights, &C::weights, query_and_token,
       "the weights of the chosen queries; 0 at later tokens and at those of other sequences"},
      {"state_query", &W::state_query, &C::state_query, query_and_feature,
       "what is left of the query, with which S_0 is read"},
  }};
}();

inline constexpr auto kLinearStatistics = [] {
  using S = LinearAttentionStatistics;
  using C = headgate_linear_attention_statistics_outputs;
  using enum LinearOutputDims;
  return std::array<LinearStatisticsOutput, 15>{{
      {"first", &S::first, &C::first, query, "weight of the first token"},
      {"first_share", &S::first_share, &C::first_share, query, "its share of the sum of absolute weights"},
      {"reach", &S::reach, &C::reach, query, "mean distance of the tokens, by absolute weights"},
      {"absolute_sum", &S::absolute_sum, &C::absolute_sum, query, "sum of absolute weights"},
      {"weight_sum", &S::weight_sum, &C::weight_sum, query, "sum of weights"},
      {"mean_first", &S::mean_first, &C::mean_first, sequence, "mean of first over the queries but the first"},
      {"mean_first_share", &S::mean_first_share, &C::mean_first_share, sequence, "mean of first_share"},
      {"mean_reach", &S::mean_reach, &C::mean_reach, sequence, "mean of reach"},
      {"mean_absolute_sum", &S::mean_absolute_sum, &C::mean_absolute_sum, sequence, "mean of absolute_sum"},
      {"mean_weight_sum", &S::mean_weight_sum, &C::mean_weight_sum, sequence, "mean of weight_sum"},
      {"mean_decay", &S::mean_decay, &C::mean_decay, state, "mean of e^g over tokens, and features where each has one"},
      {"mean_beta", &S::mean_beta, &C::mean_beta, state, "mean of beta over tokens"},
      {"half_life", &S::half_life, &C::half_life, state,
       "ln 2 / -(mean of g), in tokens; inf where the mean of g is not negative"},
      {"effective_rank", &S::effective_rank, &C::effective_rank, state,
       "|S|^4 / |S^T S|^2 of S_T, in Frobenius norms: from 1 to min(D,Dv); 0 where S_T is 0"},
      {"state_norm", &S::state_norm, &C::state_norm, state, "Frobenius norm of S_T"},
  }};
}();

/// Returns whether a table has one row per member of the C++ struct and of the C struct. The C struct has `c_size`
/// bytes and begins with struct_size, which has no row.
template <class Rows>
constexpr bool are_all_outputs(std::size_t c_size) {
  constexpr std::size_t kRows = std::tuple_size_v<Rows>;
  return sizeof(typename Rows::value_type::Struct) == kRows * sizeof(TensorView) &&
         c_size >= kRows * sizeof(headgate_tensor) && c_size < (kRows + 1) * sizeof(headgate_tensor);
}
static_assert(are_all_outputs<decltype(kLinearWeights)>(sizeof(headgate_linear_attention_weights_outputs)) &&
              are_all_outputs<decltype(kLinearStatistics)>(sizeof(headgate_linear_attention_statistics_outputs)));

/// Number of statistics per query. kLinearStatistics lists these statistics first, and then their means over queries in
/// the same order. Row kQueryStatistics + n is thus the mean of row n.
inline constexpr std::size_t kQueryStatistics = 5;
static_assert(kLinearStatistics[2 * kQueryStatistics - 1].member == &LinearAttentionStatistics::mean_weight_sum);

/// Row numbers of the statistics per query in kLinearStatistics.
enum QueryStatistic : std::size_t { kQueryFirst, kQueryFirstShare, kQueryReach, kQueryAbsoluteSum, kQueryWeightSum };

inline const TensorView& query_statistic(const LinearAttentionStatistics& outputs, std::size_t statistic) {
  return outputs.*kLinearStatistics[statistic].member;
}
inline const TensorView& mean_of_query_statistic(const LinearAttentionStatistics& outputs, std::size_t statistic) {
  return outputs.*kLinearStatistics[kQueryStatistics + statistic].member;
}
/// Returns whether the call requests this statistic, either for each query or as a mean over queries.
inline bool wants_query_statistic(const LinearAttentionStatistics& outputs, std::size_t statistic) {
  return query_statistic(outputs, statistic).present() || mean_of_query_statistic(outputs, statistic).present();
}

}  // namespace headgate
