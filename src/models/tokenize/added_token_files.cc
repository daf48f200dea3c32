// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <utility>

#include "models/io/exists.hpp"
#include "models/io/input_file.hpp"
#include "models/io/json.hpp"
#include "models/tokenize/open.hpp"
#include "models/tokenize/token_content.hpp"

namespace headgate::tokenize {
namespace {

/// Checks that the tokenizer has all tokens that a JSON file names. The file is in the same directory as
/// tokenizer.json.
class NamedTokens {
 public:
  /// Reads the file. A missing file names no tokens.
  NamedTokens(std::string path, const Tokenizer& tokenizer) : path_(std::move(path)), tokenizer_(tokenizer) {
    constexpr std::size_t kMost_bytes = std::size_t{1} << 26;
    constexpr int kMostDepth = 32;
    if (!io::exists(path_)) return;
    json_ = io::parse_json(path_, io::read_text(path_, kMost_bytes), kMostDepth);
    if (!json_.is_object()) io::fail(path_, "not a JSON object");
  }

  bool contains(const char* key) const { return json_.contains(key); }

  /// Checks the keys of the file's object, which are tokens.
  void check_keys() const {
    for (const auto& item : json_.items()) check("the file", item.key());
  }
  /// Checks all tokens in the list or object under `key`.
  void check_all_of(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return;
    if (!found->is_structured()) io::fail(path_, "{} is neither a list nor an object", key);
    for (const io::Json& token : *found) {
      const std::string* text = token_content(token);
      if (text == nullptr)
        io::fail(path_, "{}: a token is neither a string nor an object with the string content", key);
      check(key, *text);
    }
  }
  /// Checks the tokens of keys that end with "_token", such as eos_token, and of keys that list special tokens.
  void check_special_tokens() const {
    for (const auto& item : json_.items()) {
      const std::string* text = item.key().ends_with("_token") ? token_content(item.value()) : nullptr;
      if (text != nullptr) check(item.key(), *text);
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"})
      check_all_of(key);
  }

 private:
  void check(const std::string& where, const std::string& token) const {
    if (tokenizer_.find(token) != kNoToken) return;
    io::fail(path_, "{} has the token '{}', which tokenizer.json lacks: add it to the added_tokens there",
             io::printable(where), io::printable(token));
  }

  std::string path_;
  const Tokenizer& tokenizer_;
  io::Json json_ = io::Json::object();
};

}  // namespace

void check_added_tokens(const std::string& directory, const Tokenizer& tokenizer) {
  const NamedTokens config(directory + "/tokenizer_config.json", tokenizer);
  config.check_all_of("added_tokens_decoder");
  config.check_special_tokens();
  if (!config.contains("added_tokens_decoder"))  // transformers ignores the next file if this key exists
    NamedTokens(directory + "/special_tokens_map.json", tokenizer).check_special_tokens();
  NamedTokens(directory + "/added_tokens.json", tokenizer).check_keys();
}

}  // namespace headgate::tokenize
