// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/cases.hpp"
#include "bench/machine.hpp"

namespace headgate::bench {

struct BenchSettings {
  int threads = 1;
  int min_runs = 9;          ///< timed runs of each case, at least
  int min_slow_runs = 3;     ///< the same where a run takes kSlowRun_seconds or more
  double min_seconds = 0.5;  ///< time spent in each case, at least; in cases of a ratio three times that
  int max_runs = 200;
};

inline constexpr double kSlowRun_seconds = 0.5;

struct CaseResult {
  std::string name;
  std::optional<double> floor;
  nlohmann::ordered_json facts;  ///< of the job
  int threads = 1;
  int runs = 0;
  double ms_median = 0.0, ms_min = 0.0;
  double gflops = 0.0;       ///< at the median
  double gflops_best = 0.0;  ///< at the minimum
  /// FMA peak of the case's threads and the job's dtype: the best and the median of the windows between
  /// the timed runs.
  double fma_peak_gflops = 0.0, fma_peak_median_gflops = 0.0;

  double fraction_of_peak() const { return gflops / fma_peak_gflops; }
  double best_fraction_of_peak() const { return gflops_best / fma_peak_gflops; }
};

struct RatioResult {
  std::string numerator, denominator;
  std::optional<double> floor;
  double value = 0.0;  ///< the median over the rounds of rate over rate
  double best = 0.0;   ///< ratio of the best rates
};

struct GroupResult {
  std::vector<CaseResult> cases;
  std::vector<RatioResult> ratios;
};

/// A meter for each dtype and number of threads, with the best rate that it has shown so far.
class Yardsticks {
 public:
  explicit Yardsticks(std::string isa) : isa_(std::move(isa)) {}

  /// GFLOP/s over about a millisecond; dtype f32 or f64.
  double window(DType dtype, int threads);
  double best_gflops(DType dtype, int threads);

 private:
  struct Entry {
    PeakMeter meter;
    double best_gflops;
  };
  Entry& entry(DType dtype, int threads);

  std::string isa_;
  std::map<std::pair<DType, int>, Entry> entries_;
};

double timed_run_seconds(BenchJob& job);

/// Runs the cases in turns (forwards in even rounds, backwards in odd ones), FMA peak windows before each run.
GroupResult run_group(const BenchGroup& group, const BenchSettings& settings, Yardsticks& yardsticks);

}  // namespace headgate::bench
