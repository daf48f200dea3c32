// SPDX-License-Identifier: Apache-2.0
#include "library/core/workspace.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <new>
#include <vector>

namespace headgate {
namespace {

constexpr std::int64_t kAlign = Block::kAlign_bytes;

struct Buffers {
  Buffers(Workspace& ws, std::int64_t rows, bool with_mask) {
    scores = ws.take<float>("scores", rows, 33);
    sums = ws.take<double>("sums", rows);
    if (with_mask) mask = ws.take<std::uint8_t>("mask", rows, 2, 5);
  }
  View<float, 2> scores;
  View<double, 1> sums;
  View<std::uint8_t, 3> mask;
};

TEST(Workspace, Workspace_CountedThenPlaced_TakesTheSameBytes) {
  const Placed<Buffers> placed(std::int64_t{7}, true);
  EXPECT_EQ(placed.bytes() % Block::kAlign_bytes, 0U);
  EXPECT_EQ(placed->scores.shape, (std::array<std::int64_t, 2>{7, 33}));
  EXPECT_TRUE(placed->scores.dense());
  for (const void* data : {static_cast<const void*>(placed->scores.data), static_cast<const void*>(placed->sums.data),
                           static_cast<const void*>(placed->mask.data)}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % kAlign, 0U);
  }
  // No two buffers share a byte, and the last ends within the memory.
  EXPECT_GE(reinterpret_cast<std::byte*>(placed->sums.data),
            reinterpret_cast<std::byte*>(placed->scores.data + 7 * 33));
  EXPECT_GE(reinterpret_cast<std::byte*>(placed->mask.data), reinterpret_cast<std::byte*>(placed->sums.data + 7));
  EXPECT_LE(reinterpret_cast<std::byte*>(placed->mask.data + 70),
            reinterpret_cast<std::byte*>(placed->scores.data) + placed.bytes());
}

TEST(Workspace, Buffer_NotTaken_IsAbsent) {
  const Placed<Buffers> placed(std::int64_t{3}, false);
  EXPECT_TRUE(placed->sums.present());
  EXPECT_FALSE(placed->mask.present());
}

TEST(Workspace, Items_SameName_AddUp) {
  std::vector<WorkspaceItem> items;
  Workspace count(&items);
  count.take<float>("a", 1);
  count.take<float>("b", kAlign, 2);
  const View<float, 1> second = count.take<float>("a", 1);
  EXPECT_FALSE(second.present());
  ASSERT_EQ(items.size(), 2U);
  EXPECT_EQ(items[0].name, "a");
  EXPECT_EQ(items[0].bytes, 2U * kAlign);
  EXPECT_EQ(items[1].bytes, 8U * kAlign);
  EXPECT_EQ(count.bytes(), 10U * kAlign);
}

TEST(Workspace, Sizes_Overflow_ThrowBadAlloc) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  Workspace count;
  EXPECT_THROW((count.take<float>("a", kHuge)), std::bad_alloc);
  EXPECT_THROW((count.take<std::uint8_t>("a", kHuge)), std::bad_alloc);
  EXPECT_THROW((count.take<std::uint8_t>("a", kHuge / 2, 3)), std::bad_alloc);
  count.take<std::uint8_t>("a", kHuge / 2);
  count.take<std::uint8_t>("a", kHuge / 4);
  EXPECT_THROW((count.take<std::uint8_t>("a", kHuge / 2)), std::bad_alloc);
}

}  // namespace
}  // namespace headgate
