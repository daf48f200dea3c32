// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// Reads a tokenizer.json of the `tokenizers` package with BPE of bytes, BPE of characters, or Unigram. Throws
/// io::FileError if the file is invalid or contradictory, or if it uses an unsupported feature. The message names the
/// feature.
std::unique_ptr<Tokenizer> read_tokenizer_json(const std::string& path);

/// These two functions are the steps of read_tokenizer_json(). read_json_text() returns the text of the file, and
/// parse_tokenizer_json() makes the tokenizer from this text. `name` is the file name in messages. Both functions throw
/// the errors of read_tokenizer_json().
std::string read_json_text(const std::string& path);
std::unique_ptr<Tokenizer> parse_tokenizer_json(const std::string& name, const std::string& text);

}  // namespace headgate::tokenize
