// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "cli/tool.hpp"
#include "io/scratch.hpp"

namespace headgate {
namespace {

using headgate::testing::expect_refused;
using headgate::testing::Outcome;

TEST(Demo, FailsWhenAnOutputIsNotThePublishedOne) {
  const testing::Scratch scratch;
  const std::filesystem::path examples = scratch / "examples";
  std::filesystem::copy(HEADGATE_EXAMPLES, examples);
  std::filesystem::copy_file(examples / "gated_two_mixed_tokens.json", examples / "gated_two_tokens.json",
                             std::filesystem::copy_options::overwrite_existing);
  const Outcome outcome = testing::headgate({"demo", "--examples", examples.string()});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.out.find("these steps DIFFER, the f32 kernels DIFFER"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("A layer of real size"), std::string::npos);
}

TEST(Demo, NamesAProblemThatIsMissing) {
  expect_refused(testing::headgate({"demo", "--examples", "/nonexistent"}), "demo",
                 "/nonexistent/gated_two_tokens.json");
}

TEST(Verify, AgreesWithTheOracleOnEveryTarget) {
  const Outcome outcome = testing::headgate({"verify", "--seconds", "0"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "") << "no progress bar without a terminal";
  EXPECT_NE(outcome.out.find("agree with the oracle"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace headgate
