// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/generate/files.hpp"
#include "models/jinja/template.hpp"
#include "models/tokenize/tokenizer.hpp"

// Writes conversations for chat models with the chat template of the model.

namespace headgate::generate {

struct Message {
  std::string role;  ///< system, user or assistant
  std::string content;
  std::string thinking = {};  ///< reasoning that precedes the content of an answer; empty if none
};

/// Converts an answer of the model to a message. `text` has special tokens spelled out. If the answer has channels
/// (gpt-oss), the content is the channel "final" and the thinking is the channel "analysis".
Message answer_message(const std::string& text);

struct ChatOptions {
  /// Encodes as plain text the special tokens that system and user messages spell out. If false, they become special
  /// tokens, as in transformers without sanitize_control_tokens.
  bool special_as_text = true;
  std::optional<std::time_t> now{};  ///< time that templates output as the current one; empty: time of the call
};

class Chat {
 public:
  /// Holds the text of a conversation and its tokens, with the span of each token in the text.
  struct Written {
    std::string text;
    tokenize::Encoding tokens;
  };

  /// Parses the chat template of `files`. `tokenizer` must outlive the object. Throws Error if there is no template, or
  /// if jinja::Template cannot parse it.
  Chat(const GenerationFiles& files, const tokenize::Tokenizer& tokenizer, const ChatOptions& options = {});

  /// Renders messages and the beginning of an answer, as transformers' apply_chat_template(add_generation_prompt=True)
  /// does. Throws Error if the template refuses the messages.
  Written write(std::span<const Message> messages) const { return write(messages, true); }

  /// Returns the ids that end an answer, ascending. They are the end ids of the model's files and the first special
  /// token that the template writes after an answer. Throws Error if there are none.
  std::vector<std::int32_t> end_ids() const;

 private:
  Written write(std::span<const Message> messages, bool begin_answer) const;
  std::string marked(const std::string& text) const;
  Written encoded(std::string_view marked_text) const;
  void append_part(Written& out, std::string_view part, bool as_text) const;
  std::optional<std::int32_t> end_of_turn() const;
  std::optional<std::int32_t> special_behind(std::span<const Message> messages, std::string_view text) const;

  const tokenize::Tokenizer& tokenizer_;
  ChatOptions options_;
  jinja::Template template_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;
  std::vector<std::int32_t> end_ids_;
  std::vector<std::int32_t> newline_;  ///< tokens of a newline
};

/// Returns the messages of a conversation with one question. An empty `system` adds no system message.
std::vector<Message> question_messages(const std::string& system, const std::string& question);

}  // namespace headgate::generate
