// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "models/io/file_error.hpp"
#include "models/tokenize/byte_fallback.hpp"
#include "models/tokenize/gguf_vocabulary.hpp"
#include "models/tokenize/golden.hpp"
#include "models/tokenize/staged_tokenizer.hpp"
#include "models/tokenize/tokenizer_json.hpp"
#include "models/tokenize/utf8.hpp"

// Tests tokenizers of SentencePiece's kind: BPE of characters and Unigram, with U+2581 for a space and byte fallback.

namespace headgate::tokenize {
namespace {

using headgate::testing::expect_golden_ids;
using headgate::testing::golden_cases;
using headgate::testing::golden_file;
using headgate::testing::golden_path;
using Ids = std::vector<std::int32_t>;
using Json = nlohmann::json;

std::unique_ptr<Tokenizer> read(const Json& json) {
  const headgate::testing::MemoryFile file;
  file.write(json.dump());
  return read_tokenizer_json(file.path());
}

/// Returns text and bytes of all kinds that no tokenizer spells as one token, without the special tokens of any.
std::string random_text(std::mt19937& random) {
  const std::vector<std::string> some{"the",       "être",        " ",       "  ", "\n\n",   "\t",       "中文",
                                      "😀",         "👩‍👧", "e\u0301", "42", "\xff",   "\xe4\xb8", "\x80",
                                      "All human", " beings",     "'s",      "𐍈",  "\u00a0", "Ж"};
  std::string out;
  for (std::size_t n = random() % 30; n > 0; --n) out += some[random() % some.size()];
  return out;
}

TEST(SentencePiece, Text_EncodedAndDecoded_IsTheSame) {
  std::mt19937 random(7);
  for (const char* name : {"llama2", "mistral3", "gemma", "uni-bytes"}) {
    const auto tokenizer = read_tokenizer_json(golden_path(name));
    for (int round = 0; round < 400; ++round) {
      std::string text = random_text(random);
      // Metaspace puts no space before a text that begins with one, so decoding cannot tell the two apart.
      if (std::string(name) == "mistral3" && text.starts_with(' ')) text.insert(text.begin(), 'x');
      const Encoding encoding = tokenizer->encode(text, {.add_special = false, .spans = true});
      ASSERT_EQ(tokenizer->decode(encoding.ids), text) << name << ": " << ::testing::PrintToString(text);
      ASSERT_EQ(encoding.left_out, 0U);
      std::size_t at = 0;
      for (const Span& span : encoding.spans) {
        ASSERT_LE(span.begin, at) << name;
        at = std::max(at, span.end);
      }
      ASSERT_EQ(at, text.size());
    }
  }
}

TEST(SentencePiece, Text_AfterBytesThatAreNotUtf8_GetsNoPrefix) {
  for (const char* name : {"llama2", "mistral3", "uni-bytes"}) {
    const auto tokenizer = read_tokenizer_json(golden_path(name));
    const std::string text =
        "a\xff"
        "b";
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, {.add_special = false}).ids), text) << name;
  }
}

TEST(SentencePiece, Decoding_TokenByToken_ReturnsWholeCharacters) {
  const auto tokenizer = read_tokenizer_json(golden_path("llama2"));
  const std::string text = "a𐍈";
  const Ids ids = tokenizer->encode(text, {.add_special = false}).ids;
  ASSERT_EQ(ids.size(), 5U) << "▁a and four bytes";
  EXPECT_EQ(tokenizer->spelling(ids[1]), "<0xF0>");
  EXPECT_EQ(tokenizer->bytes(ids[1]), "\xF0");
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.next(ids[0]), " a") << "the ids may continue other text";
  for (int i = 1; i < 4; ++i) EXPECT_EQ(decoder.next(ids[static_cast<std::size_t>(i)]), "");
  EXPECT_EQ(decoder.next(ids[4]), "𐍈");
  EXPECT_EQ(tokenizer->decode(ids), text);
}

TEST(SentencePiece, Decoding_SpecialTokens_KeepsTheirSpelling) {
  const auto tokenizer = read_tokenizer_json(golden_path("llama2"));
  const Ids ids = tokenizer->encode("a</s>").ids;
  EXPECT_EQ(tokenizer->decode(ids), "<s> a</s>") << "only a space at the very front is dropped";
  EXPECT_EQ(tokenizer->decode(ids, true), "a");
}

TEST(SentencePiece, Stream_LongText_PassesTokensOnBeforeItsEnd) {
  for (const char* name : {"llama2", "mistral3", "gemma"}) {
    const auto tokenizer = read_tokenizer_json(golden_path(name));
    const auto stream = tokenizer->stream({});
    std::size_t tokens = 0;
    for (int i = 0; i < 100; ++i) tokens += stream->next("All human beings ").ids.size();
    const std::size_t rest = stream->finish().ids.size();
    EXPECT_LT(rest, 12U) << name << ": one word is held";
    EXPECT_GT(tokens, 300U) << name;
  }
}

TEST(SentencePiece, SpecialToken_AsText_IsNotFoundByAModel) {
  for (const char* name : {"llama2", "gemma", "t5", "uni-bytes"}) {
    const auto tokenizer = read_tokenizer_json(golden_path(name));
    const std::string special = name == std::string("gemma") ? "<eos>" : "</s>";
    const std::int32_t id = tokenizer->find(special);
    ASSERT_NE(id, kNoToken);
    for (const bool as_text : {false, true}) {
      const Ids ids = tokenizer->encode("a" + special, {.add_special = false, .special_as_text = as_text}).ids;
      EXPECT_EQ(std::find(ids.begin(), ids.end(), id) == ids.end(), as_text) << name;
    }
  }
}

TEST(SentencePiece, ByteToken_Spelled_IsItsByte) {
  EXPECT_EQ(byte_of_token("<0x0A>"), 10);
  EXPECT_EQ(byte_of_token("<0xFF>"), 255);
  for (const char* other : {"<0x0a>", "<0x0A", "<0xA>", "<0x0G>", "<0x00A>", ""})
    EXPECT_FALSE(byte_of_token(other)) << other;
}

// --- tokenizer.json --------------------------------------------------------------------------------------------------

struct Change {
  const char* file;
  std::function<void(Json&)> change;
  std::string reason;
};

const std::vector<Change>& changes() {
  const auto replaced = [](const char* pattern, const char* content) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", pattern}}}, {"content", content}};
  };
  const auto sequence = [](const char* key, std::vector<Json> steps) {
    return Json{{"type", "Sequence"}, {key, steps}};
  };
  const Json nfc{{"type", "NFC"}}, metaspace{{"type", "Metaspace"}}, prepend{{"type", "Prepend"}, {"prepend", "▁"}};
  static const std::vector<Change> all{
      {"gemma", [=](Json& j) { j["normalizer"] = replaced("a", "b"); }, "normalizer.pattern: only one space"},
      {"gemma", [=](Json& j) { j["normalizer"] = replaced(" ", ""); }, "normalizer.content: empty"},
      {"gemma",
       [=](Json& j) {
         j["normalizer"] = sequence("normalizers", {replaced(" ", "▁"), replaced(" ", "▁")});
       },
       "normalizer.normalizers[1]: a second Replace is not supported"},
      {"gemma",
       [=](Json& j) {
         j["normalizer"] = sequence("normalizers", {prepend, prepend});
       },
       "normalizer.normalizers[1]: a second Prepend is not supported"},
      {"gemma",
       [=](Json& j) {
         j["normalizer"] = sequence("normalizers", {prepend, nfc});
       },
       "normalizer.normalizers[1]: NFC after Prepend, Replace or Precompiled is not supported"},
      {"gemma",
       [=](Json& j) {
         j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "AA=="}};
       },
       "normalizer.precompiled_charsmap: a table of 1 bytes, which has no size"},
      {"gemma",
       [=](Json& j) {
         j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "A"}};
       },
       "normalizer.precompiled_charsmap: base64 of 1 digits"},
      {"gemma",
       [=](Json& j) {
         j["normalizer"] = sequence("normalizers", {nfc, {{"type", "Precompiled"}, {"precompiled_charsmap", ""}}});
       },
       "normalizer.normalizers[1]: Precompiled after another step is not supported"},
      {"gemma",
       [=](Json& j) {
         j["normalizer"] = sequence("normalizers", {golden_file("t5-small")["normalizer"], prepend});
       },
       "normalizer.normalizers[1]: Prepend after Precompiled is not supported"},
      {"gemma",
       [](Json& j) {
         j["normalizer"] = {{"type", "Lowercase"}};
       },
       "normalizer: type 'Lowercase' is not supported; NFC, Precompiled, Prepend, Replace and Sequence are"},
      {"mistral3", [](Json& j) { j["pre_tokenizer"]["replacement"] = "_"; }, "pre_tokenizer.replacement: only '▁'"},
      {"mistral3", [](Json& j) { j["pre_tokenizer"]["prepend_scheme"] = "often"; },
       "pre_tokenizer.prepend_scheme: 'often' is not always, first or never"},
      {"mistral3", [](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = false; },
       "pre_tokenizer: add_prefix_space false contradicts prepend_scheme first"},
      {"mistral3",
       [=](Json& j) {
         const Json digits{{"type", "Digits"}};
         j["pre_tokenizer"] = sequence("pretokenizers", {digits, metaspace});
       },
       "pre_tokenizer.pretokenizers[1]: Metaspace after such a step is not supported"},
      {"mistral3",
       [](Json& j) {
         j["added_tokens"][0]["normalized"] = true;
         j["added_tokens"][0]["lstrip"] = true;
       },
       "added token '<unk>': normalized, with spaces, and together with Metaspace"},
      {"t5",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "ByteLevel"}};
       },
       "pre_tokenizer: ByteLevel with Unigram is not supported"},
      {"t5", [](Json& j) { j["model"]["unk_id"] = 100000; }, "model.unk_id: 100000 is not 0 to "},
      {"t5", [](Json& j) { j["model"]["vocab"] = Json::object(); }, "model.vocab: not a list of [token, score]"},
      {"t5",
       [](Json& j) {
         j["model"]["vocab"][5] = {"a", "b"};
       },
       "model.vocab[5]: not [token, score]"},
      {"t5", [](Json& j) { j["model"]["vocab"][5] = j["model"]["vocab"][6]; }, "has two ids, 5 and 6"},
      {"t5", [](Json& j) { j["decoder"]["replacement"] = "_"; }, "decoder.replacement: only '▁'"},
      {"llama2", [](Json& j) { j["model"]["vocab"].erase("<0x41>"); },
       "255 of the 256 byte tokens are there, but not '<0x41>'"},
      {"llama2",
       [](Json& j) {
         j["decoder"] = {{"type", "ByteLevel"}};
       },
       "decoder: type 'ByteLevel' is not supported"},
      {"llama2", [](Json& j) { j["decoder"]["decoders"][0]["content"] = "_"; },
       "decoder.decoders[0]: only '▁' to ' ' is supported"},
      {"llama2", [](Json& j) { j["decoder"]["decoders"][3]["start"] = 2; },
       "decoder.decoders[3]: only one space at the start is supported"},
      {"llama2", [](Json& j) { std::swap(j["decoder"]["decoders"][2], j["decoder"]["decoders"][3]); },
       "decoder.decoders[2]: Strip in this place is not supported"},
      {"llama2", [](Json& j) { std::swap(j["decoder"]["decoders"][0], j["decoder"]["decoders"][3]); },
       "decoder.decoders[0]: Strip in this place is not supported"},
      {"llama2", [](Json& j) { std::swap(j["decoder"]["decoders"][1], j["decoder"]["decoders"][2]); },
       "decoder.decoders[2]: ByteFallback in this place is not supported"},
      {"llama2", [](Json& j) { j["decoder"]["decoders"][1] = j["decoder"]["decoders"][0]; },
       "decoder.decoders[1]: Replace in this place is not supported"},
      {"llama2", [](Json& j) { j["decoder"] = j["decoder"]["decoders"][3]; },
       "decoder: Strip in this place is not supported"},
  };
  return all;
}

TEST(SentencePieceJson, Feature_NotSupported_IsRefusedByName) {
  for (const Change& refusal : changes()) {
    Json json = golden_file(refusal.file);
    refusal.change(json);
    try {
      read(json);
      ADD_FAILURE() << "taken, in spite of: " << refusal.reason;
    } catch (const io::FileError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(refusal.reason), std::string::npos) << what << "\nnot: " << refusal.reason;
    }
  }
}

TEST(SentencePieceJson, UnigramFile_WithoutAModelType_IsRead) {
  Json json = golden_file("t5");
  const Ids ids = read(json)->encode("All human beings").ids;
  json["model"].erase("type");
  EXPECT_EQ(read(json)->encode("All human beings").ids, ids);
}

/// Metaspace drops all marks of a text's first token. Strip drops one space.
TEST(SentencePieceJson, Decoder_FirstTokenWithSeveralMarks_DropsWhatItsDecoderDrops) {
  Json json = golden_file("t5");
  json["model"]["vocab"][10][0] = "▁▁x▁y";
  json["model"]["vocab"][11][0] = "▁▁z";
  EXPECT_EQ(read(json)->decode(Ids{10, 11}), "xy  z");
  json["decoder"]["prepend_scheme"] = "never";
  EXPECT_EQ(read(json)->decode(Ids{10, 11}), "  x y  z");
  json["decoder"] = golden_file("llama2")["decoder"];
  EXPECT_EQ(read(json)->decode(Ids{10, 11}), " x y  z");
}

TEST(SentencePieceJson, Decoder_WithoutByteFallback_KeepsTheSpelling) {
  Json json = golden_file("llama2");
  const Ids ids = read(json)->encode("🜁", {.add_special = false}).ids;
  EXPECT_EQ(read(json)->decode(ids), "🜁");
  json["decoder"]["decoders"].erase(1);
  EXPECT_EQ(read(json)->decode(ids), "<0xF0><0x9F><0x9C><0x81>");
}

TEST(SentencePieceJson, Decoder_Absent_FollowsTheNormalizer) {
  Json json = golden_file("llama2");
  json["decoder"] = nullptr;
  const auto tokenizer = read(json);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a b", {.add_special = false}).ids), "a b");
}

// --- GGUF ------------------------------------------------------------------------------------------------------------

/// Returns the vocabulary of a golden tokenizer of BPE as a GGUF file of model llama stores it.
GgufVocabulary scored_arrays(const std::string& name) {
  const auto tokenizer = read_tokenizer_json(golden_path(name));
  GgufVocabulary out;
  out.model = "llama";
  out.pre = "default";
  for (std::int32_t id = 0; id < tokenizer->vocab(); ++id) {
    const std::string spelling = tokenizer->spelling(id);
    out.tokens.push_back(spelling);
    out.token_type.push_back(tokenizer->special(id) ? 3 : byte_of_token(spelling) ? 6 : 1);
    out.scores.push_back(-static_cast<float>(id));
  }
  const Json file = golden_file(name);  // outlives the loop over a part of it
  for (const Json& added : file["added_tokens"]) {
    if (added["special"] == false) out.token_type.at(added["id"].get<std::size_t>()) = 4;
  }
  out.add_space_prefix = name == "llama2";
  out.bos_token_id = tokenizer->find(name == "llama2" ? "<s>" : "<bos>");
  return out;
}

class ScoredGguf : public ::testing::TestWithParam<std::string> {};

TEST_P(ScoredGguf, Ids_FromScores_AreThoseOfTokenizers) {
  const auto tokenizer = make_gguf_tokenizer("arrays", scored_arrays(GetParam()));
  expect_golden_ids(*tokenizer, GetParam());
}

TEST_P(ScoredGguf, TokenizerJson_WrittenFromScores_GivesTheSameIds) {
  const GgufVocabulary arrays = scored_arrays(GetParam());
  const auto tokenizer = read(Json::parse(gguf_tokenizer_json("arrays", arrays)));
  const auto from_arrays = make_gguf_tokenizer("arrays", arrays);
  const Json cases = golden_cases();
  for (std::size_t i = 0; i < cases["texts"].size(); ++i) {
    const auto text = cases["texts"][i].get<std::string>();
    EXPECT_EQ(tokenizer->encode(text).ids, cases[GetParam()][i].get<Ids>()) << text;
    const Ids ids = from_arrays->encode(text, {.add_special = false}).ids;
    EXPECT_EQ(tokenizer->decode(ids), from_arrays->decode(ids));
  }
  ASSERT_EQ(tokenizer->vocab(), from_arrays->vocab());
  for (std::int32_t id = 0; id < tokenizer->vocab(); ++id) {
    EXPECT_EQ(tokenizer->bytes(id), from_arrays->bytes(id));
    EXPECT_EQ(tokenizer->special(id), from_arrays->special(id));
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenize, ScoredGguf, ::testing::Values("llama2", "gemma"),
                         [](const auto& test) { return test.param; });

TEST(ScoredGgufArrays, AbsentKeys_HaveTheDefaultsOfLlamaCpp) {
  GgufVocabulary arrays = scored_arrays("llama2");
  arrays.bos_token_id.reset();
  arrays.add_space_prefix.reset();
  const auto tokenizer = make_gguf_tokenizer("arrays", arrays);
  EXPECT_EQ(tokenizer->encode("a").ids, (Ids{1, tokenizer->find("▁a")})) << "BOS 1 and a space";
  arrays.add_bos_token = false;
  arrays.add_eos_token = true;
  arrays.add_space_prefix = false;
  const auto other = make_gguf_tokenizer("arrays", arrays);
  EXPECT_EQ(other->encode("a").ids, (Ids{tokenizer->find("a"), 2}));
}

TEST(ScoredGgufArrays, ControlToken_SpelledByMerges_IsNotMade) {
  GgufVocabulary arrays;
  arrays.model = "llama";
  arrays.tokens = {"<unk>", "xy", "x", "y"};
  arrays.token_type = {2, 3, 1, 1};
  arrays.scores = {0.0F, 0.0F, -1.0F, -2.0F};
  arrays.add_bos_token = arrays.add_space_prefix = false;
  const auto tokenizer = make_gguf_tokenizer("arrays", arrays);
  EXPECT_EQ(tokenizer->encode("xy", {.special_as_text = true}).ids, (Ids{2, 3}));
  EXPECT_EQ(tokenizer->encode("xy").ids, Ids{1});
}

TEST(ScoredGgufArrays, Arrays_Bad_AreRefusedByName) {
  const GgufVocabulary good = scored_arrays("llama2");
  const auto expect_refused = [](const GgufVocabulary& arrays, const std::string& reason) {
    try {
      make_gguf_tokenizer("file.gguf", arrays);
      ADD_FAILURE() << "taken, in spite of: " << reason;
    } catch (const io::FileError& error) {
      EXPECT_NE(std::string(error.what()).find("file.gguf: " + reason), std::string::npos) << error.what();
    }
  };
  GgufVocabulary bad = good;
  bad.scores.pop_back();
  expect_refused(bad, "tokenizer.ggml.scores: ");
  bad = good;
  bad.scores[7] = std::numeric_limits<float>::infinity();
  expect_refused(bad, "tokenizer.ggml.scores[7]: inf is not finite");
  bad = good;
  bad.tokens.at(static_cast<std::size_t>(3)) = "<other>";
  expect_refused(bad, "255 of the 256 byte tokens are there, but not '<0x00>'");
  bad = good;
  bad.bos_token_id = 1 << 19;
  expect_refused(bad, "the template has id 524288, which no token has");
}

}  // namespace
}  // namespace headgate::tokenize
