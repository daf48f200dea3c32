// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/io/file_error.hpp"
#include "models/io/scratch.hpp"
#include "models/tokenize/gguf_vocabulary.hpp"
#include "models/tokenize/golden.hpp"
#include "models/tokenize/open.hpp"
#include "models/tokenize/tokenizer_json.hpp"

namespace headgate::tokenize {
namespace {

using headgate::testing::expect_golden_ids;
using headgate::testing::golden_cases;
using headgate::testing::golden_file;
using headgate::testing::golden_path;
using Ids = std::vector<std::int32_t>;
using Json = nlohmann::json;

std::string name_of_test(const ::testing::TestParamInfo<std::string>& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class Golden : public ::testing::TestWithParam<std::string> {};

/// Expects the tokens to cover the text without a gap.
void expect_whole(const Encoding& encoding, const std::string& text) {
  std::size_t at = 0;
  for (const Span& span : encoding.spans) {
    EXPECT_LE(span.begin, span.end);
    if (span.begin == span.end) continue;
    EXPECT_EQ(span.begin, at);
    at = span.end;
  }
  EXPECT_EQ(at, text.size());
}

TEST_P(Golden, Ids_GoldenTexts_AreThoseOfTokenizers) {
  const auto tokenizer = read_tokenizer_json(golden_path(GetParam()));
  const Json cases = golden_cases();
  for (std::size_t i = 0; i < cases["texts"].size(); ++i) {
    const auto text = cases["texts"][i].get<std::string>();
    const Encoding encoding = tokenizer->encode(text, {.spans = true});
    EXPECT_EQ(encoding.ids, cases[GetParam()][i].get<Ids>()) << text;
    EXPECT_EQ(encoding.left_out, 0U);
    EXPECT_EQ(encoding.spans.size(), encoding.ids.size());
    EXPECT_EQ(tokenizer->encode(text).ids, encoding.ids);
    if (GetParam().starts_with("qwen") || GetParam() == "flags") continue;  // these normalize
    // Those of SentencePiece's kind put spaces into texts, which sentence_piece_test.cc checks.
    if (tokenizer->find("Ġ") == kNoToken) continue;
    expect_whole(encoding, text);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, {.add_special = false}).ids), text);
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenize, Golden,
                         ::testing::Values("gpt2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "flags",
                                           "llama2", "mistral3", "gemma", "t5", "t5-small", "uni-bytes"),
                         name_of_test);

/// Returns the vocabulary of a golden tokenizer as a GGUF file stores it.
GgufVocabulary gguf_arrays(const std::string& name) {
  const Json file = golden_file(name);
  GgufVocabulary out;
  out.model = "gpt2";
  out.pre = name;
  out.tokens.resize(file["model"]["vocab"].size());
  for (const auto& [token, id] : file["model"]["vocab"].items()) out.tokens.at(id.get<std::size_t>()) = token;
  out.token_type.assign(out.tokens.size(), 1);
  for (const Json& added : file["added_tokens"]) {
    const auto id = added["id"].get<std::size_t>();
    if (id >= out.tokens.size()) {
      out.tokens.resize(id + 1);
      out.token_type.resize(id + 1);
    }
    out.tokens[id] = added["content"].get<std::string>();
    out.token_type[id] = added["special"] == true ? 3 : 4;
  }
  for (const Json& merge : file["model"]["merges"]) {
    out.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  out.bos_token_id = 1;
  out.eos_token_id = 2;
  return out;
}

class Gguf : public ::testing::TestWithParam<std::string> {};

TEST_P(Gguf, Ids_FromGgufArrays_AreTheSame) {
  const auto tokenizer = make_gguf_tokenizer("arrays", gguf_arrays(GetParam()));
  expect_golden_ids(*tokenizer, GetParam());
}

TEST_P(Gguf, TokenizerJson_WrittenFromGguf_GivesTheSameIds) {
  GgufVocabulary arrays = gguf_arrays(GetParam());
  const headgate::testing::Scratch scratch;
  const std::string file = scratch / "tokenizer.json";
  const auto written = [&] {
    headgate::testing::write_bytes(file, gguf_tokenizer_json("arrays", arrays));
    return read_tokenizer_json(file);
  };
  auto tokenizer = written();
  expect_golden_ids(*tokenizer, GetParam());
  const auto from_arrays = make_gguf_tokenizer("arrays", arrays);
  ASSERT_EQ(tokenizer->vocab(), from_arrays->vocab());
  for (std::int32_t id = 0; id < tokenizer->vocab(); ++id) {
    EXPECT_EQ(tokenizer->spelling(id), from_arrays->spelling(id));
    EXPECT_EQ(tokenizer->special(id), from_arrays->special(id));
  }
  arrays.add_bos_token = arrays.add_eos_token = true;
  EXPECT_EQ(written()->encode("a <|im_end|>").ids, make_gguf_tokenizer("arrays", arrays)->encode("a <|im_end|>").ids);
}

INSTANTIATE_TEST_SUITE_P(Tokenize, Gguf, ::testing::Values("gpt2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o"),
                         name_of_test);

TEST(GgufArrays, TokensAroundAText_KeysOfGguf_ArePlacedByThem) {
  GgufVocabulary arrays = gguf_arrays("gpt2");
  const Ids bare = make_gguf_tokenizer("arrays", arrays)->encode("a").ids;
  arrays.add_bos_token = true;
  arrays.add_eos_token = true;
  EXPECT_EQ(make_gguf_tokenizer("arrays", arrays)->encode("a").ids, (Ids{1, bare.at(0), 2}));
  arrays = gguf_arrays("llama-bpe");
  EXPECT_EQ(make_gguf_tokenizer("arrays", arrays)->encode("").ids, Ids{1}) << "BOS without the key";
  arrays.add_bos_token = false;
  EXPECT_EQ(make_gguf_tokenizer("arrays", arrays)->encode("").ids, Ids{});
  arrays.add_space_prefix = true;
  const auto with_space = make_gguf_tokenizer("arrays", arrays);
  EXPECT_EQ(with_space->encode("the").ids, with_space->encode(" the").ids);
}

void expect_refused(const GgufVocabulary& arrays, const std::string& reason) {
  try {
    make_gguf_tokenizer("file.gguf", arrays);
    ADD_FAILURE() << "taken, in spite of: " << reason;
  } catch (const io::FileError& error) {
    const std::string what = error.what();
    EXPECT_TRUE(what.starts_with("file.gguf: ")) << what;
    EXPECT_NE(what.find(reason), std::string::npos) << what;
  }
}

TEST(GgufArrays, OtherNamesOfAPreTokenizer_GiveTheSameIds) {
  for (const auto& [golden, name] : {std::pair{"gpt2", "gpt-2"}, {"llama-bpe", "llama3"}, {"llama-bpe", "llama-v3"}}) {
    GgufVocabulary arrays = gguf_arrays(golden);
    arrays.pre = name;
    expect_golden_ids(*make_gguf_tokenizer("arrays", arrays), golden);
  }
}

TEST(GgufArrays, EqualMerges_TheFirstCounts) {
  GgufVocabulary arrays = gguf_arrays("gpt2");
  const std::vector<std::string> merges = arrays.merges;
  for (std::size_t i = 0; i < merges.size(); i += merges.size() / 20) arrays.merges.push_back(merges[i]);
  expect_golden_ids(*make_gguf_tokenizer("arrays", arrays), "gpt2");
}

TEST(GgufArrays, SpaceBeforeAText_ToTokenizerJson_IsWrittenWherePossible) {
  const headgate::testing::Scratch scratch;
  const std::string file = scratch / "tokenizer.json";
  for (const char* pre : {"gpt2", "smollm"}) {
    GgufVocabulary arrays = gguf_arrays(pre);
    arrays.add_space_prefix = true;
    headgate::testing::write_bytes(file, gguf_tokenizer_json("arrays", arrays));
    const std::string text = "the 12 gates";
    EXPECT_EQ(read_tokenizer_json(file)->encode(text).ids, make_gguf_tokenizer("arrays", arrays)->encode(text).ids);
  }
  GgufVocabulary arrays = gguf_arrays("qwen2");
  arrays.add_space_prefix = true;
  EXPECT_THROW(gguf_tokenizer_json("arrays", arrays), io::FileError);
}

TEST(GgufArrays, MergeNotUtf8_ToTokenizerJson_IsRefused) {
  GgufVocabulary arrays = gguf_arrays("gpt2");
  arrays.merges[3] = "a \xff";
  EXPECT_THROW(gguf_tokenizer_json("arrays", arrays), io::FileError);
}

TEST(GgufArrays, Arrays_Bad_AreRefusedByName) {
  const GgufVocabulary good = gguf_arrays("gpt2");
  GgufVocabulary bad = good;
  bad.model = "bert";
  expect_refused(bad, "tokenizer.ggml.model: 'bert' is not supported; gpt2 (byte-level BPE) and llama");
  bad = good;
  bad.pre = "default";
  expect_refused(bad,
                 "tokenizer.ggml.pre: 'default' is not supported; gpt2, gpt-2, smollm, llama-bpe, llama3, llama-v3, "
                 "qwen2, qwen35, gpt-4o are");
  bad = good;
  bad.tokens.pop_back();
  expect_refused(bad, "types of");
  bad = good;
  bad.tokens[7] = bad.tokens[8];
  expect_refused(bad, "has two ids, 7 and 8");
  bad = good;
  bad.tokens[7] = "\xff";
  expect_refused(bad, "tokenizer.ggml.tokens[7]: '\\xff' is not UTF-8");
  bad = good;
  bad.token_type[7] = 9;
  expect_refused(bad, "tokenizer.ggml.token_type[7]: 9 is not a token type");
  bad = good;
  bad.merges[3] = "ab";
  expect_refused(bad, "tokenizer.ggml.merges[3]: 'ab' is not \"left right\"");
  bad = good;
  bad.merges[3] = "a nosuchtoken";
  expect_refused(bad, "merge 3, 'a' and 'nosuchtoken': 'nosuchtoken' is not a token");
  bad = good;
  bad.add_bos_token = true;
  bad.bos_token_id.reset();
  expect_refused(bad, "tokenizer.ggml.bos_token_id: missing");
  bad.bos_token_id = 1 << 19;
  expect_refused(bad, "the template has id 524288, which no token has");
  bad.bos_token_id = -1;
  expect_refused(bad, "tokenizer.ggml.bos_token_id: -1 is not 0 to");
}

}  // namespace
}  // namespace headgate::tokenize
