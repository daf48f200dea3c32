// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "tool/cli/tool.hpp"

namespace headgate {
namespace {

using headgate::testing::expect_refused;
using testing::Outcome;
using Json = nlohmann::json;

/// Runs `headgate doctor` where only the variables of `environment`, "NAME=VALUE", are set of those that it reads.
Outcome doctor(const std::vector<std::string>& environment, const std::vector<std::string>& options = {}) {
  std::vector<std::string> command{"/usr/bin/env", "-i"};
  command.insert(command.end(), environment.begin(), environment.end());
  command.insert(command.end(), {testing::headgate_path(), "doctor"});
  command.insert(command.end(), options.begin(), options.end());
  return testing::run_program(command);
}

Json doctor_json(const std::vector<std::string>& environment) {
  const Outcome outcome = doctor(environment, {"--json"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return Json::parse(outcome.out);
}

/// Returns whether a line of advice holds `text`.
bool advises(const Json& report, const std::string& text) {
  for (const std::string line : report["advice"]) {
    if (line.find(text) != std::string::npos) return true;
  }
  return false;
}

TEST(Doctor, Facts_OfThisMachine_AreThoseOfInfo) {
  const Json report = doctor_json({});
  const Json info =
      Json::parse(testing::run_program({"/usr/bin/env", "-i", testing::headgate_path(), "info", "--json"}).out);
  for (const auto& [key, value] : info.items()) EXPECT_EQ(report[key], value) << key;
  EXPECT_GE(report["cores"].get<int>(), 1);
  EXPECT_GT(report["memory_available"].get<double>(), 0.0);
  EXPECT_EQ(report["environment"], Json::object());
  EXPECT_FALSE(advises(report, "unset"));
  const Outcome lines = doctor({});
  EXPECT_NE(lines.out.find("\nmemory available   "), std::string::npos) << lines.out;
  EXPECT_NE(lines.out.find("\nenvironment        no variable that matters is set\n"), std::string::npos) << lines.out;
}

TEST(Doctor, Variables_ThatCostSpeed_AreNamedWithAdvice) {
  for (const char* setting : {"HEADGATE_VERBOSE=1", "OPENBLAS_CORETYPE=Haswell", "OMP_WAIT_POLICY=PASSIVE",
                              "OMP_DYNAMIC=true", "OMP_DYNAMIC=True", "ONEDNN_MAX_CPU_ISA=AVX2"}) {
    const std::string text = setting;
    const Json report = doctor_json({text});
    EXPECT_TRUE(advises(report, text)) << report["advice"];
    const std::string name = text.substr(0, text.find('='));
    EXPECT_EQ(report["environment"], Json({{name, text.substr(name.size() + 1)}}));
  }
  for (const char* setting : {"HEADGATE_VERBOSE=0", "HEADGATE_VERBOSE=", "OMP_WAIT_POLICY=ACTIVE", "OMP_DYNAMIC=false",
                              "OMP_PROC_BIND=true"}) {
    const std::string text = setting;
    EXPECT_FALSE(advises(doctor_json({text}), text.substr(0, text.find('=') + 1))) << text;
  }
}

TEST(Doctor, Build_WithoutTheBestTarget_IsAdvisedAgainst) {
  const std::vector<std::string> compiled = compiled_targets();
  const std::string native = HEADGATE_NATIVE_TARGET;
  const bool lacks = native != "all" && std::find(compiled.begin(), compiled.end(), native) == compiled.end();
  EXPECT_EQ(advises(doctor_json({}), "this build lacks " + native), lacks);
}

TEST(Doctor, Target_NotTheBest_IsAdvisedAgainst) {
  const std::vector<std::string> targets = supported_targets();
  EXPECT_FALSE(advises(doctor_json({"HEADGATE_ISA=" + targets.front()}), "HEADGATE_ISA"));
  if (targets.size() > 1) {
    EXPECT_TRUE(advises(doctor_json({"HEADGATE_ISA=" + targets.back()}), "keeps the kernels from " + targets.front()));
  }
  expect_refused(doctor({"HEADGATE_ISA=abacus"}), "doctor", "abacus");
}

TEST(Doctor, Threads_OtherThanCores_AreAdvisedAgainst) {
  const int cores = doctor_json({})["cores"];
  EXPECT_FALSE(advises(doctor_json({"OMP_NUM_THREADS=" + std::to_string(cores)}), "OMP_NUM_THREADS"));
  if (cores > 1) {
    EXPECT_TRUE(advises(doctor_json({"OMP_NUM_THREADS=1"}), "calls use 1 of"));
    const Outcome lines = doctor({"OMP_NUM_THREADS=1"});
    EXPECT_NE(lines.out.find("\nadvice             calls use 1 of "), std::string::npos) << lines.out;
  }
}

TEST(Doctor, Load_OfHalfTheCores_AdvisesShortWaits) {
  const Json report = doctor_json({});
  const double load = report["load"];
  const int cores = report["cores"];
  EXPECT_GE(load, 0.0);
  EXPECT_EQ(advises(report, "GOMP_SPINCOUNT=10000"), cores > 1 && load >= 0.5 * cores) << report;
  for (const char* setting : {"GOMP_SPINCOUNT=10000", "OMP_WAIT_POLICY=ACTIVE"}) {
    EXPECT_FALSE(advises(doctor_json({setting}), "threads that wait")) << setting;
  }
}

/// Returns the last number of turns that a thread of OpenMP spins, of those that libgomp prints as it starts.
std::string spin_count(const std::vector<std::string>& settings, const std::vector<std::string>& command) {
  std::vector<std::string> all{"/usr/bin/env",           "-u", "GOMP_SPINCOUNT", "-u", "OMP_WAIT_POLICY",
                               "OMP_DISPLAY_ENV=VERBOSE"};
  all.insert(all.end(), settings.begin(), settings.end());
  all.push_back(testing::headgate_path());
  all.insert(all.end(), command.begin(), command.end());
  const std::string err = testing::run_program(all).err, name = "GOMP_SPINCOUNT = '";
  const std::size_t at = err.rfind(name);
  return at == std::string::npos ? err
                                 : err.substr(at + name.size(), err.find('\'', at + name.size()) - at - name.size());
}

TEST(Spinning, Verb_ThatRunsModels_SpinsLess) {
  const std::vector<std::string> eval{"eval", "no-model", "--text", "no-text"};
  if (spin_count({}, {"info"}).size() > 10) GTEST_SKIP() << "OpenMP here is not GCC's";
  EXPECT_EQ(spin_count({}, eval), "10000");
  EXPECT_NE(spin_count({}, {"info"}), "10000") << "a verb without a model is not started twice";
  EXPECT_EQ(spin_count({"GOMP_SPINCOUNT=77"}, eval), "77") << "the user has decided";
  EXPECT_NE(spin_count({"OMP_WAIT_POLICY=ACTIVE"}, eval), "10000");
}

}  // namespace
}  // namespace headgate
