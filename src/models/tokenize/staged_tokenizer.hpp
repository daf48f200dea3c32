// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/tokenize/added_tokens.hpp"
#include "models/tokenize/bpe.hpp"
#include "models/tokenize/normalize.hpp"
#include "models/tokenize/pre_tokenizer.hpp"
#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// Algorithm that splits words into tokens.
enum class ModelKind {
  byte_bpe,       ///< BPE of bytes, where spelling_of() spells each byte as one character
  character_bpe,  ///< BPE of characters, with a list of merges
  scored_bpe,     ///< BPE of characters, with merges derived from the scores of tokens
  unigram,
};

/// Describes a tokenizer independently of its file format. The members are in the order in which they are used.
struct TokenizerParts {
  /// Added tokens. Tokens with AddedToken::normalized are found in the normal form of the text. All other added tokens
  /// are found in the text before normalization.
  std::vector<AddedToken> added;
  NormalForm form;
  std::vector<SplitStep> steps;
  ModelKind model = ModelKind::byte_bpe;
  Vocabulary vocabulary;  ///< tokens of the model; may include added tokens
  MergeList merges;       ///< used by byte_bpe and character_bpe
  /// Score of each id, for scored_bpe and unigram. NaN marks ids that encoding never produces.
  std::vector<double> scores;
  double unknown_score = 0.0;  ///< for unigram: score that a character without a token gets
  BpeOptions options;          ///< options of the model; unigram reads only `unknown` and `byte_fallback`
  /// Whether the tokenizer's file replaces spaces in a pre-tokenizer step. If so, this library replaces them earlier,
  /// during normalization: `form.space` holds the replacement.
  bool steps_replace_spaces = false;
  std::string space;  ///< spelling of a space in tokens, if it is not a space itself; not used by byte_bpe
  bool drops_leading_space = false;  ///< whether decoding drops one space at the beginning of a whole text
  /// Whether decoding drops all spaces from the first token. The token spells a space as `space`.
  bool drops_first_token_spaces = false;
  bool decodes_bytes = false;  ///< whether the tokens <0x00> to <0xFF> decode to bytes; not used by byte_bpe
  std::vector<std::int32_t> before, after;  ///< ids that EncodeOptions::add_special puts before and after a text
};

/// Makes a tokenizer from its parts. `name` is the file name in messages. Throws TokenizerError if the parts contradict
/// each other.
std::unique_ptr<Tokenizer> make_staged_tokenizer(const std::string& name, TokenizerParts parts);

}  // namespace headgate::tokenize
