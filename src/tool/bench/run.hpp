// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tool/bench/cases.hpp"
#include "tool/machine/machine_facts.hpp"

namespace headgate::bench {

struct BenchSettings {
  int threads = 1;
  int min_runs = 9;          ///< timed runs of each case, at least
  int min_slow_runs = 3;     ///< the same where a run takes kSlowRun_seconds or more
  double min_seconds = 0.5;  ///< time spent in each case, at least; three times that in cases of a ratio
  int max_runs = 200;
};

inline constexpr double kSlowRun_seconds = 0.5;
/// A timed run is one call or, of work that caches hold, as many in a row as fit: in use too one call follows another,
/// while what is measured between the runs leaves other programs the time to empty shared caches.
inline constexpr double kShortRound_seconds = 5e-3;

struct CaseResult {
  std::string name;
  std::optional<double> floor, sgemm_floor;
  nlohmann::ordered_json facts;  ///< of the job
  int threads = 1;
  int runs = 0, calls = 1;  ///< calls: of each run, whose time is their mean
  double ms_median = 0.0, ms_min = 0.0;
  double gflops = 0.0;       ///< at the median
  double gflops_best = 0.0;  ///< at the minimum
  /// FMA peak of the case's threads and the job's dtype: the best and the median of the windows between
  /// the timed runs.
  double fma_peak_gflops = 0.0, fma_peak_median_gflops = 0.0;

  double read_gb = 0.0;    ///< 1e9 bytes that a run reads; 0 where reading does not limit it
  double read_gbps = 0.0;  ///< the median streaming rate of the passes between those runs
  /// Median over the runs of the time in which that much streams, at the rate of the pass before, in the run's: a
  /// shared machine's memory changes from one minute to the next.
  double fraction_of_read = 0.0;

  double fraction_of_peak() const { return gflops / fma_peak_gflops; }
  /// Of the least time that reading and computing at FMA peak allow.
  double fraction_of_limit() const { return std::max(fraction_of_peak(), fraction_of_read); }
  double best_fraction_of_peak() const { return gflops_best / fma_peak_gflops; }
};

struct RatioResult {
  std::string numerator, denominator;
  std::optional<double> floor;
  double value = 0.0;  ///< median over the rounds of the ratio of the rates
  double best = 0.0;   ///< ratio of the best rates
};

struct GroupResult {
  std::vector<CaseResult> cases;
  std::vector<RatioResult> ratios;
};

/// Runs the cases in turns, in even rounds from the first to the last and in odd rounds from the last to the first, and
/// measures FMA peak before each run.
GroupResult run_group(const BenchGroup& group, const BenchSettings& settings, PeakMeters& peaks);

}  // namespace headgate::bench
