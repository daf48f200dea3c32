// SPDX-License-Identifier: Apache-2.0
#include "models/generate/generate.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "library/core/check.hpp"
#include "models/generate/stop_texts.hpp"
#include "models/io/work.hpp"

namespace headgate::generate {
namespace {

/// Number of prompt tokens per call of the decoder. The number is large enough for efficient matrix products and small
/// enough for a quick interruption.
constexpr std::int64_t kPromptPart = 512;

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

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

}  // namespace

Generated generate(models::CachedDecoder& decoder, const tokenize::Tokenizer& tokenizer,
                   std::span<const std::int32_t> prompt, const GenerateOptions& options, const GenerateHooks& hooks) {
  require(decoder.options().batch == 1, "the decoder holds {} sequences but must hold 1", decoder.options().batch);
  for (const std::string& text : options.stop_texts) require(!text.empty(), "a stop text is empty");
  require(options.max_tokens >= 1, "max_tokens is {} but must be at least 1", options.max_tokens);
  check_prompt(decoder, tokenizer, prompt);
  Sampler sampler(options.sampling);
  std::vector<float> memory(static_cast<std::size_t>(decoder.config().vocab));
  const View<float, 2> logits = view_of(memory, 1, memory.size());
  const std::span<const float> choice(memory.data(),
                                      std::min(memory.size(), static_cast<std::size_t>(tokenizer.vocab())));
  Generated out;
  const std::int64_t before = decoder.length();
  const Stopwatch prompt_time;
  const bool whole = read_prompt(decoder, logits, prompt, hooks);
  out.prompt_seconds = prompt_time.seconds();
  out.prompt_tokens = decoder.length() - before;
  if (!whole) return out;

  tokenize::StreamDecoder stream(tokenizer, /*skip_special=*/true);
  StopTexts stop_texts(options.stop_texts);
  const auto show = [&](const std::string& bytes) { return !hooks.text || hooks.text(bytes); };
  for (;;) {
    if (hooks.logits) hooks.logits(memory);
    const Stopwatch choice_time;
    const std::int32_t id = sampler.next(choice);
    const double choice_seconds = choice_time.seconds();
    out.ids.push_back(id);
    out.stop = StopReason::end_token;
    if (std::find(options.end_ids.begin(), options.end_ids.end(), id) != options.end_ids.end()) break;
    out.stop = StopReason::interrupted;
    if (!show(stop_texts.pass(stream.next(id)))) break;
    out.stop = StopReason::stop_text;
    if (stop_texts.found()) return out;
    out.stop = StopReason::max_tokens;
    if (static_cast<std::int64_t>(out.ids.size()) == options.max_tokens) break;
    out.stop = StopReason::capacity;
    if (decoder.length() == decoder.capacity()) break;
    out.step_bytes += static_cast<double>(decoder.step_bytes());
    const Stopwatch step_time;
    decoder.append(logits, {&id, {1, 1}});
    out.step_seconds += choice_seconds + step_time.seconds();
    ++out.steps;
  }
  std::string rest = stop_texts.pass(stream.finish());
  rest += stop_texts.rest();
  if (!rest.empty()) show(rest);
  return out;
}

}  // namespace headgate::generate
