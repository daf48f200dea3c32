// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/held_text.hpp"

#include "models/tokenize/error.hpp"

namespace headgate::tokenize {

void check_word_size(std::size_t bytes) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 26;
  if (bytes > kMostBytes) refuse("a word takes {} bytes, more than the limit of {}", bytes, kMostBytes);
}

bool HeldText::add(std::string_view part, Tail tail) {
  bytes_.erase(0, forgotten_);
  forgotten_ = 0;
  begin_ = begin_after_;
  if (bytes_.empty()) {
    view_ = part;
    return true;
  }
  check_word_size(bytes_.size() + part.size());
  bytes_ += part;
  view_ = bytes_;
  return tail == Tail::ended || bytes_.size() >= wanted_;
}

void HeldText::keep(std::size_t from, std::size_t undecided) {
  const std::string_view rest = view_.substr(from);
  begin_after_ = begin_ + from;
  wanted_ = rest.size() + (view_.size() - undecided);
  if (bytes_.empty()) {
    bytes_ = rest;
  } else {
    forgotten_ = from;
  }
}

void HeldText::reset() {
  forgotten_ = bytes_.size();
  begin_after_ = 0;
  wanted_ = 0;
}

}  // namespace headgate::tokenize
