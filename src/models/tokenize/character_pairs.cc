// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/character_pairs.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace headgate::tokenize {

void CharacterPairs::insert(char32_t before, char32_t after) {
  if (before < kAscii && after < kAscii) {
    ascii_.set(before * kAscii + after);
    return;
  }
  if (2 * (used_ + 1) > slots_.size()) grow();
  const std::uint64_t pair = std::uint64_t{before} << 32 | after;
  std::uint64_t& place = slots_[slot(pair)];
  used_ += place == kFree ? 1 : 0;
  place = pair;
}

bool CharacterPairs::contains(char32_t before, char32_t after) const {
  if (before < kAscii && after < kAscii) return ascii_.test(before * kAscii + after);
  return !slots_.empty() && slots_[slot(std::uint64_t{before} << 32 | after)] != kFree;
}

std::size_t CharacterPairs::slot(std::uint64_t pair) const {
  std::size_t at = (pair * factor_) >> shift_;
  while (slots_[at] != pair && slots_[at] != kFree) at = (at + 1) & (slots_.size() - 1);
  return at;
}

void CharacterPairs::grow() {
  constexpr std::size_t kFirstSlots = 64;
  const std::size_t size = std::max(kFirstSlots, 2 * slots_.size());
  const std::vector<std::uint64_t> old = std::exchange(slots_, std::vector<std::uint64_t>(size, kFree));
  shift_ = 64 - std::countr_zero(size);
  for (const std::uint64_t pair : old) {
    if (pair != kFree) slots_[slot(pair)] = pair;
  }
}

}  // namespace headgate::tokenize
