// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tokenize/bpe_tokenizer.hpp"

namespace headgate::tokenize {

/// The tokenizer.json of these parts, as the `tokenizers` package reads it: the same ids for the same text. All added
/// tokens must be in the vocabulary. Throws TokenizerError for steps that the format cannot say.
std::string tokenizer_json_text(const BpeParts& parts);

}  // namespace headgate::tokenize
