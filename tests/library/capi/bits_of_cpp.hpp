// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "headgate/headgate.h"

namespace headgate::testing {

/// Both passes of a Call(setting …), on random tensors, write the same in C as in C++, and write something.
/// forward(call) and backward(call) are those of C++.
template <class Call, class Forward, class Backward, class... Setting>
void expect_bits_of_cpp(const Forward& forward, const Backward& backward, Setting... setting) {
  const Call cpp(setting...), c(setting...), before(setting...);
  forward(cpp);
  ASSERT_EQ(c.forward_by_c(), HEADGATE_OK) << headgate_last_error();
  EXPECT_EQ(c.memory(), cpp.memory());
  EXPECT_NE(c.memory(), before.memory());
  const auto between = c.memory();
  backward(cpp);
  ASSERT_EQ(c.backward_by_c(), HEADGATE_OK) << headgate_last_error();
  EXPECT_EQ(c.memory(), cpp.memory());
  EXPECT_NE(c.memory(), between);
}

}  // namespace headgate::testing
