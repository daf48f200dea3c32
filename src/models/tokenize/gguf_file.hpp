// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/io/gguf.hpp"
#include "models/tokenize/gguf_vocabulary.hpp"

namespace headgate::tokenize {

/// Reads the values of the keys tokenizer.ggml.* in a file. Throws io::FileError in these cases:
/// - A value has the wrong type.
/// - A key is not supported.
/// - The model or the list of tokens is missing.
GgufVocabulary read_gguf_vocabulary(const io::GgufFile& file);

}  // namespace headgate::tokenize
