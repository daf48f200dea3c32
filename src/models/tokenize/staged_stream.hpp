// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/tokenize/added_tokens.hpp"
#include "models/tokenize/normalize.hpp"
#include "models/tokenize/pre_tokenizer.hpp"
#include "models/tokenize/tokenizer.hpp"
#include "models/tokenize/word_model.hpp"

namespace headgate::tokenize {

/// The stages that a text passes, in this order.
struct Stages {
  std::string name;                         ///< of the tokenizer's file, for messages
  AddedTokens raw;                          ///< found before normalization
  NormalForm form;                          ///< of the text between them
  AddedTokens normalized;                   ///< found after normalization
  std::vector<SplitStep> steps;             ///< split the text between added tokens into words
  std::unique_ptr<const WordModel> model;   ///< splits words into tokens
  std::vector<std::int32_t> before, after;  ///< ids that add_special puts around a text
};

/// Returns an encoder of one text. `stages` must outlive it.
std::unique_ptr<StreamEncoder> make_staged_stream(const Stages& stages, const EncodeOptions& options);

}  // namespace headgate::tokenize
