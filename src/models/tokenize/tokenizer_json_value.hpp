// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/io/input_file.hpp"
#include "models/io/json.hpp"
#include "models/tokenize/error.hpp"

namespace headgate::tokenize {

/// A key of tokenizer.json that is ignored, because its value does not change the ids.
struct HarmlessKey {
  /// Object that contains the key, named by its type or by the key under which it is stored. Empty for the whole file.
  std::string_view part;
  std::string_view key, why;
};

inline constexpr std::array<HarmlessKey, 15> kHarmlessKeys{{
    {"", "truncation", "a text is encoded whole, as transformers does unless it is asked to truncate"},
    {"", "padding", "one text is encoded at a time, which transformers does not pad unless it is asked to"},
    {"ByteLevel", "trim_offsets", "changes offsets alone"},
    {"post_processor", "add_prefix_space", "the post-processor ByteLevel changes offsets alone"},
    {"post_processor", "use_regex", "the post-processor ByteLevel changes offsets alone"},
    {"post_processor", "trim_offsets", "the post-processor ByteLevel changes offsets alone"},
    {"decoder", "add_prefix_space", "the decoder ByteLevel joins bytes"},
    {"decoder", "use_regex", "the decoder ByteLevel joins bytes"},
    {"decoder", "trim_offsets", "the decoder ByteLevel joins bytes"},
    {"TemplateProcessing", "pair", "one text is encoded at a time"},
    {"Sequence", "type_id", "numbers the segments of BERT's inputs"},
    {"SpecialToken", "type_id", "numbers the segments of BERT's inputs"},
    {"special_tokens", "id", "the key that leads to the token is its name"},
    {"special_tokens", "tokens", "spells the ids"},
    {"Metaspace", "str_rep", "repeats replacement in files of old versions"},
}};

inline bool is_harmless_key(std::string_view part, std::string_view key) {
  return std::any_of(kHarmlessKeys.begin(), kHarmlessKeys.end(),
                     [&](const HarmlessKey& row) { return row.part == part && row.key == key; });
}

/// A JSON value in the file. Holds the path of keys to the value, for messages.
class JsonValue {
 public:
  JsonValue(const io::Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  const io::Json& json() const { return json_; }
  bool is_null() const { return json_.is_null(); }

  /// Returns the value of a key, or a null value if the key is absent.
  JsonValue at(const std::string& key) const {
    static const io::Json null;
    if (!json_.is_object()) refuse("{}: not an object", where_);
    const auto found = json_.find(key);
    return {found == json_.end() ? null : *found, where_.empty() ? key : where_ + "." + key};
  }

  /// Throws TokenizerError if the object has an unsupported key. Supported are the keys in `keys`, keys with the value
  /// null, and harmless keys (see HarmlessKey). `part` is the object's type, or the key under which the object is
  /// stored.
  void only(std::string_view part, std::initializer_list<std::string_view> keys) const {
    if (!json_.is_object()) refuse("{}: not an object", where_);
    for (const auto& [key, value] : json_.items()) {
      const bool known = std::find(keys.begin(), keys.end(), key) != keys.end();
      if (!known && !value.is_null() && !is_harmless_key(part, key)) {
        refuse("{}'{}' is not supported", where_.empty() ? "" : where_ + ": ", io::printable(key));
      }
    }
  }

  std::vector<JsonValue> list() const {
    if (!json_.is_array()) refuse("{}: not a list", where_);
    std::vector<JsonValue> out;
    for (std::size_t i = 0; i < json_.size(); ++i) out.emplace_back(json_[i], fmt::format("{}[{}]", where_, i));
    return out;
  }

  /// Returns the elements of a Sequence. `key` is the key of their list.
  std::vector<JsonValue> sequence(const std::string& key) const {
    only("Sequence", {"type", key});
    std::vector<JsonValue> out = at(key).list();
    constexpr std::size_t kMaxParts = 64;
    if (out.size() > kMaxParts) refuse("{}.{}: {} parts; at most {} are taken", where_, key, out.size(), kMaxParts);
    return out;
  }

  std::string text() const {
    if (!json_.is_string()) refuse("{}: not a string", where_);
    return json_.get<std::string>();
  }

  bool flag(bool absent) const {
    if (is_null()) return absent;
    if (!json_.is_boolean()) refuse("{}: neither true nor false", where_);
    return json_.get<bool>();
  }

  std::int64_t integer() const {
    const bool fits =
        json_.is_number_unsigned() ? json_.get<std::uint64_t>() < std::uint64_t{1} << 62 : json_.is_number_integer();
    if (!fits) refuse("{}: not a whole number in range", where_);
    return json_.get<std::int64_t>();
  }

  std::string type() const { return at("type").text(); }

  [[noreturn]] void refuse_type(std::string_view supported) const {
    refuse("{}: type '{}' is not supported; {}", where_, io::printable(type()), supported);
  }

 private:
  const io::Json& json_;
  std::string where_;
};

}  // namespace headgate::tokenize
