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
  now_.messages = beginning_;
}

/// Returns the tokens of a rendered conversation. If possible, the result begins with now_.ids, in which earlier
/// answers consist of the tokens that the model chose. This requires two things:
/// - The rendered text begins with now_.text.
/// - A token of the rendered text begins right after now_.text.
///
/// Otherwise returns written.tokens.ids, in which earlier answers are tokenized anew.
std::vector<std::int32_t> Conversation::with_chosen_answers(const Chat::Written& written) const {
  const std::vector<tokenize::Span>& spans = written.tokens.spans;
  const auto next = std::find_if(spans.begin(), spans.end(),
                                 [this](const tokenize::Span& span) { return span.end > now_.text.size(); });
  const bool goes_on = !now_.text.empty() && written.text.starts_with(now_.text) && next != spans.end();
  if (!goes_on || next->begin < now_.text.size()) return written.tokens.ids;
  std::vector<std::int32_t> out = now_.ids;
  out.insert(out.end(), written.tokens.ids.begin() + (next - spans.begin()), written.tokens.ids.end());
  return out;
}

/// Truncates the decoder to its first `tokens` tokens, or to fewer if its layers cannot go back to that length. Does
/// nothing if the decoder has no more than `tokens` tokens.
void Conversation::truncate_decoder(std::size_t tokens) {
  if (tokens >= static_cast<std::size_t>(decoder_.length())) return;
  decoder_.truncate(decoder_.reachable(static_cast<std::int64_t>(tokens)));
}

Generated Conversation::ask(const std::string& question, const GenerateHooks& hooks) {
  State before = now_;
  before.decoder_length = static_cast<std::size_t>(decoder_.length());
  std::vector<Message> messages = now_.messages;
  messages.push_back({"user", question});
  const Chat::Written written = chat_.write(messages);
  std::vector<std::int32_t> ids = with_chosen_answers(written);
  require(!ids.empty(), "the chat template writes nothing for this question");
  const auto tokens = static_cast<std::int64_t>(ids.size());
  require(tokens <= decoder_.capacity(), "with this question the conversation has {} tokens, but there is room for {}",
          tokens, decoder_.capacity());

  const auto same = static_cast<std::size_t>(
      std::mismatch(ids.begin(), ids.end(), now_.ids.begin(), now_.ids.end()).first - ids.begin());
  truncate_decoder(std::min(same, ids.size() - 1));  // at least the last token must be processed, to get its logits
  left_out_ = now_.ids.empty() ? written.tokens.left_out
                               : tokenizer_.encode(question, {.add_special = false, .special_as_text = true}).left_out;
  asked_ids_.assign(ids.begin() + static_cast<std::ptrdiff_t>(std::min(same, ids.size() - 1)), ids.end());
  now_.ids = std::move(ids);
  now_.text.clear();
  if (decoder_.length() > 0) decoder_.mark(kMarks);

  GenerateOptions options = options_;
  options.sampling.seed += now_.count++;
  // The decoder has not processed the last token of the previous answer. If a hook interrupted the previous question,
  // the rest of that question is missing too.
  const auto decoder_length = static_cast<std::size_t>(decoder_.length());
  Generated result;
  try {
    result = generate(decoder_, tokenizer_, std::span(now_.ids).subspan(decoder_length), options, hooks);
  } catch (...) {
    before.count = now_.count;
    restore(std::move(before));
    throw;
  }
  std::vector<std::int32_t> answer = result.ids;
  // Drops the end token, because the template writes it when it renders the next turn.
  if (result.stop == StopReason::end_token) answer.pop_back();
  now_.ids.insert(now_.ids.end(), answer.begin(), answer.end());
  now_.text = written.text;
  for (const std::int32_t id : answer) now_.text += tokenizer_.bytes(id);
  messages.push_back(answer_message(tokenizer_.decode(answer)));
  now_.messages = std::move(messages);
  earlier_.push_back(std::move(before));
  return result;
}

void Conversation::restore(State before) {
  // Keeps the tokens that both conversations share. They can differ early, because a template may rewrite earlier
  // turns.
  const auto same = std::mismatch(before.ids.begin(), before.ids.end(), now_.ids.begin(), now_.ids.end()).first;
  truncate_decoder(std::min(before.decoder_length, static_cast<std::size_t>(same - before.ids.begin())));
  now_ = std::move(before);
}

bool Conversation::undo() {
  if (earlier_.empty()) return false;
  State before = std::move(earlier_.back());
  earlier_.pop_back();
  restore(std::move(before));
  return true;
}

void Conversation::clear() {
  decoder_.truncate(0);
  now_ = {};
  now_.messages = beginning_;
  earlier_.clear();
}

}  // namespace headgate::generate
