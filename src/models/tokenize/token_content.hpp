// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/io/json.hpp"

namespace headgate::tokenize {

/// Returns the spelling of a token in tokenizer_config.json and the files beside it: a string, or an object with the
/// string `content`. Returns null for other values. The result is a part of `token`.
inline const std::string* token_content(const io::Json& token) {
  const bool is_object = token.is_object() && token.contains("content");
  return (is_object ? token.at("content") : token).get_ptr<const std::string*>();
}

}  // namespace headgate::tokenize
