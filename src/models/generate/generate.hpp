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
  end_token,    ///< the model chose one of GenerateOptions::end_ids
  stop_text,    ///< the text contains one of GenerateOptions::stop_texts
  max_tokens,   ///< GenerateOptions::max_tokens
  capacity,     ///< the decoder has no room for another token
  interrupted,  ///< GenerateHooks::text returned false
};

struct GenerateOptions {
  Sampling sampling{};
  std::int64_t max_tokens = 256;        ///< maximum number of tokens to generate, at least 1
  std::vector<std::int32_t> end_ids{};  ///< ids that end the text when the model chooses them
  /// Texts at which generation stops. None may be empty. GenerateHooks::text receives neither the stop text nor bytes
  /// after it. Bytes that may be the start of a stop text are held back until it is certain that they are not.
  std::vector<std::string> stop_texts{};
  /// Maximum number of tokens to guess after each chosen token (DraftTokens). One pass over the weights checks all
  /// guesses.
  /// - Guesses do not change the chosen tokens, apart from effects of rounding.
  /// - A pass has at most CachedDecoder::most_unrounded() tokens, so that it is computed in f32. This can reduce the
  ///   number of guesses.
  /// - For decoders with recurrent layers or sliding windows, at most CachedDecoderOptions::keep tokens are guessed.
  std::int64_t drafts = 0;
};

/// Holds the callbacks of generate(). Both may be empty.
struct GenerateHooks {
  /// Receives new bytes, which form whole characters and contain no special tokens. Also called with empty `bytes`
  /// between the parts of a long prompt. Returns false to end the text.
  std::function<bool(std::string_view bytes)> text;
  /// Receives logits(V) before each token is chosen.
  std::function<void(std::span<const float> logits)> logits;
};

struct Generated {
  /// Chosen ids, including the end token or the tokens of the stop text that ended the text.
  std::vector<std::int32_t> ids;
  StopReason stop = StopReason::interrupted;
  std::int64_t prompt_tokens = 0;  ///< number of processed prompt tokens
  double prompt_seconds = 0.0;
  std::int64_t steps = 0;                       ///< number of chosen tokens that the decoder processed
  std::int64_t guessed = 0, guessed_right = 0;  ///< number of guessed tokens, and number of correct guesses
  double step_seconds = 0.0;
  double step_bytes = 0.0;  ///< bytes of weights, keys and values that all passes after the prompt read
};

/// Appends `prompt` to the decoder, then generates and appends tokens one by one. The decoder must hold one sequence.
/// Never chooses ids outside the tokenizer's vocabulary, even if there are logits for them. Throws Error for:
/// - an empty prompt, or one that exceeds the capacity
/// - a token outside the model's vocabulary
/// - logits that are not finite
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
