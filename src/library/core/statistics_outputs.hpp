// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "headgate/statistics.hpp"

// The outputs of attention_statistics as rows, which checks, problems and files walk.

namespace headgate {

/// What one of the last two dimensions of an output counts.
enum class StatisticsDim { one, queries, keys, chosen_keys, chosen_rows, top_keys };

struct StatisticsOutput {
  const char* name;
  TensorView AttentionStatistics::*member;
  StatisticsDim third, fourth;

  constexpr bool is_index() const { return member == &AttentionStatistics::topk_index; }
  /// Summed over the queries of a sequence, of which a packed batch has several.
  constexpr bool of_sequence() const { return third == StatisticsDim::one; }
};

/// In the order of AttentionStatistics.
inline constexpr std::array<StatisticsOutput, 16> kStatisticsOutputs{{
    {"row_max", &AttentionStatistics::row_max, StatisticsDim::queries, StatisticsDim::one},
    {"entropy", &AttentionStatistics::entropy, StatisticsDim::queries, StatisticsDim::one},
    {"first", &AttentionStatistics::first, StatisticsDim::queries, StatisticsDim::one},
    {"first_gated", &AttentionStatistics::first_gated, StatisticsDim::queries, StatisticsDim::one},
    {"window_share", &AttentionStatistics::window_share, StatisticsDim::queries, StatisticsDim::one},
    {"key_weights", &AttentionStatistics::key_weights, StatisticsDim::queries, StatisticsDim::chosen_keys},
    {"mean_row_max", &AttentionStatistics::mean_row_max, StatisticsDim::one, StatisticsDim::one},
    {"mean_entropy", &AttentionStatistics::mean_entropy, StatisticsDim::one, StatisticsDim::one},
    {"mean_first", &AttentionStatistics::mean_first, StatisticsDim::one, StatisticsDim::one},
    {"mean_first_gated", &AttentionStatistics::mean_first_gated, StatisticsDim::one, StatisticsDim::one},
    {"mean_window_share", &AttentionStatistics::mean_window_share, StatisticsDim::one, StatisticsDim::one},
    {"mean_key_weights", &AttentionStatistics::mean_key_weights, StatisticsDim::one, StatisticsDim::chosen_keys},
    {"key_mass", &AttentionStatistics::key_mass, StatisticsDim::one, StatisticsDim::keys},
    {"topk_index", &AttentionStatistics::topk_index, StatisticsDim::queries, StatisticsDim::top_keys},
    {"topk_weight", &AttentionStatistics::topk_weight, StatisticsDim::queries, StatisticsDim::top_keys},
    {"rows", &AttentionStatistics::rows, StatisticsDim::chosen_rows, StatisticsDim::keys},
}};

/// The outputs of this many rows are figures of one query; row kRowFigures + 1 + n is the mean of row n.
inline constexpr std::size_t kRowFigures = 5;
static_assert(kStatisticsOutputs[kRowFigures].member == &AttentionStatistics::key_weights &&
              kStatisticsOutputs[2 * kRowFigures + 1].member == &AttentionStatistics::mean_key_weights);

/// Rows of kStatisticsOutputs.
enum RowFigure : std::size_t { kRowMax, kEntropy, kFirst, kFirstGated, kWindowShare };

inline const TensorView& row_figure(const AttentionStatistics& outputs, std::size_t figure) {
  return outputs.*kStatisticsOutputs[figure].member;
}
inline const TensorView& mean_of_figure(const AttentionStatistics& outputs, std::size_t figure) {
  return outputs.*kStatisticsOutputs[kRowFigures + 1 + figure].member;
}
/// Whether a figure of each query, or its mean, is asked for.
inline bool wants_figure(const AttentionStatistics& outputs, std::size_t figure) {
  return row_figure(outputs, figure).present() || mean_of_figure(outputs, figure).present();
}

/// The sizes that the dimensions of outputs have.
struct StatisticsSizes {
  std::int64_t B = 0, Hq = 0, T = 0, S = 0;
  std::int64_t sequences = 0;    ///< B, or those of a packed batch
  std::int64_t key_batches = 0;  ///< likewise, but 1 where sequences share the S columns
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

/// "(B,Hq,T,K)", with the letter of StatisticsSizes::sequences, "B" or "N", and that of key_batches.
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
