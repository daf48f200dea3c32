// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/tokenize/staged_tokenizer.hpp"

namespace headgate::tokenize {

/// Returns a tokenizer.json with which the `tokenizers` package gives the same ids for the same text. All added tokens
/// must be in the vocabulary, and all texts must be UTF-8. The model must be byte_bpe, or scored_bpe without steps.
/// Throws TokenizerError for steps that tokenizer.json cannot express.
///
/// For scored_bpe, ids may differ where two merges that make the same token overlap. By score, the two merges have
/// equal ranks. In tokenizer.json, one of them has a lower rank.
std::string tokenizer_json_text(const TokenizerParts& parts);

}  // namespace headgate::tokenize
