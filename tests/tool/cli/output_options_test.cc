// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "models/data/prose.hpp"
#include "models/io/npy.hpp"
#include "tool/cli/listed_options.hpp"
#include "tool/cli/small_verbs.hpp"
#include "tool/cli/terminal.hpp"

// Walks the verbs: each takes --quiet, and --json or has a reason not to.

namespace headgate {
namespace {

using Json = nlohmann::json;
using testing::Outcome;
using Command = std::vector<std::string>;

/// Verbs whose output is for people or shells alone.
const std::map<std::string, std::string> kWithoutJson = {
    {"demo", "is a show: each part of it is a verb that has --json"},
    {"help", "prints what --help prints"},
    {"completion", "prints a script"},
};

bool takes(const std::string& verb, const std::string& name) {
  const auto options = testing::listed_options(verb);
  return std::any_of(options.begin(), options.end(), [&](const auto& option) { return option.name == name; });
}

class OutputOptions : public ::testing::Test {
 protected:
  OutputOptions() {
    EXPECT_EQ(verb.train("run", {"--steps", "2"}).status, 0);
    io::Array array = io::make_array(DType::f32, {3, 4});
    std::memset(array.data.get(), 0, array.bytes());
    io::NpyWriter writer;
    writer.add(path("x.npy"), array);
    writer.commit();
    testing::write_bytes(path("problem.json"), R"({"Q": [[1, 0]], "K": [[1, 0]], "V": [[2, 3]]})");
  }
  std::string path(const std::string& name) const { return verb.path(name); }

  /// Returns a command of each verb with --json that takes little time, the verb and --json left out.
  std::map<std::string, Command> cheap() const {
    const std::string run = path("run"), x = path("x.npy");
    const Command train = verb.command("new", {"--steps", "3"});
    return {
        {"explain", {path("problem.json")}},
        {"attend", {"--q", x, "--k", x, "--v", x, "--out", path("y.npy")}},
        {"linear", {"--q", x, "--k", x, "--v", x, "--rule", "linear", "--out", path("l.npy")}},
        {"train", {train.begin() + 1, train.end()}},
        {"eval", {run, "--text", verb.text()}},
        {"compare", {run}},
        {"xray", {run, "--text", verb.text(), "--tokens", "16"}},
        {"generate", {run, "--prompt", "it", "-n", "2", "-t", "1"}},
        {"convert", {run, path("converted")}},
        {"tokenize", {run, "--text", verb.text()}},
        {"verify", {"--problems", "0"}},
        {"bench", {"--quick", "--filter", "memory read$|convert.*bf16$|^rmsnorm"}},
        {"info", {}},
        {"man", {}},
        {"doctor", {}},
    };
  }

  testing::TrainVerb verb;
};

TEST_F(OutputOptions, Verb_Any_TakesQuietAndJsonOrHasAReason) {
  for (const std::string& name : testing::listed_verbs()) {
    EXPECT_TRUE(takes(name, "--quiet")) << name;
    EXPECT_NE(takes(name, "--json"), kWithoutJson.contains(name)) << name;
    EXPECT_TRUE(!takes(name, "--json") || cheap().contains(name)) << "a command of this test for " << name;
  }
}

TEST_F(OutputOptions, Json_OfEveryVerb_IsAllThatIsPrinted) {
  for (const auto& [name, options] : cheap()) {
    if (name == "verify" || name == "bench") continue;  // take tens of seconds
    Command command{name, "--json", "--quiet"};
    command.insert(command.end(), options.begin(), options.end());
    const Outcome outcome = testing::headgate(command);
    EXPECT_EQ(outcome.status, 0) << name << ": " << outcome.err;
    EXPECT_EQ(outcome.err, "") << name;
    if (name == "train") {  // JSON Lines
      std::istringstream lines(outcome.out);
      std::size_t steps = 0;
      for (std::string line; std::getline(lines, line);) EXPECT_EQ(Json::parse(line)["step"], ++steps);
      EXPECT_EQ(steps, 3U);
      EXPECT_EQ(outcome.out, testing::read_bytes(path("new/metrics.jsonl"))) << "the same figures";
    } else {
      EXPECT_TRUE(Json::accept(outcome.out)) << name << ": " << outcome.out;
    }
  }
  EXPECT_EQ(Json::parse(testing::headgate({"tokenize", "--train", "270", "--text", verb.text(), "--out", path("t.json"),
                                           "--json", "-q"})
                            .out)["ids"],
            270);
}

TEST_F(OutputOptions, WrittenArrays_InJson_HavePathTypeAndShape) {
  const std::string x = path("x.npy"), y = path("y.npy");
  const Outcome outcome = testing::headgate(
      {"attend", "--q", x, "--k", x, "--v", x, "--out", y, "--grad-out", x, "--grad-dir", path("grads"), "--json"});
  const Json written = Json::parse(outcome.out)["written"];
  ASSERT_EQ(written.size(), 4U);
  EXPECT_EQ(written[0], Json({{"path", y}, {"dtype", "f32"}, {"shape", {3, 4}}}));
  EXPECT_EQ(written[1]["path"], path("grads/dq.npy"));
}

TEST_F(OutputOptions, Quiet_InVerbsWithNotes_LeavesResultsAlone) {
  const Outcome train = verb.train("quiet", {"--quiet", "--steps", "3"});
  EXPECT_TRUE(train.out.starts_with("done    3 steps in ")) << train.out;
  EXPECT_EQ(train.err, "");
  EXPECT_EQ(testing::headgate({"convert", path("run"), path("c"), "-q"}).err, "");
  EXPECT_NE(testing::headgate({"convert", path("run"), path("c")}).err, "");
  const Outcome generated = testing::headgate({"generate", path("run"), "--prompt", "it", "-q", "--verbose"});
  EXPECT_NE(generated.err, "") << "--verbose asks for the figures";
}

TEST_F(OutputOptions, Progress_OnATerminal_IsOfSlowWorkAndNotQuiet) {
  Command eval{testing::headgate_path(), "eval", path("run"), "--text", verb.text(), "--batch", "1"};
  EXPECT_FALSE(testing::run_on_terminal(80, eval).frames.empty());
  EXPECT_TRUE(testing::run_on_terminal(80, eval, {"HEADGATE_PROGRESS_SECONDS=60"}).frames.empty());
  EXPECT_TRUE(testing::run_on_terminal(80, eval, {"TERM=dumb"}).frames.empty());
  eval.emplace_back("--quiet");
  EXPECT_TRUE(testing::run_on_terminal(80, eval).frames.empty());
}

TEST_F(OutputOptions, Progress_OfAnOperation_NamesItsStages) {
  io::Array array = io::make_array(DType::f32, {4, 2048, 64});
  std::memset(array.data.get(), 0, array.bytes());
  io::NpyWriter writer;
  writer.add(path("long.npy"), array);
  writer.commit();
  const std::string x = path("long.npy");
  Command attend{testing::headgate_path(), "attend", "--q", x, "--k", x, "--v", x, "--out", path("y.npy")};
  const std::vector<std::string> frames = testing::run_on_terminal(80, attend).frames;
  ASSERT_FALSE(frames.empty());
  for (const std::string& frame : frames) {
    EXPECT_TRUE(
        std::regex_match(frame, std::regex("[0-9]+:[0-9]{2}  (reading the arrays|forward pass|writing the results)")))
        << frame;
  }
  EXPECT_TRUE(testing::run_on_terminal(80, attend, {"HEADGATE_PROGRESS_SECONDS=60"}).frames.empty());
  attend.emplace_back("--quiet");
  EXPECT_TRUE(testing::run_on_terminal(80, attend).frames.empty());
}

TEST_F(OutputOptions, Colours_OnATerminal_AreLeftOutOnRequest) {
  const Command xray{testing::headgate_path(), "xray", path("run"), "--text", verb.text(), "--tokens", "16", "-q"};
  const auto coloured = [&](const std::vector<std::string>& environment) {
    return testing::run_on_terminal(80, xray, environment).output.find("\x1b[") != std::string::npos;
  };
  EXPECT_TRUE(coloured({"NO_COLOR="}));
  EXPECT_FALSE(coloured({"NO_COLOR=1"}));
  EXPECT_FALSE(coloured({"TERM=dumb"}));
}

TEST_F(OutputOptions, Progress_OfReadingAndTokenizing_NamesTheWork) {
  EXPECT_EQ(testing::headgate({"tokenize", "--train", "300", "--text", verb.text(), "--out", path("t.json")}).status,
            0);
  testing::write_bytes(path("more"), testing::prose(4000));
  Command train = verb.command("bpe", {"--tokenizer", path("t.json"), "--data", path("more"), "--steps", "1"});
  train.insert(train.begin(), testing::headgate_path());
  const auto shows = [](const testing::Screen& screen, const std::string& text) {
    return std::any_of(screen.frames.begin(), screen.frames.end(),
                       [&](const std::string& frame) { return frame.find(text) != std::string::npos; });
  };
  const testing::Screen tokenize = testing::run_on_terminal(100, train);
  EXPECT_TRUE(shows(tokenize, "tokenizing ")) << tokenize.output;
  const testing::Screen generate = testing::run_on_terminal(
      100, {testing::headgate_path(), "generate", path("run"), "--prompt", "it", "-n", "1", "-t", "1"});
  EXPECT_TRUE(shows(generate, "reading ")) << generate.output;
  const testing::Screen learn = testing::run_on_terminal(
      100, {testing::headgate_path(), "tokenize", "--train", "300", "--text", verb.text(), "--out", path("u.json")});
  EXPECT_TRUE(shows(learn, "learning merges")) << learn.output;
}

}  // namespace
}  // namespace headgate
