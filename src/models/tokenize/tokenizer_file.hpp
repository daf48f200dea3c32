// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// A tokenizer and its tokenizer.json. Training stores the file beside the model.
struct TokenizerFile {
  std::string json;
  std::string hash;  ///< hash of `json` as 16 hexadecimal digits
  std::shared_ptr<const Tokenizer> tokenizer;
};

/// Opens a tokenizer.json, a directory or run of `headgate train` that has one, or a GGUF file. Converts the tokenizer
/// of a GGUF file as `headgate convert` does. Throws io::FileError.
TokenizerFile open_tokenizer_file(const std::string& path);

/// Returns the id of the token that ends a text. This is the first of <|endoftext|>, <|end_of_text|>, </s>, <eos> and
/// <|end|> that is a special token. Returns kNoToken if none of them is.
std::int32_t end_of_text(const Tokenizer& tokenizer);

/// Returns the ids of the special tokens that the tokenizer puts before a text.
std::vector<std::int32_t> leading_special_ids(const Tokenizer& tokenizer);

}  // namespace headgate::tokenize
