// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headgate::tokenize {

/// Returns a random odd number that is constant within a process. Hash functions multiply by it, so that no file or
/// text can be crafted whose keys all collide.
std::uint64_t random_factor();

/// Hash table of strings, numbered in the order of their insertion.
class StringTable {
 public:
  static constexpr std::int32_t kAbsent = -1;

  /// Returns the number of `key` in the order of insertion, or kAbsent.
  std::int32_t find(std::string_view key) const;
  /// Inserts `key` if it is absent. Returns its number.
  std::int32_t insert(std::string_view key);

  std::string_view key(std::int32_t number) const {
    const Entry& entry = entries_[static_cast<std::size_t>(number)];
    return {bytes_.data() + entry.begin, entry.size};
  }
  std::int32_t size() const { return static_cast<std::int32_t>(entries_.size()); }

 private:
  struct Entry {
    std::uint64_t hash;
    std::uint32_t begin;  ///< offset in bytes_
    std::uint32_t size;
  };

  std::uint64_t hash(std::string_view key) const;
  /// Returns the index in slots_ of the key, or of the free slot where it can be inserted.
  std::size_t slot(std::uint64_t hash, std::string_view key) const;
  void grow();

  std::uint64_t factor_ = random_factor();
  std::string bytes_;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> slots_;  ///< hash table of entry numbers or kAbsent; 2^n slots, at most half full
  int shift_ = 0;                    ///< number of bits by which a hash is shifted right to give a slot index
};

}  // namespace headgate::tokenize
