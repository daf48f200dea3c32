// SPDX-License-Identifier: Apache-2.0
#include "models/data/text.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/data/prose.hpp"
#include "models/data/random.hpp"
#include "models/io/scratch.hpp"

namespace headgate::train {
namespace {

using testing::Scratch;

constexpr std::int64_t kTextLength = 16;

class TextTest : public ::testing::Test {
 protected:
  TextSource source(const std::string& text, Split split = Split::training_and_tail, std::uint64_t seed = 1,
                    Bos bos = Bos::off) const {
    testing::write_bytes(scratch / "text", text);
    DataOptions options;
    options.seq_len = kTextLength;
    options.seed = seed;
    options.split = split;
    options.bos = bos;
    return TextSource(Corpus({scratch / "text"}), options);
  }

  Scratch scratch;
};

struct Sequence {
  std::vector<std::int32_t> tokens = std::vector<std::int32_t>(kTextLength);
  std::vector<std::int32_t> targets = std::vector<std::int32_t>(kTextLength);
  std::string text() const { return std::string(tokens.begin(), tokens.end()) + static_cast<char>(targets.back()); }
};

Sequence training(const TextSource& source, std::int64_t index) {
  Sequence s;
  source.training_sequence(s.tokens.data(), s.targets.data(), index);
  return s;
}

Sequence held_out(const TextSource& source, std::int64_t index) {
  Sequence s;
  source.held_out_sequence(s.tokens.data(), s.targets.data(), index);
  return s;
}

TEST_F(TextTest, Targets_AnySequence_FollowTheirTokensOutsideTheTail) {
  const std::string text = testing::prose(2000);
  const TextSource text_source = source(text);
  const std::string trained = text.substr(0, static_cast<std::size_t>(text_source.trained_bytes()));
  EXPECT_EQ(trained.size(), 1900U);
  for (std::int64_t i = 0; i < 500; ++i) {
    const Sequence s = training(text_source, i);
    ASSERT_TRUE(std::equal(s.tokens.begin() + 1, s.tokens.end(), s.targets.begin()));
    ASSERT_NE(trained.find(s.text()), std::string::npos) << i;
  }
}

TEST_F(TextTest, Epoch_AnyOffset_VisitsEveryWindowOnce) {
  // Every byte pair identifies its offset, and so does a window's text.
  std::string text;
  for (char a = 'a'; a <= 'z'; ++a) {
    for (char b = 'A'; b <= 'Z'; ++b) text += {a, b};
  }
  const TextSource text_source = source(text);
  const std::int64_t windows = (text_source.trained_bytes() - kTextLength) / kTextLength;
  std::set<std::size_t> first, second;
  for (std::int64_t i = 0; i < windows; ++i) {
    first.insert(text.find(training(text_source, i).text()));
    second.insert(text.find(training(text_source, windows + i).text()));
  }
  EXPECT_EQ(first.size(), static_cast<std::size_t>(windows));
  EXPECT_EQ(second.size(), static_cast<std::size_t>(windows));
  EXPECT_NE(*first.begin(), *second.begin()) << "epochs cut at different offsets";
  for (const std::size_t at : first) EXPECT_EQ(at % kTextLength, *first.begin() % kTextLength);
}

TEST_F(TextTest, Tail_HeldOut_IsReadFromItsStartWithoutGaps) {
  const std::string text = testing::prose(2000);
  const TextSource text_source = source(text);
  ASSERT_EQ(text_source.held_out_count(), (100 - 1) / kTextLength);
  for (std::int64_t i = 0; i < text_source.held_out_count(); ++i) {
    EXPECT_EQ(held_out(text_source, i).text(),
              text.substr(static_cast<std::size_t>(1900 + i * kTextLength), kTextLength + 1));
  }
  EXPECT_EQ(source(text, Split::all_held_out).held_out_count(), (2000 - 1) / kTextLength);
  EXPECT_EQ(held_out(source(text, Split::all_held_out), 1).text(), text.substr(kTextLength, kTextLength + 1));
}

TEST_F(TextTest, Text_OfTheSmallestSize_IsAccepted) {
  const std::string text = testing::prose(2 * (kTextLength + 1));
  const TextSource text_source = source(text);
  EXPECT_EQ(text_source.held_out_count(), 1);
  EXPECT_EQ(held_out(text_source, 0).text(), text.substr(kTextLength + 1));
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(training(text_source, i).text(), text.substr(0, kTextLength + 1));
  EXPECT_THROW(source(testing::prose(2 * kTextLength + 1)), Error);
  EXPECT_THROW(source(testing::prose(kTextLength), Split::all_held_out), Error);
}

TEST_F(TextTest, Order_OtherSeed_Differs) {
  const std::string text = testing::prose(4000);
  const TextSource a = source(text), b = source(text), c = source(text, Split::training_and_tail, 2);
  int same = 0;
  for (std::int64_t i = 0; i < 50; ++i) {
    ASSERT_EQ(training(a, i).text(), training(b, i).text());
    same += training(a, i).text() == training(c, i).text() ? 1 : 0;
  }
  EXPECT_LT(same, 25);
}

TEST(Random, Permuted_EveryIndex_IsAPermutation) {
  for (const std::int64_t n : {1, 2, 3, 5, 16, 17, 100, 1000}) {
    std::set<std::int64_t> places;
    for (std::int64_t i = 0; i < n; ++i) {
      places.insert(permuted(i, n, 7));
      ASSERT_LT(permuted(i, n, 7), n);
    }
    EXPECT_EQ(std::ssize(places), n);
  }
}

TEST_F(TextTest, Sequence_WithBos_HoldsBosAndTheBytesBeforeItsTargets) {
  const std::string text = testing::prose(4000);
  const TextSource plain = source(text), bos = source(text, Split::training_and_tail, 1, Bos::on);
  EXPECT_EQ(plain.vocab(), 256);
  EXPECT_EQ(bos.vocab(), 257);
  EXPECT_EQ(plain.held_out_count(), bos.held_out_count());
  for (const bool held_out : {false, true}) {
    Sequence a, b;
    const auto read = [&](const TextSource& from, Sequence& to) {
      held_out ? from.held_out_sequence(to.tokens.data(), to.targets.data(), 3)
               : from.training_sequence(to.tokens.data(), to.targets.data(), 3);
    };
    read(plain, a);
    read(bos, b);
    EXPECT_EQ(b.tokens.front(), kBos);
    EXPECT_EQ(std::vector<std::int32_t>(b.tokens.begin() + 1, b.tokens.end()),
              std::vector<std::int32_t>(b.targets.begin(), b.targets.end() - 1));
    EXPECT_EQ(b.targets, a.tokens) << "the targets are the bytes of the window";
  }
}

}  // namespace
}  // namespace headgate::train
