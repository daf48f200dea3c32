// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/tokenizer_json.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "models/io/file_error.hpp"
#include "models/tokenize/golden.hpp"

namespace headgate::tokenize {
namespace {

using headgate::testing::golden_file;
using headgate::testing::MemoryFile;
using Json = nlohmann::json;

const MemoryFile& file() {
  static const MemoryFile memory;
  return memory;
}

std::unique_ptr<Tokenizer> read(const std::string& text) {
  file().write(text);
  return read_tokenizer_json(file().path());
}

void expect_refused(const std::string& text, const std::string& reason) {
  try {
    read(text);
    ADD_FAILURE() << "taken, in spite of: " << reason;
  } catch (const io::FileError& error) {
    const std::string what = error.what();
    EXPECT_TRUE(what.starts_with(file().path() + ": ")) << what;
    EXPECT_NE(what.find(reason), std::string::npos) << what << "\nnot: " << reason;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
  }
}

struct Refusal {
  std::function<void(Json&)> change;
  std::string reason;
};

const std::vector<Refusal>& refusals() {
  static const std::vector<Refusal> all{
      {[](Json& j) {
         j["truncation"] = {{"max_length", 5}};
       },
       "truncation: not supported"},
      {[](Json& j) {
         j["padding"] = {{"pad_id", 5}};
       },
       "padding: not supported"},
      {[](Json& j) { j["surprise"] = 1; }, "'surprise' is not supported"},
      {[](Json& j) { j["model"]["type"] = "WordPiece"; },
       "model: type 'WordPiece' is not supported; BPE and Unigram are"},
      {[](Json& j) { j["model"]["byte_fallback"] = true; },
       "model.byte_fallback: not supported together with ByteLevel"},
      {[](Json& j) { j["model"]["dropout"] = 0.5; }, "model.dropout: not supported"},
      {[](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "model: 'end_of_word_suffix' is not supported"},
      {[](Json& j) { j["model"]["vocab"] = 3; }, "model.vocab: not an object"},
      {[](Json& j) { j["model"]["vocab"]["new"] = 7; }, "id 7 has two tokens, "},
      {[](Json& j) { j["model"]["vocab"]["new"] = -1; }, "token 'new' has id -1"},
      {[](Json& j) { j["model"]["vocab"]["new"] = 1ULL << 40; }, "token 'new' has id 1099511627776, not 0 to 1048575"},
      {[](Json& j) { j["model"]["vocab"]["new"] = 1ULL << 63; }, "token 'new' has id 9223372036854775808, not 0 to"},
      {[](Json& j) { j["model"]["vocab"]["new"] = 1.5; }, "the id of 'new' is not a whole number"},
      {[](Json& j) { j["model"]["vocab"][""] = 1000; }, "token 1000 is empty"},
      {[](Json& j) {
         j["model"]["merges"] = {{"a", "b"}};
       },
       "model.merges: not a list"},
      {[](Json& j) { j["model"]["merges"][2] = "a"; }, "model.merges[2]: neither"},
      {[](Json& j) { j["model"]["merges"][2] = "a b c"; }, "model.merges[2]: neither"},
      {[](Json& j) {
         j["model"]["merges"][2] = {"a", "b", "c"};
       },
       "model.merges[2]: neither"},
      {[](Json& j) {
         j["model"]["merges"][2] = {"a", "nosuch"};
       },
       "merge 2, 'a' and 'nosuch': 'nosuch' is not a token"},
      {[](Json& j) {
         j["model"]["merges"][2] = {"z", "q"};
       },
       "merge 2, 'z' and 'q': 'zq' is not a token"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "Lowercase"}};
       },
       "normalizer: type 'Lowercase' is not supported"},
      {[](Json& j) { j["normalizer"] = "NFC"; }, "normalizer: not an object"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array({{{"type", "NFKC"}}})}};
       },
       "normalizer.normalizers[0]: type 'NFKC' is not supported"},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "Whitespace"}};
       },
       "pre_tokenizer: type 'Whitespace' is not supported; ByteLevel, Metaspace, Split, Digits, "
       "WhitespaceSplit and Sequence are"},
      {[](Json& j) {
         const Json level{{"type", "ByteLevel"}};
         j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {level, level}}};
       },
       "pre_tokenizer.pretokenizers[1]: a step after ByteLevel"},
      {[](Json& j) {
         const Json split{{"type", "Split"}, {"pattern", {{"Regex", "\\w"}}}, {"behavior", "Isolated"}};
         j["pre_tokenizer"] = split;
       },
       "pre_tokenizer.pattern: '\\w' is not supported"},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Boldly"}};
       },
       "pre_tokenizer: behavior 'Boldly' is not supported"},
      {[](Json& j) {
         j["post_processor"] = {{"type", "BertProcessing"}};
       },
       "post_processor: type 'BertProcessing'"},
      {[](Json& j) { j["post_processor"]["processors"][1]["single"] = Json::array(); }, "without the text, Sequence A"},
      {[](Json& j) { j["post_processor"]["processors"][1]["special_tokens"] = Json::object(); },
       "no '<|im_start|>', which the template has"},
      {[](Json& j) { j["post_processor"]["processors"][1]["special_tokens"]["<|im_start|>"]["ids"] = {1000}; },
       "the template has id 1000, which no token has"},
      {[](Json& j) { j["post_processor"]["processors"][0] = j["post_processor"]["processors"][1]; },
       "a second template is not supported"},
      {[](Json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       },
       "decoder: type 'WordPiece' is not supported"},
      {[](Json& j) { j["added_tokens"] = 1; }, "added_tokens: not a list"},
      {[](Json& j) { j["added_tokens"][0]["id"] = 1 << 20; }, "added_tokens[0].id: 1048576 is not 0 to 1048575"},
      {[](Json& j) { j["added_tokens"][0]["content"] = ""; }, "added_tokens[0].content: empty"},
      {[](Json& j) { j["added_tokens"][0]["special"] = "yes"; }, "added_tokens[0].special: neither true nor false"},
      {[](Json& j) { j["added_tokens"][0]["id"] = 9; }, "token '<|endoftext|>' has two ids, 0 and 9"},
      {[](Json& j) { j["added_tokens"][0]["content"] = "<other>"; },
       "id 0 has two tokens, '<|endoftext|>' and '<other>'"},
      {[](Json& j) {
         j["added_tokens"][0]["content"] = std::string((1 << 20) + 1, 'x');
         j["added_tokens"][0]["id"] = 999;
       },
       "added tokens of more than 1048576 bytes"},
  };
  return all;
}

TEST(TokenizerJson, Feature_NotSupported_IsRefusedByName) {
  for (const Refusal& refusal : refusals()) {
    Json json = golden_file("llama-bpe");
    refusal.change(json);
    expect_refused(json.dump(), refusal.reason);
  }
}

TEST(TokenizerJson, File_NoTokenizerJson_IsRefused) {
  expect_refused("", "not JSON");
  expect_refused("[]", "is array, not a tokenizer: a JSON object with model.vocab and model.merges");
  expect_refused("{}", "model: not an object");
  expect_refused(std::string(100, '['), "brackets nested more than 16 deep");
  expect_refused(R"({"model": {"vocab": {"a": 0, "a": 1}}})", "duplicate key 'a'");
  EXPECT_THROW(read_tokenizer_json("/nonexistent"), io::FileError);
}

TEST(TokenizerJson, Merges_StringsOrPairs_AreRead) {
  Json json = golden_file("gpt2");
  const auto pairs = read(json.dump());
  for (Json& merge : json["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const auto words = read(json.dump());
  const std::string text = "All human beings are born free and equal";
  EXPECT_EQ(words->encode(text).ids, pairs->encode(text).ids);
}

TEST(TokenizerJson, File_WithoutAModelType_IsRead) {
  Json json = golden_file("gpt2");
  json["model"].erase("type");
  json["model"]["continuing_subword_prefix"] = "";
  json["decoder"] = nullptr;
  EXPECT_EQ(read(json.dump())->encode("a b").ids.size(), 2U);
}

}  // namespace
}  // namespace headgate::tokenize
