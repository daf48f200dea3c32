// SPDX-License-Identifier: Apache-2.0
// Computes the forward pass of gated attention. A query tile visits the key blocks that its rows see. Strips of kMR
// rows compute scores, online softmax and the product with v in cache. K and V are packed once per key/value head.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "library/attention/cpu/common/packed_heads.hpp"
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
#include "library/attention/cpu/common/register_rules-inl.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/cpu/common/shown_keys-inl.hpp"
#include "library/attention/cpu/common/strip-inl.hpp"
#include "library/attention/cpu/dense/forward_plan-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Computes p = exp2(s + negated_maxima[row]) for a tile of kRows rows and one panel.
/// The score s is ab, or rule(ab) if there is a rule. Scores stay in registers, and p is written once.
/// Adds p to `sums` (kRows, lanes). Updates the largest exponents:
///   max_exponents (lanes): for each lane.
///   row_max_exponents (kRows, lanes): for each row and lane, unless null.
/// `a` has Layout, `b` is dense as in multiply_add(), and `p` has row stride ldp.
template <std::int64_t kRows, class Layout, typename T, class Rule>
HWY_NOINLINE void multiply_exponentials(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, std::int64_t K,
                                        T* HWY_RESTRICT p, std::int64_t ldp, const T* HWY_RESTRICT negated_maxima,
                                        T* HWY_RESTRICT sums, T* HWY_RESTRICT max_exponents,
                                        T* HWY_RESTRICT row_max_exponents, const Rule& rule) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  constexpr bool kHasRule = !std::is_same_v<Rule, NoRule>;
  static_assert(kNV == 2);
  hn::Vec<Tag<T>> x[kRows][kNV];
  HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
    x[m][0] = x[m][1] = kHasRule ? hn::Zero(d) : hn::Set(d, negated_maxima[m]);
  }
  if constexpr (kHasRule) rule.template prefetch<kMR, kNR<T>>();
  multiply_add<Layout, kRows, kNV>(x, a, b, K);
  if constexpr (kHasRule) {
    // Adds the bias and the maximum after the product. If the sums began with them, scores would not be bitwise
    // identical to those of ScoreRules and the backward pass.
    HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
      x[m][0] = hn::Add(rule.apply(x[m][0], m, 0), hn::Set(d, negated_maxima[m]));
      x[m][1] = hn::Add(rule.apply(x[m][1], m, kN), hn::Set(d, negated_maxima[m]));
    }
  }
  if (row_max_exponents != nullptr) {
    HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
      T* row_max = row_max_exponents + m * kN;
      hn::Store(hn::Max(hn::Max(x[m][0], x[m][1]), hn::Load(d, row_max)), d, row_max);
    }
  }
  LargestExponent<T> exponents(max_exponents);
  HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
    exponents.update(x[m][0], x[m][1]);
    const auto p0 = exp2_fast(d, x[m][0]);
    const auto p1 = exp2_fast(d, x[m][1]);
    hn::Store(p0, d, p + m * ldp);
    hn::Store(p1, d, p + m * ldp + kN);
    hn::Store(hn::Add(hn::Load(d, sums + m * kN), hn::Add(p0, p1)), d, sums + m * kN);
  }
  exponents.store();
}

/// A strip of kMR query rows, and the key block that it visits.
template <typename T>
struct ForwardStrip : SoftmaxStrip<T, kMR> {
  RuleAddresses<T, kMR> rules;  ///< addresses of biases and masks; set only if they are applied in registers
};

/// Computes the tasks of one thread in the forward pass.
template <typename T>
class ForwardWorker {
 public:
  using Plan = ForwardPlan<T>;
  using BlockStrip = ForwardStrip<T>;
  using SoftmaxRows = SoftmaxStrip<T, kMR>;
  static constexpr std::int64_t kBlock = Plan::kBlock;
  static constexpr bool kKeepsFirstPanel = true;

  ForwardWorker(const Plan& plan, const ForwardBuffers<T>& shared, int thread)
      : plan_(plan),
        p_(plan.p),
        shared_(shared),
        thread_(thread),
        scratch_(place_buffers<ForwardScratch<T>>(shared.scratch.at(thread), plan)),
        softmax_(scratch_.maxima, scratch_.sums, scratch_.out, scratch_.largest),
        fused_(plan.rules.fused(softmax_.keeps_largest())),
        shown_(p_) {}

  /// Lists the open rows of query tile `tile` of head h, and writes the outputs of the closed rows.
  /// A row is closed if all its gate values |g(z)| are at most the gate threshold.
  /// `number` is the tile's index among all tiles of the batch.
  void list_open_rows(const PackedHeads& part, std::int64_t h, std::int64_t tile, std::int64_t number) const {
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

  /// Packs the keys and values of one block of key/value head h. Packs only the keys that packed_keys() returns.
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

  /// Computes one whole key/value head. Packs its keys and values for this thread alone.
  /// `next` is the head that the thread will probably take next.
  void run_head(const HeadTask& head, const HeadTask& next) {
    const PackedHeads own = head.as_part(plan_.max_head_counts, p_.group, thread_);
    for (std::int64_t block = 0; block < own.blocks; ++block) pack_block(own, head.h, block);
    for (std::int64_t g = 0; g < p_.group; ++g) {
      if (plan_.prefetches_heads) prefetch_next_head(own, g + 1 < p_.group ? head : next, (g + 1) % p_.group);
      for (std::int64_t tile = 0; tile < own.tiles; ++tile) {
        if (plan_.prefetches_tiles) prefetch_for_tile(own.sequence, head.h * p_.group + g, tile);
        run_tile(own, head.h * p_.group + g, tile);
      }
    }
  }

  /// Computes query tile `tile` of query head h. The keys and values of the head must be packed.
  /// With a gate threshold, tiles contain only open rows, which the threshold does not skip.
  void run_tile(const PackedHeads& part, std::int64_t h, std::int64_t tile) {
    sequence_ = part.sequence;
    h_ = h;
    count_ = gather_rows(part, tile);
    if (count_ == 0) return;
    head_keys_ = head_keys(part, h / p_.group);
    head_values_ = head_values(part, h / p_.group);
    pack_strips(scratch_.queries, query_rows(p_.inputs.q, sequence_, h), scratch_.rows, count_,
                plan_.rules.query_factor(), scratch_.packing);
    softmax_.start(round_up(count_, kMR), count_, p_, sequence_, h_, [this](std::int64_t r) { return query(r); });
    visibility_ = Visibility(p_, sequence_);
    rose_.fill(false);
    // Score rules in memory need two more passes over the scores.
    // A band then has only one strip, so that its scores stay in the first-level cache.
    visit_blocks(*this, visibility_.rows(query(0), query(count_ - 1) + 1), count_,
                 plan_.rules.any() && !fused_.in_registers() ? kMR : Plan::kBandRows);
    finish_rows();
    if (p_.outputs.weights.present()) write_weights();
  }

  // These members are called by visit_blocks and OnlineSoftmax.

  const Visibility& visibility() const { return visibility_; }
  std::int64_t query(std::int64_t r) const { return scratch_.rows(r); }
  KeyRange columns(const SoftmaxRows& s) const {
    const KeyRange seen = visibility_.rows(query(s.r), query(s.r + s.rows - 1) + 1);
    return shown_.columns(seen, s.j0, kBlock, sequence_, h_, s.rows, [&](std::int64_t m) { return query(s.r + m); });
  }
  T* scores(std::int64_t m) const { return scratch_.scores.at(m); }

  void begin(BlockStrip& s) const {
    const bool has_rule = plan_.rules.any();
    softmax_.begin(s, *this, !has_rule || (fused_.any() && !rose_[s.r / kMR]));
    if (!has_rule || !s.near_maxima) return;
    s.near_maxima = softmax_.lowest_maximum(s) > kLeastFusedMaximum<T>;
    if (!s.near_maxima || !fused_.in_registers()) return;
    s.rules.find(fused_, plan_.rules, p_.inputs, sequence_, h_, s.rows, s.j0,
                 [&](std::int64_t m) { return query(s.r + m); });
  }

  /// Computes the exponentials of the panel at column c, unless the running maxima must be raised first.
  /// Usually no score exceeds its row's maximum by more than kSlack, so that the maxima stay.
  /// Without score rules, the sum of each product q · k begins at −maximum, so that the result is the exponent.
  /// If every row sees the whole panel, scores stay in registers.
  void panel(BlockStrip& s, std::int64_t c) const {
    step_prefetches();
    if (!s.near_maxima || c < s.done || c >= s.at.c1 || fused_.in_memory()) return;
    if (c >= s.at.whole0 && c < s.at.whole1) return weigh_whole_panel(s, c);
    if (plan_.rules.any()) {
      score(s, c, c + kNR<T>);
      subtract_maxima(s, c, c + kNR<T>);
    } else {
      products<ProductWrite::overwrite_from>(s, c, c + kNR<T>);
      rule_and_hide(s, c, c + kNR<T>);
    }
    if (softmax_.keeps_largest()) update_row_max_exponents(s, c);
    exponentials(s, c, c + kNR<T>);
  }

  /// Finishes the softmax of the block, applies dropout, and adds weights · v to the outputs.
  void end(BlockStrip* strips, std::int64_t count) const {
    for (std::int64_t n = 0; n < count; ++n) {
      BlockStrip& s = strips[n];
      if (s.near_maxima && (fused_.in_memory() || (fused_.any() && has_nan(s)))) weigh_block_in_memory(s);
      rose_[s.r / kMR] = softmax_.finish(s, *this);
    }
    if (plan_.dropout.any()) {
      for (std::int64_t n = 0; n < count; ++n) apply_dropout(strips[n], strips[n].at.begin, strips[n].at.end);
    }
    const ColumnPanels<T> v = values(head_values_, strips[0].j0 / kBlock);
    for (std::int64_t x = 0; x < v.cols; x += kNR<T>) {
      for (std::int64_t n = 0; n < count; ++n) {
        const BlockStrip& s = strips[n];
        step_prefetches();
        multiply_strip<typename Plan::ValueLeft, ProductWrite::accumulate>(
            s.rows, v.width(x) / kLanes<T>, s.scores + s.at.begin, v.at(s.at.begin, x), s.at.end - s.at.begin,
            scratch_.out.at(s.r, x), plan_.Dv_padded);
      }
    }
  }

  void score(const SoftmaxRows& s, std::int64_t c0, std::int64_t c1) const {
    products<ProductWrite::overwrite>(s, c0, c1);
    rule_and_hide(s, c0, c1);
  }

  void weigh(SoftmaxRows& s, std::int64_t c0, std::int64_t c1) const {
    subtract_maxima(s, c0, c1);
    exponentials(s, c0, c1);
  }

 private:
  /// Schedules prefetches of the rows that query head g of task `next` reads. `next` may be the current task.
  /// The prefetches run during the products of one query head of the current part, `own`.
  void prefetch_next_head(const PackedHeads& own, const HeadTask& next, std::int64_t g) {
    prefetches_ = {};
    if (next.part == nullptr) return;
    const Sequence& s = next.part->sequence;
    const std::int64_t h = next.h * p_.group + g;
    const std::int64_t steps = divide_up(own.sequence.T, kMR) * (own.panels + divide_up(plan_.Dv_padded, kNR<T>));
    prefetches_[0] = prefetch_rows(query_rows(p_.inputs.q, s, h), steps);
    prefetches_[1] = prefetch_rows(query_rows(p_.inputs.gate, s, h), steps);
    if (g != 0) return;
    prefetches_[2] = prefetch_rows(key_rows(p_.inputs.k, s, next.h), steps);
    prefetches_[3] = prefetch_rows(key_rows(p_.inputs.v, s, next.h), steps);
  }
  /// Schedules prefetches of the gate rows of tile `tile`, and of the query rows of the next tile.
  /// The prefetches run during the products of tile `tile`.
  void prefetch_for_tile(const Sequence& s, std::int64_t h, std::int64_t tile) {
    const auto rows_from = [&](std::int64_t i) { return std::clamp<std::int64_t>(s.T - i, 0, plan_.tile_rows); };
    const std::int64_t first = tile * plan_.tile_rows;
    const std::int64_t rows = rows_from(first);
    const KeyRange seen = Visibility(p_, s).rows(first, first + rows);
    const std::int64_t steps = divide_up(rows, kMR) * divide_up(seen.end - seen.begin, kNR<T>);
    prefetches_ = {};
    const HeadRows<const void> gate = query_rows(p_.inputs.gate, s, h);
    if (gate.present()) prefetches_[0] = prefetch_rows(gate.range(first, rows), steps);
    const std::int64_t next = first + rows;
    if (next < s.T) prefetches_[1] = prefetch_rows(query_rows(p_.inputs.q, s, h).range(next, rows_from(next)), steps);
  }
  void step_prefetches() const {
    if (!plan_.prefetches_heads && !plan_.prefetches_tiles) return;
    for (RowPrefetch& rows : prefetches_) rows.step();
  }

  /// Range [begin, end) of query rows.
  struct RowRange {
    std::int64_t begin = 0, end = 0;
    bool empty() const { return begin >= end; }
  };

  /// Returns the smallest range that contains all open rows in the query heads of key/value head h.
  /// Open rows are those that the gate threshold does not skip.
  RowRange rows_of_group(const PackedHeads& part, std::int64_t h) const {
    if (!plan_.has_gate_threshold()) return {0, part.sequence.T};
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

  /// Lists the queries of a tile in scratch_.rows, and returns their number.
  std::int64_t gather_rows(const PackedHeads& part, std::int64_t tile) const {
    std::int64_t count = 0;
    if (!plan_.has_gate_threshold()) {
      const std::int64_t first = tile * plan_.tile_rows;
      for (std::int64_t i = first; i < std::min(first + plan_.tile_rows, sequence_.T); ++i) scratch_.rows(count++) = i;
      return count;
    }
    // Makes the tiles of a head about equally large. Otherwise the last tile could read all keys for a few rows.
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
  /// Returns the packed values of one block, from the packed values `head` of the whole head.
  ColumnPanels<T> values(const View<T, 2>& head, std::int64_t block) const {
    const std::int64_t panel = block * (kBlock / kNR<T>);
    return {head.at(panel), std::min(kBlock, (head.shape[0] - panel) * kNR<T>), plan_.Dv_padded};
  }

  const T* queries(const SoftmaxRows& s) const { return scratch_.queries.at(s.r / kMR); }
  /// Returns the packed keys of the panel at column c of the strip's block, (D, kNR).
  const T* keys(const SoftmaxRows& s, std::int64_t c) const { return head_keys_.at((s.j0 + c) / kNR<T>); }

  /// Computes columns [c0, c1) of the strip's scores q kᵀ.
  /// With overwrite_from, the sums begin at minus the running maxima.
  template <ProductWrite kWrite>
  void products(const SoftmaxRows& s, std::int64_t c0, std::int64_t c1) const {
    for (std::int64_t c = c0; c < c1; c += kNR<T>) {
      multiply_strip<typename Plan::ScoreLeft, kWrite>(s.rows, kNV, queries(s), keys(s, c), p_.D, s.scores + c,
                                                       Plan::kScoreStride, s.negated_maxima);
    }
  }

  /// Applies the score rules to columns [c0, c1) of each row, and sets the scores of hidden keys to −∞.
  void rule_and_hide(const SoftmaxRows& s, std::int64_t c0, std::int64_t c1) const {
    for (std::int64_t m = 0; m < s.rows; ++m) {
      plan_.rules.apply_and_hide(s.scores + m * Plan::kScoreStride, visibility_, sequence_, h_, query(s.r + m), s.j0,
                                 c0, c1, scratch_.rule_row.data);
    }
  }

  /// Computes the exponentials of the panel at column c. Every row of the strip must see the whole panel.
  void weigh_whole_panel(BlockStrip& s, std::int64_t c) const {
    if (!fused_.in_registers()) {
      with_tile_height(s.rows, [&]<std::int64_t kRows>() HWY_ATTR { multiply_whole<kRows>(s, c, NoRule()); });
      return;
    }
    // A strip with fewer than kMR rows computes its padding rows too.
    s.rules.template visit<Overflow::unhandled>(fused_, c,
                                                [&](const auto& rule) HWY_ATTR { multiply_whole<kMR>(s, c, rule); });
    s.near_maxima = softmax_.may_be_within_slack(s);
  }

  template <std::int64_t kRows, class Rule>
  void multiply_whole(BlockStrip& s, std::int64_t c, const Rule& rule) const {
    multiply_exponentials<kRows, typename Plan::ScoreLeft>(
        queries(s), keys(s, c), p_.D, s.scores + c, Plan::kScoreStride, s.negated_maxima, s.sums, s.max_exponents,
        softmax_.keeps_largest() ? s.row_max_exponents : nullptr, rule);
  }

  /// Returns true if the sum of exponentials of any row of the strip is NaN.
  static bool has_nan(const BlockStrip& s) {
    const Tag<T> d;
    auto sum = hn::Zero(d);
    for (std::int64_t m = 0; m < s.rows; ++m) sum = hn::Add(sum, hn::Load(d, s.sums + m * kLanes<T>));
    return !hn::AllFalse(d, hn::IsNaN(sum));
  }

  /// Computes the exponentials of the whole block from scores in memory.
  /// With one exception, results are bitwise identical to those from scores in registers.
  /// The exception is a key whose product overflowed to ∞ and whose bias is −∞.
  /// In registers, their sum is NaN. In memory, ScoreRules hides the key.
  void weigh_block_in_memory(BlockStrip& s) const {
    softmax_.clear(s);
    score(s, s.at.c0, s.at.c1);
    subtract_maxima(s, s.at.c0, s.at.c1);
    for (std::int64_t c = s.at.c0; softmax_.keeps_largest() && c < s.at.c1; c += kNR<T>) update_row_max_exponents(s, c);
    exponentials(s, s.at.c0, s.at.c1);
  }

  /// Turns the scores in columns [c0, c1) into exponents: subtracts the running maxima.
  void subtract_maxima(const SoftmaxRows& s, std::int64_t c0, std::int64_t c1) const {
    const Tag<T> d;
    for (std::int64_t m = 0; m < s.rows; ++m) {
      T* HWY_RESTRICT row = s.scores + m * Plan::kScoreStride;
      const auto negated_maximum = hn::Set(d, s.negated_maxima[m]);
      for (std::int64_t j = c0; j < c1; j += kLanes<T>)
        hn::Store(hn::Add(hn::Load(d, row + j), negated_maximum), d, row + j);
    }
  }

  /// Updates s.row_max_exponents from the panel at column c.
  void update_row_max_exponents(SoftmaxRows& s, std::int64_t c) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    for (std::int64_t m = 0; m < s.rows; ++m) {
      const T* HWY_RESTRICT row = s.scores + m * Plan::kScoreStride + c;
      T* HWY_RESTRICT row_max = s.row_max_exponents + m * kN;
      hn::Store(hn::Max(hn::Max(hn::Load(d, row), hn::Load(d, row + kN)), hn::Load(d, row_max)), d, row_max);
    }
  }

  /// Replaces each exponent x in columns [c0, c1) by exp2(x). Updates the block's sums and largest exponents.
  /// Adds in the same order as multiply_exponentials().
  void exponentials(SoftmaxRows& s, std::int64_t c0, std::int64_t c1) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    LargestExponent<T> exponents(s.max_exponents);
    for (std::int64_t m = 0; m < s.rows; ++m) {
      T* HWY_RESTRICT row = s.scores + m * Plan::kScoreStride;
      T* HWY_RESTRICT sum = s.sums + m * kN;
      auto total = hn::Load(d, sum);
      for (std::int64_t j = c0; j < c1; j += 2 * kN) {
        const auto x0 = hn::Load(d, row + j);
        const auto x1 = hn::Load(d, row + j + kN);
        exponents.update(x0, x1);
        const auto p0 = exp2_fast(d, x0);
        const auto p1 = exp2_fast(d, x1);
        hn::Store(p0, d, row + j);
        hn::Store(p1, d, row + j + kN);
        total = hn::Add(total, hn::Add(p0, p1));
      }
      hn::Store(total, d, sum);
    }
    exponents.store();
  }

  /// Multiplies columns [c0, c1) of the strip's exponentials by the dropout factors. Does not change the softmax sums.
  void apply_dropout(const BlockStrip& s, std::int64_t c0, std::int64_t c1) const {
    T* HWY_RESTRICT factors = scratch_.dropout_row.data;
    for (std::int64_t m = 0; m < s.rows; ++m) {
      plan_.dropout.factors(factors, sequence_, h_, scratch_.rows(s.r + m), s.j0 + c0, c1 - c0);
      T* HWY_RESTRICT row = s.scores + m * Plan::kScoreStride + c0;
      for (std::int64_t j = 0; j < c1 - c0; ++j) row[j] *= factors[j];
    }
  }

  /// Normalises the tile's rows, applies the gate and writes the outputs.
  void finish_rows() const {
    const OutputRows<T> outputs(p_, sequence_, h_, scratch_.gate, scratch_.gated);
    for (std::int64_t r = 0; r < count_; ++r)
      outputs.write(scratch_.rows(r), scratch_.out.at(r), softmax_.maximum(r), softmax_.sum(r), softmax_.largest(r));
  }

  /// Writes the weights exp(s − lse) of visible keys, times the dropout factors.
  /// Writes 0 for hidden keys and for keys of other sequences.
  void write_weights() const {
    const HeadRows to = query_rows(p_.outputs.weights, sequence_, h_);
    const HeadRows own = to.columns(sequence_.k0, sequence_.S);
    for (std::int64_t r = 0; r < count_; r += kMR) {
      for (std::int64_t j0 = 0; j0 < sequence_.S; j0 += kBlock) {
        BlockStrip s;
        set_strip(*this, s, j0, r, r, count_);
        score(s, s.at.c0, s.at.c1);
        const std::int64_t width = std::min(kBlock, sequence_.S - j0);
        for (std::int64_t m = 0; m < s.rows; ++m) make_weights(s, m, width);
        if (plan_.dropout.any()) apply_dropout(s, 0, width);
        for (std::int64_t m = 0; m < s.rows; ++m) {
          store_row(own, s.scores + m * Plan::kScoreStride, scratch_.rows(r + m), j0, width);
        }
      }
    }
    zero_columns(to.columns(0, sequence_.k0));
    const std::int64_t after = sequence_.k0 + sequence_.S;
    zero_columns(to.columns(after, to.cols - after));
  }

  /// Writes zeros to the tile's rows of `to`.
  void zero_columns(const HeadRows<void>& to) const {
    T* zeros = scratch_.scores.data;
    std::fill_n(zeros, kBlock, T{0});
    for (std::int64_t r = 0; r < count_; ++r) {
      for (std::int64_t j0 = 0; j0 < to.cols; j0 += kBlock)
        store_row(to, zeros, scratch_.rows(r), j0, std::min(kBlock, to.cols - j0));
    }
  }

  /// Replaces the first `width` scores of row m of the strip by softmax weights.
  void make_weights(const BlockStrip& s, std::int64_t m, std::int64_t width) const {
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
  const OnlineSoftmax<T> softmax_;  // softmax of the current query tile
  const FusedRules fused_;          // where biases and masks are applied: in registers or memory
  const ShownKeys shown_;
  Sequence sequence_;
  Visibility visibility_;
  std::int64_t h_ = 0, count_ = 0;
  View<T, 3> head_keys_;                             // packed k of the current head, (panels, D, kNR)
  View<T, 2> head_values_;                           // packed v of the current head, (panels, kNR · Dv_padded)
  mutable std::array<RowPrefetch, 4> prefetches_{};  // objects that prefetch rows of the next head or tile
  /// For each strip of the tile: whether the last key block raised a running maximum by more than kSlack.
  /// With score rules, such a strip computes all scores of the next block before any exponential: if a maximum rises
  /// again, exponentials relative to the old maxima are wasted.
  mutable std::array<bool, Plan::kOpenTile / kMR> rose_{};
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
