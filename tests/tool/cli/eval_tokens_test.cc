// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenize/golden.hpp"
#include "models/tokenize/open.hpp"
#include "tool/cli/small_verbs.hpp"

// Tests `headgate eval --text` with models that have a tokenizer.

namespace headgate {
namespace {

using nlohmann::json;
using testing::expect_refused;
using testing::Outcome;
using testing::TrainVerb;
using Ids = std::vector<std::int32_t>;

class EvalTokensTest : public ::testing::Test {
 protected:
  /// Makes a model as another program would write it, with one of the golden tokenizers. Its vocabulary has 600 tokens.
  void make_model(const std::string& name, const std::string& kind, const std::string& gate = "none") {
    ASSERT_EQ(verb.train(name + ".run", {"--vocab", "600", "--steps", "2", "--gate", gate}).status, 0);
    ASSERT_EQ(testing::headgate({"convert", verb.path(name + ".run") + "/checkpoint", verb.path(name)}).status, 0);
    std::filesystem::copy_file(testing::golden_path(kind), verb.path(name) + "/tokenizer.json");
  }

  json evaluated(const std::string& model, const std::vector<std::string>& more) const {
    std::vector<std::string> command{"eval", verb.path(model), "--json", "--metrics", "loss,layer_loss"};
    command.insert(command.end(), more.begin(), more.end());
    const Outcome outcome = testing::headgate(command);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(outcome.out);
  }
  json by_text(const std::string& model, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--text", verb.text()});
    return evaluated(model, more);
  }
  json by_ids(const std::string& model, const Ids& ids, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--token-ids", verb.write_ids(ids)});
    return evaluated(model, more);
  }

  TrainVerb verb;
};

Ids ids_of(const std::string& kind, std::string_view text, bool add_special) {
  return tokenize::open_tokenizer(testing::golden_path(kind))->encode(text, {.add_special = add_special}).ids;
}

/// Figures equal those for the ids of the text, and bits count the bytes that the targets decode to.
TEST_F(EvalTokensTest, Text_ModelWithATokenizer_IsReadAsItsTokens) {
  make_model("model", "gpt2", "headwise");
  const Ids ids = ids_of("gpt2", testing::read_bytes(verb.text()), true);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--batch", "1"}, {"--batch", "1", "--seq-len", "5"}}) {
    json text = by_text("model", more), tokens = by_ids("model", ids, more);
    EXPECT_TRUE(tokens.at("bits_per_byte").is_null());
    EXPECT_TRUE(tokens.at("layers")[0].at("bits_per_byte").is_null());
    EXPECT_FALSE(tokens.contains("text_bytes"));
    const auto count = text.at("tokens").get<std::ptrdiff_t>();
    // --batch 1 takes all sequences, so that the targets are adjacent.
    const auto tokenizer = tokenize::open_tokenizer(testing::golden_path("gpt2"));
    EXPECT_EQ(text.at("text_bytes"), tokenizer->decode(Ids(ids.begin() + 1, ids.begin() + 1 + count)).size());
    const double tokens_per_byte = static_cast<double>(count) / text.at("text_bytes").get<double>();
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const double loss = text.at("layers")[layer].at("loss_nats");
      EXPECT_DOUBLE_EQ(text.at("layers")[layer].at("bits_per_byte"), loss / std::log(2.0) * tokens_per_byte);
    }
    EXPECT_DOUBLE_EQ(text.at("bits_per_byte"), text.at("loss_nats").get<double>() / std::log(2.0) * tokens_per_byte);
    EXPECT_EQ(text.at("loss_nats"), tokens.at("loss_nats"));
    EXPECT_EQ(text.at("tokens"), tokens.at("tokens"));
  }
}

/// The tokenizer's BOS comes first, and the whole text is predicted.
TEST_F(EvalTokensTest, Bos_OfTheTokenizer_StandsFirst) {
  make_model("model", "llama-bpe");
  testing::write_bytes(verb.text(), "the people");
  const Ids ids = ids_of("llama-bpe", "the people", true);
  ASSERT_EQ(ids.front(), 1);
  ASSERT_LE(ids.size(), 17U) << "one sequence";
  const json text = by_text("model"), tokens = by_ids("model", ids);
  EXPECT_EQ(text.at("loss_nats"), tokens.at("loss_nats"));
  EXPECT_EQ(text.at("tokens"), ids.size() - 1);
  EXPECT_EQ(text.at("text_bytes"), 10);
}

TEST_F(EvalTokensTest, BitsPerByte_DifferentTokenizers_AreComparable) {
  make_model("gpt", "gpt2");
  make_model("bos", "llama-bpe");
  ASSERT_EQ(verb.train("bytes").status, 0);
  const auto all = [&](std::vector<std::string> more) {
    std::vector<std::string> command{"eval",   verb.path("gpt"), verb.path("bos"), verb.path("bytes"), verb.path("gpt"),
                                     "--text", verb.text(),      "--metrics",      "loss,layer_loss"};
    command.insert(command.end(), more.begin(), more.end());
    return testing::headgate(command);
  };
  const Outcome outcome = all({"--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  json list = json::parse(outcome.out);
  const char* names[] = {"gpt", "bos", "bytes", "gpt"};
  for (std::size_t i = 0; i < 4; ++i) {
    for (const char* key : {"model", "gate", "parameters"}) list[i].erase(key);
    EXPECT_EQ(list[i], by_text(names[i])) << "as if evaluated alone: " << names[i];
  }
  const std::string table = all({}).out;
  EXPECT_EQ(table.rfind("the same text for every model as tokens of its own", 0), 0U) << table;
  EXPECT_NE(table.find(" bytes), "), std::string::npos) << table;
  expect_refused(all({"--tokens", "64"}), "eval", "read the text as different tokens");
  std::vector<std::string> same{"eval", verb.path("gpt"), verb.path("gpt"), "--text", verb.text(), "--tokens", "64"};
  EXPECT_EQ(testing::headgate(same).out.rfind("the same 64 tokens in sequences of ", 0), 0U);
}

/// Each model reads the longest beginning that is at most `--tokens` tokens, and a target, of all of them: here bytes.
TEST_F(EvalTokensTest, Xray_DifferentTokenizers_ReadTheSameText) {
  make_model("gpt", "gpt2");
  make_model("bos", "llama-bpe");
  ASSERT_EQ(verb.train("bytes").status, 0);
  const Outcome outcome = testing::headgate({"xray", verb.path("gpt"), verb.path("bos"), verb.path("bytes"), "--text",
                                             verb.text(), "--tokens", "12", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json models = json::parse(outcome.out).at("models");
  EXPECT_EQ(models[2].at("tokens"), 12);
  constexpr std::ptrdiff_t kBytes = 13;
  const char* kinds[] = {"gpt2", "llama-bpe"};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::ptrdiff_t front = i == 1 ? 1 : 0;
    const Ids ids = ids_of(kinds[i], testing::read_bytes(verb.text()), false);
    const std::ptrdiff_t read = models[i].at("tokens").get<std::ptrdiff_t>() + 1 - front;
    const auto bytes = [&](std::ptrdiff_t count) {
      return std::ssize(
          tokenize::open_tokenizer(testing::golden_path(kinds[i]))->decode(Ids(ids.begin(), ids.begin() + count)));
    };
    EXPECT_LT(read, 12) << kinds[i];
    EXPECT_LE(bytes(read), kBytes) << kinds[i];
    EXPECT_GT(bytes(read + 1), kBytes) << kinds[i];
  }
}

TEST_F(EvalTokensTest, Text_Evaluated_IsItsHeldOutTail) {
  make_model("model", "gpt2");
  const std::string text = testing::read_bytes(verb.text());
  const json tail = by_text("model", {"--held-out"});
  testing::write_bytes(verb.text(), text.substr(text.size() - text.size() / 20));
  EXPECT_EQ(by_text("model", {"--seq-len", "16"}), tail);
}

TEST_F(EvalTokensTest, Arguments_Bad_AreRefused) {
  make_model("model", "gpt2");
  const auto eval = [&](std::vector<std::string> more) {
    std::vector<std::string> command{"eval", verb.path("model"), "--text", verb.text()};
    command.insert(command.end(), more.begin(), more.end());
    return testing::headgate(command);
  };
  expect_refused(eval({"--task", "bigram-backcopy"}), "eval",
                 "--task bigram-backcopy: its sequences are drawn from bytes");
  ASSERT_EQ(verb.train("small.run", {"--vocab", "300", "--steps", "2"}).status, 0);
  ASSERT_EQ(testing::headgate({"convert", verb.path("small.run") + "/checkpoint", verb.path("small")}).status, 0);
  std::filesystem::copy_file(testing::golden_path("gpt2"), verb.path("small") + "/tokenizer.json");
  expect_refused(testing::headgate({"eval", verb.path("small"), "--text", verb.text()}), "eval",
                 "tokens but the model 300");
  std::filesystem::remove(verb.path("small") + "/tokenizer.json");
  expect_refused(testing::headgate({"eval", verb.path("small"), "--text", verb.text()}), "eval",
                 "--token-ids takes a text's ids");
  const std::vector<std::vector<std::string>> of_text{{"--held-out"}, {"--task", "text"}, {"--include", "*"}};
  for (const std::vector<std::string>& options : of_text) {
    std::vector<std::string> command{"eval", verb.path("model"), "--token-ids", verb.path("ids.npy")};
    command.insert(command.end(), options.begin(), options.end());
    expect_refused(testing::headgate(command), "eval", "--token-ids excludes " + options.front());
  }
  testing::write_bytes(verb.path("model") + "/tokenizer.json", "{}");
  expect_refused(eval({}), "eval", "tokenizer.json: ");
  testing::write_bytes(verb.text(), "");
  expect_refused(eval({}), "eval", "");
}

}  // namespace
}  // namespace headgate
