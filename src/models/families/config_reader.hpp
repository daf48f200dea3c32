// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "library/core/words.hpp"
#include "models/decoder/config.hpp"
#include "models/io/file_error.hpp"
#include "models/io/json.hpp"

namespace headgate::models {

enum class RopeObject;

/// Reads the keys of one config.json. Remembers which keys were looked up, so that finish() can throw for unknown keys.
class ConfigReader {
 public:
  /// Parses `text`, the content of the file `path`. This and all other functions of the class throw io::FileError.
  ConfigReader(const std::string& path, std::string_view text);

  const std::string& path() const { return path_; }
  /// Returns the value of a key, or a null pointer if the key is missing.
  const io::Json* find(std::string_view key);
  const io::Json& get(std::string_view key);
  bool has(std::string_view key) const { return root_.contains(key); }
  /// Returns whether the file has rope_parameters, or a rope_scaling that is not empty.
  bool has_rope_object() const { return has_rope_object_; }
  /// Returns the layer types that have an object of their own in rope_parameters.
  const std::vector<std::string>& rope_types() const { return rope_types_; }

  void read(std::int64_t& out, std::string_view key, const io::Json& value) const;
  void read(double& out, std::string_view key, const io::Json& value) const;
  void read(bool& out, std::string_view key, const io::Json& value) const;
  void read(Embeddings& out, std::string_view key, const io::Json& value) const;
  void read(Switch& out, std::string_view key, const io::Json& value) const;
  template <typename Element>
  void read(std::vector<Element>& out, std::string_view key, const io::Json& value) const {
    require_list(key, value);
    out.clear();
    for (const io::Json& element : value) read(out.emplace_back(), key, element);
  }
  template <typename Enum>
  void read(Enum& out, std::string_view key, const io::Json& value) const {
    out = parse_word<Enum>(key, string(key, value));
  }
  std::string string(std::string_view key, const io::Json& value) const;

  /// Sets each key of the JSON object `defaults` that the file lacks.
  void put_missing(std::string_view defaults);
  /// Sets a key if it is missing or null.
  void put_default(std::string_view key, const io::Json& value);
  /// Throws if the key has a value that is not in `values`. Accepts a missing key and null.
  void require_one_of(std::string_view key, const std::vector<io::Json>& values);
  void require_value(std::string_view key, const io::Json& value) {
    require_one_of(key, std::vector<io::Json>(1, value));
  }
  /// Sets a key and replaces any value from the file.
  void put(std::string_view key, const io::Json& value);
  /// Removes a key and returns its value, or JSON null if the key is missing.
  io::Json take(std::string_view key);
  /// Accepts the key with any value.
  void ignore(std::string_view key) { known_.emplace_back(key); }
  /// Copies the RoPE parameters to flat keys of this library. Newer files have them in rope_parameters, older files in
  /// rope_scaling. Throws if a number is missing that the type of scaling needs. Throws if there is a key that the type
  /// does not use.
  void unfold_rope(RopeObject layout);
  /// Throws for the first key that was never looked up and is not null. Must be called last.
  void finish();

 private:
  void enter_text_config();
  void take_rope(const std::string& object, const io::Json& parameters);
  void take_rope_of_types(const std::string& object, const io::Json& parameters);
  std::string take_rope_type(const std::string& object, const io::Json& parameters);
  void complete_scaling(const std::string& object, const io::Json& parameters, const std::string& type);
  void complete_attention_factor(const std::string& object, const io::Json& parameters);
  void take_scaling_number(const std::string& object, const io::Json& parameters, const char* from, const char* to);
  void set_once(const std::string& key, const io::Json& value);
  void require_list(std::string_view key, const io::Json& value) const;

  const std::string& path_;
  io::Json root_;
  std::vector<std::string> known_;
  bool has_rope_object_ = false;
  std::vector<std::string> rope_types_;
};

}  // namespace headgate::models
