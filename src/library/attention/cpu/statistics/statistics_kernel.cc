// SPDX-License-Identifier: Apache-2.0
// Computes statistics of attention weights from one product q kᵀ. Scores become exponents s − lse and are used while
// they are in cache. Tiles add to sums over queries in a fixed order.
//
// Scores are summed as in the forward pass, and lse is subtracted afterwards. A row with all its weight on one key
// therefore has P = 1, however large its scores. Exponents are at most 0, so that rounding of large scores keeps
// weights in [0, 1].

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include "library/attention/call_report.hpp"
#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/visibility.hpp"
#include "library/attention/cpu/kernels.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/team.hpp"
#include "library/core/turnstile.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/attention/cpu/statistics/statistics_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Per-target headers must follow foreach_target.h.
#include "library/attention/cpu/common/gate_rows-inl.hpp"
#include "library/attention/cpu/common/multiply-inl.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/cpu/common/shown_keys-inl.hpp"
#include "library/attention/cpu/common/strip-inl.hpp"
#include "library/attention/cpu/statistics/statistics_plan-inl.hpp"
#include "library/attention/cpu/statistics/top_keys-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

template <typename T>
HWY_INLINE double sum_of_lanes(const T* lanes) {
  const Tag<T> d;
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Load(d, lanes))));
}

/// Computes the tasks of one thread.
template <typename T>
class StatisticsWorker {
 public:
  using Plan = StatisticsPlan<T>;
  static constexpr std::int64_t kTile = Plan::kTile;
  static constexpr std::int64_t kBlock = Plan::kBlock;

  /// A strip of query rows while it visits one key block. Also holds sums over the block.
  struct BlockStrip : Strip<T> {
    const T* queries = nullptr;  // (D, kMR)
    T* mass = nullptr;           // sum of the weights of each key, from key 0 on; null if not requested
    KeyRange window;             // with key lists: columns of the scores whose keys are in the row's window
    bool is_first = false;       // true if top keys are requested and this is the first block that the rows visit
    HWY_ALIGN T entropies[kMR * kLanes<T>];  // Σ p log2 p of each row's weights p, one sum per lane
  };

  StatisticsWorker(const Plan& plan, const StatisticsBuffers<T>& shared, int thread)
      : plan_(plan),
        p_(plan.p),
        out_(plan.p.outputs),
        shared_(shared),
        scratch_(place_buffers<StatisticsScratch<T>>(shared.scratch.at(thread), plan)),
        top_(scratch_.top_scores, scratch_.top_keys, plan.top_keys),
        shown_(p_) {
    if (scratch_.ones.present()) std::fill_n(scratch_.ones.data, scratch_.ones.count(), T{1});
  }

  /// Packs one block of keys of key/value head h. Packs only keys for which some query needs a score.
  void pack_block(const PackedHeads& part, std::int64_t h, std::int64_t block) const {
    const Sequence& sequence = part.sequence;
    if (sequence.T == 0) return;
    const Visibility visibility(p_, sequence);
    const KeyRange seen =
        plan_.row_strips > 0 ? visibility.rows(0, sequence.T) : visited(visibility, sequence, 0, sequence.T);
    const auto [begin, end] = packed_keys(seen, block, kBlock, kNR<T>);
    if (begin >= end) return;
    const View<T, 3> keys = shared_.keys.range(0, part.panel_of(h) + begin / kNR<T>, divide_up(end - begin, kNR<T>));
    pack_transposed(keys, rows_of_keys(p_, sequence, h), begin, end - begin, scratch_.packing);
  }

  /// Packs the requested keys of key/value head h: key 0, if its weight is requested, and the selected keys.
  /// Keys after the end of the sequence become zeros.
  void pack_requested_keys(const PackedHeads& part, std::int64_t h) const {
    const KeyRows rows = rows_of_keys(p_, part.sequence, h);
    const View<T, 3> keys = packed_requested_keys(part, h);
    for (std::int64_t c = 0; c < plan_.requested_keys; c += kNR<T>) {
      const std::int64_t count = std::min(kNR<T>, plan_.requested_keys - c);
      const T* source[kNR<T>];
      for (std::int64_t x = 0; x < count; ++x) {
        const std::int64_t j = requested_key(c + x);
        source[x] = scratch_.packing.at(x);
        if (j < part.sequence.keys) {
          source[x] = dense_row(rows, j, scratch_.packing.at(x));
        } else {
          std::fill_n(scratch_.packing.at(x), p_.D, T{0});
        }
      }
      T* to = keys.at(c / kNR<T>);
      if (count < kNR<T>) std::fill_n(to, kNR<T> * p_.D, T{0});
      interleave_rows<kNR<T>>(to, source, count, p_.D, T{1});
    }
  }

  /// Computes one query tile of query head h. `turn` counts the tiles backwards from the last one.
  void run_tile(const PackedHeads& part, std::int64_t h, std::int64_t turn) {
    begin_head(part, h);
    begin_tile(part, turn);
    compute_tile(part, turn);
  }

  /// Computes one query tile of all query heads of key/value head h, which share the lists of keys.
  void run_listed_tile(const PackedHeads& part, std::int64_t h, std::int64_t turn) {
    begin_head(part, h * p_.group);
    begin_tile(part, turn);
    scratch_.listed->compute(sequence_, h, first_, count_, [&](std::int64_t i) { return visited(i, i + 1); });
    for (std::int64_t g = 0; g < p_.group; ++g) {
      begin_head(part, h * p_.group + g);
      compute_tile(part, turn);
    }
  }

  /// Writes the weights of up to kMR selected queries of query head h.
  /// The first is entry strip · kMR of selection.queries. Skips selected queries of other sequences.
  void run_rows(const PackedHeads& part, std::int64_t h, std::int64_t strip) {
    begin_head(part, h);
    const std::int64_t end = std::min((strip + 1) * kMR, p_.selection.queries.shape[3]);
    SelectedRows rows;
    for (std::int64_t r = strip * kMR; r < end; ++r) {
      const std::int64_t i = load_index(p_.selection.queries, r) - sequence_.q0;
      if (i >= 0 && i < sequence_.T) rows.add(i, r);
    }
    if (rows.count > 0) write_rows(rows);
  }

  /// Writes the results of query head h that are sums over queries.
  void write_sums(const PackedHeads& part, std::int64_t h) const {
    const Sequence& sequence = part.sequence;
    const std::int64_t head = packed_query_head(part, h);
    const std::int64_t at_first_key = -sequence.first_position;
    const bool all = at_first_key < 0 || at_first_key >= sequence.T || is_counted(sequence, at_first_key);
    const std::int64_t counted = sequence.T - (all ? 0 : 1);
    const double share = counted > 0 ? 1.0 / static_cast<double>(counted) : 0.0;
    for (std::size_t f = 0; f < kRowStatistics; ++f) {
      const TensorView& mean = mean_of_row_statistic(out_, f);
      const double sum = shared_.figure_sums(head, static_cast<std::int64_t>(f));
      if (mean.present()) store(mean, part.n, h, 0, 0, share * sum);
    }
    for (std::int64_t c = 0; out_.mean_key_weights.present() && c < plan_.selected_keys; ++c) {
      store(out_.mean_key_weights, part.n, h, 0, c, share * shared_.key_sums(head, c));
    }
    if (!out_.key_mass.present()) return;
    const HeadRows<void> mass = HeadRows<void>(out_.key_mass, sequence.kb, h).columns(sequence.k0, sequence.S);
    store_row(mass, head_mass(part, h).data, 0, 0, sequence.S);
  }

  void clear_sums(const PackedHeads& part, std::int64_t h) const {
    const auto clear = [](const auto& sums) { std::fill_n(sums.data, sums.count(), 0.0); };
    const std::int64_t head = packed_query_head(part, h);
    clear(shared_.figure_sums[head]);
    clear(shared_.key_sums[head]);
    if (shared_.mass.present()) clear(head_mass(part, h));
    shared_.turns(head) = 0;
  }

  // These members are called by visit_blocks.

  const Visibility& visibility() const { return visibility_; }
  std::int64_t query(std::int64_t r) const { return first_ + r; }
  KeyRange visited(std::int64_t i0, std::int64_t i1) const { return visited(visibility_, sequence_, i0, i1); }
  KeyRange columns(const BlockStrip& s) const {
    const KeyRange seen = visited(visibility_, sequence_, query(s.r), query(s.r + s.rows));
    return shown_.columns(seen, s.j0, kBlock, sequence_, h_, s.rows, [&](std::int64_t m) { return query(s.r + m); });
  }
  T* scores(std::int64_t m) const { return scratch_.scores.at(m); }

  void begin(BlockStrip& s) const {
    s.queries = scratch_.queries.at(s.r / kMR);
    s.mass = scratch_.mass.data;
    std::fill_n(s.entropies, kMR * kLanes<T>, T{0});
    s.is_first = top_.wanted() && !begun_[s.r / kMR];
    begun_[s.r / kMR] = true;
  }

  void panel(BlockStrip& s, std::int64_t c) const {
    if (c < s.at.c0 || c >= s.at.c1) return;
    multiply_panel(s, c);
    if (plan_.rules.any()) return;
    if (c < s.at.whole0 || c >= s.at.whole1) hide_keys(s, c, c + kNR<T>);
    add_panel(s, c);
  }

  void end(BlockStrip* strips, std::int64_t count) const {
    for (std::int64_t n = 0; n < count; ++n) {
      BlockStrip& s = strips[n];
      if (plan_.rules.any()) {
        apply_rules(s);
        hide_keys(s, s.at.c0, s.at.c1);
        for (std::int64_t c = s.at.c0; c < s.at.c1; c += kNR<T>) add_panel(s, c);
      }
      if (s.is_first) insert_first_block(s);
      if (plan_.exponentials) add_lanes(scratch_.entropies.at(s.r), s.entropies, s.rows * kLanes<T>);
    }
  }

 private:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();
  static constexpr T kZeroPower = TopKeys<T>::kZeroPower;

  /// At most kMR selected queries of one sequence, and the output row for each query's weights.
  struct SelectedRows {
    std::int64_t count = 0;
    std::array<std::int64_t, kMR> query, row;
    void add(std::int64_t i, std::int64_t r) {
      query[static_cast<std::size_t>(count)] = i;
      row[static_cast<std::size_t>(count++)] = r;
    }
  };

  void begin_head(const PackedHeads& part, std::int64_t h) {
    sequence_ = part.sequence;
    visibility_ = Visibility(p_, sequence_);
    h_ = h;
    if (plan_.packs_keys) head_keys_ = shared_.keys.range(0, part.panel_of(h / p_.group), part.panels);
    if (plan_.requested_keys > 0) head_requested_keys_ = packed_requested_keys(part, h / p_.group);
  }

  /// Selects the queries of a tile. `turn` counts tiles backwards, so that turn 0 is the last tile of the sequence.
  void begin_tile(const PackedHeads& part, std::int64_t turn) {
    first_ = (part.tiles - 1 - turn) * plan_.tile_rows;
    count_ = std::min(sequence_.T - first_, plan_.tile_rows);
  }

  /// Computes the current tile of the current query head.
  void compute_tile(const PackedHeads& part, std::int64_t turn) const {
    pack_strips(scratch_.queries, query_rows(p_.inputs.q, sequence_, h_), first_, count_, plan_.rules.query_factor(),
                scratch_.packing);
    const KeyRange seen = plan_.by_list ? KeyRange{} : visited(first_, first_ + count_);
    reset(seen);
    weigh_requested_keys();
    if (plan_.by_list) {
      for (std::int64_t r = 0; r < count_; ++r) visit_list(r);
    } else {
      visit_blocks(*this, seen, count_, plan_.rules.any() ? kMR : Plan::kBandRows);
    }
    finish_rows();
    if (plan_.sums) add_sums(part, turn, seen);
  }

  View<T, 3> packed_requested_keys(const PackedHeads& part, std::int64_t h) const {
    return shared_.requested_keys[part.first_head + h - part.h0];
  }

  /// Returns the index of query head h of `part` among all query heads of the batch.
  std::int64_t packed_query_head(const PackedHeads& part, std::int64_t h) const {
    return (part.first_head - part.h0) * p_.group + h;
  }

  /// Returns true if query i is counted in means over queries.
  /// Under a causal mask, the query at position 0 is not counted, because it sees only its own key.
  bool is_counted(const Sequence& sequence, std::int64_t i) const {
    return !p_.causal || sequence.first_position + i != 0;
  }

  /// Returns the sums over queries of each key's weights in query head h, (panels, kNR).
  View<double, 2> head_mass(const PackedHeads& part, std::int64_t h) const {
    const std::int64_t first = part.panel_of(h / p_.group) * p_.group + h % p_.group * part.panels;
    return shared_.mass.range(0, first, part.panels);
  }

  /// Returns the key in column c of the requested keys.
  std::int64_t requested_key(std::int64_t c) const {
    if (plan_.first && c == 0) return 0;
    return load_index(p_.selection.keys, plan_.first ? c - 1 : c);
  }

  /// Returns the range of keys within selection.window of any query in [i0, i1).
  KeyRange window(const Sequence& sequence, std::int64_t i0, std::int64_t i1) const {
    const std::int64_t reach = std::min(p_.selection.window, 3 * kMaxQueryOffset);
    const std::int64_t at = sequence.first_position;
    return {std::clamp<std::int64_t>(at + i0 - reach, 0, sequence.S),
            std::clamp<std::int64_t>(at + i1 - 1 + reach + 1, 0, sequence.S)};
  }

  /// Returns the range of keys for which queries [i0, i1) need scores.
  /// Ignores requested keys (key 0 and selection.keys), because their scores are computed separately.
  KeyRange visited(const Visibility& visibility, const Sequence& sequence, std::int64_t i0, std::int64_t i1) const {
    if (!plan_.scan && !plan_.window) return {};
    const KeyRange seen = visibility.rows(i0, i1);
    if (plan_.scan) return seen;
    const KeyRange inside = window(sequence, i0, i1);
    return {std::max(seen.begin, inside.begin), std::min(seen.end, inside.end)};
  }

  void reset(const KeyRange& seen) const {
    const HeadRows<const void> lse = query_rows(p_.lse, sequence_, h_);
    for (std::int64_t r = 0; r < count_; ++r) {
      load_row(&scratch_.lse(r), lse, first_ + r, 0, 1);
      scratch_.negated_lse(r) = negated_lse_of(scratch_.lse(r));
      scratch_.negated_lse_error(r) = negated_lse_error_of(scratch_.lse(r));
    }
    std::fill(scratch_.negated_lse.data + count_, scratch_.negated_lse.data + kTile, kHidden);
    std::fill_n(scratch_.maxima.data, scratch_.maxima.count(), kHidden);
    std::fill_n(scratch_.entropies.data, scratch_.entropies.count(), T{0});
    std::fill_n(scratch_.in_window.data, scratch_.in_window.count(), T{0});
    std::fill_n(scratch_.figure_sums.data, scratch_.figure_sums.count(), 0.0);
    std::fill_n(scratch_.key_sums.data, scratch_.key_sums.count(), 0.0);
    if (scratch_.mass.present() && !seen.empty()) {
      const std::int64_t begin = seen.begin / kNR<T> * kNR<T>;
      std::fill(scratch_.mass.data + begin, scratch_.mass.data + round_up(seen.end, kNR<T>), T{0});
    }
    std::fill_n(begun_, std::size(begun_), false);
    top_.reset();
  }

  /// Returns −lse · log2(e), rounded to T. Returns −∞ if lse is infinite, so that all weights of the row are 0.
  static T negated_lse_of(double lse) { return std::isinf(lse) ? kHidden : in_log2_units<T>(-lse); }
  /// Returns the rounding error of negated_lse_of(lse). The sum of both is about −lse · log2(e).
  /// Returns 0 if the error does not matter (split_lse()).
  T negated_lse_error_of(double lse) const { return -split_lse<T>(lse, p_.lse.dtype).rest; }
  /// Returns min(x, 0) for an exponent x = score − lse, because weights are at most 1. Returns NaN for NaN.
  static T exponent(T x) { return x > T{0} ? T{0} : x; }

  /// Adds n elements of `from` to `to`. Requires that n is a multiple of kLanes<T>.
  static void add_lanes(T* HWY_RESTRICT to, const T* HWY_RESTRICT from, std::int64_t n) {
    const Tag<T> d;
    for (std::int64_t x = 0; x < n; x += kLanes<T>)
      hn::Store(hn::Add(hn::Load(d, to + x), hn::Load(d, from + x)), d, to + x);
  }

  /// Computes the strip's scores for the panel at column c. Subtracts lse, unless there are score rules.
  void multiply_panel(const BlockStrip& s, std::int64_t c) const {
    const T* keys = head_keys_.at((s.j0 + c) / kNR<T>);
    if (plan_.rules.any()) {
      multiply_strip<typename Plan::ScoreLeft, ProductWrite::overwrite>(s.rows, kNV, s.queries, keys, p_.D,
                                                                        s.scores + c, Plan::kScoreStride);
    } else {
      multiply_strip<typename Plan::ScoreLeft, ProductWrite::overwrite_exponents>(
          s.rows, kNV, s.queries, keys, p_.D, s.scores + c, Plan::kScoreStride, scratch_.negated_lse.at(s.r));
    }
  }

  void apply_rules(const Strip<T>& s) const {
    for (std::int64_t m = 0; m < s.rows; ++m) {
      apply_rules(query(s.r + m), s.j0, s.at.c0, s.at.c1, s.r + m, s.scores + m * Plan::kScoreStride);
    }
  }

  /// Adds the scores of row r's listed keys to the row's statistics. Column c of the scores is key keys(r)[c].
  void visit_list(std::int64_t r) const {
    const ListedScores<T>& listed = *scratch_.listed;
    const std::int64_t count = listed.count(r);
    T* const row = listed.scores(r, h_ % p_.group);
    const T negated_lse = scratch_.negated_lse(r), negated_lse_error = scratch_.negated_lse_error(r);
    for (std::int64_t c = 0; c < count; ++c) row[c] = exponent(row[c] + negated_lse + negated_lse_error);
    std::fill(row + count, row + round_up(count, kNR<T>), kHidden);
    BlockStrip s;
    s.r = r;
    s.rows = 1;
    if (scratch_.mass.present()) {
      s.mass = scratch_.mass.at(r * plan_.list_stride);
      std::fill_n(s.mass, round_up(count, kNR<T>), T{0});
    }
    if (plan_.window) s.window = listed.columns(r, window(sequence_, first_ + r, first_ + r + 1));
    for (s.j0 = 0; s.j0 < count; s.j0 += kBlock) {
      s.scores = row + s.j0;
      s.at.c1 = std::min(kBlock, round_up(count - s.j0, kNR<T>));
      s.is_first = top_.wanted() && s.j0 == 0;
      std::fill_n(s.entropies, kLanes<T>, T{0});
      for (std::int64_t c = 0; c < s.at.c1; c += kNR<T>) add_panel(s, c);
      if (s.is_first) insert_first_block(s);
      if (plan_.exponentials) add_lanes(scratch_.entropies.at(r), s.entropies, kLanes<T>);
    }
    if (top_.wanted()) top_.renumber(r, listed.keys(r));
  }

  /// Applies the score rules to row r, and subtracts the row's lse. Only columns [c0, c1) that query i sees are
  /// changed.
  void apply_rules(std::int64_t i, std::int64_t j0, std::int64_t c0, std::int64_t c1, std::int64_t r, T* row) const {
    const KeyRange seen = visibility_.columns(i, j0, c0, c1);
    if (seen.empty()) return;
    plan_.rules.apply(row + seen.begin, nullptr, sequence_, h_, i, j0 + seen.begin, seen.end - seen.begin,
                      scratch_.rule_row.data);
    const T negated_lse = scratch_.negated_lse(r), negated_lse_error = scratch_.negated_lse_error(r);
    for (std::int64_t c = seen.begin; c < seen.end; ++c) row[c] = exponent(row[c] + negated_lse + negated_lse_error);
  }

  /// Sets the scores of hidden keys in columns [c0, c1) to −∞.
  void hide_keys(const Strip<T>& s, std::int64_t c0, std::int64_t c1) const {
    for (std::int64_t m = 0; m < s.rows; ++m) {
      const KeyRange seen = visibility_.columns(query(s.r + m), s.j0, c0, c1);
      T* row = s.scores + m * Plan::kScoreStride;
      std::fill(row + c0, row + seen.begin, kHidden);
      std::fill(row + seen.end, row + c1, kHidden);
    }
  }

  /// Adds the scores of the panel at column c to the statistics of the strip's rows.
  void add_panel(BlockStrip& s, std::int64_t c) const {
    if (plan_.exponentials) {
      add_scores<true>(s, c);
    } else if (plan_.scan) {
      add_scores<false>(s, c);
    }
    if (plan_.window) add_window(s, c);
  }

  template <bool kExponentials>
  HWY_NOINLINE void add_scores(BlockStrip& s, std::int64_t c) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    static_assert(kNV == 2);
    const T* HWY_RESTRICT row = s.scores + c;
    T* HWY_RESTRICT maxima = scratch_.maxima.at(s.r);
    auto mass0 = hn::Zero(d);
    auto mass1 = mass0;
    for (std::int64_t m = 0; m < s.rows; ++m, row += Plan::kScoreStride) {
      auto x0 = hn::Load(d, row);
      auto x1 = hn::Load(d, row + kN);
      const auto larger = hn::Max(x0, x1);
      hn::Store(hn::Max(larger, hn::Load(d, maxima + m * kN)), d, maxima + m * kN);
      if (top_.wanted() && !s.is_first) top_.insert_panel(s.r + m, row, s.j0 + c, larger);
      if constexpr (kExponentials) {
        // Replaces −∞ (hidden keys) by a finite exponent whose exp2 is 0, so that p · x is 0, not NaN.
        x0 = at_least(d, kZeroPower, x0);
        x1 = at_least(d, kZeroPower, x1);
        const auto p0 = exp2_fast(d, x0);
        const auto p1 = exp2_fast(d, x1);
        mass0 = hn::Add(mass0, p0);
        mass1 = hn::Add(mass1, p1);
        T* sum = s.entropies + m * kN;
        hn::Store(hn::MulAdd(p1, x1, hn::MulAdd(p0, x0, hn::Load(d, sum))), d, sum);
      }
    }
    if constexpr (kExponentials) {
      if (s.mass == nullptr) return;
      T* mass = s.mass + s.j0 + c;
      hn::Store(hn::Add(mass0, hn::Load(d, mass)), d, mass);
      hn::Store(hn::Add(mass1, hn::Load(d, mass + kN)), d, mass + kN);
    }
  }

  void insert_first_block(const Strip<T>& s) const {
    for (std::int64_t m = 0; m < s.rows; ++m) {
      top_.insert_first_block(s.r + m, s.scores + m * Plan::kScoreStride, s.j0, s.at, scratch_.maxima.at(s.r + m));
    }
  }

  void add_window(const BlockStrip& s, std::int64_t c) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    const std::int64_t j = s.j0 + c;
    for (std::int64_t m = 0; m < s.rows; ++m) {
      const std::int64_t i = first_ + s.r + m;
      const KeyRange inside = plan_.by_list ? s.window : window(sequence_, i, i + 1);
      const std::int64_t begin = std::clamp<std::int64_t>(inside.begin - j, 0, kNR<T>);
      const std::int64_t end = std::clamp<std::int64_t>(inside.end - j, 0, kNR<T>);
      if (begin >= end) continue;
      const T* row = s.scores + m * Plan::kScoreStride + c;
      T* sum = scratch_.in_window.at(s.r + m);
      auto total = hn::Load(d, sum);
      for (std::int64_t x = begin / kN * kN; x < end; x += kN) {
        const auto above = hn::FirstN(d, static_cast<std::size_t>(std::min(end - x, kN)));
        const auto below = hn::FirstN(d, static_cast<std::size_t>(std::max<std::int64_t>(begin - x, 0)));
        const auto p = exp2_fast(d, hn::Load(d, row + x));
        total = hn::Add(total, hn::IfThenElseZero(hn::AndNot(below, above), p));
      }
      hn::Store(total, d, sum);
    }
  }

  /// Computes the weights of the requested keys (key 0 and selection.keys) for the tile's queries.
  /// Writes the weights, if key_weights is requested, and adds them to sums.
  void weigh_requested_keys() const {
    const HeadRows<void> to = query_rows(out_.key_weights, sequence_, h_);
    for (std::int64_t c = 0; c < plan_.requested_keys; c += kNR<T>) {
      const std::int64_t count = std::min(kNR<T>, plan_.requested_keys - c);
      const std::int64_t lead = plan_.first && c == 0 ? 1 : 0;  // key 0, if requested, precedes the selected keys
      for (std::int64_t r = 0; r < count_; r += kMR) {
        const std::int64_t rows = std::min(kMR, count_ - r);
        multiply_strip<typename Plan::ScoreLeft, ProductWrite::overwrite>(rows, kNV, scratch_.queries.at(r / kMR),
                                                                          head_requested_keys_.at(c / kNR<T>), p_.D,
                                                                          scratch_.scores.data, Plan::kScoreStride);
        for (std::int64_t m = 0; m < rows; ++m) {
          T* row = scratch_.scores.at(m);
          score_requested_keys(r + m, c, count, row);
          exponentials_in_place(row, count);
          if (std::isnan(scratch_.lse(r + m))) std::fill_n(row, count, std::numeric_limits<T>::quiet_NaN());
          if (lead > 0) scratch_.first(r + m) = row[0];
          const std::int64_t selected = c + lead - (plan_.first ? 1 : 0);
          if (count == lead) continue;
          if (to.present()) store_row(to, row + lead, first_ + r + m, selected, count - lead);
          if (!is_counted(sequence_, first_ + r + m)) continue;
          for (std::int64_t x = lead; x < count; ++x)
            scratch_.key_sums(selected + x - lead) += static_cast<double>(row[x]);
        }
      }
    }
  }

  /// Turns the products of row r with requested keys c … c + count into scores − lse, in place. Hidden keys get −∞.
  void score_requested_keys(std::int64_t r, std::int64_t c, std::int64_t count, T* row) const {
    const std::int64_t i = first_ + r;
    const KeyRange seen = visibility_.row(i);
    for (std::int64_t x = 0; x < count; ++x) {
      const std::int64_t j = requested_key(c + x);
      const bool finds_in_list = plan_.by_list && plan_.scan;  // the list has all visible keys only if `scan` is true
      if (j < seen.begin || j >= seen.end || (finds_in_list && !scratch_.listed->contains(r, j))) {
        row[x] = kHidden;
        continue;
      }
      if (finds_in_list) {
        plan_.rules.apply_listed(row + x, nullptr, sequence_, h_, i, &j, 1, scratch_.rule_row.data);
      } else if (plan_.rules.any()) {
        plan_.rules.apply(row + x, nullptr, sequence_, h_, i, j, 1, scratch_.rule_row.data);
      }
      row[x] = exponent(row[x] + scratch_.negated_lse(r) + scratch_.negated_lse_error(r));
    }
  }

  /// Writes each query's statistics, such as entropy, and its top keys.
  /// Adds the statistics to sums for means over queries, unless is_counted() excludes the query.
  void finish_rows() const {
    for (std::int64_t r = 0; r < count_; ++r) {
      const std::array<double, kRowStatistics> figures = figures_of(r);
      const std::int64_t i = sequence_.q0 + first_ + r;
      const bool counted = is_counted(sequence_, first_ + r);
      for (std::size_t f = 0; f < kRowStatistics; ++f) {
        const TensorView& to = row_statistic(out_, f);
        if (to.present()) store(to, sequence_.b, h_, i, 0, figures[f]);
        if (counted) scratch_.figure_sums(static_cast<std::int64_t>(f)) += figures[f];
      }
      if (top_.wanted()) write_top(r);
    }
  }

  std::array<double, kRowStatistics> figures_of(std::int64_t r) const {
    const double lse = scratch_.lse(r);
    std::array<double, kRowStatistics> figures{};
    if (std::isnan(lse)) {
      for (std::size_t f = 0; f < kRowStatistics; ++f) figures[f] = lse;
    } else if (!std::isinf(lse)) {
      const Tag<T> d;
      if (plan_.scan) {
        const auto largest = hn::MaxOfLanes(d, hn::Load(d, scratch_.maxima.at(r)));
        figures[kRowMax] = static_cast<double>(hn::GetLane(exp2_fast(d, largest)));
      }
      if (plan_.exponentials) figures[kEntropy] = sink_entropy(r, lse) - kLn2 * sum_of_lanes(scratch_.entropies.at(r));
      if (plan_.first) figures[kFirst] = scratch_.first(r);
      if (p_.inputs.gate.present()) figures[kFirstGated] = scratch_.first(r) * mean_gate(first_ + r);
      if (plan_.window) figures[kWindowShare] = sum_of_lanes(scratch_.in_window.at(r));
    }
    return figures;
  }

  /// Returns −p log p for the weight p of row r's sink.
  double sink_entropy(std::int64_t r, double lse) const {
    if (!p_.inputs.sinks.present()) return 0.0;
    const double x = p_.sink(sequence_, h_, first_ + r) - lse;
    return x == -std::numeric_limits<double>::infinity() ? 0.0 : -std::exp(x) * x;
  }

  /// Returns the mean of the gate values g(z) over the features of query i.
  double mean_gate(std::int64_t i) const {
    const HeadRows<const void> logits = query_rows(p_.inputs.gate, sequence_, h_);
    const T* z = gate_logits(logits, i, logits.cols, scratch_.gate.data);
    gate_row_forward(scratch_.gated.data, scratch_.ones.data, z, scratch_.gated.shape[0], p_.gate_fn, GateOp::mul);
    double sum = 0.0;
    for (std::int64_t x = 0; x < logits.cols; ++x) sum += static_cast<double>(scratch_.gated(x));
    return sum / static_cast<double>(logits.cols);
  }

  void write_top(std::int64_t r) const {
    const std::int64_t i = first_ + r;
    if (out_.topk_index.present()) top_.write_keys(query_rows(out_.topk_index, sequence_, h_), i, r);
    if (out_.topk_weight.present()) {
      top_.write_weights(query_rows(out_.topk_weight, sequence_, h_), i, r, std::isnan(scratch_.lse(r)));
    }
  }

  /// Adds the tile's sums to the sums of its query head.
  /// Waits for tiles with earlier turns, so that the order of summation is fixed.
  void add_sums(const PackedHeads& part, std::int64_t turn, const KeyRange& seen) const {
    const std::int64_t head = packed_query_head(part, h_);
    const Turnstile turnstile(shared_.turns(head));
    turnstile.enter(turn);
    for (std::int64_t f = 0; f < scratch_.figure_sums.shape[0]; ++f)
      shared_.figure_sums(head, f) += scratch_.figure_sums(f);
    for (std::int64_t c = 0; c < plan_.selected_keys; ++c) shared_.key_sums(head, c) += scratch_.key_sums(c);
    if (scratch_.mass.present()) {
      double* HWY_RESTRICT mass = head_mass(part, h_).data;
      const T* HWY_RESTRICT own = scratch_.mass.data;
      for (std::int64_t j = seen.begin; j < seen.end; ++j) mass[j] += static_cast<double>(own[j]);
      for (std::int64_t r = 0; plan_.by_list && r < count_; ++r, own += plan_.list_stride) {
        const std::int64_t* const keys = scratch_.listed->keys(r);
        for (std::int64_t c = 0; c < scratch_.listed->count(r); ++c) mass[keys[c]] += static_cast<double>(own[c]);
      }
    }
    turnstile.leave(turn);
  }

  void write_rows(const SelectedRows& rows) const {
    const HeadRows<const void> queries = query_rows(p_.inputs.q, sequence_, h_);
    const HeadRows<const void> lse = query_rows(p_.lse, sequence_, h_);
    const HeadRows<void> whole(out_.rows, sequence_.b, h_);
    const T* source[kMR];
    T* negated_lse = scratch_.negated_lse.data;
    std::fill_n(negated_lse, kMR, kHidden);
    KeyRange seen{sequence_.S, 0};
    for (std::int64_t m = 0; m < rows.count; ++m) {
      const std::int64_t i = rows.query[static_cast<std::size_t>(m)];
      source[m] = dense_row(queries, i, scratch_.packing.at(m));
      double row_lse = 0.0;
      load_row(&row_lse, lse, i, 0, 1);
      negated_lse[m] = negated_lse_of(row_lse);
      scratch_.negated_lse_error(m) = negated_lse_error_of(row_lse);
      const KeyRange keys = visibility_.row(i);
      if (!keys.empty()) seen = {std::min(seen.begin, keys.begin), std::max(seen.end, keys.end)};
      clear_columns(whole, rows.row[static_cast<std::size_t>(m)], 0, sequence_.k0);
      clear_columns(whole, rows.row[static_cast<std::size_t>(m)], sequence_.k0 + sequence_.S, whole.cols);
    }
    T* strip = scratch_.queries.data;
    std::fill_n(strip, kMR * p_.D, T{0});
    interleave_rows<kMR>(strip, source, rows.count, p_.D, plan_.rules.query_factor());
    const HeadRows<void> to = whole.columns(sequence_.k0, sequence_.S);
    for (std::int64_t j0 = 0; j0 < sequence_.S; j0 += kBlock) {
      const std::int64_t width = std::min(kBlock, sequence_.S - j0);
      const std::int64_t c0 = std::clamp<std::int64_t>(seen.begin - j0, 0, kBlock) / kNR<T> * kNR<T>;
      const std::int64_t c1 = std::max(c0, round_up(std::clamp<std::int64_t>(seen.end - j0, 0, kBlock), kNR<T>));
      BlockStrip s;
      s.rows = rows.count;
      s.j0 = j0;
      s.scores = scores(0);
      s.queries = strip;
      for (std::int64_t c = c0; c < c1; c += kNR<T>) multiply_panel(s, c);
      for (std::int64_t m = 0; m < rows.count; ++m) {
        const std::int64_t i = rows.query[static_cast<std::size_t>(m)];
        T* row = scratch_.scores.at(m);
        if (plan_.rules.any()) apply_rules(i, j0, c0, c1, m, row);
        const KeyRange own = visibility_.columns(i, j0, c0, c1);
        exponentials_in_place(row + c0, c1 - c0);
        std::fill(row, row + own.begin, T{0});
        std::fill(row + own.end, row + std::max(width, own.end), T{0});
        store_row(to, row, rows.row[static_cast<std::size_t>(m)], j0, width);
      }
    }
  }

  /// Writes zeros to columns [begin, end) of a row.
  void clear_columns(const HeadRows<void>& to, std::int64_t row, std::int64_t begin, std::int64_t end) const {
    if (begin >= end) return;
    std::fill_n(scratch_.scores.data, std::min(kBlock, end - begin), T{0});
    for (std::int64_t j = begin; j < end; j += kBlock) {
      store_row(to, scratch_.scores.data, row, j, std::min(kBlock, end - j));
    }
  }

  const Plan& plan_;
  const StatisticsProblem& p_;
  const AttentionStatistics& out_;
  const StatisticsBuffers<T>& shared_;
  StatisticsScratch<T> scratch_;
  const TopKeys<T> top_;
  const ShownKeys shown_;
  Sequence sequence_;
  Visibility visibility_;
  std::int64_t h_ = 0, first_ = 0, count_ = 0;
  View<T, 3> head_keys_, head_requested_keys_;  // packed keys of the current head, (panels, D, kNR)
  mutable bool begun_[kTile / kMR] = {};  // for each strip of queries: true once the strip has visited a key block
};

/// Performs one thread's work on a batch of heads, in four stages:
///   1. packs keys;
///   2. computes the weights of selected queries;
///   3. computes query tiles;
///   4. writes sums over queries.
template <typename T>
void compute_batch(const Team& team, StatisticsWorker<T>& worker, const StatisticsPlan<T>& plan,
                   const PackedHeads* parts, const HeadCounts& batch, std::atomic<std::int64_t>& next_tile,
                   Cancellation& cancellation) {
  const StatisticsProblem& p = plan.p;
  // Calls visit(part, h) for query head number n of the batch.
  const auto with_query_head = [&](std::int64_t n, const auto& visit) {
    const HeadTask head = head_task_of(parts, batch, n / p.group);
    visit(*head.part, head.h * p.group + n % p.group);
  };
  const std::int64_t query_heads = batch.heads * p.group;
  team.in_parts_nowait(query_heads, [&](std::int64_t n) {
    with_query_head(n, [&](const PackedHeads& part, std::int64_t h) { worker.clear_sums(part, h); });
  });
  if (plan.packs_keys) {
    team.in_turn_nowait(batch.blocks, [&](std::int64_t n) {
      if (cancellation.requested()) return;
      const HeadTask task = block_task_of(parts, batch, n);
      worker.pack_block(*task.part, task.h, task.piece);
    });
  }
  team.in_turn(plan.requested_keys > 0 ? batch.heads : 0, [&](std::int64_t n) {
    const HeadTask head = head_task_of(parts, batch, n);
    worker.pack_requested_keys(*head.part, head.h);
  });
  team.in_turn_nowait(query_heads * plan.row_strips, [&](std::int64_t n) {
    if (cancellation.requested()) return;
    with_query_head(n / plan.row_strips,
                    [&](const PackedHeads& part, std::int64_t h) { worker.run_rows(part, h, n % plan.row_strips); });
  });
  // Starts the tiles of each head in the order of their turns, as Turnstile requires. Under a causal mask, the first
  // turns take longest.
  for_each_in_order(next_tile, plan.by_tile ? batch.tiles : 0, cancellation, [&](std::int64_t n) {
    const HeadTask task = tile_task_of(parts, batch, p.group, n);
    if (!plan.by_list) return worker.run_tile(*task.part, task.h * p.group + task.g, task.piece);
    if (task.g == 0) worker.run_listed_tile(*task.part, task.h, task.piece);
  });
  team.wait();
  if (plan.sums) {
    team.in_parts(query_heads, [&](std::int64_t n) {
      with_query_head(n, [&](const PackedHeads& part, std::int64_t h) { worker.write_sums(part, h); });
    });
  }
}

template <typename T>
void statistics_typed(const StatisticsProblem& p) {
  const StatisticsPlan<T> plan(p, WorkList(p));
  if (plan.buffer_counts.parts == 0) return;
  const Placed<StatisticsBuffers<T>> placed(plan);
  if (p.report != nullptr) p.report->memory_bytes = placed.bytes();
  const StatisticsBuffers<T>& shared = *placed;
  PackedHeads* const parts = shared.parts.data;
  HeadBatch batch(plan, parts);
  Cancellation cancellation(p.context);
  std::atomic<std::int64_t> next_tile{0};
  run_team(plan.threads, [&](const Team& team) {
    StatisticsWorker<T> worker(plan, shared, team.thread());
    for_each_batch(
        team, batch, [&] { compute_batch(team, worker, plan, parts, batch, next_tile, cancellation); },
        [&] {
          batch.next_unless(cancellation);
          next_tile.store(0, std::memory_order_relaxed);
        });
  });
  cancellation.throw_if_seen();
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(statistics_typed);

void cpu_statistics(const StatisticsProblem& problem) {
  if (problem.report != nullptr) {
    problem.report->backend = "cpu";
    problem.report->groups.push_back({"statistics", problem.sequences(), ""});
  }
  HEADGATE_FOR_DTYPE(statistics_typed, problem.inputs.q.dtype, problem.context.target)(problem);
}

}  // namespace headgate
#endif  // HWY_ONCE
