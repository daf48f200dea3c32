// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// Opens the tokenizer of a model. `path`, resolved by io::given_path, is a tokenizer.json, a directory that holds one,
/// a GGUF file, or a directory of `headgate train`, whose models read bytes. Throws io::FileError, also if it is none
/// of these.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

}  // namespace headgate::tokenize
