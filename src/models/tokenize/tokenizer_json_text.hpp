// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/tokenize/staged_tokenizer.hpp"

namespace headgate::tokenize {

/// Returns the text of a tokenizer.json with which the `tokenizers` package gives the same ids as `parts`. All added
/// tokens must be in the vocabulary, and all texts must be UTF-8. The model must be byte_bpe, or scored_bpe without
/// steps. Throws TokenizerError for steps that tokenizer.json cannot express.
///
/// For scored_bpe, ids can differ where two merges that produce the same token overlap in a text. Such merges have
/// equal ranks by score, but in tokenizer.json one of them has a lower rank.
std::string tokenizer_json_text(const TokenizerParts& parts);

}  // namespace headgate::tokenize
