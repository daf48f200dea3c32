// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/staged_stream.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "models/io/file_error.hpp"
#include "models/tokenize/error.hpp"
#include "models/tokenize/pending_text.hpp"
#include "models/tokenize/utf8.hpp"
#include "models/tokenize/word_encoder.hpp"

namespace headgate::tokenize {
namespace {

/// Position of a piece of text. Offsets count bytes of the normal form of the text between two added tokens.
struct PiecePosition {
  std::ptrdiff_t begin = 0;  ///< offset of the piece; negative if an added prefix begins before offset 0
  std::ptrdiff_t least = 0;  ///< offset of the piece without its prefix; no token begins before it

  Span span_of(const WordToken& token) const {
    const auto offset = [this](std::uint32_t at) {
      return static_cast<std::size_t>(std::max(least, begin + std::ptrdiff_t{at}));
    };
    return {offset(token.begin), offset(token.end)};
  }
};

/// Encodes a text in the stages of EncodingStages. Each stage holds back text that later input can change, and passes
/// on the rest. If a stage passes on a piece with More::may_follow, its next text continues this piece.
class StagedStream final : public StreamEncoder {
 public:
  StagedStream(const EncodingStages& stages, const EncodeOptions& options)
      : stages_(stages),
        options_(options),
        source_search_(stages.source_tokens, options.special_as_text),
        form_(stages.form),
        normalized_search_(stages.normalized_tokens, options.special_as_text),
        words_(*stages.model) {
    step_states_.reserve(stages.steps.size());
    for (const SplitStep& step : stages.steps) step_states_.emplace_back(step);
  }

 protected:
  Encoding take(std::string_view part, More more) override {
    try {
      if (!std::exchange(has_begun_, true) && options_.add_special) add_around(stages_.before, 0);
      take_bytes(part, more);
      if (more == More::none && options_.add_special) add_around(stages_.after, bytes_.begin() + bytes_.view().size());
      return std::exchange(out_, {});
    } catch (const TokenizerError& error) {
      io::fail(stages_.name, "cannot split the text from byte {} on into words: {}", segment_begin_, error.what());
    }
  }

 private:
  /// Kinds of byte sequences in the input: `text` is valid UTF-8, `others` are bytes that are not UTF-8.
  enum class Run { none, text, others };

  /// State of a pre-tokenizer step. Each step splits the pieces of the previous step.
  struct StepState {
    explicit StepState(const SplitStep& of) : step(of), cutter(of) {}

    const SplitStep& step;
    PieceCutter cutter;
    std::vector<Slice> slices{};
    PiecePosition position{};
    More more = More::none;
  };

  void add_token(std::int32_t id, Span span) {
    out_.ids.push_back(id);
    if (options_.spans) out_.spans.push_back(span);
  }
  void add_around(const std::vector<std::int32_t>& ids, std::size_t at) {
    for (const std::int32_t id : ids) add_token(id, {at, at});
  }
  /// Maps a part of the segment's normal form back to the text. Returns the bytes of the text that became this part.
  Span source_of(Span part) const {
    const Span span = form_.source_of(part);
    return {segment_begin_ + span.begin, segment_begin_ + span.end};
  }

  /// Returns whether the text at the offset `at` directly follows bytes that are not UTF-8. Such text gets no prefix,
  /// because decoding drops a prefix only at the beginning of the whole text.
  bool follows_bytes(std::size_t at) const { return run_ == Run::text && at == run_begin_ && run_begin_ > 0; }
  bool wants_prefix(const SplitStep& step, std::string_view piece, const PiecePosition& position) const;

  void take_bytes(std::string_view part, More more);
  void take_run(Run run, std::size_t begin, std::string_view text, More more);
  void feed_run(std::string_view text, More more);
  void take_text(std::string_view text, More more);
  void take_source(std::string_view text, More more);
  void take_normal(std::string_view text, More more);
  void take_piece(std::size_t step, std::string_view text, PiecePosition position, More more);
  void take_word(std::string_view text, const PiecePosition& position, More more);
  std::size_t take_cut_words();
  void encode_word(std::string_view word);

  const EncodingStages& stages_;
  const EncodeOptions options_;
  Encoding out_;
  bool has_begun_ = false;

  PendingText bytes_;  ///< first bytes of a character whose last bytes have not arrived; at most 3
  Run run_ = Run::none;
  std::size_t run_begin_ = 0;

  AddedTokenSearch source_search_;
  std::vector<Segment> source_segments_;

  NormalizedParts form_;  ///< normal form of the current segment of the source
  std::size_t segment_begin_ = 0;
  More segment_more_ = More::none;

  AddedTokenSearch normalized_search_;
  std::vector<Segment> normalized_segments_;

  std::vector<StepState> step_states_;

  WordEncoder words_;
  PendingText word_;
  PiecePosition word_position_;
  More word_more_ = More::none;
  std::size_t searched_ = 0;                ///< number of bytes of word_ that were already searched for cuts
  std::optional<char32_t> last_character_;  ///< character in front of byte searched_ of word_
};

void StagedStream::take_bytes(std::string_view part, More more) {
  bytes_.add(part, more);
  const std::string_view text = bytes_.view();
  const std::size_t end = text.size() - (more == More::none ? 0 : incomplete_suffix_size(text));
  for (std::size_t at = 0; at < end;) {
    const std::string_view rest = text.substr(at, end - at);
    const std::size_t good = well_formed_prefix_size(rest);
    const std::size_t size = good > 0 ? good : ill_formed_prefix_size(rest);
    take_run(good > 0 ? Run::text : Run::others, bytes_.begin() + at, rest.substr(0, size),
             size < rest.size() ? More::none : more);
    at += size;
  }
  if (more == More::none && run_ != Run::none) feed_run({}, more);
  bytes_.drop_before(end, text.size());
}

void StagedStream::take_run(Run run, std::size_t begin, std::string_view text, More more) {
  if (run_ != Run::none && run_ != run) feed_run({}, More::none);
  if (run_ == Run::none) {
    run_begin_ = segment_begin_ = begin;
    form_.begin(NormalizedParts::AppliedSteps::nothing);
  }
  run_ = run;
  feed_run(text, more);
}

void StagedStream::feed_run(std::string_view text, More more) {
  if (run_ == Run::text) {
    take_text(text, more);
  } else {
    take_word(text, {}, more);
  }
  if (more == More::none) run_ = Run::none;
}

void StagedStream::take_text(std::string_view text, More more) {
  source_search_.next(source_segments_, text, more);
  const std::size_t begin = run_begin_ + source_search_.begin();
  for (const Segment& segment : source_segments_) {
    const Span span{begin + segment.span.begin, begin + segment.span.end};
    if (segment.token != nullptr) {
      add_token(segment.token->id, span);
      continue;
    }
    if (segment_more_ == More::none) {
      segment_begin_ = span.begin;
      using AppliedSteps = NormalizedParts::AppliedSteps;
      form_.begin(follows_bytes(span.begin) ? AppliedSteps::all_but_prefix : AppliedSteps::all);
    }
    segment_more_ = segment.more;
    take_source(source_search_.view().substr(segment.span.begin, segment.span.end - segment.span.begin), segment.more);
  }
}

/// Normalizes a text in chunks, so that memory never holds the normal form of a long text as a whole.
void StagedStream::take_source(std::string_view text, More more) {
  constexpr std::size_t kChunk = std::size_t{1} << 16;
  while (!stages_.form.changes_nothing() && text.size() > kChunk) {
    std::size_t size = kChunk;
    while ((static_cast<std::uint8_t>(text[size]) & 0xC0U) == 0x80U) --size;
    take_normal(form_.next(text.substr(0, size), More::may_follow), More::may_follow);
    text.remove_prefix(size);
  }
  take_normal(form_.next(text, more), more);
}

void StagedStream::take_normal(std::string_view text, More more) {
  normalized_search_.next(normalized_segments_, text, more);
  const std::size_t begin = normalized_search_.begin();
  for (const Segment& segment : normalized_segments_) {
    const Span span{begin + segment.span.begin, begin + segment.span.end};
    if (segment.token != nullptr) {
      add_token(segment.token->id, source_of(span));
    } else {
      const auto at = static_cast<std::ptrdiff_t>(span.begin);
      take_piece(0, normalized_search_.view().substr(segment.span.begin, segment.span.end - segment.span.begin),
                 {at, at}, segment.more);
    }
  }
}

bool StagedStream::wants_prefix(const SplitStep& step, std::string_view piece, const PiecePosition& position) const {
  if (step.prefix.empty() || piece.starts_with(step.prefix)) return false;
  const auto at = static_cast<std::size_t>(std::max<std::ptrdiff_t>(position.begin, 0));
  const std::size_t begin = source_of({at, at}).begin;
  return step.prefix_once ? begin == 0 : !follows_bytes(begin);
}

/// Splits text by the pre-tokenizer step with the index `step`, and passes each piece to the next step. `position` is
/// the position of `text`. It is ignored if `text` continues a piece of the previous call.
void StagedStream::take_piece(std::size_t step, std::string_view text, PiecePosition position, More more) {
  if (step == step_states_.size()) return take_word(text, position, more);
  StepState& state = step_states_[step];
  std::string prefixed;
  if (state.more == More::none) {
    state.position = position;
    if (wants_prefix(state.step, text, position)) {
      prefixed = state.step.prefix + std::string(text);
      text = prefixed;
      state.position.begin -= static_cast<std::ptrdiff_t>(state.step.prefix.size());
    }
  }
  state.more = more;
  state.cutter.next(state.slices, text, more);
  const std::ptrdiff_t first = state.position.begin + static_cast<std::ptrdiff_t>(state.cutter.begin());
  for (const auto& [span, slice_more] : state.slices) {
    const std::ptrdiff_t begin = first + static_cast<std::ptrdiff_t>(span.begin);
    take_piece(step + 1, state.cutter.view().substr(span.begin, span.end - span.begin),
               {begin, std::max(begin, state.position.least)}, slice_more);
  }
}

void StagedStream::take_word(std::string_view text, const PiecePosition& position, More more) {
  const More before = std::exchange(word_more_, more);
  if (before == More::none) word_position_ = position;
  if (before == More::none && more == More::none && !stages_.model->cuts()) return encode_word(text);
  word_.add(text, more);
  const std::size_t begin = stages_.model->cuts() ? take_cut_words() : 0;
  if (more == More::may_follow) return word_.drop_before(begin, word_.view().size());
  encode_word(word_.view().substr(begin));
  word_.reset();
  searched_ = 0;
  last_character_.reset();
}

/// Encodes the pending word up to the last position where it may be cut. Returns this position.
std::size_t StagedStream::take_cut_words() {
  const std::string_view word = word_.view();
  std::size_t begin = 0, at = searched_;
  while (at < word.size()) {
    const CodePoint c = first_code_point(word.substr(at));
    if (c.bytes > 0 && last_character_ && stages_.model->may_cut(*last_character_, c.value)) {
      encode_word(word.substr(begin, at - begin));
      word_position_.begin += static_cast<std::ptrdiff_t>(at - begin);
      begin = at;
    }
    last_character_ = c.bytes > 0 ? std::optional(c.value) : std::nullopt;
    at += std::max<std::size_t>(c.bytes, 1);
  }
  searched_ = at - begin;
  return begin;
}

void StagedStream::encode_word(std::string_view word) {
  check_word_size(word.size());
  std::size_t known = 0;
  for (const WordToken& token : words_.encode(word)) {
    known += stages_.model->spelled_bytes(token);
    out_.ids.push_back(token.id);
    if (options_.spans) out_.spans.push_back(source_of(word_position_.span_of(token)));
  }
  out_.left_out += word.size() - known;
  // Drops the mapping before the word's end. An end inside an added prefix is negative and counts as 0.
  const std::ptrdiff_t end = word_position_.begin + static_cast<std::ptrdiff_t>(word.size());
  form_.forget(static_cast<std::size_t>(std::max<std::ptrdiff_t>(end, 0)));
}

}  // namespace

std::unique_ptr<StreamEncoder> make_staged_stream(const EncodingStages& stages, const EncodeOptions& options) {
  return std::make_unique<StagedStream>(stages, options);
}

}  // namespace headgate::tokenize
