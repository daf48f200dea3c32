// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/io/gguf.hpp"
#include "models/tokenize/gguf_vocabulary.hpp"

namespace headgate::tokenize {

/// Reads the values of tokenizer.ggml.* in a file. Throws io::FileError for a value of another type and for a missing
/// list.
GgufVocabulary read_gguf_vocabulary(const io::GgufFile& file);

}  // namespace headgate::tokenize
