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

void PieceCutter::next(std::vector<Slice>& slices, std::string_view part, Tail tail) {
  slices.clear();
  if (!held_.add(part, tail)) return;
  if (step_.pattern) {
    search(slices, tail);
  } else {
    from_ = view().size();
  }
  const std::size_t end = tail == Tail::ended ? view().size() : from_;
  if (done_ < end) add(slices, {done_, end}, Kind::gap);
  in_gap_ = in_gap_ || done_ < end;
  done_ = end;
  if (tail == Tail::ended) end_piece(slices);
  forget(tail);
}

/// Appends each match that later text cannot change, and the text before it. The caller appends the text from the last
/// match to from_.
void PieceCutter::search(std::vector<Slice>& slices, Tail tail) {
  const std::string_view text = view();
  Match match;
  while (from_ < text.size()) {
    const Found found = search_->find(match, text, from_, tail);
    if (found != Found::match) {
      from_ = found == Found::none ? text.size() : std::max(from_, match.begin);
      return;
    }
    if (done_ < match.begin) add(slices, {done_, match.begin}, Kind::gap);
    in_gap_ = false;
    if (match.begin < match.end) {
      add(slices, {match.begin, match.end}, Kind::match);
    } else if (step_.behavior == SplitBehavior::contiguous) {
      last_matched_ = !step_.invert;  // does not join the texts before and after an empty match
    }
    done_ = from_ = match.end;
    if (match.begin == match.end && from_ < text.size()) from_ += first_code_point(text.substr(from_)).bytes;
  }
}

void PieceCutter::add(std::vector<Slice>& slices, Span span, Kind kind) {
  const bool matched = (kind == Kind::match) != step_.invert;
  const bool joins = in_gap_ || (begun_ && joins_last(matched));
  begun_ = true;
  last_matched_ = matched;
  if (!joins) {
    end_piece(slices);
    open_ = !matched || step_.behavior != SplitBehavior::removed;
    if (open_) slices.push_back({span, Tail::open});
  } else if (open_ && !slices.empty()) {
    slices.back().span.end = span.end;
  } else if (open_) {
    slices.push_back({span, Tail::open});
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
  if (!open_) return;
  open_ = false;
  if (!slices.empty()) {
    slices.back().tail = Tail::ended;
  } else {
    slices.push_back({{done_, done_}, Tail::ended});
  }
}

/// Keeps the text that was not searched yet, and the bytes before it that lookbehinds may read.
void PieceCutter::forget(Tail tail) {
  if (tail == Tail::ended) {
    held_.reset();
    from_ = done_ = 0;
    begun_ = in_gap_ = false;
    return;
  }
  const std::size_t back = step_.pattern ? step_.pattern->reach_back() : 0;
  std::size_t keep = done_ - std::min(done_, back);
  while (keep > 0 && keep < done_ && (static_cast<unsigned char>(view()[keep]) & 0xC0U) == 0x80U) --keep;
  held_.keep(keep, done_);
  from_ -= keep;
  done_ -= keep;
}

}  // namespace headgate::tokenize
