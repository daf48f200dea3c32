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

/// Method of splitting words into tokens.
enum class ModelKind {
  byte_bpe,       ///< BPE of bytes, which spelling_of() spells
  character_bpe,  ///< BPE of characters, with a list of merges
  scored_bpe,     ///< BPE of characters; the merges follow from the tokens and their scores
  unigram,
};

/// Parts of a tokenizer, independent of the file format, in the order of application to a text.
struct TokenizerParts {
  std::vector<AddedToken> added;  ///< tokens searched in the text, or in its normal form if `normalized` is set
  NormalForm form;
  std::vector<SplitStep> steps;
  ModelKind model = ModelKind::byte_bpe;
  Vocabulary vocabulary;         ///< may include added tokens
  MergeList merges;              ///< for byte_bpe and character_bpe
  std::vector<double> scores;    ///< for scored_bpe and unigram: score of each id; NaN if texts never contain the token
  double unknown_score = 0.0;    ///< for unigram: score of a character without a token
  BpeOptions options;            ///< unigram uses only unknown and byte_fallback
  bool spaces_in_steps = false;  ///< true if `form` replaces spaces that the file replaces in a pre-tokenizer step
  std::string space;             ///< spelling of a space in tokens, except for byte_bpe; if empty, a space
  bool drops_space = false;      ///< decoding drops one space at the front of a whole text
  std::vector<std::int32_t> before, after;  ///< ids that add_special puts before and after a text
};

/// Makes a tokenizer from its parts. `name` is the file name for messages. Throws TokenizerError for parts that
/// contradict each other.
std::unique_ptr<Tokenizer> make_staged_tokenizer(const std::string& name, TokenizerParts parts);

}  // namespace headgate::tokenize
