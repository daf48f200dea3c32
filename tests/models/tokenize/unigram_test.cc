// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/unigram.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "models/tokenize/error.hpp"

namespace headgate::tokenize {
namespace {

using Ids = std::vector<std::int32_t>;
constexpr double kNever = std::numeric_limits<double>::quiet_NaN();

struct Sample {
  Vocabulary vocabulary;
  std::vector<double> scores;

  void add(const std::string& spelling, double score) {
    vocabulary.add(vocabulary.size(), spelling);
    scores.push_back(score);
  }
};

Ids ids(const Unigram& model, const std::string& word) {
  std::vector<WordToken> tokens;
  model.encode(tokens, word);
  Ids out;
  std::uint32_t end = 0;
  for (const WordToken& token : tokens) {
    EXPECT_GE(token.begin, end);
    end = token.end;
    out.push_back(token.id);
  }
  EXPECT_LE(end, word.size());
  return out;
}

/// Returns the largest sum of scores of any tokens that spell the word; `unknown` for each character without a token.
double best_sum(const Sample& sample, const std::string& word, double unknown) {
  if (word.empty()) return 0.0;
  double best = -std::numeric_limits<double>::infinity();
  for (std::size_t size = 1; size <= word.size(); ++size) {
    const std::int32_t id = sample.vocabulary.find(word.substr(0, size));
    if (id == kNoToken && size > 1) continue;
    const double score = id == kNoToken ? unknown : sample.scores[static_cast<std::size_t>(id)];
    best = std::max(best, score + best_sum(sample, word.substr(size), unknown));
  }
  return best;
}

TEST(Unigram, Words_RandomScores_HaveTheLargestSum) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Sample sample;
    sample.add("<unk>", -1.0);
    for (int n = 0; n < 12; ++n) {
      std::string spelling;
      for (std::size_t size = 1 + random() % 3; size > 0; --size) spelling += static_cast<char>('a' + random() % 3);
      if (sample.vocabulary.find(spelling) == kNoToken)
        sample.add(spelling, -0.25 * static_cast<double>(random() % 40));
    }
    const double unknown = -20.0;
    const Unigram model(sample.vocabulary, sample.scores, {.unknown_score = unknown});
    for (int n = 0; n < 20; ++n) {
      std::string word;
      for (std::size_t size = random() % 10; size > 0; --size) word += static_cast<char>('a' + random() % 3);
      double sum = 0.0;
      std::size_t known = 0;
      for (const std::int32_t id : ids(model, word)) {
        sum += sample.scores[static_cast<std::size_t>(id)];
        known += sample.vocabulary.spelling(id).size();
      }
      sum += unknown * static_cast<double>(word.size() - known);
      ASSERT_EQ(sum, best_sum(sample, word, unknown)) << word;
    }
  }
}

TEST(Unigram, Scores_Equal_FirstFoundWins) {
  Sample sample;
  for (const char* spelling : {"a", "b", "ab", "ba", "aba"}) sample.add(spelling, -1.0);
  sample.scores = {-1.0, -1.0, -2.0, -2.0, -3.0};
  EXPECT_EQ(ids(Unigram(sample.vocabulary, sample.scores, {}), "aba"), Ids{4}) << "the longest begins first";
}

TEST(Unigram, Characters_WithoutTokens_AreOneUnknownOrBytes) {
  Sample sample;
  sample.add("<unk>", 0.0);
  sample.add("a", -1.0);
  UnigramOptions options{.unknown = 0, .unknown_score = -11.0};
  EXPECT_EQ(ids(Unigram(sample.vocabulary, sample.scores, options), "aé中a"), (Ids{1, 0, 1}));
  options.byte_fallback = true;
  EXPECT_EQ(ids(Unigram(sample.vocabulary, sample.scores, options), "é"), Ids{0}) << "no byte tokens";
  for (int byte = 0; byte < 256; ++byte) sample.add(fmt::format("<0x{:02X}>", byte), -2.0);
  EXPECT_EQ(ids(Unigram(sample.vocabulary, sample.scores, options), "aé\xff"), (Ids{1, 2 + 0xC3, 2 + 0xA9, 2 + 0xFF}));
  options = {};
  EXPECT_EQ(ids(Unigram(sample.vocabulary, sample.scores, options), "aéa"), (Ids{1, 1})) << "left out";
}

TEST(Unigram, Token_WithoutAScore_IsNotFound) {
  Sample sample;
  for (const char* spelling : {"a", "b", "ab"}) sample.add(spelling, -1.0);
  sample.scores[2] = kNever;
  EXPECT_EQ(ids(Unigram(sample.vocabulary, sample.scores, {}), "ab"), (Ids{0, 1}));
}

TEST(Unigram, UnknownRun_ThatIsAToken_BecomesThatToken) {
  Sample sample;
  sample.add("<unk>", 0.0);
  sample.add("xy", -1000.0);
  const Unigram model(sample.vocabulary, sample.scores, {.unknown = 0, .unknown_score = -1.0});
  EXPECT_EQ(ids(model, "xy"), Ids{1});
  EXPECT_EQ(ids(model, "xyx"), Ids{0});
}

TEST(Unigram, ByteTokens_Incomplete_AreRefused) {
  Sample sample;
  sample.add("<0x41>", 0.0);
  EXPECT_THROW(Unigram(sample.vocabulary, sample.scores, {.byte_fallback = true}), TokenizerError);
}

TEST(Unigram, LongWord_Encoded_IsWhole) {
  Sample sample;
  sample.add("aaa", -1.0);
  sample.add("a", -2.0);
  EXPECT_EQ(ids(Unigram(sample.vocabulary, sample.scores, {}), std::string(300'000, 'a')).size(), 100'000U);
}

}  // namespace
}  // namespace headgate::tokenize
