// SPDX-License-Identifier: Apache-2.0
#include "library/core/element.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "library/core/check.hpp"

namespace headgate::testing {
namespace {

TEST(Element, Load_EachDType_ReadsItsValue) {
  const float f32[] = {0.0F, -1.5F};
  const double f64[] = {0.0, 1e300};
  const BFloat16 bf16[] = {{0}, {0xC020}};
  const Float16 f16[] = {{0}, {0x3555}};
  const std::uint8_t boolean[] = {0, 2};
  const std::int32_t i32[] = {0, -7};
  const std::int64_t i64[] = {0, std::int64_t{1} << 40};
  EXPECT_EQ(load_element(f32, DType::f32, 1), -1.5);
  EXPECT_EQ(load_element(f64, DType::f64, 1), 1e300);
  EXPECT_EQ(load_element(bf16, DType::bf16, 1), -2.5);
  EXPECT_EQ(load_element(f16, DType::f16, 1), 0.333251953125);
  EXPECT_EQ(load_element(boolean, DType::boolean, 1), 1.0);
  EXPECT_EQ(load_element(i32, DType::i32, 1), -7.0);
  EXPECT_EQ(load_element(i64, DType::i64, 1), 1099511627776.0);
}

TEST(Element, Store_EachFloatingDType_WritesItsValue) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    std::vector<double> memory(2);
    store_element(memory.data(), dtype, 1, -2.5);
    EXPECT_EQ(load_element(memory.data(), dtype, 1), -2.5) << dtype_name(dtype);
    EXPECT_EQ(load_element(memory.data(), dtype, 0), 0.0) << dtype_name(dtype);
  }
}

TEST(Element, Offset_AnyStrides_FollowsThem) {
  std::vector<float> memory(2 * 3 * 4 * 5);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const auto plain = make_view(memory.data(), {2, 3, 4, 5});
  EXPECT_EQ(load(plain, 1, 2, 3, 4), 119.0);
  EXPECT_EQ(load(plain, 0, 1, 2, 3), 33.0);
  const auto swapped = make_view(memory.data(), {2, 4, 3, 5}, {60, 5, 20, 1});
  EXPECT_EQ(load(swapped, 0, 2, 1, 3), 33.0);
  auto reversed = make_view(memory.data() + 119, {1, 1, 1, 120}, {0, 0, 0, -1});
  EXPECT_EQ(load(reversed, 0, 0, 0, 119), 0.0);
  store(reversed, 0, 0, 0, 1, 7.0);
  EXPECT_EQ(memory[118], 7.0F);
}

TEST(Element, Broadcast_DimensionOfOne_HasStrideZero) {
  const float row[] = {1.0F, 2.0F};
  const ConstTensorView wide = broadcast_to(make_view(row, {1, 2, 1, 1}), {3, 2, 4, 1});
  EXPECT_EQ(wide.shape, (Shape{3, 2, 4, 1}));
  EXPECT_EQ(wide.strides, (Shape{0, 1, 0, 1}));
  EXPECT_EQ(load(wide, 2, 1, 3, 0), 2.0);
  const ConstTensorView empty = broadcast_to(make_view(row, {1, 2, 1, 1}), {0, 2, 1, 1});
  EXPECT_EQ(empty.numel(), 0);
}

TEST(Check, Require_FalseCondition_ThrowsTheFormattedLine) {
  EXPECT_NO_THROW(require(true, "{}", 1));
  try {
    require(false, "k has shape {}", shape_text({1, 2, 8, -64}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "k has shape (1,2,8,-64)");
  }
}

}  // namespace
}  // namespace headgate::testing
