// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// A tokenizer together with its tokenizer.json, which training stores beside the model.
struct TokenizerFile {
  std::string json;
  std::string hash;  ///< hash of `json`: 16 hexadecimal digits
  std::shared_ptr<const Tokenizer> tokenizer;
};

/// Opens a tokenizer.json, a directory or a run of `headgate train` that holds one, or a GGUF file. The tokenizer of a
/// GGUF file is converted as `headgate convert` does. Throws io::FileError.
TokenizerFile open_tokenizer_file(const std::string& path);

/// Returns the id of the token that ends a text: the first of <|endoftext|>, <|end_of_text|>, </s>, <eos> and <|end|>
/// that is a special token. Returns kNoToken if there is none.
std::int32_t end_of_text(const Tokenizer& tokenizer);

/// Returns the ids of the tokens that the tokenizer puts before a text.
std::vector<std::int32_t> front_of(const Tokenizer& tokenizer);

}  // namespace headgate::tokenize
