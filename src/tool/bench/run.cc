// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/run.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "tool/bench/timing.hpp"

namespace headgate::bench {
namespace {

constexpr int kPeakWindows = 2;  // measurements of the FMA peak before each timed run

/// A case, its job, and the measurements made so far.
struct RunningCase {
  const BenchCase* bench_case;
  int threads;
  std::unique_ptr<BenchJob> job;
  int calls = 1;                // consecutive calls in each timed run
  std::vector<double> seconds;  // mean seconds per call of each timed run
  std::vector<double> peaks;    // GFLOP/s
  std::vector<double> reads;    // GB/s

  void measure(PeakMeters& meters) {
    for (int i = 0; i < kPeakWindows; ++i) peaks.push_back(meters.window(job->compute_dtype(), threads));
    if (job->read_bytes() > 0.0) reads.push_back(meters.read(threads));
    const double all = seconds_of([this] {
      for (int i = 0; i < calls; ++i) job->run();
    });
    seconds.push_back(all / calls);
  }

  /// Measures FMA peak again if all measurements for this case are far below the highest one of the whole bench.
  /// Other programs were then busy, so that the measurements are too low.
  void measure_peak_again(PeakMeters& meters) {
    constexpr int kMoreWindows = 100;
    constexpr double kNear = 0.98;
    const double wanted = kNear * meters.best_gflops(job->compute_dtype(), threads);
    for (int i = 0; i < kMoreWindows && *std::max_element(peaks.begin(), peaks.end()) < wanted; ++i) {
      peaks.push_back(meters.window(job->compute_dtype(), threads));
    }
  }
};

CaseResult result_of(const RunningCase& c) {
  CaseResult result;
  result.name = c.bench_case->name;
  result.floor = c.bench_case->floor;
  result.sgemm_floor = c.bench_case->sgemm_floor;
  result.facts = c.job->facts();
  result.threads = c.threads;
  result.runs = static_cast<int>(c.seconds.size());
  result.calls = c.calls;
  const double flops = c.job->flops();
  const double median_seconds = median(c.seconds);
  const double min_seconds = *std::min_element(c.seconds.begin(), c.seconds.end());
  result.ms_median = 1e3 * median_seconds;
  result.ms_min = 1e3 * min_seconds;
  result.gflops = flops / median_seconds * 1e-9;
  result.gflops_best = flops / min_seconds * 1e-9;
  result.fma_peak_gflops = *std::max_element(c.peaks.begin(), c.peaks.end());
  result.fma_peak_median_gflops = median(c.peaks);
  if (!c.reads.empty()) {
    result.read_gb = c.job->read_bytes() * 1e-9;
    result.read_gbps = median(c.reads);
    std::vector<double> shares;
    shares.reserve(c.reads.size());
    for (std::size_t i = 0; i < c.reads.size(); ++i) shares.push_back(result.read_gb / c.reads[i] / c.seconds[i]);
    result.fraction_of_read = median(std::move(shares));
  }
  return result;
}

RatioResult result_of(const BenchRatio& ratio, const std::vector<RunningCase>& running,
                      const std::vector<CaseResult>& cases) {
  const RunningCase& a = running[ratio.numerator];
  const RunningCase& b = running[ratio.denominator];
  const double work = a.job->flops() / b.job->flops();
  std::vector<double> rounds;
  rounds.reserve(a.seconds.size());
  for (std::size_t i = 0; i < a.seconds.size(); ++i) rounds.push_back(work * b.seconds[i] / a.seconds[i]);
  return {a.bench_case->name, b.bench_case->name, ratio.floor, median(std::move(rounds)),
          cases[ratio.numerator].gflops_best / cases[ratio.denominator].gflops_best};
}

/// Warms up each case before the timed runs, so that its memory is mapped and its threads exist.
/// Measures the seconds of a call. A fast case makes a second call, which replaces the first: the first takes longer.
/// Sets the number of calls in each timed run. Returns the expected seconds of the longest timed run.
double warm_up(std::vector<RunningCase>& running) {
  double slowest = 0.0;
  for (RunningCase& c : running) {
    double seconds = seconds_of([&c] { c.job->run(); });
    if (seconds < kSlowRun_seconds) seconds = seconds_of([&c] { c.job->run(); });
    if (c.job->read_bytes() == 0.0) c.calls = std::max(1, static_cast<int>(kShortRound_seconds / seconds));
    slowest = std::max(slowest, seconds * c.calls);
  }
  return slowest;
}

int runs_of(const BenchGroup& group, const BenchSettings& settings, double run_seconds) {
  const double wanted_seconds = group.ratios.empty() ? settings.min_seconds : 3.0 * settings.min_seconds;
  const int least = run_seconds < kSlowRun_seconds ? settings.min_runs : settings.min_slow_runs;
  return static_cast<int>(std::clamp(wanted_seconds / std::max(run_seconds, 1e-6), static_cast<double>(least),
                                     static_cast<double>(std::max(settings.max_runs, least))));
}

}  // namespace

GroupResult run_group(const BenchGroup& group, const BenchSettings& settings, PeakMeters& peaks) {
  std::vector<RunningCase> running;
  running.reserve(group.cases.size());
  for (const BenchCase& bench_case : group.cases) {
    const int threads = bench_case.threads == 0 ? settings.threads : bench_case.threads;
    running.push_back({&bench_case, threads, bench_case.make_job(threads), 1, {}, {}, {}});
  }
  const int runs = runs_of(group, settings, warm_up(running));
  for (int round = 0; round < runs; ++round) {
    if (round % 2 == 0) {
      for (auto c = running.begin(); c != running.end(); ++c) c->measure(peaks);
    } else {
      for (auto c = running.rbegin(); c != running.rend(); ++c) c->measure(peaks);
    }
  }
  for (RunningCase& c : running) c.measure_peak_again(peaks);
  GroupResult result;
  for (const RunningCase& c : running) result.cases.push_back(result_of(c));
  for (const BenchRatio& ratio : group.ratios) result.ratios.push_back(result_of(ratio, running, result.cases));
  return result;
}

}  // namespace headgate::bench
