// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/tokenize/staged_tokenizer.hpp"
#include "models/tokenize/tokenizer_json_value.hpp"

namespace headgate::tokenize {

/// These functions read the values of normalizer, pre_tokenizer and decoder into `parts`. They must be called in this
/// order, after the model has been read. A pre-tokenizer ByteLevel changes parts.model from character_bpe to byte_bpe.
/// Unsupported values throw TokenizerError.
void read_normalizer(TokenizerParts& parts, const JsonValue& value);
void read_pre_tokenizer(TokenizerParts& parts, const JsonValue& value);
void read_decoder(TokenizerParts& parts, const JsonValue& value);

}  // namespace headgate::tokenize
