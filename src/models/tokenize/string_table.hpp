// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headgate::tokenize {

/// An odd number that differs from process to process. Hashes multiply by it, so that no file and no text can be made
/// whose keys all collide.
std::uint64_t random_factor();

/// Strings, numbered in the order in which they came.
class StringTable {
 public:
  static constexpr std::int32_t kAbsent = -1;

  /// The number of `key`, kAbsent if it is not in the table.
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
  /// The slot that holds the key, or the free one where it belongs.
  std::size_t slot(std::uint64_t hash, std::string_view key) const;
  void grow();

  std::uint64_t factor_ = random_factor();
  std::string bytes_;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> slots_;  ///< numbers of entries or kAbsent; a power of two, at most half of them used
  int shift_ = 0;                    ///< of a hash, to the number of a slot
};

}  // namespace headgate::tokenize
