// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/plan.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace headgate::demo {
namespace {

using Steps = std::vector<std::int64_t>;

const ComparisonCost kCheap{2000, 600, 0.04, 1.0};  // 81 s
const ComparisonCost kDear{240, 60, 0.5, 5.0};      // 125 s

TEST(DemoPlan, Steps_TimeSuffices_AreThoseWanted) {
  EXPECT_EQ(plan_steps({kCheap, kDear}, 206.0), (Steps{2000, 240}));
  EXPECT_EQ(plan_steps({kCheap, kDear}, 1e9), (Steps{2000, 240}));
  EXPECT_EQ(plan_steps({}, 10.0), Steps{});
}

TEST(DemoPlan, Steps_TimeShort_AreCutAlikeInAllComparisons) {
  EXPECT_EQ(plan_steps({kCheap, kDear}, 106.0), (Steps{1000, 120}));
  EXPECT_EQ(plan_steps({kDear}, 65.0), (Steps{120}));
}

TEST(DemoPlan, Plan_AnyTime_FitsIt) {
  for (double seconds = 60.0; seconds < 250.0; seconds += 7.0) {
    const Steps steps = plan_steps({kCheap, kDear}, seconds);
    EXPECT_LE(planned_seconds(kCheap, steps[0]) + planned_seconds(kDear, steps[1]), seconds + 1e-9) << seconds;
  }
}

TEST(DemoPlan, Steps_OneComparisonAtItsLeast_AreTakenFromTheOthers) {
  const ComparisonCost at_least{1000, 900, 0.1, 0.0};
  // 90 s are taken, and 35 s less 5 s are left: a quarter of kDear's 120 s.
  EXPECT_EQ(plan_steps({at_least, kDear}, 125.0), (Steps{900, 60}));
  EXPECT_EQ(plan_steps({at_least, kDear}, 155.0), (Steps{900, 120}));
  EXPECT_EQ(plan_steps({kDear, at_least}, 155.0), (Steps{120, 900}));
}

TEST(DemoPlan, Steps_TooLittleTime_AreTheLeast) {
  EXPECT_EQ(plan_steps({kCheap, kDear}, 0.0), (Steps{600, 60}));
  EXPECT_EQ(plan_steps({kCheap, kDear}, -50.0), (Steps{600, 60}));
  const ComparisonCost short_one{10, 600, 1.0, 0.0};
  EXPECT_EQ(plan_steps({short_one}, 0.0), (Steps{10})) << "never more than wanted";
}

TEST(DemoPlan, RemainingTime_AfterSomeSteps_IsPredictedFromThem) {
  EXPECT_DOUBLE_EQ(seconds_left(100.0, 0.0, 0.0), 100.0);
  EXPECT_DOUBLE_EQ(seconds_left(100.0, 20.0, 40.0), 160.0);
  EXPECT_DOUBLE_EQ(seconds_left(100.0, 50.0, 25.0), 25.0);
  EXPECT_DOUBLE_EQ(seconds_left(100.0, 100.0, 140.0), 0.0);
  EXPECT_DOUBLE_EQ(seconds_left(100.0, 101.0, 140.0), 0.0);
}

}  // namespace
}  // namespace headgate::demo
