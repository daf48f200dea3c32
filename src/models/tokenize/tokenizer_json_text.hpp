// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/tokenize/staged_tokenizer.hpp"

namespace headgate::tokenize {

/// Returns the text of a tokenizer.json with which the `tokenizers` package gives the same ids as `parts`.
/// Requirements:
/// - All added tokens are in the vocabulary, and all texts are UTF-8.
/// - The model is byte_bpe, or scored_bpe without steps.
///
/// Throws TokenizerError for steps that tokenizer.json cannot express.
///
/// For scored_bpe, ids can differ in rare cases. Two merges that produce the same token have equal ranks in `parts`,
/// but different ranks in tokenizer.json. The ids differ only where both merges could apply to overlapping tokens.
std::string tokenizer_json_text(const TokenizerParts& parts);

}  // namespace headgate::tokenize
