// SPDX-License-Identifier: Apache-2.0
#include "models/generate/files.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "headgate/error.hpp"
#include "models/families/saved_model.hpp"
#include "models/generate/gguf_text_files.hpp"
#include "models/io/file_error.hpp"
#include "models/io/gguf_bytes.hpp"
#include "models/io/json.hpp"
#include "models/io/scratch.hpp"
#include "models/tokenize/open.hpp"

namespace headgate::generate {
namespace {

using headgate::testing::GgufBytes;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;
using Ids = std::vector<std::int32_t>;

/// Makes a directory with a model of 13 tokens.
class GenerationFilesTest : public ::testing::Test {
 protected:
  GenerationFilesTest() {
    const testing::SavedModel model(testing::small_config());
    models::write_model(directory, {model.config, models::GateLayout::separate}, model.parameters, DType::f32);
  }

  GenerationFiles read() const { return read_generation_files(directory, models::ModelFile(directory)); }
  void write(const std::string& file, const std::string& text) const { write_bytes(directory + "/" + file, text); }
  void expect_refused(const std::string& reason) const {
    try {
      read();
      ADD_FAILURE() << "accepted: " << reason;
    } catch (const io::FileError& error) {
      EXPECT_EQ(error.what(), directory + "/" + reason);
    }
  }

  Scratch scratch;
  const std::string directory = scratch / "model";
};

TEST_F(GenerationFilesTest, SettingsNotFollowed_ValuesThatChangeChoices_AreNamed) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(read().not_followed, Texts());
  for (const char* neutral :
       {R"({"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0, "num_beams": 1})",
        R"({"repetition_penalty": null, "bad_words_ids": [], "sequence_bias": {}, "min_new_tokens": null})",
        R"({"temperature": 0.7, "top_k": 20, "do_sample": true, "eos_token_id": 3, "max_new_tokens": 5})"}) {
    write("generation_config.json", neutral);
    EXPECT_EQ(read().not_followed, Texts()) << neutral;
  }
  write("generation_config.json", R"({"num_beams": 4, "repetition_penalty": 1.05, "suppress_tokens": [1, 2],
                                      "forced_eos_token_id": 0, "guidance_scale": "2\u001b"})");
  EXPECT_EQ(read().not_followed, (Texts{"repetition_penalty 1.05", "suppress_tokens [1,2]", "forced_eos_token_id 0",
                                        R"(guidance_scale "2\u001b")", "num_beams 4"}));
}

TEST_F(GenerationFilesTest, EndIds_SeveralFiles_AreThoseOfAll) {
  EXPECT_EQ(read().end_ids, Ids());
  write("generation_config.json", R"({"eos_token_id": [12, 3, 12]})");
  EXPECT_EQ(read().end_ids, (Ids{3, 12}));
  std::string config = testing::read_bytes(directory + "/config.json");
  config.insert(config.find('{') + 1, R"("eos_token_id": 0,)");
  write("config.json", config);
  EXPECT_EQ(read().end_ids, (Ids{0, 3, 12}));
  write("generation_config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(read().end_ids, Ids{0});
}

TEST_F(GenerationFilesTest, SpecialTokens_OfOtherNames_AreRead) {
  write(
      "tokenizer_config.json",
      R"({"image_token": "<i>", "add_bos_token": true, "eos_token": "<e>", "note": "x", "audio_token": {"content": "<a>"},
            "extra_special_tokens": {"think": "<t>"}, "model_specific_special_tokens": {"end": "</t>"},
            "added_tokens_decoder": {}})");
  EXPECT_EQ(
      read().special_tokens,
      (std::vector<std::pair<std::string, std::string>>{
          {"eos_token", "<e>"}, {"audio_token", "<a>"}, {"image_token", "<i>"}, {"think", "<t>"}, {"end", "</t>"}}));
  write("tokenizer_config.json", R"({"extra_special_tokens": ["<t>"], "added_tokens_decoder": {}})");
  EXPECT_TRUE(read().special_tokens.empty());
}

TEST_F(GenerationFilesTest, EndIds_OfConfig_AreWrittenAgain) {
  const testing::SavedModel model(testing::small_config());
  const std::vector<std::pair<io::Json, Ids>> cases{
      {io::Json(3), Ids{3}}, {io::Json::array({0, 12}), Ids{0, 12}}, {io::Json(), Ids()}};
  for (const auto& [value, ids] : cases) {
    models::FileConfig file{model.config};
    file.end_ids = value;
    models::write_model(directory, file, model.parameters, DType::f32);
    EXPECT_EQ(read_config_end_ids(directory), value);
    EXPECT_EQ(read().end_ids, ids);
  }
  write("config.json", R"({"eos_token_id": 1, "text_config": {"eos_token_id": [99]}})");
  EXPECT_EQ(read_config_end_ids(directory), io::Json::array({99}));
  write("config.json", R"({"eos_token_id": 1, "text_config": {"eos_token_id": null}})");
  EXPECT_EQ(read_config_end_ids(directory), 1);
}

TEST_F(GenerationFilesTest, EndIds_OfTextConfig_AreRead) {
  const std::string config = testing::read_bytes(directory + "/config.json"), begin = "{\"text_config\": ";
  write("config.json", begin + config + "}");
  EXPECT_EQ(read().end_ids, Ids());
  std::string text = config;
  text.insert(text.find('{') + 1, R"("eos_token_id": [3, 5],)");
  write("config.json", begin + text + R"(, "eos_token_id": 1})");
  EXPECT_EQ(read().end_ids, (Ids{1, 3, 5}));
}

TEST_F(GenerationFilesTest, EndIds_Bad_AreRefused) {
  write("generation_config.json", R"({"eos_token_id": 13})");
  expect_refused("generation_config.json: eos_token_id 13 is outside the vocabulary of 13 tokens");
  write("generation_config.json", R"({"eos_token_id": [1, -1]})");
  expect_refused("generation_config.json: eos_token_id -1 is outside the vocabulary of 13 tokens");
  const std::string kind = "generation_config.json: eos_token_id is neither an integer nor a list of integers";
  for (const char* value : {"1.0", "\"1\"", "true", "[[1]]", "{}"}) {
    write("generation_config.json", std::string(R"({"eos_token_id": )") + value + "}");
    expect_refused(kind);
  }
  write("generation_config.json", R"({"eos_token_id": 18446744073709551615})");
  EXPECT_THROW(read(), io::FileError);
  write("generation_config.json", "[]");
  expect_refused("generation_config.json: not a JSON object");
}

TEST_F(GenerationFilesTest, ChatTemplate_StringListOrFile_IsRead) {
  EXPECT_EQ(read().chat_template, "");
  write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(read().chat_template, "");
  write("tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_EQ(read().chat_template, "one");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "two"}, {"name": "default", "template": "three"}]})");
  EXPECT_EQ(read().chat_template, "three");
  write("chat_template.json", R"({"chat_template": "of a processor"})");
  EXPECT_EQ(read().chat_template, "three");
  write("tokenizer_config.json", "{}");
  EXPECT_EQ(read().chat_template, "of a processor");
  write("chat_template.jinja", "four\n");
  EXPECT_EQ(read().chat_template, "four\n");
}

TEST_F(GenerationFilesTest, SpecialTokens_StringsOrObjects_AreRead) {
  using Tokens = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(read().special_tokens, Tokens());
  write(
      "tokenizer_config.json",
      R"({"eos_token": {"content": "</s>", "lstrip": false}, "bos_token": "<s>", "unk_token": null, "x_token": "x"})");
  EXPECT_EQ(read().special_tokens, (Tokens{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"x_token", "x"}}));
  write("special_tokens_map.json", R"({"bos_token": {"content": "<old>"}})");
  EXPECT_EQ(read().special_tokens, (Tokens{{"eos_token", "</s>"}, {"x_token", "x"}, {"bos_token", "<old>"}}));
  write("tokenizer_config.json", R"({"bos_token": "<new>", "added_tokens_decoder": {}})");
  EXPECT_EQ(read().special_tokens, (Tokens{{"bos_token", "<new>"}}));
  write("tokenizer_config.json", R"({"bos_token": 1})");
  expect_refused("tokenizer_config.json: bos_token is neither a string nor an object with the string content");
}

TEST_F(GenerationFilesTest, ChatTemplate_Bad_IsRefused) {
  const std::string file = "tokenizer_config.json: chat_template";
  write("tokenizer_config.json", R"({"chat_template": 1})");
  expect_refused(file + " is neither a string nor a list");
  write("tokenizer_config.json", R"({"chat_template": [1]})");
  expect_refused(file + ": an element is not an object");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "default"}]})");
  expect_refused(file + ": an element lacks the strings name and template");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": ""}]})");
  expect_refused(file + ": no element is named default");
}

/// Makes a GGUF file of a llama with 5 tokens; only its header is read here.
GgufBytes gguf_header() {
  GgufBytes out;
  out.string("general.architecture", "llama").u32("llama.embedding_length", 4).u32("llama.block_count", 1);
  out.u32("llama.attention.head_count", 1).u32("llama.feed_forward_length", 4).u32("llama.context_length", 8);
  out.f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  out.f32_tensor("token_embd.weight", {5, 4}, std::vector<float>(20));
  return out;
}

TEST(GenerationFilesOfGguf, Gguf_EndIdsAndTemplate_AreRead) {
  const Scratch scratch;
  const std::string path = scratch / "m.gguf";
  const auto read = [&](const GgufBytes& file) {
    write_bytes(path, file.bytes());
    return read_generation_files(path, models::ModelFile(path));
  };
  EXPECT_EQ(read(gguf_header()).end_ids, Ids());
  EXPECT_EQ(read(gguf_header()).chat_template, "");
  const GenerationFiles files = read(gguf_header()
                                         .u32("tokenizer.ggml.eos_token_id", 4)
                                         .u32("tokenizer.ggml.eot_token_id", 2)
                                         .string("tokenizer.chat_template", "five"));
  EXPECT_EQ(files.end_ids, (Ids{2, 4}));
  EXPECT_EQ(files.chat_template, "five");
  for (const char* name : {"eom", "fim_pad", "fim_rep", "fim_sep"}) {
    const auto ids = read(gguf_header().u32(std::string("tokenizer.ggml.") + name + "_token_id", 3)).end_ids;
    EXPECT_EQ(ids, (Ids{3})) << name << ": as in llama.cpp";
  }
  try {
    read(gguf_header().u32("tokenizer.ggml.eot_token_id", 5));
    ADD_FAILURE() << "an id outside the vocabulary";
  } catch (const io::FileError& error) {
    EXPECT_EQ(error.what(), path + ": tokenizer.ggml.eot_token_id 5 is outside the vocabulary of 5 tokens");
  }
}

/// Adds a tokenizer whose tokens are bytes, and a chat template.
GgufBytes gguf_with_text() {
  std::string types = GgufBytes::raw(io::GgufType::i32) + GgufBytes::raw<std::uint64_t>(5);
  for (const std::int32_t type : {3, 1, 3, 1, 1}) types += GgufBytes::raw(type);  // 3: control, 1: normal
  return gguf_header()
      .string("tokenizer.ggml.model", "gpt2")
      .string("tokenizer.ggml.pre", "smollm")
      .strings("tokenizer.ggml.tokens", {"<|im_start|>", "a", "<|im_end|>", "b", "ab"})
      .strings("tokenizer.ggml.merges", {"a b"})
      .raw_value("tokenizer.ggml.token_type", io::GgufType::list, types)
      .u32("tokenizer.ggml.bos_token_id", 0)
      .u32("tokenizer.ggml.padding_token_id", 2)
      .u32("tokenizer.ggml.eos_token_id", 4)
      .u32("tokenizer.ggml.eot_token_id", 2)
      .string("tokenizer.chat_template", "{{'<|im_start|>'}}");
}

TEST(GgufTextFiles, TextFiles_GgufWithATokenizer_SayTheSame) {
  const Scratch scratch;
  const std::string path = scratch / "m.gguf", directory = scratch / "model";
  write_bytes(path, gguf_with_text().bytes());
  const models::ModelFile gguf(path);
  const GgufTextFiles text = gguf_text_files(path, gguf);
  EXPECT_EQ(text.no_tokenizer, "");
  const testing::SavedModel model(testing::small_config());
  models::write_model(directory, {model.config, models::GateLayout::separate}, model.parameters, DType::f32,
                      text.files);
  const GenerationFiles ours = read_generation_files(directory, models::ModelFile(directory));
  const GenerationFiles theirs = read_generation_files(path, gguf);
  EXPECT_EQ(ours.end_ids, (Ids{2, 4}));
  EXPECT_EQ(ours.end_ids, theirs.end_ids);
  EXPECT_EQ(ours.chat_template, theirs.chat_template);
  EXPECT_EQ(tokenize::open_tokenizer(directory)->encode("abba").ids,
            tokenize::open_tokenizer(path)->encode("abba").ids);
  const std::string config = testing::read_bytes(directory + "/tokenizer_config.json");
  EXPECT_NE(config.find(R"("bos_token": "<|im_start|>")"), std::string::npos) << config;
  EXPECT_NE(config.find(R"("pad_token": "<|im_end|>")"), std::string::npos) << config;
  EXPECT_EQ(theirs.special_tokens.size(), 3U);
  auto added = theirs.special_tokens;  // without the end of text, which is an ordinary word
  std::erase_if(added, [](const auto& token) { return token.first == "eos_token"; });
  EXPECT_EQ(ours.special_tokens, added);
}

TEST(GgufTextFiles, TokenizerJson_OfScores_GivesTheSameIds) {
  const Scratch scratch;
  const std::string path = scratch / "m.gguf", file = scratch / "tokenizer.json";
  const std::string count = GgufBytes::raw<std::uint64_t>(5);
  std::string scores = GgufBytes::raw(io::GgufType::f32) + count, types = GgufBytes::raw(io::GgufType::i32) + count;
  for (const float score : {0.0F, -1.0F, -2.0F, -3.0F, -0.5F}) scores += GgufBytes::raw(score);
  for (const std::int32_t type : {3, 1, 1, 1, 1}) types += GgufBytes::raw(type);
  write_bytes(path, gguf_header()
                        .string("tokenizer.ggml.model", "llama")
                        .strings("tokenizer.ggml.tokens", {"<s>", "a", "b", "\u2581", "ab"})
                        .raw_value("tokenizer.ggml.scores", io::GgufType::list, scores)
                        .raw_value("tokenizer.ggml.token_type", io::GgufType::list, types)
                        .u32("tokenizer.ggml.bos_token_id", 0)
                        .bytes());
  const GgufTextFiles text = gguf_text_files(path, models::ModelFile(path));
  EXPECT_EQ(text.no_tokenizer, "");
  write_bytes(file, text.files.front().text);
  EXPECT_EQ(tokenize::open_tokenizer(path)->encode("abba b").ids, (Ids{0, 3, 4, 2, 1, 3, 2}));
  EXPECT_EQ(tokenize::open_tokenizer(file)->encode("abba b").ids, (Ids{0, 3, 4, 2, 1, 3, 2}));
}

TEST(GgufTextFiles, TextFiles_TokenizerNotSupported_AreLeftOutWithTheReason) {
  const Scratch scratch;
  const std::string path = scratch / "m.gguf";
  write_bytes(path, gguf_header()
                        .string("tokenizer.ggml.model", "bert")
                        .strings("tokenizer.ggml.tokens", {"a", "b", "c", "d", "e"})
                        .u32("tokenizer.ggml.eos_token_id", 4)
                        .bytes());
  const GgufTextFiles text = gguf_text_files(path, models::ModelFile(path));
  ASSERT_EQ(text.files.size(), 1U);
  EXPECT_EQ(text.files.front().name, "generation_config.json");
  EXPECT_NE(text.no_tokenizer.find("tokenizer.ggml.model: 'bert' is not supported"), std::string::npos);
}

}  // namespace
}  // namespace headgate::generate
