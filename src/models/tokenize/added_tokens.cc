// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/added_tokens.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "models/io/input_file.hpp"
#include "models/tokenize/characters.hpp"
#include "models/tokenize/error.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

/// Returns the offset where the white space at the end of `text` begins.
std::size_t space_before(std::string_view text) {
  while (true) {
    const CodePoint c = last_code_point(text);
    if (c.bytes == 0 || !is_white_space(c.value)) return text.size();
    text.remove_suffix(c.bytes);
  }
}

/// Returns the length of the white space at the beginning of `text`.
std::size_t space_after(std::string_view text) {
  std::size_t at = 0;
  while (true) {
    const CodePoint c = first_code_point(text.substr(at));
    if (c.bytes == 0 || !is_white_space(c.value)) return at;
    at += c.bytes;
  }
}

bool stands_alone(std::string_view text, Span span) {
  const CodePoint before = last_code_point(text.substr(0, span.begin));
  const CodePoint after = first_code_point(text.substr(span.end));
  return (before.bytes == 0 || !is_word_character(before.value)) &&
         (after.bytes == 0 || !is_word_character(after.value));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const NormalForm& form) {
  for (AddedToken& token : tokens) {
    const Normalized content(token.content, form);
    // Refuses an empty normal form. It would match everywhere without consuming text, so the search would never end.
    if (content.text().empty()) refuse("added token '{}': its normal form is empty", io::printable(token.content));
    entries_.push_back({std::string(content.text()), std::move(token)});
  }
  const auto less = [](const Entry& a, const Entry& b) { return a.content < b.content; };
  std::stable_sort(entries_.begin(), entries_.end(), less);
  const auto same = [](const Entry& a, const Entry& b) { return a.content == b.content; };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
  for (const Entry& entry : entries_) {
    begins_[static_cast<std::uint8_t>(entry.content.front())] = true;
    takes_space_before_ = takes_space_before_ || entry.token.lstrip;
  }
}

AddedTokens::Longest AddedTokens::longest(std::string_view text) const {
  Longest found;
  auto begin = entries_.begin(),
       end = entries_.end();  // [begin, end): entries that agree with `text` in their first `at` bytes
  for (std::size_t at = 0; begin != end; ++at) {
    if (begin->content.size() == at) found.entry = &*begin++;
    if (at == text.size()) {
      found.undecided = begin != end;
      break;
    }
    const auto next = static_cast<std::uint8_t>(text[at]);
    const auto byte = [at](const Entry& entry) { return static_cast<std::uint8_t>(entry.content[at]); };
    begin = std::partition_point(begin, end, [&](const Entry& entry) { return byte(entry) < next; });
    end = std::partition_point(begin, end, [&](const Entry& entry) { return byte(entry) == next; });
  }
  return found;
}

void AddedTokenSearch::next(std::vector<Segment>& segments, std::string_view part, More more) {
  segments.clear();
  if (!pending_.add(part, more)) return;
  const std::size_t size = view().size();
  if (tokens_.entries_.empty()) search_begin_ = size;
  while (search_begin_ < size && step(segments, more)) continue;
  std::size_t end = more == More::none ? size : search_begin_;
  // Holds back white space at the end, because a later token with lstrip would include it.
  if (more == More::may_follow && tokens_.takes_space_before_) end = space_before(view().substr(0, search_begin_));
  add_text(segments, end, more);
  drop_emitted(more);
}

bool AddedTokenSearch::step(std::vector<Segment>& segments, More more) {
  const std::string_view text = view();
  const auto begins = [this](char c) { return tokens_.begins_[static_cast<std::uint8_t>(c)]; };
  search_begin_ = static_cast<std::size_t>(
      std::find_if(text.begin() + static_cast<std::ptrdiff_t>(search_begin_), text.end(), begins) - text.begin());
  if (search_begin_ == text.size()) return true;
  const auto [entry, undecided] = tokens_.longest(text.substr(search_begin_));
  if (undecided && more == More::may_follow) return false;
  if (entry == nullptr) {
    ++search_begin_;
    return true;
  }
  const AddedToken& token = entry->token;
  Span span{search_begin_, search_begin_ + entry->content.size()};
  if (!(special_as_text_ && token.special)) {
    const std::size_t space = token.rstrip ? space_after(text.substr(span.end)) : 0;
    // Waits for later text if it could change this token. single_word examines the character after the token, and
    // rstrip takes all white space after it.
    const bool sees_end = (token.single_word || token.rstrip) && span.end + space == text.size();
    if (sees_end && more == More::may_follow) return false;
    if (!token.single_word || stands_alone(text, span)) {
      if (token.lstrip) {
        const std::size_t from = std::min(emitted_end_, span.begin);
        const std::size_t begin = from + space_before(text.substr(from, span.begin - from));
        span.begin = std::min(std::max(begin, emitted_end_), span.end);
      }
      search_begin_ = span.end;
      span.end += space;
      add_text(segments, span.begin, More::none);
      segments.push_back({span, &token});
      emitted_end_ = span.end;
      return true;
    }
  }
  search_begin_ = span.end;
  return true;
}

/// Appends one segment to `segments`: the bytes [emitted_end_, end) of the text. More::may_follow marks a segment that
/// the next one continues. More::none marks a segment that a token or the end of the text follows. With
/// More::none and no bytes, appends an empty segment if the last segment was to be continued.
void AddedTokenSearch::add_text(std::vector<Segment>& segments, std::size_t end, More more) {
  const bool any = emitted_end_ < end;
  if (any || (text_open_ && more == More::none)) {
    segments.push_back({{emitted_end_, std::max(emitted_end_, end)}, nullptr, more});
  }
  text_open_ = more == More::may_follow && (any || text_open_);
  emitted_end_ = std::max(emitted_end_, end);
}

/// Drops the text that is both searched and in segments, except the last 4 bytes. These contain the character before
/// the remaining text, which single_word examines. With More::none, drops everything.
void AddedTokenSearch::drop_emitted(More more) {
  if (more == More::none) {
    pending_.reset();
    search_begin_ = emitted_end_ = 0;
    text_open_ = false;
    return;
  }
  constexpr std::size_t kMostBytesOfCharacter = 4;
  const std::size_t first = std::min(search_begin_, emitted_end_);
  const std::size_t keep = first - std::min(first, kMostBytesOfCharacter);
  pending_.drop_before(keep, std::min(first, view().size()));
  search_begin_ -= keep;
  emitted_end_ -= keep;
}

}  // namespace headgate::tokenize
