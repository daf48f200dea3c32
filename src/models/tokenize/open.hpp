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
/// Throws io::FileError for anything else, and in the cases of check_files_beside().
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

/// Checks that the files below agree with `tokenizer`, which was read from the tokenizer.json in `directory`. Throws
/// io::FileError where the `transformers` package would change the tokenizer by them:
/// - tokenizer_config.json: its special tokens and those of added_tokens_decoder must be added tokens with the same
///   flags. split_special_tokens must not be true. add_prefix_space must be what encoding does.
/// - special_tokens_map.json and added_tokens.json, if tokenizer_config.json has no added_tokens_decoder: their tokens
///   must be added tokens with the same ids.
void check_files_beside(const std::string& directory, const Tokenizer& tokenizer);

/// Returns whether a file begins with GGUF's magic number. Throws io::FileError if the file cannot be read.
bool is_gguf_file(const std::string& path);

}  // namespace headgate::tokenize
