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

/// The stages of encoding, in the order in which a text passes through them.
struct EncodingStages {
  std::string name;               ///< name of the tokenizer's file in messages
  AddedTokens source_tokens;      ///< added tokens that are found before normalization
  NormalForm form;                ///< normalization of the text between the tokens of `source_tokens`
  AddedTokens normalized_tokens;  ///< added tokens that are found after normalization
  /// Pre-tokenizer steps, which split the text between added tokens into words.
  std::vector<SplitStep> steps;
  std::unique_ptr<const WordModel> model;   ///< model that splits words into tokens
  std::vector<std::int32_t> before, after;  ///< ids that EncodeOptions::add_special puts before and after a text
};

/// Returns an encoder of one text. `stages` must outlive the encoder.
std::unique_ptr<StreamEncoder> make_staged_stream(const EncodingStages& stages, const EncodeOptions& options);

}  // namespace headgate::tokenize
