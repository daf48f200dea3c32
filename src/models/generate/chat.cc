// SPDX-License-Identifier: Apache-2.0
#include "models/generate/chat.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "library/core/check.hpp"

namespace headgate::generate {
namespace {

// Private-use code points that enclose special tokens in a message's text. They distinguish these tokens from the
// template's own special tokens. transformers' sanitize_control_tokens uses the same code points.
constexpr std::string_view kBegin = "\U000F0000", kEnd = "\U000F0001";
constexpr std::string_view kAssistant = "assistant";

const std::string& checked(const std::string& chat_template) {
  require(!chat_template.empty(), "the model has no chat template, so it was not made to converse");
  return chat_template;
}

jinja::Value value_of(const Message& message, std::string content) {
  jinja::Dict out;
  if (!message.thinking.empty()) out.emplace_back("thinking", jinja::Value(message.thinking));
  out.emplace_back("role", jinja::Value(message.role));
  out.emplace_back("content", jinja::Value(std::move(content)));
  if (!message.thinking.empty()) out.emplace_back("reasoning_content", jinja::Value(message.thinking));
  return jinja::Value(std::move(out));
}

bool is_special(const tokenize::Tokenizer& tokenizer, std::string_view spelling) {
  const std::int32_t id = tokenizer.find(spelling);
  return id != tokenize::kNoToken && tokenizer.special(id);
}

/// Returns the text after the last `begin`, up to the next `end` or the end of `text`. Returns nullopt if `begin` is
/// missing.
std::optional<std::string> last_between(std::string_view text, std::string_view begin, std::string_view end) {
  const std::size_t at = text.rfind(begin);
  if (at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(at + begin.size());
  return std::string(text.substr(0, text.find(end)));
}

}  // namespace

std::vector<Message> question_messages(const std::string& system, const std::string& question) {
  std::vector<Message> out;
  if (!system.empty()) out.push_back({"system", system});
  out.push_back({"user", question});
  return out;
}

Message answer_message(const std::string& text) {
  if (!text.starts_with("<|channel|>")) return {std::string(kAssistant), text};
  constexpr std::string_view kEndOfMessage = "<|end|>";
  return {std::string(kAssistant), last_between(text, "<|channel|>final<|message|>", kEndOfMessage).value_or(""),
          last_between(text, "<|channel|>analysis<|message|>", kEndOfMessage).value_or("")};
}

Chat::Chat(const GenerationFiles& files, const tokenize::Tokenizer& tokenizer, const ChatOptions& options)
    : tokenizer_(tokenizer),
      options_(options),
      template_(checked(files.chat_template)),
      special_tokens_(files.special_tokens),
      end_ids_(files.end_ids),
      newline_(tokenizer.encode("\n", {.add_special = false}).ids) {
  if (const auto end = end_of_turn()) end_ids_.push_back(*end);
  std::sort(end_ids_.begin(), end_ids_.end());
  end_ids_.erase(std::unique(end_ids_.begin(), end_ids_.end()), end_ids_.end());
}

std::vector<std::int32_t> Chat::end_ids() const {
  require(
      !end_ids_.empty(),
      "the model's chat template ends an answer with no special token, and its files name no token that ends a text");
  return end_ids_;
}

/// Returns the special token that the template writes after an answer. First renders a conversation that ends with the
/// answer. If no special token follows the answer, renders it again with another question after the answer.
std::optional<std::int32_t> Chat::end_of_turn() const {
  constexpr std::string_view kAnswer = "ANSWER";
  std::vector<Message> messages{{"user", "?"}, {std::string(kAssistant), std::string(kAnswer)}};
  for (int i = 0; i < 2; ++i) {
    if (const auto end = special_token_after(messages, kAnswer)) return end;
    messages.push_back(messages.front());
  }
  return std::nullopt;
}

/// Renders a conversation and returns the first special token after the last occurrence of `text`. Returns nullopt if
/// there is none, or if the template rejects the conversation.
std::optional<std::int32_t> Chat::special_token_after(std::span<const Message> messages, std::string_view text) const {
  try {
    const Written written = write(messages, false);
    const std::size_t at = written.text.rfind(text);
    if (at == std::string::npos) return std::nullopt;
    for (std::size_t i = 0; i < written.tokens.ids.size(); ++i) {
      const bool is_after = written.tokens.spans[i].begin >= at + text.size();
      if (is_after && tokenizer_.special(written.tokens.ids[i])) return written.tokens.ids[i];
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

Chat::Written Chat::write(std::span<const Message> messages, bool begin_answer) const {
  jinja::List values;
  for (const Message& message : messages) {
    const bool by_model = message.role == kAssistant || !options_.special_as_text;
    values.push_back(value_of(message, by_model ? message.content : marked(message.content)));
  }
  jinja::Dict variables{{"messages", jinja::Value(std::move(values))},
                        {"tools", jinja::Value(jinja::None{})},
                        {"documents", jinja::Value(jinja::None{})},
                        {"add_generation_prompt", jinja::Value(begin_answer)}};
  for (const auto& [name, spelling] : special_tokens_) variables.emplace_back(name, jinja::Value(spelling));
  const std::string text = template_.render(variables, {.now = options_.now.value_or(std::time(nullptr))});
  if (options_.special_as_text) return encoded(text);
  Written out;
  append_part(out, text, false);
  return out;
}

/// Encloses each special token in a message's text between the marks kBegin and kEnd. First removes such marks from the
/// text.
std::string Chat::marked(const std::string& text) const {
  std::string plain = text;
  for (const std::string_view mark : {kBegin, kEnd}) {
    for (std::size_t at = plain.find(mark); at != std::string::npos; at = plain.find(mark, at)) {
      plain.erase(at, mark.size());
    }
  }
  const tokenize::Encoding tokens = tokenizer_.encode(plain, {.add_special = false, .spans = true});
  std::string out;
  std::size_t done = 0;
  for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
    if (!tokenizer_.special(tokens.ids[i])) continue;
    const tokenize::Span span = tokens.spans[i];
    const std::string spelling = tokenizer_.spelling(tokens.ids[i]);
    // Searches for the spelling, because the token's span may include white space before the spelling.
    const std::size_t at = plain.find(spelling, span.begin);
    if (at == std::string::npos || at + spelling.size() > span.end) continue;
    out.append(plain, done, at - done);
    out.append(kBegin).append(spelling).append(kEnd);
    done = at + spelling.size();
  }
  return out.append(plain, done, std::string::npos);
}

/// Encodes a rendered text and removes the marks kBegin and kEnd from it. If a special token stands between kBegin and
/// kEnd, encodes the token's spelling as plain text. Any other mark splits the text: the texts before and after the
/// mark are encoded separately.
Chat::Written Chat::encoded(std::string_view rest) const {
  Written out;
  for (;;) {
    const std::size_t at = std::min(rest.find(kBegin), rest.find(kEnd));
    append_part(out, rest.substr(0, at), false);
    if (at == std::string_view::npos) return out;
    const bool begins = rest.substr(at).starts_with(kBegin);
    rest.remove_prefix(at + kBegin.size());
    const std::size_t end = rest.find(kEnd);
    if (begins && end != std::string_view::npos && is_special(tokenizer_, rest.substr(0, end))) {
      append_part(out, rest.substr(0, end), true);
      rest.remove_prefix(end + kEnd.size());
    }
  }
}

void Chat::append_part(Written& out, std::string_view part, bool as_text) const {
  if (part.empty()) return;
  const tokenize::EncodeOptions options{.add_special = false, .special_as_text = as_text, .spans = true};
  const std::size_t begin = out.text.size();
  std::size_t left = 0;  // number of tokens at the start of `tokens` to drop, which encode the added newline
  tokenize::Encoding tokens;
  if (begin > 0) {
    // Encodes the part with a newline before it, then drops the newline's tokens. Some tokenizers insert a space at the
    // start of a text, but not after a newline.
    tokens = tokenizer_.encode("\n" + std::string(part), options);
    const bool apart =
        tokens.ids.size() >= newline_.size() && std::equal(newline_.begin(), newline_.end(), tokens.ids.begin());
    left = apart ? newline_.size() : 0;
  }
  const std::size_t shift = left > 0 ? 1 : 0;
  if (left == 0) tokens = tokenizer_.encode(part, options);
  for (std::size_t i = left; i < tokens.ids.size(); ++i) {
    out.tokens.ids.push_back(tokens.ids[i]);
    out.tokens.spans.push_back({begin + tokens.spans[i].begin - shift, begin + tokens.spans[i].end - shift});
  }
  out.tokens.left_out += tokens.left_out;
  out.text += part;
}

}  // namespace headgate::generate
