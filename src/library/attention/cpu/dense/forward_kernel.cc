// SPDX-License-Identifier: Apache-2.0
// Computes the forward pass of gated attention. A query tile visits the key blocks that its rows see. Strips of kMR
// rows compute scores, online softmax and the product with v in cache. K and V are packed once per key/value head.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/strip.hpp"
#include "library/attention/cpu/common/visibility.hpp"
#include "library/attention/cpu/kernels.hpp"
#include "library/core/dispatch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/attention/cpu/dense/forward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Per-target headers must follow foreach_target.h.
#include "library/attention/cpu/common/dropout-inl.hpp"
#include "library/attention/cpu/common/forward_run-inl.hpp"
#include "library/attention/cpu/common/multiply-inl.hpp"
#include "library/attention/cpu/common/online_softmax-inl.hpp"
#include "library/attention/cpu/common/open_rows-inl.hpp"
#include "library/attention/cpu/common/output_rows-inl.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/cpu/dense/forward_plan-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Detects exponents that are too large for exp2. On targets where exp2_fast saturates, such an exponent makes the sum
/// of exponentials ∞, and this class does nothing. On the others exponentials could wrap around, and it tracks the
/// largest exponent.
template <typename T>
class LargestExponent {
 public:
  /// Starts from the largest exponents by lane in `seen`; store() writes the updated ones back.
  explicit LargestExponent(T* HWY_RESTRICT seen) : seen_(seen) {
    if constexpr (!kExp2Saturates<T>) max0_ = max1_ = hn::Load(Tag<T>(), seen);
  }
  HWY_INLINE void see(hn::Vec<Tag<T>> x0, hn::Vec<Tag<T>> x1) {
    if constexpr (!kExp2Saturates<T>) {
      max0_ = hn::Max(x0, max0_);  // this operand order makes MAXPS drop NaN and keep the maximum of other rows
      max1_ = hn::Max(x1, max1_);
    }
  }
  HWY_INLINE void store() const {
    if constexpr (!kExp2Saturates<T>) hn::Store(hn::Max(max0_, max1_), Tag<T>(), seen_);
  }

 private:
  T* seen_;
  hn::Vec<Tag<T>> max0_, max1_;
};

/// Computes p = exp2(start + ab) in registers for a tile of kRows rows and one panel, and writes p once. Adds p to sums
/// (kRows, lanes) and the exponents to the maxima in largest (lanes). a has Layout, b is dense as in multiply_add, p
/// has row stride ldp.
template <std::int64_t kRows, class Layout, typename T>
HWY_NOINLINE void multiply_exponentials(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, std::int64_t K,
                                        T* HWY_RESTRICT p, std::int64_t ldp, const T* HWY_RESTRICT start,
                                        T* HWY_RESTRICT sums, T* HWY_RESTRICT largest) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  static_assert(kNV == 2);
  hn::Vec<Tag<T>> x[kRows][kNV];
  HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) x[m][0] = x[m][1] = hn::Set(d, start[m]);
  multiply_add<Layout, kRows, kNV>(x, a, b, K);
  LargestExponent<T> exponents(largest);
  HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
    exponents.see(x[m][0], x[m][1]);
    const auto p0 = exp2_fast(d, x[m][0]);
    const auto p1 = exp2_fast(d, x[m][1]);
    hn::Store(p0, d, p + m * ldp);
    hn::Store(p1, d, p + m * ldp + kN);
    hn::Store(hn::Add(hn::Load(d, sums + m * kN), hn::Add(p0, p1)), d, sums + m * kN);
  }
  exponents.store();
}

/// Computes one thread's share of the forward pass.
template <typename T>
class ForwardWorker {
 public:
  using Plan = ForwardPlan<T>;
  static constexpr std::int64_t kBlock = Plan::kBlock;

  ForwardWorker(const Plan& plan, const ForwardBuffers<T>& shared, int thread)
      : plan_(plan),
        p_(plan.p),
        shared_(shared),
        thread_(thread),
        scratch_(place_buffers<ForwardScratch<T>>(shared.scratch.at(thread), plan)),
        softmax_(scratch_.maxima, scratch_.sums, scratch_.out) {}

  /// Lists the open rows of query tile `tile` of head h, which is tile `number` of the batch. Writes the outputs of the
  /// closed rows.
  void select_rows(const PackedHeads& part, std::int64_t h, std::int64_t tile, std::int64_t number) const {
    const Sequence& sequence = part.sequence;
    const std::int64_t first = tile * plan_.tile_rows;
    const OutputRows<T> outputs(p_, sequence, h, scratch_.gate, scratch_.gated);
    std::int64_t count = 0;
    OpenRows<T>(p_, sequence, h)
        .visit(
            first, std::min(plan_.tile_rows, sequence.T - first),
            [&](std::int64_t i) { shared_.open_rows(number, count++) = i; },
            [&](std::int64_t i) { outputs.write_closed(i); });
    shared_.open_counts(number) = count;
  }

  /// Packs keys and values of a block of key/value head h, in the range that packed_keys returns.
  void pack_block(const PackedHeads& part, std::int64_t h, std::int64_t block) const {
    const Sequence& sequence = part.sequence;
    const RowRange rows = rows_of_group(part, h);
    if (rows.empty()) return;
    const KeyRange seen = Visibility(p_, sequence).rows(rows.begin, rows.end);
    const auto [begin, end] = packed_keys(seen, block, kBlock, kNR<T>);
    if (begin >= end) return;
    const View<T, 3> keys = head_keys(part, h).range(0, begin / kNR<T>, divide_up(end - begin, kNR<T>));
    pack_transposed(keys, rows_of_keys(p_, sequence, h), begin, end - begin, scratch_.packing);
    pack_panels(values(head_values(part, h), block), begin - block * kBlock, rows_of_values(p_, sequence, h), begin,
                end - begin, scratch_.packing);
  }

  /// Computes one whole key/value head; the thread packs the head's keys and values for its own use. `next` is the head
  /// that the thread may take next.
  void run_head(const HeadTask& head, const HeadTask& next) {
    const PackedHeads own = head.alone(plan_.largest, p_.group, thread_);
    for (std::int64_t block = 0; block < own.blocks; ++block) pack_block(own, head.h, block);
    for (std::int64_t g = 0; g < p_.group; ++g) {
      if (plan_.prefetches_heads) prefetch_next_head(own, g + 1 < p_.group ? head : next, (g + 1) % p_.group);
      for (std::int64_t tile = 0; tile < own.tiles; ++tile) {
        if (plan_.prefetches_tiles) prefetch_for_tile(own.sequence, head.h * p_.group + g, tile);
        run_tile(own, head.h * p_.group + g, tile);
      }
    }
  }

  /// Computes query tile `tile` of query head h from the packed key/value head of its group. Under a gate threshold,
  /// tiles consist of the head's open rows.
  void run_tile(const PackedHeads& part, std::int64_t h, std::int64_t tile) {
    sequence_ = part.sequence;
    h_ = h;
    count_ = gather_rows(part, tile);
    if (count_ == 0) return;
    head_keys_ = head_keys(part, h / p_.group);
    head_values_ = head_values(part, h / p_.group);
    pack_strips(scratch_.queries, query_rows(p_.inputs.q, sequence_, h), scratch_.rows, count_,
                plan_.rules.query_factor(), scratch_.packing);
    // A sink's logit is the initial maximum of the softmax.
    softmax_.start(round_up(count_, kMR), p_.inputs.sinks.present() ? in_log2_units<T>(p_.sink(h_)) : kHidden);
    const Visibility visibility(p_, sequence_);
    const KeyRange seen = visibility.rows(scratch_.rows(0), scratch_.rows(count_ - 1) + 1);
    // Score rules read and write the scores twice more: a band of one strip keeps the scores in L1.
    const std::int64_t band = plan_.rules.any() ? kMR : Plan::kBandRows;
    for (std::int64_t j0 = seen.begin / kBlock * kBlock; j0 < seen.end; j0 += kBlock) {
      for (std::int64_t r = 0; r < count_; r += band) visit(visibility, j0, r, std::min(r + band, count_));
    }
    finish_rows();
    if (p_.outputs.weights.present()) write_weights(visibility);
  }

 private:
  static constexpr T kHidden = OnlineSoftmax<T>::kHidden;

  /// Schedules prefetches for query head g of the group of `next`, to run during the products of one query head of
  /// `own`.
  void prefetch_next_head(const PackedHeads& own, const HeadTask& next, std::int64_t g) {
    ahead_ = {};
    if (next.part == nullptr) return;
    const Sequence& s = next.part->sequence;
    const std::int64_t h = next.h * p_.group + g;
    const std::int64_t steps = divide_up(own.sequence.T, kMR) * (own.panels + divide_up(plan_.Dv_padded, kNR<T>));
    ahead_[0] = prefetch_rows(query_rows(p_.inputs.q, s, h), steps);
    ahead_[1] = prefetch_rows(query_rows(p_.inputs.gate, s, h), steps);
    if (g != 0) return;
    ahead_[2] = prefetch_rows(key_rows(p_.inputs.k, s, next.h), steps);
    ahead_[3] = prefetch_rows(key_rows(p_.inputs.v, s, next.h), steps);
  }
  /// Schedules prefetches of the gate rows of tile `tile` and of the next tile's queries, to run during the tile's
  /// products.
  void prefetch_for_tile(const Sequence& s, std::int64_t h, std::int64_t tile) {
    const auto rows_from = [&](std::int64_t i) { return std::clamp<std::int64_t>(s.T - i, 0, plan_.tile_rows); };
    const std::int64_t first = tile * plan_.tile_rows;
    const std::int64_t rows = rows_from(first);
    const KeyRange seen = Visibility(p_, s).rows(first, first + rows);
    const std::int64_t steps = divide_up(rows, kMR) * divide_up(seen.end - seen.begin, kNR<T>);
    ahead_ = {};
    const HeadRows<const void> gate = query_rows(p_.inputs.gate, s, h);
    if (gate.present()) ahead_[0] = prefetch_rows(gate.range(first, rows), steps);
    const std::int64_t next = first + rows;
    if (next < s.T) ahead_[1] = prefetch_rows(query_rows(p_.inputs.q, s, h).range(next, rows_from(next)), steps);
  }
  void step_prefetches() const {
    if (!plan_.prefetches_heads && !plan_.prefetches_tiles) return;
    for (RowPrefetch& rows : ahead_) rows.step();
  }

  /// Queries [begin, end).
  struct RowRange {
    std::int64_t begin = 0, end = 0;
    bool empty() const { return begin >= end; }
  };

  /// Returns the range from the first to the last open row of the query heads that share key/value head h.
  RowRange rows_of_group(const PackedHeads& part, std::int64_t h) const {
    if (!plan_.selects()) return {0, part.sequence.T};
    RowRange rows{part.sequence.T, 0};
    const std::int64_t first = part.tile_of(h, p_.group, 0);
    for (std::int64_t n = first; n < first + p_.group * part.tiles; ++n) {
      const std::int64_t count = shared_.open_counts(n);
      if (count == 0) continue;
      const std::int64_t* open = shared_.open_rows.at(n);
      rows = {std::min(rows.begin, open[0]), std::max(rows.end, open[count - 1] + 1)};
    }
    return rows;
  }

  /// Stores the queries of a tile of the head in scratch_.rows and returns their number.
  std::int64_t gather_rows(const PackedHeads& part, std::int64_t tile) const {
    std::int64_t count = 0;
    if (!plan_.selects()) {
      const std::int64_t first = tile * plan_.tile_rows;
      for (std::int64_t i = first; i < std::min(first + plan_.tile_rows, sequence_.T); ++i) scratch_.rows(count++) = i;
      return count;
    }
    // Balances the tiles' sizes: a last tile of few rows would read all keys for these rows alone.
    const std::int64_t first = part.tile_of(h_ / p_.group, p_.group, h_ % p_.group);
    const std::int64_t* counts = shared_.open_counts.at(first);
    const std::int64_t all = std::accumulate(counts, counts + part.tiles, std::int64_t{0});
    if (all == 0) return 0;
    const std::int64_t size = round_up(divide_up(all, divide_up(all, plan_.tile_rows)), kMR);
    std::int64_t skipped = tile * size;
    for (std::int64_t n = 0; n < part.tiles && count < size; ++n) {
      const std::int64_t skip = std::min(skipped, counts[n]);
      const std::int64_t taken = std::min(counts[n] - skip, size - count);
      std::copy_n(shared_.open_rows.at(first + n) + skip, taken, scratch_.rows.data + count);
      skipped -= skip;
      count += taken;
    }
    return count;
  }

  View<T, 3> head_keys(const PackedHeads& part, std::int64_t h) const {
    return shared_.keys.range(0, part.panel_of(h), part.panels);
  }
  View<T, 2> head_values(const PackedHeads& part, std::int64_t h) const {
    return shared_.values.range(0, part.panel_of(h), part.panels);
  }
  /// Returns the packed values of a block of the head.
  ColumnPanels<T> values(const View<T, 2>& head, std::int64_t block) const {
    const std::int64_t panel = block * (kBlock / kNR<T>);
    return {head.at(panel), std::min(kBlock, (head.shape[0] - panel) * kNR<T>), plan_.Dv_padded};
  }

  /// Query rows r … r + rows of the tile, at most kMR, paired with the key block that begins at key j0.
  struct Strip {
    std::int64_t r = 0, rows = 0, j0 = 0;
    const T* queries = nullptr;  // (D, kMR)
    View<T, 3> keys;             // the head's panels from the block's first one on
    T* scores = nullptr;         // (kMR, kScoreStride)
    StripColumns at;             // columns of the block that the rows visit
    bool near_maxima = false;    // true if the strip keeps its running maxima (common case)
    std::int64_t done = 0;       // columns below `done` already hold exponentials
    T start[kMR];  // minus the running maxima; −∞ beyond `rows`, so that padding changes no sum or maximum
    HWY_ALIGN T largest[kLanes<T>];     // largest exponents of the block, by lane
    HWY_ALIGN T sums[kMR * kLanes<T>];  // sums of the block's exponentials, by lane
  };

  /// Sets `s` to the strip from row r of the band of rows [band, end), paired with the key block at j0.
  void place_strip(Strip& s, const Visibility& visibility, std::int64_t j0, std::int64_t r, std::int64_t band,
                   std::int64_t end) const {
    s.r = r;
    s.rows = std::min(kMR, end - r);
    s.j0 = j0;
    s.queries = scratch_.queries.at(r / kMR);
    s.keys = head_keys_.range(0, j0 / kNR<T>, head_keys_.shape[0] - j0 / kNR<T>);
    s.scores = scratch_.scores.at(r - band);
    const std::int64_t first = scratch_.rows(r), last = scratch_.rows(r + s.rows - 1);
    s.at = strip_columns(visibility, visibility.rows(first, last + 1), first, last, j0, kBlock, kNR<T>);
  }

  /// Computes columns [c0, c1) of the strip's scores q kᵀ. With overwrite_from, adds start[m] to row m.
  template <ProductWrite kWrite>
  void products(const Strip& s, std::int64_t c0, std::int64_t c1) const {
    for (std::int64_t c = c0; c < c1; c += kNR<T>) {
      multiply_strip<typename Plan::ScoreLeft, kWrite>(s.rows, kNV, s.queries, s.keys.at(c / kNR<T>), p_.D,
                                                       s.scores + c, Plan::kScoreStride, s.start);
    }
  }

  /// Applies the score rules to the visible keys of each row in columns [c0, c1), and sets hidden keys to −∞.
  void rule_and_hide(const Visibility& visibility, const Strip& s, std::int64_t c0, std::int64_t c1) const {
    for (std::int64_t m = 0; m < s.rows; ++m) {
      plan_.rules.apply_and_hide(s.scores + m * Plan::kScoreStride, visibility, sequence_, h_, scratch_.rows(s.r + m),
                                 s.j0, c0, c1, scratch_.rule_row.data);
    }
  }

  /// Processes rows [r, end) of the tile against one key block: scores, online softmax, product with v. The strips take
  /// turns at each panel of K and V, so that all strips but the first find the panel in L1.
  void visit(const Visibility& visibility, std::int64_t j0, std::int64_t r, std::int64_t end) const {
    Strip strips[Plan::kBandRows / kMR];
    std::int64_t count = 0;
    std::int64_t c0 = kBlock;
    std::int64_t c1 = 0;
    for (std::int64_t first = r; first < end; first += kMR) {
      Strip& s = strips[count];
      place_strip(s, visibility, j0, first, r, end);
      if (s.at.empty()) continue;
      begin_block(visibility, s);
      c0 = std::min(c0, s.at.c0);
      c1 = std::max(c1, s.at.c1);
      ++count;
    }
    for (std::int64_t c = c0; c < c1; c += kNR<T>) {
      for (std::int64_t n = 0; n < count; ++n) {
        step_prefetches();
        exponentials_near_maxima(visibility, strips[n], c);
      }
    }
    for (std::int64_t n = 0; n < count; ++n) end_block(visibility, strips[n]);
    if (plan_.dropout.any()) {
      for (std::int64_t n = 0; n < count; ++n) drop(strips[n], strips[n].at.begin, strips[n].at.end);
    }
    const ColumnPanels<T> v = values(head_values_, j0 / kBlock);
    for (std::int64_t x = 0; x < v.cols; x += kNR<T>) {
      for (std::int64_t n = 0; n < count; ++n) {
        const Strip& s = strips[n];
        step_prefetches();
        multiply_strip<typename Plan::ValueLeft, ProductWrite::accumulate>(
            s.rows, v.width(x) / kLanes<T>, s.scores + s.at.begin, v.at(s.at.begin, x), s.at.end - s.at.begin,
            scratch_.out.at(s.r, x), plan_.Dv_padded);
      }
    }
  }

  /// Prepares the strip for the block's panels. Rows without a maximum get one from the first panel that they see.
  void begin_block(const Visibility& visibility, Strip& s) const {
    std::fill_n(s.largest, kLanes<T>, kHidden);
    std::fill_n(s.sums, kMR * kLanes<T>, T{0});
    s.near_maxima = !plan_.rules.any();
    if (!s.near_maxima) return;
    s.done = s.at.c0;
    if (softmax_.lowest_maximum(s.r, s.rows) == kHidden) {
      s.done += kNR<T>;
      products<ProductWrite::overwrite>(s, s.at.c0, s.done);
      rule_and_hide(visibility, s, s.at.c0, s.done);
      raise_maxima(s, s.at.c0, s.done);
      s.near_maxima = softmax_.lowest_maximum(s.r, s.rows) != kHidden;
      if (!s.near_maxima) return;
      subtract_maxima(s, s.at.c0, s.done);
      exponentials(s, s.at.c0, s.done);
    }
    for (std::int64_t m = 0; m < kMR; ++m) s.start[m] = m < s.rows ? -softmax_.maximum(s.r + m) : kHidden;
  }

  /// Computes the exponentials of the panel at column c in the common case, in which the running maxima stay. They stay
  /// while no score exceeds its row's maximum by more than kSlack. The product starts at −maximum. If every row sees
  /// the whole panel, exponentials are computed in registers.
  void exponentials_near_maxima(const Visibility& visibility, Strip& s, std::int64_t c) const {
    if (!s.near_maxima || c < s.done || c >= s.at.c1) return;
    if (c >= s.at.whole0 && c < s.at.whole1) {
      with_tile_height(s.rows, [&]<std::int64_t kRows>() HWY_ATTR {
        multiply_exponentials<kRows, typename Plan::ScoreLeft>(s.queries, s.keys.at(c / kNR<T>), p_.D, s.scores + c,
                                                               Plan::kScoreStride, s.start, s.sums, s.largest);
      });
      return;
    }
    products<ProductWrite::overwrite_from>(s, c, c + kNR<T>);
    rule_and_hide(visibility, s, c, c + kNR<T>);
    exponentials(s, c, c + kNR<T>);
  }

  /// Adds the block's exponentials to the rows' sums. If the maxima have to rise first, recomputes all scores of the
  /// block.
  void end_block(const Visibility& visibility, Strip& s) const {
    if (!s.near_maxima || !within_slack(s)) {
      products<ProductWrite::overwrite>(s, s.at.c0, s.at.c1);
      rule_and_hide(visibility, s, s.at.c0, s.at.c1);
      raise_maxima(s, s.at.c0, s.at.c1);
      subtract_maxima(s, s.at.c0, s.at.c1);
      if (s.near_maxima) std::fill_n(s.sums, kMR * kLanes<T>, T{0});
      exponentials(s, s.at.c0, s.at.c1);
    }
    softmax_.add_sums(s.r, s.rows, s.sums);
  }

  /// Returns true only if no exponent of the strip's block exceeds kSlack. If exp2_fast saturates, the check uses sums
  /// and may return false for exponents slightly below kSlack. NaN may go undetected.
  bool within_slack(const Strip& s) const {
    if constexpr (kExp2Saturates<T>) return OnlineSoftmax<T>::within_slack(s.sums, s.rows);
    const Tag<T> d;
    return hn::GetLane(hn::MaxOfLanes(d, hn::Load(d, s.largest))) <= OnlineSoftmax<T>::kSlack;
  }

  void raise_maxima(const Strip& s, std::int64_t c0, std::int64_t c1) const {
    softmax_.raise_maxima(s.r, s.rows, s.scores + c0, Plan::kScoreStride, c1 - c0);
  }

  /// Subtracts each row's running maximum (softmax_.shift) from columns [c0, c1) of the scores.
  void subtract_maxima(const Strip& s, std::int64_t c0, std::int64_t c1) const {
    const Tag<T> d;
    for (std::int64_t m = 0; m < s.rows; ++m) {
      T* HWY_RESTRICT row = s.scores + m * Plan::kScoreStride;
      const auto shift = hn::Set(d, softmax_.shift(s.r + m));
      for (std::int64_t j = c0; j < c1; j += kLanes<T>) hn::Store(hn::Sub(hn::Load(d, row + j), shift), d, row + j);
    }
  }

  /// Replaces columns [c0, c1) by their exp2, and updates the block's sums and largest exponents.
  void exponentials(Strip& s, std::int64_t c0, std::int64_t c1) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    LargestExponent<T> exponents(s.largest);
    for (std::int64_t m = 0; m < s.rows; ++m) {
      T* HWY_RESTRICT row = s.scores + m * Plan::kScoreStride;
      T* HWY_RESTRICT sum = s.sums + m * kN;
      auto sum0 = hn::Load(d, sum);
      auto sum1 = hn::Zero(d);
      for (std::int64_t j = c0; j < c1; j += 2 * kN) {
        const auto x0 = hn::Load(d, row + j);
        const auto x1 = hn::Load(d, row + j + kN);
        exponents.see(x0, x1);
        const auto p0 = exp2_fast(d, x0);
        const auto p1 = exp2_fast(d, x1);
        hn::Store(p0, d, row + j);
        hn::Store(p1, d, row + j + kN);
        sum0 = hn::Add(sum0, p0);
        sum1 = hn::Add(sum1, p1);
      }
      hn::Store(hn::Add(sum0, sum1), d, sum);
    }
    exponents.store();
  }

  /// Multiplies columns [c0, c1) of the strip's exponentials by the dropout factors. The sums already include all
  /// exponentials.
  void drop(const Strip& s, std::int64_t c0, std::int64_t c1) const {
    T* HWY_RESTRICT factors = scratch_.dropout_row.data;
    for (std::int64_t m = 0; m < s.rows; ++m) {
      plan_.dropout.factors(factors, sequence_, h_, scratch_.rows(s.r + m), s.j0 + c0, c1 - c0);
      T* HWY_RESTRICT row = s.scores + m * Plan::kScoreStride + c0;
      for (std::int64_t j = 0; j < c1 - c0; ++j) row[j] *= factors[j];
    }
  }

  /// Normalises, gates and writes the outputs of the tile's rows.
  void finish_rows() const {
    const OutputRows<T> outputs(p_, sequence_, h_, scratch_.gate, scratch_.gated);
    for (std::int64_t r = 0; r < count_; ++r)
      outputs.write(scratch_.rows(r), scratch_.out.at(r), softmax_.maximum(r), softmax_.sum(r));
  }

  /// Writes exp(s − lse) for every visible key, times the dropout factor. Hidden keys and the columns of other
  /// sequences get 0.
  void write_weights(const Visibility& visibility) const {
    const HeadRows to = query_rows(p_.outputs.weights, sequence_, h_);
    const HeadRows own = to.columns(sequence_.k0, sequence_.S);
    for (std::int64_t r = 0; r < count_; r += kMR) {
      for (std::int64_t j0 = 0; j0 < sequence_.S; j0 += kBlock) {
        Strip s;
        place_strip(s, visibility, j0, r, r, count_);
        products<ProductWrite::overwrite>(s, s.at.c0, s.at.c1);
        rule_and_hide(visibility, s, s.at.c0, s.at.c1);
        const std::int64_t width = std::min(kBlock, sequence_.S - j0);
        for (std::int64_t m = 0; m < s.rows; ++m) make_weights(s, m, width);
        if (plan_.dropout.any()) drop(s, 0, width);
        for (std::int64_t m = 0; m < s.rows; ++m) {
          store_row(own, s.scores + m * Plan::kScoreStride, scratch_.rows(r + m), j0, width);
        }
      }
    }
    zero_columns(to.columns(0, sequence_.k0));
    const std::int64_t after = sequence_.k0 + sequence_.S;
    zero_columns(to.columns(after, to.cols - after));
  }

  /// Zeroes the tile's rows of `to`.
  void zero_columns(const HeadRows<void>& to) const {
    T* zeros = scratch_.scores.data;
    std::fill_n(zeros, kBlock, T{0});
    for (std::int64_t r = 0; r < count_; ++r) {
      for (std::int64_t j0 = 0; j0 < to.cols; j0 += kBlock)
        store_row(to, zeros, scratch_.rows(r), j0, std::min(kBlock, to.cols - j0));
    }
  }

  /// Converts the first `width` scores of row m of the strip to weights.
  void make_weights(const Strip& s, std::int64_t m, std::int64_t width) const {
    const Tag<T> d;
    T* row = s.scores + m * Plan::kScoreStride;
    const T sum = softmax_.sum(s.r + m);
    const auto shift = hn::Set(d, softmax_.shift(s.r + m));
    const auto inverse = hn::Set(d, sum == T{0} ? T{0} : T{1} / sum);
    std::fill(row, row + s.at.c0, T{0});
    for (std::int64_t j = s.at.c0; j < s.at.c1; j += kLanes<T>) {
      hn::Store(hn::Mul(inverse, exp2_fast(d, hn::Sub(hn::Load(d, row + j), shift))), d, row + j);
    }
    if (s.at.c1 < width) std::fill(row + s.at.c1, row + width, T{0});
  }

  const Plan& plan_;
  const ForwardProblem& p_;
  const ForwardBuffers<T>& shared_;
  int thread_;
  const ForwardScratch<T> scratch_;
  const OnlineSoftmax<T> softmax_;  // state of the current query tile
  Sequence sequence_;
  std::int64_t h_ = 0, count_ = 0;
  View<T, 3> head_keys_;                        // (panels, D, kNR)
  View<T, 2> head_values_;                      // (panels, kNR · Dv_padded)
  mutable std::array<RowPrefetch, 4> ahead_{};  // prefetches of the next head or tile
};

template <typename T>
void tiles_forward_typed(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot) {
  plan_forward<ForwardWorker<T>, ForwardPlan<T>, ForwardBuffers<T>>(problem, list, slot);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(tiles_forward_typed);

void tiles_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot) {
  HEADGATE_FOR_DTYPE(tiles_forward_typed, problem.inputs.q.dtype, problem.context.target)(problem, list, slot);
}

}  // namespace headgate
#endif  // HWY_ONCE
