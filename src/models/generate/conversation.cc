// SPDX-License-Identifier: Apache-2.0
#include "models/generate/conversation.hpp"

#include <span>
#include <utility>

#include "library/core/check.hpp"

namespace headgate::generate {

Conversation::Conversation(models::CachedDecoder& decoder, const tokenize::Tokenizer& tokenizer, Chat chat,
                           std::string system, GenerateOptions options)
    : decoder_(decoder),
      tokenizer_(tokenizer),
      chat_(std::move(chat)),
      system_(std::move(system)),
      options_(std::move(options)) {
  options_.end_ids.push_back(end_of_turn(chat_, tokenizer_));
}

Generated Conversation::ask(const std::string& question, const GenerateHooks& hooks) {
  tokenize::Encoding asked = ids_.empty() ? encode_chat(chat_, {system_, question}, tokenizer_)
                                          : encode_next_turn(chat_, question, tokenizer_);
  const auto tokens = static_cast<std::int64_t>(ids_.size() + asked.ids.size());
  require(tokens <= decoder_.capacity(), "with this question the conversation has {} tokens, but there is room for {}",
          tokens, decoder_.capacity());
  ids_.insert(ids_.end(), asked.ids.begin(), asked.ids.end());
  asked_ids_ = std::move(asked.ids);
  left_out_ = asked.left_out;
  GenerateOptions options = options_;
  options.sampling.seed += turns_++;
  // The last token of an answer is chosen but not read, and a part of a question is not read if a hook ended it.
  const auto read = static_cast<std::size_t>(decoder_.length());
  Generated result = generate(decoder_, tokenizer_, std::span(ids_).subspan(read), options, hooks);
  // The text between turns begins with the token that ends an answer.
  const auto ended = static_cast<std::ptrdiff_t>(result.stop == StopReason::end_token);
  ids_.insert(ids_.end(), result.ids.begin(), result.ids.end() - ended);
  return result;
}

void Conversation::clear() {
  decoder_.truncate(0);
  ids_.clear();
  turns_ = 0;
}

}  // namespace headgate::generate
