// SPDX-License-Identifier: Apache-2.0
#include "tokenize/added_tokens.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "tokenize/characters.hpp"
#include "tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

CodePoint last_code_point(std::string_view text) {
  for (std::size_t bytes = 1; bytes <= std::min<std::size_t>(4, text.size()); ++bytes) {
    const CodePoint c = first_code_point(text.substr(text.size() - bytes));
    if (c.bytes == bytes) return c;
  }
  return {};
}

/// Begin of the white space at the end of `text`.
std::size_t space_before(std::string_view text) {
  while (true) {
    const CodePoint c = last_code_point(text);
    if (c.bytes == 0 || !is_white_space(c.value)) return text.size();
    text.remove_suffix(c.bytes);
  }
}

/// Length of the white space at the front of `text`.
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

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, bool form_c) {
  for (AddedToken& token : tokens) {
    const Normalized content(token.content, form_c);
    entries_.push_back({std::string(content.text()), std::move(token)});
  }
  const auto less = [](const Entry& a, const Entry& b) { return a.content < b.content; };
  std::stable_sort(entries_.begin(), entries_.end(), less);
  const auto same = [](const Entry& a, const Entry& b) { return a.content == b.content; };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
  for (const Entry& entry : entries_) begins_[static_cast<std::uint8_t>(entry.content.front())] = true;
}

const AddedTokens::Entry* AddedTokens::longest(std::string_view text) const {
  const Entry* found = nullptr;
  auto begin = entries_.begin(), end = entries_.end();  // the entries that begin with the first `at` bytes of the text
  for (std::size_t at = 0; begin != end; ++at) {
    if (begin->content.size() == at) found = &*begin++;
    if (at == text.size()) break;
    const auto next = static_cast<std::uint8_t>(text[at]);
    const auto byte = [at](const Entry& entry) { return static_cast<std::uint8_t>(entry.content[at]); };
    begin = std::partition_point(begin, end, [&](const Entry& entry) { return byte(entry) < next; });
    end = std::partition_point(begin, end, [&](const Entry& entry) { return byte(entry) == next; });
  }
  return found;
}

void AddedTokens::split(std::vector<Part>& parts, std::string_view text, bool special_as_text) const {
  parts.clear();
  std::size_t done = 0;
  const auto text_until = [&](std::size_t end) {
    if (done < end) parts.push_back({{done, end}, nullptr});
  };
  for (std::size_t at = 0; at < text.size() && !entries_.empty();) {
    const Entry* entry = begins_[static_cast<std::uint8_t>(text[at])] ? longest(text.substr(at)) : nullptr;
    if (entry == nullptr) {
      ++at;
      continue;
    }
    const AddedToken& token = entry->token;
    Span span{at, at + entry->content.size()};
    at = span.end;
    if (special_as_text && token.special) continue;
    if (token.single_word && !stands_alone(text, span)) continue;
    if (token.lstrip) span.begin = std::min(std::max(space_before(text.substr(0, span.begin)), done), span.end);
    if (token.rstrip) span.end += space_after(text.substr(span.end));
    text_until(span.begin);
    parts.push_back({span, &token});
    done = span.end;
  }
  text_until(text.size());
}

}  // namespace headgate::tokenize
