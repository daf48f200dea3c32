// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/generate/chat.hpp"
#include "models/generate/generate.hpp"

// Converses with a model turn by turn. Each turn renders the whole conversation with the chat template. The decoder
// keeps the tokens of earlier turns and processes only the tokens from the first difference on.

namespace headgate::generate {

class Conversation {
 public:
  /// `decoder` must be empty. `decoder`, `tokenizer` and `chat` must outlive the conversation. An empty `system` adds
  /// no system message. An answer ends at any id of chat.end_ids(). Throws Error if chat.end_ids() does.
  Conversation(models::CachedDecoder& decoder, const tokenize::Tokenizer& tokenizer, const Chat& chat,
               const std::string& system, GenerateOptions options);

  /// Adds a question and generates the answer. The answer stays in the conversation even if max_tokens or a hook ended
  /// it. Turn t, counted from 0, uses the seed options.sampling.seed + t. Throws Error as generate() and Chat::write()
  /// do; the question is then not in the conversation.
  Generated ask(const std::string& question, const GenerateHooks& hooks);
  /// Removes all turns.
  void clear();

  /// Returns the tokens of all turns. An answer keeps the tokens that the model chose if the template writes its text
  /// unchanged and a token begins right after that text. Otherwise the template's text is tokenized anew.
  const std::vector<std::int32_t>& ids() const { return ids_; }
  /// Returns the prompt of the last turn from its first token that differs from the earlier conversation.
  const std::vector<std::int32_t>& asked_ids() const { return asked_ids_; }
  /// Returns how many bytes of the last question have no token in the vocabulary. For the first turn, counts all bytes
  /// of the prompt.
  std::size_t left_out() const { return left_out_; }
  const tokenize::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  std::vector<std::int32_t> with_kept_answers(const Chat::Written& written) const;
  void keep_in_decoder(std::size_t tokens);

  models::CachedDecoder& decoder_;
  const tokenize::Tokenizer& tokenizer_;
  const Chat& chat_;
  GenerateOptions options_;
  std::vector<Message> beginning_, messages_;  ///< beginning_: the system message, if any; messages_: all turns
  std::vector<std::int32_t> ids_, asked_ids_;  ///< ids_: tokens of all turns; the decoder holds a prefix of them
  std::string text_;                           ///< text of ids_; empty after a turn that failed
  std::size_t left_out_ = 0;
  std::uint64_t turns_ = 0;
};

}  // namespace headgate::generate
