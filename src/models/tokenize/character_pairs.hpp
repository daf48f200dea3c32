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

  /// Returns the index of the pair in slots_. If the pair is absent, returns the free slot for it.
  std::size_t slot(std::uint64_t pair) const;
  void grow();

  std::bitset<std::size_t{kAscii} * kAscii> ascii_;
  /// Hash table of the pairs with a character beyond ASCII; 2^n slots, at most half full.
  std::vector<std::uint64_t> slots_;
  std::size_t used_ = 0;
  std::uint64_t factor_ = random_factor();
  int shift_ = 0;  ///< right shift, in bits, that turns a hash into a slot index
};

}  // namespace headgate::tokenize
