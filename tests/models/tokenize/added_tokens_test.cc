// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/added_tokens.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "models/tokenize/charsmap_bytes.hpp"
#include "models/tokenize/error.hpp"

namespace headgate::tokenize {
namespace {

using Texts = std::vector<std::string>;

/// Returns the segments of `text`, with tokens in braces.
Texts segments_of(const AddedTokens& tokens, const std::string& text, bool special_as_text = false) {
  std::vector<Segment> segments;
  AddedTokenSearch(tokens, special_as_text).next(segments, text, More::none);
  Texts out;
  for (const Segment& segment : segments) {
    const std::string piece = text.substr(segment.span.begin, segment.span.end - segment.span.begin);
    out.push_back(segment.token == nullptr ? piece : "{" + piece + "}");
  }
  return out;
}

TEST(AddedTokens, Match_SeveralCandidates_IsTheLeftmostAndLongest) {
  const AddedTokens tokens({{1, "<a>"}, {2, "<a>b"}, {3, "b<"}, {4, "é"}});
  EXPECT_EQ(segments_of(tokens, "x<a>bé<a>"), (Texts{"x", "{<a>b}", "{é}", "{<a>}"}));
  EXPECT_EQ(segments_of(tokens, "b<a>"), (Texts{"{b<}", "a>"}));
  EXPECT_EQ(segments_of(tokens, "<a"), (Texts{"<a"}));
  EXPECT_EQ(segments_of(tokens, ""), Texts{});
  EXPECT_EQ(segments_of(AddedTokens(), "<a>"), Texts{"<a>"});
}

TEST(AddedTokens, Match_StripOptions_TakesWhiteSpace) {
  const AddedTokens tokens({{.id = 1, .content = "L", .lstrip = true}, {.id = 2, .content = "R", .rstrip = true}});
  EXPECT_EQ(segments_of(tokens, "a \u3000\nL b"), (Texts{"a", "{ \u3000\nL}", " b"}));
  EXPECT_EQ(segments_of(tokens, "a R \u00a0b"), (Texts{"a ", "{R \u00a0}", "b"}));
  EXPECT_EQ(segments_of(tokens, "R  L"), (Texts{"{R  }", "{L}"}));
}

TEST(AddedTokens, SpaceThatTakesSpace_LongRun_TakesTimeOfItsLength) {
  // Looking for white space before the previous token too would take many minutes.
  const AddedTokens tokens({{.id = 1, .content = "\n", .lstrip = true}});
  constexpr std::size_t kRun = 300000;
  EXPECT_EQ(segments_of(tokens, "a \n" + std::string(kRun, '\n')).size(), kRun + 2);
}

TEST(AddedTokens, SingleWordToken_WithinAWord_IsNotMatched) {
  const AddedTokens tokens({{.id = 1, .content = "ok", .single_word = true}});
  EXPECT_EQ(segments_of(tokens, "ok oké look ok-ok"), (Texts{"{ok}", " oké look ", "{ok}", "-", "{ok}"}));
}

TEST(AddedTokens, SpecialToken_SpecialsOff_IsText) {
  const AddedTokens tokens({{.id = 1, .content = "<s>", .special = true}, {.id = 2, .content = "s>"}});
  EXPECT_EQ(segments_of(tokens, "a<s>s>"), (Texts{"a", "{<s>}", "{s>}"}));
  EXPECT_EQ(segments_of(tokens, "a<s>s>", true), (Texts{"a<s>", "{s>}"}));
}

TEST(AddedTokens, NormalizedToken_Text_IsMatchedInFormC) {
  const AddedTokens tokens({{.id = 1, .content = "e\u0301", .normalized = true}},
                           {.form_c = true, .space = {}, .prefix = {}});
  EXPECT_EQ(segments_of(tokens, "a\u00E9"), (Texts{"a", "{\u00E9}"}));
  EXPECT_EQ(segments_of(tokens, "e\u0301"), (Texts{"e\u0301"}));
}

TEST(AddedTokens, NormalizedToken_WithAnEmptyForm_IsRefused) {
  NormalForm form;
  form.charsmap = std::make_shared<const Charsmap>(headgate::testing::CharsmapBytes::of({{"\x01", ""}}).bytes());
  try {
    const AddedTokens tokens({{.id = 1, .content = "\x01\x01", .normalized = true}}, form);
    ADD_FAILURE() << "taken";
  } catch (const TokenizerError& error) {
    EXPECT_STREQ(error.what(), R"(added token '\x01\x01': its normal form is empty)");
  }
}

}  // namespace
}  // namespace headgate::tokenize
