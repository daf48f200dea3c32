// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/tokenize/string_table.hpp"

namespace headgate::tokenize {

/// A set of pairs of neighbouring characters.
class CharacterPairs {
 public:
  void insert(char32_t before, char32_t after);
  bool contains(char32_t before, char32_t after) const;

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  static constexpr char32_t kAscii = 128;

  /// Returns the index in slots_ of the pair, or of the free slot where it can be inserted.
  std::size_t slot(std::uint64_t pair) const;
  void grow();

  std::bitset<std::size_t{kAscii} * kAscii> ascii_;
  std::vector<std::uint64_t> slots_;  ///< pairs with a non-ASCII character: hash table of 2^n slots, at most half full
  std::size_t used_ = 0;
  std::uint64_t factor_ = random_factor();
  int shift_ = 0;  ///< number of bits by which a hash is shifted right to give a slot index
};

}  // namespace headgate::tokenize
