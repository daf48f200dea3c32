// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headgate::tokenize {

/// Returns an odd number that differs from process to process. Hashes multiply by it, so that nobody can make a file or
/// text whose keys all collide.
std::uint64_t random_factor();

/// Numbers strings in the order of their insertion.
class StringTable {
 public:
  static constexpr std::int32_t kAbsent = -1;

  /// Returns the number of `key`, or kAbsent.
  std::int32_t find(std::string_view key) const;
  /// Appends `key` unless it is there, and returns its number.
  std::int32_t insert(std::string_view key);

  std::string_view key(std::int32_t number) const {
    const Entry& entry = entries_[static_cast<std::size_t>(number)];
    return {bytes_.data() + entry.begin, entry.size};
  }
  std::int32_t size() const { return static_cast<std::int32_t>(entries_.size()); }

 private:
  struct Entry {
    std::uint64_t hash;
    std::uint32_t begin;  ///< in bytes_
    std::uint32_t size;
  };

  std::uint64_t hash(std::string_view key) const;
  /// Returns the slot that holds the key, or the free one for it.
  std::size_t slot(std::uint64_t hash, std::string_view key) const;
  void grow();

  std::uint64_t factor_ = random_factor();
  std::string bytes_;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> slots_;  ///< numbers of entries or kAbsent; a power of two, at most half of them used
  int shift_ = 0;                    ///< shift that turns a hash into the number of a slot
};

}  // namespace headgate::tokenize
