// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// Opens the tokenizer of a model. `path`, resolved by io::given_path, is a tokenizer.json, a directory or run that
/// holds one, a GGUF file, or a directory of `headgate train` whose model reads bytes. Throws io::FileError, also if it
/// is none of these.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

/// Returns whether a file begins as GGUF files do. Throws io::FileError.
bool is_gguf_file(const std::string& path);

}  // namespace headgate::tokenize
