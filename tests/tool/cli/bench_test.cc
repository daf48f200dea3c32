// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "models/io/scratch.hpp"
#include "tool/cli/tool.hpp"

// Checks what bench reports, but not how fast anything is.

namespace headgate {
namespace {

using headgate::testing::expect_refused;
using headgate::testing::Outcome;
using nlohmann::json;

/// Returns the report of a quick run of the cases that `filter` matches.
json bench(const std::string& filter) {
  const testing::Scratch scratch;
  const std::string path = scratch / "bench.json";
  const Outcome outcome = testing::headgate({"bench", "--quick", "--filter", filter, "--json-out", path});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("goals met"), std::string::npos) << outcome.out;
  return json::parse(testing::read_bytes(path));
}

/// Returns the FLOPs that a case must have counted, from its time and rate.
double counted_flops(const json& bench_case) {
  return bench_case.at("gflops").get<double>() * 1e6 * bench_case.at("ms_median").get<double>();
}

TEST(Bench, Report_OneCase_NamesTheMachineAndTheCase) {
  const json report = bench("^forward/T512/D64$");
  const json& machine = report.at("machine");
  EXPECT_EQ(machine.at("isa"), active_target());
  EXPECT_NE(machine.at("cpu"), "");
  EXPECT_EQ(machine.at("threads"), default_threads());
  for (const char* rate : {"fma_peak_gflops", "sgemm_gflops", "read_gbps"}) {
    EXPECT_GT(machine.at(rate).get<double>(), 0.0) << rate;
  }
  ASSERT_EQ(report.at("cases").size(), 1U);
  const json& c = report.at("cases")[0];
  const json expected = {{"name", "forward/T512/D64"},
                         {"op", "forward"},
                         {"B", 1},
                         {"Hq", 8},
                         {"Hkv", 8},
                         {"T", 512},
                         {"S", 512},
                         {"D", 64},
                         {"Dv", 64},
                         {"dtype", "f32"},
                         {"causal", false},
                         {"gate", "elementwise"}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(c.at(key), value) << key;
  EXPECT_NEAR(c.at("fraction_of_peak").get<double>(),
              c.at("gflops").get<double>() / c.at("fma_peak_gflops").get<double>(), 1e-9);
}

TEST(Bench, Report_MaskedCase_CountsTheFlopsOfVisiblePairs) {
  const json report = bench("^(forward|backward)/causal/D64$");
  ASSERT_EQ(report.at("cases").size(), 2U);
  const double forward = 2.0 * (2048.0 * 2049.0 / 2.0) * (64 + 64) * 8;
  EXPECT_NEAR(counted_flops(report.at("cases")[0]), forward, 1e-6 * forward);
  EXPECT_NEAR(counted_flops(report.at("cases")[1]), 2.5 * forward, 2.5e-6 * forward);
}

TEST(Bench, Training_OneCase_StepsAWholeModel) {
  const json report = bench("^train/1M/T256$");
  ASSERT_EQ(report.at("cases").size(), 1U);
  const json& c = report.at("cases")[0];
  const json expected = {{"op", "train"},  {"B", 16},        {"T", 256},      {"Hq", 4},
                         {"dtype", "f32"}, {"causal", true}, {"layers", 4},   {"dim", 128},
                         {"vocab", 256},   {"tokens", 4096}, {"floor", 0.45}, {"gate", "g1-elementwise-sigmoid-mul"}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(c.at(key), value) << key;
  // All of a layer except its norms is matrices: q, gate, k, v and W_o, and three of the MLP.
  const double ffn = c.at("ffn").get<double>();
  const double matrices = 4 * (5 * 128.0 * 128.0 + 3 * 128.0 * ffn) + 256 * 128.0;
  const double norms = 4 * (2 * 128.0 + 2 * 32.0) + 128.0;
  EXPECT_EQ(c.at("parameters").get<double>(), matrices + norms);
  const double attention = 4 * 128.0 * 2.0 * 16 * (256.0 * 257.0 / 2.0);
  const double flops = 6.0 * (matrices * 4096 + attention);
  EXPECT_NEAR(counted_flops(c), flops, 1e-6 * flops);
}

TEST(Bench, Case_OnDemand_Runs) {
  const Outcome outcome = testing::run_program(
      {"/bin/sh", "-c", "printf '\\n\\n' | \"$0\" bench --threads 2 --on-demand one-head/forward/threads-1",
       testing::headgate_path()});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::string first;
  std::getline(lines, first);
  const json facts = json::parse(first);
  EXPECT_EQ(facts.at("name"), "one-head/forward/threads-1");
  EXPECT_EQ(facts.at("threads"), 1);
  EXPECT_EQ(facts.at("flops").get<double>(), 2.0 * 4096 * 4096 * (64 + 64));
  std::vector<double> seconds;
  for (double s = 0.0; lines >> s;) seconds.push_back(s);
  EXPECT_EQ(seconds.size(), 2U) << outcome.out;
  EXPECT_TRUE(lines.eof());
}

TEST(Bench, Ratios_FilteredCases_CompareThoseThatRan) {
  const json both = bench("^odd/forward/T");
  ASSERT_EQ(both.at("ratios").size(), 1U);
  EXPECT_EQ(both.at("ratios")[0].at("numerator"), "odd/forward/T1000");
  EXPECT_EQ(both.at("ratios")[0].at("denominator"), "odd/forward/T1024");
  EXPECT_EQ(bench("^odd/forward/T1000").at("ratios").size(), 0U);
}

TEST(Bench, Cases_Listed_HaveUniqueNames) {
  const Outcome outcome = testing::headgate({"bench", "--list", "--threads", "2"});
  EXPECT_EQ(outcome.status, 0);
  std::vector<std::string> names;
  for (std::size_t at = 0; at < outcome.out.size();) {
    const std::size_t end = outcome.out.find('\n', at);
    names.push_back(outcome.out.substr(at, end - at));
    at = end + 1;
  }
  const json listed = json::parse(testing::headgate({"bench", "--list", "--threads", "2", "--json"}).out);
  ASSERT_EQ(listed.at("cases").size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(listed.at("cases")[i].at("name"), names[i]);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  for (const char* name : {"forward/D256", "backward/causal/D128", "one-head/backward/threads-2", "memory/T32768/D64",
                           "train/1M/T256", "train/10M/T256/plain", "train/50M/T1024"}) {
    EXPECT_TRUE(std::binary_search(names.begin(), names.end(), name)) << name;
  }
}

TEST(Bench, Quick_WithRepeat_RunsAsOften) {
  const Outcome outcome = testing::headgate({"bench", "--quick", "--repeat", "5", "--min-time", "0", "--filter",
                                             "^small/forward/T16$", "--threads", "1", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out).at("cases").at(0).at("runs"), 5);
}

TEST(Bench, Options_Bad_AreRefused) {
  expect_refused(testing::headgate({"bench", "--filter", "(("}), "bench",
                 "--filter: \"((\" is not a regular expression");
  expect_refused(testing::headgate({"bench", "--filter", std::string(5000, '(')}), "bench", "5000 characters");
  expect_refused(testing::headgate({"bench", "--filter", "^nothing$"}), "bench", "no case matches");
  expect_refused(testing::headgate({"bench", "--on-demand", "train"}), "bench", "no case is named \"train\"");
  expect_refused(testing::headgate({"bench", "--threads", "0"}), "bench", "--threads");
  for (const char* measured : {"--quick", "--repeat=3", "--min-time=1"}) {
    expect_refused(testing::headgate({"bench", "--list", measured}), "bench", " excludes ");
    expect_refused(testing::headgate({"bench", "--on-demand", "convert", measured}), "bench", " excludes ");
  }
  for (const char* other : {"--filter=train", "--json", "--json-out=x.json", "--list"}) {
    expect_refused(testing::headgate({"bench", "--on-demand", "convert", other}), "bench", " excludes ");
  }
  expect_refused(testing::headgate({"bench", "--filter", "T512", "--json-out", "/nonexistent/x.json"}), "bench",
                 "/nonexistent/x.json: cannot write");
}

}  // namespace
}  // namespace headgate
