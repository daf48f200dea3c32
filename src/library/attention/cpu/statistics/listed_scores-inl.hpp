// SPDX-License-Identifier: Apache-2.0
// Scores listed keys for a few queries of one key/value head; included once per Highway target.
#if defined(HEADGATE_ATTENTION_LISTED_SCORES_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_LISTED_SCORES_INL_
#undef HEADGATE_ATTENTION_LISTED_SCORES_INL_
#else
#define HEADGATE_ATTENTION_LISTED_SCORES_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/cpu/decode/packed_queries-inl.hpp"
#include "library/attention/cpu/listed/listed_keys.hpp"
#include "library/attention/cpu/listed/listed_rows-inl.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Scores of listed keys, for all query heads of one key/value head and for consecutive queries.
/// The constructor's `queries` is the largest number of queries.
/// The heads share each query's list, so that each listed row of k is read once for all of them.
template <typename T>
class ListedScores {
 public:
  ListedScores(Workspace& ws, const Problem& p, const ScoreRules<T>& rules, std::int64_t queries)
      : p_(p), rules_(rules), collector_(ws, p), packed_(ws, p.group, p.D), k_(ws, p.D) {
    const std::int64_t room = room_for_listed_keys(p);
    keys_ = ws.take<std::int64_t>("listed keys", queries, room);
    counts_ = ws.take<std::int64_t>("numbers of listed keys", queries);
    scores_ = ws.take<T>("scores of listed keys", queries, p.group, padded(room));
    block_ = ws.take<T>("scores of a block", p.group, kListedStride);
    scales_ = ws.take<T>("scales", kListedBlock);
    if (rules.any()) rule_row_ = ws.take<T>("rule rows", 2 * kListedBlock);
  }

  /// Returns the length of a row with room for `keys` scores.
  static std::int64_t padded(std::int64_t keys) { return round_up(round_up(keys, kListedBlock), kNR<T>); }

  /// Computes the scores of queries first … first + queries, times log2(e).
  /// keys_of(i) returns the range of keys that query i needs. Ignores listed keys outside this range.
  template <class KeysOf>
  void compute(const Sequence& sequence, std::int64_t h_kv, std::int64_t first, std::int64_t queries,
               const KeysOf& keys_of) {
    k_.select(rows_of_keys(p_, sequence, h_kv), p_.group);
    for (std::int64_t q = 0; q < queries; ++q) {
      const std::int64_t i = first + q;
      std::int64_t* const keys = keys_.at(q);
      std::int64_t* const end = keys + collector_.collect(keys, sequence, h_kv, i);
      const KeyRange needed = keys_of(i);
      std::int64_t* const from = std::lower_bound(keys, end, needed.begin);
      counts_(q) = std::copy(from, std::lower_bound(from, end, needed.end), keys) - keys;
      packed_.pack(p_.group, rules_.query_factor(), [&](std::int64_t g) {
        return QueryRow{query_rows(p_.inputs.q, sequence, h_kv * p_.group + g), i};
      });
      for (std::int64_t n = 0; n < listed_blocks(counts_(q)); ++n) {
        score(ListedBlock::of(keys, counts_(q), n), sequence, h_kv, i);
        for (std::int64_t g = 0; g < p_.group; ++g) {
          std::copy_n(block_.at(g), kListedBlock, scores_.at(q, g) + n * kListedBlock);
        }
      }
    }
  }

  /// Returns the keys for which compute() computed scores of query q, in ascending order. count(q) is their number.
  const std::int64_t* keys(std::int64_t q) const { return keys_.at(q); }
  std::int64_t count(std::int64_t q) const { return counts_(q); }
  bool contains(std::int64_t q, std::int64_t key) const { return std::binary_search(keys(q), keys(q) + count(q), key); }
  /// Returns the scores of query q in the g-th query head: count(q) scores in a row with room for padded(count(q)).
  T* scores(std::int64_t q, std::int64_t g) const { return scores_.at(q, g); }

  /// Returns the columns of query q's scores whose keys are in `range`.
  KeyRange columns(std::int64_t q, const KeyRange& range) const {
    const std::int64_t *const begin = keys(q), *const end = begin + count(q);
    return {std::lower_bound(begin, end, range.begin) - begin, std::lower_bound(begin, end, range.end) - begin};
  }

 private:
  void score(const ListedBlock& block, const Sequence& sequence, std::int64_t h_kv, std::int64_t i) const {
    k_.visit_rows(block, [&](const auto& rows, std::int64_t first, std::int64_t n) {
      packed_.template score<kListedStride>(block_.range(1, first, n), rows, n);
    });
    const T* const scales = k_.scales(block, scales_.data);
    for (std::int64_t g = 0; g < p_.group; ++g) {
      T* HWY_RESTRICT s = block_.at(g);
      for (std::int64_t j = 0; scales != nullptr && j < block.count; ++j) s[j] *= scales[j];
      if (rules_.any()) {
        rules_.apply_listed(s, nullptr, sequence, h_kv * p_.group + g, i, block.keys, block.count, rule_row_.data);
      }
    }
  }

  const Problem& p_;
  const ScoreRules<T>& rules_;
  KeyCollector collector_;
  WideQueries<T> packed_;
  ListedRows<T, T> k_;  // all types of k are converted to T, so that they share one kernel
  View<std::int64_t, 2> keys_;
  View<std::int64_t, 1> counts_;
  View<T, 3> scores_;    // scores of each query's listed keys, (queries, group, padded keys)
  View<T, 2> block_;     // scores of one block, (group, kListedStride)
  View<T, 1> scales_;    // scales of a block's keys
  View<T, 1> rule_row_;  // scratch for a row of bias or mask, and a row of key bias
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_LISTED_SCORES_INL_
