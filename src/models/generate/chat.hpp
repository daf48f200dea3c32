// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenize/tokenizer.hpp"

// Writes conversations for models that were tuned to converse. A model brings a Jinja template, which is not run: it is
// recognised as one of the formats below, which write the same text.

namespace headgate::generate {

/// Which white space a template removes.
enum class Trim {
  nothing,
  each,    ///< both ends of the system's text and of the user's text
  joined,  ///< both ends of the system's text, and of the user's together with what is written between them
  user,    ///< both ends of the user's text
};

struct ChatFormat {
  static constexpr std::size_t kMost = 5;

  std::string_view name;
  /// A template has this format if it contains each of `marks` and none of `foreign`. Double quotes count as single
  /// ones, a newline as \n.
  std::array<std::string_view, kMost> marks, foreign;
  /// The text of a conversation up to the model's answer, with {system}, {user} and {date} for the texts. `with_system`
  /// empty: the format has no place for a system's text.
  std::string_view with_system, without_system;
  /// The text behind an answer up to the next one, with {user}. It begins with the token that ends the answer's turn.
  std::string_view next_turn;
  /// Parts of that text that are one token if the vocabulary has them as special tokens.
  std::array<std::string_view, kMost> markers;
  std::string_view end_of_turn;  ///< the token that the model writes after its answer
  Trim trim;
  bool front_of_template = false;  ///< what a template writes before its first turn stands before these texts
};

/// Returns all formats, in the order in which templates are compared with them.
std::span<const ChatFormat> chat_formats();
/// Returns "Qwen3.5, ChatML, …", each name once.
std::string chat_format_names();

struct Chat {
  const ChatFormat* format;
  std::string default_system;  ///< what the template writes if no system's text is given; empty: nothing
  std::string front;  ///< stands before the format's text, as a token if the vocabulary has it as a special one
  bool begins_with_bos = false;  ///< the tokenizer's beginning of text stands before all else
};

/// Returns the format of a template. Throws Error, which lists the known formats, for an empty or unknown template.
Chat recognise_chat(const std::string& chat_template);

struct ChatText {
  std::string system;  ///< empty: not given
  std::string user;
  std::string date = {};  ///< of formats that name it, as "2026-11-26"; empty: today's, in local time
};

/// Returns the ids of one question, as transformers' apply_chat_template(add_generation_prompt=True) does, except that
/// special tokens spelled in `text` are plain text. `spans` are empty. Throws Error if the format has no place for a
/// system's text, and if the template begins with a token that the tokenizer does not name.
tokenize::Encoding encode_chat(const Chat& chat, const ChatText& text, const tokenize::Tokenizer& tokenizer);

/// Returns the ids behind an answer, less the token that ended it, up to the next one: those of another question. Later
/// turns have no system's text.
tokenize::Encoding encode_next_turn(const Chat& chat, const std::string& user, const tokenize::Tokenizer& tokenizer);

/// Returns the id of the format's end of turn. Throws Error if the vocabulary has no such token.
std::int32_t end_of_turn(const Chat& chat, const tokenize::Tokenizer& tokenizer);

}  // namespace headgate::generate
