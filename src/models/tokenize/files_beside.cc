// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "models/io/exists.hpp"
#include "models/io/input_file.hpp"
#include "models/io/json.hpp"
#include "models/tokenize/added_tokens.hpp"
#include "models/tokenize/open.hpp"
#include "models/tokenize/token_content.hpp"

namespace headgate::tokenize {
namespace {

constexpr const char* kDecoder = "added_tokens_decoder";
constexpr std::array<const char*, 3> kLists{"additional_special_tokens", "extra_special_tokens",
                                            "model_specific_special_tokens"};

/// A flag of an added token, with its key in JSON.
struct Flag {
  const char* key;
  bool AddedToken::*member;
};
constexpr std::array<Flag, 5> kFlags{{{"single_word", &AddedToken::single_word},
                                      {"lstrip", &AddedToken::lstrip},
                                      {"rstrip", &AddedToken::rstrip},
                                      {"special", &AddedToken::special},
                                      {"normalized", &AddedToken::normalized}}};

/// Classes of transformers that keep the pre-tokenizer of tokenizer.json. Other classes build one from
/// add_prefix_space.
constexpr std::array<std::string_view, 5> kClassesOfFile{"PreTrainedTokenizerFast", "PreTrainedTokenizer",
                                                         "TokenizersBackend", "GemmaTokenizerFast", "GemmaTokenizer"};

/// Returns whether encoding puts a space before a text.
bool adds_space(const Tokenizer& tokenizer) {
  const auto ids = tokenizer.encode("a", {.add_special = false}).ids;
  return !ids.empty() && tokenizer.bytes(ids.front()).starts_with(' ');
}

/// Checks that a JSON file agrees with the tokenizer. The file is in the same directory as tokenizer.json.
class FileBeside {
 public:
  /// Reads the file. A missing file names no tokens.
  FileBeside(std::string path, const Tokenizer& tokenizer) : path_(std::move(path)), tokenizer_(tokenizer) {
    constexpr std::size_t kMost_bytes = std::size_t{1} << 26;
    constexpr int kMostDepth = 32;
    if (!io::exists(path_)) return;
    json_ = io::parse_json(path_, io::read_text(path_, kMost_bytes), kMostDepth);
    if (!json_.is_object()) io::fail(path_, "not a JSON object");
  }

  bool contains(const char* key) const { return json_.contains(key); }

  /// Checks a file that maps tokens to ids: each must be an added token with this id.
  void check_keys() const {
    for (const auto& item : json_.items()) {
      const AddedToken& token = check("the file", item.key());
      if (item.value() != token.id) {
        io::fail(path_, "the file gives token '{}' the id {}, but tokenizer.json gives it {}",
                 io::printable(item.key()), io::printable(item.value().dump()), token.id);
      }
    }
  }
  /// Checks the tokens of keys that end with "_token", such as eos_token, and of keys that list special tokens.
  void check_special_tokens() const {
    for (const auto& item : json_.items()) {
      const std::string* text = named_token(item.key(), item.value());
      if (text != nullptr) check(item.key(), *text);
    }
    for (const char* key : kLists) {
      for_each(key, [&](const io::Json&, const std::string& text) { check(key, text); });
    }
  }
  /// Checks the tokens under added_tokens_decoder and their flags. transformers lets these flags win over those in
  /// tokenizer.json.
  void check_decoder() const {
    std::set<std::string_view> named;  // tokens that are special whatever their flag says
    for (const auto& item : json_.items()) {
      const std::string* text = named_token(item.key(), item.value());
      if (text != nullptr) named.insert(*text);
    }
    for_each(kDecoder, [&](const io::Json& token, const std::string& text) {
      const AddedToken& known = check(kDecoder, text);
      if (token.is_object()) check_flags(token, known, named.contains(text));
    });
  }
  /// Checks the settings that change token ids.
  void check_settings() const {
    constexpr const char *kSplit = "split_special_tokens", *kSpace = "add_prefix_space", *kClass = "tokenizer_class";
    if (const io::Json split = json_.value(kSplit, io::Json()); !split.is_null() && split != false) {
      io::fail(path_, "{} {} is not supported: remove the key, and give --special-as-text where it is wanted", kSplit,
               io::printable(split.dump()));
    }
    const io::Json space = json_.value(kSpace, io::Json()), type = json_.value(kClass, io::Json());
    std::string_view name;
    if (type.is_string()) name = type.get_ref<const std::string&>();
    if (std::count(kClassesOfFile.begin(), kClassesOfFile.end(), name) > 0) return;
    if (!space.is_boolean()) return;
    if (const bool adds = space.get<bool>(); adds != adds_space(tokenizer_)) {
      io::fail(path_, "{} is {}, but tokenizer.json puts {} space before a text: make them agree", kSpace, adds,
               adds ? "no" : "a");
    }
  }

 private:
  /// Returns the token of a key such as eos_token, or null for other keys and values.
  static const std::string* named_token(const std::string& key, const io::Json& value) {
    return key.ends_with("_token") ? token_content(value) : nullptr;
  }

  /// Calls `visit` for each token in the list or object under `key`, with its JSON value and its spelling.
  template <class Visit>
  void for_each(const char* key, const Visit& visit) const {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return;
    if (!found->is_structured()) io::fail(path_, "{} is neither a list nor an object", key);
    for (const io::Json& token : *found) {
      const std::string* text = token_content(token);
      if (text == nullptr)
        io::fail(path_, "{}: a token is neither a string nor an object with the string content", key);
      visit(token, *text);
    }
  }

  /// Returns the added token that is spelled `token`. Fails if `token` is only an ordinary word of the vocabulary.
  /// transformers would make such a word an added token, which splits the text around it.
  const AddedToken& check(const std::string& where, const std::string& token) const {
    if (const AddedToken* found = tokenizer_.find_added(token); found != nullptr) return *found;
    io::fail(path_, "{} has the token '{}', which the added_tokens of tokenizer.json lack: add it there",
             io::printable(where), io::printable(token));
  }

  void check_flags(const io::Json& token, const AddedToken& known, bool is_named) const {
    AddedToken given;
    for (const Flag& flag : kFlags) {
      const bool absent = flag.member == &AddedToken::normalized && !given.special;
      const io::Json value = token.value(flag.key, io::Json(absent));
      if (!value.is_boolean())
        io::fail(path_, "{}: {} of '{}' is neither true nor false", kDecoder, flag.key, io::printable(known.content));
      given.*flag.member = value.get<bool>();
    }
    given.special = given.special || is_named;
    if (!tokenizer_.normalizes()) given.normalized = known.normalized;  // the normal form is the text itself
    for (const Flag& flag : kFlags) {
      if (given.*flag.member == known.*flag.member) continue;
      io::fail(path_, "{}: {} of '{}' is {}, but {} in tokenizer.json: make them agree", kDecoder, flag.key,
               io::printable(known.content), given.*flag.member, known.*flag.member);
    }
  }

  std::string path_;
  const Tokenizer& tokenizer_;
  io::Json json_ = io::Json::object();
};

}  // namespace

void check_files_beside(const std::string& directory, const Tokenizer& tokenizer) {
  const FileBeside config(directory + "/tokenizer_config.json", tokenizer);
  config.check_decoder();
  config.check_special_tokens();
  config.check_settings();
  if (config.contains(kDecoder)) return;  // transformers ignores the other files if this key exists
  FileBeside(directory + "/special_tokens_map.json", tokenizer).check_special_tokens();
  FileBeside(directory + "/added_tokens.json", tokenizer).check_keys();
}

}  // namespace headgate::tokenize
