// SPDX-License-Identifier: Apache-2.0
// Computes the forward pass of small heads; included once per Highway target.
#if defined(HEADGATE_ATTENTION_SMALL_FORWARD_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_SMALL_FORWARD_INL_
#undef HEADGATE_ATTENTION_SMALL_FORWARD_INL_
#else
#define HEADGATE_ATTENTION_SMALL_FORWARD_INL_
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "library/attention/cpu/common/open_rows-inl.hpp"
#include "library/attention/cpu/common/output_rows-inl.hpp"
#include "library/attention/cpu/small/small_heads-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

using SmallForwardPlan = SmallHeadsPlan<ForwardProblem>;

/// Scratch buffers of one thread.
template <typename T>
struct SmallForwardScratch {
  using Element = T;

  SmallForwardScratch(Workspace& ws, const SmallForwardPlan& plan) {
    const ForwardProblem& p = plan.p;
    const std::int64_t keys_rows = plan.longest.S + kMR, Dv_padded = round_up(p.Dv, kLanes<T>);
    keys = ws.take<T>("keys", keys_rows, kRowStride);
    values = ws.take<T>("values", plan.longest.S, kRowStride);
    query_rows = ws.take<T>("q rows", kNR<T>, p.D);
    queries = ws.take<T>("queries", p.D, kNR<T>);
    scores = ws.take<T>("scores", keys_rows, kNR<T>);
    out = ws.take<T>("out", kMR, Dv_padded);
    maxima = ws.take<T>("maxima", kNR<T>);
    largest = ws.take<T>("largest scores", kNR<T>);
    sums = ws.take<T>("sums", kNR<T>);
    inverses = ws.take<T>("inverses", kNR<T>);
    rows = ws.take<std::int64_t>("rows", p.group, plan.longest.T);
    counts = ws.take<std::int64_t>("row counts", p.group);
    gate = ws.take<T>("gate", Dv_padded);
    gated = ws.take<T>("gated", Dv_padded);
    terms = ScoreTermsScratch<T>(ws, plan.terms, plan.longest.S);
  }

  View<T, 2> keys, values;            ///< dense copies of the head's k and v; v is not copied if it is read in place
  View<T, 2> query_rows;              ///< dense queries of a panel; unused if the kernel reads them in place
  View<T, 2> queries;                 ///< queries of a panel, transposed and multiplied by scale · log2(e)
  View<T, 2> scores;                  ///< scores of a panel, (keys, queries); later the exponentials of the scores
  View<T, 2> out;                     ///< outputs of one register tile of queries
  View<T, 1> maxima, sums, inverses;  ///< for each query of a panel: maximum times log2(e), sum, 1 / sum
  View<T, 1> largest;                 ///< for each query of a panel: largest score, excluding the sink
  View<T, 1> gate, gated;             ///< scratch for one query's gate logits and gated output
  View<std::int64_t, 2> rows;         ///< queries to compute for each query head of the group, in ascending order
  View<std::int64_t, 1> counts;       ///< number of queries to compute for each query head
  ScoreTermsScratch<T> terms;
};

template <typename T>
class SmallForwardWorker {
 public:
  using Plan = SmallForwardPlan;
  using Scratch = SmallForwardScratch<T>;

  SmallForwardWorker(const Plan& plan, const SmallHeadsBuffers<Plan, Scratch>& shared, int thread)
      : p_(plan.p),
        scratch_(place_buffers<Scratch>(shared.scratch.at(thread), plan)),
        terms_(p_, plan.terms, shared.terms, scratch_.terms),
        value_cols_(round_up(p_.Dv, kLanes<T>)) {}

  const ScoreTerms<T>& terms() const { return terms_; }

  void run_head(const HeadTask& head, const HeadTask& next) {
    sequence_ = head.part->sequence;
    const Visibility visibility(p_, sequence_);
    const std::int64_t panels = list_queries(head);
    // Starts with the last queries. Under a causal mask they take longest, so that threads finish at about the same
    // time.
    const std::int64_t piece = head.pieces - 1 - head.piece;
    const std::int64_t begin = panels * piece / head.pieces, end = panels * (piece + 1) / head.pieces;
    KeyRange seen{sequence_.S, 0};
    each_panel(begin, end, [&](std::int64_t /*g*/, const std::int64_t* rows, std::int64_t n) {
      const KeyRange keys = visibility.rows(rows[0], rows[n - 1] + 1);
      seen = {std::min(seen.begin, keys.begin), std::max(seen.end, keys.end)};
    });
    make_keys_dense(head.h, seen);
    prefetch_next_head(next);
    std::int64_t head_of_terms = -1;
    each_panel(begin, end, [&](std::int64_t g, const std::int64_t* rows, std::int64_t n) {
      const std::int64_t h = head.h * p_.group + g;
      if (h != head_of_terms) terms_.begin_head(sequence_, head_of_terms = h);
      const OutputRows<T> outputs(p_, sequence_, h, scratch_.gate, scratch_.gated);
      if (n > kLanes<T>) {
        run_panel<kNV>(visibility, outputs, h, rows, n);
      } else {
        run_panel<1>(visibility, outputs, h, rows, n);
      }
    });
    prefetch_queue_.prefetch_rest();
  }

 private:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();

  /// Lists the queries to compute for each query head of a key/value head. Returns their number of panels.
  /// With a gate threshold, lists only open queries, which the threshold does not skip.
  /// If the head is cut into pieces, the task of the first piece writes the outputs of all closed queries.
  std::int64_t list_queries(const HeadTask& head) const {
    std::int64_t panels = 0;
    for (std::int64_t g = 0; g < p_.group; ++g) {
      std::int64_t* const rows = scratch_.rows.at(g);
      std::int64_t& count = scratch_.counts(g);
      if (p_.gate_threshold > 0) {
        const std::int64_t h = head.h * p_.group + g;
        const OutputRows<T> outputs(p_, sequence_, h, scratch_.gate, scratch_.gated);
        const auto write_closed = [&](std::int64_t i) {
          if (head.piece == 0) outputs.write_closed(i);
        };
        count = 0;
        OpenRows<T>(p_, sequence_, h)
            .visit(
                0, sequence_.T, [&](std::int64_t i) { rows[count++] = i; }, write_closed);
      } else {
        count = sequence_.T;
        std::iota(rows, rows + count, std::int64_t{0});
      }
      panels += divide_up(count, kNR<T>);
    }
    return panels;
  }

  /// Calls visit(g, rows, n) for panels begin … end of a key/value head.
  /// `rows` lists the n queries of the panel, which belong to query head g of the group.
  template <class Visit>
  void each_panel(std::int64_t begin, std::int64_t end, const Visit& visit) const {
    std::int64_t panel = 0;
    for (std::int64_t g = 0; g < p_.group; ++g) {
      for (std::int64_t r = 0; r < scratch_.counts(g); r += kNR<T>, ++panel) {
        if (panel >= begin && panel < end) visit(g, scratch_.rows.at(g, r), std::min(kNR<T>, scratch_.counts(g) - r));
      }
    }
  }

  /// Provides the k and v rows of keys `seen` as dense rows. Copies k to scratch.
  /// Copies v unless it can be read in place.
  void make_keys_dense(std::int64_t h, const KeyRange& seen) {
    values_ = {scratch_.values.data, kRowStride};
    if (seen.empty()) return;
    copy_key_rows(scratch_.keys, p_, key_tensors(p_), sequence_, h, seen, seen.end + kRowUnit);
    const OperandRows<T> dense = dense_keys<T>(p_, value_tensors(p_), sequence_, h);
    if (dense.data != nullptr && dense.stride <= kRowStride) {
      values_ = dense;
      return;
    }
    copy_key_rows(scratch_.values, p_, value_tensors(p_), sequence_, h, seen, seen.end);
  }

  /// Schedules prefetches of the head that this thread will probably take next.
  /// The prefetches run during the products of the current head.
  void prefetch_next_head(const HeadTask& next) {
    prefetch_queue_ = {};
    if (next.part == nullptr || p_.page > 0) return;
    const Sequence& s = next.part->sequence;
    const std::int64_t h = next.h * p_.group;
    next_head_rows_ = {prefetch_rows(key_rows(p_.inputs.k, s, next.h)), prefetch_rows(key_rows(p_.inputs.v, s, next.h)),
                       prefetch_rows(query_rows(p_.inputs.q, s, h)), prefetch_rows(query_rows(p_.inputs.gate, s, h))};
    const std::int64_t steps = score_tiles<T>(sequence_.T, sequence_.S) * p_.D +
                               row_tiles_of(sequence_.T) * divide_up(p_.Dv, kNR<T>) * sequence_.S;
    prefetch_queue_ = {next_head_rows_.data(), std::ssize(next_head_rows_), steps / kStepsACall};
  }

  /// Transposes the n queries that `rows` lists, multiplies them by scale · log2(e), and stores them in scratch.
  template <std::int64_t kVecs>
  void transpose_queries(const HeadRows<const void>& q, const std::int64_t* rows, std::int64_t n) const {
    const auto transpose = [&](const auto& row_at) {
      transpose_panel<kVecs>(scratch_.queries.data, row_at, n, p_.D, static_cast<T>(p_.scale * kLog2e));
    };
    if (lie_dense<T>(q)) {
      const OperandRows<T> dense = rows_in_place<T>(q);
      return transpose([&](std::int64_t r) { return dense.at(rows[r]); });
    }
    if constexpr (std::is_same_v<T, float>) {
      if (lie_dense<T, BFloat16>(q)) {
        const OperandRows<BFloat16> halves = rows_in_place<BFloat16>(q);
        for (std::int64_t r = 0; r < n; ++r) widen_row(scratch_.query_rows.at(r), halves.at(rows[r]), p_.D);
        return transpose([&](std::int64_t r) { return scratch_.query_rows.at(r); });
      }
    }
    transpose([&](std::int64_t r) { return dense_row(q, rows[r], scratch_.query_rows.at(r)); });
  }

  /// Computes the outputs of the n queries of head h that `rows` lists.
  /// Requires that n is at most the number of lanes of kVecs vectors.
  template <std::int64_t kVecs>
  void run_panel(const Visibility& visibility, const OutputRows<T>& outputs, std::int64_t h, const std::int64_t* rows,
                 std::int64_t n) {
    constexpr std::int64_t kWidth = kVecs * kLanes<T>;
    transpose_queries<kVecs>(query_rows(p_.inputs.q, sequence_, h), rows, n);
    const KeyRange seen = visibility.rows(rows[0], rows[n - 1] + 1);
    const T* const terms = terms_.panel([rows](std::int64_t r) { return rows[r]; }, n);
    for_row_tiles<kVecs == 1 ? 4 : 3>(seen.begin, seen.end,
                                      [&]<std::int64_t kRows>(std::int64_t j, std::int64_t)
                                          HWY_ATTR { score_tile<kRows, kVecs>(j, terms); });
    hide_scores<kWidth>(visibility, seen, rows, n);
    start_maxima(h, rows, n);
    softmax<kVecs>(seen);
    for_row_tiles<3>(0, n, [&]<std::int64_t kRows>(std::int64_t r, std::int64_t count) HWY_ATTR {
      const KeyRange keys = visibility.rows(rows[r], rows[r + count - 1] + 1);
      multiply_row_tiles<kRows, LeftLayout<1, kWidth>, ProductWrite::overwrite>(
          scratch_.scores.at(0) + keys.begin * kWidth + r, values_.at(keys.begin), values_.stride,
          keys.end - keys.begin, scratch_.out.data, value_cols_, count, value_cols_, prefetch_queue_);
      outputs.write_tile(rows + r, count, scratch_.out, scratch_.inverses.at(r));
    });
    outputs.write_lse(rows, n, scratch_.maxima.data, scratch_.sums.data);
    if (outputs.has_max_logit()) outputs.write_max_logits(rows, n, scratch_.largest.data, scratch_.sums.data);
  }

  /// Computes the panel's scores of keys j … j + kRows, times log2(e).
  /// `terms` holds the biases and masks of the panel (ScoreTerms). It is null if there are none.
  template <std::int64_t kRows, std::int64_t kVecs>
  HWY_NOINLINE void score_tile(std::int64_t j, const T* terms) {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    hn::Vec<Tag<T>> x[kRows][kVecs];
    score_keys(x, scratch_.keys, j, scratch_.queries.data, p_.D, terms, prefetch_queue_);
    T* HWY_RESTRICT to = scratch_.scores.data + j * kVecs * kN;
    HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
      HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) hn::Store(x[m][v], d, to + (m * kVecs + v) * kN);
    }
  }

  /// Sets a score to −∞ if its query does not see its key.
  template <std::int64_t kWidth>
  void hide_scores(const Visibility& visibility, const KeyRange& seen, const std::int64_t* rows, std::int64_t n) const {
    const KeyRange first = visibility.row(rows[0]), last = visibility.row(rows[n - 1]);
    if (first.begin == last.begin && first.end == last.end) return;
    for (std::int64_t j = seen.begin; j < seen.end; ++j) {
      const KeyRange seeing = visibility.queries(j, j + 1, sequence_.T);
      T* row = scratch_.scores.at(0) + j * kWidth;
      const auto lane = [&](std::int64_t i) { return std::lower_bound(rows, rows + n, i) - rows; };
      std::fill(row, row + lane(seeing.begin), kHidden);
      std::fill(row + lane(seeing.end), row + n, kHidden);
    }
  }

  /// Stores the initial maxima of the n queries of head h that `rows` lists.
  /// The initial maximum is the sink's logit times log2(e), or −∞ without a sink.
  HWY_NOINLINE void start_maxima(std::int64_t h, const std::int64_t* rows, std::int64_t n) const {
    const auto sink_of = [&](std::int64_t r) { return in_log2_units<T>(p_.sink(sequence_, h, rows[r])); };
    std::fill_n(scratch_.maxima.data, scratch_.maxima.count(), p_.inputs.sinks.present() ? sink_of(0) : kHidden);
    for (std::int64_t r = 1; p_.sinks_by_query && r < n; ++r) scratch_.maxima(r) = sink_of(r);
  }

  /// Replaces the panel's scores by exp2(s − maximum). Stores the maxima, sums and inverse sums.
  /// start_maxima() must have stored the initial maxima.
  template <std::int64_t kVecs>
  void softmax(const KeyRange& seen) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    constexpr std::int64_t kWidth = kVecs * kN;
    const bool keeps_largest = p_.outputs.max_logit.present();
    T* HWY_RESTRICT scores = scratch_.scores.data;
    hn::Vec<Tag<T>> max[kVecs], sum[kVecs], shift[kVecs];
    HWY_UNROLL(2) for (std::int64_t v = 0; v < kVecs; ++v) max[v] = hn::Set(d, kHidden);
    for (std::int64_t x = seen.begin * kWidth; x < seen.end * kWidth; x += kWidth) {
      // With this operand order, MAXPS of x86 drops a NaN score.
      // The sum is NaN nevertheless, because exp2 propagates NaN.
      HWY_UNROLL(2) for (std::int64_t v = 0; v < kVecs; ++v) max[v] = hn::Max(hn::Load(d, scores + x + v * kN), max[v]);
    }
    HWY_UNROLL(2) for (std::int64_t v = 0; v < kVecs; ++v) {
      if (keeps_largest) hn::Store(max[v], d, scratch_.largest.at(v * kN));
      const auto first = hn::Load(d, scratch_.maxima.at(v * kN));
      max[v] = hn::Max(max[v], first);
      shift[v] = hn::IfThenZeroElse(hn::Eq(max[v], hn::Set(d, kHidden)), max[v]);
      sum[v] = exp2_fast(d, hn::Sub(first, shift[v]));
    }
    for (std::int64_t x = seen.begin * kWidth; x < seen.end * kWidth; x += kWidth) {
      HWY_UNROLL(2) for (std::int64_t v = 0; v < kVecs; ++v) {
        const auto e = exp2_fast(d, hn::Sub(hn::Load(d, scores + x + v * kN), shift[v]));
        hn::Store(e, d, scores + x + v * kN);
        sum[v] = hn::Add(sum[v], e);
      }
    }
    HWY_UNROLL(2) for (std::int64_t v = 0; v < kVecs; ++v) {
      const auto nothing = hn::Eq(sum[v], hn::Zero(d));
      hn::Store(max[v], d, scratch_.maxima.at(v * kN));
      hn::Store(sum[v], d, scratch_.sums.at(v * kN));
      hn::Store(hn::IfThenZeroElse(nothing, hn::Div(hn::Set(d, T{1}), sum[v])), d, scratch_.inverses.at(v * kN));
    }
  }

  const ForwardProblem& p_;
  const Scratch scratch_;
  ScoreTerms<T> terms_;
  const std::int64_t value_cols_;  // Dv, rounded up to vectors
  Sequence sequence_;
  OperandRows<T> values_;
  std::array<RowPrefetch, 4> next_head_rows_{};  // objects that prefetch the next head's rows
  PrefetchQueue prefetch_queue_;  // spreads the prefetches of next_head_rows_ over the products of the current head
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_SMALL_FORWARD_INL_
