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
  capacity,     ///< the decoder is full
  interrupted,  ///< a call of GenerateHooks::text returned false
};

struct GenerateOptions {
  Sampling sampling{};
  std::int64_t max_tokens = 256;        ///< largest number of tokens to generate, at least 1
  std::vector<std::int32_t> end_ids{};  ///< ids that end the text when chosen
  /// Texts that end the generated text; none may be empty. GenerateHooks::text receives only the bytes before a stop
  /// text. Bytes that may begin a stop text are withheld until more bytes are known.
  std::vector<std::string> stop_texts{};
  /// Largest number of tokens to guess (DraftTokens) after each chosen token. One pass over the weights checks them
  /// all. Guesses do not change which tokens are chosen, apart from the rounding of logits. There are at most as many
  /// guesses as one pass computes in f32 beside the chosen token (CachedDecoder::most_unrounded). Must be at most
  /// CachedDecoderOptions::keep if the decoder has recurrent layers or windows.
  std::int64_t drafts = 0;
};

/// Holds the callbacks of generate(); either may be empty.
struct GenerateHooks {
  /// Receives new bytes that form whole characters, without special tokens. Returns false to end the text. Is also
  /// called between the parts of a long prompt, with empty `bytes`.
  std::function<bool(std::string_view bytes)> text;
  /// Receives logits(V) before each choice of a token.
  std::function<void(std::span<const float> logits)> logits;
};

struct Generated {
  std::vector<std::int32_t> ids;  ///< chosen ids, including an end token and the tokens of a stop text
  StopReason stop = StopReason::interrupted;
  std::int64_t prompt_tokens = 0;  ///< number of prompt tokens that were processed
  double prompt_seconds = 0.0;
  std::int64_t steps = 0;                       ///< number of generated tokens that were fed back to the decoder
  std::int64_t guessed = 0, guessed_right = 0;  ///< numbers of guessed tokens, and of those that were right
  double step_seconds = 0.0;
  double step_bytes = 0.0;  ///< bytes of weights, keys and values read, summed over the passes after the prompt
};

/// Appends `prompt` to the decoder, then generates and appends tokens one by one. The decoder must hold one sequence.
/// Never chooses ids outside the tokenizer's vocabulary, although the logits may have more entries. Throws Error for an
/// empty prompt, a prompt beyond the capacity, a token outside the model's vocabulary, and logits that are not finite.
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
