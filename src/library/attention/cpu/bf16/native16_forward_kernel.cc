// SPDX-License-Identifier: Apache-2.0
// Computes the forward pass with bf16 products (Precision::native16), in strips of kSquare rows. Products of q kᵀ are
// exact with f32 sums; exponentials and their sums are f32. Weights are rounded to bf16 before the product with v.
// Otherwise the algorithm is that of forward_kernel.cc.

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/visibility.hpp"
#include "library/attention/cpu/kernels.hpp"
#include "library/call/native16.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/attention/cpu/bf16/native16_forward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Per-target headers must follow foreach_target.h.
#include "library/attention/cpu/bf16/native16_forward_plan-inl.hpp"
#include "library/attention/cpu/bf16/pack_pairs-inl.hpp"
#include "library/attention/cpu/common/forward_run-inl.hpp"
#include "library/attention/cpu/common/online_softmax-inl.hpp"
#include "library/attention/cpu/common/output_rows-inl.hpp"
#include "library/attention/cpu/common/register_rules-inl.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/cpu/common/shown_keys-inl.hpp"
#include "library/attention/cpu/common/strip-inl.hpp"
#include "library/core/bf16_products-inl.hpp"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Scores of some columns of a strip of query rows, and the destination of their softmax weights.
struct StripScores {
  const float* scores;  ///< scores (rows, cols) with row stride lds; cols is a multiple of kSquare
  std::int64_t lds;
  std::int64_t rows, cols;
  BFloat16* weights;  ///< destination of the weights, row stride ldw
  std::int64_t ldw;
};

/// Computes weights = exp2(s + negated_maxima[row]), rounded to bf16.
/// The score s is factor · scores. If Rule is RegisterRules, it is changed by `rule`, and `scores` has kSquare columns.
/// Adds the exponentials, before rounding, to sums (rows, lanes).
/// With kTracksLargest, also updates row_max_exponents (rows, lanes), the largest exponent of each row and lane.
template <bool kTracksLargest, class Rule>
HEADGATE_DOTS_ATTR HWY_NOINLINE void weights_of(const StripScores& s, float factor,
                                                const float* HWY_RESTRICT negated_maxima, float* HWY_RESTRICT sums,
                                                float* HWY_RESTRICT row_max_exponents, const Rule& rule) {
  constexpr bool kHasRule = !std::is_same_v<Rule, NoRule>;
  const Tag<float> d;
  constexpr std::int64_t kN = kLanes<float>;
  const auto f = hn::Set(d, factor);
  if constexpr (kHasRule) rule.template prefetch<kSquare, kSquare>();
  const auto exponent = [&](std::int64_t m, const float* at, std::int64_t j, auto negated_maximum) HWY_ATTR {
    const auto score = hn::Load(d, at + j);
    if constexpr (kHasRule) return hn::Add(rule.apply(hn::Mul(f, score), m, j), negated_maximum);
    return hn::MulAdd(f, score, negated_maximum);
  };
  for (std::int64_t m = 0; m < s.rows; ++m) {
    const float* HWY_RESTRICT from = s.scores + m * s.lds;
    BFloat16* HWY_RESTRICT to = s.weights + m * s.ldw;
    const auto negated_maximum = hn::Set(d, negated_maxima[m]);
    auto sum = hn::Load(d, sums + m * kN);
    [[maybe_unused]] auto largest = negated_maximum;
    if constexpr (kTracksLargest) largest = hn::Load(d, row_max_exponents + m * kN);
    for (std::int64_t j = 0; j < s.cols; j += 2 * kN) {
      const auto x0 = exponent(m, from, j, negated_maximum);
      const auto x1 = exponent(m, from, j + kN, negated_maximum);
      if constexpr (kTracksLargest) largest = hn::Max(largest, hn::Max(x0, x1));
      const auto p0 = exp2_fast(d, x0);
      const auto p1 = exp2_fast(d, x1);
      sum = hn::Add(sum, hn::Add(p0, p1));
      _mm512_storeu_si512(to + j, halves_of(p0.raw, p1.raw));
    }
    hn::Store(sum, d, sums + m * kN);
    if constexpr (kTracksLargest) hn::Store(largest, d, row_max_exponents + m * kN);
  }
}

/// A strip of kSquare query rows, with its state in the current key block.
struct Native16Strip : SoftmaxStrip<float, kSquare> {
  RuleAddresses<float, kSquare> rules;  ///< addresses of biases and masks; set only if applied in registers
};

/// Computes the tasks of one thread in the forward pass.
template <class Unit>
class Native16ForwardWorker {
 public:
  using Plan = Native16ForwardPlan;
  using BlockStrip = Native16Strip;
  using SoftmaxRows = SoftmaxStrip<float, kSquare>;
  static constexpr std::int64_t kBlock = Plan::kBlock;
  static constexpr bool kKeepsFirstPanel = false;  // false: weigh() and weigh_near_maxima() round differently
  static_assert(kExp2Saturates<float>);            // exponents are not tracked: too large ones make the sum ∞

  Native16ForwardWorker(const Plan& plan, const Native16ForwardBuffers& shared, int thread)
      : plan_(plan),
        p_(plan.p),
        shared_(shared),
        thread_(thread),
        scratch_(place_buffers<Native16ForwardScratch>(shared.scratch.at(thread), plan)),
        softmax_(scratch_.maxima, scratch_.sums, scratch_.out, scratch_.largest),
        fused_(plan.rules.fused(softmax_.keeps_largest())),
        shown_(p_) {}

  /// Packs the keys and values of one block of key/value head h. Packs only the keys that packed_keys() returns.
  void pack_block(const PackedHeads& part, std::int64_t h, std::int64_t block) const {
    const Sequence& sequence = part.sequence;
    const KeyRange seen = Visibility(p_, sequence).rows(0, sequence.T);
    const auto [begin, end] = packed_keys(seen, block, kBlock, kSquare);
    if (begin >= end) return;
    const std::int64_t panel = part.panel_of(h) + begin / kSquare;
    pack_pairs_of_transpose(shared_.keys.at(panel), rows_of_keys(p_, sequence, h), begin, end - begin,
                            scratch_.packing);
    pack_pairs_of_rows(values(part, h, block), begin - block * kBlock, rows_of_values(p_, sequence, h), begin,
                       end - begin, scratch_.packing);
  }

  /// Computes one whole key/value head. Packs its keys and values for this thread alone.
  void run_head(const HeadTask& head, const HeadTask& /*next*/) {
    const PackedHeads own = head.as_part(plan_.max_head_counts, p_.group, thread_);
    for (std::int64_t block = 0; block < own.blocks; ++block) pack_block(own, head.h, block);
    for (std::int64_t g = 0; g < p_.group; ++g) {
      for (std::int64_t tile = 0; tile < own.tiles; ++tile) run_tile(own, head.h * p_.group + g, tile);
    }
  }

  /// Computes query tile `tile` of query head h. The keys and values of the head must be packed.
  void run_tile(const PackedHeads& part, std::int64_t h, std::int64_t tile) {
    sequence_ = part.sequence;
    h_ = h;
    i0_ = tile * Plan::kTile;
    count_ = std::min(Plan::kTile, sequence_.T - i0_);
    load_queries();
    softmax_.start(whole_squares(count_), count_, p_, sequence_, h_, [this](std::int64_t r) { return query(r); });
    visibility_ = Visibility(p_, sequence_);
    head_ = &part;
    rose_.fill(false);
    visit_blocks(*this, visibility_.rows(i0_, i0_ + count_), count_, Plan::kBandRows);
    const OutputRows<float> outputs(p_, sequence_, h_, scratch_.gate, scratch_.gated);
    for (std::int64_t r = 0; r < count_; ++r) {
      outputs.write(query(r), scratch_.out.at(r), softmax_.maximum(r), softmax_.sum(r), softmax_.largest(r));
    }
  }

  // These members are called by visit_blocks and OnlineSoftmax.

  const Visibility& visibility() const { return visibility_; }
  std::int64_t query(std::int64_t r) const { return i0_ + r; }
  KeyRange columns(const SoftmaxRows& s) const {
    const KeyRange seen = visibility_.rows(query(s.r), query(s.r + s.rows - 1) + 1);
    return shown_.columns(seen, s.j0, kBlock, sequence_, h_, s.rows, [&](std::int64_t m) { return query(s.r + m); });
  }
  float* scores(std::int64_t m) const { return scratch_.scores.at(m); }

  void begin(BlockStrip& s) const {
    const bool has_rule = plan_.rules.any();
    softmax_.begin(s, *this, !has_rule || (fused_.any() && !rose_[s.r / kSquare]));
    if (!has_rule || !s.near_maxima) return;
    s.near_maxima = softmax_.lowest_maximum(s) > kLeastFusedMaximum<float>;
    if (!s.near_maxima || !fused_.in_registers()) return;
    s.rules.find(fused_, plan_.rules, p_.inputs, sequence_, h_, s.rows, s.j0,
                 [&](std::int64_t m) { return query(s.r + m); });
  }

  /// Does nothing. end() computes all panels of a strip together, so that their products overlap.
  void panel(const BlockStrip& /*s*/, std::int64_t /*c*/) const {}

  /// Computes the weights of the block, and adds weights · v to the outputs.
  void end(BlockStrip* strips, std::int64_t /*count*/) const {
    BlockStrip& s = strips[0];
    if (s.near_maxima) weigh_near_maxima(s);
    rose_[s.r / kSquare] = softmax_.finish(s, *this);
    const PairPanels v = values(*head_, h_ / p_.group, s.j0 / kBlock);
    for (std::int64_t x = 0; x < plan_.Dv_padded; x += kSquare) {
      Unit::template multiply<SquareWrite::accumulate>(scratch_.weights.at(0, s.at.c0), Plan::kWeightStride,
                                                       v.from(x / kTileCols, s.at.c0), s.at.c1 - s.at.c0,
                                                       scratch_.out.at(s.r, x), plan_.Dv_padded);
    }
  }

  void score(const SoftmaxRows& s, std::int64_t c0, std::int64_t c1) const {
    const Tag<float> d;
    const PairPanels k = block_keys(s);
    for (std::int64_t c = c0; c < c1; c += kSquare) multiply_square(s, k, c, scores(0) + c, Plan::kScoreStride);
    const auto factor = hn::Set(d, plan_.rules.query_factor());
    for (std::int64_t m = 0; m < s.rows; ++m) {
      float* row = scores(m);
      for (std::int64_t j = c0; j < c1; j += kLanes<float>)
        hn::Store(hn::Mul(factor, hn::Load(d, row + j)), d, row + j);
      plan_.rules.apply_and_hide(row, visibility_, sequence_, h_, query(s.r + m), s.j0, c0, c1, scratch_.rule_row.data);
    }
  }

  void weigh(SoftmaxRows& s, std::int64_t c0, std::int64_t c1) const {
    add_weights(s,
                {scores(0) + c0, Plan::kScoreStride, s.rows, c1 - c0, scratch_.weights.at(0, c0), Plan::kWeightStride},
                1.0F, NoRule());
  }

 private:
  /// Returns the packed keys of a block, one key per column.
  PairPanels keys(const PackedHeads& part, std::int64_t h, std::int64_t block) const {
    return {shared_.keys.at(part.panel_of(h) + block * (kBlock / kSquare)), kTileCols * plan_.D_padded};
  }
  /// Returns the packed values of a block, one key per row.
  PairPanels values(const PackedHeads& part, std::int64_t h, std::int64_t block) const {
    const std::int64_t panel = block * (kBlock / kSquare);
    const std::int64_t rows = std::min(kBlock, (part.panels - panel) * kSquare);
    return {shared_.values.at(part.panel_of(h) + panel), kTileCols * rows};
  }

  /// Loads the tile's queries, and pads them with zero rows to a multiple of kSquare.
  void load_queries() const {
    const HeadRows<const void> q = query_rows(p_.inputs.q, sequence_, h_);
    const std::int64_t rows = whole_squares(count_);
    if (count_ < rows) std::fill_n(scratch_.queries.at(count_), (rows - count_) * plan_.D_padded, BFloat16{});
    for (std::int64_t r = 0; r < count_; ++r) {
      load_halves_padded(scratch_.queries.at(r), q.at<BFloat16>(i0_ + r, 0, p_.D), q.stride, p_.D);
    }
  }

  PairPanels block_keys(const SoftmaxRows& s) const { return keys(*head_, h_ / p_.group, s.j0 / kBlock); }

  void multiply_square(const SoftmaxRows& s, const PairPanels& k, std::int64_t c, float* to, std::int64_t ld) const {
    Unit::template multiply<SquareWrite::overwrite>(scratch_.queries.at(s.r), plan_.D_padded, k.from(c / kTileCols, 0),
                                                    plan_.D_padded, to, ld);
  }

  /// Calls weights_of() for some columns of the strip. Tracks the largest exponents if max_logit is requested.
  template <class Rule>
  void add_weights(SoftmaxRows& s, const StripScores& columns, float factor, const Rule& rule) const {
    if (softmax_.keeps_largest())
      return weights_of<true>(columns, factor, s.negated_maxima, s.sums, s.row_max_exponents, rule);
    weights_of<false>(columns, factor, s.negated_maxima, s.sums, s.row_max_exponents, rule);
  }

  /// Computes the strip's weights relative to its current running maxima.
  /// Adds columns in the same order whether score rules are applied in registers or in memory.
  void weigh_near_maxima(BlockStrip& s) const {
    const auto in_part = [&](std::int64_t c0, std::int64_t c1) {
      if (c0 >= c1) return;
      score(s, c0, c1);
      weigh(s, c0, c1);
    };
    if (s.at.whole0 >= s.at.whole1) return in_part(s.at.c0, s.at.c1);
    if (plan_.rules.any() && !fused_.in_registers()) {
      in_part(s.at.whole0, s.at.whole1);
    } else {
      weigh_whole(s);
    }
    in_part(s.at.c0, s.at.whole0);
    in_part(s.at.whole1, s.at.c1);
  }

  /// Computes the weights of the squares in which every row of the strip sees every key.
  void weigh_whole(BlockStrip& s) const {
    const float factor = plan_.rules.query_factor();
    const PairPanels k = block_keys(s);
    // Starts the product of the next square before the exponentials of the current square, so that the two overlap.
    HWY_ALIGN float squares[2][kSquare * kSquare];
    const auto multiply = [&](std::int64_t c) {
      if (c < s.at.whole1) multiply_square(s, k, c, squares[c / kSquare % 2], kSquare);
    };
    multiply(s.at.whole0);
    for (std::int64_t c = s.at.whole0; c < s.at.whole1; c += kSquare) {
      multiply(c + kSquare);
      const StripScores columns{squares[c / kSquare % 2], kSquare, s.rows, kSquare, scratch_.weights.at(0, c),
                                Plan::kWeightStride};
      if (!plan_.rules.any()) {
        add_weights(s, columns, factor, NoRule());
      } else {
        s.rules.visit<Overflow::handled>(fused_, c,
                                         [&](const auto& rule) HWY_ATTR { add_weights(s, columns, factor, rule); });
      }
    }
  }

  const Plan& plan_;
  const ForwardProblem& p_;
  const Native16ForwardBuffers& shared_;
  int thread_;
  const Native16ForwardScratch scratch_;
  const OnlineSoftmax<float> softmax_;  // softmax of the current query tile
  const FusedRules fused_;              // where biases and masks are applied: in registers or memory
  const ShownKeys shown_;
  [[no_unique_address]] Unit unit_;  // configures AMX for this thread while the object exists
  const PackedHeads* head_ = nullptr;
  Sequence sequence_;
  Visibility visibility_;
  std::int64_t h_ = 0, i0_ = 0, count_ = 0;
  /// for each strip of the tile: true if the last key block raised a running maximum by more than kSlack
  mutable std::array<bool, Plan::kTile / kSquare> rose_{};
};

void native16_forward_on(const ForwardProblem& p, const WorkList& list, WorkSlot& slot) {
  if (native16_unit(p.context.target) == Native16Unit::tiles) {
    plan_forward<Native16ForwardWorker<Tiles>, Native16ForwardPlan, Native16ForwardBuffers>(p, list, slot);
  } else {
    plan_forward<Native16ForwardWorker<Dots>, Native16ForwardPlan, Native16ForwardBuffers>(p, list, slot);
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_AVX3

#if HWY_ONCE
namespace headgate {

void native16_forward([[maybe_unused]] const ForwardProblem& problem, [[maybe_unused]] const WorkList& list,
                      [[maybe_unused]] WorkSlot& slot) {
#if (HWY_TARGETS & HWY_AVX3) != 0
  N_AVX3::native16_forward_on(problem, list, slot);
#endif
}

}  // namespace headgate
#endif  // HWY_ONCE
