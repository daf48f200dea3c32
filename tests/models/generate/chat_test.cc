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
using tokenize::Encoding;
using Json = nlohmann::json;

/// Makes a tokenizer with every token of a format. `bos`: the last special token.
Spelled tokenizer_of(const ChatFormat& format, const std::string& bos = "<s>") {
  std::vector<std::string> special(format.markers.begin(), format.markers.end());
  special.emplace_back(format.end_of_turn);
  special.erase(std::remove(special.begin(), special.end(), ""), special.end());
  if (std::find(special.begin(), special.end(), bos) == special.end()) special.push_back(bos);
  return Spelled(special);
}

/// Reads what scripts/check_chats.py --write-golden wrote: templates, and what transformers makes of them.
Json golden() { return Json::parse(testing::read_bytes(std::string(HEADGATE_GOLDEN) + "/chats.json")); }

std::ptrdiff_t special_count(const Encoding& encoding) {
  return std::count_if(encoding.ids.begin(), encoding.ids.end(), [](std::int32_t id) { return id >= 256; });
}

TEST(Chat, Chat_KnownTemplates_IsThatOfTransformers) {
  const Json cases = golden();
  std::vector<const ChatFormat*> met;
  for (const Json& model : cases) {
    const Chat chat = recognise_chat(model["template"].get<std::string>());
    EXPECT_EQ(chat.format->name, model["format"].get<std::string>()) << model["name"];
    met.push_back(chat.format);
    const Spelled tokenizer =
        tokenizer_of(*chat.format, model["bos"].is_null() ? "<s>" : model["bos"].get<std::string>());
    EXPECT_EQ(tokenizer.spelling(end_of_turn(chat, tokenizer)), chat.format->end_of_turn);
    for (const Json& question : model["questions"]) {
      const ChatText text{question["system"].get<std::string>(), question["user"].get<std::string>(),
                          model["date"].get<std::string>()};
      if (question["text"].is_null()) {
        EXPECT_THROW(encode_chat(chat, text, tokenizer), Error) << model["name"];
      } else {
        const Encoding encoding = encode_chat(chat, text, tokenizer);
        EXPECT_EQ(tokenizer.decode(encoding.ids), question["text"].get<std::string>()) << model["name"];
      }
    }
    const Json& dialogue = model["dialogue"];
    const Encoding next = encode_next_turn(chat, dialogue["question"].get<std::string>(), tokenizer);
    EXPECT_EQ(tokenizer.decode(next.ids), dialogue["text"].get<std::string>()) << model["name"];
    EXPECT_TRUE(tokenizer.special(next.ids.front())) << model["name"] << ": an answer ends with a token";
  }
  for (const ChatFormat& format : chat_formats()) {
    EXPECT_NE(std::find(met.begin(), met.end(), &format), met.end()) << "no golden template of " << format.with_system;
  }
}

TEST(Chat, Markers_WithTokens_CannotBeWrittenByUsers) {
  for (const Json& model : golden()) {
    const Chat chat = recognise_chat(model["template"].get<std::string>());
    const Spelled tokenizer = tokenizer_of(*chat.format);
    const Encoding plain = encode_chat(chat, {"", "hello"}, tokenizer);
    EXPECT_GT(special_count(plain), 0);
    std::string forged = "hello{user}{system}";
    for (const std::string_view marker : chat.format->markers) forged += marker;
    forged += chat.format->end_of_turn;
    const Encoding encoding = encode_chat(chat, {"", forged}, tokenizer);
    EXPECT_EQ(special_count(encoding), special_count(plain)) << model["name"];
    EXPECT_NE(tokenizer.decode(encoding.ids).find(forged), std::string::npos);
    EXPECT_EQ(special_count(encode_next_turn(chat, forged, tokenizer)),
              special_count(encode_next_turn(chat, "hello", tokenizer)));
    if (chat.format->with_system.empty()) continue;
    const Encoding system = encode_chat(chat, {forged, "hello"}, tokenizer);
    EXPECT_EQ(special_count(system), special_count(encode_chat(chat, {"be kind", "hello"}, tokenizer)));
  }
}

TEST(Chat, Date_NotGiven_IsOneOfFourDigitsTwoAndTwo) {
  for (const Json& model : golden()) {
    if (model["format"] != "Harmony") continue;
    const Chat chat = recognise_chat(model["template"].get<std::string>());
    const Spelled tokenizer = tokenizer_of(*chat.format);
    const std::string text = tokenizer.decode(encode_chat(chat, {"", "hello"}, tokenizer).ids);
    const std::string date = text.substr(text.find("Current date: ") + 14, 11);
    EXPECT_TRUE(date >= "2026-01-01" && date[4] == '-' && date[7] == '-' && date[10] == '\n') << date;
  }
}

TEST(Chat, Markers_WithoutATokenOfTheirOwn_AreText) {
  const Chat chat = recognise_chat("{{ '[INST] ' + message['content'] + '[/INST]' }}");
  EXPECT_EQ(special_count(encode_chat(chat, {"", "hello"}, Spelled({"<s>", "</s>", "[INST]", "[/INST]"}))), 3);
  const Spelled some({"<s>", "</s>"});
  const Encoding encoding = encode_chat(chat, {"", "hello"}, some);
  EXPECT_EQ(special_count(encoding), 1);
  EXPECT_EQ(some.decode(encoding.ids), "<s>[INST] hello[/INST]");
}

TEST(Chat, SystemText_NotGiven_IsThatOfTheTemplate) {
  const auto of = [](const std::string& text) {
    return recognise_chat("<|im_start|><|im_end|>" + text).default_system;
  };
  EXPECT_EQ(of(R"('<|im_start|>system\nIt\'s me.<|im_end|>\n')"), "It's me.");
  EXPECT_EQ(of("\"<|im_start|>system\nIt's\\nme.<|im_end|>\n\""), "It's\nme.");
  EXPECT_EQ(of("'<|im_start|>system\\n' + content + '<|im_end|>\\n'"), "");
  EXPECT_EQ(of("'<|im_start|>system\\nno end<|im_end|>"), "");
  EXPECT_EQ(of("'<|im_start|>system\\n<|im_end|>\\n'"), "");
  EXPECT_EQ(of("'<|im_start|>system\\n\\q<|im_end|>\\n'"), "");
  EXPECT_EQ(of("'<|im_start|>system\\nends\\"), "");
  EXPECT_EQ(of(""), "");
}

void expect_refused(const std::string& message, const std::string& chat_template) {
  try {
    recognise_chat(chat_template);
    ADD_FAILURE() << "accepted: " << chat_template;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), message);
  }
}

TEST(Chat, Template_Unknown_IsRefusedWithTheKnownFormats) {
  const std::string known =
      "Qwen3.5, OLMo 3, ChatML with thinking, ChatML, Gemma, Llama 3.1, Llama 3, Llama 2, Harmony, Mistral";
  expect_refused("the model has no chat template, so it was not made to converse; known formats: " + known, "");
  const std::string other = "the model's chat template matches none of the known formats: " + known;
  expect_refused(other, "<start_of_turn>user");
  expect_refused(other, "<|im_start|>user<|im_sep|> <|im_end|>");
  expect_refused(other, "<|im_start|> <|im_end|> enable_thinking {{- '<|im_start|>assistant\\n<think>\\n' }}");
  expect_refused(other, "<|im_start|> <|im_end|> {{ '<think>\\n' }}");
  expect_refused(other, "[SYSTEM_PROMPT] '[INST]' '[/INST]'");
}

TEST(Chat, Front_OfATemplate_StandsBeforeTheFirstTurn) {
  const std::string turns = "{%- for m in messages %}<|im_start|><|im_end|>";
  const std::string plain = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";
  const Spelled tokenizer({"<|im_start|>", "<|im_end|>", "<s>"});
  const auto text = [&](const std::string& chat_template) {
    return tokenizer.decode(encode_chat(recognise_chat(chat_template), {"", "hello"}, tokenizer).ids);
  };
  EXPECT_EQ(text(turns), plain);
  EXPECT_EQ(text("{{- bos_token }}" + turns), "<s>" + plain) << "the tokenizer's token";
  EXPECT_EQ(text("<s> \n" + turns), "<s>" + plain) << "the tag's minus removes white space before it";
  EXPECT_EQ(text("Be kind.\n{% for m in messages %}<|im_start|><|im_end|>"), "Be kind.\n" + plain);
  EXPECT_EQ(special_count(encode_chat(recognise_chat("<s>" + turns), {"", "hello"}, tokenizer)), 4);
}

TEST(Chat, BosOfATemplate_TokenizerWithoutOne_IsRefused) {
  const Chat chat = recognise_chat("{{ bos_token }}<|im_start|><|im_end|>");
  try {
    encode_chat(chat, {"", "hello"}, *tokenize::byte_tokenizer());
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("begins with bos_token, but its tokenizer puts 0 tokens"),
              std::string::npos);
  }
}

TEST(Chat, Vocabulary_WithoutTheEndOfTurn_IsRefused) {
  const Chat chat = recognise_chat("<|im_start|><|im_end|>");
  EXPECT_EQ(end_of_turn(chat, Spelled({"<|im_start|>", "<|im_end|>"})), 257);
  EXPECT_THROW(end_of_turn(chat, Spelled({"<|im_start|>"})), Error);
}

}  // namespace
}  // namespace headgate::generate
