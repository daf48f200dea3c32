// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "headgate/attention.hpp"
#include "library/attention/sample_call.hpp"

namespace headgate::testing {

/// A change that makes a sample call invalid.
struct BadCall {
  std::string name;
  std::function<void(SampleCall&)> spoil;
  std::vector<std::string> said;  // fragments of the message
};

inline std::ostream& operator<<(std::ostream& out, const BadCall& bad) { return out << bad.name; }

inline std::string test_name(const ::testing::TestParamInfo<BadCall>& info) { return info.param.name; }

/// Expects that `run` throws one line that begins with the function's name and has all fragments `said`, and that it
/// writes nothing.
inline void expect_refused(const SampleCall& call, const std::string& function, const std::function<void()>& run,
                           const std::vector<std::string>& said) {
  const auto before = call.snapshot();
  try {
    run();
    ADD_FAILURE() << function << " accepted the call";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.rfind(function + ": ", 0), 0U) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& fragment : said) {
      EXPECT_NE(message.find(fragment), std::string::npos) << "\"" << fragment << "\" is not in: " << message;
    }
  }
  EXPECT_TRUE(call.unchanged_since(before)) << function << " wrote before it refused";
}

}  // namespace headgate::testing
