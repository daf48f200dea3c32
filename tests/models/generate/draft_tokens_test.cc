// SPDX-License-Identifier: Apache-2.0
#include "models/generate/draft_tokens.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace headgate::generate {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(DraftTokens, LastThreeTokens_EarlierInTheText_AreFollowedAsThere) {
  const DraftTokens text(Ids{1, 2, 3, 7, 8, 9, 2, 3, 5, 1, 2, 3});
  EXPECT_EQ(text.next(2), (Ids{7, 8}));
  EXPECT_EQ(text.next(1), Ids{7});
  EXPECT_EQ(text.next(0), Ids());
}

TEST(DraftTokens, LastTwoTokensAlone_SeveralTimes_AreFollowedAsTheLastTime) {
  const DraftTokens text(Ids{2, 3, 4, 2, 3, 6, 9, 2, 3});
  EXPECT_EQ(text.next(2), (Ids{6, 9}));
}

TEST(DraftTokens, Guesses_AtTheEndOfTheText_AreFewer) {
  DraftTokens text(Ids{5, 5, 5});
  EXPECT_EQ(text.next(9), Ids{5});
  text.add(5);
  EXPECT_EQ(text.next(9), Ids{5});
}

TEST(DraftTokens, NewTokens_HaveNoGuess) {
  EXPECT_EQ(DraftTokens(Ids{}).next(4), Ids());
  EXPECT_EQ(DraftTokens(Ids{1, 2}).next(4), Ids());
  DraftTokens text(Ids{1, 2, 3, 1});
  EXPECT_EQ(text.next(4), Ids()) << "one token is no match";
  text.add(2);
  EXPECT_EQ(text.next(4), (Ids{3, 1, 2}));
}

}  // namespace
}  // namespace headgate::generate
