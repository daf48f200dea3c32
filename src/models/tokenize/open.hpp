// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// Opens the tokenizer of a model. io::given_path() resolves `path`, which may be:
/// - a tokenizer.json, or a directory or training run that has one
/// - a GGUF file
/// - a directory that `headgate train` wrote, with a model that reads bytes
///
/// Throws io::FileError for anything else, and in the cases of check_added_tokens().
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

/// Checks that `tokenizer`, read from the tokenizer.json in `directory`, has every token that the files below name.
/// Throws io::FileError for a missing token. The `transformers` package would add such a token, but Headgate does not.
/// The files are in `directory`:
/// - tokenizer_config.json: its added_tokens_decoder and special tokens
/// - added_tokens.json
/// - special_tokens_map.json, if tokenizer_config.json has no added_tokens_decoder
void check_added_tokens(const std::string& directory, const Tokenizer& tokenizer);

/// Returns whether a file begins with GGUF's magic number. Throws io::FileError if the file cannot be read.
bool is_gguf_file(const std::string& path);

}  // namespace headgate::tokenize
