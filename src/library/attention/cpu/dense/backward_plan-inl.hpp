// SPDX-License-Identifier: Apache-2.0
// Sizes and buffers of one backward call; included once per Highway target.
#if defined(HEADGATE_ATTENTION_BACKWARD_PLAN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_BACKWARD_PLAN_INL_
#undef HEADGATE_ATTENTION_BACKWARD_PLAN_INL_
#else
#define HEADGATE_ATTENTION_BACKWARD_PLAN_INL_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "library/attention/cpu/common/bias_gradient-inl.hpp"
#include "library/attention/cpu/common/dropout-inl.hpp"
#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/common/multiply-inl.hpp"
#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/problem.hpp"
#include "library/core/sum_blocks.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Plans the backward pass in tiles of kTile queries by kBlock keys.
/// One thread owns a key block. The block's dk and dv stay in the cache of this thread while it visits the query tiles.
/// All threads share dq, to which key blocks add in ascending order (Turnstile).
///
/// kTile and kBlock are multiples of a register tile's height and width on every target.
template <typename T>
struct BackwardPlan {
  static constexpr std::int64_t kTile = kQueryTile;
  static constexpr std::int64_t kBlock = kBackwardKeys;
  static constexpr std::int64_t kPanel = kBlock;  // counts a block as one panel, because all its keys are packed
  // padded by a cache line, so that rows map to different cache sets
  static constexpr std::int64_t kScoreStride = kBlock + 16;
  static_assert(kTile % kMR == 0 && kBlock % kMR == 0 && kBlock % kNR<T> == 0);

  using StripLeft = LeftLayout<1, kMR>;            // layout of q or d_o, which are packed in strips
  using ScoreLeft = LeftLayout<kScoreStride, 1>;   // layout of the scores of a tile, with queries as rows
  using ScoreLeftT = LeftLayout<1, kScoreStride>;  // layout of the scores of a tile, with keys as rows

  BackwardPlan(const BackwardProblem& problem, const WorkList& sequences, const View<double, 2>& dsinks_terms)
      : p(problem),
        list(sequences),
        rules(problem),
        dropout(problem),
        sink_parts(dsinks_terms),
        D_padded(round_up(p.D, kLanes<T>)),
        Dv_padded(round_up(p.Dv, kLanes<T>)),
        dbias(problem, dtype_of<T>()) {
    const Sequence longest = longest_sequence(p, list);
    tile_rows = std::clamp(round_up(longest.T, kMR), kMR, kTile);
    block_rows = std::clamp(std::max(round_up(longest.S, kMR), round_up(longest.S, kNR<T>)), kMR, kBlock);
    const HeadBatches batches(*this);
    const HeadSurvey heads = batches.survey();
    max_head_counts = heads.max_head_counts;
    whole_heads = !dbias.wanted() && heads_are_tasks(heads, p.context.threads, kOwnHead_bytes);
    prefetches_heads = whole_heads && next_head_fits(heads.max_head_bytes);
    buffer_counts = batches.max_batch_counts();
    dbias.set_parts(heads.tile_blocks);
    const std::int64_t tasks = std::max(buffer_counts.blocks, buffer_counts.tiles);
    threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, p.context.threads));
    if (whole_heads) buffer_counts.set_head_buffers(max_head_counts, p.group, threads);
  }

  /// Returns the packed bytes of one head.
  /// The type is double because sizes of broadcast tensors (stride 0) can overflow int64.
  double head_bytes(const PackedHeads& part) const {
    const double keys = static_cast<double>(part.blocks) * kBlock;
    const double queries = static_cast<double>(p.group) * static_cast<double>(part.tiles) * kTile;
    return sizeof(T) * (keys * static_cast<double>(p.D + p.Dv + D_padded) +
                        queries * static_cast<double>(p.D + 2 * D_padded + p.Dv + Dv_padded));
  }

  const BackwardProblem& p;
  WorkList list;
  ScoreRules<T> rules;
  Dropout<T> dropout;
  View<double, 2> sink_parts;  ///< contribution of each query tile to dsinks, (query tiles of all sequences, Hq)
  std::int64_t D_padded, Dv_padded;
  BiasGradientPlan dbias;
  std::int64_t tile_rows, block_rows;  ///< numbers of rows, with padding, in a packed query tile and key block
  HeadCounts max_head_counts;          ///< largest numbers of tiles, blocks and panels of any head
  HeadCounts buffer_counts;            ///< numbers of tiles, blocks and panels that fit in the packed buffers
  int threads = 1;
  bool whole_heads = false;       ///< true if each head is computed by a single thread; always false with dbias
  bool prefetches_heads = false;  ///< true if a thread prefetches the next head's rows while it computes a head
};

/// Scratch buffers of one thread.
template <typename T>
struct BackwardScratch {
  BackwardScratch(Workspace& ws, const BackwardPlan<T>& plan) {
    using Plan = BackwardPlan<T>;
    const std::int64_t widest = std::max(plan.D_padded, plan.Dv_padded);
    probabilities = ws.take<T>("probabilities", Plan::kTile, Plan::kScoreStride);
    ds = ws.take<T>("ds", Plan::kTile, Plan::kScoreStride);
    dk = ws.take<T>("dk", plan.block_rows, plan.D_padded);
    dv = ws.take<T>("dv", plan.block_rows, plan.Dv_padded);
    packing = ws.take<T>("packing", std::max(kNR<T>, kMR), widest);
    dy = ws.take<T>("dy", plan.Dv_padded);
    y = ws.take<T>("y", plan.Dv_padded);
    attn = ws.take<T>("attn", plan.Dv_padded);
    gate = ws.take<T>("gate", plan.Dv_padded);
    dgate = ws.take<T>("dgate", plan.Dv_padded);
    d_o = ws.take<T>("do", kMR, plan.Dv_padded);
    scaled = ws.take<T>("scaled", widest);
    if (plan.rules.any()) rule_row = ws.take<T>("rule rows", 2 * Plan::kBlock);
    if (plan.dropout.any()) dropout_row = ws.take<T>("dropout row", Plan::kBlock);
    if (plan.rules.capped()) slope = ws.take<T>("slope", kMR, Plan::kScoreStride);
    dbias = BiasGradientScratch<T>(ws, plan.dbias, Plan::kBlock);
  }

  View<T, 2> probabilities, ds;         ///< P and ds of a tile, queries by keys
  View<T, 2> dk, dv;                    ///< dk and dv of the thread's key block
  View<T, 2> packing;                   ///< scratch in which strided rows become dense before they are packed
  View<T, 1> dy, y, attn, gate, dgate;  ///< scratch for one query's rows
  View<T, 2> d_o;                       ///< scratch for d_o of one strip of queries
  View<T, 1> scaled;                    ///< scratch for one row of dq, dk or dv: scaled, not yet rounded to its dtype
  View<T, 1> rule_row;                  ///< scratch for a row of bias or mask, and a row of key bias
  View<T, 1> dropout_row;               ///< a row of dropout factors
  View<T, 2> slope;                     ///< softcap's derivative for one strip of a tile
  BiasGradientScratch<T> dbias;
};

/// Buffers shared by all threads. They hold dq and the packed operands of one batch of key/value heads.
/// Left operands of products are packed as strips, right operands as panels. The suffix _t means transposed.
template <typename T>
struct BackwardBuffers {
  BackwardBuffers(Workspace& ws, const BackwardPlan<T>& plan) {
    const BackwardProblem& p = plan.p;
    const std::int64_t rows = plan.tile_rows, keys_rows = plan.block_rows;
    const std::int64_t panels = divide_up(keys_rows, kNR<T>), strips = rows / kMR;
    const std::int64_t tiles = plan.buffer_counts.tiles, blocks = plan.buffer_counts.blocks;
    keys_t = ws.take<T>("keys, transposed", blocks, panels, p.D, kNR<T>);
    keys = ws.take<T>("keys", blocks, keys_rows * plan.D_padded);
    values_t = ws.take<T>("values, transposed", blocks, panels, p.Dv, kNR<T>);
    query_strips = ws.take<T>("q strips", tiles, strips, p.D, kMR);
    query_panels = ws.take<T>("q panels", tiles, rows * plan.D_padded);
    out_strips = ws.take<T>("do strips", tiles, strips, p.Dv, kMR);
    out_panels = ws.take<T>("do panels", tiles, rows * plan.Dv_padded);
    dq = ws.take<T>("dq", tiles, rows, plan.D_padded);
    lse = ws.take<T>("lse", tiles, rows);
    lse_error = ws.take<T>("lse errors", tiles, rows);
    delta = ws.take<T>("delta", tiles, rows);
    dq_turns = ws.take<std::int64_t>("turns of dq", tiles);
    parts = ws.take<PackedHeads>("parts", plan.buffer_counts.parts);
    tasks = ws.take<HeadTask>("key blocks", plan.whole_heads ? 0 : blocks);
    dbias = BiasGradientBuffers<T>(ws, p, plan.dbias);
    const std::size_t bytes = count_bytes<BackwardScratch<T>>(plan);
    scratch = ws.take<std::byte>("threads", plan.threads, bytes);
  }

  View<T, 4> keys_t, values_t;          ///< transposed k and v, (packed blocks, panels, D or Dv, kNR)
  View<T, 2> keys;                      ///< k with one key per row, one ColumnPanels per packed block
  View<T, 4> query_strips, out_strips;  ///< q and d_o as left operands, (packed tiles, strips, D or Dv, kMR)
  View<T, 2> query_panels, out_panels;  ///< q and d_o as right operands, one ColumnPanels per packed tile
  View<T, 3> dq;                        ///< dq, not yet multiplied by scale, (packed tiles, kTile, D_padded)
  View<T, 2> lse, lse_error;            ///< lse · log2(e), and its rounding error; each (packed tiles, kTile)
  View<T, 2> delta;                     ///< Δ − dlse, where Δ = rowsum(d_o ∘ o), (packed tiles, kTile)
  View<std::int64_t, 1> dq_turns;       ///< for each packed tile: the turn that may add to dq next (Turnstile)
  View<PackedHeads, 1> parts;           ///< parts of the current batch; each part holds heads of one sequence
  View<HeadTask, 1> tasks;              ///< key blocks of the batch, in the order in which threads take them
  BiasGradientBuffers<T> dbias;         ///< buffers in which dbias is summed
  View<std::byte, 2> scratch;           ///< memory for each thread's BackwardScratch, (threads, bytes)
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_BACKWARD_PLAN_INL_
