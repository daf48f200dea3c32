// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/normalize.hpp"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>
#include <string>

#include "models/tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

const NormalForm kFormC{.form_c = true, .space = {}, .prefix = {}};

std::string whole_form_c(const std::string& text) {
  auto* out = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
  std::string form(reinterpret_cast<const char*>(out));
  std::free(out);
  return form;
}

TEST(Normalize, Text_InParts_IsNormalisedAsTheWhole) {
  std::mt19937 random(1);
  const char32_t some[] = {'a',     'e',    ' ',    0xE9,    0x301,   0x323,   0x302,  0x345,  0x1100,
                           0x1161,  0x11A8, 0xAC00, 0x212B,  0x958,   0xFB1D,  0x1E9B, 0x3099, 0x304B,
                           0x9C7,   0x9BE,  0xBC6,  0xBD7,   0xDDF,   0xF71,   0x344,  0x2126, 0x4E2D,
                           0x1F600, 0x0CC6, 0x0CD5, 0x1D15E, 0x110B9, 0x110BA, 0xF900, 0x2ADC, 0x1EA5};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (std::size_t n = random() % 12; n > 0; --n) append_utf8(text, some[random() % std::size(some)]);
    const Normalized form(text, kFormC);
    ASSERT_EQ(form.text(), whole_form_c(text));
    ASSERT_EQ(form.source_of({0, form.text().size()}), (Span{0, text.size()}));
  }
}

TEST(Normalize, EveryCharacter_Alone_IsNormalised) {
  for (char32_t c = 1; c <= 0x10FFFF; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text;
    append_utf8(text, c);
    const Normalized form(text, kFormC);
    ASSERT_EQ(form.text(), whole_form_c(text)) << static_cast<unsigned>(c);
  }
}

TEST(Normalize, NormalisedBytes_AnyText_MapToTheirOrigin) {
  const std::string text = "ae\u0301b\u212Bc";  // a, e + acute, b, Angstrom, c: 1 + 3 + 1 + 3 + 1 bytes
  const Normalized form(text, kFormC);
  ASSERT_EQ(form.text(), "a\u00E9b\u00C5c");
  EXPECT_EQ(form.source_of({0, 1}), (Span{0, 1}));
  EXPECT_EQ(form.source_of({1, 3}), (Span{1, 4}));
  EXPECT_EQ(form.source_of({1, 2}), (Span{1, 4})) << "a part of a composed character";
  EXPECT_EQ(form.source_of({2, 3}), (Span{1, 4}));
  EXPECT_EQ(form.source_of({3, 4}), (Span{4, 5}));
  EXPECT_EQ(form.source_of({4, 6}), (Span{5, 8}));
  EXPECT_EQ(form.source_of({6, 7}), (Span{8, 9}));
  EXPECT_EQ(form.source_of({0, 7}), (Span{0, 9}));
  EXPECT_EQ(Normalized(text, {}).text(), text);
}

TEST(Normalize, SpacesAndPrefix_Replaced_MapToTheirOrigin) {
  const NormalForm form{.form_c = true, .space = "\u2581", .prefix = "\u2581"};
  const std::string text = "e\u0301 b";
  const Normalized normal(text, form);
  ASSERT_EQ(normal.text(), "\u2581\u00e9\u2581b");
  EXPECT_EQ(normal.source_of({0, 3}), (Span{0, 0})) << "the prefix";
  EXPECT_EQ(normal.source_of({3, 5}), (Span{0, 3}));
  EXPECT_EQ(normal.source_of({5, 8}), (Span{3, 4}));
  EXPECT_EQ(normal.source_of({0, 9}), (Span{0, 5}));
  EXPECT_EQ(Normalized(text, form, false).text(), "\u00e9\u2581b") << "continues a text";
  EXPECT_EQ(Normalized("", form).text(), "");
}

}  // namespace
}  // namespace headgate::tokenize
