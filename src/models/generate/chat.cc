// SPDX-License-Identifier: Apache-2.0
#include "models/generate/chat.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <optional>

#include "library/core/check.hpp"
#include "models/tokenize/characters.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::generate {
namespace {

constexpr std::string_view kSystem = "{system}", kUser = "{user}", kDate = "{date}";

constexpr std::array<std::string_view, 4> kBosTags{"{{ bos_token", "{{bos_token", "{{- bos_token", "{{-bos_token"};
constexpr std::array<std::string_view, ChatFormat::kMost> kChatMlMarkers{"<|im_start|>", "<|im_end|>"};

#define HEADGATE_CHATML_NEXT "<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"

#define HEADGATE_HARMONY_SYSTEM                                                            \
  "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n" \
  "Knowledge cutoff: 2024-06\nCurrent date: {date}\n\nReasoning: medium\n\n"               \
  "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"

constexpr std::array<ChatFormat, 17> kFormats{{
    // Templates of Qwen3.5 differ in whether a model thinks if nothing is said about it.
    {.name = "Qwen3.5",
     .marks = {"<|im_start|>", "enable_thinking is false", "'<think>\\n' }}", "|trim"},
     .foreign = {},
     .with_system = "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"
                    "<|im_start|>assistant\n<think>\n",
     .without_system = "<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n<think>\n",
     .next_turn = HEADGATE_CHATML_NEXT "<think>\n",
     .markers = {"<|im_start|>", "<|im_end|>", "<think>"},
     .end_of_turn = "<|im_end|>",
     .trim = Trim::each,
     .front_of_template = true},
    {.name = "Qwen3.5",
     .marks = {"<|im_start|>", "enable_thinking is true", "'<think>\\n\\n</think>\\n\\n' }}", "|trim"},
     .foreign = {},
     .with_system = "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"
                    "<|im_start|>assistant\n<think>\n\n</think>\n\n",
     .without_system = "<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
     .next_turn = HEADGATE_CHATML_NEXT "<think>\n\n</think>\n\n",
     .markers = {"<|im_start|>", "<|im_end|>", "<think>", "</think>"},
     .end_of_turn = "<|im_end|>",
     .trim = Trim::each,
     .front_of_template = true},
    // Templates of OLMo say behind the system's text that there are no functions to call.
    {.name = "OLMo 3",
     .marks = {"' You do not currently have access to any functions. <functions></functions><|im_end|>\\n'",
               "'<|im_start|>assistant\\n<think>'"},
     .foreign = {},
     .with_system = "<|im_start|>system\n{system} You do not currently have access to any functions. "
                    "<functions></functions><|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"
                    "<|im_start|>assistant\n<think>",
     .without_system = "<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n<think>",
     .next_turn = HEADGATE_CHATML_NEXT "<think>",
     .markers = {"<|im_start|>", "<|im_end|>", "<think>"},
     .end_of_turn = "<|im_end|>",
     .trim = Trim::nothing,
     .front_of_template = true},
    {.name = "OLMo 3",
     .marks = {"' You do not currently have access to any functions. <functions></functions><|im_end|>\\n'"},
     .foreign = {"<think>"},
     .with_system = "<|im_start|>system\n{system} You do not currently have access to any functions. "
                    "<functions></functions><|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n",
     .without_system = "<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n",
     .next_turn = HEADGATE_CHATML_NEXT,
     .markers = kChatMlMarkers,
     .end_of_turn = "<|im_end|>",
     .trim = Trim::nothing,
     .front_of_template = true},
    {.name = "OLMo 3",
     .marks = {"'<|im_start|>system\\nYou are a helpful function-calling AI assistant. '",
               "'You do not currently have access to any functions. <functions></functions><|im_end|>\\n'"},
     .foreign = {"<think>"},
     .with_system = "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"
                    "<|im_start|>assistant\n",
     .without_system =
         "<|im_start|>system\nYou are a helpful function-calling AI assistant. You do not currently have "
         "access to any functions. <functions></functions><|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"
         "<|im_start|>assistant\n",
     .next_turn = HEADGATE_CHATML_NEXT,
     .markers = kChatMlMarkers,
     .end_of_turn = "<|im_end|>",
     .trim = Trim::nothing,
     .front_of_template = true},
    {.name = "ChatML with thinking",
     .marks = {"<|im_start|>", "<|im_end|>", "'<|im_start|>assistant\\n<think>\\n' }}"},
     .foreign = {"<|im_sep|>", "enable_thinking", "## Metadata", "<functions></functions>"},
     .with_system = "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"
                    "<|im_start|>assistant\n<think>\n",
     .without_system = "<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n<think>\n",
     .next_turn = HEADGATE_CHATML_NEXT "<think>\n",
     .markers = {"<|im_start|>", "<|im_end|>", "<think>"},
     .end_of_turn = "<|im_end|>",
     .trim = Trim::nothing,
     .front_of_template = true},
    {.name = "ChatML",
     .marks = {"<|im_start|>", "<|im_end|>"},
     .foreign = {"<|im_sep|>", "<|im_start|>assistant\\n<think>", "## Metadata", "'<think>\\n' }}",
                 "<functions></functions>"},
     .with_system = "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"
                    "<|im_start|>assistant\n",
     .without_system = "<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n",
     .next_turn = HEADGATE_CHATML_NEXT,
     .markers = kChatMlMarkers,
     .end_of_turn = "<|im_end|>",
     .trim = Trim::nothing,
     .front_of_template = true},
    {.name = "Gemma",
     .marks = {"<start_of_turn>", "<end_of_turn>", "first_user_prefix"},
     .foreign = {},
     .with_system = "<bos><start_of_turn>user\n{system}\n\n{user}<end_of_turn>\n<start_of_turn>model\n",
     .without_system = "<bos><start_of_turn>user\n{user}<end_of_turn>\n<start_of_turn>model\n",
     .next_turn = "<end_of_turn>\n<start_of_turn>user\n{user}<end_of_turn>\n<start_of_turn>model\n",
     .markers = {"<bos>", "<start_of_turn>", "<end_of_turn>"},
     .end_of_turn = "<end_of_turn>",
     .trim = Trim::user},
    {.name = "Gemma",
     .marks = {"<start_of_turn>", "<end_of_turn>", "'System role not supported'"},
     .foreign = {"first_user_prefix"},
     .with_system = "",
     .without_system = "<bos><start_of_turn>user\n{user}<end_of_turn>\n<start_of_turn>model\n",
     .next_turn = "<end_of_turn>\n<start_of_turn>user\n{user}<end_of_turn>\n<start_of_turn>model\n",
     .markers = {"<bos>", "<start_of_turn>", "<end_of_turn>"},
     .end_of_turn = "<end_of_turn>",
     .trim = Trim::user},
    {.name = "Llama 3.1",
     .marks = {"<|start_header_id|>", "<|eot_id|>", "Cutting Knowledge Date: December 2023\\n", "26 Jul 2024"},
     .foreign = {},
     .with_system = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
                    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n{system}<|eot_id|>"
                    "<|start_header_id|>user<|end_header_id|>\n\n{user}<|eot_id|>"
                    "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .without_system = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
                       "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>"
                       "<|start_header_id|>user<|end_header_id|>\n\n{user}<|eot_id|>"
                       "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .next_turn = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{user}<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .markers = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .end_of_turn = "<|eot_id|>",
     .trim = Trim::each},
    {.name = "Llama 3",
     .marks = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .foreign = {"Cutting Knowledge Date"},
     .with_system = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n{system}<|eot_id|>"
                    "<|start_header_id|>user<|end_header_id|>\n\n{user}<|eot_id|>"
                    "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .without_system = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{user}<|eot_id|>"
                       "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .next_turn = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{user}<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .markers = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .end_of_turn = "<|eot_id|>",
     .trim = Trim::each},
    {.name = "Llama 2",
     .marks = {"[INST]", "<<SYS>>"},
     .foreign = {},
     .with_system = "<s>[INST] <<SYS>>\n{system}\n<</SYS>>\n\n{user} [/INST]",
     .without_system = "<s>[INST] {user} [/INST]",
     .next_turn = "</s><s>[INST] {user} [/INST]",
     .markers = {"<s>", "[INST]", "[/INST]"},
     .end_of_turn = "</s>",
     .trim = Trim::joined},
    // Harmony says what the model is and today's date first. A system's text is the developer's.
    {.name = "Harmony",
     .marks = {"'<|start|>system<|message|>'", "'Knowledge cutoff: 2024-06\\n'", "strftime_now('%Y-%m-%d')",
               "'# Instructions\\n\\n'", "<|start|>assistant"},
     .foreign = {},
     .with_system = HEADGATE_HARMONY_SYSTEM
     "<|start|>developer<|message|># Instructions\n\n{system}\n\n<|end|><|start|>user<|message|>{user}<|end|>"
     "<|start|>assistant",
     .without_system = HEADGATE_HARMONY_SYSTEM "<|start|>user<|message|>{user}<|end|><|start|>assistant",
     .next_turn = "<|end|><|start|>user<|message|>{user}<|end|><|start|>assistant",
     .markers = {"<|start|>", "<|message|>", "<|end|>"},
     .end_of_turn = "<|return|>",
     .trim = Trim::nothing},
    // Mistral's templates differ in the spaces around [INST] and in whether it is a token.
    {.name = "Mistral",
     .marks = {"' [INST] '", "' [/INST]'"},
     .foreign = {"[SYSTEM_PROMPT]"},
     .with_system = "<s> [INST] {system}\n\n{user} [/INST]",
     .without_system = "<s> [INST] {user} [/INST]",
     .next_turn = "</s> [INST] {user} [/INST]",
     .markers = {"<s>", "[INST]", "[/INST]"},
     .end_of_turn = "</s>",
     .trim = Trim::nothing},
    {.name = "Mistral",
     .marks = {"'[INST] '", "' [/INST]'"},
     .foreign = {"[SYSTEM_PROMPT]"},
     .with_system = "",
     .without_system = "<s>[INST] {user} [/INST]",
     .next_turn = "</s> [INST] {user} [/INST]",
     .markers = {"<s>", "[INST]", "[/INST]"},
     .end_of_turn = "</s>",
     .trim = Trim::nothing},
    {.name = "Mistral",
     .marks = {"'[INST] '", "'[/INST]'"},
     .foreign = {"[SYSTEM_PROMPT]"},
     .with_system = "<s>[INST] {system}\n\n{user}[/INST]",
     .without_system = "<s>[INST] {user}[/INST]",
     .next_turn = "</s>[INST] {user}[/INST]",
     .markers = {"<s>", "[INST]", "[/INST]"},
     .end_of_turn = "</s>",
     .trim = Trim::nothing},
    {.name = "Mistral",
     .marks = {"'[INST]'", "'[/INST]'"},
     .foreign = {"[SYSTEM_PROMPT]"},
     .with_system = "<s>[INST]{system}\n\n{user}[/INST]",
     .without_system = "<s>[INST]{user}[/INST]",
     .next_turn = "</s>[INST]{user}[/INST]",
     .markers = {"<s>", "[INST]", "[/INST]"},
     .end_of_turn = "</s>",
     .trim = Trim::nothing},
}};

#undef HEADGATE_HARMONY_SYSTEM
#undef HEADGATE_CHATML_NEXT

/// Returns the text with the spelling that marks have.
std::string comparable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c == '"' ? '\'' : c;
    }
  }
  return out;
}

bool has_marks(const std::string& text, const ChatFormat& format) {
  const auto stands = [&](std::string_view mark) { return text.find(mark) != std::string::npos; };
  const auto wanted = [&](std::string_view mark) { return mark.empty() || stands(mark); };
  const auto unwanted = [&](std::string_view mark) { return !mark.empty() && stands(mark); };
  return std::all_of(format.marks.begin(), format.marks.end(), wanted) &&
         std::none_of(format.foreign.begin(), format.foreign.end(), unwanted);
}

/// Returns the rest of a Jinja string after its opening `quote`, up to the closing one, unescaped. Returns nothing for
/// an escape other than of a newline, a quote or a backslash.
std::optional<std::string> string_value(std::string_view rest, char quote) {
  constexpr std::string_view kEscapes = R"(n\'")", kMeanings = "\n\\'\"";
  std::string out;
  for (std::size_t i = 0; i < rest.size() && rest[i] != quote; ++i) {
    if (rest[i] != '\\') {
      out += rest[i];
      continue;
    }
    const std::size_t escape = ++i < rest.size() ? kEscapes.find(rest[i]) : std::string_view::npos;
    if (escape == std::string_view::npos) return std::nullopt;
    out += kMeanings[escape];
  }
  return out;
}

/// Returns the text of a whole system's turn that a template contains as one string. The template writes it if no other
/// is given.
std::string default_system(std::string_view chat_template, const ChatFormat& format) {
  const std::string_view with = format.with_system;
  const std::size_t text = with.find(kSystem);
  if (text == std::string_view::npos) return "";
  const std::string_view before = with.substr(0, text);
  const std::string_view role = before.substr(0, before.find('\n'));
  const std::string_view rest = with.substr(text + kSystem.size());
  const std::string_view after = rest.substr(0, rest.find('\n') + 1);
  for (std::size_t at = chat_template.find(role); at != std::string_view::npos; at = chat_template.find(role, at + 1)) {
    const char quote = at == 0 ? ' ' : chat_template[at - 1];
    if (quote != '\'' && quote != '"') continue;
    const auto value = string_value(chat_template.substr(at), quote);
    if (!value || value->size() <= before.size() + after.size()) continue;
    if (value->starts_with(before) && value->ends_with(after)) {
      return value->substr(before.size(), value->size() - before.size() - after.size());
    }
  }
  return "";
}

std::string trimmed_end(std::string_view text) {
  std::size_t end = 0;  // after the last character that is not white space
  for (std::size_t i = 0; i < text.size();) {
    const tokenize::CodePoint c = tokenize::first_code_point(text.substr(i));
    i += std::max<std::size_t>(c.bytes, 1);
    if (c.bytes == 0 || !tokenize::is_white_space(c.value)) end = i;
  }
  return std::string(text.substr(0, end));
}

std::string trimmed(std::string_view text) {
  for (;;) {
    const tokenize::CodePoint c = tokenize::first_code_point(text);
    if (c.bytes == 0 || !tokenize::is_white_space(c.value)) return trimmed_end(text);
    text.remove_prefix(c.bytes);
  }
}

ChatText trimmed(const ChatText& text, Trim trim) {
  switch (trim) {
    case Trim::nothing: return text;
    case Trim::each: return {trimmed(text.system), trimmed(text.user)};
    case Trim::user: return {text.system, trimmed(text.user)};
    case Trim::joined:  // other text stands before the system's text
      return {text.system, text.system.empty() ? trimmed(text.user) : trimmed_end(text.user)};
  }
  return text;
}

/// Returns the text before the first tag of a template, which stands before every conversation.
std::string literal_front(std::string_view chat_template) {
  const std::size_t tag = chat_template.find('{');
  const std::string_view front = chat_template.substr(0, tag);
  const bool trims = tag != std::string_view::npos && tag + 2 < chat_template.size() && chat_template[tag + 2] == '-';
  return trims ? trimmed_end(front) : std::string(front);
}

/// Returns the date in local time, as "2026-11-26".
std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("{:04}-{:02}-{:02}", local.tm_year + 1900, local.tm_mon + 1, local.tm_mday);
}

/// Returns whether a template writes the tokenizer's beginning of text by itself.
bool writes_bos(std::string_view chat_template) {
  return std::any_of(kBosTags.begin(), kBosTags.end(), [chat_template](std::string_view tag) {
    return chat_template.find(tag) != std::string_view::npos;
  });
}

/// Returns the id of a special token; kNoToken if none has that spelling.
std::int32_t special_id(const tokenize::Tokenizer& tokenizer, std::string_view spelling) {
  const std::int32_t id = tokenizer.find(spelling);
  return id != tokenize::kNoToken && tokenizer.special(id) ? id : tokenize::kNoToken;
}

/// Encodes text and special tokens alternately. Encodes all text between two tokens at once, because words may reach
/// from the format's text into a user's.
class ChatEncoder {
 public:
  explicit ChatEncoder(const tokenize::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add_text(std::string_view text) { text_ += text; }
  /// Adds the token that the tokenizer puts in front of every text.
  void add_bos() {
    const std::vector<std::int32_t> around = tokenizer_.encode("").ids;
    require(around.size() == 1,
            "the model's chat template begins with bos_token, but its tokenizer puts {} tokens around "
            "a text instead of this one",
            around.size());
    out_.ids.push_back(around.front());
  }
  void add_marker(std::string_view marker) {
    const std::int32_t id = special_id(tokenizer_, marker);
    if (id == tokenize::kNoToken) return add_text(marker);
    flush();
    out_.ids.push_back(id);
  }
  tokenize::Encoding take() {
    flush();
    return std::move(out_);
  }

 private:
  void flush() {
    const tokenize::Encoding part = tokenizer_.encode(text_, {.add_special = false, .special_as_text = true});
    out_.ids.insert(out_.ids.end(), part.ids.begin(), part.ids.end());
    out_.left_out += part.left_out;
    text_.clear();
  }

  const tokenize::Tokenizer& tokenizer_;
  tokenize::Encoding out_;
  std::string text_;
};

/// Adds a text of the format with the texts in their places, trimmed as the format does.
void add_format(ChatEncoder& encoder, std::string_view rest, const ChatFormat& format, const ChatText& given) {
  const ChatText text = trimmed(given, format.trim);
  while (!rest.empty()) {
    const auto starts = [rest](std::string_view part) { return !part.empty() && rest.starts_with(part); };
    const auto marker = std::find_if(format.markers.begin(), format.markers.end(), starts);
    if (marker != format.markers.end()) {
      encoder.add_marker(*marker);
      rest.remove_prefix(marker->size());
    } else if (starts(format.end_of_turn)) {
      encoder.add_marker(format.end_of_turn);
      rest.remove_prefix(format.end_of_turn.size());
    } else if (starts(kSystem)) {
      encoder.add_text(text.system);
      rest.remove_prefix(kSystem.size());
    } else if (starts(kUser)) {
      encoder.add_text(text.user);
      rest.remove_prefix(kUser.size());
    } else if (starts(kDate)) {
      encoder.add_text(given.date.empty() ? today() : given.date);
      rest.remove_prefix(kDate.size());
    } else {
      encoder.add_text(rest.substr(0, 1));
      rest.remove_prefix(1);
    }
  }
}

}  // namespace

std::span<const ChatFormat> chat_formats() { return kFormats; }

std::string chat_format_names() {
  std::vector<std::string_view> names;
  for (const ChatFormat& format : kFormats) {
    if (std::find(names.begin(), names.end(), format.name) == names.end()) names.push_back(format.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

Chat recognise_chat(const std::string& chat_template) {
  require(!chat_template.empty(), "the model has no chat template, so it was not made to converse; known formats: {}",
          chat_format_names());
  const std::string text = comparable(chat_template);
  for (const ChatFormat& format : kFormats) {
    if (!has_marks(text, format)) continue;
    Chat chat{.format = &format, .default_system = default_system(chat_template, format), .front = {}};
    if (format.front_of_template) {
      chat.front = literal_front(chat_template);
      chat.begins_with_bos = writes_bos(chat_template);
    }
    return chat;
  }
  throw Error(fmt::format("the model's chat template matches none of the known formats: {}", chat_format_names()));
}

tokenize::Encoding encode_chat(const Chat& chat, const ChatText& text, const tokenize::Tokenizer& tokenizer) {
  const ChatFormat& format = *chat.format;
  ChatText written = text;
  if (written.system.empty()) written.system = chat.default_system;
  require(written.system.empty() || !format.with_system.empty(), "the model's chat format has no system text");
  ChatEncoder encoder(tokenizer);
  if (chat.begins_with_bos) encoder.add_bos();
  if (!chat.front.empty()) encoder.add_marker(chat.front);
  add_format(encoder, written.system.empty() ? format.without_system : format.with_system, format, written);
  return encoder.take();
}

tokenize::Encoding encode_next_turn(const Chat& chat, const std::string& user, const tokenize::Tokenizer& tokenizer) {
  ChatEncoder encoder(tokenizer);
  add_format(encoder, chat.format->next_turn, *chat.format, {.system = "", .user = user});
  return encoder.take();
}

std::int32_t end_of_turn(const Chat& chat, const tokenize::Tokenizer& tokenizer) {
  const std::int32_t id = special_id(tokenizer, chat.format->end_of_turn);
  require(id != tokenize::kNoToken, "the model's chat format is {}, but its vocabulary has no special token '{}'",
          chat.format->name, chat.format->end_of_turn);
  return id;
}

}  // namespace headgate::generate
