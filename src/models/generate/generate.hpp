// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "library/core/words.hpp"
#include "models/generate/cached_decoder.hpp"
#include "models/generate/sampler.hpp"
#include "models/tokenize/tokenizer.hpp"

// A text that a model goes on with, token by token.

namespace headgate::generate {

enum class StopReason {
  end_token,    ///< the model ended the text
  max_tokens,   ///< GenerateOptions::max_tokens
  capacity,     ///< the decoder has no place for another token
  interrupted,  ///< GenerateHooks::text said so
};

struct GenerateOptions {
  Sampling sampling{};
  std::int64_t max_tokens = 256;        ///< generated ones, at least 1
  std::vector<std::int32_t> end_ids{};  ///< any of them ends the text
};

/// Either may be empty.
struct GenerateHooks {
  /// Takes the bytes that are new and complete, without those of special tokens; false ends the text. It is called
  /// without bytes too, between the parts of a long prompt.
  std::function<bool(std::string_view bytes)> text;
  /// Sees the logits(V) before each token is chosen from them.
  std::function<void(std::span<const float> logits)> logits;
};

struct Generated {
  std::vector<std::int32_t> ids;  ///< the end token included
  StopReason stop = StopReason::interrupted;
  std::int64_t prompt_tokens = 0;  ///< read
  double prompt_seconds = 0.0;
  std::int64_t steps = 0;  ///< generated tokens that were read for the next one
  double step_seconds = 0.0;
  double step_bytes = 0.0;  ///< weights, keys and values that all steps read
};

/// Appends `prompt` to the decoder, which holds one sequence, and token after token. Tokens beyond the tokenizer's are
/// not chosen: matrices may have more rows than there are tokens. Throws Error on an empty prompt, one that does not
/// fit into the capacity, a token outside the model's vocabulary, and logits that are not finite.
Generated generate(models::CachedDecoder& decoder, const tokenize::Tokenizer& tokenizer,
                   std::span<const std::int32_t> prompt, const GenerateOptions& options, const GenerateHooks& hooks);

}  // namespace headgate::generate

template <>
struct headgate::Words<headgate::generate::StopReason> {
  using Value = generate::StopReason;
  static constexpr std::array<Word<Value>, 4> kAll{{{Value::end_token, "end_token"},
                                                    {Value::max_tokens, "max_tokens"},
                                                    {Value::capacity, "capacity"},
                                                    {Value::interrupted, "interrupted"}}};
};
