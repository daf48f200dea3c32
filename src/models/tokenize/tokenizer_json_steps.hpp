// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/tokenize/staged_tokenizer.hpp"
#include "models/tokenize/tokenizer_json_value.hpp"

namespace headgate::tokenize {

/// Reads the values of normalizer, pre_tokenizer and decoder, in this order, into `parts`, whose model is read already.
/// A pre-tokenizer with ByteLevel turns character_bpe into byte_bpe. Throws TokenizerError for what is not supported.
void read_normalizer(TokenizerParts& parts, const JsonValue& value);
void read_pre_tokenizer(TokenizerParts& parts, const JsonValue& value);
void read_decoder(TokenizerParts& parts, const JsonValue& value);

}  // namespace headgate::tokenize
