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
#include "models/tokenize/scored_merges.hpp"
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

TEST(Bpe, Characters_WithoutTokens_AreUnknownOrBytes) {
  Vocabulary vocabulary;
  for (const char* token : {"<unk>", "a", "中"}) vocabulary.add(vocabulary.size(), token);
  using Ids = std::vector<std::int32_t>;
  BpeOptions options{.unknown = 0, .characters = true, .byte_fallback = true};
  EXPECT_EQ(ids(Bpe(vocabulary, {}, options), "aé😀中\xff"), (Ids{1, 0, 0, 2, 0})) << "one for each character";
  options.fuse_unknown = true;
  EXPECT_EQ(ids(Bpe(vocabulary, {}, options), "aé😀中\xff"), (Ids{1, 0, 2, 0}));
  for (int byte = 0; byte < 256; ++byte) vocabulary.add(3 + byte, fmt::format("<0x{:02X}>", byte));
  EXPECT_EQ(ids(Bpe(vocabulary, {}, options), "é中\xff"), (Ids{3 + 0xC3, 3 + 0xA9, 2, 3 + 0xFF}));
  options.byte_fallback = false;
  EXPECT_EQ(ids(Bpe(vocabulary, {}, options), "é中"), (Ids{0, 2}));
}

TEST(Bpe, ByteTokens_Incomplete_AreRefused) {
  Vocabulary vocabulary;
  vocabulary.add(0, "<0x41>");
  EXPECT_NO_THROW(Bpe(vocabulary, {}, {.characters = true}));
  EXPECT_THROW(Bpe(vocabulary, {}, {.characters = true, .byte_fallback = true}), TokenizerError);
}

TEST(Bpe, Cuts_BetweenCharactersThatNoMergeJoins_KeepTheTokens) {
  std::mt19937 random(5);
  int cuts = 0;
  for (int round = 0; round < 300; ++round) {
    const Sample sample = random_sample(random, 1 + static_cast<int>(random() % 8));
    const Bpe bpe(sample.vocabulary, ranked_merges(sample.vocabulary, sample.merges), {.characters = true});
    ASSERT_TRUE(bpe.cuts());
    for (int n = 0; n < 20; ++n) {
      std::string word;
      for (std::size_t length = random() % 60; length > 0; --length) word += static_cast<char>('a' + random() % 4);
      std::vector<std::int32_t> parts;
      for (std::size_t begin = 0, at = 1; at <= word.size(); ++at) {
        const bool cut =
            at < word.size() && bpe.may_cut(static_cast<char32_t>(word[at - 1]), static_cast<char32_t>(word[at]));
        if (!cut && at < word.size()) continue;
        cuts += cut ? 1 : 0;
        for (const std::int32_t id : ids(bpe, word.substr(begin, at - begin))) parts.push_back(id);
        begin = at;
      }
      ASSERT_EQ(parts, ids(bpe, word)) << word;
    }
  }
  EXPECT_GT(cuts, 1000);
}

TEST(Bpe, Cuts_WhereTokensDoNotSpellTheirText_AreNotMade) {
  Vocabulary vocabulary;
  for (const char* token : {"<unk>", "a", "b", "ab", "<unk>a"}) vocabulary.add(vocabulary.size(), token);
  const auto bpe = [&](const MergeList& merges, BpeOptions options) {
    options.characters = true;
    return Bpe(vocabulary, ranked_merges(vocabulary, merges), options);
  };
  const BpeOptions fused{.unknown = 0, .fuse_unknown = true};
  EXPECT_FALSE(bpe({{"a", "b"}}, {}).may_cut('a', 'b'));
  EXPECT_TRUE(bpe({{"a", "b"}}, {}).may_cut('b', 'a'));
  EXPECT_TRUE(bpe({{"a", "b"}}, fused).may_cut('a', U'é'));
  EXPECT_FALSE(bpe({{"a", "b"}}, fused).may_cut(U'é', U'中')) << "one unknown token";
  EXPECT_TRUE(bpe({{"a", "b"}}, {.unknown = 0}).may_cut(U'é', U'中')) << "two unknown tokens";
  EXPECT_FALSE(bpe({{"<unk>", "a"}}, {.unknown = 0}).cuts()) << "an unknown character would be merged";
  EXPECT_FALSE(bpe({{"a", "b"}}, {.ignore_merges = true}).cuts()) << "whole words are looked up";
  EXPECT_FALSE(Bpe(vocabulary, {}, {}).cuts()) << "words of bytes come from a pre-tokenizer";
}

TEST(Bpe, Characters_WithoutATokenOrAnUnknownToken_LetTheirNeighboursMerge) {
  Vocabulary vocabulary;
  for (const char* token : {"a", "b", "ab", "abab"}) vocabulary.add(vocabulary.size(), token);
  const Bpe bpe(vocabulary, ranked_merges(vocabulary, {{"a", "b"}, {"ab", "ab"}}), {.characters = true});
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(ids(bpe, "aéb"), (Ids{2})) << "as PyPI's tokenizers";
  EXPECT_EQ(ids(bpe, "aé中béaéb"), (Ids{3}));
  EXPECT_FALSE(bpe.may_cut('a', U'é'));
  EXPECT_FALSE(bpe.may_cut(U'é', 'b'));
  EXPECT_TRUE(bpe.may_cut('a', 'a'));
  std::string word(200, 'a');  // of many tokens
  for (std::size_t at = word.size(); at > 0; --at) word.insert(at, "éb");
  EXPECT_EQ(ids(bpe, word), Ids(100, 3));
  std::vector<WordToken> tokens;
  bpe.encode(tokens, "aéb");
  EXPECT_EQ(bpe.spelled_bytes(tokens.front()), 2U);
  EXPECT_EQ(tokens.front().end, 4U);
}

TEST(ScoredMerges, Merges_OfOneToken_HaveTheSameRank) {
  Vocabulary vocabulary;
  for (const char* token : {"a", "aa", "aaa", "b", "<s>", "ab"}) vocabulary.add(vocabulary.size(), token);
  const double never = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> scores{0.0, -2.0, -1.0, 0.0, never, -2.0};
  const auto merges = merges_by_score(vocabulary, scores);
  std::vector<std::vector<int>> rows;
  rows.reserve(merges.size());
  for (const RankedMerge& merge : merges)
    rows.push_back({merge.left, merge.right, merge.id, static_cast<int>(merge.rank)});
  EXPECT_EQ(rows, (std::vector<std::vector<int>>{{1, 0, 2, 1}, {0, 1, 2, 1}, {0, 0, 1, 2}, {0, 3, 5, 2}}));
  const Bpe bpe(vocabulary, merges, {.characters = true});
  EXPECT_EQ(ids(bpe, "aaaa"), (std::vector<std::int32_t>{2, 0}));
  EXPECT_EQ(ids(bpe, "aab"), (std::vector<std::int32_t>{1, 3})) << "the leftmost of equal scores";
}

TEST(ScoredMerges, Tokens_TooLong_AreRefused) {
  Vocabulary vocabulary;
  vocabulary.add(0, std::string(1 << 16, 'a'));
  EXPECT_THROW(merges_by_score(vocabulary, {0.0}), TokenizerError);
}

TEST(CharacterPairs, Pair_Inserted_IsContained) {
  CharacterPairs pairs;
  EXPECT_FALSE(pairs.contains(U'中', 'a'));
  for (char32_t c = 1; c < 2000; ++c) pairs.insert(c, c + 7);
  for (char32_t c = 1; c < 2000; ++c) {
    ASSERT_TRUE(pairs.contains(c, c + 7));
    ASSERT_FALSE(pairs.contains(c + 7, c));
  }
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
