// SPDX-License-Identifier: Apache-2.0
#include "models/train/spikes.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace headgate::train {
namespace {

/// Returns a loss that varies by a hundredth.
double calm(int i) { return 2.0 + 0.01 * std::sin(i); }

TEST(Spikes, Spike_SeveralHighLosses_CountsOnce) {
  SpikeCounter counter;
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(counter.add(calm(i)));
  EXPECT_TRUE(counter.add(3.0));
  EXPECT_FALSE(counter.add(calm(51)));
  EXPECT_EQ(counter.count(), 1);
  for (int i = 0; i < 200; ++i) counter.add(calm(i));
  EXPECT_TRUE(counter.add(3.0));
  EXPECT_FALSE(counter.add(5.0)) << "still the same spike";
  EXPECT_EQ(counter.count(), 2);
}

TEST(Spikes, Loss_Usual_IsNoSpike) {
  SpikeCounter falling;
  for (int i = 0; i < 300; ++i) EXPECT_FALSE(falling.add(5.0 - 0.01 * i));
  SpikeCounter early;
  for (int i = 0; i < 10; ++i) early.add(2.0);
  EXPECT_FALSE(early.add(9.0)) << "too few losses to know what is usual";
  SpikeCounter flat;
  for (int i = 0; i < 50; ++i) flat.add(2.0);
  EXPECT_FALSE(flat.add(2.05)) << "below a tenth of a nat";
  EXPECT_EQ(falling.count() + early.count() + flat.count(), 0);
}

TEST(Spikes, Detector_Restored_Continues) {
  SpikeCounter whole, first, second;
  const auto loss = [](int i) { return i % 70 == 69 ? 4.0 + i : calm(i); };
  for (int i = 0; i < 140; ++i) {
    whole.add(loss(i));
    first.add(loss(i));
  }
  second.restore(first.window(), first.count(), first.inside());
  for (int i = 140; i < 400; ++i) ASSERT_EQ(second.add(loss(i)), whole.add(loss(i))) << i;
  EXPECT_EQ(second.count(), whole.count());
  EXPECT_GT(whole.count(), 2);
}

}  // namespace
}  // namespace headgate::train
