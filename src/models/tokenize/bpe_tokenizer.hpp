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

/// What a byte-level BPE tokenizer is made of, whatever file it comes from. In the order in which a text meets them:
struct BpeParts {
  std::vector<AddedToken> added;  ///< those that are not normalized, then, in the normal form, the others
  bool form_c = false;            ///< text is normalized to form C
  std::vector<SplitStep> steps;
  Vocabulary vocabulary;  ///< added tokens may be part of it
  MergeList merges;
  BpeOptions options;
  std::vector<std::int32_t> before, after;  ///< ids that add_special puts around a text
};

/// `name`: of the file, for messages. Throws TokenizerError for parts that do not fit together.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(const std::string& name, BpeParts parts);

}  // namespace headgate::tokenize
