// SPDX-License-Identifier: Apache-2.0
#include "bench/run.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

namespace headgate::bench {
namespace {

constexpr int kPeakWindows = 2;  // before each timed run

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/// A case with its data and its measurements so far.
struct Lane {
  const BenchCase* spec;
  int threads;
  std::unique_ptr<BenchJob> job;
  std::vector<double> seconds;  // one entry a round
  std::vector<double> peaks;    // GFLOP/s

  void measure(Yardsticks& yardsticks) {
    for (int i = 0; i < kPeakWindows; ++i) peaks.push_back(yardsticks.window(job->compute_dtype(), threads));
    seconds.push_back(timed_run_seconds(*job));
  }

  /// More windows when none came near the best of the run: a busy neighbour must not pass for a slow machine.
  void settle_peak(Yardsticks& yardsticks) {
    constexpr int kMoreWindows = 100;
    constexpr double kNear = 0.98;
    const double wanted = kNear * yardsticks.best_gflops(job->compute_dtype(), threads);
    for (int i = 0; i < kMoreWindows && *std::max_element(peaks.begin(), peaks.end()) < wanted; ++i) {
      peaks.push_back(yardsticks.window(job->compute_dtype(), threads));
    }
  }
};

CaseResult result_of(const Lane& lane) {
  CaseResult result;
  result.name = lane.spec->name;
  result.floor = lane.spec->floor;
  result.facts = lane.job->facts();
  result.threads = lane.threads;
  result.runs = static_cast<int>(lane.seconds.size());
  const double flops = lane.job->flops();
  const double median_seconds = median(lane.seconds);
  const double min_seconds = *std::min_element(lane.seconds.begin(), lane.seconds.end());
  result.ms_median = 1e3 * median_seconds;
  result.ms_min = 1e3 * min_seconds;
  result.gflops = flops / median_seconds * 1e-9;
  result.gflops_best = flops / min_seconds * 1e-9;
  result.fma_peak_gflops = *std::max_element(lane.peaks.begin(), lane.peaks.end());
  result.fma_peak_median_gflops = median(lane.peaks);
  return result;
}

RatioResult result_of(const BenchRatio& ratio, const std::vector<Lane>& lanes, const std::vector<CaseResult>& cases) {
  const Lane& a = lanes[ratio.numerator];
  const Lane& b = lanes[ratio.denominator];
  const double work = a.job->flops() / b.job->flops();
  std::vector<double> rounds;
  rounds.reserve(a.seconds.size());
  for (std::size_t i = 0; i < a.seconds.size(); ++i) rounds.push_back(work * b.seconds[i] / a.seconds[i]);
  return {a.spec->name, b.spec->name, ratio.floor, median(std::move(rounds)),
          cases[ratio.numerator].gflops_best / cases[ratio.denominator].gflops_best};
}

/// First touch of the outputs, and the seconds of the slowest run. A slow one is not run twice for that.
double warm_up(std::vector<Lane>& lanes) {
  double slowest = 0.0;
  for (Lane& lane : lanes) {
    double seconds = timed_run_seconds(*lane.job);
    if (seconds < kSlowRun_seconds) seconds = timed_run_seconds(*lane.job);
    slowest = std::max(slowest, seconds);
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

double timed_run_seconds(BenchJob& job) {
  const auto start = std::chrono::steady_clock::now();
  job.run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Yardsticks::Entry& Yardsticks::entry(DType dtype, int threads) {
  constexpr int kFirstWindows = 24;
  const auto found = entries_.find({dtype, threads});
  if (found != entries_.end()) return found->second;
  PeakMeter meter(isa_, dtype, threads);
  const double best = meter.best_of(kFirstWindows);
  return entries_.emplace(std::pair{dtype, threads}, Entry{meter, best}).first->second;
}

double Yardsticks::window(DType dtype, int threads) {
  Entry& e = entry(dtype, threads);
  const double rate = e.meter.window();
  e.best_gflops = std::max(e.best_gflops, rate);
  return rate;
}

double Yardsticks::best_gflops(DType dtype, int threads) { return entry(dtype, threads).best_gflops; }

GroupResult run_group(const BenchGroup& group, const BenchSettings& settings, Yardsticks& yardsticks) {
  std::vector<Lane> lanes;
  lanes.reserve(group.cases.size());
  for (const BenchCase& spec : group.cases) {
    const int threads = spec.threads == 0 ? settings.threads : spec.threads;
    lanes.push_back({&spec, threads, spec.make_job(threads), {}, {}});
  }
  const int runs = runs_of(group, settings, warm_up(lanes));
  for (int round = 0; round < runs; ++round) {
    if (round % 2 == 0) {
      for (auto lane = lanes.begin(); lane != lanes.end(); ++lane) lane->measure(yardsticks);
    } else {
      for (auto lane = lanes.rbegin(); lane != lanes.rend(); ++lane) lane->measure(yardsticks);
    }
  }
  for (Lane& lane : lanes) lane.settle_peak(yardsticks);
  GroupResult result;
  for (const Lane& lane : lanes) result.cases.push_back(result_of(lane));
  for (const BenchRatio& ratio : group.ratios) result.ratios.push_back(result_of(ratio, lanes, result.cases));
  return result;
}

}  // namespace headgate::bench
