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

}  // namespace headgate::tokenize
