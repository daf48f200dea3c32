// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/tokenize/staged_tokenizer.hpp"
#include "models/tokenize/tokenizer_json_value.hpp"

namespace headgate::tokenize {

/// These functions read the values normalizer, pre_tokenizer and decoder of tokenizer.json into `parts`. Call them in
/// this order, after the model was read. They throw TokenizerError for values that are not supported. The pre-tokenizer
/// ByteLevel changes parts.model from character_bpe to byte_bpe.
void read_normalizer(TokenizerParts& parts, const JsonValue& value);
void read_pre_tokenizer(TokenizerParts& parts, const JsonValue& value);
void read_decoder(TokenizerParts& parts, const JsonValue& value);

}  // namespace headgate::tokenize
