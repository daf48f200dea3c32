// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace headgate::tokenize {

/// Form of the input that a model without a tokenizer reads.
enum class ByteText {
  none,       ///< the input is not bytes
  plain,      ///< the input is the bytes of the text
  after_bos,  ///< the input is kByteBos, followed by the bytes of the text
};

/// Returns the form of input that the model in `directory` reads. `directory` holds config.json. Returns none if
/// `directory` also holds tokenizer.json, or if the model was trained on the ids of a tokenizer. Throws io::FileError.
///
/// Otherwise the tokens are bytes if any of these holds:
/// - vocab_size is at most 256 or equals kVocabWithByteBos
/// - bos_token_id is kByteBos or, if model_type is "headgate", null
/// - a training run of Headgate wrote trainer_state.json
///
/// The first of these that exists tells whether BOS precedes a text:
/// - the key bos_token_id: BOS precedes if the value is kByteBos
/// - trainer_state.json: BOS precedes if it did in training
/// - the key vocab_size: BOS precedes if the value is kVocabWithByteBos
ByteText byte_text_of(const std::string& directory);

/// Returns whether bos_token_id in a config.json is kByteBos, which means that texts of bytes begin with BOS. Throws
/// io::FileError.
bool has_byte_bos(const std::string& config_file);

}  // namespace headgate::tokenize
