// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/utf8.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "models/tokenize/byte_alphabet.hpp"

namespace headgate::tokenize {
namespace {

TEST(Utf8, EveryCharacter_WrittenAndRead_IsTheSame) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text;
    append_utf8(text, c);
    const CodePoint read = first_code_point(text);
    ASSERT_EQ(static_cast<std::uint32_t>(read.value), static_cast<std::uint32_t>(c));
    ASSERT_EQ(read.bytes, text.size());
    ASSERT_EQ(well_formed_prefix_size(text), text.size());
    for (std::size_t front = 1; front < text.size(); ++front) {
      ASSERT_EQ(first_code_point(text.substr(0, front)).bytes, 0U);
      ASSERT_EQ(incomplete_suffix_size(std::string_view{text}.substr(0, front)), front);
    }
    ASSERT_EQ(incomplete_suffix_size(text), 0U);
  }
}

TEST(Utf8, Bytes_IllFormed_AreNoCharacter) {
  // Tests overlong forms, surrogates, values beyond U+10FFFF, stray and missing continuation bytes.
  for (const std::string text :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80", "\x80", "\xBF", "\xFE", "\xFF", "\xE2\x28\xA1"}) {
    EXPECT_EQ(first_code_point(text).bytes, 0U) << text;
    EXPECT_EQ(well_formed_prefix_size(std::string(8, 'a').append(text)), 8U) << text;
    EXPECT_EQ(incomplete_suffix_size(std::string_view{text}.substr(0, 2)), 0U) << text;
    EXPECT_EQ(ill_formed_prefix_size(std::string(text).append("é")), text == "\xE2\x28\xA1" ? 1U : text.size());
  }
}

TEST(Utf8, ByteAlphabet_EveryByte_RoundTrips) {
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  EXPECT_EQ(bytes_of(spelling_of(all)), all);
  EXPECT_EQ(spelling_of(" a\n"), "ĠaĊ");
  EXPECT_EQ(bytes_of("a b"), std::nullopt) << "a space is spelled otherwise";
  EXPECT_EQ(bytes_of("中"), std::nullopt);
  EXPECT_EQ(bytes_of("\u0144"), std::nullopt) << "the first character behind the alphabet";
}

}  // namespace
}  // namespace headgate::tokenize
