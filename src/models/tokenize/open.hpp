// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// Opens the tokenizer of a model. `path` is resolved by io::given_path(), and names one of these:
/// - a tokenizer.json, or a directory or training run that has one
/// - a GGUF file
/// - a directory of `headgate train` with a model that reads bytes
/// Throws io::FileError for anything else, and as check_added_tokens() does.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

/// Checks that a model's tokenizer.json, from which `tokenizer` was read, has all tokens that other files in
/// `directory` name. Throws io::FileError if not: transformers adds such tokens, but Headgate does not. The files are
/// tokenizer_config.json (added_tokens_decoder, special tokens), added_tokens.json, and without an added_tokens_decoder
/// also special_tokens_map.json.
void check_added_tokens(const std::string& directory, const Tokenizer& tokenizer);

/// Returns whether a file begins with the magic number of GGUF. Throws io::FileError.
bool is_gguf_file(const std::string& path);

}  // namespace headgate::tokenize
