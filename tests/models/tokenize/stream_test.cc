// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "models/io/file_error.hpp"
#include "models/tokenize/charsmap_bytes.hpp"
#include "models/tokenize/golden.hpp"
#include "models/tokenize/staged_tokenizer.hpp"
#include "models/tokenize/tokenizer.hpp"
#include "models/tokenize/tokenizer_json.hpp"

// Checks that a text in parts has the tokens of the whole text, wherever it is cut.

namespace headgate::tokenize {
namespace {

using headgate::testing::CharsmapBytes;
using Random = std::mt19937;

template <class List>
const auto& one_of(const List& list, Random& random) {
  return list[random() % std::size(list)];
}

/// Text for which patterns, normalization and searches look ahead: white space, letters, digits, contractions,
/// combining marks, bytes that are not UTF-8, added tokens and their beginnings.
constexpr std::array<std::string_view, 57> kSnippets{
    " ",      "  ",     "\u2581",  "\n",     "\r\n",   "\t",     "\u00a0",   "\u3000",   "a",
    "b",      "c",      "ab",      "the",    " the",   "A",      "1",        "12",       "1234",
    "\u0663", "'",      "'s",      "'ll",    "'S",     "-",      "--",       "!",        ".",
    "?!\n",   "é",      "e\u0301", "\u0301", "\u0323", "\u1100", "\u1161",   "\u11a8",   "中",
    "😀",      "\u212b", "\u0f71",  "\xff",   "\x80",   "\xe2",   "\xe2\x82", "\xf0\x9f", "\xf0\x9f\x98",
    "\xc3",   "<s>",    "<s",      "<",      "<s>x",   "ok",     "okay",     "_L_",      "_L",
    "_R_",    "_W_",    "N\u0303"};

std::string text_of(Random& random, std::size_t snippets) {
  std::string out;
  for (std::size_t n = random() % snippets; n > 0; --n) {
    const std::string_view snippet = one_of(kSnippets, random);
    for (std::size_t times = random() % 8 == 0 ? random() % 9 : 1; times > 0; --times) out += snippet;
  }
  return out;
}

void append(Encoding& to, const Encoding& more) {
  to.ids.insert(to.ids.end(), more.ids.begin(), more.ids.end());
  to.spans.insert(to.spans.end(), more.spans.begin(), more.spans.end());
  to.left_out += more.left_out;
}

/// Parts of at most `most` bytes; 0: of one byte each.
Encoding in_parts(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options, std::size_t most,
                  Random& random) {
  const auto stream = tokenizer.stream(options);
  Encoding out;
  while (!text.empty()) {
    const std::size_t size = std::min(text.size(), most == 0 ? 1 : random() % (most + 1));
    append(out, stream->next(text.substr(0, size)));
    text.remove_prefix(size);
  }
  append(out, stream->finish());
  return out;
}

void expect_same(const Tokenizer& tokenizer, const std::string& text, const EncodeOptions& options, Random& random) {
  const Encoding whole = tokenizer.encode(text, options);
  for (const std::size_t most : {0, 1, 3, 17, 200}) {
    const Encoding parts = in_parts(tokenizer, text, options, most, random);
    ASSERT_EQ(parts.ids, whole.ids) << "parts of at most " << most << " bytes of: " << ::testing::PrintToString(text);
    ASSERT_EQ(parts.left_out, whole.left_out);
    ASSERT_EQ(parts.spans, whole.spans) << ::testing::PrintToString(text);
  }
}

EncodeOptions options_of(Random& random) {
  return {.add_special = random() % 2 == 0, .special_as_text = random() % 4 == 0, .spans = random() % 4 != 0};
}

class GoldenStream : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenStream, Parts_OfGoldenTexts_HaveTheTokensOfTheWhole) {
  const auto tokenizer = read_tokenizer_json(testing::golden_path(GetParam()));
  Random random(1);
  const nlohmann::json cases = testing::golden_cases();
  for (const auto& text : cases["texts"]) {
    expect_same(*tokenizer, text.get<std::string>(), {.spans = true}, random);
    if (HasFatalFailure()) return;
  }
  for (int round = 0; round < 400 && !HasFatalFailure(); ++round) {
    expect_same(*tokenizer, text_of(random, 40), options_of(random), random);
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenize, GoldenStream,
                         ::testing::Values("gpt2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "flags",
                                           "llama2", "mistral3", "gemma", "t5", "t5-small", "uni-bytes"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Stream, LongText_NormalizedInChunks_HasTheTokensOfItsParts) {
  Random random(3);
  std::string text;
  while (text.size() < 300'000) text += text_of(random, 40);
  for (const char* name : {"qwen2", "llama2", "gemma", "t5", "t5-small"}) {
    const auto tokenizer = read_tokenizer_json(testing::golden_path(name));
    const Encoding whole = tokenizer->encode(text, {.spans = true});
    const Encoding parts = in_parts(*tokenizer, text, {.spans = true}, 3000, random);
    EXPECT_EQ(parts.ids, whole.ids) << name;
    EXPECT_TRUE(parts.spans == whole.spans) << name;
  }
}

/// Makes a tokenizer without tokens for bytes: each word is one token, whose span is the word.
class WordTokenizer {
 public:
  explicit WordTokenizer(Random& random) {
    parts_.vocabulary.add(0, "<unk>");
    parts_.options = {.unknown = 0, .fuse_unknown = true};
    parts_.form.form_c = random() % 2 == 0;
    if (random() % 3 == 0) parts_.form.space = "\u2581";
    if (random() % 3 == 0) parts_.form.prefix = "\u2581";
    if (random() % 4 == 0) {
      static const auto map = std::make_shared<const Charsmap>(
          CharsmapBytes::of({{"e\u0301", "\u00e9"}, {"\r", " "}, {"\n", " "}, {"\u00f1", "n"}, {"b", ""}}).bytes());
      parts_.form = {.form_c = false, .space = parts_.form.space, .prefix = {}, .charsmap = map};
    }
    const std::size_t steps = random() % 4;
    for (std::size_t i = 0; i < steps; ++i) {
      parts_.steps.push_back(step(random));
      said_ += (parts_.steps.back().prefix.empty() ? " " : " +prefix ") + regex_ + " " +
               std::string(word_of(parts_.steps.back().behavior)) + (parts_.steps.back().invert ? " inverted;" : ";");
    }
    std::int32_t id = 1;
    for (const char* content : {"<s>", "_L_", "_R_", "_W_", "ok", "<s>x", "\u00f1"}) {
      if (random() % 2 == 0) continue;
      said_ += std::string(" ") + content;
      const auto flag = [&random](unsigned of) { return random() % of == 0; };
      parts_.added.push_back({id++, content, flag(3), flag(3), flag(3), flag(2), flag(2)});
    }
  }

  std::unique_ptr<Tokenizer> make() const { return make_staged_tokenizer("words", parts_); }
  const std::string& said() const { return said_; }

 private:
  SplitStep step(Random& random) {
    static const std::vector<std::string> regexes{std::string(kGpt2Pattern),
                                                  std::string(kLlama3Pattern),
                                                  std::string(kQwen2Pattern),
                                                  std::string(kQwen35Pattern),
                                                  "\\p{N}",
                                                  "\\p{N}+",
                                                  "\\p{N}{1,3}",
                                                  "-",
                                                  "ab",
                                                  "\\s+",
                                                  "\\s+(?!\\S)",
                                                  "(?=é)",
                                                  "a*",
                                                  "b*?",
                                                  "b+?|",
                                                  "(?<=a)b|(?<!b)c+",
                                                  "(?<=(?<!b)a)c",
                                                  "(?<=ab|\\s)[a-z]",
                                                  "(?:ab)+(?!c)",
                                                  "\\s+$",
                                                  "$",
                                                  "(?!a)",
                                                  "a$",
                                                  "(?>\\p{L}+)-",
                                                  "[^ ]+(?= )",
                                                  "(?<! )(?=[a-z]+1)",
                                                  ".+",
                                                  ".{2}"};
    SplitStep out;
    regex_ = "none";
    if (random() % 8 != 0) {
      regex_ = one_of(regexes, random);
      out.pattern.emplace(regex_);
    }
    out.behavior = one_of(headgate::Words<SplitBehavior>::kAll, random).value;
    out.invert = random() % 3 == 0;
    if (random() % 4 == 0) out.prefix = random() % 2 == 0 ? " " : "\u2581";
    out.prefix_once = random() % 4 == 0;
    return out;
  }

  TokenizerParts parts_;
  std::string regex_, said_;
};

TEST(Stream, Parts_AnyStepsAndAddedTokens_HaveTheTokensOfTheWhole) {
  for (unsigned seed = 0; seed < 1500 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    const WordTokenizer words(random);
    SCOPED_TRACE("seed " + std::to_string(seed) + ":" + words.said());
    const auto tokenizer = words.make();
    for (int round = 0; round < 8 && !HasFatalFailure(); ++round) {
      expect_same(*tokenizer, text_of(random, 40), {.special_as_text = random() % 4 == 0, .spans = true}, random);
    }
  }
}

}  // namespace
}  // namespace headgate::tokenize
