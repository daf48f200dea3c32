// SPDX-License-Identifier: Apache-2.0
#include "models/data/encoded_text.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/data/data.hpp"
#include "models/data/text.hpp"
#include "models/io/safetensors.hpp"
#include "models/io/scratch.hpp"
#include "models/tokenize/golden.hpp"
#include "models/tokenize/tokenizer_file.hpp"

namespace headgate::train {
namespace {

using Ids = std::vector<std::int32_t>;
using testing::Scratch;
using testing::write_bytes;

std::string refused(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  } catch (const io::FileError& error) {
    return error.what();
  }
  return "nothing was refused";
}

/// Mixed scripts, longer than the parts in which a text is encoded.
std::string long_text() {
  std::string out;
  const nlohmann::json cases = testing::golden_cases();
  while (out.size() < 200000) {
    for (const nlohmann::json& text : cases["texts"]) out += text.get<std::string>() + " ";
  }
  return out;
}

/// A vocabulary of bytes, `<|endoftext|>` as `end` and, if `bos`, that token before every text.
std::string tokenizer_json(std::int32_t end, bool bos) {
  std::string vocab;
  for (int letter = 'a'; letter <= 'z'; ++letter)
    vocab += fmt::format("\"{}\": {}, ", static_cast<char>(letter), letter - 'a');
  const std::string post =
      bos ? fmt::format(R"("post_processor": {{"type": "TemplateProcessing", "single": [{{"SpecialToken": {{"id": "E",)"
                        R"( "type_id": 0}}}}, {{"Sequence": {{"id": "A", "type_id": 0}}}}], "special_tokens": {{"E":)"
                        R"( {{"id": "E", "ids": [{}], "tokens": ["<|endoftext|>"]}}}}}}, )",
                        end)
          : "";
  return fmt::format(
      R"({{"added_tokens": [{{"id": {}, "content": "<|endoftext|>", "special": true}}],)"
      R"( "pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": false}}, {})"
      R"("model": {{"type": "BPE", "vocab": {{{}"ab": 26, "Ġ": 27, "<|endoftext|>": {}}}, "merges": ["a b"]}}}})",
      end, post, vocab, end);
}

class EncodedText : public ::testing::Test {
 protected:
  DataOptions options(std::int64_t seq_len = 4) {
    DataOptions out;
    out.paths = {scratch / "text"};
    out.seq_len = seq_len;
    out.tokenizer = std::make_shared<tokenize::TokenizerFile>(tokenize::open_tokenizer_file(scratch / "t.json"));
    out.token_file = scratch / "ids";
    return out;
  }

  static Ids ids_of(const TokenFile& file) {
    Ids out(static_cast<std::size_t>(file.size()));
    file.copy(out.data(), 0, file.size());
    return out;
  }

  /// Changes the file of ids and, if `sum`, its checksum.
  void change(std::size_t at, const std::string& bytes, bool sum) {
    std::string file = testing::read_bytes(scratch / "ids");
    file.replace(at, bytes.size(), bytes);
    if (sum) {
      io::Checksum checksum;
      checksum.add(file.data(), file.size() - 16);
      file.replace(file.size() - 16, 16, checksum.text());
    }
    write_bytes(scratch / "ids", file);
  }

  Scratch scratch;
};

TEST_F(EncodedText, Ids_LongText_AreTheTokenizersOwn) {
  for (const char* name : {"gpt2", "qwen2", "llama2", "t5"}) {
    const std::string text = long_text();
    write_bytes(scratch / "text", text);
    write_bytes(scratch / "t.json", testing::read_bytes(testing::golden_path(name)));
    const DataOptions data = options();
    EXPECT_EQ(prepare_token_file(data),
              name == std::string("gpt2") ? "" : data.token_file + ": holds the ids of another text or tokenizer");
    const TokenFile file(data.token_file);
    const tokenize::Tokenizer& tokenizer = *data.tokenizer->tokenizer;
    Ids expected = tokenizer.encode(text, {.add_special = false}).ids;
    if (const std::int32_t end = tokenize::end_of_text(tokenizer); end >= 0) expected.push_back(end);
    EXPECT_EQ(ids_of(file), expected) << name;
    const std::int64_t bytes = file.text_bytes(0, file.size()) + static_cast<std::int64_t>(file.left_out());
    EXPECT_LE(bytes, std::ssize(text)) << name;
    const bool drops_characters = name == std::string("t5");  // by its normalizer
    if (!drops_characters) {
      EXPECT_EQ(bytes, std::ssize(text)) << name;
    }
  }
}

TEST_F(EncodedText, Files_Several_AreEndedByTheEndOfText) {
  std::filesystem::create_directory(scratch / "text");
  write_bytes(scratch / "text/1", "xa");
  write_bytes(scratch / "text/2", "bab");
  write_bytes(scratch / "text/3", "");
  for (const std::int32_t end : {28, 70000}) {
    write_bytes(scratch / "t.json", tokenizer_json(end, false));
    prepare_token_file(options());
    const TokenFile file(scratch / "ids");
    EXPECT_EQ(file.vocab(), end + 1);
    EXPECT_EQ(ids_of(file), (Ids{23, 0, end, 1, 26, end})) << "a and b of two files are not merged";
    EXPECT_EQ(file.text_bytes(0, 6), 5);
    EXPECT_EQ(std::filesystem::file_size(scratch / "ids"), 48U + 24U + 6U * (end == 28 ? 4U : 8U));
  }
}

TEST_F(EncodedText, TokenFile_Prepared_IsReusedOrReplaced) {
  write_bytes(scratch / "text", "abc abd");
  write_bytes(scratch / "t.json", tokenizer_json(28, false));
  EXPECT_EQ(prepare_token_file(options()), "");
  const auto written = std::filesystem::last_write_time(scratch / "ids");
  const std::string good = testing::read_bytes(scratch / "ids");
  std::filesystem::last_write_time(scratch / "ids", written - std::chrono::hours(1));
  EXPECT_EQ(prepare_token_file(options()), "");
  EXPECT_EQ(std::filesystem::last_write_time(scratch / "ids"), written - std::chrono::hours(1)) << "reused";
  change(50, "\x07", false);
  EXPECT_EQ(prepare_token_file(options()), scratch / "ids: is damaged: its checksum is another");
  EXPECT_EQ(testing::read_bytes(scratch / "ids"), good);
  const std::string another = scratch / "ids: holds the ids of another text or tokenizer";
  write_bytes(scratch / "text", "abc abe");
  EXPECT_EQ(prepare_token_file(options()), another);
  write_bytes(scratch / "t.json", tokenizer_json(29, false));
  EXPECT_EQ(refused([&] { EncodedTextSource{options()}; }),
            scratch / "ids: does not hold the ids of " + (scratch / "text") + " by the run's tokenizer");
  EXPECT_EQ(prepare_token_file(options()), another);
}

TEST_F(EncodedText, TokenFile_Malformed_IsRefused) {
  write_bytes(scratch / "text", "abc abd");
  write_bytes(scratch / "t.json", tokenizer_json(28, false));
  prepare_token_file(options());
  const std::string good = testing::read_bytes(scratch / "ids");
  const auto expect = [&](const std::string& message) {
    EXPECT_EQ(refused([&] { TokenFile{scratch / "ids"}; }), scratch / "ids: " + message);
    write_bytes(scratch / "ids", good);
  };
  change(48, std::string("\x1d\0", 2), true);
  expect("id 0 is 29, not below 29");
  change(0, "H", true);
  expect("is not a file of token ids");
  change(40, "\x03", true);
  expect("ids of 3 bytes, not 2 or 4");
  change(44, std::string(4, '\0'), true);
  expect("a vocabulary of 0 ids, not 1 to 1048576");
  write_bytes(scratch / "ids", good.substr(0, good.size() - 1));
  expect("is truncated: 23 bytes are no whole number of tokens");
  write_bytes(scratch / "ids", good.substr(0, good.size() - 4));
  expect("is damaged: it does not end in a checksum");
  write_bytes(scratch / "ids", good + std::string(8, '\0'));
  expect("is damaged: it does not end in a checksum");
  write_bytes(scratch / "ids", good.substr(0, 71));
  expect("is not a file of token ids: it has 71 bytes");
}

TEST_F(EncodedText, Sequences_OfEveryKind_AreWindowsOfTheIds) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += i % 3 == 0 ? "ab" : std::string(1, static_cast<char>('c' + i % 20));
  write_bytes(scratch / "text", text);
  for (const bool bos : {false, true}) {
    write_bytes(scratch / "t.json", tokenizer_json(28, bos));
    const DataOptions data = options(8);
    prepare_token_file(data);
    const EncodedTextSource source(data);
    const TokenFile file(data.token_file);
    const Ids ids = ids_of(file);
    EXPECT_FALSE(source.tokens_are_bytes());
    EXPECT_EQ(source.vocab(), 29);
    ASSERT_GE(source.held_out_count(), 1);
    EXPECT_GE(file.text_bytes(source.training_tokens(), file.size() - source.training_tokens()),
              std::ssize(text) - held_out_begin("", std::ssize(text), 8));
    Ids tokens(8), targets(8);
    const auto expect_window = [&](std::int64_t begin, std::int64_t bytes) {
      const auto at = ids.begin() + begin;
      EXPECT_EQ(tokens, bos ? (Ids{28, at[0], at[1], at[2], at[3], at[4], at[5], at[6]}) : Ids(at, at + 8));
      EXPECT_EQ(targets, bos ? Ids(at, at + 8) : Ids(at + 1, at + 9));
      EXPECT_EQ(bytes, file.text_bytes(bos ? begin : begin + 1, 8));
    };
    for (std::int64_t i = 0; i < 200; ++i) {
      source.training_sequence(tokens.data(), targets.data(), i);
      const std::int64_t begin = training_window(source.training_tokens(), 8, data.seed, i);
      EXPECT_LE(begin + 9, source.training_tokens() + (bos ? 1 : 0));
      expect_window(begin, source.training_bytes(i).value());
    }
    for (std::int64_t i = 0; i < source.held_out_count(); ++i) {
      source.held_out_sequence(tokens.data(), targets.data(), i);
      expect_window(source.training_tokens() + 8 * i, source.target_text(i)->bytes);
    }
  }
}

TEST_F(EncodedText, Data_Unsuitable_IsRefused) {
  write_bytes(scratch / "text", "abababababababababababab");
  write_bytes(scratch / "t.json", tokenizer_json(28, false));
  DataOptions data = options(8);
  prepare_token_file(data);
  EXPECT_NE(refused([&] { open_data(data); }).find("13 tokens but two sequences, one of them held out, take 18"),
            std::string::npos);
  data.task = Task::bigram_backcopy;
  EXPECT_NE(refused([&] { open_data(data); }).find("sequences are drawn from bytes"), std::string::npos);
}

TEST_F(EncodedText, ModelFiles_Tokenizer_NameItsTokens) {
  write_bytes(scratch / "text", std::string(100, 'c'));
  write_bytes(scratch / "t.json", tokenizer_json(28, true));
  prepare_token_file(options());
  const std::vector<NamedText> files = EncodedTextSource(options()).model_files();
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].text, tokenizer_json(28, true));
  EXPECT_EQ(nlohmann::json::parse(files[1].text)["eos_token"], "<|endoftext|>");
  EXPECT_EQ(nlohmann::json::parse(files[2].text)["eos_token_id"], 28);
}

}  // namespace
}  // namespace headgate::train
