// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tool/cli/small_verbs.hpp"
#include "tool/cli/terminal.hpp"

namespace headgate {
namespace {

using Json = nlohmann::json;
using testing::Outcome;

/// A model of random numbers with ChatML's markers and a template.
class ChatVerb : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    g_verbs = new testing::TrainVerb;
    ASSERT_EQ(testing::headgate({"tokenize", "--train", "300", "--text", g_verbs->text(), "--special", "<|im_start|>",
                                 "--special", "<|im_end|>", "--out", g_verbs->path("t.json")})
                  .status,
              0);
    const Outcome train = g_verbs->train("run", {"--tokenizer", g_verbs->path("t.json"), "--layers", "1", "--seq-len",
                                                 "128", "--batch", "1", "--steps", "1", "--eval-tokens", "128"});
    ASSERT_EQ(train.status, 0) << train.err;
    testing::write_bytes(
        model() + "/chat_template.jinja",
        "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{{ '' }}{% endif %}");
  }
  static void TearDownTestSuite() { delete g_verbs; }

  static std::string path(const std::string& name) { return g_verbs->path(name); }
  static std::string model() { return path("run/checkpoint"); }
  /// Converses through a pipe: printf formats `lines`.
  static Outcome converse(const std::string& lines, const std::string& options = "") {
    const std::string command = "printf '" + lines + "' | " + testing::headgate_path() + " generate " + model() +
                                " --chat -t 1 --dtype f32 " + options;
    return testing::run_program({"/bin/sh", "-c", command});
  }
  static Outcome generate(std::vector<std::string> options) {
    options.insert(options.begin(), {"generate", model(), "-t", "1", "--dtype", "f32", "--json"});
    return testing::headgate(options);
  }
  static std::vector<Json> json_lines(const std::string& text) {
    std::vector<Json> out;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) out.push_back(Json::parse(line));
    return out;
  }

 private:
  static inline testing::TrainVerb* g_verbs = nullptr;
};

TEST_F(ChatVerb, Lines_FromAPipe_AreTurnsOfOneConversation) {
  const Outcome outcome = converse("it is\\nand so\\n", "-n 6 --json");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const std::vector<Json> turns = json_lines(outcome.out);
  ASSERT_EQ(turns.size(), 2U);
  EXPECT_EQ(turns[0]["ids"].size(), 6U);
  // The first question by itself, and the second one's text, which is that of another question less what begins a text.
  EXPECT_EQ(Json::parse(generate({"--chat", "--prompt", "it is", "-n", "6"}).out)["ids"], turns[0]["ids"]);
  const Json written = Json::parse(generate({"--special-tokens", "-n", "1", "--prompt",
                                             "<|im_end|>\n<|im_start|>user\nand so<|im_end|>\n<|im_start|>assistant\n"})
                                       .out);
  EXPECT_EQ(turns[1]["prompt_ids"], written["prompt_ids"]);
  EXPECT_EQ(turns[1]["ids"].size(), 6U);
  EXPECT_EQ(converse("it is\\nand so\\n", "-n 6").out,
            turns[0]["text"].get<std::string>() + "\n" + turns[1]["text"].get<std::string>() + "\n");
}

TEST_F(ChatVerb, Commands_AsLines_ClearAndEnd) {
  const std::vector<Json> turns =
      json_lines(converse("it is\\n/clear\\n\\nit is\\n/quit\\nit is\\n", "-n 4 --json").out);
  ASSERT_EQ(turns.size(), 2U);
  EXPECT_EQ(turns[0]["ids"], turns[1]["ids"]);
  EXPECT_EQ(turns[0]["prompt_ids"], turns[1]["prompt_ids"]);
  EXPECT_NE(converse("/help\\n").err.find("/clear  forgets all turns\n"), std::string::npos);
  const std::vector<Json> undone = json_lines(converse("it is\\nso\\n/undo\\nso\\n", "-n 4 --json").out);
  ASSERT_EQ(undone.size(), 3U);
  EXPECT_EQ(undone[2]["ids"], undone[1]["ids"]);
  EXPECT_EQ(undone[2]["prompt_ids"], undone[1]["prompt_ids"]);
  EXPECT_EQ(converse("/undo\\n").err, "headgate generate: there is no turn to undo\n");
  EXPECT_EQ(converse("/undo\\r\\n").err, "headgate generate: there is no turn to undo\n");
  EXPECT_EQ(json_lines(converse("it\\\\\\nis\\n", "-n 1 --json").out).size(), 1U) << "a backslash continues the line";
}

TEST_F(ChatVerb, Conversation_WithoutRoom_IsRefusedOnAPipe) {
  const Outcome outcome = converse("it is\\n" + std::string(400, 'a') + "\\n", "-n 2");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("headgate generate: with this question the conversation has "), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("tokens, but there is room for 128"), std::string::npos) << outcome.err;
}

TEST_F(ChatVerb, Answer_ThatFillsTheModel_SaysHowToGoOn) {
  const Outcome outcome = converse("it is\\n", "--json");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(json_lines(outcome.out).at(0)["stop"], "capacity");
  EXPECT_EQ(outcome.err, "headgate generate: the conversation fills the model's positions; /clear forgets all turns\n");
}

TEST_F(ChatVerb, StandardInput_ThatCannotBeRead_IsReported) {
  const Outcome outcome = testing::run_program(
      {"/bin/sh", "-c", testing::headgate_path() + " generate " + model() + " --chat -t 1 < " + model()});
  testing::expect_refused(outcome, "generate", "standard input: cannot be read: Is a directory");
}

TEST_F(ChatVerb, Model_WithoutATemplate_IsRefused) {
  std::filesystem::copy(model(), path("plain"));
  std::filesystem::remove(path("plain/chat_template.jinja"));
  testing::expect_refused(testing::headgate({"generate", path("plain"), "--chat", "--prompt", "it"}), "generate",
                          "the model has no chat template, so it was not made to converse");
}

TEST_F(ChatVerb, Template_ThatRefusesASystemText_SaysSoInOneLine) {
  std::filesystem::copy(model(), path("strict"));
  testing::write_bytes(path("strict/chat_template.jinja"),
                       "{% if messages[0].role == 'system' %}\n{{ raise_exception('System role not supported') }}"
                       "{% endif %}{{ messages[0].content }}<|im_end|>");
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--prompt", "it"}, {}}) {
    std::vector<std::string> words{"generate", path("strict"), "--chat", "--system", "Be brief."};
    words.insert(words.end(), more.begin(), more.end());
    testing::expect_refused(testing::headgate(words), "generate", "chat template, line 2: System role not supported");
  }
}

TEST_F(ChatVerb, SpecialTokens_InAQuestion_AreTextUnlessAskedFor) {
  const Json text = Json::parse(generate({"--chat", "--prompt", "a<|im_end|>b", "-n", "1"}).out);
  const Json token = Json::parse(generate({"--chat", "--prompt", "a<|im_end|>b", "-n", "1", "--special-tokens"}).out);
  EXPECT_GT(text["prompt_ids"].size(), token["prompt_ids"].size());
}

TEST_F(ChatVerb, Options_OfOneText_AreRefused) {
  testing::expect_refused(testing::headgate({"generate", model(), "--chat", "--logits", model() + "/x.npy"}),
                          "generate", "--logits is of one text");
}

TEST_F(ChatVerb, Conversation_OnATerminal_AsksAndEndsWithItsInput) {
  const testing::Screen screen = testing::run_on_terminal(
      80, {testing::headgate_path(), "generate", model(), "--chat", "-n", "2", "-t", "1"}, {}, "it is\n/help\n\x04");
  EXPECT_EQ(screen.status, 0) << screen.output;
  EXPECT_NE(screen.output.find("Ctrl-C ends an answer, Ctrl-D the conversation"), std::string::npos) << screen.output;
  std::size_t prompts = 0;
  for (std::size_t at = 0; (at = screen.output.find("> ", at)) != std::string::npos; ++at) ++prompts;
  EXPECT_GE(prompts, 3U) << "of the question, the command and the end: " << screen.output;
  EXPECT_EQ(screen.output.find("tokens/s"), std::string::npos) << "figures only with --verbose: " << screen.output;
}

}  // namespace
}  // namespace headgate
