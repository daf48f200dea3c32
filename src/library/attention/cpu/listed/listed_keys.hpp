// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "library/attention/cpu/common/visibility.hpp"
#include "library/attention/key_lists.hpp"
#include "library/attention/problem.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

namespace headgate {

/// Returns the number of blocks of key_block_size keys that a sequence of S keys has.
inline std::int64_t key_blocks(const Problem& p, std::int64_t S) {
  return S / p.key_block_size + (S % p.key_block_size != 0 ? 1 : 0);
}

/// Returns the room that one list of keys needs: the largest number of keys in a list, plus one.
/// The additional element is needed because KeyCollector writes a key before it knows whether the query sees the key.
inline std::int64_t room_for_listed_keys(const Problem& p) {
  const std::int64_t K = p.inputs.key_indices.shape[3];
  return 1 + (K < key_blocks(p, p.S) ? std::min(p.S, K * p.key_block_size) : p.S);
}

/// Collects the keys that a query sees. A query sees a key if key list, causality, window and key lengths all allow it.
class KeyCollector {
 public:
  KeyCollector(Workspace& ws, const Problem& p) : p_(p) {
    // Marks the list in a bit set with one bit per block of keys. Short lists are sorted instead, because reading the
    // bit set takes a pass over the whole sequence.
    constexpr std::int64_t kWordsPerEntry = 8;
    const std::int64_t K = p.inputs.key_indices.shape[3], words = key_blocks(p, p.S) / kBits + 1;
    if (K < words / kWordsPerEntry) {
      sorted_ = ws.take<std::int64_t>("sorted list", K);
    } else {
      marks_ = ws.take<std::uint64_t>("marks of listed keys", words);
    }
  }

  /// Stores the keys that query i sees in `keys`, in ascending order without duplicates. Returns their number.
  /// `keys` must have room_for_listed_keys() elements.
  std::int64_t collect(std::int64_t* keys, const Sequence& sequence, std::int64_t h_kv, std::int64_t i) const {
    const KeyRange seen = Visibility(p_, sequence).row(i);
    std::int64_t count = 0, last = -1;
    bool ascends = true;
    const auto append = [&](std::int64_t block) {
      if (p_.key_block_size == 1) {  // always writes the key, which avoids a branch
        keys[count] = block;
        count += static_cast<std::int64_t>(block >= seen.begin && block < seen.end);
        return;
      }
      const std::int64_t begin = std::max(block * p_.key_block_size, seen.begin);
      const std::int64_t end = std::min(block * p_.key_block_size + p_.key_block_size, seen.end);
      for (std::int64_t j = begin; j < end; ++j) keys[count++] = j;
    };
    visit_listed_blocks(p_, sequence, h_kv, i, [&](std::int64_t block) {
      ascends = ascends && block > last;
      if (ascends) append(block);
      last = block;
    });
    if (ascends) return count;
    count = 0;
    if (marks_.count() == 0) {
      std::int64_t* end = sorted_.data;
      visit_listed_blocks(p_, sequence, h_kv, i, [&end](std::int64_t block) { *end++ = block; });
      std::sort(sorted_.data, end);
      std::for_each(sorted_.data, std::unique(sorted_.data, end), append);
      return count;
    }
    const std::int64_t words = key_blocks(p_, sequence.S) / kBits + 1;
    std::fill_n(marks_.data, words, std::uint64_t{0});
    visit_listed_blocks(p_, sequence, h_kv, i,
                        [&](std::int64_t block) { marks_(block / kBits) |= std::uint64_t{1} << (block % kBits); });
    for (std::int64_t word = 0; word < words; ++word) {
      for (std::uint64_t left = marks_(word); left != 0; left &= left - 1) {
        append(word * kBits + __builtin_ctzll(left));
      }
    }
    return count;
  }

 private:
  static constexpr std::int64_t kBits = 64;

  const Problem& p_;
  View<std::uint64_t, 1> marks_;  // one bit per block of keys; empty if lists are sorted
  View<std::int64_t, 1> sorted_;  // entries of the current list, sorted; empty if lists are marked
};

}  // namespace headgate
