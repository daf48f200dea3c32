// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "tool/cli/listed_options.hpp"
#include "tool/cli/tool.hpp"

// Checks what holds for the options of every verb.

namespace headgate {
namespace {

using headgate::testing::expect_refused;
using headgate::testing::Outcome;

using testing::listed_options;
using testing::listed_verbs;
using testing::ListedOption;

TEST(EveryOption, Option_GivenTwice_IsAccepted) {
  std::size_t seen = 0;
  for (const std::string& verb : listed_verbs()) {
    for (const ListedOption& option : listed_options(verb)) {
      ++seen;
      const auto complaint = [&](int times) {
        std::vector<std::string> command = {verb};
        for (int i = 0; i < times; ++i) {
          command.push_back(option.name);
          if (option.has_value) command.emplace_back("1");
        }
        command.emplace_back("--no-such-option");
        return testing::headgate(command).err;
      };
      EXPECT_EQ(complaint(2), complaint(1)) << verb << " " << option.name;
    }
  }
  EXPECT_GE(listed_verbs().size(), 8U);
  EXPECT_GE(seen, 80U) << "the options were not found in the help";
}

TEST(EveryOption, Option_WithoutItsValue_IsNamed) {
  std::size_t seen = 0;
  for (const std::string& verb : listed_verbs()) {
    for (const ListedOption& option : listed_options(verb)) {
      if (!option.has_value) continue;
      ++seen;
      expect_refused(testing::headgate({verb, option.name}), verb,
                     ": " + option.name + " needs a value (see headgate ");
    }
  }
  EXPECT_GE(seen, 80U);
}

TEST(EveryOption, Option_SeveralValues_TheLastCounts) {
  const Outcome none = testing::headgate({"bench", "--list", "--filter", "no case", "--filter", "memory"});
  EXPECT_EQ(none.status, 0) << none.err;
  expect_refused(testing::headgate({"bench", "--list", "--filter", "memory", "--filter", "no case"}), "bench",
                 "no case matches \"no case\"");
}

TEST(EveryOption, Threads_TooMany_AreRefusedInEveryVerb) {
  const std::string one_more = std::to_string(max_threads() + 1);
  int seen = 0;
  for (const std::string& verb : listed_verbs()) {
    const std::vector<ListedOption> options = listed_options(verb);
    if (std::none_of(options.begin(), options.end(), [](const ListedOption& o) { return o.name == "--threads"; }))
      continue;
    ++seen;
    for (const std::string& number : {one_more, std::string("99999999999999999999")}) {
      expect_refused(testing::headgate({verb, "--threads", number}), verb, "at most " + std::to_string(max_threads()));
    }
    for (const char* number : {"0", "-1", "two", "1.5", ""}) {
      expect_refused(testing::headgate({verb, std::string("--threads=") + number}), verb, "--threads");
    }
  }
  EXPECT_GE(seen, 5);
}

TEST(EveryOption, ThreadsOfTheEnvironment_TooMany_AreRefused) {
  const Outcome info = testing::run_program({"/usr/bin/env", "OMP_NUM_THREADS=1000", testing::headgate_path(), "info"});
  EXPECT_EQ(info.status, 0);
  const std::regex line("threads +" + std::to_string(max_threads()) + "\\b");
  EXPECT_TRUE(std::regex_search(info.out, line)) << info.out;
}

}  // namespace
}  // namespace headgate
