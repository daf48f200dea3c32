// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// Reads the tokenizer.json of the `tokenizers` package: byte-level BPE. Throws io::FileError for a file that is not
/// one, that contradicts itself, or that asks for what is not supported, which the message names.
std::unique_ptr<Tokenizer> read_tokenizer_json(const std::string& path);

}  // namespace headgate::tokenize
