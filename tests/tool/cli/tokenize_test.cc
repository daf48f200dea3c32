// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/io/scratch.hpp"
#include "tool/cli/tool.hpp"

namespace headgate {
namespace {

using headgate::testing::expect_refused;
using headgate::testing::Outcome;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;
using Json = nlohmann::json;

constexpr const char* kTokenizer =
    R"({"added_tokens": [{"id": 4, "content": "<s>", "special": true}], "pre_tokenizer": {"type": "ByteLevel",)"
    R"( "add_prefix_space": false}, "post_processor": {"type": "TemplateProcessing", "single":)"
    R"( [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens":)"
    R"( {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}}, "model": {"type": "BPE", "vocab":)"
    R"( {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "<s>": 4, "Ġa": 5}, "merges": ["a b", "Ġ a"]}})";

class TokenizeVerb : public ::testing::Test {
 protected:
  TokenizeVerb() {
    write_bytes(tokenizer, kTokenizer);
    write_bytes(text, "ab ab<s>");
  }

  Scratch scratch;
  const std::string tokenizer = scratch / "tokenizer.json";
  const std::string text = scratch / "text";
};

TEST_F(TokenizeVerb, Text_ModelWithATokenizer_PrintsIds) {
  const Outcome outcome = testing::headgate({"tokenize", scratch.path(), "--text", text});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out, "4\n3\n2\n3\n4\n");
  EXPECT_EQ(testing::headgate({"tokenize", tokenizer, "--text", text, "--no-special"}).out, "3\n2\n3\n4\n");
}

TEST_F(TokenizeVerb, Json_AskedFor_HoldsTheTokens) {
  const Outcome outcome = testing::headgate({"tokenize", tokenizer, "--text", text, "--json"});
  EXPECT_EQ(Json::parse(outcome.out), Json::parse(R"({"ids": [4, 3, 2, 3, 4], "tokens": ["<s>", "ab", "Ġ", "ab", "<s>"],
      "offsets": [[0, 0], [0, 2], [2, 3], [3, 5], [5, 8]]})"));
}

TEST_F(TokenizeVerb, SentencePieces_ByteFallback_ArePrinted) {
  std::string vocab = R"("<unk>": 0, "▁": 1, "a": 2, "▁a": 3)";
  for (int byte = 0; byte < 256; ++byte) vocab += fmt::format(R"(, "<0x{:02X}>": {})", byte, 4 + byte);
  const std::string start =
      R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},)"
      R"( {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}, "model": {"type":)"
      R"( "BPE", "byte_fallback": true, "merges": ["▁ a"], "vocab": {)";
  write_bytes(tokenizer, start + vocab + "}}}");
  write_bytes(text, "a aé");
  const Outcome outcome = testing::headgate({"tokenize", tokenizer, "--text", text, "--json"});
  EXPECT_EQ(Json::parse(outcome.out), Json::parse(R"({"ids": [3, 3, 199, 173],
      "tokens": ["▁a", "▁a", "<0xC3>", "<0xA9>"], "offsets": [[0, 1], [1, 3], [3, 4], [4, 5]]})"));
}

TEST_F(TokenizeVerb, StandardInput_Read_SaysWhatIsLeftOut) {
  const std::string command =
      "printf 'xa<s>' | " + testing::headgate_path() + " tokenize " + tokenizer + " --text - --special-as-text";
  const Outcome outcome = testing::run_program({"/bin/sh", "-c", command});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "4\n0\n");
  EXPECT_EQ(outcome.err, "left out: 4 bytes that the vocabulary has no token for\n");
}

TEST_F(TokenizeVerb, LongText_Tokenized_TakesMemoryOfAWord) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const std::string command = "yes 'ab ab<s>' | head -c " + std::to_string(kBytes) + " | ( ulimit -v 400000; " +
                              testing::headgate_path() + " tokenize " + tokenizer + " --text - ) | tail -n 1";
  const Outcome outcome = testing::run_program({"/bin/sh", "-c", command});
  EXPECT_EQ(outcome.out + outcome.err, "5\nleft out: 7456540 bytes that the vocabulary has no token for\n");
}

TEST_F(TokenizeVerb, Text_ModelOfBytes_PrintsBytes) {
  const Scratch model;
  write_bytes(model / "config.json", R"({"vocab_size": 256})");
  EXPECT_EQ(testing::headgate({"tokenize", model.path(), "--text", text}).out, "97\n98\n32\n97\n98\n60\n115\n62\n");
}

TEST_F(TokenizeVerb, Arguments_Bad_AreRefusedOnOneLine) {
  expect_refused(testing::headgate({"tokenize", tokenizer}), "tokenize", "--text is required");
  expect_refused(testing::headgate({"tokenize", tokenizer, "--text", scratch / "none"}), "tokenize", "cannot open");
  expect_refused(testing::headgate({"tokenize", scratch / "none", "--text", text}), "tokenize", "none: does not exist");
  expect_refused(testing::headgate({"tokenize", tokenizer, "--text", scratch.path()}), "tokenize", "is a directory");
  write_bytes(tokenizer, "");
  expect_refused(testing::headgate({"tokenize", tokenizer, "--text", text}), "tokenize", ": is an empty file");
  write_bytes(tokenizer, "null");
  expect_refused(testing::headgate({"tokenize", tokenizer, "--text", text}), "tokenize",
                 "tokenizer.json: is null, not a tokenizer: a JSON object with model.vocab and model.merges");
  write_bytes(tokenizer, "{}");
  expect_refused(testing::headgate({"tokenize", tokenizer, "--text", text}), "tokenize", "model: not an object");
  std::string other = kTokenizer;
  other.replace(other.find("BPE"), 3, "WordPiece");
  write_bytes(tokenizer, other);
  expect_refused(testing::headgate({"tokenize", tokenizer, "--text", text}), "tokenize", "type 'WordPiece'");
}

TEST_F(TokenizeVerb, ModelBehindText_Given_IsTheModel) {
  EXPECT_EQ(testing::headgate({"tokenize", "--text", text, tokenizer}).out, "4\n3\n2\n3\n4\n");
}

TEST_F(TokenizeVerb, Training_SeveralPaths_WritesATokenizer) {
  write_bytes(scratch / "a.txt", "low lower lowest");
  write_bytes(scratch / "b.txt", "low low new newer");
  const std::string out = scratch / "new.json";
  const Outcome outcome = testing::headgate({"tokenize", "--train", "259", "--special", "<|user|>", "--text",
                                             scratch / "a.txt", scratch / "b.txt", "--out", out});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("259 ids from 6 distinct words\n"), std::string::npos) << outcome.err;
  write_bytes(text, "low<|endoftext|><|user|>");
  const Outcome tokens = testing::headgate({"tokenize", out, "--text", text, "--json"});
  EXPECT_EQ(Json::parse(tokens.out)["tokens"], Json::parse(R"(["lo", "w", "<|endoftext|>", "<|user|>"])"))
      << tokens.err;
}

TEST_F(TokenizeVerb, Training_MoreIdsThanTheTextGives_SaysSo) {
  const std::string out = scratch / "new.json";
  const Outcome outcome = testing::headgate({"tokenize", "--train", "5000", "--text", text, "--out", out, "--bos"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("258 ids from 4 distinct words, not 5000: no other pair of tokens occurs twice"),
            std::string::npos)
      << outcome.err;
  EXPECT_EQ(testing::headgate({"tokenize", out, "--text", text}).out.substr(0, 4), "257\n");
}

TEST_F(TokenizeVerb, Training_BadArguments_AreRefusedOnOneLine) {
  const std::string out = scratch / "new.json";
  const auto refused = [&](const std::vector<std::string>& words, const std::string& message) {
    std::vector<std::string> all{"tokenize"};
    all.insert(all.end(), words.begin(), words.end());
    expect_refused(testing::headgate(all), "tokenize", message);
  };
  refused({"--train", "256", "--text", text, "--out", out}, "--train");
  refused({"--train", "300", "--text", text}, "--train needs --out");
  refused({tokenizer, "--train", "300", "--text", text, "--out", out}, "--train takes no MODEL");
  refused({"--train", "300", "--text", text, "--out", text}, "--out");
  refused({"--train", "300", "--text", text, "--out", out, "--no-special"}, "--no-special");
  refused({tokenizer, "--text", text, "--out", out}, "--train");
  refused({"--text", text}, "MODEL is required");
  refused({tokenizer, "--text", text, text}, "--text takes one file without --train, not 2");
  refused({"--train", "300", "--text", scratch / "none", "--out", out}, "none: ");
  write_bytes(text, "");
  refused({"--train", "300", "--text", text, "--out", out}, "--train 300: no text");
  write_bytes(text, "ab\xFF");
  refused({"--train", "300", "--text", text, "--out", out}, "text: not UTF-8 text: byte 0xff at offset 2");
}

}  // namespace
}  // namespace headgate
