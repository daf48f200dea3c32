// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// A tokenizer with the tokenizer.json that describes it, for models that are trained on its ids.
struct TokenizerFile {
  std::string json;
  std::string hash;  ///< of `json`, 16 hexadecimal digits
  std::shared_ptr<const Tokenizer> tokenizer;
};

/// Opens a tokenizer.json, a directory that holds one, a run of `headgate train` with one, or the tokenizer in a GGUF
/// file, which is converted as `headgate convert` does. Throws io::FileError.
TokenizerFile open_tokenizer_file(const std::string& path);

/// Returns the token that ends a text: the first special token of <|endoftext|>, <|end_of_text|>, </s>, <eos> and
/// <|end|>; kNoToken if there is none.
std::int32_t end_of_text(const Tokenizer& tokenizer);

/// Returns the tokens that the tokenizer puts before a text.
std::vector<std::int32_t> front_of(const Tokenizer& tokenizer);

}  // namespace headgate::tokenize
