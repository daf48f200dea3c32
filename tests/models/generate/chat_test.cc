// SPDX-License-Identifier: Apache-2.0
#include "models/generate/chat.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "library/core/check.hpp"
#include "models/generate/spelled.hpp"
#include "models/io/scratch.hpp"

namespace headgate::generate {
namespace {

using headgate::testing::Spelled;
using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::string kChatMl =
    "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ '' }}{% endif %}";

/// Reads what scripts/check_chats.py --write-golden wrote: templates, and what transformers makes of them.
Json golden() { return Json::parse(testing::read_bytes(std::string(HEADGATE_GOLDEN) + "/chats.json")); }

GenerationFiles files_of(const Json& model) {
  GenerationFiles out;
  out.chat_template = model["template"].get<std::string>();
  for (const char* name : {"bos", "end"}) {
    if (model[name].is_null()) continue;
    out.special_tokens.emplace_back(name == std::string("bos") ? "bos_token" : "eos_token",
                                    model[name].get<std::string>());
  }
  return out;
}

Spelled tokenizer_of(const Json& golden) { return Spelled(golden["special"].get<std::vector<std::string>>()); }

std::vector<Message> messages_of(const Json& json) {
  std::vector<Message> out;
  for (const Json& each : json) out.push_back({each["role"].get<std::string>(), each["content"].get<std::string>()});
  return out;
}

std::ptrdiff_t special_count(const Ids& ids) {
  return std::count_if(ids.begin(), ids.end(), [](std::int32_t id) { return id >= 256; });
}

TEST(Chat, Conversations_OfManyTemplates_AreThoseOfTransformers) {
  const Json all = golden();
  const Spelled tokenizer = tokenizer_of(all);
  const ChatOptions options{.special_as_text = true, .now = all["time"].get<std::int64_t>()};
  std::size_t compared = 0, refused = 0;
  for (const Json& model : all["cases"]) {
    const Chat chat(files_of(model), tokenizer, options);
    for (const Json& conversation : model["conversations"]) {
      const std::vector<Message> messages = messages_of(conversation["messages"]);
      if (conversation["text"].is_null()) {
        EXPECT_THROW(chat.write(messages), Error) << model["name"];
        ++refused;
        continue;
      }
      const auto text = conversation["text"].get<std::string>();
      const Chat::Written written = chat.write(messages);
      EXPECT_EQ(written.text, text) << model["name"];
      EXPECT_EQ(written.tokens.ids, tokenizer.encode(text, {.add_special = false}).ids) << model["name"];
      ++compared;
    }
  }
  EXPECT_GT(compared, 200U);
  EXPECT_GT(refused, 0U);
}

TEST(Chat, EndOfAnswer_OfManyTemplates_IsTheirEndOfTurn) {
  const Json all = golden();
  const Spelled tokenizer = tokenizer_of(all);
  for (const Json& model : all["cases"]) {
    if (model["name"] == "only the last turn") continue;  // writes the answer's message alone, also with its end
    const Chat chat(files_of(model), tokenizer);
    EXPECT_EQ(chat.end_ids(), Ids{tokenizer.find(model["end"].get<std::string>())}) << model["name"];
  }
}

TEST(Chat, EndOfAnswer_WithThoseOfTheFiles_IsOneOfThem) {
  const Spelled tokenizer({"<|im_start|>", "<|im_end|>", "</s>"});
  EXPECT_EQ(Chat({{258, 257}, kChatMl, {}}, tokenizer).end_ids(), (Ids{257, 258}));
  EXPECT_EQ(Chat({{}, kChatMl, {}}, tokenizer).end_ids(), (Ids{257}));
  const std::string plain = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
  EXPECT_EQ(Chat({{258}, plain, {}}, tokenizer).end_ids(), (Ids{258}));
  const std::string raises = "{% if messages[1] is defined %}{{ raise_exception('one') }}{% endif %}<s>";
  EXPECT_EQ(Chat({{258}, raises, {}}, tokenizer).end_ids(), (Ids{258}));
  try {
    Chat({{}, plain, {}}, tokenizer).end_ids();
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "the model's chat template ends an answer with no special token, and its files name no token that ends a "
              "text");
  }
}

TEST(Chat, SpecialTokens_SpelledByUsers_AreTextUnlessAskedFor) {
  const Json all = golden();
  const Spelled tokenizer = tokenizer_of(all);
  const std::string spelled = "hello <|im_end|>\n<s>[INST] \U000F0000<bos>\U000F0001<|eot_id|></s> x";
  for (const Json& model : all["cases"]) {
    const Chat chat(files_of(model), tokenizer);
    const Ids plain = chat.write(question_messages("", "hello x")).tokens.ids;
    const Chat::Written written = chat.write(question_messages("", spelled));
    EXPECT_EQ(special_count(written.tokens.ids), special_count(plain)) << model["name"];
    EXPECT_EQ(tokenizer.decode(written.tokens.ids), written.text);
    EXPECT_EQ(written.text.find("\U000F0000"), std::string::npos);
    const Chat exact(files_of(model), tokenizer, {.special_as_text = false});
    EXPECT_EQ(special_count(exact.write(question_messages("", spelled)).tokens.ids), special_count(plain) + 6)
        << model["name"];
  }
}

TEST(Chat, Spans_OfAText_AreItsBytes) {
  const Spelled tokenizer({"<|im_start|>", "<|im_end|>"});
  const Chat chat({{}, kChatMl, {}}, tokenizer);
  const Chat::Written written = chat.write(question_messages("Be <|im_end|> brief.", "a<|im_start|>b"));
  ASSERT_EQ(written.tokens.spans.size(), written.tokens.ids.size());
  std::size_t end = 0;
  for (std::size_t i = 0; i < written.tokens.ids.size(); ++i) {
    const tokenize::Span span = written.tokens.spans[i];
    EXPECT_EQ(span.begin, end);
    EXPECT_EQ(written.text.substr(span.begin, span.end - span.begin), tokenizer.bytes(written.tokens.ids[i]));
    end = span.end;
  }
  EXPECT_EQ(end, written.text.size());
}

TEST(Chat, AnswerInChannels_OfGptOss_IsSplit) {
  const Message plain = answer_message("Yes.");
  EXPECT_EQ(plain.content, "Yes.");
  EXPECT_EQ(plain.thinking, "");
  const Message both =
      answer_message("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.");
  EXPECT_EQ(both.role, "assistant");
  EXPECT_EQ(both.content, "Yes.");
  EXPECT_EQ(both.thinking, "Hm.");
  EXPECT_EQ(answer_message("<|channel|>analysis<|message|>Hm").content, "");
}

TEST(Chat, Template_MissingOrBad_IsRefused) {
  const Spelled tokenizer({"<s>"});
  const auto message = [&](const std::string& chat_template) {
    try {
      Chat({{}, chat_template, {}}, tokenizer).write(question_messages("", "?"));
      return std::string("taken");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(message(""), "the model has no chat template, so it was not made to converse");
  EXPECT_EQ(message("{% if %}"), "chat template, line 1: expected a value, got the end of the tag");
  EXPECT_EQ(message("\n{{ raise_exception('No system text') }}"), "chat template, line 2: No system text");
}

}  // namespace
}  // namespace headgate::generate
