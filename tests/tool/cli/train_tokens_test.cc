// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <vector>

#include "tool/cli/small_verbs.hpp"

// Tests `headgate train --tokenizer`, and what the other verbs make of such a run.

namespace headgate {
namespace {

using nlohmann::json;
using testing::expect_refused;
using testing::Outcome;
using testing::TrainVerb;

class TokensTest : public ::testing::Test {
 protected:
  TokensTest() {
    learn("t.json", {"--bos"});
    learn("other.json", {});
  }

  void learn(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> command{"tokenize", "--train", "290", "--text", verb.text(), "--out", verb.path(name)};
    command.insert(command.end(), more.begin(), more.end());
    const Outcome outcome = testing::headgate(command);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }

  Outcome train(const std::string& run, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--tokenizer", verb.path("t.json")});
    return verb.train(run, more);
  }
  json state(const std::string& run) const { return json::parse(verb.checkpoint_file(run, "trainer_state.json")); }
  std::string model(const std::string& run) const { return verb.checkpoint_file(run, "model.safetensors"); }

  TrainVerb verb;
};

TEST_F(TokensTest, Run_Resumed_HasTheSameBits) {
  ASSERT_EQ(train("whole").status, 0);
  const Outcome part = train("part", {"--stop-at", "7"});
  ASSERT_EQ(part.status, 0) << part.err;
  EXPECT_NE(part.out.find(" ids of 290, "), std::string::npos) << part.out;
  EXPECT_NE(part.out.find(" bits a byte)"), std::string::npos) << part.out;
  const Outcome rest = verb.resume("part");
  ASSERT_EQ(rest.status, 0) << rest.err;
  EXPECT_EQ(rest.out.find("encoded again"), std::string::npos) << rest.out;
  EXPECT_EQ(model("part"), model("whole"));
  EXPECT_EQ(state("whole").at("bos"), "on") << "the tokenizer puts a token before a text";
  EXPECT_EQ(json::parse(verb.checkpoint_file("whole", "config.json")).at("vocab_size"), 296);
  EXPECT_EQ(verb.checkpoint_file("whole", "tokenizer.json"), testing::read_bytes(verb.path("t.json")));
}

TEST_F(TokensTest, Ids_DamagedOrMissing_AreEncodedAgain) {
  ASSERT_EQ(train("whole").status, 0);
  ASSERT_EQ(train("part", {"--stop-at", "7"}).status, 0);
  const std::string ids = verb.path("part/token_ids.bin");
  const std::string good = testing::read_bytes(ids);
  std::string bad = good;
  bad[60] ^= 1;
  testing::write_bytes(ids, bad);
  const Outcome again = verb.resume("part", {"--stop-at", "12"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_NE(again.out.find("its checksum is another; the text was encoded again"), std::string::npos) << again.out;
  EXPECT_EQ(testing::read_bytes(ids), good);
  std::filesystem::remove(ids);
  ASSERT_EQ(verb.resume("part").status, 0);
  EXPECT_EQ(model("part"), model("whole"));
}

TEST_F(TokensTest, Tokenizer_OnResume_MayMoveButNotChange) {
  ASSERT_EQ(train("run", {"--stop-at", "3"}).status, 0);
  expect_refused(verb.resume("run", {"--tokenizer", verb.path("other.json")}), "train",
                 "other.json is another tokenizer than the run's");
  std::filesystem::create_directory(verb.path("moved"));
  std::filesystem::rename(verb.path("t.json"), verb.path("moved/tokenizer.json"));
  ASSERT_EQ(verb.resume("run", {"--stop-at", "5"}).status, 0) << "the run has a copy";
  const Outcome moved = verb.resume("run", {"--tokenizer", verb.path("moved"), "--stop-at", "7"});
  ASSERT_EQ(moved.status, 0) << moved.err;
  EXPECT_EQ(state("run").at("tokenizer"), verb.path("moved"));
  testing::write_bytes(verb.path("run/checkpoint/tokenizer.json"), testing::read_bytes(verb.path("other.json")));
  expect_refused(verb.resume("run"), "train", "checkpoint/tokenizer.json is another tokenizer than the run's");
  ASSERT_EQ(verb.train("bytes", {"--stop-at", "3"}).status, 0);
  expect_refused(verb.resume("bytes", {"--tokenizer", verb.path("moved")}), "train", "the tokens of the run are bytes");
}

TEST_F(TokensTest, Choices_Contradicting_AreRefusedOnOneLine) {
  expect_refused(train("none", {"--task", "bigram-backcopy"}), "train", "sequences of --task bigram-backcopy");
  expect_refused(train("none", {"--bos", "off"}), "train", "--bos off: ");
  expect_refused(verb.train("none", {"--tokenizer", verb.path("other.json"), "--bos", "on"}), "train", "--bos on: ");
  expect_refused(train("none", {"--vocab", "289"}), "train", "--vocab 289 is less than the 290 ids of ");
  expect_refused(verb.train("none", {"--tokenizer", verb.text()}), "train", "text: ");
  expect_refused(verb.train("none", {"--tokenizer", verb.path("absent")}), "train", "absent: ");
  EXPECT_FALSE(std::filesystem::exists(verb.path("none"))) << "nothing is written";
}

TEST_F(TokensTest, Verbs_OfARun_ReadItsTokenizer) {
  ASSERT_EQ(train("run").status, 0);
  const Outcome eval = verb.eval("run", {"--json", "--metrics", "loss"});
  ASSERT_EQ(eval.status, 0) << eval.err;
  const json figures = json::parse(eval.out);
  EXPECT_EQ(figures.at("text_bytes").get<int>() > figures.at("tokens").get<int>(), true) << eval.out;
  const Outcome text = testing::headgate({"generate", verb.path("run"), "--prompt", "the", "--max-tokens", "4"});
  EXPECT_EQ(text.status, 0) << text.err;
  const Outcome ids = testing::headgate({"tokenize", verb.path("run"), "--text", verb.text()});
  EXPECT_EQ(ids.out, testing::headgate({"tokenize", verb.path("t.json"), "--text", verb.text()}).out);
  const Outcome converted = testing::headgate({"convert", verb.path("run"), verb.path("model")});
  ASSERT_EQ(converted.status, 0) << converted.err;
  EXPECT_EQ(testing::read_bytes(verb.path("model/tokenizer.json")), testing::read_bytes(verb.path("t.json")));
}

TEST_F(TokensTest, Metrics_BytesAndIds_HaveBitsAByte) {
  ASSERT_EQ(train("ids", {"--stop-at", "1"}).status, 0);
  ASSERT_EQ(verb.train("bytes", {"--stop-at", "1"}).status, 0);
  const auto record = [&](const std::string& run) {
    return json::parse(testing::read_bytes(verb.path(run + "/metrics.jsonl")));
  };
  const double loss = record("bytes").at("loss"), bits = record("bytes").at("loss_bits_per_byte");
  EXPECT_NEAR(bits, loss / std::numbers::ln2, 1e-12);
  const double token_loss = record("ids").at("loss"), token_bits = record("ids").at("loss_bits_per_byte");
  EXPECT_LT(token_bits, token_loss / std::numbers::ln2 / 1.2) << "an id stands for several bytes";
  const Outcome compared = testing::headgate({"compare", verb.path("ids"), verb.path("bytes")});
  EXPECT_NE(compared.out.find(" bits\n"), std::string::npos) << compared.out;
}

}  // namespace
}  // namespace headgate
