// SPDX-License-Identifier: Apache-2.0
// Computes the backward pass with bf16 products (Precision::native16). Stages and summation order match
// backward_kernel.cc:
//   P = exp(q kᵀ − lse)    dP = d_o vᵀ    dvᵀ += d_oᵀ P    dkᵀ += qᵀ ds    dq += ds k,    ds = P ∘ (dP − Δ).
// Products round d_o, P and ds to bf16; sums, Δ and exponentials are f32. dk and dv accumulate transposed, so that P
// and ds can be stored directly as right operands, in pairs of rows.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/visibility.hpp"
#include "library/attention/cpu/kernels.hpp"
#include "library/call/native16.hpp"
#include "library/core/turnstile.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/attention/cpu/bf16/native16_backward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Per-target headers must follow foreach_target.h.
#include "library/attention/cpu/bf16/native16_backward_plan-inl.hpp"
#include "library/attention/cpu/bf16/pack_pairs-inl.hpp"
#include "library/attention/cpu/common/backward_rows-inl.hpp"
#include "library/attention/cpu/common/backward_run-inl.hpp"
#include "library/attention/cpu/common/bias_gradient-inl.hpp"
#include "library/attention/cpu/common/register_rules-inl.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/cpu/common/shown_keys-inl.hpp"
#include "library/core/bf16_products-inl.hpp"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Operands and results of gradients_of(), for a square of kSquare queries by kSquare keys.
struct GradientSquare {
  const float* scores;     ///< q kᵀ, or scores times log2(e) from rule_and_hide(), (kSquare, kSquare)
  const float* dp;         ///< d_o vᵀ, where d_o is the gradient of the ungated output, (kSquare, kSquare)
  const float* slope;      ///< softcap's derivative at each score, (kSquare, kSquare); null without softcap
  const float* lse;        ///< log-sum-exp of each query's scores, times log2(e), (kSquare)
  const float* lse_error;  ///< rounding error of each element of `lse`, (kSquare)
  const float* delta;      ///< Δ − dlse of each query, where Δ = rowsum(d_o ∘ o), (kSquare)
  BFloat16* weight_pairs;  ///< destination of the weights P: two panels of 16 keys, panel_stride elements apart
  BFloat16* ds_pairs;
  std::int64_t panel_stride;
  BFloat16* ds;  ///< destination of ds, the gradient of the scores, row-major with row stride ld
  std::int64_t ld;
  BiasGradient<float>::Destination dbias;  ///< receives ds without softcap's derivative; absent if dbias is absent
};

/// Interleaves two bf16 rows of P or ds (queries 2n and 2n + 1) over 32 keys.
/// Stores 16 of the keys in one panel and 16 in the next, in the order of key_column().
HWY_INLINE void store_pairs(BFloat16* to, std::int64_t panel_stride, __m512i even, __m512i odd) {
  _mm512_storeu_si512(to, _mm512_unpacklo_epi16(even, odd));
  _mm512_storeu_si512(to + panel_stride, _mm512_unpackhi_epi16(even, odd));
}

/// Returns the column in which store_pairs() places key j of a block.
/// Of every 32 keys, groups of four alternate between two panels:
///   first panel    keys 0–3, 8–11, 16–19 and 24–27;
///   second panel   keys 4–7, 12–15, 20–23 and 28–31.
constexpr std::int64_t key_column(std::int64_t j) { return j / 32 * 32 + j / 4 % 2 * 16 + j % 32 / 8 * 4 + j % 4; }

/// Computes the weights P and the gradient ds of the scores for one square, and stores both as bf16.
/// P = exp2(s − lse) and ds = P ∘ (dp − delta) ∘ slope, where s is factor · scores.
/// If Rule is RegisterRules, `rule` applies biases and masks to s.
template <class Rule>
HEADGATE_DOTS_ATTR HWY_NOINLINE void gradients_of(const GradientSquare& s, float factor, const Rule& rule) {
  constexpr bool kHasRule = !std::is_same_v<Rule, NoRule>;
  const Tag<float> d;
  constexpr std::int64_t kN = kLanes<float>;
  const auto f = hn::Set(d, factor);
  if constexpr (kHasRule) rule.template prefetch<kSquare, kSquare>();
  const auto exponent = [&](std::int64_t m, std::int64_t x, hn::Vec<Tag<float>> lse) HWY_ATTR {
    const auto score = hn::Load(d, s.scores + m * kSquare + x);
    if constexpr (kHasRule) return hn::Sub(rule.apply(hn::Mul(f, score), m, x), lse);
    return hn::MulSub(f, score, lse);
  };
  for (std::int64_t m = 0; m < kSquare; m += 2) {
    __m512i weights[2], ds[2];
    HWY_UNROLL(2) for (std::int64_t r = 0; r < 2; ++r) {
      const std::int64_t at = (m + r) * kSquare;
      const auto lse = hn::Set(d, s.lse[m + r]);
      const auto delta = hn::Set(d, s.delta[m + r]);
      auto p0 = exp2_fast(d, exponent(m + r, 0, lse));
      auto p1 = exp2_fast(d, exponent(m + r, kN, lse));
      if (has_coarse_lse(s.lse[m + r])) {
        const auto scale = hn::Set(d, std::exp2(-s.lse_error[m + r]));
        p0 = corrected_weight(d, p0, scale);
        p1 = corrected_weight(d, p1, scale);
      }
      auto ds0 = zero_where_zero(d, p0, hn::Mul(p0, hn::Sub(hn::Load(d, s.dp + at), delta)));
      auto ds1 = zero_where_zero(d, p1, hn::Mul(p1, hn::Sub(hn::Load(d, s.dp + at + kN), delta)));
      if (s.dbias.sums != nullptr) {
        float* const to = s.dbias.sums + (m + r) * s.dbias.row_stride;
        hn::StoreU(hn::Add(hn::LoadU(d, to), ds0), d, to);
        hn::StoreU(hn::Add(hn::LoadU(d, to + kN), ds1), d, to + kN);
      } else if (s.dbias.terms != nullptr) {
        // Rounds like BiasGradient::add(). halves_of() is not used here, because it would flush subnormal numbers.
        BFloat16* const to = s.dbias.terms + (m + r) * s.dbias.row_stride;
        store_bf16(ds0, to);
        store_bf16(ds1, to + kN);
      }
      if (s.slope != nullptr) {
        ds0 = hn::Mul(ds0, hn::Load(d, s.slope + at));
        ds1 = hn::Mul(ds1, hn::Load(d, s.slope + at + kN));
      }
      weights[r] = halves_of(p0.raw, p1.raw);
      ds[r] = halves_of(ds0.raw, ds1.raw);
      _mm512_storeu_si512(s.ds + (m + r) * s.ld, ds[r]);
    }
    store_pairs(s.weight_pairs + m * kTileCols, s.panel_stride, weights[0], weights[1]);
    store_pairs(s.ds_pairs + m * kTileCols, s.panel_stride, ds[0], ds[1]);
  }
}

/// Transposes a dense bf16 matrix: `to` = `from`ᵀ. The numbers of rows and columns are multiples of 32.
HWY_NOINLINE void transpose_halves(const View<BFloat16, 2>& to, const View<BFloat16, 2>& from) {
  for (std::int64_t r = 0; r < from.shape[0]; r += 32) {
    for (std::int64_t c = 0; c < from.shape[1]; c += 16) {
      __m512i x[16];
      for (std::int64_t n = 0; n < 16; ++n) {
        const auto* even = reinterpret_cast<const __m256i*>(from.at(r + 2 * n, c));
        const auto* odd = reinterpret_cast<const __m256i*>(from.at(r + 2 * n + 1, c));
        x[n] = _mm512_or_si512(_mm512_cvtepu16_epi32(_mm256_loadu_si256(even)),
                               _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(odd)), 16));
      }
      transpose_words(x);
      for (std::int64_t n = 0; n < 16; ++n) _mm512_storeu_si512(to.at(c + n, r), x[n]);
    }
  }
}

/// Computes the tasks of one thread in the backward pass.
template <class Unit>
class Native16BackwardWorker {
 public:
  using Plan = Native16BackwardPlan;
  static constexpr std::int64_t kTile = Plan::kTile;
  static constexpr std::int64_t kBlock = Plan::kBlock;

  Native16BackwardWorker(const Plan& plan, const Native16BackwardBuffers& shared, int thread)
      : plan_(plan),
        p_(plan.p),
        shared_(shared),
        thread_(thread),
        scratch_(place_buffers<Native16BackwardScratch>(shared.scratch.at(thread), plan)),
        dbias_(plan.p, plan.dbias, shared.dbias, scratch_.dbias),
        shown_(p_) {}

  const BiasGradient<float>& dbias() const { return dbias_; }

  /// Selects key/value head h of `part` for the following calls.
  void select(const PackedHeads& part, std::int64_t h) {
    part_ = &part;
    sequence_ = part.sequence;
    hkv_ = h;
  }

  /// Computes one whole key/value head. Packs the operands for this thread alone.
  void run_head(const HeadTask& head, const HeadTask& /*next*/) {
    const PackedHeads own = head.as_part(plan_.max_head_counts, p_.group, thread_);
    select(own, head.h);
    const std::int64_t query_tiles = p_.group * own.tiles;
    for (std::int64_t block = 0; block < own.blocks; ++block) pack_keys(block);
    for (std::int64_t n = 0; n < query_tiles; ++n) prepare_queries(n / own.tiles, n % own.tiles);
    for (std::int64_t block = 0; block < own.blocks; ++block) run_block(block);
    for (std::int64_t n = 0; n < query_tiles; ++n) write_dq(n / own.tiles, n % own.tiles);
  }

  /// Packs the keys and values of a block, up to the last key that any query sees.
  void pack_keys(std::int64_t block) const {
    const KeyRange seen = Visibility(p_, sequence_).rows(0, sequence_.T);
    const std::int64_t j0 = block * kBlock;
    const std::int64_t n = std::min(j0 + kBlock, seen.end) - j0;
    if (std::max(j0, seen.begin) >= j0 + n) return;  // no query sees the block
    const KeyRows k = rows_of_keys(p_, sequence_, hkv_);
    pack_pairs_of_transpose(shared_.keys_t.at(packed_block(block)), k, j0, n, scratch_.packing);
    pack_pairs_of_rows(key_rows_of(block), 0, k, j0, n, scratch_.packing);
    pack_pairs_of_transpose(shared_.values_t.at(packed_block(block)), rows_of_values(p_, sequence_, hkv_), j0, n,
                            scratch_.packing);
  }

  /// Prepares a query tile:
  ///   packs q and d_o (the gradient of the ungated output), both row-major and transposed;
  ///   computes lse, dz, and Δ − dlse, where Δ = rowsum(d_o ∘ o);
  ///   sums the tile's contribution to dsinks;
  ///   clears dq.
  void prepare_queries(std::int64_t g, std::int64_t tile) const {
    const std::int64_t batch = packed_tile(g, tile), h = query_head(g), i0 = tile * kTile;
    const std::int64_t n = std::min(kTile, sequence_.T - i0), padded = whole_squares(n);
    const View<BFloat16, 2> q = shared_.q.sub(batch), d_o = shared_.d_o.sub(batch);
    float* lse = shared_.lse.at(batch);
    float* lse_error = shared_.lse_error.at(batch);
    float* delta = shared_.delta.at(batch);
    // Pads the tile with zero rows to a multiple of kSquare queries. lse = ∞ makes P = 0 in the padding.
    std::fill(lse + n, lse + padded, std::numeric_limits<float>::infinity());
    std::fill(lse_error + n, lse_error + padded, 0.0F);
    std::fill(delta + n, delta + padded, 0.0F);
    if (n < padded) {
      std::fill_n(q.at(n), (padded - n) * plan_.D_padded, BFloat16{});
      std::fill_n(d_o.at(n), (padded - n) * plan_.Dv_padded, BFloat16{});
    }
    const QueryRows from(p_, sequence_, h);
    const HeadRows<const void> queries = query_rows(p_.inputs.q, sequence_, h);
    std::fill_n(scratch_.d_o.data, plan_.Dv_padded, 0.0F);
    double sink_part = 0;
    for (std::int64_t r = 0; r < n; ++r) {
      prepare_row(p_, scratch_, from, i0 + r, scratch_.d_o.data, lse + r, lse_error + r, delta + r, &sink_part);
      round_row(d_o.at(r), scratch_.d_o.data, plan_.Dv_padded);
      load_halves_padded(q.at(r), queries.at<BFloat16>(i0 + r, 0, p_.D), queries.stride, p_.D);
    }
    if (plan_.sink_parts.present()) plan_.sink_parts(part_->tiles_before + tile, h) = sink_part;
    transpose_halves(shared_.q_t.sub(batch), q.range(0, 0, padded));
    transpose_halves(shared_.d_o_t.sub(batch), d_o.range(0, 0, padded));
    std::fill_n(shared_.dq.at(batch), padded * plan_.D_padded, 0.0F);
    shared_.dq_turns(batch) = 0;
  }

  /// Adds the contributions of one key block to dk, dv and dq.
  /// Computes query heads in ascending order, and the query tiles of each head in ascending order.
  void run_block(std::int64_t block) const {
    const Visibility visibility(p_, sequence_);
    const std::int64_t j0 = block * kBlock;
    const std::int64_t keys = std::min(kBlock, sequence_.S - j0);
    std::fill_n(scratch_.dk_t.data, scratch_.dk_t.count(), 0.0F);
    std::fill_n(scratch_.dv_t.data, scratch_.dv_t.count(), 0.0F);
    for (std::int64_t g = 0; g < p_.group; ++g) {
      const std::int64_t h = query_head(g);
      dbias_.begin_block();
      for (std::int64_t tile = 0; tile < part_->tiles; ++tile) {
        const std::int64_t i0 = tile * kTile;
        const Tile t{visibility, h, packed_tile(g, tile), i0, std::min(kTile, sequence_.T - i0), block, j0, keys};
        dbias_.enter_tile(*part_, h, tile, block);
        score_tile(t);
        dbias_.leave_tile(*part_, h, tile, block);
        add_key_gradients(t);
        add_query_gradient(t);
      }
      dbias_.end_block(*part_, h, block, j0, keys);
    }
    write_key_rows(key_rows(p_.gradients.dk, sequence_, hkv_), scratch_.dk_t, j0, keys, static_cast<float>(p_.scale));
    write_key_rows(key_rows(p_.gradients.dv, sequence_, hkv_), scratch_.dv_t, j0, keys, 1.0F);
  }

  void write_dq(std::int64_t g, std::int64_t tile) const {
    const std::int64_t i0 = tile * kTile;
    const View<float, 2> sums = shared_.dq.sub(packed_tile(g, tile)).range(0, 0, std::min(kTile, sequence_.T - i0));
    write_rows(query_rows(p_.gradients.dq, sequence_, query_head(g)), sums, i0, static_cast<float>(p_.scale),
               scratch_.scaled.data);
  }

 private:
  /// One query tile paired with one key block.
  struct Tile {
    const Visibility& visibility;
    std::int64_t h, batch;   // query head; index of the query tile in the packed buffers
    std::int64_t i0, rows;   // first query of the tile; number of queries, at most kTile
    std::int64_t block, j0;  // index of the key block; first key of the block
    std::int64_t keys;       // number of keys in the block, at most kBlock
  };

  std::int64_t query_head(std::int64_t g) const { return hkv_ * p_.group + g; }
  std::int64_t packed_tile(std::int64_t g, std::int64_t tile) const { return part_->tile_of(hkv_, p_.group, g) + tile; }
  std::int64_t packed_block(std::int64_t block) const { return part_->block_of(hkv_) + block; }
  /// Returns the block's packed keys, one key per row: the right operand k of the product dq += ds k.
  PairPanels key_rows_of(std::int64_t block) const {
    return {shared_.keys.at(packed_block(block)), kTileCols * plan_.block_rows};
  }
  PairPanels pairs_of(const View<BFloat16, 2>& pairs) const { return {pairs.data, pairs.shape[1]}; }

  /// Returns the keys of the block that queries r … r + kSquare of the tile see, as a range of columns.
  /// Extends the range to multiples of kSquare.
  KeyRange squares_of(const Tile& t, std::int64_t r) const {
    const std::int64_t i = t.i0 + r, rows = std::min(kSquare, t.rows - r);
    const KeyRange seen = shown_.columns(t.visibility.rows(i, i + rows), t.j0, kBlock, sequence_, t.h, rows,
                                         [&](std::int64_t m) { return i + m; });
    return {seen.begin / kSquare * kSquare, whole_squares(seen.end)};
  }
  const KeyRange& squares_at(std::int64_t r) const { return squares_[static_cast<std::size_t>(r / kSquare)]; }

  /// Computes the weights P and the gradient ds of the scores of a tile, and adds ds to dbias.
  /// Hidden keys get zeros. Sets squares_, the columns for which P and ds are computed.
  void score_tile(const Tile& t) const {
    RuleAddresses<float, kSquare> rules;
    for (std::int64_t r = 0; r < t.rows; r += kSquare) {
      const KeyRange squares = squares_[static_cast<std::size_t>(r / kSquare)] = squares_of(t, r);
      if (squares.empty()) continue;
      const bool in_registers = has_register_rules(t, r);
      if (in_registers) {
        rules.find(plan_.fused, plan_.rules, p_.inputs, sequence_, t.h, kSquare, t.j0,
                   [&](std::int64_t m) { return t.i0 + r + m; });
      }
      // Starts the products of the next square before the current square is finished, so that the two overlap.
      multiply_square(t, r, squares.begin);
      for (std::int64_t c = squares.begin; c < squares.end; c += kSquare) {
        if (c + kSquare < squares.end) multiply_square(t, r, c + kSquare);
        finish_square(t, r, c, in_registers ? &rules : nullptr);
      }
    }
  }

  /// Returns true if biases and masks can be applied in registers to rows r … r + kSquare of a tile.
  /// Returns false in two cases:
  ///   some rows are padding, for which a bias has no elements;
  ///   |lse| is large. P could then differ, because RegisterRules does not clamp biases as ScoreRules does.
  bool has_register_rules(const Tile& t, std::int64_t r) const {
    constexpr float kMost = 1e30F;
    if (!plan_.fused.in_registers() || r + kSquare > t.rows) return false;
    const float* lse = shared_.lse.at(t.batch, r);
    return std::all_of(lse, lse + kSquare, [](float x) { return std::abs(x) < kMost; });
  }

  float* scores_at(std::int64_t c) const { return scratch_.squares.at(c / kSquare % 2); }
  float* dp_at(std::int64_t c) const { return scratch_.squares.at(2 + c / kSquare % 2); }

  void multiply_square(const Tile& t, std::int64_t r, std::int64_t c) const {
    const std::int64_t D = plan_.D_padded, Dv = plan_.Dv_padded;
    const PairPanels keys{shared_.keys_t.at(packed_block(t.block)), kTileCols * D};
    const PairPanels values{shared_.values_t.at(packed_block(t.block)), kTileCols * Dv};
    Unit::template multiply<SquareWrite::overwrite>(shared_.q.at(t.batch, r), D, keys.from(c / kTileCols, 0), D,
                                                    scores_at(c), kSquare);
    Unit::template multiply<SquareWrite::overwrite>(shared_.d_o.at(t.batch, r), Dv, values.from(c / kTileCols, 0), Dv,
                                                    dp_at(c), kSquare);
  }

  /// Computes the weights P and the gradient ds of the scores of a square from its products q kᵀ and d_o vᵀ.
  /// If `rules` is null, applies biases and masks in memory.
  void finish_square(const Tile& t, std::int64_t r, std::int64_t c, const RuleAddresses<float, kSquare>* rules) const {
    const std::int64_t first = t.i0 + r, last = std::min(first + kSquare, t.i0 + t.rows) - 1;
    const bool whole = t.visibility.row(last).begin <= t.j0 + c && t.visibility.row(first).end >= t.j0 + c + kSquare;
    const bool has_padding = r + kSquare > t.rows || c + kSquare > t.keys;
    BiasGradient<float>::Destination dbias;
    if (dbias_.wanted() && !has_padding) dbias = dbias_.destination(sequence_, t.h, first, t.j0, c);
    const bool adds_rows = dbias_.wanted() && !dbias.present();
    if (adds_rows) {
      dbias = {.sums = scratch_.bias_ds.data, .row_stride = kSquare};
      std::fill_n(dbias.sums, kSquare * kSquare, 0.0F);
    }
    const GradientSquare square{scores_at(c),
                                dp_at(c),
                                scratch_.slope.data,
                                shared_.lse.at(t.batch, r),
                                shared_.lse_error.at(t.batch, r),
                                shared_.delta.at(t.batch, r),
                                pairs_of(scratch_.weight_pairs).at(c / kTileCols, r),
                                pairs_of(scratch_.ds_pairs).at(c / kTileCols, r),
                                scratch_.ds_pairs.shape[1],
                                scratch_.ds.at(r, c),
                                Plan::kScoreStride,
                                dbias};
    const float factor = plan_.rules.query_factor();
    if (whole && rules != nullptr) {
      rules->visit<Overflow::handled>(plan_.fused, c,
                                      [&](const auto& rule) HWY_ATTR { gradients_of(square, factor, rule); });
    } else if (whole && !plan_.rules.any()) {
      gradients_of(square, factor, NoRule());
    } else {
      rule_and_hide(t, r, c);
      gradients_of(square, 1.0F, NoRule());
    }
    if (adds_rows) add_bias_gradient(t, r, c);
  }

  /// Adds scratch_.bias_ds to dbias: the gradient of the scores of the square at row r and column c of the tile.
  void add_bias_gradient(const Tile& t, std::int64_t r, std::int64_t c) const {
    const std::int64_t keys = std::min(kSquare, t.keys - c);
    for (std::int64_t m = 0; m < std::min(kSquare, t.rows - r); ++m)
      dbias_.add(sequence_, t.h, t.i0 + r + m, t.j0, c, keys, scratch_.bias_ds.at(m));
  }

  /// Turns products into scores times log2(e): multiplies the square by the query factor and applies the score rules.
  /// Sets the scores of hidden keys to −∞.
  void rule_and_hide(const Tile& t, std::int64_t r, std::int64_t c) const {
    const float factor = plan_.rules.query_factor();
    constexpr float kHidden = -std::numeric_limits<float>::infinity();
    std::fill_n(scratch_.slope.data, scratch_.slope.count(), 0.0F);
    for (std::int64_t m = 0; m < std::min(kSquare, t.rows - r); ++m) {
      const std::int64_t i = t.i0 + r + m, first = t.j0 + c;
      const KeyRange seen = t.visibility.row(i);
      const std::int64_t begin = std::clamp<std::int64_t>(seen.begin - first, 0, kSquare);
      const std::int64_t end = std::max(begin, std::clamp<std::int64_t>(seen.end - first, 0, kSquare));
      float* row = scores_at(c) + m * kSquare;
      for (std::int64_t j = 0; j < kSquare; ++j) row[j] *= factor;
      if (plan_.rules.any() && begin < end) {
        float* slope = plan_.rules.capped() ? scratch_.slope.at(m) : nullptr;
        plan_.rules.apply(row + begin, slope == nullptr ? nullptr : slope + begin, sequence_, t.h, i, first + begin,
                          end - begin, scratch_.rule_row.data);
      }
      std::fill(row, row + begin, kHidden);
      std::fill(row + end, row + kSquare, kHidden);
    }
  }

  /// Adds d_oᵀ P to dvᵀ, and qᵀ ds to dkᵀ, kSquare keys at a time. Reads only squares that score_tile() computed.
  void add_key_gradients(const Tile& t) const {
    for (std::int64_t c = 0; c < t.keys; c += kSquare) {
      const auto is_visited = [&](std::int64_t r) { return squares_at(r).begin <= c && c < squares_at(r).end; };
      for (std::int64_t begin = 0; begin < t.rows; begin += kSquare) {
        if (!is_visited(begin)) continue;
        std::int64_t end = begin + kSquare;
        while (end < t.rows && is_visited(end)) end += kSquare;
        add_keys_of_rows(t, c, begin, end);
        begin = end;
      }
    }
  }

  /// Adds the contributions of queries [begin, end) of a tile to dvᵀ and dkᵀ, for kSquare keys from column c on.
  void add_keys_of_rows(const Tile& t, std::int64_t c, std::int64_t begin, std::int64_t end) const {
    const auto add = [&](const View<float, 2>& to, const View<BFloat16, 3>& left, const View<BFloat16, 2>& right) {
      for (std::int64_t x = 0; x < to.shape[0]; x += kSquare) {
        Unit::template multiply<SquareWrite::accumulate>(left.at(t.batch, x, begin), plan_.tile_rows,
                                                         pairs_of(right).from(c / kTileCols, begin), end - begin,
                                                         to.at(x, c), to.shape[1]);
      }
    };
    if (p_.gradients.dv.present()) add(scratch_.dv_t, shared_.d_o_t, scratch_.weight_pairs);
    if (p_.gradients.dk.present()) add(scratch_.dk_t, shared_.q_t, scratch_.ds_pairs);
  }

  /// Adds the product ds k to dq of a query tile.
  /// Key blocks add in ascending order (Turnstile), so that results are deterministic.
  /// A block takes its turn even if a mask hides all its keys from the tile.
  void add_query_gradient(const Tile& t) const {
    if (!p_.gradients.dq.present()) return;
    const KeyRange visited = t.visibility.rows(t.i0, t.i0 + t.rows);
    if (std::max(visited.begin, t.j0) >= std::min(visited.end, t.j0 + kBlock)) return;
    const std::int64_t first_block = visited.begin / kBlock;
    const PairPanels k = key_rows_of(t.block);
    const Turnstile turnstile(shared_.dq_turns(t.batch));
    turnstile.enter(t.block - first_block);
    for (std::int64_t r = 0; r < t.rows; r += kSquare) {
      const KeyRange squares = squares_at(r);
      if (squares.empty()) continue;
      for (std::int64_t x = 0; x < plan_.D_padded; x += kSquare) {
        Unit::template multiply<SquareWrite::accumulate>(
            scratch_.ds.at(r, squares.begin), Plan::kScoreStride, k.from(x / kTileCols, squares.begin),
            squares.end - squares.begin, shared_.dq.at(t.batch, r, x), plan_.D_padded);
      }
    }
    turnstile.leave(t.block - first_block);
  }

  /// Transposes `sums`, multiplies them by `factor`, and writes them to rows j0 … j0 + keys of dk or dv.
  void write_key_rows(const HeadRows<void>& to, const View<float, 2>& sums, std::int64_t j0, std::int64_t keys,
                      float factor) const {
    if (!to.present()) return;
    for (std::int64_t c = 0; c < keys; c += kSquare) {
      for (std::int64_t part = 0; part < kSquare; part += 16) {
        for (std::int64_t x = 0; x < sums.shape[0]; x += 16) {
          __m512i block[16];
          for (std::int64_t n = 0; n < 16; ++n) block[n] = _mm512_loadu_si512(sums.at(x + n, c + part));
          transpose_words(block);
          for (std::int64_t n = 0; n < 16; ++n) _mm512_storeu_si512(scratch_.transposed.at(part + n, x), block[n]);
        }
      }
      for (std::int64_t j = c; j < std::min(c + kSquare, keys); ++j) {
        const View<float, 2> row = scratch_.transposed.range(0, key_column(j) - c, 1);
        write_rows(to, row, j0 + j, factor, scratch_.scaled.data);
      }
    }
  }

  const Plan& plan_;
  const BackwardProblem& p_;
  const Native16BackwardBuffers& shared_;
  int thread_;
  const Native16BackwardScratch scratch_;
  const BiasGradient<float> dbias_;
  const ShownKeys shown_;
  [[no_unique_address]] Unit unit_;  // configures AMX for this thread while the object exists
  const PackedHeads* part_ = nullptr;
  Sequence sequence_;
  std::int64_t hkv_ = 0;
  /// for each strip of kSquare rows of the current tile, the columns that squares_of() returned
  mutable std::array<KeyRange, kTile / kSquare> squares_{};
};

void native16_backward_on(const BackwardProblem& p, const View<double, 2>& sink_parts, const WorkList& list,
                          WorkSlot& slot) {
  if (native16_unit(p.context.target) == Native16Unit::tiles) {
    plan_backward<Native16BackwardWorker<Tiles>, Native16BackwardPlan, Native16BackwardBuffers>(p, sink_parts, list,
                                                                                                slot);
  } else {
    plan_backward<Native16BackwardWorker<Dots>, Native16BackwardPlan, Native16BackwardBuffers>(p, sink_parts, list,
                                                                                               slot);
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_AVX3

#if HWY_ONCE
namespace headgate {

void native16_backward([[maybe_unused]] const BackwardProblem& problem,
                       [[maybe_unused]] const View<double, 2>& sink_parts, [[maybe_unused]] const WorkList& list,
                       [[maybe_unused]] WorkSlot& slot) {
#if (HWY_TARGETS & HWY_AVX3) != 0
  N_AVX3::native16_backward_on(problem, sink_parts, list, slot);
#endif
}

}  // namespace headgate
#endif  // HWY_ONCE
