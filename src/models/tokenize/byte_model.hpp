// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace headgate::tokenize {

/// How a model without a tokenizer reads a text.
enum class ByteText {
  none,       ///< not at all: its tokens are not bytes
  plain,      ///< as bytes
  after_bos,  ///< as bytes after a kByteBos
};

/// Returns how the model in `directory`, which holds config.json, reads a text; none if it holds tokenizer.json. Its
/// tokens are bytes if model_type is "headgate", vocab_size is at most 256 or kVocabWithByteBos, bos_token_id is
/// kByteBos, or trainer_state.json stands beside them. Whether BOS stands before a text is said by bos_token_id,
/// without that key by trainer_state.json, and without both by a vocab_size of kVocabWithByteBos. Throws io::FileError.
ByteText byte_text_of(const std::string& directory);

}  // namespace headgate::tokenize
