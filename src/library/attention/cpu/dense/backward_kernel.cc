// SPDX-License-Identifier: Apache-2.0
// Computes the backward pass of gated attention with five products per tile:
//   P = exp(q kᵀ − lse)    dP = d_o vᵀ    dv += Pᵀ d_o    dk += dsᵀ q    dq += ds k,    ds = P ∘ (dP − Δ).
// Dropout M changes two products: dP = M ∘ d_o vᵀ and dv += (P ∘ M)ᵀ d_o.
// The three stages are: pack and prepare rows; compute tiles by key block; write dq. dk and dv are overwritten; all
// sums are in T.

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/visibility.hpp"
#include "library/attention/cpu/kernels.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/turnstile.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/attention/cpu/dense/backward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Per-target headers must follow foreach_target.h.
#include "library/attention/cpu/common/backward_rows-inl.hpp"
#include "library/attention/cpu/common/backward_run-inl.hpp"
#include "library/attention/cpu/common/bias_gradient-inl.hpp"
#include "library/attention/cpu/common/dropout-inl.hpp"
#include "library/attention/cpu/common/multiply-inl.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/cpu/common/shown_keys-inl.hpp"
#include "library/attention/cpu/dense/backward_plan-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Computes the tasks of one thread in the backward pass.
template <typename T>
class BackwardWorker {
 public:
  using Plan = BackwardPlan<T>;
  static constexpr std::int64_t kTile = Plan::kTile;
  static constexpr std::int64_t kBlock = Plan::kBlock;

  BackwardWorker(const Plan& plan, const BackwardBuffers<T>& shared, int thread)
      : plan_(plan),
        p_(plan.p),
        shared_(shared),
        thread_(thread),
        scratch_(place_buffers<BackwardScratch<T>>(shared.scratch.at(thread), plan)),
        dbias_(plan.p, plan.dbias, shared.dbias, scratch_.dbias),
        shown_(p_) {}

  /// Selects key/value head h of `part` for the following calls.
  void select(const PackedHeads& part, std::int64_t h) {
    part_ = &part;
    sequence_ = part.sequence;
    hkv_ = h;
  }

  void run_head(const HeadTask& head, const HeadTask& next);
  void pack_keys(std::int64_t block) const;
  void prepare_queries(std::int64_t g, std::int64_t tile) const;
  void run_block(std::int64_t block) const;
  void write_dq(std::int64_t g, std::int64_t tile) const;
  const BiasGradient<T>& dbias() const { return dbias_; }

 private:
  struct Tile;
  struct Strip;

  std::int64_t query_head(std::int64_t g) const { return hkv_ * p_.group + g; }
  /// The next two functions return the index of a query tile or key block among all those of the batch.
  std::int64_t packed_tile(std::int64_t g, std::int64_t tile) const { return part_->tile_of(hkv_, p_.group, g) + tile; }
  std::int64_t packed_block(std::int64_t block) const { return part_->block_of(hkv_) + block; }
  ColumnPanels<T> key_panels(std::int64_t block) const {
    return {shared_.keys.at(packed_block(block)), plan_.block_rows, plan_.D_padded};
  }
  ColumnPanels<T> query_panels(std::int64_t g, std::int64_t tile) const {
    return {shared_.query_panels.at(packed_tile(g, tile)), plan_.tile_rows, plan_.D_padded};
  }
  ColumnPanels<T> out_panels(std::int64_t g, std::int64_t tile) const {
    return {shared_.out_panels.at(packed_tile(g, tile)), plan_.tile_rows, plan_.Dv_padded};
  }

  void prefetch_next_head(const HeadTask& next);
  KeyRange columns_of(const Tile& t, std::int64_t r) const;
  bool score_tile(const Tile& t) const;
  void multiply_columns(const View<T, 2>& to, const T* left, const View<T, 3>& right, const Strip& s,
                        const HeadRows<const void>& map) const;
  HeadRows<const void> part_of(const HeadRows<const void>& map, const Tile& t, const Strip& s) const;
  void probabilities(const Tile& t, const Strip& s) const;
  void score_gradients(const Tile& t, const Strip& s) const;
  void score_gradient_row(const Tile& t, const Strip& s, std::int64_t m, T delta) const;
  void add_key_gradients(const Tile& t) const;
  void add_query_gradient(const Tile& t) const;

  const Plan& plan_;
  const BackwardProblem& p_;
  const BackwardBuffers<T>& shared_;
  int thread_;
  const BackwardScratch<T> scratch_;
  const BiasGradient<T> dbias_;
  const ShownKeys shown_;
  const PackedHeads* part_ = nullptr;
  Sequence sequence_;
  std::int64_t hkv_ = 0;
  /// for each strip of the current tile: columns of the current block that the strip visits, or {}
  mutable std::array<KeyRange, kTile / kMR> seen_{};
  mutable std::array<RowPrefetch, 6> prefetches_{};  // objects that prefetch the next head's rows
};

/// One query tile paired with one key block.
template <typename T>
struct BackwardWorker<T>::Tile {
  const Visibility& visibility;
  std::int64_t g, h;                // query head within the group; query head of the sequence
  std::int64_t tile, i0;            // index of the tile; first query of the tile
  std::int64_t rows;                // number of queries, at most kTile
  std::int64_t block, j0;           // index of the key block; first key of the block
  std::int64_t keys;                // number of keys, at most kBlock
  View<T, 3> q_strips, d_o_strips;  // packed q and d_o of the tile
  View<T, 3> keys_t, values_t;      // packed k and v of the block, transposed
};

/// A strip of kMR query rows of a tile. The last strip of a tile may contain padding rows.
template <typename T>
struct BackwardWorker<T>::Strip {
  std::int64_t r;       // first row
  std::int64_t rows;    // number of rows that are not padding
  std::int64_t c0, c1;  // columns of the key block that the rows see, extended to whole panels
};

/// Computes one whole key/value head. Packs the operands for this thread alone.
/// `next` is the head that the thread will probably take next.
template <typename T>
void BackwardWorker<T>::run_head(const HeadTask& head, const HeadTask& next) {
  const PackedHeads own = head.as_part(plan_.max_head_counts, p_.group, thread_);
  select(own, head.h);
  const std::int64_t query_tiles = p_.group * own.tiles;
  for (std::int64_t block = 0; block < own.blocks; ++block) pack_keys(block);
  for (std::int64_t n = 0; n < query_tiles; ++n) prepare_queries(n / own.tiles, n % own.tiles);
  if (plan_.prefetches_heads) prefetch_next_head(next);
  for (std::int64_t block = 0; block < own.blocks; ++block) run_block(block);
  for (std::int64_t n = 0; n < query_tiles; ++n) write_dq(n / own.tiles, n % own.tiles);
}

/// Schedules prefetches of the next head's keys and values, and of its first query head's rows.
/// The prefetches run during the products of the current head.
template <typename T>
void BackwardWorker<T>::prefetch_next_head(const HeadTask& next) {
  prefetches_ = {};
  if (next.part == nullptr) return;
  const Sequence& s = next.part->sequence;
  const std::int64_t h = next.h * p_.group;
  const std::int64_t steps = 2 * divide_up(sequence_.T, kMR) * divide_up(sequence_.S, kNR<T>);
  prefetches_ = {
      prefetch_rows(key_rows(p_.inputs.k, s, next.h), steps), prefetch_rows(key_rows(p_.inputs.v, s, next.h), steps),
      prefetch_rows(query_rows(p_.incoming.dy, s, h), steps), prefetch_rows(query_rows(p_.saved.y, s, h), steps),
      prefetch_rows(query_rows(p_.inputs.gate, s, h), steps), prefetch_rows(query_rows(p_.inputs.q, s, h), steps)};
}

/// Packs the keys and values of a block, up to the last key that any query sees.
///   k is packed twice: transposed, and as panels;
///   v is packed transposed.
/// Keys before the first visible key are packed too. Keys after the last visible key are never read.
template <typename T>
void BackwardWorker<T>::pack_keys(std::int64_t block) const {
  const KeyRange seen = Visibility(p_, sequence_).rows(0, sequence_.T);
  const std::int64_t j0 = block * kBlock;
  const std::int64_t end = std::min(j0 + kBlock, seen.end);
  if (std::max(j0, seen.begin) >= end) return;  // no query sees the block
  const HeadRows k = key_rows(p_.inputs.k, sequence_, hkv_);
  const HeadRows v = key_rows(p_.inputs.v, sequence_, hkv_);
  pack_transposed(shared_.keys_t.sub(packed_block(block)), k, j0, end - j0, scratch_.packing);
  pack_panels(key_panels(block), 0, k, j0, end - j0, scratch_.packing);
  pack_transposed(shared_.values_t.sub(packed_block(block)), v, j0, end - j0, scratch_.packing);
}

/// Prepares a query tile:
///   packs q and d_o, the gradient of the ungated output;
///   computes lse, dz, and Δ − dlse, where Δ = rowsum(d_o ∘ o);
///   sums the tile's contribution to dsinks;
///   clears dq.
template <typename T>
void BackwardWorker<T>::prepare_queries(std::int64_t g, std::int64_t tile) const {
  const std::int64_t i0 = tile * kTile;
  const std::int64_t n = std::min(kTile, sequence_.T - i0);
  const View<T, 3> out_strips = shared_.out_strips.sub(packed_tile(g, tile));
  T* lse = shared_.lse.at(packed_tile(g, tile));
  T* lse_error = shared_.lse_error.at(packed_tile(g, tile));
  T* delta = shared_.delta.at(packed_tile(g, tile));
  // Pads the last strip with zero rows. lse = ∞ makes P = 0 in these rows. Sums over queries exclude the padding.
  const std::int64_t padded = round_up(n, kMR);
  std::fill(lse + n, lse + padded, std::numeric_limits<T>::infinity());
  std::fill(lse_error + n, lse_error + padded, T{0});
  std::fill(delta + n, delta + padded, T{0});
  if (n < padded) std::fill_n(out_strips.at(n / kMR), kMR * p_.Dv, T{0});
  const std::int64_t h = query_head(g);
  const QueryRows from(p_, sequence_, h);
  double sink_part = 0;
  const T* d_o[kMR];
  for (std::int64_t r0 = 0; r0 < n; r0 += kMR) {
    const std::int64_t rows = std::min(kMR, n - r0);
    for (std::int64_t m = 0; m < rows; ++m) {
      const std::int64_t r = r0 + m;
      prepare_row(p_, scratch_, from, i0 + r, scratch_.d_o.at(m), lse + r, lse_error + r, delta + r, &sink_part);
      copy_to_panels(out_panels(g, tile), r, scratch_.d_o.at(m));
      d_o[m] = scratch_.d_o.at(m);
    }
    interleave_rows<kMR>(out_strips.at(r0 / kMR), d_o, rows, p_.Dv, T{1});
  }
  if (plan_.sink_parts.present()) plan_.sink_parts(part_->tiles_before + tile, h) = sink_part;

  const HeadRows q = query_rows(p_.inputs.q, sequence_, h);
  pack_strips(shared_.query_strips.sub(packed_tile(g, tile)), q, i0, n, plan_.rules.query_factor(), scratch_.packing);
  pack_panels(query_panels(g, tile), 0, q, i0, n, scratch_.packing);
  std::fill_n(shared_.dq.at(packed_tile(g, tile)), padded * plan_.D_padded, T{0});
  shared_.dq_turns(packed_tile(g, tile)) = 0;
}

/// Adds the contributions of one key block to dk, dv and dq.
/// Visits query heads in ascending order, and the tiles of each head in ascending order.
template <typename T>
void BackwardWorker<T>::run_block(std::int64_t block) const {
  const Visibility visibility(p_, sequence_);
  const std::int64_t j0 = block * kBlock;
  const std::int64_t keys = std::min(kBlock, sequence_.S - j0);
  std::fill_n(scratch_.dk.data, scratch_.dk.count(), T{0});
  std::fill_n(scratch_.dv.data, scratch_.dv.count(), T{0});
  for (std::int64_t g = 0; g < p_.group; ++g) {
    const std::int64_t h = query_head(g);
    dbias_.begin_block();
    for (std::int64_t tile = 0; tile < part_->tiles; ++tile) {
      const std::int64_t i0 = tile * kTile;
      const Tile t{visibility,
                   g,
                   h,
                   tile,
                   i0,
                   std::min(kTile, sequence_.T - i0),
                   block,
                   j0,
                   keys,
                   shared_.query_strips.sub(packed_tile(g, tile)),
                   shared_.out_strips.sub(packed_tile(g, tile)),
                   shared_.keys_t.sub(packed_block(block)),
                   shared_.values_t.sub(packed_block(block))};
      dbias_.enter_tile(*part_, h, tile, block);
      const bool shown = score_tile(t);
      dbias_.leave_tile(*part_, h, tile, block);
      if (shown) add_key_gradients(t);
      add_query_gradient(t);
    }
    dbias_.end_block(*part_, h, block, j0, keys);
  }
  write_rows(key_rows(p_.gradients.dk, sequence_, hkv_), scratch_.dk.range(0, 0, keys), j0, static_cast<T>(p_.scale),
             scratch_.scaled.data);
  write_rows(key_rows(p_.gradients.dv, sequence_, hkv_), scratch_.dv.range(0, 0, keys), j0, T{1}, scratch_.scaled.data);
}

/// Returns the columns of the key block that a strip visits, or {} if there are none. The strip begins at row r of the
/// tile.
template <typename T>
KeyRange BackwardWorker<T>::columns_of(const Tile& t, std::int64_t r) const {
  const std::int64_t rows = std::min(t.rows - r, kMR);
  const KeyRange seen = t.visibility.rows(t.i0 + r, t.i0 + r + rows);
  return shown_.columns(seen, t.j0, kBlock, sequence_, t.h, rows, [&](std::int64_t m) { return t.i0 + r + m; });
}

/// Computes P and ds of the tile. Hidden keys get zeros. Sets seen_ to the columns that each strip visits.
/// If no query of the tile sees a key of the block, writes neither P nor ds and returns false.
template <typename T>
bool BackwardWorker<T>::score_tile(const Tile& t) const {
  const auto seen_of = [this](std::int64_t r) -> KeyRange& { return seen_[static_cast<std::size_t>(r / kMR)]; };
  bool any = false;
  for (std::int64_t r = 0; r < t.rows; r += kMR) {
    seen_of(r) = columns_of(t, r);
    any = any || !seen_of(r).empty();
  }
  for (std::int64_t r = 0; any && r < t.rows; r += kMR) {
    const KeyRange seen = seen_of(r);
    if (seen.empty()) {
      std::fill_n(scratch_.probabilities.at(r), kMR * Plan::kScoreStride, T{0});
      std::fill_n(scratch_.ds.at(r), kMR * Plan::kScoreStride, T{0});
      continue;
    }
    const Strip strip{r, std::min(t.rows - r, kMR), seen.begin / kNR<T> * kNR<T>, round_up(seen.end, kNR<T>)};
    probabilities(t, strip);
    score_gradients(t, strip);
  }
  return any;
}

/// Returns the elements of a tensor (B,Hq,T,S) that belong to the strip's queries and to the keys that it visits. `map`
/// has the rows of the sequence and head, and may be absent.
template <typename T>
HeadRows<const void> BackwardWorker<T>::part_of(const HeadRows<const void>& map, const Tile& t, const Strip& s) const {
  if (!map.present()) return map;
  return map.range(t.i0 + s.r, s.rows).columns(t.j0 + s.c0, std::min(s.c1, t.keys) - s.c0);
}

/// Computes columns [s.c0, s.c1) of leftᵀ · right, and stores them in the strip's rows of `to`.
/// Shapes: left (depth, kMR), right (panels, depth, kNR). Prefetches the rows of `map`, which the caller accesses next.
/// The hardware does not prefetch them, because they lie far apart.
template <typename T>
void BackwardWorker<T>::multiply_columns(const View<T, 2>& to, const T* left, const View<T, 3>& right, const Strip& s,
                                         const HeadRows<const void>& map) const {
  RowPrefetch elements = prefetch_rows(map, (s.c1 - s.c0) / kNR<T>);
  for (std::int64_t c = s.c0; c < s.c1; c += kNR<T>) {
    elements.step();
    if (plan_.prefetches_heads) {
      for (RowPrefetch& rows : prefetches_) rows.step();
    }
    multiply_tile<kMR, kNV, typename Plan::StripLeft, ProductWrite::overwrite>(
        left, right.at(c / kNR<T>), right.shape[1], to.at(s.r, c), Plan::kScoreStride);
  }
}

/// Applies the score rules, and computes P = exp2(s − lse) in the strip's rows. Hidden keys get zeros.
template <typename T>
void BackwardWorker<T>::probabilities(const Tile& t, const Strip& s) const {
  multiply_columns(scratch_.probabilities, t.q_strips.at(s.r / kMR), t.keys_t, s,
                   part_of(map_rows(p_.inputs.bias, sequence_, t.h), t, s));
  const T* row_lse = shared_.lse.at(packed_tile(t.g, t.tile), s.r);
  const T* row_lse_error = shared_.lse_error.at(packed_tile(t.g, t.tile), s.r);
  const Tag<T> d;
  for (std::int64_t m = 0; m < kMR; ++m) {
    T* HWY_RESTRICT row = scratch_.probabilities.at(s.r + m);
    const std::int64_t i = t.i0 + s.r + m;
    const KeyRange seen = m < s.rows ? t.visibility.columns(i, t.j0, s.c0, s.c1) : KeyRange{};
    if (plan_.rules.any() && !seen.empty()) {
      T* slope = plan_.rules.capped() ? scratch_.slope.at(m, seen.begin) : nullptr;
      plan_.rules.apply(row + seen.begin, slope, sequence_, t.h, i, t.j0 + seen.begin, seen.end - seen.begin,
                        scratch_.rule_row.data);
    }
    const auto lse = hn::Set(d, row_lse[m]);
    const std::int64_t end = round_up(seen.end, kLanes<T>);
    for (std::int64_t j = seen.begin / kLanes<T> * kLanes<T>; j < end; j += kLanes<T>)
      hn::Store(exp2_fast(d, hn::Sub(hn::Load(d, row + j), lse)), d, row + j);
    if (has_coarse_lse(row_lse[m])) correct_weights(row + seen.begin, seen.end - seen.begin, row_lse_error[m]);
    std::fill(row, row + seen.begin, T{0});
    std::fill(row + seen.end, row + plan_.block_rows, T{0});
  }
}

/// Computes ds = P ∘ (d_o vᵀ − (Δ − dlse)) in the strip's rows, where Δ = rowsum(d_o ∘ o). Adds ds to dbias.
/// After that, multiplies ds by the softcap's derivative.
template <typename T>
void BackwardWorker<T>::score_gradients(const Tile& t, const Strip& s) const {
  multiply_columns(scratch_.ds, t.d_o_strips.at(s.r / kMR), t.values_t, s,
                   part_of(dbias_.rows_of_terms(sequence_, t.h), t, s));
  const T* row_delta = shared_.delta.at(packed_tile(t.g, t.tile), s.r);
  for (std::int64_t m = 0; m < kMR; ++m) score_gradient_row(t, s, m, row_delta[m]);
  if (p_.gradients.dbias.present()) {
    const std::int64_t n = std::min(s.c1, t.keys) - s.c0;
    for (std::int64_t m = 0; m < s.rows; ++m)
      dbias_.add(sequence_, t.h, t.i0 + s.r + m, t.j0, s.c0, n, scratch_.ds.at(s.r + m, s.c0));
  }
  if (!plan_.rules.capped()) return;
  for (std::int64_t m = 0; m < s.rows; ++m) {
    const KeyRange seen = t.visibility.columns(t.i0 + s.r + m, t.j0, s.c0, s.c1);
    T* HWY_RESTRICT ds = scratch_.ds.at(s.r + m);
    const T* HWY_RESTRICT slope = scratch_.slope.at(m);
    for (std::int64_t j = seen.begin; j < seen.end; ++j) ds[j] *= slope[j];
  }
}

/// Replaces dP by ds in row m of the strip. Applies the dropout factors to both P and dP.
template <typename T>
void BackwardWorker<T>::score_gradient_row(const Tile& t, const Strip& s, std::int64_t m, T delta) const {
  const Tag<T> d;
  T* HWY_RESTRICT ds = scratch_.ds.at(s.r + m);
  T* HWY_RESTRICT probability = scratch_.probabilities.at(s.r + m);
  const auto row_delta = hn::Set(d, delta);
  if (plan_.dropout.any()) {
    T* HWY_RESTRICT factors = scratch_.dropout_row.data;
    plan_.dropout.factors(factors + s.c0, sequence_, t.h, t.i0 + s.r + m, t.j0 + s.c0, s.c1 - s.c0);
    for (std::int64_t j = s.c0; j < s.c1; j += kLanes<T>) {
      const auto factor = hn::Load(d, factors + j);
      const auto p = hn::Load(d, probability + j);
      const auto d_p = zero_where_zero(d, factor, hn::Mul(factor, hn::Load(d, ds + j)));
      hn::Store(zero_where_zero(d, p, hn::Mul(p, hn::Sub(d_p, row_delta))), d, ds + j);
      hn::Store(hn::Mul(p, factor), d, probability + j);
    }
  } else {
    for (std::int64_t j = s.c0; j < s.c1; j += kLanes<T>) {
      const auto p = hn::Load(d, probability + j);
      hn::Store(zero_where_zero(d, p, hn::Mul(p, hn::Sub(hn::Load(d, ds + j), row_delta))), d, ds + j);
    }
  }
  std::fill(ds, ds + s.c0, T{0});
  std::fill(ds + s.c1, ds + plan_.block_rows, T{0});
}

/// Adds Pᵀ d_o to dv and dsᵀ q to dk, kMR keys at a time. Reads only the queries that see one of these keys.
template <typename T>
void BackwardWorker<T>::add_key_gradients(const Tile& t) const {
  using Left = typename Plan::ScoreLeftT;
  const ColumnPanels<T> d_o = out_panels(t.g, t.tile);
  const ColumnPanels<T> q = query_panels(t.g, t.tile);
  for (std::int64_t c = 0; c < t.keys; c += kMR) {
    const KeyRange seeing = t.visibility.queries(t.j0 + c, t.j0 + c + kMR, sequence_.T);
    std::int64_t first = t.rows, end = 0;
    for (std::int64_t r = 0; r < t.rows; r += kMR) {
      const KeyRange& seen = seen_[static_cast<std::size_t>(r / kMR)];
      if (seen.end <= c || seen.begin >= c + kMR) continue;
      first = std::min(first, r);
      end = r + kMR;
    }
    first = std::max(first, seeing.begin - t.i0);
    const std::int64_t n = std::min({end, seeing.end - t.i0, t.rows}) - first;
    if (n <= 0) continue;
    if (p_.gradients.dv.present()) {
      multiply_panels<Left, ProductWrite::accumulate>(scratch_.dv.range(0, c, kMR), scratch_.probabilities.at(first, c),
                                                      d_o, first, n);
    }
    if (p_.gradients.dk.present()) {
      multiply_panels<Left, ProductWrite::accumulate>(scratch_.dk.range(0, c, kMR), scratch_.ds.at(first, c), q, first,
                                                      n);
    }
  }
}

/// Adds ds k to dq. Key blocks add in ascending order (Turnstile), so that results are deterministic.
/// A block takes its turn even if a mask hides all its keys from the tile.
template <typename T>
void BackwardWorker<T>::add_query_gradient(const Tile& t) const {
  if (!p_.gradients.dq.present()) return;
  const KeyRange visited = t.visibility.rows(t.i0, t.i0 + t.rows);
  if (std::max(visited.begin, t.j0) >= std::min(visited.end, t.j0 + kBlock)) return;
  const std::int64_t first_block = visited.begin / kBlock;
  const ColumnPanels<T> k = key_panels(t.block);
  const View<T, 2> dq = shared_.dq.sub(packed_tile(t.g, t.tile));
  const Turnstile turnstile(shared_.dq_turns(packed_tile(t.g, t.tile)));
  turnstile.enter(t.block - first_block);
  for (std::int64_t r = 0; r < t.rows; r += kMR) {
    const KeyRange& seen = seen_[static_cast<std::size_t>(r / kMR)];
    if (seen.empty()) continue;
    multiply_panels<typename Plan::ScoreLeft, ProductWrite::accumulate>(
        dq.range(0, r, kMR), scratch_.ds.at(r, seen.begin), k, seen.begin, seen.end - seen.begin);
  }
  turnstile.leave(t.block - first_block);
}

template <typename T>
void BackwardWorker<T>::write_dq(std::int64_t g, std::int64_t tile) const {
  const std::int64_t i0 = tile * kTile;
  const View<T, 2> sums = shared_.dq.sub(packed_tile(g, tile)).range(0, 0, std::min(kTile, sequence_.T - i0));
  write_rows(query_rows(p_.gradients.dq, sequence_, query_head(g)), sums, i0, static_cast<T>(p_.scale),
             scratch_.scaled.data);
}

template <typename T>
void tiles_backward_typed(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                          WorkSlot& slot) {
  plan_backward<BackwardWorker<T>, BackwardPlan<T>, BackwardBuffers<T>>(problem, sink_parts, list, slot);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(tiles_backward_typed);

void tiles_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                    WorkSlot& slot) {
  HEADGATE_FOR_DTYPE(tiles_backward_typed, problem.inputs.q.dtype, problem.context.target)
  (problem, sink_parts, list, slot);
}

}  // namespace headgate
#endif  // HWY_ONCE
