// SPDX-License-Identifier: Apache-2.0
// Checks that a forced vector target is the one that runs.

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include "library/attention/property.hpp"

namespace headgate {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

TEST(Targets, SupportedTargets_ThisCpu_AreCompiledAndTheBestIsTheDefault) {
  const TargetGuard guard;
  const std::vector<std::string> supported = supported_targets();
  ASSERT_FALSE(supported.empty());
  for (const std::string& name : supported) EXPECT_TRUE(contains(compiled_targets(), name)) << name;
  if (std::getenv("HEADGATE_ISA") == nullptr) {
    set_target("");
    EXPECT_EQ(active_target(), supported.front());
  }
}

/// CMake's choice for HEADGATE_VECTOR_TARGETS=native, which a build for another target does not have.
TEST(Targets, NativeTarget_ChosenByCMake_IsTheBestOfThisCpu) {
  const std::string best = supported_targets().front();
  const bool has_name = best == "avx3" || best == "avx2";
  const std::string native = HEADGATE_NATIVE_TARGET;
  EXPECT_TRUE(native == (has_name ? best : "all") || !contains(compiled_targets(), native)) << native << ", " << best;
}

TEST(Targets, SetTarget_SupportedTarget_IsActive) {
  const TargetGuard guard;
  for (const std::string& name : supported_targets()) {
    set_target(name);
    EXPECT_EQ(active_target(), name);
  }
}

TEST(Targets, SetTarget_UnknownTarget_IsRefusedAndChangesNothing) {
  const TargetGuard guard;
  const std::string last = supported_targets().back();
  set_target(last);
  try {
    set_target("avx9");
    FAIL() << "avx9 was taken";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("avx9"), std::string::npos) << message;
    EXPECT_NE(message.find(last), std::string::npos) << message;
  }
  EXPECT_EQ(active_target(), last);
}

/// Uses few queries, whose scores are sums over the lanes of a vector: targets differ in the number of lanes or,
/// without fused multiply-add, in rounding.
verify::CaseSpec summed_over_lanes() {
  verify::CaseSpec spec;
  spec.T = 8;
  spec.S = spec.D = spec.Dv = 64;
  return spec;
}

/// Returns the bytes of one forward pass on `target`.
std::vector<std::uint8_t> forward_bits(const std::string& target) {
  set_target(target);
  verify::Case problem(summed_over_lanes());
  attention_forward(problem.outputs(), problem.inputs(), problem.options());
  return problem.output_bytes();
}

/// Returns whether a target has vectors of four floats without fused multiply-add; such targets may agree bitwise.
bool adds_four_lanes_unfused(const std::string& target) { return target == "sse4" || target == "emu128"; }

TEST(Targets, EachTarget_Set_RunsItsOwnCode) {
  const TargetGuard guard;
  const std::vector<std::string> supported = supported_targets();
  std::vector<std::vector<std::uint8_t>> bits;
  bits.reserve(supported.size());
  for (const std::string& name : supported) bits.push_back(forward_bits(name));
  for (std::size_t a = 0; a < supported.size(); ++a) {
    EXPECT_EQ(bits[a], forward_bits(supported[a])) << supported[a] << " twice";
    for (std::size_t b = 0; b < a; ++b) {
      if (adds_four_lanes_unfused(supported[a]) && adds_four_lanes_unfused(supported[b])) continue;
      EXPECT_NE(bits[a], bits[b]) << supported[a] << " and " << supported[b];
    }
  }
}

TEST(Targets, Context_NamesATarget_ItsCallUsesIt) {
  const TargetGuard guard;
  verify::Case problem(summed_over_lanes());
  for (const std::string& name : supported_targets()) {
    const std::vector<std::uint8_t> expected = forward_bits(name);
    set_target("");
    problem.options().context.target = find_target(name);
    attention_forward(problem.outputs(), problem.inputs(), problem.options());
    EXPECT_EQ(problem.output_bytes(), expected) << name;
  }
  EXPECT_THROW((void)find_target("avx9"), Error);
  std::int64_t every = 0;
  for (const std::string& name : supported_targets()) every |= find_target(name);
  for (const std::int64_t target : {std::int64_t{-1}, every | 1, std::int64_t{1}}) {
    problem.options().context.target = target;
    EXPECT_THROW(attention_forward(problem.outputs(), problem.inputs(), problem.options()), Error) << target;
  }
}

/// Runs this program again with HEADGATE_ISA = `isa` and only the probe below. Returns what it prints.
std::string probe_with_isa(const std::string& isa) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      "HEADGATE_ISA='" + isa + "' " HEADGATE_EMULATOR " '" + self + "' --gtest_filter=Probe.* 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  std::string text;
  std::array<char, 256> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) text += buffer.data();
  pclose(pipe);
  const std::string mark = "probe: ";
  const std::size_t begin = text.find(mark);
  if (begin == std::string::npos) return text;
  const std::size_t from = begin + mark.size();
  return text.substr(from, text.find('\n', from) - from);
}

/// Child process of the tests below. Alone, it checks that the environment variable, if set, is honoured.
TEST(Probe, ActiveTarget_Asked_IsPrinted) {
  std::string answer;
  try {
    verify::CaseSpec spec;
    verify::Case problem(spec);
    attention_forward(problem.outputs(), problem.inputs(), problem.options());
    answer = active_target();
  } catch (const Error& error) {
    answer = error.what();
  }
  std::printf("probe: %s\n", answer.c_str());
  const char* isa = std::getenv("HEADGATE_ISA");
  if (isa != nullptr && contains(supported_targets(), isa)) {
    EXPECT_EQ(answer, isa);
  }
}

TEST(Targets, Environment_NamesATarget_ForcesIt) {
  for (const std::string& name : supported_targets()) EXPECT_EQ(probe_with_isa(name), name);
  EXPECT_EQ(probe_with_isa(""), supported_targets().front());
}

TEST(Targets, Environment_NamesNoTarget_IsAnError) {
  const std::string answer = probe_with_isa("mmx");
  EXPECT_NE(answer.find("HEADGATE_ISA"), std::string::npos) << answer;
  EXPECT_NE(answer.find("'mmx'"), std::string::npos) << answer;
}

}  // namespace
}  // namespace headgate
