// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/generate/chat.hpp"
#include "models/generate/generate.hpp"

// Converses with a model, turn by turn. A turn writes the whole conversation by the chat template. The decoder keeps
// the tokens of earlier turns, so that it reads only those from which the conversation differs.

namespace headgate::generate {

class Conversation {
 public:
  /// `decoder` is empty; it, `tokenizer` and `chat` outlive the conversation. `system` may be empty. The end of an
  /// answer is chat.end_ids(), which may throw.
  Conversation(models::CachedDecoder& decoder, const tokenize::Tokenizer& tokenizer, const Chat& chat,
               const std::string& system, GenerateOptions options);

  /// Asks a question. What the model answers stays in the conversation, also if max_tokens or a hook ended it. Turn t,
  /// from 0 on, draws with the seed options.sampling.seed + t. Throws Error as generate() and Chat::write() do, and
  /// then the question is not in the conversation.
  Generated ask(const std::string& question, const GenerateHooks& hooks);
  /// Forgets all turns.
  void clear();

  /// Returns the tokens of all turns. An answer keeps the tokens that the model chose if the template writes its text
  /// as it is and a token of the whole text begins behind it; otherwise its tokens are those of the template's text.
  const std::vector<std::int32_t>& ids() const { return ids_; }
  /// Returns the tokens of the last turn that differ from those of the conversation before it, up to the answer.
  const std::vector<std::int32_t>& asked_ids() const { return asked_ids_; }
  /// Returns the bytes of the last question that the vocabulary has no token for.
  std::size_t left_out() const { return left_out_; }
  const tokenize::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  std::vector<std::int32_t> with_kept_answers(const Chat::Written& written) const;
  void keep_in_decoder(std::size_t tokens);

  models::CachedDecoder& decoder_;
  const tokenize::Tokenizer& tokenizer_;
  const Chat& chat_;
  GenerateOptions options_;
  std::vector<Message> beginning_, messages_;  ///< of the system; of all turns
  std::vector<std::int32_t> ids_, asked_ids_;  ///< the decoder has read the first ones of ids_
  std::string text_;                           ///< what ids_ spell if they are those of messages_; else empty
  std::size_t left_out_ = 0;
  std::uint64_t turns_ = 0;
};

}  // namespace headgate::generate
