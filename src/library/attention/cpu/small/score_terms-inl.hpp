// SPDX-License-Identifier: Apache-2.0
// Transposes bias and mask into the layout of a small head's scores; included once per Highway target.
#if defined(HEADGATE_ATTENTION_SCORE_TERMS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_SCORE_TERMS_INL_
#undef HEADGATE_ATTENTION_SCORE_TERMS_INL_
#else
#define HEADGATE_ATTENTION_SCORE_TERMS_INL_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/problem.hpp"
#include "library/core/workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Returns true if a bias or mask differs among the queries of a head.
inline bool is_by_query(const Problem& p, const ConstTensorView& map) { return p.T > 1 && map.strides[2] != 0; }

/// Plans the terms that are added to scores · log2(e). A bias adds bias · log2(e). A mask adds −∞ for hidden keys.
/// A plane holds the terms of all queries and keys of one head, transposed.
/// A map is a bias, key bias or mask.
struct ScoreTermsPlan {
  static constexpr double kMostPlanes_bytes = std::int64_t{64} << 20;

  /// `keeps_rows` must be true if panels hold consecutive queries, and false if a gate threshold selects queries.
  ScoreTermsPlan(const Problem& p, bool keeps_rows) {
    for (const ConstTensorView* map : {&p.inputs.bias, &p.inputs.key_bias, &p.inputs.mask}) {
      if (!map->present()) continue;
      any = true;
      if (is_by_query(p, *map)) {
        by_query = true;
        by_batch = by_batch || (p.B > 1 && map->strides[0] != 0);
        by_head = by_head || (p.Hq > 1 && map->strides[1] != 0);
      }
    }
    const std::int64_t distinct = (by_batch ? p.B : 1) * (by_head ? p.Hq : 1);
    const double bytes = static_cast<double>(distinct * p.T) * static_cast<double>(p.S * sizeof(double));
    const bool pays = 2 * distinct <= p.B * p.Hq && bytes <= kMostPlanes_bytes;
    if (by_query && keeps_rows && !p.packed() && pays) planes = distinct;
  }

  /// Returns the index of the shared plane for query head h of sequence b.
  std::int64_t plane_of(const Problem& p, std::int64_t b, std::int64_t h) const {
    return by_head ? (by_batch ? b * p.Hq : 0) + h : by_batch ? b : 0;
  }

  bool any = false;       ///< true if there is a bias or a mask
  bool by_query = false;  ///< true if a bias, key bias or mask differs among queries
  /// true if a bias or mask that differs among queries also differs among batch elements (by_batch) or heads (by_head)
  bool by_batch = false, by_head = false;
  std::int64_t planes = 0;  ///< number of planes that several heads share; 0 if each head computes its own terms
};

/// Scratch buffers of one thread.
template <typename T>
struct ScoreTermsScratch {
  ScoreTermsScratch() = default;
  ScoreTermsScratch(Workspace& ws, const ScoreTermsPlan& plan, std::int64_t S) {
    if (!plan.any) return;
    panel = ws.take<T>("terms", S + kMR, kNR<T>);
    keys = ws.take<T>("terms of keys", S);
    rows = ws.take<T>("terms, as rows", kNR<T> + 1, S);
  }

  View<T, 2> panel;  ///< terms that biases and masks add to the scores of a panel of queries, (keys, queries)
  View<T, 1> keys;   ///< sum of the terms that are the same for all queries, one per key
  /// terms of a panel of queries, (queries, keys); the last row is scratch for one row of a bias or mask
  View<T, 2> rows;
};

/// Computes the terms of a query head's scores, one panel of queries at a time.
/// A term is what biases and masks together add to one score · log2(e).
/// Terms are stored transposed, (keys, queries of the panel), like the scores of small heads.
template <typename T>
class ScoreTerms {
 public:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();

  /// `planes` is memory for the terms that several heads share (ScoreTermsPlan).
  /// Its shape is (number of planes, panels, keys + kMR, kNR).
  ScoreTerms(const Problem& p, const ScoreTermsPlan& plan, const View<T, 4>& planes, const ScoreTermsScratch<T>& own)
      : p_(p), plan_(plan), planes_(planes), own_(own) {}

  /// Computes panel number n of the shared planes. Numbering continues from one plane to the next.
  void pack_plane(std::int64_t n) const {
    const std::int64_t panels = planes_.shape[1], plane = n / panels, i = n % panels * kNR<T>;
    const std::int64_t heads = plan_.by_head ? p_.Hq : 1;
    const Sequence sequence = p_.sequence(plane / heads);
    pack_rows(
        planes_.sub(plane).sub(n % panels), sequence, plane % heads, [&](std::int64_t r) { return i + r; },
        std::min(kNR<T>, sequence.T - i));
  }

  /// Selects query head h of a sequence for later calls of panel().
  void begin_head(const Sequence& sequence, std::int64_t h) {
    if (!plan_.any) return;
    sequence_ = sequence;
    h_ = h;
    has_keys_ = false;
    std::fill_n(own_.keys.data, sequence.S, T{0});
    add_maps(own_.keys.data, false, 0, [&] { has_keys_ = true; });
    if (!plan_.by_query) fill_with_keys();
  }

  /// Returns the terms (keys, kNR) of queries row_at(0) … row_at(n − 1). Returns null without biases and masks.
  /// The caller may read up to kMR rows after the last key.
  template <class RowAt>
  const T* panel(const RowAt& row_at, std::int64_t n) const {
    if (!plan_.any) return nullptr;
    if (!plan_.by_query) return own_.panel.data;
    if (plan_.planes > 0) {
      const T* shared = planes_.sub(plan_.plane_of(p_, sequence_.b, h_)).at(row_at(0) / kNR<T>);
      if (!has_keys_) return shared;
      std::copy_n(shared, sequence_.S * kNR<T>, own_.panel.data);
    } else {
      pack_rows(own_.panel, sequence_, h_, row_at, n);
    }
    if (has_keys_) add_keys();
    return own_.panel.data;
  }

 private:
  /// Adds biases and masks to the S terms in `to`, which belong to query i. Calls found() for each bias or mask.
  /// If `by_query`, adds only biases and masks that differ among queries. Otherwise adds only those that do not.
  template <class Found>
  void add_maps(T* HWY_RESTRICT to, bool by_query, std::int64_t i, const Found& found) const {
    add_maps(to, sequence_, h_, by_query, i, found);
  }
  template <class Found>
  void add_maps(T* HWY_RESTRICT to, const Sequence& sequence, std::int64_t h, bool by_query, std::int64_t i,
                const Found& found) const {
    for (const ConstTensorView* map : {&p_.inputs.bias, &p_.inputs.key_bias, &p_.inputs.mask}) {
      if (!map->present() || is_by_query(p_, *map) != by_query) continue;
      found();
      const T* row = dense_row(map_rows(*map, sequence, h), i, own_.rows.at(kNR<T>));
      if (map == &p_.inputs.mask) {
        update_row(
            to, sequence.S, [](auto sum, auto mask) HWY_ATTR { return hide_masked(Tag<T>(), sum, mask); }, row);
      } else {
        update_row(
            to, sequence.S,
            [](auto sum, auto bias) HWY_ATTR { return add_visible(Tag<T>(), sum, in_log2_units(Tag<T>(), bias)); },
            row);
      }
    }
  }

  /// Computes the terms of n queries of head h, and stores them transposed in `to`. Unused columns become zero.
  template <class RowAt>
  void pack_rows(const View<T, 2>& to, const Sequence& sequence, std::int64_t h, const RowAt& row_at,
                 std::int64_t n) const {
    const T* rows[kNR<T>] = {};
    for (std::int64_t r = 0; r < n; ++r) {
      T* row = own_.rows.at(r);
      std::fill_n(row, sequence.S, T{0});
      add_maps(row, sequence, h, true, row_at(r), [] {});
      rows[r] = row;
    }
    if (n < kNR<T>) std::fill_n(to.data, sequence.S * kNR<T>, T{0});
    interleave_rows<kNR<T>>(to.data, rows, n, sequence.S, T{1});
  }

  void fill_with_keys() const {
    for (std::int64_t j = 0; j < sequence_.S; ++j) std::fill_n(own_.panel.at(j), kNR<T>, own_.keys(j));
  }

  /// Adds the terms that all queries share to the panel. A term of −∞ stays −∞, whatever is added.
  void add_keys() const {
    const Tag<T> d;
    for (std::int64_t j = 0; j < sequence_.S; ++j) {
      const auto key = hn::Set(d, own_.keys(j));
      T* HWY_RESTRICT row = own_.panel.at(j);
      for (std::int64_t x = 0; x < kNR<T>; x += kLanes<T>)
        hn::Store(add_visible(d, hn::Load(d, row + x), key), d, row + x);
    }
  }

  const Problem& p_;
  const ScoreTermsPlan& plan_;
  const View<T, 4> planes_;
  const ScoreTermsScratch<T> own_;
  Sequence sequence_;
  std::int64_t h_ = 0;
  bool has_keys_ = false;
};

/// Adds the terms of kRows keys to a register tile of scores.
/// A term of −∞ replaces the score. Added to a score that overflowed to +∞, it would give NaN.
template <std::int64_t kRows, std::int64_t kVecs, typename T>
HWY_INLINE void add_terms(hn::Vec<Tag<T>> (&x)[kRows][kVecs], const T* HWY_RESTRICT terms) {
  const Tag<T> d;
  const auto hidden = hn::Set(d, -std::numeric_limits<T>::infinity());
  HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
    HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) {
      const auto term = hn::Load(d, terms + m * kNR<T> + v * kLanes<T>);
      x[m][v] = hn::IfThenElse(hn::Eq(term, hidden), term, hn::Add(x[m][v], term));
    }
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_SCORE_TERMS_INL_
