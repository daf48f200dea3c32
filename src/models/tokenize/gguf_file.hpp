// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/io/gguf.hpp"
#include "models/tokenize/gguf_vocabulary.hpp"

namespace headgate::tokenize {

/// Reads the values of the keys tokenizer.ggml.* in a file. Throws io::FileError if a value has the wrong type, if a
/// key is not supported, or if the model or the list of tokens is missing.
GgufVocabulary read_gguf_vocabulary(const io::GgufFile& file);

}  // namespace headgate::tokenize
