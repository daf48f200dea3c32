// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/generate/chat.hpp"
#include "models/generate/generate.hpp"

// Holds a conversation with a model. Each turn renders the whole conversation with the chat template. The decoder still
// has the tokens of earlier turns, and processes only tokens from the first difference on.

namespace headgate::generate {

class Conversation {
 public:
  /// `decoder` must be empty. `decoder`, `tokenizer` and `chat` must outlive the conversation. If `system` is empty,
  /// there is no system message. Answers end at any id of chat.end_ids(). Throws Error if there are no such ids.
  Conversation(models::CachedDecoder& decoder, const tokenize::Tokenizer& tokenizer, const Chat& chat,
               const std::string& system, GenerateOptions options);

  /// Adds a question, then generates and adds the answer. An answer that max_tokens or a hook ended stays in the
  /// conversation. Turn t, counted from 0, uses the seed options.sampling.seed + t. Throws Error in the same cases as
  /// generate() and Chat::write(). The question is then not added.
  Generated ask(const std::string& question, const GenerateHooks& hooks);
  /// Removes the last turn: its question and its answer. Returns false if there is no turn. The next question uses the
  /// seed of the removed turn. If possible, the decoder is truncated to the beginning of the turn, and keeps its state
  /// for the earlier turns. The number of turns for which repeated undo() can do this depends on the model's layers:
  /// - full attention: any number
  /// - recurrent layers: kMarks
  /// - layers with a sliding window: 1
  bool undo();
  /// Removes all turns.
  void clear();

  /// Returns the tokens of all turns. Answers consist of the tokens that the model chose. In two cases, the rendered
  /// text is tokenized anew instead:
  /// - The template changes the text of an answer.
  /// - No token begins right after an answer.
  const std::vector<std::int32_t>& ids() const { return now_.ids; }
  /// Returns the end of the last turn's prompt: its tokens from the first one that differs from the earlier
  /// conversation.
  const std::vector<std::int32_t>& asked_ids() const { return asked_ids_; }
  /// Returns how many bytes of the last question have no token in the vocabulary. In the first turn, counts the bytes
  /// of the whole prompt.
  std::size_t left_out() const { return left_out_; }
  const tokenize::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  /// Number of lengths that the decoder keeps marked (CachedDecoder::mark). A mark takes one state per recurrent layer.
  static constexpr std::int64_t kMarks = 4;

  std::vector<std::int32_t> with_chosen_answers(const Chat::Written& written) const;
  void truncate_decoder(std::size_t tokens);

  models::CachedDecoder& decoder_;
  const tokenize::Tokenizer& tokenizer_;
  const Chat& chat_;
  GenerateOptions options_;
  /// State of a conversation after some number of turns.
  struct State {
    std::vector<Message> messages;
    std::vector<std::int32_t> ids;   ///< tokens of all turns; the decoder holds a prefix of them
    std::string text;                ///< text of `ids`
    std::uint64_t count = 0;         ///< number of questions asked, including those that failed
    std::size_t decoder_length = 0;  ///< number of tokens in the decoder before the next question
  };

  /// Replaces the conversation by its earlier state `before`. The decoder keeps the leading tokens that the current
  /// conversation and `before` have in common.
  void restore(State before);

  std::vector<Message> beginning_;  ///< the system message; empty without one
  State now_;
  std::vector<State> earlier_;  ///< the state before each turn
  std::vector<std::int32_t> asked_ids_;
  std::size_t left_out_ = 0;
};

}  // namespace headgate::generate
