// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/cases.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headgate::bench {
namespace {

BenchGroup named(const std::vector<std::string>& names, std::vector<BenchRatio> ratios) {
  BenchGroup group;
  for (const std::string& name : names) group.cases.push_back({name, {}, 0, {}});
  group.ratios = std::move(ratios);
  return group;
}

TEST(Cases, Selection_BothCasesOfARatio_KeepsTheRatio) {
  const std::vector<BenchGroup> groups = {named({"x", "a1", "a2"}, {{1, 0, 0.5}, {2, 1, 0.75}}), named({"y"}, {})};
  const auto kept = select_cases(groups, [](const std::string& name) { return name[0] == 'a'; });
  ASSERT_EQ(kept.size(), 1U);
  ASSERT_EQ(kept[0].cases.size(), 2U);
  EXPECT_EQ(kept[0].cases[0].name, "a1");
  EXPECT_EQ(kept[0].cases[1].name, "a2");
  ASSERT_EQ(kept[0].ratios.size(), 1U);
  EXPECT_EQ(kept[0].ratios[0].numerator, 1U);
  EXPECT_EQ(kept[0].ratios[0].denominator, 0U);
  EXPECT_EQ(kept[0].ratios[0].floor, 0.75);
}

TEST(Cases, Case_WholeName_IsFound) {
  const std::vector<BenchGroup> groups = bench_groups(2);
  for (const BenchGroup& group : groups) {
    for (const BenchCase& bench_case : group.cases) EXPECT_EQ(find_case(groups, bench_case.name), &bench_case);
  }
  EXPECT_EQ(find_case(groups, "forward"), nullptr);
}

TEST(Cases, Cases_OneThread_LeaveTwoThreadsOut) {
  EXPECT_NE(find_case(bench_groups(2), "one-head/forward/threads-2"), nullptr);
  EXPECT_EQ(find_case(bench_groups(1), "one-head/forward/threads-2"), nullptr);
}

}  // namespace
}  // namespace headgate::bench
