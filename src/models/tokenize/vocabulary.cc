// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/vocabulary.hpp"

#include <cstddef>

#include "models/io/input_file.hpp"
#include "models/tokenize/error.hpp"

namespace headgate::tokenize {

void Vocabulary::add(std::int64_t id, std::string_view spelling) {
  if (id < 0 || id >= kMostTokens)
    refuse("token '{}' has id {}, not 0 to {}", io::printable(spelling), id, kMostTokens - 1);
  if (spelling.empty()) refuse("token {} is empty", id);
  if (const std::int32_t other = find(spelling); other != kNoToken) {
    refuse("token '{}' has two ids, {} and {}", io::printable(spelling), other, id);
  }
  const auto at = static_cast<std::size_t>(id);
  if (at >= by_id_.size()) by_id_.resize(at + 1, StringTable::kAbsent);
  if (by_id_[at] != StringTable::kAbsent) {
    refuse("id {} has two tokens, '{}' and '{}'", id, io::printable(spellings_.key(by_id_[at])),
           io::printable(spelling));
  }
  by_id_[at] = spellings_.insert(spelling);
  ids_.push_back(static_cast<std::int32_t>(id));
}

std::int32_t Vocabulary::find(std::string_view spelling) const {
  const std::int32_t number = spellings_.find(spelling);
  return number == StringTable::kAbsent ? kNoToken : ids_[static_cast<std::size_t>(number)];
}

std::string_view Vocabulary::spelling(std::int32_t id) const {
  if (id < 0 || id >= size()) return {};
  const std::int32_t number = by_id_[static_cast<std::size_t>(id)];
  return number == StringTable::kAbsent ? std::string_view() : spellings_.key(number);
}

}  // namespace headgate::tokenize
