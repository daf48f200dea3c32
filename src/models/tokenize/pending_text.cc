// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/pending_text.hpp"

#include "models/tokenize/error.hpp"

namespace headgate::tokenize {

void check_word_size(std::size_t bytes) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 26;
  if (bytes > kMostBytes) refuse("a word takes {} bytes, more than the limit of {}", bytes, kMostBytes);
}

bool PendingText::add(std::string_view part, More more) {
  bytes_.erase(0, bytes_to_drop_);
  bytes_to_drop_ = 0;
  begin_ = next_begin_;
  if (bytes_.empty()) {
    view_ = part;
    return true;
  }
  check_word_size(bytes_.size() + part.size());
  bytes_ += part;
  view_ = bytes_;
  return more == More::none || bytes_.size() >= least_size_;
}

void PendingText::drop_before(std::size_t from, std::size_t undecided) {
  const std::string_view rest = view_.substr(from);
  next_begin_ = begin_ + from;
  least_size_ = rest.size() + (view_.size() - undecided);
  if (bytes_.empty()) {
    bytes_ = rest;
  } else {
    bytes_to_drop_ = from;
  }
}

void PendingText::reset() {
  bytes_to_drop_ = bytes_.size();
  next_begin_ = 0;
  least_size_ = 0;
}

}  // namespace headgate::tokenize
