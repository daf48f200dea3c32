// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/tokenize/added_tokens.hpp"
#include "models/tokenize/bpe.hpp"
#include "models/tokenize/pre_tokenizer.hpp"
#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// The parts of a byte-level BPE tokenizer, whatever file it comes from, in the order in which a text passes them.
struct TokenizerParts {
  std::vector<AddedToken> added;  ///< those that are not normalized, then, in the normal form, the others
  bool form_c = false;            ///< text is normalized to form C
  std::vector<SplitStep> steps;
  Vocabulary vocabulary;  ///< added tokens may be part of it
  MergeList merges;
  BpeOptions options;
  std::vector<std::int32_t> before, after;  ///< ids that add_special puts around a text
};

/// `name`: that of the file, for messages. Throws TokenizerError for parts that contradict each other.
std::unique_ptr<Tokenizer> make_staged_tokenizer(const std::string& name, TokenizerParts parts);

}  // namespace headgate::tokenize
