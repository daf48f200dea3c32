// SPDX-License-Identifier: Apache-2.0
// Packs the queries of a key/value head and multiplies them by keys; included once per Highway target.
#if defined(HEADGATE_ATTENTION_PACKED_QUERIES_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_PACKED_QUERIES_INL_
#undef HEADGATE_ATTENTION_PACKED_QUERIES_INL_
#else
#define HEADGATE_ATTENTION_PACKED_QUERIES_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/decode/dot_scores-inl.hpp"
#include "library/attention/cpu/decode/stored_rows-inl.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// One query: row i of `rows`, which are the queries of one head.
struct QueryRow {
  HeadRows<const void> rows;
  std::int64_t i;
};

/// Packs queries as type T, and computes scores with products in T.
template <typename T>
class WideQueries {
 public:
  WideQueries(Workspace& ws, std::int64_t most_rows, std::int64_t D)
      : D_(D),
        query_(ws.take<T>("query", round_up(D, kLanes<T>))),
        buffer_(ws.take<T>("queries", most_rows, query_.shape[0])) {}

  /// Packs `rows` queries, multiplied by `factor`. row_of(r) returns the QueryRow of row r.
  template <class RowOf>
  void pack(std::int64_t rows, T factor, const RowOf& row_of) {
    packed_ = buffer_.range(0, 0, rows);
    pack_queries<kLanes<T>>(packed_, query_.data, [&](std::int64_t r, T* to) {
      const QueryRow query = row_of(r);
      load_row(to, query.rows, query.i, 0, D_);
      for (std::int64_t x = 0; x < D_; ++x) to[x] *= factor;
      std::fill(to + D_, to + query_.shape[0], T{0});
    });
  }

  /// Computes scores of the packed queries. Calls score_rows().
  template <std::int64_t s_stride, typename Key>
  void score(const View<T, 2>& scores, const StoredRows<Key>& keys, std::int64_t n) const {
    score_rows<s_stride>(scores, packed_, keys, n);
  }

 private:
  std::int64_t D_;
  View<T, 1> query_;            // scratch for one query, zero from element D on
  View<T, 2> buffer_, packed_;  // packed queries, in the layout of pack_queries()
};

/// Packs queries as bf16, and computes scores with bf16 dot products. Takes no memory if dot products are unavailable.
class DotQueries {
 public:
  DotQueries(Workspace& ws, const DotScores& dots, std::int64_t most_rows, std::int64_t D) : dots_(dots), D_(D) {
    if (!dots.available()) return;
    query_ = ws.take<BFloat16>("bf16 query", round_up(D, kHalfVector));
    buffer_ = ws.take<BFloat16>("bf16 queries", most_rows, kPairedKeys * query_.shape[0]);
  }

  /// Packs `rows` queries. Each is multiplied by the power of two that DotScores splits off ScoreRules::query_factor().
  /// row_of(r) returns the QueryRow of row r.
  template <class RowOf>
  void pack(std::int64_t rows, const RowOf& row_of) {
    packed_ = buffer_.range(0, 0, rows);
    pack_dot_queries(packed_, query_.data, [&](std::int64_t r, BFloat16* to) {
      const QueryRow query = row_of(r);
      dots_.load_query(to, query.rows, query.i);
      std::fill(to + D_, to + query_.shape[0], BFloat16{0});
    });
  }

#if HWY_TARGET == HWY_AVX3
  /// Computes scores of the packed queries. Calls dot_score_rows().
  template <std::int64_t s_stride>
  void score(const View<float, 2>& scores, const StoredRows<BFloat16>& keys, std::int64_t n) const {
    dot_score_rows<s_stride>(scores, packed_, keys, D_, n, dots_.factor_of_scores());
  }
#endif

 private:
  const DotScores& dots_;
  std::int64_t D_;
  View<BFloat16, 1> query_;            // scratch for one query, zero from element D on
  View<BFloat16, 2> buffer_, packed_;  // packed queries, in the layout of pack_dot_queries()
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_PACKED_QUERIES_INL_
