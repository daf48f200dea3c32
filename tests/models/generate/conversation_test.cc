// SPDX-License-Identifier: Apache-2.0
#include "models/generate/conversation.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/generate/small_model.hpp"
#include "models/generate/spelled.hpp"

namespace headgate::generate {
namespace {

using Ids = std::vector<std::int32_t>;

/// Returns ChatML's template. `answer`: what it writes of an answer `m`.
std::string chat_ml(const std::string& answer) {
  return "{% for m in messages %}<|im_start|>{{ m.role + '\n' + (m.content if m.role != 'assistant' else " + answer +
         ") }}<|im_end|>{{ '\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{{ '' }}{% endif %}";
}

/// Converses with a model of bytes and ChatML's markers.
class ConversationTest : public ::testing::Test, protected testing::SmallModel {
 protected:
  ConversationTest() : SmallModel(258, 700) { EXPECT_EQ(config.vocab, tokenizer.vocab()); }

  Conversation begin(models::CachedDecoder& model, const GenerateOptions& options = {.max_tokens = 12}) const {
    return {model, tokenizer, chat, "Be brief.", options};
  }
  /// Returns what a model that reads the whole text at once goes on with.
  Ids from_scratch(const Ids& ids, const GenerateOptions& options) const {
    models::CachedDecoder model = decoder();
    return generate(model, tokenizer, ids, options, {}).ids;
  }
  /// Asks, and expects what a model gives that reads the whole conversation, which is `before` and the question.
  void expect_answer(Conversation& conversation, const std::string& question, GenerateOptions options,
                     std::int64_t turn) const {
    const Ids before = conversation.ids();
    const Generated answer = conversation.ask(question, {});
    Ids read = before;
    read.insert(read.end(), conversation.asked_ids().begin(), conversation.asked_ids().end());
    options.sampling.seed += static_cast<std::uint64_t>(turn);
    options.end_ids = chat.end_ids();
    EXPECT_EQ(answer.ids, from_scratch(read, options)) << "turn " << turn;
  }

  const testing::Spelled tokenizer{{"<|im_start|>", "<|im_end|>"}};
  const Chat chat{{{}, chat_ml("m.content"), {}}, tokenizer};
};

TEST_F(ConversationTest, Answers_TurnByTurn_AreThoseOfTheWholeText) {
  for (const double temperature : {0.0, 1.0}) {
    const GenerateOptions options{.sampling = {.temperature = temperature, .seed = 5}, .max_tokens = 12};
    models::CachedDecoder model = decoder();
    Conversation conversation = begin(model, options);
    for (std::int64_t turn = 0; turn < 4; ++turn) expect_answer(conversation, "What is it?", options, turn);
    const std::string text = tokenizer.decode(conversation.ids());
    EXPECT_TRUE(text.starts_with("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is it?<|im_end|>\n"))
        << text;
    EXPECT_EQ(model.length(), static_cast<std::int64_t>(conversation.ids().size()) - 1) << "only new tokens are read";
  }
}

TEST_F(ConversationTest, Answer_ThatEndsItsTurn_IsFollowedByOneEnd) {
  models::CachedDecoder model = decoder();
  Conversation free = begin(model);
  const Ids ids = free.ask("Hello", {}).ids;
  // With that token as an end, the answer is shorter and the next question begins with ChatML's own.
  models::CachedDecoder other = decoder();
  const Chat ending{{{ids[3]}, chat_ml("m.content"), {}}, tokenizer};
  Conversation conversation(other, tokenizer, ending, "Be brief.", {.max_tokens = 12});
  const Generated answer = conversation.ask("Hello", {});
  ASSERT_EQ(answer.stop, StopReason::end_token);
  EXPECT_NE(conversation.ids().back(), answer.ids.back());
  conversation.ask("And?", {});
  EXPECT_EQ(conversation.asked_ids().front(), chat.end_ids().front());
}

TEST_F(ConversationTest, Answer_Interrupted_StaysInTheConversation) {
  models::CachedDecoder model = decoder();
  Conversation conversation = begin(model);
  int parts = 0;
  const Generated answer =
      conversation.ask("Hello", {.text = [&](std::string_view) { return ++parts < 4; }, .logits = {}});
  EXPECT_EQ(answer.stop, StopReason::interrupted);
  EXPECT_LT(answer.ids.size(), 12U);
  expect_answer(conversation, "And?", {.max_tokens = 12}, 1);
}

TEST_F(ConversationTest, Question_InterruptedWhileItIsRead_IsReadWithTheNext) {
  models::CachedDecoder model = decoder();
  Conversation conversation = begin(model);
  const Generated answer =
      conversation.ask(std::string(600, 'a'), {.text = [](std::string_view) { return false; }, .logits = {}});
  EXPECT_EQ(answer.stop, StopReason::interrupted);
  EXPECT_EQ(answer.prompt_tokens, 512);
  expect_answer(conversation, "And?", {.max_tokens = 12}, 1);
}

TEST_F(ConversationTest, Question_WithoutRoom_ChangesNothing) {
  models::CachedDecoder model = decoder();
  Conversation conversation = begin(model);
  conversation.ask("Hello", {});
  const Ids before = conversation.ids();
  try {
    conversation.ask(std::string(700, 'a'), {});
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("tokens, but there is room for 700"), std::string::npos) << error.what();
  }
  EXPECT_EQ(conversation.ids(), before);
  expect_answer(conversation, "And?", {.max_tokens = 12}, 1);
}

TEST_F(ConversationTest, Question_ThatFails_IsNotInTheConversation) {
  for (const int most : {0, 3}) {
    models::CachedDecoder model = decoder();
    Conversation conversation = begin(model);
    conversation.ask("Hello", {});
    const Ids before = conversation.ids();
    int parts = 0;
    const GenerateHooks failing{.text = [&](std::string_view) { return ++parts > most ? throw Error("a hook") : true; },
                                .logits = {}};
    EXPECT_THROW(conversation.ask("And?", failing), Error);
    EXPECT_EQ(conversation.ids(), before);
    expect_answer(conversation, "What is it?", {.max_tokens = 12}, 2);
    EXPECT_TRUE(conversation.undo());
    EXPECT_TRUE(conversation.undo());
    EXPECT_FALSE(conversation.undo());
  }
}

TEST_F(ConversationTest, EarlierAnswer_RewrittenByTheTemplate_IsReadAsTheTemplateHasIt) {
  const Chat rewriting{{{}, chat_ml("'(' + m.content + ')'"), {}}, tokenizer};
  for (const std::int64_t window : {0, 8}) {  // layers with a window cannot go back, and read the whole text again
    models::DecoderConfig sliding = config;
    sliding.window = window;
    models::CachedDecoder model(sliding, parameters.data(), {.weights = DType::f32});
    Conversation conversation(model, tokenizer, rewriting, "", {.max_tokens = 12});
    Generated first = conversation.ask("Hello", {});
    if (first.stop == StopReason::end_token) first.ids.pop_back();
    const Generated answer = conversation.ask("And?", {});
    const std::string changed = "(" + tokenizer.decode(first.ids) + ")<|im_end|>\n";
    const std::string text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n" + changed +
                             "<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n";
    const Ids ids = tokenizer.encode(text, {.add_special = false}).ids;
    EXPECT_EQ(Ids(conversation.ids().begin(), conversation.ids().begin() + static_cast<std::ptrdiff_t>(ids.size())),
              ids);
    models::CachedDecoder other(sliding, parameters.data(), {.weights = DType::f32});
    GenerateOptions options{.max_tokens = 12, .end_ids = rewriting.end_ids()};
    options.sampling.seed += 1;
    EXPECT_EQ(answer.ids, generate(other, tokenizer, ids, options, {}).ids) << "window " << window;
    EXPECT_TRUE(tokenizer.decode(conversation.asked_ids()).starts_with(changed));
  }
}

TEST_F(ConversationTest, Question_RefusedByTheTemplate_IsNotInTheConversation) {
  const std::string refusing =
      "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('No.') }}{% endif %}{% endfor %}";
  const Chat strict{{{}, refusing + chat_ml("m.content"), {}}, tokenizer};
  models::CachedDecoder model = decoder(), other = decoder();
  Conversation conversation(model, tokenizer, strict, "", {.max_tokens = 12}),
      plain(other, tokenizer, strict, "", {.max_tokens = 12});
  conversation.ask("Hello", {});
  plain.ask("Hello", {});
  EXPECT_THROW(conversation.ask("bad", {}), Error);
  EXPECT_EQ(conversation.ask("And?", {}).ids, plain.ask("And?", {}).ids);
  EXPECT_EQ(conversation.ids(), plain.ids());
}

TEST_F(ConversationTest, LastTurns_Undone_AreAnsweredAgainAtTheCostOfNewTokens) {
  models::DecoderConfig sliding = config, recurrent = config;
  sliding.window = 8;
  recurrent.layer_types = {models::LayerType::linear_attention, models::LayerType::full_attention};
  recurrent.linear = {.key_heads = 1, .value_heads = 2, .key_dim = 4, .value_dim = 8, .kernel = 3};
  for (const models::DecoderConfig& each : {config, sliding, recurrent}) {
    const std::vector<float> own = random_parameters(each);
    models::CachedDecoder model(each, own.data(), {.weights = DType::f32});
    Conversation conversation = begin(model, {.sampling = {.temperature = 1.0}, .max_tokens = 80});
    EXPECT_FALSE(conversation.undo());
    const Ids first = conversation.ask("Hello", {}).ids;
    const std::int64_t read = model.length();
    const Ids second = conversation.ask("What is it?", {}).ids, ids = conversation.ids();
    for (const std::string other : {"Why?", "What is it?"}) {
      EXPECT_TRUE(conversation.undo());
      EXPECT_EQ(model.length(), read) << "the first turn is not read again";
      const Ids answer = conversation.ask(other, {}).ids;
      if (other == "What is it?") {
        EXPECT_EQ(answer, second);
      }
    }
    EXPECT_EQ(conversation.ids(), ids);
    EXPECT_TRUE(conversation.undo());
    EXPECT_TRUE(conversation.undo());
    EXPECT_TRUE(conversation.ids().empty());
    EXPECT_FALSE(conversation.undo());
    EXPECT_EQ(conversation.ask("Hello", {}).ids, first);
  }
}

TEST_F(ConversationTest, UndoneQuestion_ThatRewroteAnEarlierAnswer_LeavesNoToken) {
  const std::string last_of_k = "messages[-1].content[0] == 'K'";
  const Chat rewriting{{{}, chat_ml("(m.content if " + last_of_k + " else '(' + m.content + ')')"), {}}, tokenizer};
  const GenerateOptions options{.max_tokens = 12};
  models::CachedDecoder model = decoder(), other = decoder();
  Conversation conversation(model, tokenizer, rewriting, "", options), plain(other, tokenizer, rewriting, "", options);
  for (Conversation* each : {&conversation, &plain}) each->ask("Hello", {});
  conversation.ask("Why?", {});  // the template rewrites the first answer
  EXPECT_TRUE(conversation.undo());
  EXPECT_EQ(conversation.ask("Keep it", {}).ids, plain.ask("Keep it", {}).ids);
  EXPECT_EQ(conversation.ids(), plain.ids());
}

TEST_F(ConversationTest, Conversation_Cleared_BeginsAnew) {
  models::CachedDecoder model = decoder();
  Conversation conversation = begin(model, {.sampling = {.temperature = 1.0}, .max_tokens = 12});
  const Ids first = conversation.ask("Hello", {}).ids;
  EXPECT_NE(conversation.ask("Hello", {}).ids, first);
  conversation.clear();
  EXPECT_TRUE(conversation.ids().empty());
  EXPECT_EQ(conversation.ask("Hello", {}).ids, first);
}

}  // namespace
}  // namespace headgate::generate
