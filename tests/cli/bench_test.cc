// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/tool.hpp"
#include "headgate/runtime.hpp"
#include "io/scratch.hpp"

// What bench reports, never how fast anything is.

namespace headgate {
namespace {

using headgate::testing::expect_refused;
using headgate::testing::Outcome;
using nlohmann::json;

/// The report of a quick run of the cases that `filter` names.
json bench(const std::string& filter) {
  const testing::Scratch scratch;
  const std::string path = scratch / "bench.json";
  const Outcome outcome = testing::headgate({"bench", "--quick", "--filter", filter, "--json", path});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("goals met"), std::string::npos) << outcome.out;
  return json::parse(testing::read_bytes(path));
}

/// FLOPs that a case must have counted, from its time and rate.
double counted_flops(const json& bench_case) {
  return bench_case.at("gflops").get<double>() * 1e6 * bench_case.at("ms_median").get<double>();
}

TEST(Bench, ReportsTheMachineAndACase) {
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

TEST(Bench, CountsTheFlopsOfVisiblePairs) {
  const json report = bench("^(forward|backward)/causal/D64$");
  ASSERT_EQ(report.at("cases").size(), 2U);
  const double forward = 2.0 * (2048.0 * 2049.0 / 2.0) * (64 + 64) * 8;
  EXPECT_NEAR(counted_flops(report.at("cases")[0]), forward, 1e-6 * forward);
  EXPECT_NEAR(counted_flops(report.at("cases")[1]), 2.5 * forward, 2.5e-6 * forward);
}

TEST(Bench, ComparesOnlyWhatTheFilterLeaves) {
  const json both = bench("^odd/forward/T");
  ASSERT_EQ(both.at("ratios").size(), 1U);
  EXPECT_EQ(both.at("ratios")[0].at("numerator"), "odd/forward/T1000");
  EXPECT_EQ(both.at("ratios")[0].at("denominator"), "odd/forward/T1024");
  EXPECT_EQ(bench("^odd/forward/T1000").at("ratios").size(), 0U);
}

TEST(Bench, NamesItsCasesOnce) {
  const Outcome outcome = testing::headgate({"bench", "--list", "--threads", "2"});
  EXPECT_EQ(outcome.status, 0);
  std::vector<std::string> names;
  for (std::size_t at = 0; at < outcome.out.size();) {
    const std::size_t end = outcome.out.find('\n', at);
    names.push_back(outcome.out.substr(at, end - at));
    at = end + 1;
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  for (const char* name :
       {"forward/D256", "backward/causal/D128", "one-head/backward/threads-2", "memory/T32768/D64"}) {
    EXPECT_TRUE(std::binary_search(names.begin(), names.end(), name)) << name;
  }
}

TEST(Bench, RefusesWhatItCannotDo) {
  expect_refused(testing::headgate({"bench", "--filter", "(("}), "bench",
                 "--filter: \"((\" is not a regular expression");
  expect_refused(testing::headgate({"bench", "--filter", std::string(5000, '(')}), "bench", "5000 characters");
  expect_refused(testing::headgate({"bench", "--filter", "^nothing$"}), "bench", "no case matches");
  expect_refused(testing::headgate({"bench", "--threads", "0"}), "bench", "--threads");
  expect_refused(testing::headgate({"bench", "--filter", "T512", "--json", "/nonexistent/x.json"}), "bench",
                 "/nonexistent/x.json: cannot write");
}

}  // namespace
}  // namespace headgate
