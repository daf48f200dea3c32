// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "headgate/headgate.h"
#include "headgate/statistics.hpp"

// Table of the outputs of attention_statistics, one row per output. Argument checks, bindings, and the code that reads
// and writes files iterate over this table.

namespace headgate {

/// The meaning of the third or the fourth dimension of an output.
enum class StatisticsDim { one, queries, keys, chosen_keys, chosen_rows, top_keys };

struct StatisticsOutput {
  using Struct = AttentionStatistics;

  const char* name;
  TensorView Struct::*member;
  headgate_tensor headgate_attention_statistics_outputs::*c_member;
  StatisticsDim third, fourth;

  constexpr bool is_index() const { return member == &AttentionStatistics::topk_index; }
  /// Returns whether the output has one entry for all queries of a sequence. Its first dimension is then the number of
  /// sequences.
  constexpr bool of_sequence() const { return third == StatisticsDim::one; }
};

/// The outputs. Rows have the order of the members of AttentionStatistics.
inline constexpr auto kStatisticsOutputs = [] {
  using S = AttentionStatistics;
  using C = headgate_attention_statistics_outputs;
  using enum StatisticsDim;
  return std::array<StatisticsOutput, 16>{{
      {"row_max", &S::row_max, &C::row_max, queries, one},
      {"entropy", &S::entropy, &C::entropy, queries, one},
      {"first", &S::first, &C::first, queries, one},
      {"first_gated", &S::first_gated, &C::first_gated, queries, one},
      {"window_share", &S::window_share, &C::window_share, queries, one},
      {"key_weights", &S::key_weights, &C::key_weights, queries, chosen_keys},
      {"mean_row_max", &S::mean_row_max, &C::mean_row_max, one, one},
      {"mean_entropy", &S::mean_entropy, &C::mean_entropy, one, one},
      {"mean_first", &S::mean_first, &C::mean_first, one, one},
      {"mean_first_gated", &S::mean_first_gated, &C::mean_first_gated, one, one},
      {"mean_window_share", &S::mean_window_share, &C::mean_window_share, one, one},
      {"mean_key_weights", &S::mean_key_weights, &C::mean_key_weights, one, chosen_keys},
      {"key_mass", &S::key_mass, &C::key_mass, one, keys},
      {"topk_index", &S::topk_index, &C::topk_index, queries, top_keys},
      {"topk_weight", &S::topk_weight, &C::topk_weight, queries, top_keys},
      {"rows", &S::rows, &C::rows, chosen_rows, keys},
  }};
}();
static_assert(sizeof(AttentionStatistics) == kStatisticsOutputs.size() * sizeof(TensorView) &&
              sizeof(headgate_attention_statistics_outputs) ==
                  sizeof(std::size_t) + kStatisticsOutputs.size() * sizeof(headgate_tensor));

/// Number of statistics per query, such as the entropy. kStatisticsOutputs lists these statistics first, then
/// key_weights, and then the means of the statistics. Row kRowStatistics + 1 + n is thus the mean of row n.
inline constexpr std::size_t kRowStatistics = 5;
static_assert(kStatisticsOutputs[kRowStatistics].member == &AttentionStatistics::key_weights &&
              kStatisticsOutputs[2 * kRowStatistics + 1].member == &AttentionStatistics::mean_key_weights);

/// Row numbers of the statistics per query in kStatisticsOutputs.
enum RowStatistic : std::size_t { kRowMax, kEntropy, kFirst, kFirstGated, kWindowShare };

inline const TensorView& row_statistic(const AttentionStatistics& outputs, std::size_t statistic) {
  return outputs.*kStatisticsOutputs[statistic].member;
}
inline const TensorView& mean_of_row_statistic(const AttentionStatistics& outputs, std::size_t statistic) {
  return outputs.*kStatisticsOutputs[kRowStatistics + 1 + statistic].member;
}
/// Returns whether the call requests this statistic, either for each query or as a mean over queries.
inline bool wants_row_statistic(const AttentionStatistics& outputs, std::size_t statistic) {
  return row_statistic(outputs, statistic).present() || mean_of_row_statistic(outputs, statistic).present();
}

/// The sizes that determine the shapes of the outputs.
struct StatisticsSizes {
  std::int64_t B = 0, Hq = 0, T = 0, S = 0;
  std::int64_t sequences = 0;  ///< number of sequences: B, or N in a packed batch
  /// first dimension of key_mass: 1 if the keys of all sequences lie along one dimension S, otherwise `sequences`
  std::int64_t key_batches = 0;
  std::int64_t chosen_keys = 0, chosen_rows = 0, top_keys = 0;

  std::int64_t of(StatisticsDim dim) const {
    switch (dim) {
      case StatisticsDim::queries: return T;
      case StatisticsDim::keys: return S;
      case StatisticsDim::chosen_keys: return chosen_keys;
      case StatisticsDim::chosen_rows: return chosen_rows;
      case StatisticsDim::top_keys: return top_keys;
      case StatisticsDim::one: break;
    }
    return 1;
  }
  Shape shape(const StatisticsOutput& output) const {
    const std::int64_t sums = output.fourth == StatisticsDim::keys ? key_batches : sequences;
    return {output.of_sequence() ? sums : B, Hq, of(output.third), of(output.fourth)};
  }
};

/// Returns an output's shape as text, for example "(B,Hq,T,K)". `sequences` and `key_batches` are the letters, "B" or
/// "N", that stand for these members of StatisticsSizes.
inline std::string letters_of(const StatisticsOutput& output, const char* sequences, const char* key_batches) {
  const auto letter = [](StatisticsDim dim) {
    switch (dim) {
      case StatisticsDim::queries: return "T";
      case StatisticsDim::keys: return "S";
      case StatisticsDim::chosen_keys: return "J";
      case StatisticsDim::chosen_rows: return "R";
      case StatisticsDim::top_keys: return "K";
      case StatisticsDim::one: break;
    }
    return "1";
  };
  const char* const sums = output.fourth == StatisticsDim::keys ? key_batches : sequences;
  return std::string("(") + (output.of_sequence() ? sums : "B") + ",Hq," + letter(output.third) + "," +
         letter(output.fourth) + ")";
}

}  // namespace headgate
