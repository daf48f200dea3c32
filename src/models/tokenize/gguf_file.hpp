// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/io/gguf.hpp"
#include "models/tokenize/gguf_vocabulary.hpp"

namespace headgate::tokenize {

/// Reads the values of the keys tokenizer.ggml.* of a file. Throws io::FileError for a value of the wrong type, an
/// unsupported key, and a missing model or list of tokens.
GgufVocabulary read_gguf_vocabulary(const io::GgufFile& file);

}  // namespace headgate::tokenize
