// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace headgate::tokenize {

/// Input format of a model without a tokenizer.
enum class ByteText {
  none,       ///< the model's tokens are not bytes
  plain,      ///< the bytes of the text
  after_bos,  ///< kByteBos comes before the bytes of the text
};

/// Returns the input format of the model in `directory`, which holds config.json. Returns none if `directory` also
/// holds tokenizer.json. Throws io::FileError.
///
/// The tokens are bytes if any of these holds:
/// - model_type is "headgate"
/// - vocab_size is at most 256 or equals kVocabWithByteBos
/// - bos_token_id is kByteBos
/// - a training run of Headgate wrote trainer_state.json
///
/// The first of these that exists determines whether BOS precedes a text: the key bos_token_id, trainer_state.json,
/// vocab_size. With vocab_size alone, BOS precedes a text if vocab_size is kVocabWithByteBos.
ByteText byte_text_of(const std::string& directory);

}  // namespace headgate::tokenize
