// SPDX-License-Identifier: Apache-2.0
#include "library/core/arena.hpp"

#include <gtest/gtest.h>

#include <cstddef>

#include "support/allocations.hpp"

namespace headgate {
namespace {

constexpr std::size_t kSmall_bytes = 1000, kLarge_bytes = std::size_t{1} << 20;

class ArenaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!support::allocations_are_counted()) GTEST_SKIP() << "operator new belongs to the thread sanitizer";
    Arena::release();
  }
  void TearDown() override { Arena::release(); }

  /// How many blocks `call` allocates.
  template <class Call>
  static std::size_t allocated_by(const Call& call) {
    const std::size_t before = support::allocations();
    call();
    return support::allocations() - before;
  }
};

TEST_F(ArenaTest, NestedArenas_SecondCall_AllocatesNothing) {
  const auto call = [] {
    const Arena small(kSmall_bytes);
    const Arena large(kLarge_bytes);
    EXPECT_NE(small.data(), large.data());
  };
  EXPECT_EQ(allocated_by(call), 2U);
  EXPECT_EQ(allocated_by(call), 0U);
}

TEST_F(ArenaTest, SmallRequest_LargeBlockKept_LeavesItToTheNext) {
  { const Arena large(kLarge_bytes); }
  EXPECT_EQ(allocated_by([] {
              const Arena small(kSmall_bytes);
              const Arena large(kLarge_bytes);
            }),
            1U);
}

TEST_F(ArenaTest, Request_OfAnEighthOfABlock_TakesIt) {
  { const Arena large(kLarge_bytes); }
  EXPECT_EQ(allocated_by([] { const Arena part(kLarge_bytes / 8); }), 0U);
}

TEST_F(ArenaTest, Blocks_BeyondTheLimit_AreFreed) {
  const auto call = [] {
    const Arena first(Arena::kKept_bytes / 2), second(Arena::kKept_bytes / 2), third(Arena::kKept_bytes / 2);
  };
  call();
  EXPECT_EQ(allocated_by(call), 1U);
  EXPECT_EQ(allocated_by([] { const Arena beyond(Arena::kKept_bytes + 1); }), 1U);
  EXPECT_EQ(allocated_by([] { const Arena beyond(Arena::kKept_bytes + 1); }), 1U);
}

TEST_F(ArenaTest, Release_BlocksKept_FreesAll) {
  const auto call = [] { const Arena small(kSmall_bytes), large(kLarge_bytes); };
  call();
  Arena::release();
  EXPECT_EQ(allocated_by(call), 2U);
}

}  // namespace
}  // namespace headgate
