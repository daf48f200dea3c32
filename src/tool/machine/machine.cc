// SPDX-License-Identifier: Apache-2.0
#include "tool/machine/machine.hpp"

#include <omp.h>
#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/core/check.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/stopwatch.hpp"
#include "models/layers/gemm_parts.hpp"
#include "tool/machine/machine_peak.hpp"

namespace headgate::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Receives results of the measured loops, so that the compiler cannot remove the loops.
volatile double g_sink = 0.0;

/// Runs work(t) on every thread t at the same time.
/// Returns the seconds from the first thread's start to the last thread's end.
double run_concurrently(int threads, const std::function<double(int)>& work) {
  std::vector<Clock::time_point> starts(threads);
  std::vector<Clock::time_point> ends(threads);
  int team = 0;
#pragma omp parallel num_threads(threads)
  {
#pragma omp single  // this construct ends with a barrier, so that all threads start the work together
    team = omp_get_num_threads();
    const int t = omp_get_thread_num();
    starts[t] = Clock::now();
    const double result = work(t);
    ends[t] = Clock::now();
#pragma omp critical
    g_sink = result;
  }
  require(team == threads, "machine: asked for {} threads, OpenMP gave {}", threads, team);
  const auto first = *std::min_element(starts.begin(), starts.end()),
             last = *std::max_element(ends.begin(), ends.end());
  return std::chrono::duration<double>(last - first).count();
}

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<float[], FreeDeleter>;

Buffer allocate_floats(std::size_t count) {
  constexpr std::size_t kPageBytes = 4096;
  void* data = std::aligned_alloc(kPageBytes, count * sizeof(float));
  if (data == nullptr) throw std::bad_alloc();
  return Buffer(static_cast<float*>(data));
}

}  // namespace

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t colon = line.find(':');
    const std::size_t begin = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    if (begin != std::string::npos) return line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
  }
  utsname names{};
  return uname(&names) == 0 ? names.machine : "unknown";
}

std::string best_target() {
  for (const TargetRow& row : kTargetRows) {
    if ((row.bit & hwy::SupportedTargets()) != 0) return row.name;
  }
  return active_target();
}

std::string products_description() { return layers::gemm_description(); }

PeakMeter::PeakMeter(const std::string& isa, DType dtype, int threads) : threads_(threads), rounds_(4096) {
  // Length of a measurement: much longer than a barrier takes, and much shorter than a time slice of the scheduler.
  constexpr double kWindowSeconds = 1e-3;
  constexpr std::int64_t kMaxRounds = std::int64_t{1} << 28;
  require(dtype == DType::f32 || dtype == DType::f64, "fma peak: dtype {} is neither f32 nor f64", dtype_name(dtype));
  const auto take = [this](const auto& loops) {
    run_ = loops.fma;
    flops_per_round_ = static_cast<double>(loops.flops_per_round);
  };
  dtype == DType::f32 ? take(peak_loops<float>(isa)) : take(peak_loops<double>(isa));
  // Returns the shortest time of `rounds_` rounds on one thread.
  // The time of several threads would include waiting and end the search for the number of rounds too early.
  const auto best_seconds = [&] {
    double best = kWindowSeconds;
    for (int i = 0; i < 5; ++i) {
      const Stopwatch watch;
      g_sink = run_(rounds_);
      best = std::min(best, watch.seconds());
    }
    return best;
  };
  while (rounds_ < kMaxRounds && best_seconds() < kWindowSeconds) rounds_ *= 2;
}

double PeakMeter::window() {
  const double seconds = run_concurrently(threads_, [&](int) { return run_(rounds_); });
  return flops_per_round_ * static_cast<double>(rounds_) * threads_ / seconds * 1e-9;
}

double PeakMeter::best_of(int windows) {
  double best = 0.0;
  for (int i = 0; i < windows; ++i) best = std::max(best, window());
  return best;
}

double sgemm_gflops(int threads) {
  constexpr int kSize = 2048;
  constexpr int kRuns = 5;
  constexpr std::size_t kCount = std::size_t{kSize} * kSize;
  const Buffer a = allocate_floats(kCount);  // (2048,2048)
  const Buffer b = allocate_floats(kCount);  // (2048,2048)
  const Buffer c = allocate_floats(kCount);  // (2048,2048)
  for (std::size_t i = 0; i < kCount; ++i) {
    a[i] = static_cast<float>(i % 7) - 3.0F;
    b[i] = static_cast<float>(i % 11) - 5.0F;
    c[i] = 0.0F;
  }
  const View<float, 2> out(c.get(), {kSize, kSize});
  const View<const float, 2> left(a.get(), {kSize, kSize}), right(b.get(), {kSize, kSize});
  const layers::Product<float> product{
      out, left, layers::Form::stored, right, layers::Form::stored, layers::Update::overwrite};
  layers::require_products(threads);
  double best_seconds = 0.0;
  for (int i = 0; i < kRuns + 1; ++i) {  // the first run warms up
    const double seconds = run_concurrently(threads, [&](int t) {
      return layers::gemm(product.rows(kSize * t / threads, kSize * (t + 1) / threads)) ? 1.0 : 0.0;
    });
    if (i == 1 || (i > 1 && seconds < best_seconds)) best_seconds = seconds;
  }
  return 2.0 * kSize * kSize * static_cast<double>(kSize) / best_seconds * 1e-9;
}

struct ReadMeter::Data {
  PeakLoops<float> loops;
  int threads;
  std::size_t share;  // number of floats per thread
  Buffer floats;
  float* part(int t) const { return floats.get() + static_cast<std::size_t>(t) * share; }
};

ReadMeter::ReadMeter(const std::string& isa, int threads) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  const std::size_t share = kBytes / sizeof(float) / threads / kReadBlock * kReadBlock;
  data_ = std::make_unique<Data>(Data{peak_loops<float>(isa), threads, share, allocate_floats(share * threads)});
  // Each thread writes its part of the buffer first, so that the system places the pages near it (NUMA first touch).
  run_concurrently(threads, [this](int t) {
    std::fill_n(data_->part(t), data_->share, 1.0F);
    return 0.0;
  });
}

ReadMeter::~ReadMeter() = default;

double ReadMeter::pass() {
  const Data& d = *data_;
  const double seconds = run_concurrently(d.threads, [&d](int t) { return d.loops.read(d.part(t), d.share); });
  return static_cast<double>(d.share * sizeof(float)) * d.threads / seconds * 1e-9;
}

double read_gbps(const std::string& isa, int threads) {
  constexpr int kPasses = 20;
  ReadMeter meter(isa, threads);
  double best = 0.0;
  for (int pass = 0; pass < kPasses; ++pass) best = std::max(best, meter.pass());
  return best;
}

}  // namespace headgate::bench
