// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tool/cli/small_verbs.hpp"

// Tests that all verbs agree on whether BOS stands before a text of bytes, also after `headgate convert`.

namespace headgate {
namespace {

using nlohmann::json;
using testing::Outcome;

class BytesTest : public ::testing::Test {
 protected:
  /// Trains a run, and converts it to a directory of the run's name and "-converted".
  void make(const std::string& run, const std::vector<std::string>& more) const {
    const Outcome trained = verb.train(run, more);
    ASSERT_EQ(trained.status, 0) << trained.err;
    const Outcome converted = testing::headgate({"convert", verb.path(run), verb.path(run + "-converted")});
    ASSERT_EQ(converted.status, 0) << converted.err;
  }
  json config(const std::string& directory) const {
    return json::parse(testing::read_bytes(verb.path(directory) + "/config.json"));
  }
  /// Returns the ids of the text "ab".
  json ids(const std::string& model) const {
    testing::write_bytes(verb.path("ab"), "ab");
    const Outcome outcome = testing::headgate({"tokenize", verb.path(model), "--text", verb.path("ab"), "--json"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(outcome.out).at("ids");
  }
  json figures(const std::string& model) const {
    const Outcome outcome = verb.eval(model, {"--task", "text", "--tokens", "320", "--json"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(outcome.out);
  }
  /// Returns "bos" of a run that starts with `option`: --init and the model, or --config and its config.json.
  json bos_of(const std::string& option, const std::string& path, const std::string& run) const {
    const Outcome outcome = testing::headgate({"train", option, verb.path(path), "--data", verb.text(), "--out",
                                               verb.path(run), "--steps", "1", "--batch", "2", "--eval-tokens", "64"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(verb.checkpoint_file(run, "trainer_state.json")).at("bos");
  }
  void expect_agreement(const std::string& run, const json& bos_token_id, const json& text, const char* bos) const {
    for (const std::string& model : {run, run + "-converted"}) {
      const std::string directory = model == run ? run + "/checkpoint" : model;
      EXPECT_EQ(config(directory).at("bos_token_id"), bos_token_id) << model;
      EXPECT_EQ(ids(model), text) << model;
      EXPECT_EQ(bos_of("--init", model, model + "-further"), bos) << model;
      EXPECT_EQ(bos_of("--config", directory + "/config.json", model + "-alike"), bos) << model;
    }
    EXPECT_EQ(figures(run), figures(run + "-converted"));
  }

  testing::TrainVerb verb;
};

TEST_F(BytesTest, Run_WithBos_KeepsItInEveryVerb) {
  make("run", {"--bos", "on"});
  expect_agreement("run", 256, {256, 97, 98}, "on");
}

TEST_F(BytesTest, Run_WithRoomForBosButWithoutIt_HasNone) {
  make("run", {"--vocab", "264"});
  expect_agreement("run", nullptr, {97, 98}, "off");
}

TEST_F(BytesTest, Run_OfTheCopyingTask_HasBos) {
  make("run", {"--task", "bigram-backcopy"});
  expect_agreement("run", 256, {256, 97, 98}, "on");
}

TEST_F(BytesTest, Run_WithALargerVocabulary_ReadsBytes) {
  make("run", {"--vocab", "300", "--bos", "on"});
  expect_agreement("run", 256, {256, 97, 98}, "on");
}

TEST_F(BytesTest, Run_OfAFormerVersion_DoesAsItsState) {
  ASSERT_EQ(verb.train("run", {"--vocab", "264"}).status, 0);
  const json before = figures("run");
  json old = config("run/checkpoint");
  old.erase("bos_token_id");
  testing::write_bytes(verb.path("run/checkpoint/config.json"), old.dump());
  EXPECT_EQ(ids("run"), json({97, 98}));
  EXPECT_EQ(figures("run"), before);
  ASSERT_EQ(testing::headgate({"convert", verb.path("run"), verb.path("converted")}).status, 0);
  EXPECT_TRUE(config("converted").at("bos_token_id").is_null());
  EXPECT_EQ(ids("converted"), json({97, 98}));
  std::filesystem::remove(verb.path("run/checkpoint/trainer_state.json"));
  EXPECT_EQ(ids("run"), json({256, 97, 98})) << "by the size of the vocabulary";
  EXPECT_NE(figures("run"), before) << "likewise";
}

}  // namespace
}  // namespace headgate
