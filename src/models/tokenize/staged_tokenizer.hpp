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

/// The algorithm that splits words into tokens.
enum class ModelKind {
  byte_bpe,       ///< BPE of bytes, each spelled as one character by spelling_of()
  character_bpe,  ///< BPE of characters, with a list of merges
  scored_bpe,     ///< BPE of characters, whose merges follow from the scores of tokens
  unigram,
};

/// Describes a tokenizer, independent of its file format. Members are in the order in which they are applied to a text.
struct TokenizerParts {
  std::vector<AddedToken> added;  ///< added tokens, matched in the text, or in its normal form if `normalized` is set
  NormalForm form;
  std::vector<SplitStep> steps;
  ModelKind model = ModelKind::byte_bpe;
  Vocabulary vocabulary;       ///< tokens of the model, possibly with added tokens
  MergeList merges;            ///< for byte_bpe and character_bpe
  std::vector<double> scores;  ///< for scored_bpe and unigram: score of each id; NaN if encoding never produces the id
  double unknown_score = 0.0;  ///< for unigram: score of a character without a token
  BpeOptions options;          ///< options of the model; unigram reads only `unknown` and `byte_fallback`
  bool spaces_in_steps = false;  ///< true if the file replaces spaces in a pre-tokenizer step, here in `form`
  std::string space;             ///< how tokens spell a space; empty: as a space (not used by byte_bpe)
  bool drops_space = false;      ///< decoding drops one space at the front of a whole text
  bool drops_marks = false;      ///< decoding drops each `space` in the spelling of a text's first token
  bool decodes_bytes = false;    ///< tokens <0x00> to <0xFF> decode to bytes (not used by byte_bpe)
  std::vector<std::int32_t> before, after;  ///< ids that add_special puts before and after a text
};

/// Makes a tokenizer from its parts. `name` is the file name for messages. Throws TokenizerError for parts that
/// contradict each other.
std::unique_ptr<Tokenizer> make_staged_tokenizer(const std::string& name, TokenizerParts parts);

}  // namespace headgate::tokenize
