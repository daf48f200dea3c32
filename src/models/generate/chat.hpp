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

// How models that were tuned to converse expect a conversation to be written. A model brings a Jinja template for it,
// which is not run: it is recognised as one of the formats below, which say what the template would write.

namespace headgate::generate {

/// What a template removes of white space.
enum class Trim {
  nothing,
  each,    ///< at both ends of the system's and of the user's text
  joined,  ///< at both ends of the system's text and the user's with what is written between them
};

struct ChatFormat {
  static constexpr std::size_t kMost = 4;

  std::string_view name;
  /// A template is in this format if each of `marks` stands in it and none of `foreign`; double quotes count as single
  /// ones, a newline as \n.
  std::array<std::string_view, kMost> marks, foreign;
  /// What is written, with {system} and {user} in place of the texts, up to where the model's answer begins.
  /// `with_system` empty: the format has no place for a system's text.
  std::string_view with_system, without_system;
  /// Parts of it that are one token where the vocabulary has them as a special one.
  std::array<std::string_view, kMost> markers;
  std::string_view end_of_turn;  ///< the token that the model writes after its answer
  Trim trim;
};

/// All formats, in the order in which templates are compared with them.
std::span<const ChatFormat> chat_formats();

struct Chat {
  const ChatFormat* format;
  std::string default_system;  ///< what the template writes where there is no system's text; empty: nothing
};

/// The format of a template. Throws Error, with the formats that are known, for an empty template and one in none.
Chat recognise_chat(const std::string& chat_template);

struct ChatText {
  std::string system;  ///< empty: there is none
  std::string user;
};

/// The ids of one question, as transformers' apply_chat_template(add_generation_prompt=True) has them, but that special
/// tokens in `text` are text as any other. `spans` are empty. Throws Error where the format has no place for a system's
/// text.
tokenize::Encoding encode_chat(const Chat& chat, const ChatText& text, const tokenize::Tokenizer& tokenizer);

/// The id of the format's end of turn. Throws Error if the vocabulary has no such token.
std::int32_t end_of_turn(const Chat& chat, const tokenize::Tokenizer& tokenizer);

}  // namespace headgate::generate
