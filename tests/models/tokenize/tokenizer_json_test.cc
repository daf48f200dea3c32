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
      {[](Json& j) { j["version"] = "2.0"; }, "version: '2.0' is not supported; '1.0' is"},
      {[](Json& j) { j["surprise"] = 1; }, "'surprise' is not supported"},
      {[](Json& j) { j["model"]["type"] = "WordPiece"; },
       "model: type 'WordPiece' is not supported; BPE and Unigram are"},
      {[](Json& j) { j["model"]["byte_fallback"] = true; },
       "model.byte_fallback: not supported together with ByteLevel"},
      {[](Json& j) { j["model"]["dropout"] = 0.5; }, "model.dropout: not supported"},
      {[](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "model.end_of_word_suffix: '</w>' is not supported"},
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
      {[](Json& j) { j["added_tokens"][0]["id"] = 9; },
       "added token '<|endoftext|>' has id 9, but the `tokenizers` package gives it 0"},
      {[](Json& j) { j["added_tokens"][0]["content"] = "<other>"; },
       "added token '<other>' has id 0, but the `tokenizers` package gives it 4"},
      {[](Json& j) { j["post_processor"]["processors"][0]["surprise"] = 1; },
       "post_processor.processors[0]: 'surprise' is not supported"},
      {[](Json& j) { j["decoder"]["surprise"] = 1; }, "decoder: 'surprise' is not supported"},
      {[](Json& j) { j["added_tokens"].back()["content"] = std::string((1 << 20) + 1, 'x'); },
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

TEST(TokenizerJson, TruncationAndPadding_LeaveATextAsItIs) {
  Json json = golden_file("llama-bpe");
  const std::string text = "All human beings are born free and equal in dignity and rights.";
  const auto ids = read(json.dump())->encode(text).ids;
  json["truncation"] = {{"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
  json["padding"] = {{"strategy", {{"Fixed", 4096}}}, {"direction", "Right"}, {"pad_id", 5}, {"pad_token", "x"}};
  EXPECT_EQ(read(json.dump())->encode(text).ids, ids);
}

TEST(TokenizerJson, Character_WithoutAToken_LetsItsNeighboursMerge) {
  Json json{{"model",
             {{"type", "BPE"},
              {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"<unk>", 3}}},
              {"merges", Json::array({Json::array({"a", "b"})})}}}};
  const Encoding left_out = read(json.dump())->encode("aéb");
  EXPECT_EQ(left_out.ids, (std::vector<std::int32_t>{2})) << "as PyPI's tokenizers";
  EXPECT_EQ(left_out.left_out, 2U);
  json["model"]["unk_token"] = "<unk>";
  EXPECT_EQ(read(json.dump())->encode("aéb").ids, (std::vector<std::int32_t>{0, 3, 1}));
  json["model"]["unk_token"] = "<missing>";
  expect_refused(json.dump(), "model.unk_token: '<missing>' is not a token");
}

TEST(TokenizerJson, AddedTokens_OfOtherIdsThanThePackageGives_AreRefused) {
  Json json{{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}, {"merges", Json::array()}}}};
  json["added_tokens"] = {{{"id", 2}, {"content", "x"}}, {{"id", 0}, {"content", "a"}}, {{"id", 3}, {"content", "y"}}};
  EXPECT_EQ(read(json.dump())->encode("xyb").ids, (std::vector<std::int32_t>{2, 3, 1}));
  json["added_tokens"][2]["id"] = 7;
  expect_refused(json.dump(), "added token 'y' has id 7, but the `tokenizers` package gives it 3");
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
