// SPDX-License-Identifier: Apache-2.0
#include "models/generate/conversation.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "library/core/check.hpp"

namespace headgate::generate {

Conversation::Conversation(models::CachedDecoder& decoder, const tokenize::Tokenizer& tokenizer, const Chat& chat,
                           const std::string& system, GenerateOptions options)
    : decoder_(decoder), tokenizer_(tokenizer), chat_(chat), options_(std::move(options)) {
  options_.end_ids = chat_.end_ids();
  if (!system.empty()) beginning_.push_back({"system", system});
  messages_ = beginning_;
}

/// Returns the tokens of a rendered conversation. If the text begins with text_ and a token begins where text_ ends,
/// keeps ids_ for that beginning. Otherwise returns the tokens of the whole text.
std::vector<std::int32_t> Conversation::with_kept_answers(const Chat::Written& written) const {
  const std::vector<tokenize::Span>& spans = written.tokens.spans;
  const auto behind =
      std::find_if(spans.begin(), spans.end(), [this](const tokenize::Span& span) { return span.end > text_.size(); });
  const bool goes_on = !text_.empty() && written.text.starts_with(text_) && behind != spans.end();
  if (!goes_on || behind->begin < text_.size()) return written.tokens.ids;
  std::vector<std::int32_t> out = ids_;
  out.insert(out.end(), written.tokens.ids.begin() + (behind - spans.begin()), written.tokens.ids.end());
  return out;
}

/// Truncates the decoder to `tokens` tokens, or to none if that is impossible: a window may have dropped keys, and a
/// recurrent state cannot go back.
void Conversation::keep_in_decoder(std::size_t tokens) {
  if (tokens >= static_cast<std::size_t>(decoder_.length())) return;
  try {
    decoder_.truncate(static_cast<std::int64_t>(tokens));
  } catch (const Error&) {
    decoder_.truncate(0);
  }
}

Generated Conversation::ask(const std::string& question, const GenerateHooks& hooks) {
  std::vector<Message> messages = messages_;
  messages.push_back({"user", question});
  const Chat::Written written = chat_.write(messages);
  std::vector<std::int32_t> ids = with_kept_answers(written);
  require(!ids.empty(), "the chat template writes nothing for this question");
  const auto tokens = static_cast<std::int64_t>(ids.size());
  require(tokens <= decoder_.capacity(), "with this question the conversation has {} tokens, but there is room for {}",
          tokens, decoder_.capacity());

  const auto same =
      static_cast<std::size_t>(std::mismatch(ids.begin(), ids.end(), ids_.begin(), ids_.end()).first - ids.begin());
  keep_in_decoder(std::min(same, ids.size() - 1));  // processes at least the last token, to get its logits
  left_out_ = ids_.empty() ? written.tokens.left_out
                           : tokenizer_.encode(question, {.add_special = false, .special_as_text = true}).left_out;
  asked_ids_.assign(ids.begin() + static_cast<std::ptrdiff_t>(std::min(same, ids.size() - 1)), ids.end());
  ids_ = std::move(ids);
  text_.clear();

  GenerateOptions options = options_;
  options.sampling.seed += turns_++;
  // The decoder lacks the last token of the previous answer: it was chosen but not processed. If a hook interrupted the
  // previous question, the decoder also lacks the rest of that question.
  const auto read = static_cast<std::size_t>(decoder_.length());
  Generated result = generate(decoder_, tokenizer_, std::span(ids_).subspan(read), options, hooks);
  std::vector<std::int32_t> answer = result.ids;
  if (result.stop == StopReason::end_token) answer.pop_back();  // the template writes the end token in the next turn
  ids_.insert(ids_.end(), answer.begin(), answer.end());
  text_ = written.text;
  for (const std::int32_t id : answer) text_ += tokenizer_.bytes(id);
  messages.push_back(answer_message(tokenizer_.decode(answer)));
  messages_ = std::move(messages);
  return result;
}

void Conversation::clear() {
  decoder_.truncate(0);
  ids_.clear();
  text_.clear();
  messages_ = beginning_;
  turns_ = 0;
}

}  // namespace headgate::generate
