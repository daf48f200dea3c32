// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/io/json.hpp"

namespace headgate::tokenize {

/// Returns the spelling of a token in tokenizer_config.json or a similar file. There a token is a string, or an object
/// with the string `content`. Returns null for any other value. The result points into `token`.
inline const std::string* token_content(const io::Json& token) {
  const bool is_object = token.is_object() && token.contains("content");
  return (is_object ? token.at("content") : token).get_ptr<const std::string*>();
}

}  // namespace headgate::tokenize
