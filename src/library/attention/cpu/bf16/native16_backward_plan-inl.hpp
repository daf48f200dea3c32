// SPDX-License-Identifier: Apache-2.0
// Sizes and buffers of one backward call with bf16 products (AVX-512 only).
#if defined(HEADGATE_ATTENTION_NATIVE16_BACKWARD_PLAN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_NATIVE16_BACKWARD_PLAN_INL_
#undef HEADGATE_ATTENTION_NATIVE16_BACKWARD_PLAN_INL_
#else
#define HEADGATE_ATTENTION_NATIVE16_BACKWARD_PLAN_INL_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "library/attention/cpu/common/bias_gradient-inl.hpp"
#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/cpu/dense/backward_plan-inl.hpp"
#include "library/attention/problem.hpp"
#include "library/core/bf16_products-inl.hpp"
#include "library/core/sum_blocks.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Plans the backward pass with bf16 products, in strips of kSquare rows. BackwardPlan is its f32 counterpart.
struct Native16BackwardPlan {
  static constexpr std::int64_t kTile = kQueryTile;
  /// Number of keys per block. Larger blocks read queries and dq less often from outer caches.
  /// The f32 kernel uses half as many keys per block, because f32 products take at least twice as long.
  static constexpr std::int64_t kBlock = 2 * kBackwardKeys;
  static constexpr std::int64_t kPanel = kBlock;
  static constexpr std::int64_t kScoreStride = kBlock + 32;  // row stride of ds, in bf16 elements
  static_assert(kTile % kSquare == 0 && kBlock % kSquare == 0);

  Native16BackwardPlan(const BackwardProblem& problem, const WorkList& sequences, const View<double, 2>& dsinks_terms)
      : p(problem),
        list(sequences),
        rules(problem),
        fused(rules.fused(false)),
        sink_parts(dsinks_terms),
        D_padded(whole_squares(p.D)),
        Dv_padded(whole_squares(p.Dv)),
        dbias(problem, DType::f32) {
    const Sequence longest = longest_sequence(p, list);
    tile_rows = std::clamp(whole_squares(longest.T), kSquare, kTile);
    block_rows = std::clamp(whole_squares(longest.S), kSquare, kBlock);
    const HeadBatches batches(*this);
    const HeadSurvey heads = batches.survey();
    max_head_counts = heads.max_head_counts;
    whole_heads = !dbias.wanted() && heads_are_tasks(heads, p.context.threads, kOwnHead_bytes);
    buffer_counts = batches.max_batch_counts();
    dbias.set_parts(heads.tile_blocks);
    const std::int64_t tasks = std::max(buffer_counts.blocks, buffer_counts.tiles);
    threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, p.context.threads));
    if (whole_heads) buffer_counts.set_head_buffers(max_head_counts, p.group, threads);
  }

  double head_bytes(const PackedHeads& part) const {
    const double keys = static_cast<double>(part.blocks) * static_cast<double>(block_rows);
    const double queries =
        static_cast<double>(p.group) * static_cast<double>(part.tiles) * static_cast<double>(tile_rows);
    const double key_halves = static_cast<double>(2 * D_padded + Dv_padded);
    const double query_halves = static_cast<double>(2 * D_padded + 2 * Dv_padded);
    return sizeof(BFloat16) * (keys * key_halves + queries * query_halves) +
           sizeof(float) * queries * static_cast<double>(D_padded);
  }

  const BackwardProblem& p;
  WorkList list;
  ScoreRules<float> rules;
  FusedRules fused;            ///< where biases and masks are applied; `memory` and `none` mean the same here
  View<double, 2> sink_parts;  ///< contribution of each query tile to dsinks, (query tiles of all sequences, Hq)
  std::int64_t D_padded, Dv_padded;
  BiasGradientPlan dbias;
  std::int64_t tile_rows, block_rows;  ///< queries per tile (at most kTile) and keys per block (at most kBlock)
  HeadCounts max_head_counts;          ///< largest numbers of tiles, blocks and panels of any head
  HeadCounts buffer_counts;            ///< numbers of tiles, blocks and panels that fit in the packed buffers
  int threads = 1;
  bool whole_heads = false;  ///< true if each head is computed by a single thread; always false with dbias
};

/// Scratch buffers of one thread.
struct Native16BackwardScratch {
  Native16BackwardScratch(Workspace& ws, const Native16BackwardPlan& plan) {
    using Plan = Native16BackwardPlan;
    const std::int64_t rows = plan.tile_rows, keys = plan.block_rows;
    const std::int64_t widest = std::max(plan.D_padded, plan.Dv_padded);
    const std::int64_t Dv_vectors = round_up(plan.p.Dv, kLanes<float>);
    squares = ws.take<float>("squares", 4, kSquare * kSquare);
    weight_pairs = ws.take<BFloat16>("weights", keys / kTileCols, rows * kTileCols);
    ds_pairs = ws.take<BFloat16>("ds, pairs", keys / kTileCols, rows * kTileCols);
    ds = ws.take<BFloat16>("ds", rows, Plan::kScoreStride);
    dk_t = ws.take<float>("dk", plan.D_padded, keys);
    dv_t = ws.take<float>("dv", plan.Dv_padded, keys);
    transposed = ws.take<float>("dk or dv", kSquare, widest);
    packing = ws.take<BFloat16>("packing", kTileCols, widest);
    dy = ws.take<float>("dy", Dv_vectors);
    y = ws.take<float>("y", Dv_vectors);
    attn = ws.take<float>("attn", Dv_vectors);
    gate = ws.take<float>("gate", Dv_vectors);
    dgate = ws.take<float>("dgate", Dv_vectors);
    d_o = ws.take<float>("do", plan.Dv_padded);
    scaled = ws.take<float>("scaled", widest);
    if (plan.rules.any()) rule_row = ws.take<float>("rule rows", 2 * kSquare);
    if (plan.rules.capped()) slope = ws.take<float>("slope", kSquare, kSquare);
    if (plan.dbias.wanted()) bias_ds = ws.take<float>("ds of a square", kSquare, kSquare);
    dbias = BiasGradientScratch<float>(ws, plan.dbias, Plan::kBlock);
  }

  View<float, 2> squares;          ///< scores of two squares, then d_o · vᵀ of both, (4, kSquare · kSquare)
  View<BFloat16, 2> weight_pairs;  ///< weights P of a tile as a right operand: PairPanels of 16 keys, one query per row
  View<BFloat16, 2> ds_pairs;      ///< ds (gradient of the scores) of a tile, in the layout of weight_pairs
  View<BFloat16, 2> ds;            ///< ds (gradient of the scores) of a tile, row-major (queries by keys)
  /// dk and dv of the thread's key block, transposed. Column key_column(j) holds key j of the block.
  View<float, 2> dk_t, dv_t;
  View<float, 2> transposed;                     ///< kSquare rows of dk or dv, transposed from dk_t or dv_t
  View<BFloat16, 2> packing;                     ///< dense copies of strided rows, made before packing
  View<float, 1> dy, y, attn, gate, dgate, d_o;  ///< scratch for one query's rows
  View<float, 1> scaled;                         ///< one row of dq, dk or dv, scaled and not yet rounded
  View<float, 1> rule_row;                       ///< scratch for a row of bias or mask, and a row of key bias
  View<float, 2> slope;                          ///< softcap's derivative for a square of scores, (kSquare, kSquare)
  View<float, 2> bias_ds;                        ///< ds of a square, which add() adds to dbias, (kSquare, kSquare)
  BiasGradientScratch<float> dbias;
};

/// Buffers shared by all threads. They hold the packed operands of one batch of key/value heads.
struct Native16BackwardBuffers {
  Native16BackwardBuffers(Workspace& ws, const Native16BackwardPlan& plan) {
    const std::int64_t rows = plan.tile_rows, keys_rows = plan.block_rows;
    const std::int64_t tiles = plan.buffer_counts.tiles, blocks = plan.buffer_counts.blocks;
    keys_t = ws.take<BFloat16>("keys, transposed", blocks, keys_rows * plan.D_padded);
    keys = ws.take<BFloat16>("keys", blocks, keys_rows * plan.D_padded);
    values_t = ws.take<BFloat16>("values, transposed", blocks, keys_rows * plan.Dv_padded);
    q = ws.take<BFloat16>("q", tiles, rows, plan.D_padded);
    q_t = ws.take<BFloat16>("q, transposed", tiles, plan.D_padded, rows);
    d_o = ws.take<BFloat16>("do", tiles, rows, plan.Dv_padded);
    d_o_t = ws.take<BFloat16>("do, transposed", tiles, plan.Dv_padded, rows);
    dq = ws.take<float>("dq", tiles, rows, plan.D_padded);
    lse = ws.take<float>("lse", tiles, rows);
    lse_error = ws.take<float>("lse errors", tiles, rows);
    delta = ws.take<float>("delta", tiles, rows);
    dq_turns = ws.take<std::int64_t>("turns of dq", tiles);
    parts = ws.take<PackedHeads>("parts", plan.buffer_counts.parts);
    tasks = ws.take<HeadTask>("key blocks", plan.whole_heads ? 0 : blocks);
    dbias = BiasGradientBuffers<float>(ws, plan.p, plan.dbias);
    scratch = ws.take<std::byte>("threads", plan.threads, count_bytes<Native16BackwardScratch>(plan));
  }

  View<BFloat16, 2> keys_t, values_t;  ///< k and v with one key per column, (packed blocks, PairPanels of 16 keys)
  View<BFloat16, 2> keys;              ///< k with one key per row, (packed blocks, PairPanels of 16 features)
  View<BFloat16, 3> q, d_o;          ///< q and d_o, one query per row, (packed tiles, tile_rows, D_padded or Dv_padded)
  View<BFloat16, 3> q_t, d_o_t;      ///< transpose of q and d_o, (packed tiles, D_padded or Dv_padded, tile_rows)
  View<float, 3> dq;                 ///< Σ ds k, so dq is scale times this, (packed tiles, tile_rows, D_padded)
  View<float, 2> lse, lse_error;     ///< lse · log2(e), and its rounding error; both (packed tiles, tile_rows)
  View<float, 2> delta;              ///< Δ − dlse, where Δ = rowsum(d_o ∘ o), (packed tiles, tile_rows)
  View<std::int64_t, 1> dq_turns;    ///< for each packed tile: whose turn it is to add to dq (Turnstile)
  View<PackedHeads, 1> parts;        ///< parts of the current batch; each part holds heads of one sequence
  View<HeadTask, 1> tasks;           ///< key blocks of the batch, in the order in which threads take them
  BiasGradientBuffers<float> dbias;  ///< sums of dbias
  View<std::byte, 2> scratch;        ///< memory for each thread's Native16BackwardScratch, (threads, bytes)
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_AVX3

#endif  // HEADGATE_ATTENTION_NATIVE16_BACKWARD_PLAN_INL_
