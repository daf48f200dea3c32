// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "models/data/prose.hpp"
#include "models/io/scratch.hpp"
#include "tool/cli/small_verbs.hpp"
#include "verify/gated_norm_case.hpp"
#include "verify/linear_attention_spec.hpp"
#include "verify/short_convolution_case.hpp"
#include "verify/spec.hpp"

namespace headgate {
namespace {

using headgate::testing::expect_refused;
using headgate::testing::Outcome;

TEST(Demo, Demo_OutputDiffersFromThePublishedOne_Fails) {
  const testing::Scratch scratch;
  const std::filesystem::path examples = scratch / "examples";
  std::filesystem::copy(HEADGATE_EXAMPLES, examples);
  std::filesystem::copy_file(examples / "gated_two_mixed_tokens.json", examples / "gated_two_tokens.json",
                             std::filesystem::copy_options::overwrite_existing);
  const Outcome outcome = testing::headgate({"demo", "--examples", examples.string()});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.out.find("NOT the published output to 4 decimals: step by step different, the kernels different"),
            std::string::npos)
      << outcome.out;
  EXPECT_EQ(outcome.out.find("A layer of real size"), std::string::npos);
}

TEST(Demo, Problem_Missing_IsNamed) {
  expect_refused(testing::headgate({"demo", "--examples", "/nonexistent"}), "demo",
                 "/nonexistent/gated_two_tokens.json");
  const testing::Scratch scratch;
  const std::string text = scratch / "text", out = scratch / "out";
  testing::write_bytes(text, std::string(20000, 'a'));
  expect_refused(testing::headgate({"demo", "--examples", "/nonexistent", "--data", text, "--out", out}), "demo",
                 "/nonexistent/gated_two_tokens.json");
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(Demo, Problems_DirectoryMissing_SaysWhereTheyShouldBe) {
  const testing::Scratch scratch;  // copied without the worked problems
  std::filesystem::create_directory(scratch / "bin");
  const std::string tool = scratch / "bin/headgate";
  std::filesystem::copy_file(testing::headgate_path(), tool);
  expect_refused(testing::run_program({tool, "demo"}), "demo",
                 "the worked problems are not in " + (scratch / "share/headgate/examples"));
}

TEST(Demo, Part_Chosen_IsShownAlone) {  // also finds the worked problems from any folder
  const Outcome outcome = testing::headgate({"demo", "--only", "worked"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("Worked problems"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("A layer of real size"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("0.3349 0.1651 | 0.1651 0.3349"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("all as published"), std::string::npos) << outcome.out;
  expect_refused(testing::headgate({"demo", "--only", "text"}), "demo", "--only text needs --data");
  expect_refused(testing::headgate({"demo", "--only", "model"}), "demo", "--only model needs --model");
  expect_refused(testing::headgate({"demo", "--only", "poetry"}), "demo", "poetry");
}

TEST(Demo, Option_NoPartUsesIt_IsRefused) {
  const testing::Scratch scratch;
  const std::string text = scratch / "text", out = scratch / "out";
  testing::write_bytes(text, std::string(20000, 'a'));
  const auto refused = [](std::vector<std::string> options, const std::string& reason) {
    options.insert(options.begin(), "demo");
    expect_refused(testing::headgate(options), "demo", reason);
  };
  refused({"--only", "worked", "--data", text}, "--data: none of the parts that are shown uses it");
  refused({"--only", "layer", "--data", text}, "--data: none of the parts that are shown uses it");
  refused({"--only", "worked", "--include", "*.txt"}, "--include requires --data");
  refused({"--only", "text", "--data", text, "--include", "*.txt"}, "--include selects files below a directory");
  refused({"--only", "text", "--data", text, "--out", out}, "--out: none of the parts that are shown uses it");
  refused({"--only", "worked", "--out", out}, "--out: none of the parts that are shown uses it");
  refused({"--from", "backcopy", "--data", text, "--model", text}, "--model: none of the parts that are shown uses it");
  refused({"--only", "layer", "--examples", HEADGATE_EXAMPLES}, "--examples: none of the parts that are shown uses it");
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(Demo, Part_ToBeginWith_LeavesOutThoseBeforeIt) {
  const Outcome outcome = testing::headgate({"demo", "--from", "backcopy"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "\n\n--data PATH adds two trainings: one on attention sinks, one on a text.\n");
  expect_refused(testing::headgate({"demo", "--from", "text", "--only", "worked"}), "demo", "--only");
  expect_refused(testing::headgate({"demo", "--from", "poetry"}), "demo", "poetry");
}

TEST(Demo, WorkedProblems_ByThemselves_AreThoseOfTheDemo) {
  const Outcome alone = testing::run_program({HEADGATE_WORKED_PROBLEMS, HEADGATE_EXAMPLES});
  EXPECT_EQ(alone.status, 0) << alone.err;
  EXPECT_EQ(alone.out, testing::headgate({"demo", "--only", "worked", "--examples", HEADGATE_EXAMPLES}).out);
  EXPECT_EQ(testing::run_program({HEADGATE_WORKED_PROBLEMS, "/nonexistent"}).status, 2);
}

TEST(Demo, Text_Bad_IsRefusedBeforeAnythingIsShown) {
  const testing::Scratch scratch;
  const std::string text = scratch / "text";
  const auto refuses = [&](const std::string& bytes, const std::string& reason) {
    testing::write_bytes(text, bytes);
    expect_refused(testing::headgate({"demo", "--data", text, "--examples", HEADGATE_EXAMPLES}), "demo", reason);
  };
  refuses("", "no text, only empty files");
  refuses("a", "bytes");
  refuses("a short text", "the text has 12 bytes but two sequences, one of them held out, take 514");
  refuses("bytes \xff\xfe of no text", "not UTF-8 text: byte 0xff at offset 6");
  expect_refused(testing::headgate({"demo", "--data", scratch / "none"}), "demo", "none: cannot read");
  expect_refused(testing::headgate({"demo", "--data", ""}), "demo", "--data: empty");
}

TEST(Demo, Training_Interrupted_SaysSo) {
  const testing::Scratch scratch;
  testing::write_bytes(scratch / "text", testing::prose(4000));
  const std::string script = "cd " + scratch.path() + " && " + testing::headgate_path() +
                             " demo --only backcopy --data text >out 2>err & demo=$!\n"
                             "while kill -0 $demo && ! grep -q 'Training without' " +
                             (scratch / "out") +
                             "; do sleep 0.1; done 2>/dev/null\n"
                             "kill -TERM $demo; wait $demo";
  EXPECT_EQ(testing::run_program({"/bin/sh", "-c", script}).status, 128 + SIGTERM);
  EXPECT_EQ(testing::read_bytes(scratch / "err"), "headgate demo: interrupted\n");
}

TEST(Demo, Xray_OfAModel_IsShown) {
  const testing::TrainVerb verb;
  ASSERT_EQ(verb.train("run", {"--gate", "headwise"}).status, 0);
  const auto demo = [&](const std::string& model, std::vector<std::string> more) {
    more.insert(more.begin(), {"demo", "--only", "model", "--model", verb.path(model)});
    return testing::headgate(more);
  };
  const Outcome shown = demo("run", {"--data", verb.text(), "--out", verb.path("pages/of/demo")});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_NE(shown.out.find("run: No sinks"), std::string::npos) << shown.out;
  const std::string page = testing::read_bytes(verb.path("pages/of/demo/real-model.html"));
  EXPECT_NE(page.find("<!doctype html>"), std::string::npos) << page.substr(0, 80);
  expect_refused(demo("run", {}), "demo", "--model needs --data");
  expect_refused(demo("none", {"--data", verb.text()}), "demo", "none");
  expect_refused(demo("run", {"--data", verb.text(), "--out", verb.text() + "/pages"}), "demo", "--out");
}

// The lists on every target are the matter of tests/library and tests/verify.
TEST(Verify, Seconds_FewerThanTheListsTake_EndTheRun) {
  const std::size_t listed = verify::standard_cases().size() + verify::standard_linear_cases().size() +
                             verify::standard_convolution_cases().size() + verify::standard_norm_cases().size();
  const Outcome outcome = testing::headgate({"verify", "--seconds", "0"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "") << "no progress bar without a terminal";
  EXPECT_NE(outcome.out.find("\n4 problems, forward, backward and statistics, agree"), std::string::npos)
      << "one of each operation: " << outcome.out;
  for (const std::string operation :
       {"attention         ", "linear attention  ", "short convolution ", "gated norm        "}) {
    EXPECT_NE(outcome.out.find("  " + operation + "forward "), std::string::npos) << outcome.out;
  }
  const std::string left_out = std::to_string(listed - 4) + " listed problems were left out: the time was up\n";
  EXPECT_NE(outcome.out.find(left_out), std::string::npos) << outcome.out;
}

TEST(Verify, Problems_Given_ArePlanned) {
  const Outcome outcome = testing::run_program(
      {"/usr/bin/timeout", "5", testing::headgate_path(), "verify", "--problems", "2", "--seed", "3486"});
  EXPECT_NE(outcome.out.find("listed, then 2 random ones of each from seed 3486\n"), std::string::npos) << outcome.out;
}

TEST(Verify, Verify_TimeOrCount_IsAccepted) {
  expect_refused(testing::headgate({"verify", "--problems", "2", "--seconds", "1"}), "verify", "--problems");
  expect_refused(testing::headgate({"verify", "--problems", "-1"}), "verify",
                 "--problems: must be a whole number from 0 to 1000000000, got -1");
  expect_refused(testing::headgate({"verify", "--problems", "many"}), "verify", "--problems");
}

}  // namespace
}  // namespace headgate
