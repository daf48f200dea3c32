// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/generate/chat.hpp"
#include "models/generate/generate.hpp"

// Converses with a model, turn by turn. The decoder keeps the tokens of earlier turns, so that a turn reads only what
// is new.

namespace headgate::generate {

class Conversation {
 public:
  /// `decoder` is empty; it and `tokenizer` outlive the conversation. `system` may be empty. Throws Error if the
  /// vocabulary has no token that ends a turn of `chat`.
  Conversation(models::CachedDecoder& decoder, const tokenize::Tokenizer& tokenizer, Chat chat, std::string system,
               GenerateOptions options);

  /// Asks a question. What the model answers stays in the conversation, also if max_tokens or a hook ended it. Turn t,
  /// from 0 on, draws with the seed options.sampling.seed + t. Throws Error as generate() does, and then changes
  /// nothing if there is no room for the question.
  Generated ask(const std::string& question, const GenerateHooks& hooks);
  /// Forgets all turns.
  void clear();

  /// Returns the tokens of all turns, those of the last answer included that the next turn reads.
  const std::vector<std::int32_t>& ids() const { return ids_; }
  /// Returns the tokens that the last question added, those of its turn's markers included.
  const std::vector<std::int32_t>& asked_ids() const { return asked_ids_; }
  /// Returns the bytes of the last question that the vocabulary has no token for.
  std::size_t left_out() const { return left_out_; }
  const tokenize::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  models::CachedDecoder& decoder_;
  const tokenize::Tokenizer& tokenizer_;
  Chat chat_;
  std::string system_;
  GenerateOptions options_;
  std::vector<std::int32_t> ids_, asked_ids_;
  std::size_t left_out_ = 0;
  std::uint64_t turns_ = 0;
};

}  // namespace headgate::generate
