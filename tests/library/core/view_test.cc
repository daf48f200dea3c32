// SPDX-License-Identifier: Apache-2.0
#include "library/core/view.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

namespace headgate {
namespace {

/// Memory holds 0, 1, 2, ….
class ViewTest : public testing::Test {
 protected:
  ViewTest() { std::iota(memory.begin(), memory.end(), 0); }
  std::array<int, 120> memory{};
};

TEST_F(ViewTest, DenseView_Elements_LieInRowMajorOrder) {
  const View<int, 3> view(memory.data(), {2, 3, 4});
  EXPECT_EQ(view.count(), 24);
  EXPECT_TRUE(view.dense());
  EXPECT_EQ(view(1, 2, 3), (1 * 3 + 2) * 4 + 3);
  EXPECT_EQ(view.at(1) - view.data, 12);
  EXPECT_EQ(view.at(1, 2) - view.data, 20);
}

TEST_F(ViewTest, View_AnyStrides_AddressesElementsByThem) {
  const View<int, 2> transposed(memory.data(), {4, 3}, {1, 4});
  EXPECT_EQ(transposed(3, 2), 2 * 4 + 3);
  EXPECT_FALSE(transposed.dense());
  EXPECT_TRUE((View<int, 2>(memory.data(), {1, 5}, {77, 1}).dense()));
}

TEST_F(ViewTest, View_LeadingIndices_HasTheOtherDimensions) {
  const View<int, 3> view(memory.data(), {2, 3, 4});
  const View<int, 2> second = view[1];
  EXPECT_EQ(second.shape, (std::array<std::int64_t, 2>{3, 4}));
  EXPECT_EQ(second(2, 1), view(1, 2, 1));
  const View<int, 1> row = view.sub(1, 2);
  EXPECT_EQ(row.shape, (std::array<std::int64_t, 1>{4}));
  EXPECT_EQ(&row(1), &view(1, 2, 1));
}

TEST_F(ViewTest, View_RangeOfADimension_KeepsItsStrides) {
  const View<int, 2> view(memory.data(), {10, 12});
  const View<int, 2> part = view.range(1, 4, 3).range(0, 2, 5);
  EXPECT_EQ(part.shape, (std::array<std::int64_t, 2>{5, 3}));
  EXPECT_EQ(part(1, 2), view(3, 6));
  EXPECT_FALSE(part.dense());
}

TEST_F(ViewTest, View_LastDimensionSplit_AddressesTheSameElements) {
  const View<int, 2> rows = View<int, 2>(memory.data(), {10, 12}).range(1, 2, 6);
  const View<int, 3> heads = rows.split_last(2, 3);
  EXPECT_EQ(heads.shape, (std::array<std::int64_t, 3>{10, 2, 3}));
  EXPECT_EQ(heads(4, 1, 2), rows(4, 5));
}

TEST_F(ViewTest, View_AnyDimensionSplit_AddressesTheSameElements) {
  const View<int, 2> rows = View<int, 2>(memory.data(), {10, 12}).range(0, 1, 6);
  const View<int, 3> sequences = rows.split(0, 2, 3);
  EXPECT_EQ(sequences.shape, (std::array<std::int64_t, 3>{2, 3, 12}));
  EXPECT_EQ(sequences(1, 2, 7), rows(5, 7));
}

TEST_F(ViewTest, DenseView_Flattened_IsOneRow) {
  const View<int, 2> rows(memory.data(), {10, 12});
  EXPECT_EQ(rows.flat().shape[0], 120);
  EXPECT_EQ(rows.flat()(13), rows(1, 1));
}

TEST_F(ViewTest, Vector_ReshapedToAnyShape_AddressesTheSameElements) {
  std::vector<int> elements(6, 1);
  view_of(elements, 2, 3)(1, 0) = 7;
  EXPECT_EQ(elements[3], 7);
  const std::vector<int>& read = elements;
  EXPECT_EQ(view_of(read, 6)(3), 7);
}

TEST_F(ViewTest, AbsentView_AnyOperation_StaysAbsent) {
  const View<int, 2> none;
  EXPECT_FALSE(none.present());
  EXPECT_FALSE((View<int, 2>(nullptr, {4, 6}).range(0, 1, 2).present()));
  EXPECT_FALSE((View<int, 2>(nullptr, {4, 6}).split_last(2, 3).present()));
}

TEST_F(ViewTest, View_ConstElements_ConvertsFromMutable) {
  const View<int, 1> view(memory.data(), {7});
  const View<const int, 1> read = view;
  EXPECT_EQ(&read(3), &view(3));
}

#ifndef NDEBUG
TEST_F(ViewTest, View_IndexOutOfRange_AbortsInDebugBuilds) {
  const View<int, 2> view(memory.data(), {2, 3});
  EXPECT_DEATH((void)view(0, 3), "");
  EXPECT_DEATH((void)view(-1, 0), "");
  EXPECT_DEATH((void)view.range(0, 1, 2), "");
}
#endif

}  // namespace
}  // namespace headgate
