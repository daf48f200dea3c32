// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headgate::tokenize {

/// Returns an odd random number, which stays the same within a process. Hash functions multiply by this number, so that
/// nobody can craft a file or text whose keys all collide.
std::uint64_t random_factor();

/// Hash table of strings. Numbers the strings in the order of insertion.
class StringTable {
 public:
  static constexpr std::int32_t kAbsent = -1;

  /// Returns the number of `key`, or kAbsent if the table does not have it.
  std::int32_t find(std::string_view key) const;
  /// Returns the number of `key`. Inserts the key if the table does not have it yet.
  std::int32_t insert(std::string_view key);

  std::string_view key(std::int32_t number) const {
    const Entry& entry = entries_[static_cast<std::size_t>(number)];
    return {bytes_.data() + entry.begin, entry.size};
  }
  std::int32_t size() const { return static_cast<std::int32_t>(entries_.size()); }

 private:
  struct Entry {
    std::uint64_t hash;
    std::uint32_t begin;  ///< offset of the string in bytes_
    std::uint32_t size;
  };

  std::uint64_t hash(std::string_view key) const;
  /// Returns the index of the key in slots_. If the key is absent, returns the free slot for it.
  std::size_t slot(std::uint64_t hash, std::string_view key) const;
  void grow();

  std::uint64_t factor_ = random_factor();
  std::string bytes_;
  std::vector<Entry> entries_;
  /// Hash table of string numbers; kAbsent marks a free slot; 2^n slots, at most half full.
  std::vector<std::int32_t> slots_;
  int shift_ = 0;  ///< number of bits by which a hash is shifted right to get a slot index
};

}  // namespace headgate::tokenize
