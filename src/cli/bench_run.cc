// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_run.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

namespace headgate::cli {
namespace {

constexpr int kPeakWindows = 2;  // before each timed run

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

double timed_run_seconds(const Workload& workload) {
  const auto start = std::chrono::steady_clock::now();
  workload.run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A case with its data and its measurements so far.
struct Lane {
  const BenchCase* spec;
  int threads;
  Workload workload;
  std::vector<double> seconds;  // one entry a round
  std::vector<double> peaks;    // GFLOP/s

  /// 16-bit storage computes in f32.
  DType compute_dtype() const { return spec->shape.dtype == DType::f64 ? DType::f64 : DType::f32; }

  void measure(Yardsticks& yardsticks) {
    for (int i = 0; i < kPeakWindows; ++i) peaks.push_back(yardsticks.window(compute_dtype(), threads));
    seconds.push_back(timed_run_seconds(workload));
  }

  /// More windows when none came near the best of the run: a busy neighbour must not pass for a slow machine.
  void settle_peak(Yardsticks& yardsticks) {
    constexpr int kMoreWindows = 100;
    constexpr double kNear = 0.98;
    const double wanted = kNear * yardsticks.best_gflops(compute_dtype(), threads);
    for (int i = 0; i < kMoreWindows && *std::max_element(peaks.begin(), peaks.end()) < wanted; ++i) {
      peaks.push_back(yardsticks.window(compute_dtype(), threads));
    }
  }
};

CaseResult result_of(const Lane& lane) {
  CaseResult result;
  result.spec = *lane.spec;
  result.threads = lane.threads;
  result.runs = static_cast<int>(lane.seconds.size());
  const double flops = flops_of(lane.spec->shape, lane.spec->op);
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
  const double work = flops_of(a.spec->shape, a.spec->op) / flops_of(b.spec->shape, b.spec->op);
  std::vector<double> rounds;
  for (std::size_t i = 0; i < a.seconds.size(); ++i) rounds.push_back(work * b.seconds[i] / a.seconds[i]);
  return {a.spec->name, b.spec->name, ratio.floor, median(std::move(rounds)),
          cases[ratio.numerator].gflops_best / cases[ratio.denominator].gflops_best};
}

}  // namespace

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
  for (const BenchCase& spec : group.cases) {
    const int threads = spec.threads == 0 ? settings.threads : spec.threads;
    lanes.push_back({&spec, threads, Workload(spec.shape, spec.op, threads), {}, {}});
  }
  double round_seconds = 0.0;
  for (Lane& lane : lanes) {  // first touch of the outputs, and how long a round takes
    lane.workload.run();
    round_seconds = std::max(round_seconds, timed_run_seconds(lane.workload));
  }
  const double wanted_seconds = group.ratios.empty() ? settings.min_seconds : 3.0 * settings.min_seconds;
  const int runs = static_cast<int>(std::clamp(wanted_seconds / std::max(round_seconds, 1e-6),
                                               static_cast<double>(settings.min_runs),
                                               static_cast<double>(std::max(settings.max_runs, settings.min_runs))));
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

}  // namespace headgate::cli
