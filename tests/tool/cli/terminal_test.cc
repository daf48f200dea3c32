// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/terminal.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tool/cli/small_verbs.hpp"
#include "tool/cli/tool.hpp"
#include "tool/console/status_line.hpp"

// Tests what slow verbs show on terminals of several widths.

namespace headgate {
namespace {

using testing::run_on_terminal;
using testing::Screen;

constexpr int kWidths[] = {40, 80, 120};

std::vector<std::string> tool(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), testing::headgate_path());
  return arguments;
}

/// Expects lines that fit in `columns` and contain all of `words`.
void expect_frames(const Screen& screen, int columns, const std::vector<std::string>& words) {
  EXPECT_EQ(screen.status, 0) << screen.output;
  ASSERT_FALSE(screen.frames.empty()) << screen.output;
  for (const std::string& frame : screen.frames) {
    EXPECT_LT(console::columns_of(frame), static_cast<std::size_t>(columns)) << frame;
  }
  const std::string& last = screen.frames.back();
  for (const std::string& word : words) EXPECT_NE(last.find(word), std::string::npos) << columns << ": " << last;
}

class TerminalTest : public ::testing::Test {
 protected:
  /// A run whose path takes 70 columns or more.
  std::string long_run() const {
    std::string name = "a-directory-with-a-name-of-some-length/and-another-one-below-it/the-run";
    std::filesystem::create_directories(verb.path(name));
    EXPECT_EQ(verb.train(name, {"--steps", "1"}).status, 0);
    return name;
  }

  testing::TrainVerb verb;
};

TEST_F(TerminalTest, Train_AnyWidth_ShowsTimeLeftAndRate) {
  for (const int columns : kWidths) {
    const std::string run = "run" + std::to_string(columns);
    const Screen screen = run_on_terminal(columns, tool(verb.command(run, {"--steps", "2000", "--seq-len", "8"})));
    expect_frames(screen, columns, {"%", " left", " tok/s"});
    if (columns >= 80) expect_frames(screen, columns, {"[", "/2000", "loss "});
    if (columns >= 120) expect_frames(screen, columns, {"lr ", "|g| "});
  }
}

TEST_F(TerminalTest, Eval_AnyWidth_ShowsTimeLeftAndTheEndOfThePath) {
  const std::string run = verb.path(long_run());
  for (const int columns : kWidths) {
    const Screen screen =
        run_on_terminal(columns, tool({"eval", run, "--text", verb.text(), "--batch", "1", "--seq-len", "8"}));
    expect_frames(screen, columns, {"%", " left", "…", "run"});
    if (columns >= 80) expect_frames(screen, columns, {"[", "evaluating /", "the-run"});
  }
}

TEST_F(TerminalTest, Xray_AnyWidth_ShowsTimeLeftAndTheEndOfThePath) {
  const std::string run = verb.path(long_run());
  for (const int columns : kWidths) {
    const Screen screen = run_on_terminal(
        columns, tool({"xray", run, "--text", verb.text(), "--override", "heads", "--out", verb.path("page.html")}));
    expect_frames(screen, columns, {"%", "…", "run"});
  }
}

TEST_F(TerminalTest, Convert_AnyWidth_ShowsItsProgress) {
  const std::string run = verb.path(long_run());
  for (const int columns : kWidths) {
    const Screen screen =
        run_on_terminal(columns, tool({"convert", run + "/checkpoint", run + "-out" + std::to_string(columns)}));
    expect_frames(screen, columns, {"%", "…"});
  }
  const std::string plain = testing::headgate({"convert", run + "/checkpoint", verb.path("out")}).err;
  EXPECT_EQ(plain.find('%'), std::string::npos) << "no terminal: " << plain;
}

TEST_F(TerminalTest, Compare_AnyWidth_ShowsItsProgress) {
  const std::string run = verb.path(long_run());
  for (const int columns : kWidths) {
    const Screen screen = run_on_terminal(columns, tool({"compare", run, run, "--out", verb.path("compared.html")}));
    expect_frames(screen, columns, {"%", "…"});
    if (columns >= 80) expect_frames(screen, columns, {"reading /", "metrics.jsonl"});
  }
}

TEST_F(TerminalTest, Eval_VerboseCalls_ShowsNoProgress) {
  ASSERT_EQ(verb.train("run", {"--steps", "1"}).status, 0);
  const std::vector<std::string> eval = tool({"eval", verb.path("run"), "--text", verb.text(), "--batch", "1"});
  expect_frames(run_on_terminal(80, eval, {"HEADGATE_VERBOSE=0"}), 80, {"evaluating "});
  const Screen screen = run_on_terminal(80, eval, {"HEADGATE_VERBOSE=1"});
  EXPECT_EQ(screen.status, 0) << screen.output;
  EXPECT_NE(screen.output.find("headgate: attention_forward"), std::string::npos) << screen.output;
  EXPECT_EQ(screen.output.find("evaluating "), std::string::npos) << screen.output;
}

TEST_F(TerminalTest, Terminal_WithoutAWidth_UsesColumns) {
  ASSERT_EQ(verb.train("run", {"--steps", "1"}).status, 0);
  const std::vector<std::string> eval = tool({"eval", verb.path("run"), "--text", verb.text(), "--batch", "1"});
  expect_frames(run_on_terminal(0, eval, {"COLUMNS=36"}), 36, {" left"});
  expect_frames(run_on_terminal(0, eval, {"COLUMNS=wide"}), 80, {" left", "evaluating "});
  expect_frames(run_on_terminal(80, eval, {"COLUMNS=36"}), 80, {"evaluating "});
}

}  // namespace
}  // namespace headgate
