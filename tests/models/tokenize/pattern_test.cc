// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/pattern.hpp"

#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <vector>

#include "models/tokenize/error.hpp"
#include "models/tokenize/pattern_syntax.hpp"
#include "models/tokenize/pre_tokenizer.hpp"
#include "support/german_locale.hpp"

namespace headgate::tokenize {
namespace {

std::vector<std::string> pieces_of(const SplitStep& step, const std::string& text) {
  std::vector<Slice> slices;
  PieceCutter(step).next(slices, text, More::none);
  std::vector<std::string> out;
  out.reserve(slices.size());
  for (const auto& [span, more] : slices) {
    EXPECT_EQ(more, More::none);
    out.push_back(text.substr(span.begin, span.end - span.begin));
  }
  return out;
}

using Pieces = std::vector<std::string>;

TEST(Pattern, Pattern_OfGpt2_CutsItsWords) {
  const SplitStep step{.pattern = Pattern(kGpt2Pattern)};
  EXPECT_EQ(pieces_of(step, "I'll say  it's 42nd, né?\n\n ok"),
            (Pieces{"I", "'ll", " say", " ", " it", "'s", " 42", "nd", ",", " né", "?", "\n\n", " ok"}));
}

TEST(Pattern, Pattern_OfOtherModels_CutsTheirNumbers) {
  EXPECT_EQ(pieces_of({.pattern = Pattern(kLlama3Pattern)}, "IT'S 12345!\n\n x"),
            (Pieces{"IT", "'S", " ", "123", "45", "!\n\n", " x"}));
  EXPECT_EQ(pieces_of({.pattern = Pattern(kQwen2Pattern)}, "a12 \n b"), (Pieces{"a", "1", "2", " \n", " b"}));
}

TEST(Pattern, Pattern_EachOfFiveBehaviors_CutsAsTokenizersDoes) {
  SplitStep step{.pattern = Pattern("-")};
  const auto with = [&step](SplitBehavior behavior, bool invert = false) {
    step.behavior = behavior;
    step.invert = invert;
    return pieces_of(step, "the-final--countdown-");
  };
  EXPECT_EQ(with(SplitBehavior::removed), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(with(SplitBehavior::isolated), (Pieces{"the", "-", "final", "-", "-", "countdown", "-"}));
  EXPECT_EQ(with(SplitBehavior::merged_with_previous), (Pieces{"the-", "final-", "-", "countdown-"}));
  EXPECT_EQ(with(SplitBehavior::merged_with_next), (Pieces{"the", "-final", "-", "-countdown", "-"}));
  EXPECT_EQ(with(SplitBehavior::contiguous), (Pieces{"the", "-", "final", "--", "countdown", "-"}));
  EXPECT_EQ(with(SplitBehavior::removed, true), (Pieces{"-", "-", "-", "-"}));
}

TEST(Pattern, EmptyMatch_Found_Cuts) {
  EXPECT_EQ(pieces_of({.pattern = Pattern("(?=é)")}, "aéé"), (Pieces{"a", "é", "é"}));
  for (const bool invert : {false, true}) {
    const auto pieces = [invert](SplitBehavior behavior) {
      return pieces_of({.pattern = Pattern("\\p{L}|"), .behavior = behavior, .invert = invert}, "  a  b");
    };
    EXPECT_EQ(pieces(SplitBehavior::contiguous), (Pieces{" ", " ", "a", " ", " ", "b"})) << invert;
    EXPECT_EQ(pieces(SplitBehavior::isolated), (Pieces{" ", " ", "a", " ", " ", "b"})) << invert;
  }
}

TEST(Pattern, Match_FarFromTheStart_IsFound) {
  std::string text(20000, 'a');
  text += "é1";
  EXPECT_EQ(pieces_of({.pattern = Pattern("1")}, text).size(), 2U);
  std::string wide;
  for (int i = 0; i < 5000; ++i) wide += "中";
  EXPECT_EQ(pieces_of({.pattern = Pattern("\\p{N}")}, wide + "1").size(), 2U);
}

TEST(PatternSyntax, Syntax_OfOniguruma_IsRewritten) {
  EXPECT_EQ(pcre_syntax(R"(\s[^\S\r\n\d]\u00e9\x{1F600}\v)"),
            R"(\p{White_Space}[^\P{White_Space}\r\n\p{Nd}]\x{e9}\x{1f600}\x{b})");
  EXPECT_EQ(pcre_syntax(R"(\p{L}\p{Han}$)"), R"(\p{L}\p{sc:Han}(?=\n|\z))");
  EXPECT_EQ(pcre_syntax(R"((?i:'s)|[^\r\n\p{L}]?+(?=a{1,3}))"), R"((?i:'s)|[^\r\n\p{L}]?+(?=a{1,3}))");
  EXPECT_EQ(quoted_pattern("a.b[é"), "a\\.b\\[é");
}

TEST(PatternSyntax, Syntax_NotSupported_IsRefusedByName) {
  const auto reason = [](const std::string& regex) -> std::string {
    try {
      const Pattern pattern(regex);
    } catch (const TokenizerError& error) {
      return error.what();
    }
    return "taken";
  };
  EXPECT_EQ(reason(R"(\w+)"), R"('\w' is not supported)");
  EXPECT_EQ(reason(R"(\R)"), R"('\R' is not supported)");
  EXPECT_EQ(reason("^a"), "'^' outside of [] is not supported");
  EXPECT_EQ(reason("[a[b]]"), "a '[' inside of [] is not supported");
  EXPECT_EQ(reason("[a&&b]"), "'&&' inside of [] is not supported");
  EXPECT_EQ(reason("(?i)a"), "'(?i)' is not supported");
  EXPECT_EQ(reason("(*UTF)a"), "'(*' is not supported");
  EXPECT_EQ(reason("a{1,3}+"), "a '+' after a repetition in braces is not supported");
  EXPECT_EQ(reason("a{,3}"), "a '{' that begins no repetition {n}, {n,} or {n,m}");
  EXPECT_EQ(reason(R"((?i:\p{Lu}))"), R"('\p{Lu}' inside of '(?i:' is not supported)");
  EXPECT_EQ(reason(R"(\p{Latin1}))"), R"('\p{Latin1}' is not supported)");
  EXPECT_EQ(reason("[a"), "a '[' without its ']'");
  EXPECT_EQ(reason("a\\"), "a '\\' at the end");
  EXPECT_EQ(reason(std::string(9000, 'a')), "longer than 8192 bytes");
  for (const char* bad : {"(", ")", "*", "a**", "\\p{Klingon}", "(?<=a+)b", "[z-a]", "a{99999}"}) {
    EXPECT_NE(reason(bad), "taken") << bad;
  }
}

TEST(PatternSyntax, Syntax_CharacterSetOfTheLocale_DoesNotMatter) {
  const support::GermanLocale german("ISO-8859-1");
  EXPECT_NE(std::ispunct(0xAB), 0);
  EXPECT_EQ(quoted_pattern("a.«"), "a\\.«");  // both bytes of « are punctuation there
}

TEST(Pattern, Backtracking_BeyondTheLimit_IsAnError) {
  SplitStep step{.pattern = Pattern("(a|aa)+[bc]")};
  EXPECT_THROW(pieces_of(step, std::string(100, 'a')), TokenizerError);
}

}  // namespace
}  // namespace headgate::tokenize
