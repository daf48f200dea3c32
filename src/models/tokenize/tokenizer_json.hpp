// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// Reads the tokenizer.json of the `tokenizers` package: BPE of bytes or of characters, or Unigram. Throws
/// io::FileError for a file that is not one, contradicts itself, or needs an unsupported feature, which the message
/// names.
std::unique_ptr<Tokenizer> read_tokenizer_json(const std::string& path);

/// Does the same in two steps: reads the text of the file, and makes the tokenizer. `name`: the file, for messages.
std::string read_json_text(const std::string& path);
std::unique_ptr<Tokenizer> parse_tokenizer_json(const std::string& name, const std::string& text);

}  // namespace headgate::tokenize
