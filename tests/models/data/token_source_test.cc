// SPDX-License-Identifier: Apache-2.0
#include "models/data/token_source.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/data/text.hpp"
#include "models/io/scratch.hpp"
#include "models/layers/cross_entropy.hpp"
#include "models/tokenize/golden.hpp"
#include "models/tokenize/open.hpp"

namespace headgate::train {
namespace {

using Ids = std::vector<std::int32_t>;

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

struct TokenSequence {
  Ids tokens, targets;

  TokenSequence(const SequenceSource& source, std::int64_t index)
      : tokens(static_cast<std::size_t>(source.seq_len()), -7), targets(tokens) {
    source.held_out_sequence(tokens.data(), targets.data(), index);
  }
};

TEST(TokenSource, Ids_AnyNumber_AreCutIntoSequences) {
  const TokenSource source({"t", {10, 11, 12, 13, 14, 15, 16, 17}, {}, {}, {}}, 3);
  EXPECT_EQ(source.held_out_count(), 2);
  EXPECT_EQ(source.vocab(), 18);
  EXPECT_EQ(TokenSequence(source, 0).tokens, (Ids{10, 11, 12}));
  EXPECT_EQ(TokenSequence(source, 0).targets, (Ids{11, 12, 13}));
  EXPECT_EQ(TokenSequence(source, 1).tokens, (Ids{13, 14, 15}));
  EXPECT_EQ(TokenSequence(source, 1).targets, (Ids{14, 15, 16}));
  EXPECT_FALSE(source.target_text(0).has_value()) << "nobody knows the text of bare ids";
}

/// With a token before every sequence, each id is a target, including the first.
TEST(TokenSource, Front_EverySequence_StandsFirst) {
  const TokenSource one({"t", {10, 11, 12, 13, 14, 15}, {1, 2, 3, 4, 5, 6}, {99}, {}}, 3);
  ASSERT_EQ(one.held_out_count(), 2);
  EXPECT_EQ(one.vocab(), 100);
  EXPECT_EQ(TokenSequence(one, 0).tokens, (Ids{99, 10, 11}));
  EXPECT_EQ(TokenSequence(one, 0).targets, (Ids{10, 11, 12}));
  EXPECT_EQ(TokenSequence(one, 1).tokens, (Ids{99, 13, 14}));
  EXPECT_EQ(TokenSequence(one, 1).targets, (Ids{13, 14, 15}));
  EXPECT_EQ(one.target_text(1)->targets, 3);
  EXPECT_EQ(one.target_text(1)->bytes, 4 + 5 + 6);
  const TokenSource two({"t", {10, 11, 12, 13, 14, 15}, {1, 2, 3, 4, 5, 6}, {98, 99}, {}}, 3);
  ASSERT_EQ(two.held_out_count(), 3);
  EXPECT_EQ(TokenSequence(two, 2).tokens, (Ids{98, 99, 14}));
  EXPECT_EQ(TokenSequence(two, 2).targets, (Ids{layers::kIgnoredTarget, 14, 15}));
  EXPECT_EQ(two.target_text(2)->targets, 2);
  EXPECT_EQ(two.target_text(2)->bytes, 5 + 6);
  EXPECT_EQ(refusal([] {
              TokenSource({"t", {1, 2, 3}, {}, {7, 8, 9}, {}}, 2);
            }),
            "a sequence of 2 tokens has no room for the 3 in front of it");
  EXPECT_EQ(refusal([] {
              TokenSource({"t", {1, 2, 3}, {}, {}, {}}, 3);
            }),
            "t: 3 token ids but a sequence of 3 takes 4");
  EXPECT_EQ(refusal([] { TokenSource({"t", {1, -2, 3}, {}, {}, {}}, 2); }), "t: a token id is -2");
}

TEST(TokenSource, LongestSequence_AnyIds_HasEveryToken) {
  for (const Ids& front : {Ids{}, Ids{7}, Ids{7, 8}}) {
    const TokenText text{"t", {1, 2, 3, 4}, {}, front, {}};
    EXPECT_EQ(TokenSource(text, text.longest()).held_out_count(), 1);
    EXPECT_THROW(TokenSource(text, text.longest() + 1), Error);
  }
}

class TokenTextTest : public ::testing::Test {
 protected:
  Corpus corpus(const std::string& text) {
    testing::write_bytes(scratch_ / "text", text);
    return Corpus({scratch_ / "text"});
  }
  static TokenText tokens(const Corpus& corpus, const std::string& kind, std::int64_t begin = 0) {
    return token_text(corpus, begin, corpus.size(), *tokenize::open_tokenizer(testing::golden_path(kind)));
  }
  static std::int64_t sum(const Ids& bytes) {
    std::int64_t out = 0;
    for (const std::int32_t count : bytes) out += count;
    return out;
  }

 private:
  testing::Scratch scratch_;
};

TEST_F(TokenTextTest, Bytes_OfAText_BelongEachToOneToken) {
  const std::string text = "The caf\xC3\xA9 of 1984, \xE2\x82\xAC 5\n\xF0\x9F\x98\x80 e\xCC\x81!";
  for (const char* kind : {"gpt2", "llama-bpe", "qwen2", "smollm"}) {
    const TokenText out = tokens(corpus(text), kind);
    EXPECT_EQ(out.ids.size(), out.bytes.size()) << kind;
    EXPECT_EQ(sum(out.bytes), static_cast<std::int64_t>(text.size())) << kind;
    EXPECT_EQ(out.front, std::string(kind) == "llama-bpe" ? Ids{1} : Ids{}) << kind;
  }
}

TEST_F(TokenTextTest, Beginning_CutWithinACharacter_EndsBeforeIt) {
  const Corpus all = corpus("gate \xE2\x82\xAC sink");  // bytes 5 to 7 are one character
  const auto tokenizer = tokenize::open_tokenizer(testing::golden_path("gpt2"));
  for (const std::int64_t end : {6, 7, 8, 9}) {
    const TokenText out = token_text(all, 0, end, *tokenizer);
    EXPECT_EQ(sum(out.bytes), end <= 8 ? 5 : 8) << end << ": its last character is left out";
    EXPECT_EQ(out.left_out.bytes, 0) << end;
  }
  EXPECT_EQ(token_text(all, 0, 1000, *tokenizer).ids, tokens(all, "gpt2").ids);
}

TEST_F(TokenTextTest, Tail_CutWithinACharacter_BeginsAfterIt) {
  const TokenText whole = tokens(corpus(" y z"), "gpt2");
  const Corpus text = corpus("x\xE2\x82\xAC y z");
  for (const std::int64_t begin : {2, 3, 4}) {
    const TokenText tail = tokens(text, "gpt2", begin);
    EXPECT_EQ(tail.ids, whole.ids) << begin;
    EXPECT_EQ(sum(tail.bytes), 4) << begin;
  }
}

TEST(HeldOutBegin, HeldOutBegin_SameText_IsWhereTrainingEnds) {
  EXPECT_EQ(held_out_begin("text", 1000, 16), 950);
  EXPECT_EQ(held_out_begin("text", 100, 16), 83) << "at least a sequence and its last target";
  EXPECT_EQ(held_out_begin("text", std::int64_t{1} << 30, 16), (std::int64_t{1} << 30) - (std::int64_t{4} << 20));
  EXPECT_THROW(held_out_begin("text", 33, 16), Error);
}

}  // namespace
}  // namespace headgate::train
