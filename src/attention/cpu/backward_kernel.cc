// SPDX-License-Identifier: Apache-2.0
// Backward pass of gated attention, five products a tile:
//   P = exp(q kᵀ − lse)    dP = do vᵀ    dv += Pᵀ do    dk += dsᵀ q    dq += ds k,    ds = P ∘ (dP − Δ).
// Three stages: pack and prepare rows; tiles by key block; write dq. dk, dv: overwritten; all sums in T.

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "attention/cpu/kernels.hpp"
#include "attention/cpu/visibility.hpp"
#include "core/arena.hpp"
#include "core/dispatch.hpp"
#include "core/turnstile.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/backward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "attention/cpu/backward_plan-inl.hpp"
#include "attention/cpu/gate_rows-inl.hpp"
#include "attention/cpu/multiply-inl.hpp"
#include "attention/cpu/rows-inl.hpp"
#include "attention/cpu/scores-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// One thread's part of the backward pass.
template <typename T>
class BackwardWorker {
 public:
  using Plan = BackwardPlan<T>;
  static constexpr auto kTile = static_cast<std::int64_t>(Plan::kTile);
  static constexpr auto kBlock = static_cast<std::int64_t>(Plan::kBlock);

  BackwardWorker(const Plan& plan, int thread)
      : plan_(plan),
        p_(plan.p),
        scratch_(plan.template at<std::byte>(plan.scratch_at, static_cast<std::size_t>(thread) * plan.scratch_bytes)),
        dq_turns_(plan.template at<std::uint32_t>(plan.dq_turns_at)),
        bias_turns_(plan.template at<std::uint32_t>(plan.bias_turns_at)) {}

  /// Chooses key/value head `head` (b · Hkv + h), whose packed operands lie in `slot`.
  void select(std::int64_t head, std::int64_t slot) {
    b_ = head / p_.Hkv;
    hkv_ = head % p_.Hkv;
    slot_ = slot;
  }

  void pack_keys(std::int64_t block) const;
  void prepare_queries(std::int64_t g, std::int64_t tile) const;
  void run_block(std::int64_t block) const;
  void write_dq(std::int64_t g, std::int64_t tile) const;
  void zero_bias_row(std::int64_t n) const;
  void copy_bias_row(std::int64_t n) const;

 private:
  struct Tile;

  T* scratch(std::size_t offset, std::size_t index = 0) const {
    return reinterpret_cast<T*>(scratch_ + offset) + index;
  }
  T* row(std::size_t n) const { return scratch(plan_.rows_at, n * plan_.row_stride); }
  std::int64_t query_head(std::int64_t g) const { return hkv_ * p_.group + g; }
  /// First packed row of query tile `tile` of the group's head g, and of key block `block`.
  std::size_t query_row(std::int64_t g, std::int64_t tile) const {
    return static_cast<std::size_t>(slot_ * p_.group + g) * plan_.query_rows + static_cast<std::size_t>(tile * kTile);
  }
  std::size_t key_row(std::int64_t block) const {
    return static_cast<std::size_t>(slot_) * plan_.key_rows + static_cast<std::size_t>(block * kBlock);
  }

  void prepare_out_gradients(std::int64_t h, std::int64_t i0, std::size_t n, std::size_t at) const;
  void prepare_row(std::int64_t h, std::int64_t i, T* lse, T* delta, double* sink_part, T* d_o) const;
  const T* gate_logits(std::int64_t h, std::int64_t i, T* buffer) const;
  void store_gate_gradient(std::int64_t h, std::int64_t i, T* dz) const;
  void multiply_columns(const T* strip, const T* panels, std::size_t depth, T* tile, std::size_t c0,
                        std::size_t c1) const;
  void probabilities(const Tile& t, std::size_t r, std::size_t rows, std::size_t c0, std::size_t c1) const;
  void score_gradients(const Tile& t, std::size_t r, std::size_t rows, std::size_t c0, std::size_t c1) const;
  bool score_tile(const Tile& t) const;
  void add_key_gradients(const Tile& t) const;
  void add_query_gradient(const Tile& t) const;
  void add_bias_strip(const Tile& t, std::size_t r, std::size_t rows, std::size_t c0, std::size_t c1) const;
  void add_bias_row(std::int64_t h, std::int64_t i, std::int64_t first, std::size_t n, const T* from) const;
  std::size_t bias_slot(std::int64_t h, std::int64_t tile, std::int64_t block) const;
  std::uint32_t bias_turn(std::int64_t h) const;
  template <class Visit>
  void each_bias_chunk(std::int64_t n, const Visit& visit) const;
  void write_key_rows(const TensorView& to, const T* from, std::size_t cols, std::size_t stride, T factor,
                      std::int64_t block) const;

  const Plan& plan_;
  const Problem& p_;
  std::byte* scratch_;
  Turnstile dq_turns_, bias_turns_;
  std::int64_t b_ = 0, hkv_ = 0, slot_ = 0;
};

/// A query tile against a key block.
template <typename T>
struct BackwardWorker<T>::Tile {
  const Visibility& visibility;
  std::int64_t g, h;      // head within the group, query head
  std::int64_t tile, i0;  // its first query
  std::size_t rows;       // queries, at most kTile
  std::int64_t block, j0;
  std::size_t keys;  // keys, at most kBlock
};

/// Packs the block's keys up to the last that a query sees: k transposed and as panels, v transposed. Keys before the
/// first that is seen are read like the others. Those beyond the last are not: products reach them in the transposed
/// operands alone, whose register tiles pack_transposed fills up with zeros.
template <typename T>
void BackwardWorker<T>::pack_keys(std::int64_t block) const {
  const KeyRange seen = Visibility(p_, b_).rows(0, p_.T);
  const std::int64_t j0 = block * kBlock;
  const std::int64_t end = std::min(j0 + kBlock, seen.end);
  if (std::max(j0, seen.begin) >= end) return;  // no tile visits the block
  const auto n = static_cast<std::size_t>(end - j0);
  const std::size_t at = key_row(block);
  const Slice k{&plan_.call.inputs.k, b_, hkv_, plan_.D};
  pack_transposed(k, j0, n, plan_.at(plan_.keys_t_at, at * plan_.D), row(0));
  pack_panels(k, j0, n, Plan::kBlock, 0, plan_.at(plan_.keys_at, at * plan_.D_padded), row(0));
  pack_transposed(Slice{&plan_.call.inputs.v, b_, hkv_, plan_.Dv}, j0, n, plan_.at(plan_.values_t_at, at * plan_.Dv),
                  row(0));
}

/// Through the gate, row by row: do, Δ − dlse, dz, and the tile's part of dsinks; then packs q and do. Zeroes dq.
template <typename T>
void BackwardWorker<T>::prepare_queries(std::int64_t g, std::int64_t tile) const {
  const std::int64_t h = query_head(g);
  const std::int64_t i0 = tile * kTile;
  const auto n = static_cast<std::size_t>(std::min(kTile, p_.T - i0));
  const std::size_t at = query_row(g, tile);
  plan_.template at<std::uint32_t>(plan_.dq_turns_at)[at / Plan::kTile] = 0;
  prepare_out_gradients(h, i0, n, at);

  const Slice q{&plan_.call.inputs.q, b_, h, plan_.D};
  pack_strips(q, i0, n, plan_.rules.query_factor(), plan_.at(plan_.query_strips_at, at * plan_.D), row(0));
  pack_panels(q, i0, n, Plan::kTile, 0, plan_.at(plan_.query_panels_at, at * plan_.D_padded), row(0));
  std::fill_n(plan_.at(plan_.dq_at, at * plan_.D_padded), Plan::kTile * plan_.D_padded, T{0});
}

/// do of queries i0 … i0 + n as strips and panels, lse, Δ and the part of dsinks. `at`: their first packed row.
template <typename T>
void BackwardWorker<T>::prepare_out_gradients(std::int64_t h, std::int64_t i0, std::size_t n, std::size_t at) const {
  T* lse = plan_.at(plan_.lse_at, at);
  T* delta = plan_.at(plan_.delta_at, at);
  T* strips = plan_.at(plan_.out_strips_at, at * plan_.Dv);
  T* panels = plan_.at(plan_.out_panels_at, at * plan_.Dv_padded);
  // Rows beyond T fill up a strip: zero operands and lse = ∞, hence P = 0. Products along rows stop before them.
  std::fill(lse + n, lse + Plan::kTile, std::numeric_limits<T>::infinity());
  std::fill(delta + n, delta + Plan::kTile, T{0});
  if (n < Plan::kTile) std::fill_n(strips, Plan::kTile * plan_.Dv, T{0});
  double sink_part = 0;
  const T* d_o[kMR];
  for (std::size_t r0 = 0; r0 < n; r0 += kMR) {
    const std::size_t rows = std::min(kMR, n - r0);
    for (std::size_t m = 0; m < rows; ++m) {
      T* to = row(5 + m);
      prepare_row(h, i0 + static_cast<std::int64_t>(r0 + m), lse + r0 + m, delta + r0 + m, &sink_part, to);
      copy_to_panels(to, plan_.Dv_padded, Plan::kTile, r0 + m, panels);
      d_o[m] = to;
    }
    interleave_rows<kMR>(d_o, rows, plan_.Dv, T{1}, strips + r0 * plan_.Dv);
  }
  const std::int64_t tile = i0 / kTile;
  plan_.template at<double>(plan_.sink_parts_at)[(b_ * p_.Hq + h) * plan_.tiles + tile] = sink_part;
}

/// do of query i into `d_o` (Dv_padded), its dz into dgate.
template <typename T>
void BackwardWorker<T>::prepare_row(std::int64_t h, std::int64_t i, T* lse, T* delta, double* sink_part, T* d_o) const {
  const BackwardCall& c = plan_.call;
  const auto operand = [&](const ConstTensorView& view, T* buffer) {
    return Slice{&view, b_, h, plan_.Dv}.padded_row(i, buffer);
  };
  const GateRowOperands<T> gate{operand(c.incoming.dy, row(0)),
                                operand(c.saved.y, row(1)),
                                c.saved.attn.present() ? operand(c.saved.attn, row(2)) : nullptr,
                                gate_logits(h, i, row(3)),
                                d_o,
                                row(4)};
  *delta = gate_row_backward(p_.gate_fn, p_.gate_op, plan_.Dv_padded, gate);
  store_gate_gradient(h, i, gate.dz);
  double lse_natural = 0;
  load_row(c.saved.lse, b_, h, i, 0, 1, &lse_natural);
  if (c.incoming.dlse.present()) {
    T dlse = 0;
    load_row(c.incoming.dlse, b_, h, i, 0, 1, &dlse);
    *delta -= dlse;
  }
  const bool nothing_seen = lse_natural == -std::numeric_limits<double>::infinity();
  *lse = nothing_seen ? std::numeric_limits<T>::infinity() : static_cast<T>(lse_natural * kLog2e);
  if (p_.sinks.present() && !nothing_seen) {
    *sink_part -= std::exp(p_.sink(h) - lse_natural) * static_cast<double>(*delta);
  }
}

/// The gate's logits for query i, one for each of Dv_padded columns; null without a gate.
template <typename T>
const T* BackwardWorker<T>::gate_logits(std::int64_t h, std::int64_t i, T* buffer) const {
  if (p_.gate_fn == GateFn::none) return nullptr;
  const ConstTensorView& view = plan_.call.inputs.gate;
  if (!p_.gate_headwise) return Slice{&view, b_, h, plan_.Dv}.padded_row(i, buffer);
  load_row(view, b_, h, i, 0, 1, buffer);
  std::fill(buffer + 1, buffer + plan_.Dv, buffer[0]);
  std::fill(buffer + plan_.Dv, buffer + plan_.Dv_padded, T{0});
  return buffer;
}

/// dgate's row of query i = dz, or its sum. A call that asks for dgate has a gate (check_backward).
template <typename T>
void BackwardWorker<T>::store_gate_gradient(std::int64_t h, std::int64_t i, T* dz) const {
  const TensorView& to = plan_.call.gradients.dgate;
  if (!to.present()) return;
  if (p_.gate_headwise) {
    double sum = 0;
    for (std::size_t x = 0; x < plan_.Dv; ++x) sum += static_cast<double>(dz[x]);
    dz[0] = static_cast<T>(sum);
  }
  store_row(dz, static_cast<std::size_t>(to.shape[3]), to, b_, h, i, 0);
}

/// All tiles of one key block, in the order of the group's heads and their queries.
template <typename T>
void BackwardWorker<T>::run_block(std::int64_t block) const {
  const Visibility visibility(p_, b_);
  const std::int64_t j0 = block * kBlock;
  const auto keys = static_cast<std::size_t>(std::min(kBlock, p_.S - j0));
  std::fill_n(scratch(plan_.dk_at), Plan::kBlock * plan_.D_padded, T{0});
  std::fill_n(scratch(plan_.dv_at), Plan::kBlock * plan_.Dv_padded, T{0});
  const bool bias_by_tile = plan_.dbias.present() && !plan_.bias_over_t;
  for (std::int64_t g = 0; g < p_.group; ++g) {
    const std::int64_t h = query_head(g);
    if (plan_.bias_over_t) std::fill_n(scratch(plan_.bias_sum_at), Plan::kBlock, T{0});
    for (std::int64_t tile = 0; tile < plan_.tiles; ++tile) {
      const std::int64_t i0 = tile * kTile;
      const auto rows = static_cast<std::size_t>(std::min(kTile, p_.T - i0));
      const Tile t{visibility, g, h, tile, i0, rows, block, j0, keys};
      if (bias_by_tile) bias_turns_.enter(bias_slot(h, tile, block), bias_turn(h));
      const bool visited = score_tile(t);
      if (bias_by_tile) bias_turns_.leave(bias_slot(h, tile, block), bias_turn(h));
      if (!visited) continue;
      add_key_gradients(t);
      add_query_gradient(t);
    }
    if (plan_.bias_over_t) {
      bias_turns_.enter(bias_slot(h, 0, block), bias_turn(h));
      add_bias_row(h, 0, j0, keys, scratch(plan_.bias_sum_at));
      bias_turns_.leave(bias_slot(h, 0, block), bias_turn(h));
    }
  }
  const AttentionGradients& to = plan_.call.gradients;
  write_key_rows(to.dk, scratch(plan_.dk_at), plan_.D, plan_.D_padded, static_cast<T>(p_.scale), block);
  write_key_rows(to.dv, scratch(plan_.dv_at), plan_.Dv, plan_.Dv_padded, T{1}, block);
}

/// P and ds of the tile, zero where hidden. False, and nothing written, where no query sees a key.
template <typename T>
bool BackwardWorker<T>::score_tile(const Tile& t) const {
  const KeyRange hull = t.visibility.rows(t.i0, t.i0 + static_cast<std::int64_t>(t.rows));
  if (std::max(hull.begin, t.j0) >= std::min(hull.end, t.j0 + kBlock)) return false;
  for (std::size_t r = 0; r < Plan::kTile; r += kMR) {
    const std::size_t rows = r < t.rows ? std::min(kMR, t.rows - r) : 0;
    KeyRange seen{};
    if (rows > 0) {
      const std::int64_t i = t.i0 + static_cast<std::int64_t>(r);
      seen = t.visibility.rows(i, i + static_cast<std::int64_t>(rows));
      seen = {std::max(seen.begin, t.j0) - t.j0, std::min(seen.end, t.j0 + kBlock) - t.j0};
    }
    if (seen.empty()) {
      std::fill_n(scratch(plan_.p_at, r * Plan::kScoreStride), kMR * Plan::kScoreStride, T{0});
      std::fill_n(scratch(plan_.ds_at, r * Plan::kScoreStride), kMR * Plan::kScoreStride, T{0});
      continue;
    }
    const std::size_t c0 = static_cast<std::size_t>(seen.begin) / kNR<T> * kNR<T>;
    const std::size_t c1 = round_up(static_cast<std::size_t>(seen.end), kNR<T>);
    probabilities(t, r, rows, c0, c1);
    score_gradients(t, r, rows, c0, c1);
  }
  return true;
}

/// Columns [c0, c1) of a strip's rows of a tile = strip (kMR, depth) · transposed panels.
template <typename T>
void BackwardWorker<T>::multiply_columns(const T* strip, const T* panels, std::size_t depth, T* tile, std::size_t c0,
                                         std::size_t c1) const {
  for (std::size_t c = c0; c < c1; c += kNR<T>) {
    multiply_tile<kMR, kNV, typename Plan::StripLeft, Store::overwrite>(strip, panels + c * depth, depth, tile + c,
                                                                        Plan::kScoreStride);
  }
}

/// P = exp2(s − lse) for strip rows [r, r + kMR), zero outside what each row sees.
template <typename T>
void BackwardWorker<T>::probabilities(const Tile& t, std::size_t r, std::size_t rows, std::size_t c0,
                                      std::size_t c1) const {
  const std::size_t at = query_row(t.g, t.tile) + r;
  T* tile = scratch(plan_.p_at, r * Plan::kScoreStride);
  multiply_columns(plan_.at(plan_.query_strips_at, at * plan_.D), plan_.at(plan_.keys_t_at, key_row(t.block) * plan_.D),
                   plan_.D, tile, c0, c1);
  const Tag<T> d;
  for (std::size_t m = 0; m < kMR; ++m) {
    T* HWY_RESTRICT s = tile + m * Plan::kScoreStride;
    std::size_t begin = 0;
    std::size_t end = 0;
    if (m < rows) {
      const std::int64_t i = t.i0 + static_cast<std::int64_t>(r + m);
      const KeyRange row_seen = t.visibility.row(i);
      begin = static_cast<std::size_t>(std::clamp<std::int64_t>(row_seen.begin - t.j0, 0, kBlock));
      end = std::max(begin, static_cast<std::size_t>(std::clamp<std::int64_t>(row_seen.end - t.j0, 0, kBlock)));
      if (plan_.rules.any() && begin < end) {
        T* slope = plan_.rules.capped() ? scratch(plan_.slope_at, m * Plan::kScoreStride + begin) : nullptr;
        plan_.rules.apply(b_, t.h, i, t.j0 + static_cast<std::int64_t>(begin), end - begin, s + begin, slope, row(0));
      }
    }
    const auto lse = hn::Set(d, plan_.at(plan_.lse_at, at)[m]);
    const std::size_t v0 = begin / kLanes<T> * kLanes<T>;
    const std::size_t v1 = round_up(end, kLanes<T>);
    for (std::size_t j = v0; j < v1; j += kLanes<T>)
      hn::Store(exp2_fast(d, hn::Sub(hn::Load(d, s + j), lse)), d, s + j);
    if (begin > 0) std::fill(s, s + begin, T{0});
    if (end < Plan::kBlock) std::fill(s + end, s + Plan::kBlock, T{0});
  }
}

/// ds = P ∘ (do vᵀ − Δ), times the softcap's slope, for strip rows [r, r + kMR).
template <typename T>
void BackwardWorker<T>::score_gradients(const Tile& t, std::size_t r, std::size_t rows, std::size_t c0,
                                        std::size_t c1) const {
  const std::size_t at = query_row(t.g, t.tile) + r;
  T* tile = scratch(plan_.ds_at, r * Plan::kScoreStride);
  multiply_columns(plan_.at(plan_.out_strips_at, at * plan_.Dv),
                   plan_.at(plan_.values_t_at, key_row(t.block) * plan_.Dv), plan_.Dv, tile, c0, c1);
  const Tag<T> d;
  for (std::size_t m = 0; m < kMR; ++m) {
    T* HWY_RESTRICT ds = tile + m * Plan::kScoreStride;
    const T* HWY_RESTRICT probability = scratch(plan_.p_at, (r + m) * Plan::kScoreStride);
    const auto delta = hn::Set(d, plan_.at(plan_.delta_at, at)[m]);
    for (std::size_t j = c0; j < c1; j += kLanes<T>) {
      hn::Store(hn::Mul(hn::Load(d, probability + j), hn::Sub(hn::Load(d, ds + j), delta)), d, ds + j);
    }
    if (c0 > 0) std::fill(ds, ds + c0, T{0});
    if (c1 < Plan::kBlock) std::fill(ds + c1, ds + Plan::kBlock, T{0});
  }
  if (plan_.dbias.present()) add_bias_strip(t, r, rows, c0, c1);
  if (!plan_.rules.capped()) return;
  for (std::size_t m = 0; m < rows; ++m) {
    const KeyRange row_seen = t.visibility.row(t.i0 + static_cast<std::int64_t>(r + m));
    const auto begin = static_cast<std::size_t>(std::clamp<std::int64_t>(row_seen.begin - t.j0, 0, kBlock));
    const auto end = static_cast<std::size_t>(std::clamp<std::int64_t>(row_seen.end - t.j0, 0, kBlock));
    T* HWY_RESTRICT ds = tile + m * Plan::kScoreStride;
    const T* HWY_RESTRICT slope = scratch(plan_.slope_at, m * Plan::kScoreStride);
    for (std::size_t j = begin; j < end; ++j) ds[j] *= slope[j];
  }
}

/// dv += Pᵀ do, dk += dsᵀ q: strips of kMR keys, each over the queries that see one of them.
template <typename T>
void BackwardWorker<T>::add_key_gradients(const Tile& t) const {
  const AttentionGradients& to = plan_.call.gradients;
  const std::size_t at = query_row(t.g, t.tile);
  const T* d_o = plan_.at(plan_.out_panels_at, at * plan_.Dv_padded);
  const T* q = plan_.at(plan_.query_panels_at, at * plan_.D_padded);
  for (std::size_t c = 0; c < t.keys; c += kMR) {
    const std::int64_t j = t.j0 + static_cast<std::int64_t>(c);
    const KeyRange seeing = t.visibility.queries(j, j + static_cast<std::int64_t>(kMR), p_.T);
    const std::int64_t begin = std::max(seeing.begin - t.i0, std::int64_t{0});
    const std::int64_t end = std::min(seeing.end - t.i0, static_cast<std::int64_t>(t.rows));
    if (begin >= end) continue;
    const auto first = static_cast<std::size_t>(begin);
    const auto n = static_cast<std::size_t>(end - begin);
    const std::size_t from = first * Plan::kScoreStride + c;
    if (to.dv.present()) {
      multiply_panels<typename Plan::ScoreLeftT, Store::accumulate>(
          kMR, scratch(plan_.p_at, from), d_o, Plan::kTile, first, n, plan_.Dv_padded,
          scratch(plan_.dv_at, c * plan_.Dv_padded), plan_.Dv_padded);
    }
    if (to.dk.present()) {
      multiply_panels<typename Plan::ScoreLeftT, Store::accumulate>(
          kMR, scratch(plan_.ds_at, from), q, Plan::kTile, first, n, plan_.D_padded,
          scratch(plan_.dk_at, c * plan_.D_padded), plan_.D_padded);
    }
  }
}

/// dq += ds k, in the order of the key blocks that the tile sees.
template <typename T>
void BackwardWorker<T>::add_query_gradient(const Tile& t) const {
  if (!plan_.call.gradients.dq.present()) return;
  const KeyRange hull = t.visibility.rows(t.i0, t.i0 + static_cast<std::int64_t>(t.rows));
  const auto turn = static_cast<std::uint32_t>(t.block - hull.begin / kBlock);
  const std::size_t at = query_row(t.g, t.tile);
  const std::size_t slot = at / Plan::kTile;
  const T* keys = plan_.at(plan_.keys_at, key_row(t.block) * plan_.D_padded);
  dq_turns_.enter(slot, turn);
  for (std::size_t r = 0; r < t.rows; r += kMR) {
    const std::size_t rows = std::min(kMR, t.rows - r);
    const std::int64_t i = t.i0 + static_cast<std::int64_t>(r);
    const KeyRange seen = t.visibility.rows(i, i + static_cast<std::int64_t>(rows));
    const std::int64_t begin = std::max(seen.begin - t.j0, std::int64_t{0});
    const std::int64_t end = std::min(seen.end - t.j0, kBlock);
    if (begin >= end) continue;
    const auto first = static_cast<std::size_t>(begin);
    multiply_panels<typename Plan::ScoreLeft, Store::accumulate>(
        kMR, scratch(plan_.ds_at, r * Plan::kScoreStride + first), keys, Plan::kBlock, first,
        static_cast<std::size_t>(end - begin), plan_.D_padded, plan_.at(plan_.dq_at, (at + r) * plan_.D_padded),
        plan_.D_padded);
  }
  dq_turns_.leave(slot, turn);
}

/// Columns [c0, c1) of strip rows [r, r + rows) of ds into dbias, or into this thread's sum over queries.
template <typename T>
void BackwardWorker<T>::add_bias_strip(const Tile& t, std::size_t r, std::size_t rows, std::size_t c0,
                                       std::size_t c1) const {
  c1 = std::min(c1, t.keys);
  for (std::size_t m = 0; m < rows; ++m) {
    const T* ds = scratch(plan_.ds_at, (r + m) * Plan::kScoreStride);
    if (plan_.bias_over_t) {
      T* HWY_RESTRICT sum = scratch(plan_.bias_sum_at);
      for (std::size_t j = c0; j < c1; ++j) sum[j] += ds[j];
    } else {
      add_bias_row(t.h, t.i0 + static_cast<std::int64_t>(r + m), t.j0 + static_cast<std::int64_t>(c0), c1 - c0,
                   ds + c0);
    }
  }
}

template <typename T>
void BackwardWorker<T>::add_bias_row(std::int64_t h, std::int64_t i, std::int64_t first, std::size_t n,
                                     const T* from) const {
  const TensorView to = plan_.dbias_target();
  const std::int64_t bb = to.shape[0] == 1 ? 0 : b_;
  const std::int64_t bh = to.shape[1] == 1 ? 0 : h;
  const std::int64_t bi = to.shape[2] == 1 ? 0 : i;
  T* HWY_RESTRICT sum = row(1);
  load_row<T>(to, bb, bh, bi, first, n, sum);
  for (std::size_t j = 0; j < n; ++j) sum[j] += from[j];
  store_row(sum, n, to, bb, bh, bi, first);
}

template <typename T>
std::size_t BackwardWorker<T>::bias_slot(std::int64_t h, std::int64_t tile, std::int64_t block) const {
  const Shape& shape = plan_.dbias.shape;
  const std::int64_t bb = shape[0] == 1 ? 0 : b_;
  const std::int64_t bh = shape[1] == 1 ? 0 : h;
  const std::int64_t tiles = plan_.bias_over_t ? 1 : plan_.tiles;
  return static_cast<std::size_t>(((bb * shape[1] + bh) * tiles + tile) * plan_.blocks + block);
}

/// Rank of (b,h) among those that share a slot.
template <typename T>
std::uint32_t BackwardWorker<T>::bias_turn(std::int64_t h) const {
  const Shape& shape = plan_.dbias.shape;
  const std::int64_t shared_heads = shape[1] == 1 ? p_.Hq : 1;
  const std::int64_t turn = (shape[0] == 1 ? b_ * shared_heads : 0) + (shape[1] == 1 ? h : 0);
  return static_cast<std::uint32_t>(turn);
}

template <typename T>
void BackwardWorker<T>::write_key_rows(const TensorView& to, const T* from, std::size_t cols, std::size_t stride,
                                       T factor, std::int64_t block) const {
  if (!to.present()) return;
  const std::int64_t j0 = block * kBlock;
  const std::int64_t n = std::min(kBlock, p_.S - j0);
  T* HWY_RESTRICT scaled = row(0);
  for (std::int64_t j = 0; j < n; ++j) {
    const T* HWY_RESTRICT sum = from + static_cast<std::size_t>(j) * stride;
    for (std::size_t x = 0; x < cols; ++x) scaled[x] = factor * sum[x];
    store_row(scaled, cols, to, b_, hkv_, j0 + j, 0);
  }
}

template <typename T>
void BackwardWorker<T>::write_dq(std::int64_t g, std::int64_t tile) const {
  const TensorView& to = plan_.call.gradients.dq;
  if (!to.present()) return;
  const std::int64_t i0 = tile * kTile;
  const std::int64_t n = std::min(kTile, p_.T - i0);
  const T* sums = plan_.at(plan_.dq_at, query_row(g, tile) * plan_.D_padded);
  const T factor = static_cast<T>(p_.scale);
  T* HWY_RESTRICT scaled = row(0);
  for (std::int64_t i = 0; i < n; ++i) {
    const T* HWY_RESTRICT sum = sums + static_cast<std::size_t>(i) * plan_.D_padded;
    for (std::size_t x = 0; x < plan_.D; ++x) scaled[x] = factor * sum[x];
    store_row(scaled, plan_.D, to, b_, query_head(g), i0 + i, 0);
  }
}

/// Row n of B·H·T rows of dbias, or of its copy, becomes zero.
template <typename T>
void BackwardWorker<T>::zero_bias_row(std::int64_t n) const {
  std::fill_n(row(0), Plan::kBlock, T{0});
  each_bias_chunk(n, [&](std::int64_t i0, std::int64_t i1, std::int64_t i2, std::int64_t first, std::size_t count) {
    store_row(row(0), count, plan_.dbias_target(), i0, i1, i2, first);
  });
}

/// Rounds row n of the copy into dbias.
template <typename T>
void BackwardWorker<T>::copy_bias_row(std::int64_t n) const {
  each_bias_chunk(n, [&](std::int64_t i0, std::int64_t i1, std::int64_t i2, std::int64_t first, std::size_t count) {
    load_row<T>(plan_.dbias_target(), i0, i1, i2, first, count, row(0));
    store_row(row(0), count, plan_.dbias, i0, i1, i2, first);
  });
}

template <typename T>
template <class Visit>
void BackwardWorker<T>::each_bias_chunk(std::int64_t n, const Visit& visit) const {
  const Shape& shape = plan_.dbias.shape;
  for (std::int64_t first = 0; first < shape[3]; first += kBlock) {
    visit(n / (shape[1] * shape[2]), n / shape[2] % shape[1], n % shape[2], first,
          static_cast<std::size_t>(std::min(kBlock, shape[3] - first)));
  }
}

/// dsinks[h] = sum of the tiles' parts over batches and tiles, in that order.
template <typename T>
void write_dsinks(const BackwardPlan<T>& plan) {
  const TensorView& to = plan.call.gradients.dsinks;
  if (!to.present()) return;
  const Problem& p = plan.p;
  const double* parts = plan.template at<double>(plan.sink_parts_at);
  for (std::int64_t h = 0; h < p.Hq; ++h) {
    double sum = 0;
    for (std::int64_t b = 0; b < p.B; ++b) {
      for (std::int64_t tile = 0; tile < plan.tiles; ++tile) sum += parts[(b * p.Hq + h) * plan.tiles + tile];
    }
    if (to.dtype == DType::f64) {
      store_row(&sum, 1, to, 0, 0, 0, h);
    } else {
      const auto sum32 = static_cast<float>(sum);
      store_row(&sum32, 1, to, 0, 0, 0, h);
    }
  }
}

template <typename T>
void backward_typed(const BackwardCall& call) {
  const BackwardPlan<T> plan(call);
  const Problem& p = plan.p;
  const TensorView bias = plan.dbias_target();
  const std::int64_t bias_rows = bias.present() ? bias.shape[0] * bias.shape[1] * bias.shape[2] : 0;
  std::fill_n(plan.template at<std::uint32_t>(plan.bias_turns_at), plan.bias_turns, 0U);
  std::atomic<std::int64_t> next{0};
#pragma omp parallel num_threads(plan.threads) default(none) shared(plan, p, bias, bias_rows, next)
  {
    BackwardWorker<T> worker(plan, omp_get_thread_num());
#pragma omp for schedule(static)
    for (std::int64_t n = 0; n < bias_rows; ++n) worker.zero_bias_row(n);
    for (std::int64_t head0 = 0; head0 < plan.heads; head0 += plan.heads_at_once) {
      const std::int64_t held = std::min(plan.heads_at_once, plan.heads - head0);
#pragma omp for schedule(dynamic, 1) nowait
      for (std::int64_t n = 0; n < held * plan.blocks; ++n) {
        worker.select(head0 + n / plan.blocks, n / plan.blocks);
        worker.pack_keys(n % plan.blocks);
      }
      const std::int64_t query_tiles = p.group * plan.tiles;
#pragma omp for schedule(dynamic, 1)
      for (std::int64_t n = 0; n < held * query_tiles; ++n) {
        worker.select(head0 + n / query_tiles, n / query_tiles);
        worker.prepare_queries(n / plan.tiles % p.group, n % plan.tiles);
      }
      // Tasks are taken in ascending order, as the turnstiles ask: block by block, so that neighbours in time are
      // different heads and rarely wait for one another. Under a causal mask the first blocks cost most.
      for (;;) {
        const std::int64_t n = next.fetch_add(1, std::memory_order_relaxed);
        if (n >= held * plan.blocks) break;
        worker.select(head0 + n % held, n % held);
        worker.run_block(n / held);
      }
#pragma omp barrier
#pragma omp single nowait
      next.store(0, std::memory_order_relaxed);
#pragma omp for schedule(dynamic, 1)
      for (std::int64_t n = 0; n < held * query_tiles; ++n) {
        worker.select(head0 + n / query_tiles, n / query_tiles);
        worker.write_dq(n / plan.tiles % p.group, n % plan.tiles);
      }
    }
#pragma omp for schedule(static)
    for (std::int64_t n = 0; n < (plan.bias_copied ? bias_rows : 0); ++n) worker.copy_bias_row(n);
  }
  write_dsinks(plan);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(backward_typed);

void cpu_backward(const BackwardCall& call) {
  const std::int64_t target = call.problem.context.target;
  const auto run = call.inputs.q.dtype == DType::f64 ? HEADGATE_FOR_TARGET(backward_typed, double, target)
                                                     : HEADGATE_FOR_TARGET(backward_typed, float, target);
  run(call);
}

}  // namespace headgate
#endif  // HWY_ONCE
