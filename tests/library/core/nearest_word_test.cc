// SPDX-License-Identifier: Apache-2.0
#include "library/core/nearest_word.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace headgate {
namespace {

TEST(EditDistance, Distance_EachKindOfEdit_IsOne) {
  EXPECT_EQ(edit_distance("data", "data"), 0U);
  EXPECT_EQ(edit_distance("dat", "data"), 1U) << "inserted";
  EXPECT_EQ(edit_distance("daata", "data"), 1U) << "removed";
  EXPECT_EQ(edit_distance("dara", "data"), 1U) << "replaced";
  EXPECT_EQ(edit_distance("trian", "train"), 1U) << "swapped";
  EXPECT_EQ(edit_distance("", "data"), 4U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
}

TEST(EditDistance, Distance_HyphenForUnderscore_IsZero) { EXPECT_EQ(edit_distance("seq_len", "seq-len"), 0U); }

TEST(NearestWord, NearestWord_MistypedWord_IsFound) {
  const std::vector<std::string_view> options = {"data", "out", "layers", "seq-len", "stop-at", "steps", "q", "k"};
  EXPECT_EQ(nearest_word("dat", options), "data");
  EXPECT_EQ(nearest_word("seq_length", options), "seq-len");
  EXPECT_EQ(nearest_word("lay", options), "layers") << "its beginning";
  EXPECT_EQ(nearest_word("stpes", options), "steps");
  EXPECT_EQ(nearest_word("frobnicate", options), "");
  EXPECT_EQ(nearest_word("z", options), "") << "any letter is one edit from q";
  EXPECT_EQ(nearest_word("", options), "");
  EXPECT_EQ(nearest_word(std::string(1U << 20, 'x'), options), "");
}

TEST(DidYouMean, DidYouMean_NothingNear_IsEmpty) {
  EXPECT_EQ(did_you_mean("sigmod", {"silu", "sigmoid"}), "; did you mean sigmoid?");
  EXPECT_EQ(did_you_mean("poetry", {"silu", "sigmoid"}), "");
  EXPECT_EQ(word_complaint("sigmod", {"silu", "sigmoid"}), "'sigmod' is none of silu, sigmoid; did you mean sigmoid?");
}

}  // namespace
}  // namespace headgate
