// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tokenize/added_tokens.hpp"
#include "tokenize/bpe.hpp"
#include "tokenize/pre_tokenizer.hpp"
#include "tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// What a text passes through, in this order.
struct BpeStages {
  std::string name;                         ///< of the tokenizer's file, for messages
  AddedTokens raw;                          ///< that are not normalized
  bool form_c = false;                      ///< the text between them is normalized
  AddedTokens normalized;                   ///< the other added tokens
  std::vector<SplitStep> steps;             ///< the text between all of them is cut into words
  Bpe bpe;                                  ///< words become tokens
  std::vector<std::int32_t> before, after;  ///< ids that add_special puts around a text
};

/// `stages` must outlive the object.
std::unique_ptr<StreamEncoder> make_bpe_stream(const BpeStages& stages, const EncodeOptions& options);

}  // namespace headgate::tokenize
