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

// Renders conversations with the chat template of a model.

namespace headgate::generate {

struct Message {
  std::string role;  ///< system, user or assistant
  std::string content;
  std::string thinking = {};  ///< reasoning before the content of an answer; may be empty
};

/// Converts an answer of the model to a message. `text` contains the spellings of special tokens. If the answer has
/// channels (gpt-oss), the channel "final" becomes the content and the channel "analysis" the thinking.
Message answer_message(const std::string& text);

struct ChatOptions {
  /// Whether special tokens that occur in system and user messages are encoded as plain text. If false, they are
  /// encoded as special tokens, as in transformers without sanitize_control_tokens.
  bool special_as_text = true;
  /// Time that the template prints as the current time. If empty, the time at which the conversation is rendered.
  std::optional<std::time_t> now{};
};

class Chat {
 public:
  /// Holds the text of a conversation, its tokens, and the span of each token in the text.
  struct Written {
    std::string text;
    tokenize::Encoding tokens;
  };

  /// Parses the chat template of `files`. `tokenizer` must outlive the object. Throws Error if there is no template or
  /// jinja::Template cannot parse it.
  Chat(const GenerationFiles& files, const tokenize::Tokenizer& tokenizer, const ChatOptions& options = {});

  /// Renders messages and the beginning of an answer, as transformers' apply_chat_template(add_generation_prompt=True)
  /// does. Throws Error if the template rejects the messages.
  Written write(std::span<const Message> messages) const { return write(messages, true); }

  /// Returns the ids that end an answer, in ascending order. These are the end ids of the model's files, and the first
  /// special token that the template writes after an answer. Throws Error if there are none.
  std::vector<std::int32_t> end_ids() const;

 private:
  Written write(std::span<const Message> messages, bool begin_answer) const;
  std::string marked(const std::string& text) const;
  Written encoded(std::string_view marked_text) const;
  void append_part(Written& out, std::string_view part, bool as_text) const;
  std::optional<std::int32_t> end_of_turn() const;
  std::optional<std::int32_t> special_token_after(std::span<const Message> messages, std::string_view text) const;

  const tokenize::Tokenizer& tokenizer_;
  ChatOptions options_;
  jinja::Template template_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;
  std::vector<std::int32_t> end_ids_;
  std::vector<std::int32_t> newline_;  ///< tokens that encode a newline
};

/// Returns the messages of a conversation with one question. If `system` is empty, there is no system message.
std::vector<Message> question_messages(const std::string& system, const std::string& question);

}  // namespace headgate::generate
