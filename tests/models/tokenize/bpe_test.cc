// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/bpe.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/tokenize/error.hpp"
#include "models/tokenize/word_encoder.hpp"

namespace headgate::tokenize {
namespace {

struct Sample {
  Vocabulary vocabulary;
  MergeList merges;
};

/// Makes a vocabulary of the letters a to d and random merges of its tokens.
Sample random_sample(std::mt19937& random, int count) {
  Sample out;
  std::vector<std::string> tokens{"a", "b", "c", "d"};
  for (std::size_t i = 0; i < tokens.size(); ++i) out.vocabulary.add(static_cast<std::int64_t>(i), tokens[i]);
  while (count-- > 0) {
    const std::string left = tokens[random() % tokens.size()], right = tokens[random() % tokens.size()];
    out.merges.emplace_back(left, right);
    if (out.vocabulary.find(left + right) != kNoToken || left.size() + right.size() > 12) {
      if (out.vocabulary.find(left + right) == kNoToken) out.merges.pop_back();
      continue;
    }
    out.vocabulary.add(out.vocabulary.size(), left + right);
    tokens.push_back(left + right);
  }
  return out;
}

/// Merges by the definition: the pair whose merge comes first, the leftmost of several. Of merges of the same pair the
/// last one applies.
std::vector<std::string> plainly(const Sample& sample, const std::string& word) {
  std::vector<std::string> tokens;
  for (const char c : word) tokens.emplace_back(1, c);
  while (true) {
    std::size_t least = sample.merges.size(), at = 0;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = std::find(sample.merges.rbegin(), sample.merges.rend(), std::pair(tokens[i], tokens[i + 1]));
      if (found == sample.merges.rend()) continue;
      const auto rank = static_cast<std::size_t>(sample.merges.rend() - found) - 1;
      if (rank >= least) continue;
      least = rank;
      at = i;
    }
    if (least == sample.merges.size()) return tokens;
    tokens[at] += tokens[at + 1];
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(Bpe, Merges_AnyWord_FollowTheDefinition) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const Sample sample = random_sample(random, 1 + static_cast<int>(random() % 40));
    const Bpe bpe(sample.vocabulary, ranked_merges(sample.vocabulary, sample.merges), {});
    WordEncoder encoder(bpe);
    for (int n = 0; n < 20; ++n) {
      std::string word;  // both shorter and longer than the limit for a linear search
      for (std::size_t length = random() % 120; length > 0; --length) word += static_cast<char>('a' + random() % 4);
      std::vector<std::string> expected = plainly(sample, word), got;
      std::uint32_t end = 0;
      for (const WordToken& token : encoder.encode(word)) {
        ASSERT_EQ(token.begin, end);
        end = token.end;
        got.emplace_back(sample.vocabulary.spelling(token.id));
        ASSERT_EQ(got.back(), word.substr(token.begin, token.end - token.begin));
      }
      ASSERT_EQ(got, expected) << word;
      const auto again = encoder.encode(word);
      ASSERT_EQ(again.size(), expected.size()) << "kept from the first time";
    }
  }
}

std::vector<std::int32_t> ids(const Bpe& bpe, const std::string& word) {
  std::vector<WordToken> tokens;
  bpe.encode(tokens, word);
  std::vector<std::int32_t> out;
  out.reserve(tokens.size());
  for (const WordToken& token : tokens) out.push_back(token.id);
  return out;
}

TEST(Bpe, Byte_WithoutAToken_IsUnknownOrLeftOut) {
  Vocabulary vocabulary;
  vocabulary.add(0, "a");
  vocabulary.add(1, "<unk>");
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(ids(Bpe(vocabulary, {}, {}), "axya"), (Ids{0, 0})) << "left out";
  EXPECT_EQ(ids(Bpe(vocabulary, {}, {.unknown = 1}), "axya"), (Ids{0, 1, 1, 0}));
  EXPECT_EQ(ids(Bpe(vocabulary, {}, {.unknown = 1, .fuse_unknown = true}), "axyax"), (Ids{0, 1, 0, 1}));
}

TEST(Bpe, Merges_WholeWordInVocabulary_AreIgnored) {
  Vocabulary vocabulary;
  for (const char* token : {"a", "b", "c", "ab", "abc"}) vocabulary.add(vocabulary.size(), token);
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(ids(Bpe(vocabulary, ranked_merges(vocabulary, {{"a", "b"}}), {}), "abc"), (Ids{3, 2}));
  EXPECT_EQ(ids(Bpe(vocabulary, ranked_merges(vocabulary, {{"a", "b"}}), {.ignore_merges = true}), "abc"), (Ids{4}));
  EXPECT_EQ(ids(Bpe(vocabulary, ranked_merges(vocabulary, {{"a", "b"}}), {.ignore_merges = true}), "abcabc"),
            (Ids{3, 2, 3, 2}));
}

TEST(Bpe, LongWord_Encoded_TakesNearlyLinearTime) {
  std::mt19937 random(4);
  const Sample sample = random_sample(random, 100);
  const std::string word(2'000'000, 'a');
  std::size_t bytes = 0;
  std::vector<WordToken> tokens;
  Bpe(sample.vocabulary, ranked_merges(sample.vocabulary, sample.merges), {}).encode(tokens, word);
  for (const WordToken& token : tokens) bytes += token.end - token.begin;
  EXPECT_EQ(bytes, word.size());
}

TEST(StringTable, String_Inserted_IsFound) {
  StringTable table;
  EXPECT_EQ(table.find("x"), StringTable::kAbsent);
  for (int i = 0; i < 5000; ++i) EXPECT_EQ(table.insert("key" + std::to_string(i)), i);
  for (int i = 0; i < 5000; ++i) {
    EXPECT_EQ(table.find("key" + std::to_string(i)), i);
    EXPECT_EQ(table.key(i), "key" + std::to_string(i));
  }
  EXPECT_EQ(table.insert("key7"), 7);
  EXPECT_EQ(table.insert(""), 5000);
  EXPECT_EQ(table.find(std::string(1, '\0')), StringTable::kAbsent);
}

}  // namespace
}  // namespace headgate::tokenize
