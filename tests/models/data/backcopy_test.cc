// SPDX-License-Identifier: Apache-2.0
#include "models/data/backcopy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/data/prose.hpp"
#include "models/io/scratch.hpp"

namespace headgate::train {
namespace {

using testing::Scratch;

constexpr std::int64_t kT = 64;
constexpr std::int64_t kSequences = 2000;

bool trigger(std::int32_t token) { return token == 't' || token == 'e' || token == ' '; }

class BackcopyTest : public ::testing::Test {
 protected:
  BackcopySource source(const std::string& text) const {
    testing::write_bytes(scratch / "text", text);
    DataOptions options;
    options.seq_len = kT;
    options.task = Task::bigram_backcopy;
    return {Corpus({scratch / "text"}), options};
  }

  Scratch scratch;
};

using Tokens = std::vector<std::int32_t>;

/// Returns T tokens and the last target.
Tokens training(const BackcopySource& source, std::int64_t index) {
  Tokens tokens(kT + 1), targets(kT);
  source.training_sequence(tokens.data(), targets.data(), index);
  tokens.back() = targets.back();
  EXPECT_TRUE(std::equal(targets.begin(), targets.end(), tokens.begin() + 1));
  return tokens;
}

TEST_F(BackcopyTest, Sequence_AnyIndex_BeginsWithBosAndCopiesAfterTriggers) {
  const BackcopySource backcopy = source(testing::prose(5000));
  std::int64_t copies = 0;
  for (std::int64_t i = 0; i < kSequences; ++i) {
    const Tokens x = training(backcopy, i);
    ASSERT_EQ(x[0], kBos);
    ASSERT_FALSE(trigger(x[1]));
    for (std::size_t j = 1; j + 1 < x.size(); ++j) {
      ASSERT_NE(x[j], kBos);
      if (!trigger(x[j])) continue;
      ASSERT_EQ(x[j + 1], x[j - 1]);
      ASSERT_FALSE(trigger(x[j + 1]));
      ++copies;
    }
  }
  EXPECT_GT(copies, kSequences);
}

TEST_F(BackcopyTest, Bytes_NotCopied_FollowAsOftenAsInTheText) {
  const std::string text = testing::prose(20000);
  std::map<char, std::map<char, double>> follows;
  std::map<char, double> seen;
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    follows[text[i]][text[i + 1]] += 1.0;
    seen[text[i]] += 1.0;
  }
  const BackcopySource backcopy = source(text);
  std::map<char, std::map<char, double>> drawn;
  std::map<char, double> total;
  for (std::int64_t i = 0; i < kSequences; ++i) {
    const Tokens x = training(backcopy, i);
    for (std::size_t j = 1; j + 1 < x.size(); ++j) {
      if (trigger(x[j])) continue;
      drawn[static_cast<char>(x[j])][static_cast<char>(x[j + 1])] += 1.0;
      total[static_cast<char>(x[j])] += 1.0;
    }
  }
  for (const auto& [byte, counts] : drawn) {
    for (const auto& [next, count] : counts) {
      const double share = follows[byte][next] / seen[byte];
      // Allows five standard deviations of a share drawn total[byte] times.
      EXPECT_NEAR(count / total[byte], share, 5.0 * std::sqrt(share * (1.0 - share) / total[byte]) + 1e-12)
          << byte << next;
    }
  }
}

TEST_F(BackcopyTest, Sequence_SameIndex_IsTheSame) {
  const BackcopySource backcopy = source(testing::prose(5000));
  const Tokens fifth = training(backcopy, 5);
  EXPECT_NE(training(backcopy, 6), fifth);
  EXPECT_EQ(training(backcopy, 5), fifth);
  Tokens tokens(kT), targets(kT);
  backcopy.held_out_sequence(tokens.data(), targets.data(), 5);
  EXPECT_NE(tokens, Tokens(fifth.begin(), fifth.end() - 1)) << "held-out sequences are others";
}

TEST_F(BackcopyTest, Byte_WithoutAFollower_IsFollowedByAFirstByte) {
  const BackcopySource backcopy = source("aaz");
  for (std::int64_t i = 0; i < 50; ++i) {
    for (const std::int32_t token : training(backcopy, i)) ASSERT_TRUE(token == kBos || token == 'a' || token == 'z');
  }
}

TEST_F(BackcopyTest, Text_OnlyTriggers_IsRefused) {
  EXPECT_THROW(source("tet te"), Error);
  EXPECT_THROW(source("a"), Error);
}

}  // namespace
}  // namespace headgate::train
