// SPDX-License-Identifier: Apache-2.0
#include "models/generate/generate.hpp"

#include <algorithm>
#include <cstddef>

#include "library/core/check.hpp"
#include "library/core/stopwatch.hpp"
#include "models/generate/draft_tokens.hpp"
#include "models/generate/stop_texts.hpp"
#include "models/io/work.hpp"

namespace headgate::generate {
namespace {

/// Number of prompt tokens per call of the decoder. Large enough for efficient matrix products, and small enough that a
/// hook can interrupt soon.
constexpr std::int64_t kPromptPart = 512;

void check_prompt(const models::CachedDecoder& decoder, const tokenize::Tokenizer& tokenizer,
                  std::span<const std::int32_t> prompt) {
  require(!prompt.empty(), "the prompt has no tokens");
  const auto tokens = static_cast<std::int64_t>(prompt.size());
  const std::int64_t room = decoder.capacity() - decoder.length(), vocab = decoder.config().vocab;
  require(tokens <= room, "the prompt has {} tokens, but there is room for {}", tokens, room);
  for (const std::int32_t id : prompt) {
    require(id >= 0 && id < vocab, "the tokenizer gives token {}, '{}', but the model's vocabulary has {}", id,
            tokenizer.spelling(id), vocab);
  }
}

/// Appends the prompt to the decoder. Returns false if a hook interrupted it.
bool read_prompt(models::CachedDecoder& decoder, View<float, 2> logits, std::span<const std::int32_t> prompt,
                 const GenerateHooks& hooks) {
  const auto tokens = static_cast<std::int64_t>(prompt.size());
  for (std::int64_t from = 0; from < tokens; from += kPromptPart) {
    if (from > 0 && hooks.text && !hooks.text("")) return false;
    const std::int64_t part = std::min(kPromptPart, tokens - from);
    decoder.append(logits, {prompt.data() + from, {1, part}});
    io::report_work("reading the prompt", "", static_cast<double>(from + part) / static_cast<double>(tokens));
  }
  return true;
}

/// Feeds chosen tokens to a decoder, together with guesses of the tokens that follow. A token that was guessed
/// correctly needs no further pass.
class SpeculativeDecoder {
 public:
  SpeculativeDecoder(models::CachedDecoder& decoder, std::span<const std::int32_t> prompt, std::int64_t drafts)
      : decoder_(decoder),
        guesses_(prompt),
        drafts_(drafts),
        memory_(static_cast<std::size_t>((drafts + 1) * decoder.config().vocab)) {}

  /// Returns the logits (1,V) from which the next token is chosen. For the first token, the caller writes the logits
  /// that follow the prompt into this view.
  View<float, 2> logits() { return rows().range(0, row_, 1); }

  /// Returns whether the next guess equals the chosen token `id`.
  /// If so, accepts the guess, which the decoder has processed already. If not, the caller must call decode(id).
  bool accept_guess(std::int32_t id, Generated& out) {
    guesses_.add(id);
    if (row_ + 1 >= std::ssize(pass_) || pass_[static_cast<std::size_t>(row_ + 1)] != id) return false;
    ++row_;
    ++out.guessed_right;
    return true;
  }
  /// Processes the chosen token `id`, and at most `room` guesses of the tokens after it, in one pass.
  void decode(std::int32_t id, std::int64_t room, Generated& out) {
    pass_ = guesses_.next(std::min(drafts_, room));
    out.guessed += std::ssize(pass_);
    pass_.insert(pass_.begin(), id);
    row_ = 0;
    const auto tokens = std::ssize(pass_);
    decoder_.append_all(rows().range(0, 0, tokens).split(0, 1, tokens), {pass_.data(), {1, tokens}});
  }
  /// Truncates the decoder, so that it no longer contains the guesses of the last pass that were not accepted.
  void drop_rejected_guesses() {
    decoder_.truncate(decoder_.length() - std::max<std::int64_t>(std::ssize(pass_) - row_ - 1, 0));
    pass_.clear();
    row_ = 0;
  }

 private:
  View<float, 2> rows() { return {memory_.data(), {drafts_ + 1, decoder_.config().vocab}}; }

  models::CachedDecoder& decoder_;
  DraftTokens guesses_;
  std::int64_t drafts_;
  std::vector<std::int32_t> pass_{};  // tokens of the last pass: a chosen token, then guesses
  std::int64_t row_ = 0;              // number of accepted guesses in the last pass
  std::vector<float> memory_;
};

}  // namespace

Generated generate(models::CachedDecoder& decoder, const tokenize::Tokenizer& tokenizer,
                   std::span<const std::int32_t> prompt, const GenerateOptions& options, const GenerateHooks& hooks) {
  require(decoder.options().batch == 1, "the decoder holds {} sequences but must hold 1", decoder.options().batch);
  for (const std::string& text : options.stop_texts) require(!text.empty(), "a stop text is empty");
  require(options.max_tokens >= 1, "max_tokens is {} but must be at least 1", options.max_tokens);
  require(options.drafts >= 0, "drafts is {} but must be at least 0", options.drafts);
  check_prompt(decoder, tokenizer, prompt);
  Sampler sampler(options.sampling);
  // Limits a pass to the number of tokens that it computes in f32. Longer passes would use bf16 and differ from
  // decoding without guesses.
  SpeculativeDecoder speculative(decoder, prompt, std::min(options.drafts, decoder.most_unrounded() - 1));
  const auto vocab = static_cast<std::size_t>(decoder.config().vocab);
  const std::size_t words = std::min(vocab, static_cast<std::size_t>(tokenizer.vocab()));
  Generated out;
  const std::int64_t before = decoder.length();
  const Stopwatch prompt_time;
  const bool whole = read_prompt(decoder, speculative.logits(), prompt, hooks);
  out.prompt_seconds = prompt_time.seconds();
  out.prompt_tokens = decoder.length() - before;
  if (!whole) return out;

  tokenize::StreamDecoder stream(tokenizer, /*skip_special=*/true);
  StopTexts stop_texts(options.stop_texts);
  const auto show = [&](const std::string& bytes) { return !hooks.text || hooks.text(bytes); };
  for (;;) {
    const float* const row = speculative.logits().data;
    if (hooks.logits) hooks.logits({row, vocab});
    const Stopwatch choice_time;
    const std::int32_t id = sampler.next({row, words});
    const double choice_seconds = choice_time.seconds();
    out.ids.push_back(id);
    out.stop = StopReason::end_token;
    if (std::find(options.end_ids.begin(), options.end_ids.end(), id) != options.end_ids.end()) break;
    out.stop = StopReason::interrupted;
    if (!show(stop_texts.pass(stream.next(id)))) break;
    out.stop = StopReason::stop_text;
    if (stop_texts.found()) break;
    out.stop = StopReason::max_tokens;
    if (static_cast<std::int64_t>(out.ids.size()) == options.max_tokens) break;
    out.stop = StopReason::capacity;
    const Stopwatch step_time;
    if (!speculative.accept_guess(id, out)) {
      speculative.drop_rejected_guesses();
      const std::int64_t room = decoder.capacity() - decoder.length();
      if (room == 0) break;
      out.step_bytes += static_cast<double>(decoder.step_bytes());
      speculative.decode(id, std::min(room, options.max_tokens - std::ssize(out.ids)) - 1, out);
    }
    out.step_seconds += choice_seconds + step_time.seconds();
    ++out.steps;
  }
  speculative.drop_rejected_guesses();
  if (out.stop == StopReason::stop_text) return out;
  std::string rest = stop_texts.pass(stream.finish());
  rest += stop_texts.rest();
  if (!rest.empty()) show(rest);
  return out;
}

}  // namespace headgate::generate
