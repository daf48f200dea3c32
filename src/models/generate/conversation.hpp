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
  /// it. Turn t, counted from 0, uses the seed options.sampling.seed + t. Throws Error in the same cases as generate()
  /// and Chat::write(). The question is then not in the conversation.
  Generated ask(const std::string& question, const GenerateHooks& hooks);
  /// Removes the last turn: the question and its answer. Returns false if there is none. The next question uses the
  /// removed turn's seed. If possible, the decoder goes back to the beginning of the turn, so that the next question
  /// costs only its new tokens. Full attention can always go back. Recurrent layers can go back kMarks turns, and
  /// layers with a window one turn.
  bool undo();
  /// Removes all turns.
  void clear();

  /// Returns the tokens of all turns. Answers have the tokens that the model chose, as long as the template writes
  /// their text unchanged and a token begins right after it. Otherwise the rendered text is tokenized anew.
  const std::vector<std::int32_t>& ids() const { return now_.ids; }
  /// Returns the prompt of the last turn from its first token that differs from the earlier conversation.
  const std::vector<std::int32_t>& asked_ids() const { return asked_ids_; }
  /// Returns how many bytes of the last question have no token in the vocabulary. For the first turn, counts all bytes
  /// of the prompt.
  std::size_t left_out() const { return left_out_; }
  const tokenize::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  static constexpr std::int64_t kMarks = 4;  ///< marks to keep; each takes one state per recurrent layer

  std::vector<std::int32_t> with_kept_answers(const Chat::Written& written) const;
  void keep_in_decoder(std::size_t tokens);

  models::CachedDecoder& decoder_;
  const tokenize::Tokenizer& tokenizer_;
  const Chat& chat_;
  GenerateOptions options_;
  /// The conversation after a number of turns.
  struct Turns {
    std::vector<Message> messages;
    std::vector<std::int32_t> ids;  ///< tokens of all turns; the decoder holds a prefix of them
    std::string text;               ///< text of ids
    std::uint64_t count = 0;        ///< questions asked, including those that failed
    std::size_t read = 0;           ///< number of tokens in the decoder before the next question
  };

  /// Makes `before` the conversation, and keeps in the decoder what both conversations share.
  void go_back_to(Turns before);

  std::vector<Message> beginning_;  ///< the system message, if any
  Turns now_;
  std::vector<Turns> earlier_;  ///< the conversation before each turn
  std::vector<std::int32_t> asked_ids_;
  std::size_t left_out_ = 0;
};

}  // namespace headgate::generate
