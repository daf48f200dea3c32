// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "library/core/words.hpp"
#include "models/generate/cached_decoder.hpp"
#include "models/generate/sampler.hpp"
#include "models/tokenize/tokenizer.hpp"

// Generates text with a model, token by token.

namespace headgate::generate {

enum class StopReason {
  end_token,    ///< the model ended the text
  stop_text,    ///< the text reached one of GenerateOptions::stop_texts
  max_tokens,   ///< GenerateOptions::max_tokens
  capacity,     ///< the decoder has no room for another token
  interrupted,  ///< GenerateHooks::text returned false
};

struct GenerateOptions {
  Sampling sampling{};
  std::int64_t max_tokens = 256;        ///< most tokens to generate, at least 1
  std::vector<std::int32_t> end_ids{};  ///< any of them ends the text
  /// Any of them ends the text before itself; not empty. Bytes with which one may begin are withheld until it is clear.
  std::vector<std::string> stop_texts{};
};

/// Callbacks; either may be empty.
struct GenerateHooks {
  /// Receives the bytes that are new and complete, without those of special tokens; returns false to end the text. Also
  /// called without bytes between the parts of a long prompt.
  std::function<bool(std::string_view bytes)> text;
  /// Receives the logits(V) before a token is chosen from them.
  std::function<void(std::span<const float> logits)> logits;
};

struct Generated {
  std::vector<std::int32_t> ids;  ///< including the end token and those of a stop text
  StopReason stop = StopReason::interrupted;
  std::int64_t prompt_tokens = 0;  ///< prompt tokens that were read
  double prompt_seconds = 0.0;
  std::int64_t steps = 0;  ///< generated tokens that were read to compute the next one
  double step_seconds = 0.0;
  double step_bytes = 0.0;  ///< bytes of weights, keys and values that all steps read
};

/// Appends `prompt`, then token after token, to the decoder, which holds one sequence. Never chooses ids beyond the
/// tokenizer's: matrices may have more rows than there are tokens. Throws Error on an empty prompt, one that exceeds
/// the capacity, a token outside the model's vocabulary, and logits that are not finite.
Generated generate(models::CachedDecoder& decoder, const tokenize::Tokenizer& tokenizer,
                   std::span<const std::int32_t> prompt, const GenerateOptions& options, const GenerateHooks& hooks);

}  // namespace headgate::generate

template <>
struct headgate::Words<headgate::generate::StopReason> {
  using Value = generate::StopReason;
  static constexpr std::array<Word<Value>, 5> kAll{{{Value::end_token, "end_token"},
                                                    {Value::stop_text, "stop_text"},
                                                    {Value::max_tokens, "max_tokens"},
                                                    {Value::capacity, "capacity"},
                                                    {Value::interrupted, "interrupted"}}};
};
