// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/tokenizer.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/io/file_error.hpp"
#include "models/tokenize/byte_model.hpp"
#include "models/tokenize/golden.hpp"
#include "models/tokenize/open.hpp"
#include "models/tokenize/tokenizer_file.hpp"
#include "models/tokenize/tokenizer_json.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

using headgate::testing::golden_path;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;
using Ids = std::vector<std::int32_t>;

/// Returns bytes of all kinds: text, parts of characters, anything.
std::string random_bytes(std::mt19937& random, std::size_t size) {
  const std::vector<std::string> some{"the ", "être", "中文", "😀",  "\xff",        "\xe4\xb8",
                                      "\x80", " ",    "\n",   "12", "<|im_start|>"};
  std::string out;
  while (out.size() < size) {
    out += random() % 4 == 0 ? std::string(1, static_cast<char>(random())) : some[random() % some.size()];
  }
  return out;
}

TEST(Tokenizer, Bytes_EncodedAndDecoded_AreTheSame) {
  std::mt19937 random(5);
  for (const char* name : {"gpt2", "smollm", "llama-bpe"}) {
    const auto tokenizer = read_tokenizer_json(golden_path(name));
    for (int round = 0; round < 300; ++round) {
      const std::string text = random_bytes(random, random() % 100);
      for (const bool as_text : {false, true}) {
        const Encoding encoding =
            tokenizer->encode(text, {.add_special = false, .special_as_text = as_text, .spans = true});
        ASSERT_EQ(tokenizer->decode(encoding.ids), text);
        for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
          const Span span = encoding.spans[i];
          ASSERT_EQ(text.substr(span.begin, span.end - span.begin), tokenizer->bytes(encoding.ids[i]));
        }
      }
    }
  }
}

TEST(Tokenizer, Bytes_NotUtf8_AreWordsOfTheirOwn) {
  const auto tokenizer = read_tokenizer_json(golden_path("gpt2"));
  const auto ids = [&](const std::string& text) { return tokenizer->encode(text, {.add_special = false}).ids; };
  Ids expected = ids("the ");
  for (const std::string part : {"\xff\xfe", " people"}) {
    const Ids more = ids(part);
    expected.insert(expected.end(), more.begin(), more.end());
  }
  EXPECT_EQ(ids("the \xff\xfe people"), expected);
  EXPECT_EQ(tokenizer->encode("\xff", {.spans = true}).spans, (std::vector<Span>{{0, 1}}));
}

TEST(Tokenizer, Decoding_TokenByToken_ReturnsWholeCharacters) {
  std::mt19937 random(6);
  const auto tokenizer = read_tokenizer_json(golden_path("gpt2"));
  for (int round = 0; round < 300; ++round) {
    const std::string text = random_bytes(random, random() % 60);
    std::vector<bool> starts(text.size() + 1, true);  // no byte of a character but its first
    for (std::size_t at = 0; at < text.size(); ++at) {
      const std::size_t bytes = first_code_point(std::string_view{text}.substr(at)).bytes;
      for (std::size_t i = 1; i < bytes; ++i) starts[++at] = false;
    }
    StreamDecoder decoder(*tokenizer);
    std::string all;
    for (const std::int32_t id : tokenizer->encode(text).ids) {
      all += decoder.next(id);
      ASSERT_TRUE(starts[all.size()]) << "inside a character";
    }
    ASSERT_LE(text.size() - all.size(), 3U);
    all += decoder.finish();
    ASSERT_EQ(all, text);
    ASSERT_EQ(decoder.finish(), "");
  }
}

TEST(Tokenizer, SpecialTokens_EncodedAndDecoded_FollowTheOptions) {
  const auto tokenizer = read_tokenizer_json(golden_path("llama-bpe"));  // BOS <|im_start|>, 1
  const Ids text = tokenizer->encode("a", {.add_special = false}).ids;
  EXPECT_EQ(tokenizer->encode("a").ids, (Ids{1, text.at(0)}));
  EXPECT_EQ(tokenizer->encode("<|im_end|>", {.add_special = false}).ids, Ids{2});
  EXPECT_GT(tokenizer->encode("<|im_end|>", {.add_special = false, .special_as_text = true}).ids.size(), 1U);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a<|im_end|>").ids), "<|im_start|>a<|im_end|>");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a<|im_end|>").ids, true), "a");
  EXPECT_EQ(tokenizer->find("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer->find("nosuchtoken"), kNoToken);
  EXPECT_TRUE(tokenizer->special(2));
  EXPECT_FALSE(tokenizer->special(text.at(0)));
  EXPECT_EQ(tokenizer->spelling(tokenizer->find("Ġa")), "Ġa");
  EXPECT_EQ(tokenizer->bytes(tokenizer->find("Ġa")), " a");
  const Encoding spans = tokenizer->encode("a", {.spans = true});
  EXPECT_EQ(spans.spans, (std::vector<Span>{{0, 0}, {0, 1}}));
}

TEST(Tokenizer, Decode_UnknownId_IsRefused) {
  const auto tokenizer = read_tokenizer_json(golden_path("gpt2"));
  for (const std::int32_t id : {-1, tokenizer->vocab()}) {
    EXPECT_THROW(tokenizer->bytes(id), Error);
    EXPECT_THROW(tokenizer->decode(Ids{id}), Error);
    EXPECT_THROW(tokenizer->special(id), Error);
  }
  EXPECT_THROW(byte_tokenizer()->bytes(256), Error);
}

TEST(Tokenizer, BytesOfTokens_OfAText_AreCounted) {
  const auto tokenizer = byte_tokenizer();
  EXPECT_EQ(tokenizer->vocab(), 256);
  EXPECT_EQ(tokenizer->encode("aé\xff").ids, (Ids{97, 0xC3, 0xA9, 0xFF}));
  EXPECT_EQ(tokenizer->decode(Ids{97, 0xC3, 0xA9, 0xFF}), "aé\xff");
  EXPECT_EQ(tokenizer->spelling(32), "Ġ");
  EXPECT_EQ(tokenizer->find("Ġ"), 32);
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.next(0xC3), "");
  EXPECT_EQ(decoder.next(0xA9), "é");
  EXPECT_EQ(decoder.next(0xE4), "");
  EXPECT_EQ(decoder.next('a'),
            "\xE4"
            "a");
}

TEST(Tokenizer, BytesOfTokens_AfterAPrefixToken_AreCounted) {
  const auto tokenizer = byte_tokenizer_with_bos();
  EXPECT_EQ(tokenizer->vocab(), 257);
  EXPECT_EQ(tokenizer->encode("a").ids, (Ids{256, 97}));
  EXPECT_EQ(tokenizer->encode("a", {.add_special = false}).ids, (Ids{97}));
  EXPECT_EQ(tokenizer->encode("a", {.spans = true}).spans, (std::vector<Span>{{0, 0}, {0, 1}}));
  EXPECT_EQ(tokenizer->decode(Ids{256, 97}), "a");
  EXPECT_EQ(tokenizer->spelling(256), "<bos>");
  EXPECT_EQ(tokenizer->find("<bos>"), 256);
  EXPECT_TRUE(tokenizer->special(256));
  EXPECT_FALSE(tokenizer->special(97));
  EXPECT_THROW(tokenizer->bytes(257), Error);
}

TEST(Tokenizer, Tokenizer_OfAModelDirectory_IsRead) {
  const Scratch scratch;
  const auto reason = [&] {
    try {
      open_tokenizer(scratch.path());
    } catch (const io::FileError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(reason(), scratch.path() + ": neither tokenizer.json nor config.json");
  write_bytes(scratch / "config.json", R"({"vocab_size": 1000})");
  EXPECT_NE(reason().find("no tokenizer.json, and by config.json the model does not read bytes"), std::string::npos);
  write_bytes(scratch / "config.json", R"({"vocab_size": 256})");
  EXPECT_EQ(open_tokenizer(scratch.path())->vocab(), 256);
  write_bytes(scratch / "config.json", R"({"vocab_size": 264})");
  EXPECT_EQ(open_tokenizer(scratch.path())->vocab(), 257);
  std::filesystem::create_directory(scratch / "checkpoint");
  std::filesystem::rename(scratch / "config.json", scratch / "checkpoint/config.json");
  EXPECT_EQ(open_tokenizer(scratch.path())->vocab(), 257) << "a run";
  std::filesystem::copy(golden_path("gpt2"), scratch / "tokenizer.json");
  EXPECT_GT(open_tokenizer(scratch.path())->vocab(), 256);
  EXPECT_GT(open_tokenizer(scratch / "tokenizer.json")->vocab(), 256);
}

/// transformers adds tokens that tokenizer.json lacks, wherever they are named.
TEST(Tokenizer, Tokenizer_FilesThatNameOtherTokens_AreRefused) {
  struct Beside {
    const char *file, *json, *where;
  };
  const Beside others[] = {
      {"tokenizer_config.json", R"({"added_tokens_decoder": {"9": {"content": "<new>"}}})", "added_tokens_decoder"},
      {"tokenizer_config.json", R"({"additional_special_tokens": ["<|endoftext|>", "<new>"]})",
       "additional_special_tokens"},
      {"tokenizer_config.json", R"({"extra_special_tokens": ["<new>"]})", "extra_special_tokens"},
      {"tokenizer_config.json", R"({"extra_special_tokens": {"image_token": "<new>"}})", "extra_special_tokens"},
      {"tokenizer_config.json", R"({"model_specific_special_tokens": {"a": "<new>"}})",
       "model_specific_special_tokens"},
      {"tokenizer_config.json", R"({"pad_token": "<new>"})", "pad_token"},
      {"tokenizer_config.json", R"({"image_token": {"content": "<new>"}})", "image_token"},
      {"added_tokens.json", R"({"<new>": 50257})", "the file"},
      {"special_tokens_map.json", R"({"pad_token": {"content": "<new>"}})", "pad_token"},
  };
  for (const Beside& other : others) {
    const Scratch scratch;
    std::filesystem::copy(golden_path("gpt2"), scratch / "tokenizer.json");
    write_bytes(scratch / other.file, other.json);
    const std::string message = scratch / other.file + ": " + other.where +
                                " has the token '<new>', which the added_tokens of tokenizer.json lack: add it there";
    for (const bool with_json : {false, true}) {
      try {
        with_json ? (void)open_tokenizer_file(scratch.path()) : (void)open_tokenizer(scratch.path());
        ADD_FAILURE() << other.json;
      } catch (const io::FileError& error) {
        EXPECT_EQ(error.what(), message);
      }
    }
    EXPECT_GT(open_tokenizer(scratch / "tokenizer.json")->vocab(), 256) << "the file by itself";
  }
}

TEST(Tokenizer, Tokenizer_FilesThatNameItsTokens_IsRead) {
  const Scratch scratch;
  std::filesystem::copy(golden_path("gpt2"), scratch / "tokenizer.json");
  write_bytes(scratch / "tokenizer_config.json",
              R"({"added_tokens_decoder": {"0": {"content": "<|endoftext|>"}}, "pad_token": null, "add_bos_token": true,
                  "eos_token": {"content": "<|endoftext|>"}, "tokenizer_class": "GPT2Tokenizer"})");
  write_bytes(scratch / "special_tokens_map.json", R"({"pad_token": "<not read>"})");
  EXPECT_GT(open_tokenizer(scratch.path())->vocab(), 256);
}

TEST(Tokenizer, Front_TextWithoutToken_IsWhatStandsBeforeText) {
  const auto tokenizer = parse_tokenizer_json("t", R"({
    "model": {"type": "BPE", "vocab": {"b": 0, "<s>": 1, "</s>": 2}, "merges": []},
    "added_tokens": [{"id": 1, "content": "<s>", "special": true}, {"id": 2, "content": "</s>", "special": true}],
    "post_processor": {"type": "TemplateProcessing",
                       "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}},
                                  {"SpecialToken": {"id": "</s>"}}],
                       "special_tokens": {"<s>": {"ids": [1]}, "</s>": {"ids": [2]}}}})");
  EXPECT_TRUE(tokenizer->encode("a", {.add_special = false}).ids.empty());
  EXPECT_EQ(leading_special_ids(*tokenizer), std::vector<std::int32_t>{1});
}

TEST(Tokenizer, TextOfBytes_ByConfig_BeginsWithBosOrNot) {
  const Scratch scratch;
  const auto text = [&](const std::string& config) {
    write_bytes(scratch / "config.json", config);
    return byte_text_of(scratch.path());
  };
  EXPECT_EQ(text(R"({"vocab_size": 264, "bos_token_id": 256})"), ByteText::after_bos);
  EXPECT_EQ(text(R"({"vocab_size": 264, "bos_token_id": null})"), ByteText::plain);
  EXPECT_EQ(text(R"({"vocab_size": 264})"), ByteText::after_bos);
  EXPECT_EQ(text(R"({"vocab_size": 256})"), ByteText::plain);
  EXPECT_EQ(text(R"({"vocab_size": 300, "bos_token_id": 256})"), ByteText::after_bos);
  EXPECT_EQ(text(R"({"vocab_size": 300, "model_type": "headgate", "bos_token_id": null})"), ByteText::plain);
  EXPECT_EQ(text(R"({"vocab_size": 300, "model_type": "headgate"})"), ByteText::none) << "its tokenizer is missing";
  EXPECT_EQ(text(R"({"vocab_size": 300, "model_type": "llama", "bos_token_id": 1})"), ByteText::none);
  EXPECT_THROW(text(R"({"vocab_size": 256, "bos_token_id": 256})"), io::FileError);
  EXPECT_THROW(text("[]"), io::FileError);
  // A run of a former version, whose config.json does not say.
  write_bytes(scratch / "trainer_state.json", R"({"task": "text", "bos": "off"})");
  EXPECT_EQ(text(R"({"vocab_size": 264})"), ByteText::plain);
  EXPECT_EQ(text(R"({"vocab_size": 264, "bos_token_id": 256})"), ByteText::after_bos);
  EXPECT_EQ(text(R"({"vocab_size": 300, "model_type": "llama"})"), ByteText::plain);
  write_bytes(scratch / "trainer_state.json", R"({"task": "text", "bos": "on"})");
  EXPECT_EQ(text(R"({"vocab_size": 300})"), ByteText::after_bos);
  write_bytes(scratch / "trainer_state.json", R"({"task": "bigram-backcopy", "bos": "off"})");
  EXPECT_EQ(text(R"({"vocab_size": 264})"), ByteText::after_bos);
  write_bytes(scratch / "trainer_state.json", R"({"task": "text", "bos": "off", "tokenizer_hash": "d67c"})");
  EXPECT_EQ(text(R"({"vocab_size": 264, "model_type": "headgate"})"), ByteText::none) << "a run on ids";
  write_bytes(scratch / "trainer_state.json", R"({"task": "text", "bos": "off", "tokenizer_hash": ""})");
  EXPECT_EQ(text(R"({"vocab_size": 300})"), ByteText::plain);
  // A file of transformers' Trainer, which may hold NaN.
  write_bytes(scratch / "trainer_state.json", R"({"global_step": 5, "log_history": [{"loss": NaN}]})");
  EXPECT_EQ(text(R"({"vocab_size": 32000, "model_type": "llama"})"), ByteText::none);
  EXPECT_EQ(text(R"({"vocab_size": 264})"), ByteText::after_bos);
  write_bytes(scratch / "tokenizer.json", "{}");
  EXPECT_EQ(text(R"({"vocab_size": 264})"), ByteText::none);
}

TEST(Tokenizer, LinkToALostTokenizer_IsRefusedAndNotReadAsBytes) {
  const Scratch scratch;
  write_bytes(scratch / "config.json", R"({"vocab_size": 300, "model_type": "headgate"})");
  std::filesystem::create_symlink("../lost/tokenizer.json", scratch / "tokenizer.json");
  EXPECT_EQ(byte_text_of(scratch.path()), ByteText::none);
  EXPECT_THROW(open_tokenizer(scratch.path()), io::FileError);
}

}  // namespace
}  // namespace headgate::tokenize
