// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "headgate/runtime.hpp"

namespace headgate::bench {
namespace {

/// Records its runs, which take so many milliseconds each.
class NotedJob : public BenchJob {
 public:
  NotedJob(char name, int milliseconds, int threads, std::string& runs)
      : name_(name), milliseconds_(milliseconds), threads_(threads), runs_(runs) {}
  void run() override {
    runs_ += name_;
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_));
  }
  double flops() const override { return 1e6; }
  DType compute_dtype() const override { return DType::f32; }
  nlohmann::ordered_json facts() const override { return {{"given", threads_}}; }

 private:
  char name_;
  int milliseconds_, threads_;
  std::string& runs_;
};

TEST(RunGroup, Cases_OfAGroup_AlternateAndCompareTheirRates) {
  std::string runs;
  const auto job = [&runs](char name, int milliseconds) {
    return [&runs, name, milliseconds](int threads) {
      return std::make_unique<NotedJob>(name, milliseconds, threads, runs);
    };
  };
  const BenchGroup group{{{"a", job('a', 10), 0, 0.25}, {"b", job('b', 20), 2, {}}}, {{1, 0, 0.5}}};
  BenchSettings settings;
  settings.threads = 1;
  settings.min_runs = 4;
  settings.min_seconds = 0.0;
  PeakMeters peaks(active_target());
  const GroupResult result = run_group(group, settings, peaks);

  EXPECT_EQ(runs, "aabbabbaabba");  // twice each to warm up, then two rounds in either direction
  ASSERT_EQ(result.cases.size(), 2U);
  EXPECT_EQ(result.cases[0].threads, 1);
  EXPECT_EQ(result.cases[1].threads, 2);
  EXPECT_EQ(result.cases[1].facts.at("given"), 2);
  EXPECT_EQ(result.cases[0].floor, 0.25);
  for (const CaseResult& c : result.cases) {
    EXPECT_EQ(c.runs, 4);
    EXPECT_GE(c.ms_median, c.ms_min);
    EXPECT_NEAR(c.gflops, 1.0 / c.ms_median, 1e-9);
    EXPECT_GT(c.fma_peak_gflops, 0.0);
  }
  ASSERT_EQ(result.ratios.size(), 1U);
  EXPECT_EQ(result.ratios[0].numerator, "b");
  EXPECT_EQ(result.ratios[0].denominator, "a");
  EXPECT_LT(result.ratios[0].value, 1.0);  // b sleeps for longer
}

TEST(RunGroup, ShortCalls_Timed_RunInARow) {
  std::string runs;
  const BenchGroup group{
      {{"s", [&runs](int threads) { return std::make_unique<NotedJob>('s', 1, threads, runs); }, 0, {}}}, {}};
  BenchSettings settings;
  settings.min_runs = 3;
  settings.min_seconds = 0.0;
  PeakMeters peaks(active_target());
  const CaseResult result = run_group(group, settings, peaks).cases.at(0);
  EXPECT_GE(result.calls, 1);  // usually 4; fewer if the machine sleeps for long
  EXPECT_LE(result.calls, 5);
  EXPECT_EQ(runs.size(), 2U + 3U * static_cast<std::size_t>(result.calls));
  EXPECT_GE(result.ms_min, 1.0);
}

/// Reads so many bytes, which may be cached.
class ReadingJob : public BenchJob {
 public:
  explicit ReadingJob(std::size_t bytes) : data_(bytes / sizeof(float), 1.0F) {}
  void run() override { sum_ = std::accumulate(data_.begin(), data_.end(), 0.0F); }
  double flops() const override { return static_cast<double>(data_.size()); }
  double read_bytes() const override { return static_cast<double>(data_.size() * sizeof(float)); }
  DType compute_dtype() const override { return DType::f32; }
  nlohmann::ordered_json facts() const override { return {{"sum", sum_}}; }

 private:
  std::vector<float> data_;
  float sum_ = 0.0F;
};

TEST(RunGroup, ReadingCalls_Timed_AreComparedWithAStreamingPass) {
  static constexpr std::size_t kBytes = 1 << 20;
  const BenchGroup group{{{"r", [](int) { return std::make_unique<ReadingJob>(kBytes); }, 1, {}}}, {}};
  BenchSettings settings;
  settings.min_runs = 5;
  settings.min_seconds = 0.0;
  PeakMeters peaks(active_target());
  const CaseResult result = run_group(group, settings, peaks).cases.at(0);
  EXPECT_EQ(result.calls, 1);
  EXPECT_EQ(result.read_gb, kBytes * 1e-9);
  const double of_medians = 1e3 * result.read_gb / result.read_gbps / result.ms_median;
  EXPECT_GT(result.fraction_of_read, 0.2 * of_medians);
  EXPECT_LT(result.fraction_of_read, 5.0 * of_medians);
  EXPECT_EQ(result.fraction_of_limit(), std::max(result.fraction_of_read, result.fraction_of_peak()));
}

TEST(RunGroup, SlowCase_Timed_WarmsUpOnceAndRunsAsOftenAsSlowCasesDo) {
  std::string runs;
  const BenchGroup group{
      {{"s", [&runs](int threads) { return std::make_unique<NotedJob>('s', 510, threads, runs); }, 0, {}}}, {}};
  BenchSettings settings;
  settings.min_slow_runs = 1;
  settings.min_seconds = 0.0;
  PeakMeters peaks(active_target());
  EXPECT_EQ(run_group(group, settings, peaks).cases.at(0).runs, 1);
  EXPECT_EQ(runs, "ss");
}

}  // namespace
}  // namespace headgate::bench
