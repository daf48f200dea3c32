// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/charsmap.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "models/tokenize/charsmap_bytes.hpp"
#include "models/tokenize/error.hpp"
#include "models/tokenize/normalize.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

using headgate::testing::CharsmapBytes;

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const TokenizerError& error) {
    return error.what();
  }
  return "(accepted)";
}

NormalForm form_of(const std::map<std::string, std::string>& table, const std::string& space = {}) {
  return {.form_c = false,
          .space = space,
          .prefix = {},
          .charsmap = std::make_shared<const Charsmap>(CharsmapBytes::of(table).bytes())};
}

TEST(Charsmap, KeyAtTheFront_HasItsReplacement) {
  const Charsmap map(CharsmapBytes::of({{"a", "xy"}, {"\u00e9", ""}, {"bcd", "z"}}).bytes());
  EXPECT_EQ(map.find("abc"), "xy");
  EXPECT_EQ(map.find("\u00e9"), "");
  EXPECT_EQ(map.find("bcde"), "z");
  for (const std::string text : {"", "b", "bc", "c", "\u00e8"}) EXPECT_FALSE(map.find(text).has_value()) << text;
  EXPECT_FALSE(map.find(std::string("\0a", 2)).has_value());
}

TEST(Charsmap, TwoKeysAtTheFront_TheShorterHasItsReplacement) {
  const Charsmap map(CharsmapBytes::of({{"a", "1"}, {"ab", "2"}}).bytes());
  EXPECT_EQ(map.find("ab"), "1");
}

TEST(Charsmap, SizesThatContradict_AreRefused) {
  const std::string good = CharsmapBytes::of({{"a", "b"}}).bytes();
  EXPECT_EQ(refusal([] { Charsmap(""); }), "a table of 0 bytes, which has no size");
  for (const std::size_t size : {0x10000U, 0U, 6U}) {
    std::string bad = good;
    bad[0] = static_cast<char>(size & 0xFF);
    bad[1] = static_cast<char>(size >> 8 & 0xFF);
    bad[2] = static_cast<char>(size >> 16);
    EXPECT_NE(refusal([&] { Charsmap map(bad); }).find("only multiples of 4 that fit are supported"), std::string::npos)
        << size;
  }
  EXPECT_EQ(refusal([&] { Charsmap map(good + "\xff"); }), "replacements that are not UTF-8");
}

TEST(Charsmap, TrieThatLeadsAstray_IsRefusedWhenAText_GetsThere) {
  CharsmapBytes bytes = CharsmapBytes::of({{"a", "\u00e9"}});
  bytes.units[0] = 0x3FFFFFU << 10;
  const Charsmap out(bytes.bytes());
  EXPECT_NE(refusal([&] { out.find("a"); }).find("the trie leads to unit"), std::string::npos);

  bytes = CharsmapBytes::of({{"a", "\u00e9"}});
  for (const std::uint32_t value : {1U, 4U, 0x7FFFFFFFU}) {  // within a character, and behind the end
    for (std::uint32_t& unit : bytes.units) {
      if ((unit & CharsmapBytes::kValue) != 0) unit = CharsmapBytes::kValue | value;
    }
    const Charsmap inside(bytes.bytes());
    const std::string why = "the trie leads to byte " + std::to_string(value) + " of 3 bytes of replacements";
    EXPECT_NE(refusal([&] { inside.find("a"); }).find(why), std::string::npos);
  }
}

TEST(Charsmap, RandomBytes_AnyText_AreReadWithinBounds) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    CharsmapBytes bytes;
    bytes.units.resize(1 + random() % 300);
    for (std::uint32_t& unit : bytes.units) unit = random() % 4 == 0 ? random() : random() % 0x80000;
    bytes.replacements = "ab";
    const Charsmap map(bytes.bytes());
    for (int texts = 0; texts < 20; ++texts) {
      std::string text;
      for (int i = 0; i < 4; ++i) text += static_cast<char>(random());
      refusal([&] { map.find(text); });
    }
  }
}

TEST(Charsmap, Base64_DecodesOrIsRefused) {
  EXPECT_EQ(decode_base64(""), "");
  EXPECT_EQ(decode_base64("YQ=="), "a");
  EXPECT_EQ(decode_base64("YWI="), "ab");
  EXPECT_EQ(decode_base64("+/8B"), "\xfb\xff\x01");
  for (const std::string bad : {"Y", "YQ", "YQ=", "YQ===", "Y===", "=", "Y Q=", "YQ==YQ==", "YR==", "_-8B"}) {
    EXPECT_NE(refusal([&] { decode_base64(bad); }), "(accepted)") << bad;
  }
}

TEST(Normalize, Charsmap_ReplacesShortClustersBeforeCharacters) {
  const NormalForm form = form_of({{"e\u0301", "\u00e9"}, {"\r", "<"}, {"A", "a"}, {"\u0301", "'"}, {" ", "_"}});
  const auto normal = [&](const std::string& text) { return std::string(Normalized(text, form).text()); };
  EXPECT_EQ(normal("e\u0301x"), "\u00e9x");
  EXPECT_EQ(normal("\r\nx"), "<x") << "one cluster, whose front is a key";
  EXPECT_EQ(normal("\rx\n"), "<x\n");
  EXPECT_EQ(normal("A\u0301"), "a") << "as tokenizers does: the shortest key replaces the cluster";
  EXPECT_EQ(normal("e\u0301\u0301\u0301"), "e'''") << "a cluster of 7 bytes: each character by itself";
  EXPECT_EQ(normal("\u0301"), "'");
  EXPECT_EQ(normal("b \u0301"), "b_");
}

TEST(Normalize, CharsmapAndSpaces_Replaced_MapToTheirOrigin) {
  const NormalForm form = form_of({{"\u3000", " "}, {"\u200b", ""}, {"\ufb01", "fi"}}, "\u2581");
  const std::string text = "a\u3000\u200b \ufb01";
  const Normalized normal(text, form);
  ASSERT_EQ(normal.text(), "a\u2581\u2581fi");
  EXPECT_EQ(normal.source_of({1, 4}), (Span{1, 4}));
  EXPECT_EQ(normal.source_of({4, 7}), (Span{7, 8}));
  EXPECT_EQ(normal.source_of({7, 8}), (Span{8, 11}));
  EXPECT_EQ(normal.source_of({0, 9}), (Span{0, 11}));
}

TEST(Normalize, Charsmap_TextInParts_IsNormalisedAsTheWhole) {
  const NormalForm form = form_of({{"e\u0301", "\u00e9"}, {"\r", "<"}, {"A", "a"}, {"\u200d", "J"}, {"\u3000", ""}});
  std::mt19937 random(5);
  const char32_t some[] = {'a',    'e',    'A',     ' ',     '\r',  '\n',    0x301,  0x323, 0x3000, 0x200D,
                           0x1100, 0x1161, 0x1F1E6, 0x1F1E7, 0x600, 0x1F468, 0xFE0F, 0x915, 0x94D};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (std::size_t n = random() % 12; n > 0; --n) append_utf8(text, some[random() % std::size(some)]);
    const std::string_view view = text;
    const std::string whole(Normalized(view, form).text());
    NormalizedParts parts(form);
    parts.begin(NormalizedParts::AppliedSteps::all);
    std::string joined;
    std::size_t begin = 0;
    while (begin < text.size()) {
      std::size_t end = begin;
      for (std::size_t n = 1 + random() % 3; n > 0 && end < text.size(); --n) {
        end += first_code_point(view.substr(end)).bytes;
      }
      joined += parts.next(view.substr(begin, end - begin), More::may_follow);
      begin = end;
    }
    joined += parts.next("", More::none);
    ASSERT_EQ(joined, whole) << text;
  }
}

}  // namespace
}  // namespace headgate::tokenize
