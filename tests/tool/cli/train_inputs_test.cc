// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "tool/cli/small_verbs.hpp"

// Tests the inputs of `headgate train`: directories of data, threads and sizes.

namespace headgate {
namespace {

using nlohmann::json;
using testing::expect_refused;
using testing::Outcome;
using testing::TrainVerb;
using testing::write_bytes;

class InputsTest : public ::testing::Test {
 protected:
  InputsTest() {
    std::filesystem::create_directories(verb.path("data/deep"));
    write_bytes(verb.path("data/a.txt"), testing::prose(3000));
    write_bytes(verb.path("data/deep/b.md"), testing::prose(2000, 2));
  }

  json state(const std::string& run) const { return json::parse(verb.checkpoint_file(run, "trainer_state.json")); }

  /// Starts a run on `data` only.
  Outcome train(const std::string& run, const std::string& data, const std::vector<std::string>& more) const {
    std::vector<std::string> command = verb.command(run, more);
    *std::find(command.begin(), command.end(), verb.text()) = data;
    return testing::headgate(command);
  }

  static void expect_said(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
  }

  TrainVerb verb;
};

TEST_F(InputsTest, Run_InsideItsDataDirectory_ResumesByThePrintedCommand) {
  const std::string run = "data/run";
  const Outcome start = train(run, verb.path("data"), {"--stop-at", "3"});
  ASSERT_EQ(start.status, 0) << start.err;
  expect_said(start.err, "headgate train --resume --out " + verb.path(run));
  expect_said(start.out, "5000 bytes in 2 files");
  const json fingerprint = state(run).at("data_fingerprint");
  const Outcome rest = verb.resume(run);
  ASSERT_EQ(rest.status, 0) << rest.err;
  expect_said(rest.out, "5000 bytes in 2 files");
  expect_said(rest.out, "left out: 1 path that a run writes (" + verb.path("data") + "/run)");
  EXPECT_EQ(state(run).at("step"), 20);
  EXPECT_EQ(state(run).at("data_fingerprint"), fingerprint);
  // Another run beside it sees the same text, and so does a run in the directory of the data itself.
  for (const char* other : {"data/deep/other", "data"}) {
    const Outcome begun = train(other, verb.path("data"), {"--stop-at", "3"});
    ASSERT_EQ(begun.status, 0) << begun.err;
    const Outcome resumed = verb.resume(other);
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_EQ(state(other).at("data_fingerprint"), fingerprint) << other;
  }
}

TEST_F(InputsTest, Files_NotText_AreLeftOutAndNamed) {
  for (const char* name : {"p1.png", "p2.png", "p3.png", "p4.png"}) write_bytes(verb.path("data/") + name, "\x89PNG");
  const Outcome outcome = train("run", verb.path("data"), {"--stop-at", "1"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string data = verb.path("data");
  expect_said(outcome.out, "left out: 4 files that are not UTF-8 text (" + data + "/p1.png, " + data + "/p2.png, " +
                               data + "/p3.png and 1 more)");
  expect_refused(train("none", data + "/p1.png", {}), "train", "p1.png: not UTF-8 text: byte 0x89");
}

TEST_F(InputsTest, Patterns_Given_ChooseFilesAndStayWithTheRun) {
  const Outcome start = train("run", verb.path("data"), {"--include", "*.md", "--include", "*.rst", "--stop-at", "3"});
  ASSERT_EQ(start.status, 0) << start.err;
  expect_said(start.out, "2000 bytes in 1 file");
  EXPECT_EQ(state("run").at("include"), json({"*.md", "*.rst"}));
  const Outcome rest = verb.resume("run");
  ASSERT_EQ(rest.status, 0) << rest.err;
  expect_said(rest.out, "2000 bytes in 1 file");
  expect_refused(train("none", verb.path("data"), {"--include", "*.tex"}), "train",
                 "/data: no text in this directory, only 2 files that no pattern includes");
  expect_refused(verb.train("none", {"--include", ""}), "train", "--include");
  expect_refused(verb.train("none", {"--include", "*.md"}), "train",
                 "--include selects files below a directory, and --data " + verb.text() + " is a file");
}

TEST_F(InputsTest, Options_GivenTwice_KeepTheLastValueOrTheWholeList) {
  const Outcome outcome = verb.train("run", {"--data", verb.path("data/a.txt"), verb.path("data/deep/b.md"), "--seed",
                                             "7", "--seed", "8", "--stop-at", "2", "--stop-at", "1"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(state("run").at("seed"), 8);
  EXPECT_EQ(state("run").at("step"), 1);
  EXPECT_EQ(state("run").at("data").size(), 3U) << "with the command's own";
}

TEST_F(InputsTest, Model_TooLarge_IsRefusedWithItsPlan) {
  for (const std::vector<std::string>& sizes :
       {std::vector<std::string>{"--dim", "65536", "--ffn", "1048576", "--heads", "128", "--head-dim", "8", "--layers",
                                 "2"},
        {"--batch", "1048576", "--dim", "65536", "--layers", "100", "--ffn", "1024", "--head-dim", "8"}}) {
    const Outcome outcome = verb.train("none", sizes);
    expect_refused(outcome, "train", "not enough memory: ");
    for (const char* told : {" TB are needed but ", " are available; the largest items are "}) {
      expect_said(outcome.err, told);
    }
  }
  expect_refused(verb.train("none", {"--batch", "1048576", "--seq-len", "1024", "--dim", "1", "--heads", "1048576",
                                     "--head-dim", "512", "--ffn", "1", "--eval-tokens", "1024"}),
                 "train", "decoder: a batch of 1048576 x 1024 tokens takes about");
  EXPECT_FALSE(std::filesystem::exists(verb.path("none")));
}

#ifndef __SANITIZE_ADDRESS__  // AddressSanitizer takes address space beyond any limit
TEST_F(InputsTest, Memory_NotGiven_IsReportedWithThePlan) {
  // The plan is several times the limit, so it is clear what did not fit.
  std::string command = "ulimit -v 1500000; exec " + testing::headgate_path();
  for (const std::string& word : verb.command("none", {"--batch", "32768", "--seq-len", "64"})) command += " " + word;
  write_bytes(verb.text(), testing::prose(4000));
  const Outcome outcome = testing::run_program({"/bin/sh", "-c", command});
  expect_refused(outcome, "train", "not enough memory: ");
  expect_said(outcome.err, " GB are needed ");
  expect_said(outcome.err, "; the largest items are ");
}
#endif

TEST_F(InputsTest, Run_OfALargerMachine_SaysHowToContinue) {
  ASSERT_EQ(verb.train("run", {"--stop-at", "1"}).status, 0);
  json changed = state("run");
  changed["threads"] = 1000;
  write_bytes(verb.path("run") + "/checkpoint/trainer_state.json", changed.dump());
  expect_refused(verb.resume("run"), "train", "the run's 1000 threads on ");
  const Outcome resumed = verb.resume("run", {"--threads", "2"});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  expect_said(resumed.out, "; 2 threads\n");
}

TEST_F(InputsTest, ResumedRun_WithMoreSteps_NotesTheLearningRate) {
  ASSERT_EQ(verb.train("run", {"--lr", "0.002", "--warmup", "0", "--stop-at", "10"}).status, 0);
  const Outcome same = verb.resume("run", {"--stop-at", "11"});
  ASSERT_EQ(same.status, 0) << same.err;
  EXPECT_EQ(same.err.find("learning rate"), std::string::npos) << same.err;
  // A cosine from 0.002 to a tenth of it, at 12/20 and 12/40 of its way.
  const Outcome longer = verb.resume("run", {"--steps", "40", "--stop-at", "12"});
  ASSERT_EQ(longer.status, 0) << longer.err;
  expect_said(longer.out + longer.err,
              "the learning rate of step 12 is 0.00163, not 0.000822: its schedule ends at step 40, not 20\n");
}

TEST_F(InputsTest, ResumedRun_WithFewerStepsThanWarmup_IsRefused) {
  ASSERT_EQ(verb.train("run", {"--warmup", "10", "--stop-at", "2"}).status, 0);
  expect_refused(verb.resume("run", {"--steps", "9"}), "train", "--warmup 10 is more than --steps 9");
}

TEST_F(InputsTest, FinishedRun_Resumed_NotesNothingOfTheLearningRate) {
  ASSERT_EQ(verb.train("run", {"--steps", "2", "--warmup", "2"}).status, 0);
  const Outcome again = verb.resume("run");
  EXPECT_EQ((again.out + again.err).find("learning rate"), std::string::npos) << again.out << again.err;
}

TEST_F(InputsTest, GatedConfig_WithGateSiteNone_TrainsWithoutAGate) {
  ASSERT_EQ(verb.train("gated", {"--gate", "headwise-silu", "--gate-bias", "1", "--sinks", "learned", "--stop-at", "1"})
                .status,
            0);
  const Outcome plain = verb.train("plain", {"--config", verb.path("gated") + "/checkpoint/config.json", "--gate-site",
                                             "none", "--sinks", "none", "--stop-at", "1"});
  ASSERT_EQ(plain.status, 0) << plain.err;
  const json config = json::parse(testing::read_bytes(verb.path("plain") + "/checkpoint/config.json"));
  EXPECT_FALSE(config.contains("gate_fn")) << config.dump();
}

TEST_F(InputsTest, HeldOutText_OfShorterSequencesThanTheModelTakes_IsThatOfItsTraining) {
  const std::vector<std::string> few{"--steps", "2", "--warmup", "0", "--eval-tokens", "1400", "--batch", "1"};
  std::vector<std::string> long_run = few;
  long_run.insert(long_run.end(), {"--seq-len", "700"});
  ASSERT_EQ(verb.train("long", long_run).status, 0);
  const Outcome trained =
      testing::headgate({"train", "--data", verb.text(), "--out", verb.path("short"), "--init", verb.path("long"),
                         "--seq-len", "16", "--batch", "2", "--steps", "20", "--eval-tokens", "64", "--threads", "2"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const Outcome found =
      verb.eval("short", {"--json", "--held-out", "--tokens", "64", "--batch", "2", "--threads", "2"});
  ASSERT_EQ(found.status, 0) << found.err;
  std::string last;
  std::istringstream lines(testing::read_bytes(verb.path("short") + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) last = line;
  EXPECT_EQ(json::parse(last).at("eval"), json::parse(found.out)) << "the same sequences in the same batches";
  expect_refused(verb.eval("short", {"--held-out", "--seq-len", "700"}), "eval",
                 "--seq-len 700: a sequence is longer than the ");
}

TEST_F(InputsTest, Evaluation_FewTokens_TakesAtLeastASequence) {
  expect_refused(verb.train("none", {"--eval-tokens", "15"}), "train",
                 "--eval-tokens 15 is less than a sequence, which has 16 tokens");
  ASSERT_EQ(verb.train("run", {"--stop-at", "1"}).status, 0);
  expect_refused(verb.resume("run", {"--eval-tokens", "15"}), "train", "--eval-tokens 15 is less than a sequence");
}

TEST_F(InputsTest, Data_ThatIsMissing_IsNamedWithItsOption) {
  const std::string none = verb.path("none.txt"), moved = verb.path("moved.txt");
  expect_refused(verb.train("none", {"--data", none}), "train", "--data " + none + ": No such file or directory");
  ASSERT_EQ(verb.train("run", {"--stop-at", "1"}).status, 0);
  std::filesystem::rename(verb.text(), moved);
  expect_refused(
      verb.resume("run"), "train",
      "--data " + verb.text() + ": No such file or directory; if it has moved, give its new place with --data");
  const Outcome resumed = verb.resume("run", {"--data", moved});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
}

}  // namespace
}  // namespace headgate
