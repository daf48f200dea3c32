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
/// Throws io::FileError for anything else.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

/// Returns whether a file begins with the magic number of GGUF. Throws io::FileError.
bool is_gguf_file(const std::string& path);

}  // namespace headgate::tokenize
