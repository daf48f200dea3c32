// SPDX-License-Identifier: Apache-2.0
#include "library/call/overlap.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "library/core/element.hpp"

namespace headgate::testing {
namespace {

constexpr std::int64_t kArena = 4096;

/// Marks the bytes of every element; returns true if one was marked already.
bool mark(const ConstTensorView& view, const char* base, std::vector<char>& marked) {
  bool seen = false;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(view.dtype));
  for (std::int64_t i0 = 0; i0 < view.shape[0]; ++i0) {
    for (std::int64_t i1 = 0; i1 < view.shape[1]; ++i1) {
      for (std::int64_t i2 = 0; i2 < view.shape[2]; ++i2) {
        for (std::int64_t i3 = 0; i3 < view.shape[3]; ++i3) {
          const std::int64_t at = static_cast<const char*>(view.data) - base + offset_of(view, i0, i1, i2, i3) * bytes;
          for (std::int64_t byte = at; byte < at + bytes; ++byte) {
            seen = seen || marked.at(static_cast<std::size_t>(byte)) != 0;
          }
        }
      }
    }
  }
  for (std::int64_t i0 = 0; i0 < view.shape[0]; ++i0) {
    for (std::int64_t i1 = 0; i1 < view.shape[1]; ++i1) {
      for (std::int64_t i2 = 0; i2 < view.shape[2]; ++i2) {
        for (std::int64_t i3 = 0; i3 < view.shape[3]; ++i3) {
          const std::int64_t at = static_cast<const char*>(view.data) - base + offset_of(view, i0, i1, i2, i3) * bytes;
          std::fill_n(marked.begin() + at, bytes, char{1});
        }
      }
    }
  }
  return seen;
}

/// Marks each element in turn; returns true if one meets a byte of one before it.
bool mark_one_by_one(const ConstTensorView& view, const char* base, std::vector<char>& marked) {
  bool met = false;
  for (std::int64_t n = 0; n < view.numel(); ++n) {
    ConstTensorView element = view;
    std::int64_t rest = n, offset = 0;
    for (std::size_t d = 4; d-- > 0; rest /= view.shape[d]) offset += rest % view.shape[d] * view.strides[d];
    element.shape = {1, 1, 1, 1};
    element.data = static_cast<const char*>(view.data) + offset * static_cast<std::int64_t>(dtype_bytes(view.dtype));
    if (mark(element, base, marked)) met = true;
  }
  return met;
}

template <typename Random>
ConstTensorView random_view(const char* arena, Random& random) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  constexpr std::array kTypes{DType::boolean, DType::f16, DType::f32, DType::f64};
  ConstTensorView view;
  view.dtype = kTypes[static_cast<std::size_t>(pick(0, 3))];
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(view.dtype));
  for (std::size_t d = 0; d < 4; ++d) {
    view.shape[d] = pick(0, 19) == 0 ? 0 : pick(1, 4);
    view.strides[d] = pick(-30, 30);
  }
  view.data = arena + kArena / 2 + pick(-32, 32) * bytes;
  return view;
}

TEST(ProvablyOverlap, Overlap_RandomViews_AgreesWithMarkedBytes) {
  const std::vector<char> arena(static_cast<std::size_t>(2 * kArena));
  std::mt19937 random(20261121);
  int shared = 0;
  for (int run = 0; run < 5000; ++run) {
    const ConstTensorView a = random_view(arena.data() + kArena / 2, random);
    const ConstTensorView b = random_view(arena.data() + kArena / 2, random);
    std::vector<char> marked(arena.size());
    mark(a, arena.data(), marked);
    const bool overlap = mark(b, arena.data(), marked);
    shared += overlap ? 1 : 0;
    ASSERT_EQ(provably_overlap(a, b), overlap) << "run " << run;
    ASSERT_EQ(provably_overlap(b, a), overlap) << "run " << run;
  }
  EXPECT_GT(shared, 500);
  EXPECT_LT(shared, 4500);
}

TEST(ElementsOverlap, Overlap_RandomViews_AgreesWithMarkedBytes) {
  const std::vector<char> arena(static_cast<std::size_t>(2 * kArena));
  std::mt19937 random(20261128);
  int overlapping = 0, apart = 0;
  for (int run = 0; run < 20000; ++run) {
    const ConstTensorView view = random_view(arena.data() + kArena / 2, random);
    std::vector<char> marked(arena.size());
    const bool overlap = mark_one_by_one(view, arena.data(), marked);
    (overlap ? overlapping : apart) += 1;
    ASSERT_EQ(elements_overlap(view), overlap) << "run " << run;
  }
  EXPECT_GT(overlapping, 2000);
  EXPECT_GT(apart, 2000);
}

TEST(ElementsOverlap, Overlap_StridesThatDoNotNest_IsExact) {
  std::vector<float> memory(1);  // never read
  const auto view = [&](const Shape& shape, const Shape& strides) { return make_view(memory.data(), shape, strides); };
  EXPECT_FALSE(elements_overlap(view({1, 1, 3, 2}, {1, 1, 10, 16})));
  EXPECT_FALSE(elements_overlap(view({1, 1, 3, 2}, {1, 1, -10, 16})));
  EXPECT_TRUE(elements_overlap(view({1, 1, 9, 6}, {1, 1, 10, 16})));  // 8 · 10 = 5 · 16
  EXPECT_FALSE(elements_overlap(view({1, 1, 8, 6}, {1, 1, 10, 16})));
  EXPECT_TRUE(elements_overlap(view({1, 2, 2, 2}, {1, 3, 5, 8})));  // 3 + 5 = 8
  EXPECT_TRUE(elements_overlap(view({1, 1, 2, 1}, {1, 1, 0, 1})));
  EXPECT_FALSE(elements_overlap(view({1, 1, 1000, 1000}, {1, 1, 1001, 1000})));
}

TEST(ProvablyOverlap, Overlap_InterleavedOrShiftedSlots_TellsThemApart) {
  // (B,T,slot,H,D) memory viewed as (B,H,T,D) per slot, too large to compare all pairs of elements.
  constexpr std::int64_t B = 8, T = 4096, H = 16, D = 64, W = 4 * H * D;
  std::vector<float> memory(1);  // never read
  const auto slot = [&](std::int64_t element) {
    return make_view(memory.data() + element, {B, H, T, D}, {T * W, D, W, 1});
  };
  for (std::int64_t n = 1; n < 4; ++n) {
    EXPECT_FALSE(provably_overlap(slot(0), slot(n * H * D)));
    EXPECT_TRUE(provably_overlap(slot(0), slot(n * H * D - 1 - (n - 1) * H * D)));
    EXPECT_TRUE(provably_overlap(slot(3 * H * D), slot(3 * H * D + W * T / 2)));
  }
  auto wide = slot(0);
  wide.dtype = DType::f64;  // elements of 8 bytes on a grid of 4: past the end of the slot by the factor 2
  for (std::int64_t& stride : wide.strides) stride /= 2;
  wide.strides[3] = 1;
  EXPECT_TRUE(provably_overlap(wide, slot(H * D)));
}

TEST(ProvablyOverlap, Overlap_EmptyViews_IsFalse) {
  float x = 0;
  EXPECT_TRUE(provably_overlap(make_vector_view(&x, 1), make_vector_view(&x, 1)));
  EXPECT_FALSE(provably_overlap(make_vector_view(&x, 0), make_vector_view(&x, 1)));
}

}  // namespace
}  // namespace headgate::testing
