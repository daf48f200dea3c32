// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

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

/// A Call's options name the target and the backend: unknown ones are refused by name.
template <class Call>
void expect_target_and_backend_are_used() {
  const Call call;
  auto options = call.c_options();
  options.target = "avx9";
  EXPECT_EQ(call.forward_by_c(&options), HEADGATE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headgate_last_error()).find("options.target is 'avx9' but must be one of "), std::string::npos)
      << headgate_last_error();
  options.target = "";
  options.backend = "abacus";
  EXPECT_EQ(call.forward_by_c(&options), HEADGATE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headgate_last_error()).find("options.backend is 'abacus' but must be one of cpu"),
            std::string::npos)
      << headgate_last_error();
}

}  // namespace headgate::testing
