// SPDX-License-Identifier: Apache-2.0
#include "library/attention/backend.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "headgate/runtime.hpp"
#include "library/attention/sample_call.hpp"

namespace headgate::testing {
namespace {

void not_run(const ForwardProblem& /*problem*/) { FAIL(); }
void not_run(const BackwardProblem& /*problem*/) { FAIL(); }
void not_run(const StatisticsProblem& /*problem*/) { FAIL(); }

const char* declines_softcap(const Problem& problem) { return problem.softcap != 0.0 ? "it has no softcap" : nullptr; }
const char* declines_windows(const Problem& problem) {
  return problem.window_left >= 0 ? "it has no windows" : nullptr;
}

constexpr Backend kFirst{"first", declines_softcap, not_run, not_run, not_run};
constexpr Backend kSecond{"second", declines_windows, not_run, not_run, not_run};
constexpr std::array<const Backend*, 2> kList{&kFirst, &kSecond};

std::string refusal(const Backend* forced, const Problem& problem) {
  try {
    choose_backend(kList, forced, problem);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ChooseBackend, Choice_SeveralBackends_IsTheFirstThatDoesNotDecline) {
  Problem problem;
  EXPECT_EQ(&choose_backend(kList, nullptr, problem), &kFirst);
  problem.softcap = 2.0;
  EXPECT_EQ(&choose_backend(kList, nullptr, problem), &kSecond);
}

TEST(ChooseBackend, Choice_EveryBackendDeclines_GivesTheReasons) {
  Problem problem;
  problem.softcap = 2.0;
  problem.window_left = 3;
  EXPECT_EQ(refusal(nullptr, problem), "backend first: it has no softcap; backend second: it has no windows");
}

TEST(ChooseBackend, ForcedBackend_SuitsOrDeclines_IsTakenOrRefused) {
  Problem problem;
  EXPECT_EQ(&choose_backend(kList, &kSecond, problem), &kSecond);
  problem.window_left = 3;
  EXPECT_EQ(refusal(&kSecond, problem), "backend second: it has no windows");
}

TEST(Backends, ForceBackend_KnownName_IsActive) {
  ASSERT_FALSE(supported_backends().empty());
  EXPECT_EQ(supported_backends().back(), "cpu");
  for (const std::string& name : supported_backends()) {
    set_backend(name);
    SampleCall call;
    const auto before = call.snapshot();
    call.forward();
    EXPECT_FALSE(call.unchanged_since(before)) << name;
  }
  set_backend("");
}

TEST(Backends, Context_NamesABackend_ItsCallUsesIt) {
  Problem problem;
  problem.context.backend = &kSecond;
  EXPECT_EQ(&choose_backend(kList, nullptr, problem), &kSecond);
  EXPECT_EQ(&choose_backend(kList, &kFirst, problem), &kSecond);
  problem.window_left = 3;
  EXPECT_EQ(refusal(&kFirst, problem), "backend second: it has no windows");

  SampleCall call;
  call.options.context.backend = &find_backend("cpu");
  const auto before = call.snapshot();
  call.forward();
  EXPECT_FALSE(call.unchanged_since(before));
  EXPECT_THROW((void)find_backend("abacus"), Error);
}

TEST(Backends, ForceBackend_UnknownName_ListsTheKnownOnes) {
  try {
    set_backend("abacus");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "set_backend names backend 'abacus', but this build has: cpu");
  }
}

}  // namespace
}  // namespace headgate::testing
