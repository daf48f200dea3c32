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

/// How words are split into tokens.
enum class ModelKind {
  byte_bpe,       ///< BPE of bytes, spelled in the alphabet of spelling_of()
  character_bpe,  ///< BPE of characters, with a list of merges
  scored_bpe,     ///< BPE of characters whose merges follow from the tokens and their scores
  unigram,
};

/// The parts of a tokenizer, whatever file it comes from, in the order in which a text passes them.
struct TokenizerParts {
  std::vector<AddedToken> added;  ///< those that are not normalized, then, in the normal form, the others
  NormalForm form;
  std::vector<SplitStep> steps;
  ModelKind model = ModelKind::byte_bpe;
  Vocabulary vocabulary;         ///< added tokens may be part of it
  MergeList merges;              ///< of byte_bpe and character_bpe
  std::vector<double> scores;    ///< of scored_bpe and unigram, for each id; NaN: the token is not found in a text
  double unknown_score = 0.0;    ///< of unigram: of a character without a token
  BpeOptions options;            ///< unigram uses unknown and byte_fallback
  bool spaces_in_steps = false;  ///< form replaces spaces that the file replaces after the search for added tokens
  std::string space;             ///< what spells a space in tokens that are not of byte_bpe; empty: a space
  bool drops_space = false;      ///< decoding drops a space before a whole text
  std::vector<std::int32_t> before, after;  ///< ids that add_special puts around a text
};

/// `name`: that of the file, for messages. Throws TokenizerError for parts that contradict each other.
std::unique_ptr<Tokenizer> make_staged_tokenizer(const std::string& name, TokenizerParts parts);

}  // namespace headgate::tokenize
