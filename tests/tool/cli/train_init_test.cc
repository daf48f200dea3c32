// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/train/checkpoint.hpp"
#include "tool/cli/small_verbs.hpp"

// Tests `headgate train --init` and `--train-only`.

namespace headgate {
namespace {

using nlohmann::json;
using testing::expect_refused;
using testing::Outcome;
using testing::TrainVerb;

class InitTest : public ::testing::Test {
 protected:
  InitTest() {
    const Outcome outcome = verb.train("base", {"--qk-norm", "off", "--steps", "8"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
  }

  Outcome train(const std::string& run, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> command{"train",  "--data",          verb.text(), "--out",     verb.path(run),
                                     "--init", verb.path("base"), "--batch",   "2",         "--eval-tokens",
                                     "64",     "--steps",         "8",         "--threads", "2"};
    command.insert(command.end(), more.begin(), more.end());
    return testing::headgate(command);
  }
  train::Checkpoint checkpoint(const std::string& run) const {
    return train::load_checkpoint(verb.path(run) + "/checkpoint", train::CheckpointParts::all);
  }
  std::string model(const std::string& run) const { return verb.checkpoint_file(run, "model.safetensors"); }
  json config(const std::string& run) const { return json::parse(verb.checkpoint_file(run, "config.json")); }
  json state(const std::string& run) const { return json::parse(verb.checkpoint_file(run, "trainer_state.json")); }

  /// Returns whether a run's parameters other than gates are those of another run, bit by bit.
  bool same_but_gates(const std::string& run, const std::string& other) const {
    const train::Checkpoint a = checkpoint(run), b = checkpoint(other);
    const models::ParameterTable table(a.config), others(b.config);
    bool same = true;
    for (const models::Parameter& parameter : table.entries()) {
      const models::Parameter* there = others.find(parameter.name);
      if (there == nullptr) continue;
      const auto begin = a.parameters.begin() + parameter.offset;
      same = same && std::equal(begin, begin + parameter.count, b.parameters.begin() + there->offset);
    }
    return same;
  }

  TrainVerb verb;
};

TEST_F(InitTest, Run_WithoutSteps_IsItsModel) {
  const Outcome outcome = train("run", {"--lr", "0", "--stop-at", "1", "--seq-len", "8", "--eval-tokens", "8"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("init    " + verb.path("base") + "\n"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(" x 8 tokens"), std::string::npos) << outcome.out;
  EXPECT_EQ(model("run"), model("base"));
  EXPECT_EQ(config("run"), config("base"));
  EXPECT_EQ(config("run").at("model_type"), "llama") << "transformers have this family";
  EXPECT_FALSE(std::filesystem::exists(verb.path("run/checkpoint/modeling_headgate.py")));
  EXPECT_EQ(state("run").at("init"), verb.path("base"));
  EXPECT_EQ(state("run").at("seq_len"), 8);
}

TEST_F(InitTest, Gate_Added_ChangesNothingUntilItIsTrained) {
  for (const char* precision : {"f32", "bf16"}) {
    const std::string run = std::string("run-") + precision;
    const Outcome outcome =
        train(run, {"--gate", "headwise-sigmoid2", "--lr", "0", "--stop-at", "1", "--precision", precision});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_TRUE(same_but_gates(run, "base"));
    EXPECT_EQ(config(run).at("gate_fn"), "sigmoid2");
    EXPECT_EQ(config(run).at("model_type"), "headgate");
    EXPECT_TRUE(std::filesystem::exists(verb.path(run + "/checkpoint/modeling_headgate.py")));
    const auto loss = [&](const std::string& name) {
      return json::parse(verb.eval(name, {"--json", "--metrics", "loss"}).out).at("loss_nats").get<double>();
    };
    EXPECT_NEAR(loss(run), loss("base"), 1e-6) << precision;
  }
}

TEST_F(InitTest, Gates_TrainedAlone_LeaveTheRestAsItIs) {
  const std::vector<std::string> options{"--gate", "elementwise-sigmoid2", "--train-only", "gates", "--lr", "1e-2"};
  const Outcome whole = train("whole", options);
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_NE(whole.out.find("trains  gates: 512 parameters\n"), std::string::npos) << whole.out;
  EXPECT_TRUE(same_but_gates("whole", "base"));
  EXPECT_NE(model("whole"), model("base"));
  EXPECT_EQ(checkpoint("whole").first_moment.size(), 512U) << "frozen parameters have no moments";
  std::vector<std::string> part = options;
  part.insert(part.end(), {"--stop-at", "3"});
  ASSERT_EQ(train("part", part).status, 0);
  std::filesystem::remove_all(verb.path("base"));
  const Outcome resumed = verb.resume("part", {"--gate", "elementwise-sigmoid2", "--seq-len", "16"});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "trainer_state.json", "config.json"}) {
    EXPECT_EQ(verb.checkpoint_file("part", file), verb.checkpoint_file("whole", file)) << file;
  }
  expect_refused(verb.resume("part", {"--gate", "headwise-sigmoid2"}), "train", "--gate g1-headwise-sigmoid2-mul: ");
  expect_refused(verb.resume("part", {"--seq-len", "8"}), "train",
                 "--seq-len 8: " + verb.path("part") + "/checkpoint has 16");
  expect_refused(verb.resume("part", {"--train-only", "all"}), "train", "--train-only all is not the run's gates");
  ASSERT_EQ(verb.train("plain", {"--stop-at", "1"}).status, 0);
  expect_refused(verb.resume("plain", {"--init", "base"}), "train",
                 "--init base: the run was started without it; omit it on --resume");
}

TEST_F(InitTest, Tokenizer_OfTheModel_IsTheRuns) {
  const std::string tokenizer = verb.path("t.json"), large = verb.path("large.json");
  ASSERT_EQ(testing::headgate({"tokenize", "--train", "270", "--text", verb.text(), "--out", tokenizer}).status, 0);
  ASSERT_EQ(testing::headgate({"tokenize", "--train", "300", "--text", verb.text(), "--out", large}).status, 0);
  ASSERT_EQ(verb.train("ids", {"--tokenizer", tokenizer, "--steps", "2"}).status, 0);
  const Outcome outcome = train("run", {"--init", verb.path("ids"), "--stop-at", "2"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find(" ids of 270, "), std::string::npos) << outcome.out;
  EXPECT_EQ(verb.checkpoint_file("run", "tokenizer.json"), testing::read_bytes(tokenizer));
  std::filesystem::remove_all(verb.path("ids/checkpoint"));
  EXPECT_EQ(verb.resume("run").status, 0) << "it has a copy";
  expect_refused(train("none", {"--init", verb.path("run"), "--task", "bigram-backcopy"}), "train",
                 "its sequences are drawn from bytes, and --init ");
  expect_refused(train("none", {"--init", verb.path("run"), "--tokenizer", large}), "train",
                 "/run: 272 is less than the 292 ids of ");
  EXPECT_FALSE(std::filesystem::exists(verb.path("none")));
}

TEST_F(InitTest, Choices_ThatDoNotFit_AreRefusedOnOneLine) {
  expect_refused(train("none", {"--dim", "64"}), "train", "--dim 64: " + verb.path("base") + " has 16");
  expect_refused(train("none", {"--seq-len", "17"}), "train",
                 "--seq-len 17: " + verb.path("base") + " has 16 positions");
  expect_refused(train("none", {"--gate", "headwise"}), "train", "sigmoid2-mul, silu-add, identity-add do");
  expect_refused(train("none", {"--train-only", "gates"}), "train", "--train-only gates: the model has no gates");
  expect_refused(verb.train("none", {"--train-only", "gates"}), "train", "--train-only gates: the model has no gates");
  expect_refused(train("none", {"--init", verb.path("absent")}), "train", "--init: " + verb.path("absent"));
  expect_refused(train("none", {"--init", verb.text()}), "train", "--init: " + verb.text());
  std::string weights = model("base");
  weights[weights.size() - 2] ^= 1;
  testing::write_bytes(verb.path("base/checkpoint/model.safetensors"), weights);
  expect_refused(train("none"), "train", "checksum");
  EXPECT_FALSE(std::filesystem::exists(verb.path("none"))) << "nothing is written";
}

}  // namespace
}  // namespace headgate
