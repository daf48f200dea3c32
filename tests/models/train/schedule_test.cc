// SPDX-License-Identifier: Apache-2.0
#include "models/train/schedule.hpp"

#include <gtest/gtest.h>

#include "headgate/error.hpp"

namespace headgate::train {
namespace {

constexpr Schedule kCosine{Decay::cosine, 2.0, 0.1, 10, 110};

TEST(Schedule, LearningRate_WarmUp_RisesLinearly) {
  EXPECT_DOUBLE_EQ(learning_rate(kCosine, 1), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(kCosine, 5), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(kCosine, 10), 2.0);
}

TEST(Schedule, LearningRate_AfterWarmUp_DecaysToItsFloor) {
  EXPECT_DOUBLE_EQ(learning_rate(kCosine, 60), 2.0 * (0.1 + 0.9 * 0.5));  // cos(π/2) = 0
  EXPECT_DOUBLE_EQ(learning_rate(kCosine, 110), 0.2);
  Schedule linear = kCosine;
  linear.decay = Decay::linear;
  EXPECT_DOUBLE_EQ(learning_rate(linear, 35), 2.0 * (1.0 - 0.9 * 0.25));
  EXPECT_DOUBLE_EQ(learning_rate(linear, 110), 0.2);
  Schedule constant = kCosine;
  constant.decay = Decay::constant;
  EXPECT_EQ(learning_rate(constant, 110), 2.0);
}

TEST(Schedule, LearningRate_NoneOrOnlyWarmUp_IsDefined) {
  EXPECT_DOUBLE_EQ(learning_rate({Decay::linear, 1.0, 0.0, 0, 4}, 1), 0.75);
  EXPECT_DOUBLE_EQ(learning_rate({Decay::cosine, 1.0, 0.0, 4, 4}, 4), 1.0);
}

TEST(Schedule, Schedule_EachName_RoundTrips) {
  for (const Decay decay : {Decay::cosine, Decay::linear, Decay::constant}) {
    EXPECT_EQ(parse_word<Decay>("schedule", word_of(decay)), decay);
  }
  EXPECT_THROW(parse_word<Decay>("schedule", "exponential"), Error);
}

}  // namespace
}  // namespace headgate::train
