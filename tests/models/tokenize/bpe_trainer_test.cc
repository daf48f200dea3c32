// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/bpe_trainer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/io/scratch.hpp"
#include "models/tokenize/error.hpp"
#include "models/tokenize/golden.hpp"
#include "models/tokenize/open.hpp"
#include "models/tokenize/pair_merger.hpp"

namespace headgate::tokenize {
namespace {

using Json = nlohmann::json;
using Merges = std::vector<std::pair<std::string, std::string>>;

TrainedBpe trained(const std::string& text, const BpeTraining& options) {
  BpeTrainer trainer;
  trainer.add(text, More::none);
  return trainer.train(options);
}

Merges merges_of(const TrainedBpe& bpe) { return Json::parse(bpe.json)["model"]["merges"].get<Merges>(); }

std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const TokenizerError& error) {
    return error.what();
  }
  return "nothing was refused";
}

std::string prose() {
  std::string out;
  const Json cases = testing::golden_cases();
  for (const Json& text : cases["texts"]) out += text.get<std::string>() + "\n";
  return out;
}

/// " ab" occurs 3 times, "ab" twice of these in " abab", so that the counts after each merge are known by hand.
TEST(BpeTrainer, Merges_FewWords_AreTheMostFrequentPairs) {
  const TrainedBpe bpe = trained("x abab ab ab\n", {.ids = 256 + 3 + 1});
  EXPECT_EQ(merges_of(bpe), (Merges{{"a", "b"}, {"Ġ", "ab"}}));
  EXPECT_EQ(bpe.ids, 256 + 2 + 1) << "no other pair occurs twice";
}

TEST(BpeTrainer, Ties_EqualCounts_AreDecidedByIds) {
  EXPECT_EQ(merges_of(trained("zy zy by by", {.ids = 256 + 2 + 1})), (Merges{{"b", "y"}, {"z", "y"}}));
}

TEST(BpeTrainer, Repeats_OneCharacter_AreMergedFromTheLeft) {
  EXPECT_EQ(merges_of(trained("aaaaa;aaaaa", {.ids = 256 + 4 + 1})), (Merges{{"a", "a"}, {"aa", "a"}, {"aa", "aaa"}}));
}

using Words = std::vector<std::pair<std::vector<std::int32_t>, std::int64_t>>;

/// Counts all pairs of all words, as the definition says.
std::optional<TokenPair> most_frequent(const Words& words) {
  std::map<TokenPair, std::int64_t> counts;
  for (const auto& [tokens, count] : words) {
    for (std::size_t i = 1; i < tokens.size(); ++i) counts[{tokens[i - 1], tokens[i]}] += count;
  }
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == counts.end() ? std::nullopt : std::optional(most->first);
}

void merge(Words& words, TokenPair pair, std::int32_t token) {
  for (auto& [tokens, count] : words) {
    std::vector<std::int32_t> out;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool found = i + 1 < tokens.size() && TokenPair{tokens[i], tokens[i + 1]} == pair;
      out.push_back(found ? token : tokens[i]);
      i += found ? 1 : 0;
    }
    tokens = out;
  }
}

/// Few kinds of tokens make pairs that overlap; every third merge makes a token that exists already.
TEST(PairMerger, Counts_RandomWords_AreThoseOfCountingAgain) {
  std::mt19937 random(1);
  Words words;
  PairMerger merger;
  for (int w = 0; w < 300; ++w) {
    std::vector<std::int32_t> tokens(1 + random() % 30);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 3);
    words.emplace_back(tokens, 1 + random() % 5);
    merger.add(tokens, words.back().second);
  }
  int merges = 0;
  for (std::int32_t next = 3;; ++merges) {
    const std::optional<TokenPair> pair = merger.most_frequent(1);
    ASSERT_EQ(pair, most_frequent(words)) << merges;
    if (!pair) break;
    const std::int32_t token = merges % 3 == 2 ? std::max(pair->left, pair->right) + 1 : next;
    next = std::max(next, token + 1);
    merger.merge(*pair, token);
    merge(words, *pair, token);
  }
  EXPECT_GT(merges, 300);
}

TEST(BpeTrainer, Text_InAnyParts_GivesTheSameTokenizer) {
  const std::string text = prose();
  const std::string whole = trained(text, {.ids = 500}).json;
  for (const std::size_t part : {1, 3, 100}) {
    BpeTrainer trainer;
    for (std::size_t at = 0; at < text.size(); at += part)
      trainer.add(std::string_view{text}.substr(at, part), More::may_follow);
    trainer.add({}, More::none);
    EXPECT_EQ(trainer.train({.ids = 500}).json, whole) << part;
  }
}

TEST(BpeTrainer, Texts_Several_AreNotJoined) {
  BpeTrainer trainer;
  for (int i = 0; i < 2; ++i) {
    trainer.add("q", More::none);
    trainer.add("u", More::none);
  }
  EXPECT_TRUE(merges_of(trainer.train({.ids = 300})).empty());
}

TEST(BpeTrainer, Json_Read_RoundTripsAndEndsTexts) {
  const std::string text = prose();
  const TrainedBpe bpe = trained(text, {.ids = 500, .special = {"<|user|>"}, .bos = true});
  EXPECT_EQ(bpe.ids, 500);
  const testing::Scratch scratch;
  testing::write_bytes(scratch / "tokenizer.json", bpe.json);
  const auto tokenizer = open_tokenizer(scratch.path());
  EXPECT_EQ(tokenizer->vocab(), 500);
  EXPECT_EQ(tokenizer->find(kEndOfText), 498);
  EXPECT_EQ(tokenizer->find("<|user|>"), 499);
  const Encoding tokens = tokenizer->encode(text + "<|user|>\xFF");
  EXPECT_EQ(tokens.ids.front(), 498) << "bos";
  EXPECT_LT(tokens.ids.size(), text.size());
  EXPECT_EQ(tokenizer->decode(tokens.ids, /*skip_special=*/true), text + "\xFF");
}

TEST(BpeTrainer, LongWord_Counted_IsReadInParts) {
  const std::string word(3 * BpeTrainer::kWordPart, 'a');
  BpeTrainer trainer;
  trainer.add(word, More::none);
  EXPECT_EQ(trainer.distinct_words(), 1U);
}

TEST(BpeTrainer, BadBytes_BehindTheCheckedOnes_AreLeftOut) {
  std::string text(BpeTrainer::kCheckedBytes, ' ');
  BpeTrainer trainer;
  trainer.add(text + "\xFF\xC3", More::may_follow);
  trainer.add("(", More::none);
  EXPECT_EQ(trainer.left_out(), 2U);
  text.back() = '\xFF';
  EXPECT_EQ(refusal_of([&] { BpeTrainer().add(text, More::none); }), "not UTF-8 text: byte 0xff at offset 1048575");
}

TEST(BpeTrainer, Input_Bad_IsRefused) {
  EXPECT_EQ(refusal_of([] { BpeTrainer().add("ab\xFFx", More::none); }), "not UTF-8 text: byte 0xff at offset 2");
  EXPECT_EQ(refusal_of([] { BpeTrainer().add("ab\xC3", More::none); }), "not UTF-8 text: byte 0xc3 at offset 2");
  EXPECT_EQ(refusal_of([] { BpeTrainer().train({.ids = 300}); }), "no text");
  EXPECT_EQ(refusal_of([] { trained("a", {.ids = 256}); }),
            "256 ids, not 257 to 1048576: 256 bytes and 1 special token come before merges");
  EXPECT_EQ(refusal_of([] { trained("a", {.ids = 257, .special = {"<x>"}}); }),
            "257 ids, not 258 to 1048576: 256 bytes and 2 special tokens come before merges");
  EXPECT_EQ(refusal_of([] { trained("a", {.ids = 300, .special = {"<|endoftext|>"}}); }),
            "special token '<|endoftext|>' is given twice: every vocabulary has it");
  EXPECT_EQ(refusal_of([] { trained("a", {.ids = 300, .special = {""}}); }), "special token '' is not UTF-8 text");
  EXPECT_EQ(refusal_of([] { trained("a", {.ids = 300, .special = {"b"}}); }),
            "special token 'b' has the spelling of a byte: give it another name");
  EXPECT_EQ(refusal_of([] { trained("ab ab", {.ids = 300, .special = {"ab"}}); }),
            "special token 'ab' is a part of words of the text: give it another name");
}

}  // namespace
}  // namespace headgate::tokenize
