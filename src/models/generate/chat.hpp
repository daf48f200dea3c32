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

// Writes conversations for models that were tuned to converse, by the template that a model brings.

namespace headgate::generate {

struct Message {
  std::string role;  ///< system, user or assistant
  std::string content;
  std::string thinking = {};  ///< what an answer says before its content; empty: nothing
};

/// Returns the message of an answer as the model wrote it, special tokens spelled. Of an answer in channels (gpt-oss)
/// the content is the channel final, and the thinking is the channel analysis.
Message answer_message(const std::string& text);

struct ChatOptions {
  /// Special tokens spelled in messages of the system and the user are plain text. Otherwise they are these tokens, as
  /// transformers has it without sanitize_control_tokens.
  bool special_as_text = true;
  std::optional<std::time_t> now{};  ///< for templates that write the date; empty: the time of the call
};

class Chat {
 public:
  /// The text of a conversation, and its tokens with their spans in it.
  struct Written {
    std::string text;
    tokenize::Encoding tokens;
  };

  /// Reads the template of `files`. `tokenizer` must outlive the object. Throws Error without a template, and for one
  /// that jinja::Template refuses.
  Chat(const GenerationFiles& files, const tokenize::Tokenizer& tokenizer, const ChatOptions& options = {});

  /// Writes messages and the beginning of an answer, as transformers' apply_chat_template(add_generation_prompt=True)
  /// does. Throws Error for what the template refuses.
  Written write(std::span<const Message> messages) const { return write(messages, true); }

  /// Returns the ids that end an answer, ascending: those of the files, and the first special token that the template
  /// writes behind an answer. Throws Error if there are none.
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
  std::vector<std::int32_t> newline_;  ///< the tokens of \n
};

/// Returns the messages of one question. `system` may be empty.
std::vector<Message> question_messages(const std::string& system, const std::string& question);

}  // namespace headgate::generate
