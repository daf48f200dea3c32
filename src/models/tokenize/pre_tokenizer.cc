// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/pre_tokenizer.hpp"

#include <algorithm>

#include "models/tokenize/utf8.hpp"

namespace headgate::tokenize {

const std::string_view kDigitPattern = R"(\p{N})";
const std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

PieceCutter::PieceCutter(const SplitStep& step) : step_(step) {
  if (step.pattern) search_.emplace(*step.pattern);
}

void PieceCutter::next(std::vector<Slice>& slices, std::string_view part, More more) {
  slices.clear();
  if (!pending_.add(part, more)) return;
  if (step_.pattern) {
    search(slices, more);
  } else {
    search_begin_ = view().size();
  }
  const std::size_t end = more == More::none ? view().size() : search_begin_;
  if (emitted_end_ < end) add(slices, {emitted_end_, end}, Kind::gap);
  gap_continues_ = gap_continues_ || emitted_end_ < end;
  emitted_end_ = end;
  if (more == More::none) end_piece(slices);
  drop_emitted(more);
}

/// Finds matches from search_begin_ on. Stops before the first match that later text can change. Appends each match and
/// the text before it. The caller appends the text after the last match.
void PieceCutter::search(std::vector<Slice>& slices, More more) {
  const std::string_view text = view();
  Match match;
  while (search_begin_ < text.size()) {
    const Found found = search_->find(match, text, search_begin_, more);
    if (found != Found::match) {
      search_begin_ = found == Found::none ? text.size() : std::max(search_begin_, match.begin);
      return;
    }
    if (emitted_end_ < match.begin) add(slices, {emitted_end_, match.begin}, Kind::gap);
    gap_continues_ = false;
    if (match.begin < match.end) {
      add(slices, {match.begin, match.end}, Kind::match);
    } else if (step_.behavior == SplitBehavior::contiguous) {
      last_matched_ = !step_.invert;  // an empty match separates the text before and after it
    }
    emitted_end_ = search_begin_ = match.end;
    if (match.begin == match.end && search_begin_ < text.size()) {
      search_begin_ += first_code_point(text.substr(search_begin_)).bytes;
    }
  }
}

void PieceCutter::add(std::vector<Slice>& slices, Span span, Kind kind) {
  const bool matched = (kind == Kind::match) != step_.invert;
  const bool joins = gap_continues_ || (has_slice_ && joins_last(matched));
  has_slice_ = true;
  last_matched_ = matched;
  if (!joins) {
    end_piece(slices);
    piece_open_ = !matched || step_.behavior != SplitBehavior::removed;
    if (piece_open_) slices.push_back({span, More::may_follow});
  } else if (piece_open_ && !slices.empty()) {
    slices.back().span.end = span.end;
  } else if (piece_open_) {
    slices.push_back({span, More::may_follow});
  }
}

bool PieceCutter::joins_last(bool matched) const {
  switch (step_.behavior) {
    case SplitBehavior::contiguous: return matched == last_matched_;
    case SplitBehavior::merged_with_previous: return matched && !last_matched_;
    case SplitBehavior::merged_with_next: return !matched && last_matched_;
    default: return false;
  }
}

void PieceCutter::end_piece(std::vector<Slice>& slices) {
  if (!piece_open_) return;
  piece_open_ = false;
  if (!slices.empty()) {
    slices.back().more = More::none;
  } else {
    slices.push_back({{emitted_end_, emitted_end_}, More::none});
  }
}

/// Drops the text that slices have covered, except the last bytes, which lookbehinds may still read. Drops all text
/// after the last part.
void PieceCutter::drop_emitted(More more) {
  if (more == More::none) {
    pending_.reset();
    search_begin_ = emitted_end_ = 0;
    has_slice_ = gap_continues_ = false;
    return;
  }
  const std::size_t back = step_.pattern ? step_.pattern->reach_back() : 0;
  std::size_t keep = emitted_end_ - std::min(emitted_end_, back);
  while (keep > 0 && keep < emitted_end_ && (static_cast<unsigned char>(view()[keep]) & 0xC0U) == 0x80U) --keep;
  pending_.drop_before(keep, emitted_end_);
  search_begin_ -= keep;
  emitted_end_ -= keep;
}

}  // namespace headgate::tokenize
