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

#include "attention/cpu/head_tasks.hpp"
#include "attention/cpu/multiply-inl.hpp"
#include "attention/cpu/scores-inl.hpp"
#include "attention/problem.hpp"
#include "core/sum_blocks.hpp"
#include "core/view.hpp"
#include "core/workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Work is cut into tiles of kTile queries by kBlock keys. One thread owns a key block: its dk and dv stay in its cache
/// while the query tiles pass. dq is shared: the key blocks add to it in ascending order (Turnstile).
///
/// Both tile sides are multiples of the register tile's rows and columns on every target.
template <typename T>
struct BackwardPlan {
  static constexpr std::int64_t kTile = kQueryTile;
  static constexpr std::int64_t kBlock = kBackwardKeys;
  static constexpr std::int64_t kScoreStride = kBlock + 16;  // a cache line more, so that rows lie in different sets
  /// Packed operands of as many key/value heads as fit here are held at a time, at least one, as in the forward pass.
  static constexpr std::int64_t kPackedBudget_bytes = std::int64_t{24} << 20;
  static_assert(kTile % kMR == 0 && kBlock % kMR == 0 && kBlock % kNR<T> == 0);

  using StripLeft = LeftLayout<1, kMR>;            // packed strips of q or do
  using ScoreLeft = LeftLayout<kScoreStride, 1>;   // a score tile, rows = queries
  using ScoreLeftT = LeftLayout<1, kScoreStride>;  // a score tile, rows = keys

  explicit BackwardPlan(const BackwardProblem& problem)
      : p(problem),
        rules(problem),
        D_padded(round_up(p.D, kLanes<T>)),
        Dv_padded(round_up(p.Dv, kLanes<T>)),
        tile_rows(std::min(kTile, round_up(p.T, kMR))),
        block_rows(std::min(kBlock, std::max(round_up(p.S, kMR), round_up(p.S, kNR<T>)))),
        tiles(divide_up(p.T, kTile)),
        blocks(divide_up(p.S, kBlock)),
        heads(p.sequences() * p.Hkv) {
    // Doubles, as the sizes of tensors that lie nowhere in full (stride 0) can multiply beyond 64 bits.
    const double keys = static_cast<double>(blocks) * static_cast<double>(block_rows);
    const double queries = static_cast<double>(p.group) * static_cast<double>(tiles) * static_cast<double>(tile_rows);
    const double head_bytes = sizeof(T) * (keys * static_cast<double>(p.D + p.Dv + D_padded) +
                                           queries * static_cast<double>(p.D + 2 * D_padded + p.Dv + Dv_padded));
    const TensorView& dbias = p.gradients.dbias;
    whole_heads = !dbias.present() && heads_are_tasks(p, head_bytes);
    if (whole_heads) {
      heads_at_once = threads = p.context.threads;
      asks_ahead = next_head_fits(head_bytes);
      return;
    }
    const auto fit = static_cast<std::int64_t>(kPackedBudget_bytes / std::max(head_bytes, 1.0));
    heads_at_once = std::clamp<std::int64_t>(fit, 1, std::max<std::int64_t>(heads, 1));
    const std::int64_t tasks = heads_at_once * std::max(blocks, p.group * tiles);
    threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, p.context.threads));
    if (!dbias.present()) return;
    dbias_over_queries = dbias.shape[2] == 1 && p.T != 1;
    const bool one_term = dbias.shape[0] == p.B && dbias.shape[1] == p.Hq && !dbias_over_queries;
    dbias_copied = dbias.dtype != dtype_of<T>() && !one_term;
  }

  const BackwardProblem& p;
  ScoreRules<T> rules;
  std::int64_t D_padded, Dv_padded;
  std::int64_t tile_rows, block_rows;  ///< kTile and kBlock, or what is needed of them: whole strips and panels
  std::int64_t tiles, blocks, heads;
  std::int64_t heads_at_once = 1;  ///< key/value heads whose packed operands are held at a time
  int threads = 1;
  bool whole_heads = false;         ///< each thread packs a head of its own; not with dbias, where heads wait in turns
  bool asks_ahead = false;          ///< and asks for the rows of the next while it works on one
  bool dbias_over_queries = false;  ///< each of its elements is a sum over queries
  bool dbias_copied = false;  ///< it accumulates in a copy in T: its dtype is another, and elements have many terms
};

/// What one thread works in.
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
    if (plan.rules.any()) rule_row = ws.take<T>("rule row", Plan::kBlock);
    if (plan.rules.capped()) slope = ws.take<T>("slope", kMR, Plan::kScoreStride);
    if (plan.p.gradients.dbias.present()) dbias_row = ws.take<T>("dbias row", Plan::kBlock);
    if (plan.dbias_over_queries) dbias_sum = ws.take<T>("dbias sum", Plan::kBlock);
  }

  View<T, 2> probabilities, ds;         ///< of a tile, queries by keys
  View<T, 2> dk, dv;                    ///< of the thread's key block
  View<T, 2> packing;                   ///< rows on their way into packed operands
  View<T, 1> dy, y, attn, gate, dgate;  ///< one query's
  View<T, 2> d_o;                       ///< of a strip of queries
  View<T, 1> scaled;                    ///< a row of dq, dk or dv before it is rounded
  View<T, 1> rule_row;                  ///< a row of bias or mask
  View<T, 2> slope;                     ///< the softcap's derivative, of a strip of a tile
  View<T, 1> dbias_row;                 ///< keys of one block
  View<T, 1> dbias_sum;                 ///< of the thread's key block, over queries
};

/// What threads share. Packed operands are held for heads_at_once key/value heads, each with `group` query heads; left
/// operands of products are strips, right operands panels; _t: transposed.
template <typename T>
struct BackwardBuffers {
  BackwardBuffers(Workspace& ws, const BackwardPlan<T>& plan) {
    const BackwardProblem& p = plan.p;
    const std::int64_t rows = plan.tile_rows, keys_rows = plan.block_rows;
    const std::int64_t panels = divide_up(keys_rows, kNR<T>), strips = rows / kMR;
    const std::int64_t held = plan.heads_at_once, group = p.group, tiles = plan.tiles, blocks = plan.blocks;
    keys_t = ws.take<T>("keys, transposed", held, blocks, panels, p.D, kNR<T>);
    keys = ws.take<T>("keys", held, blocks, keys_rows * plan.D_padded);
    values_t = ws.take<T>("values, transposed", held, blocks, panels, p.Dv, kNR<T>);
    query_strips = ws.take<T>("q strips", held, group, tiles, strips, p.D, kMR);
    query_panels = ws.take<T>("q panels", held, group, tiles, rows * plan.D_padded);
    out_strips = ws.take<T>("do strips", held, group, tiles, strips, p.Dv, kMR);
    out_panels = ws.take<T>("do panels", held, group, tiles, rows * plan.Dv_padded);
    dq = ws.take<T>("dq", held, group, tiles, rows, plan.D_padded);
    lse = ws.take<T>("lse", held, group, tiles, rows);
    delta = ws.take<T>("delta", held, group, tiles, rows);
    sink_parts = ws.take<double>("dsinks by tile", p.sequences(), p.Hq, tiles);
    dq_turns = ws.take<std::int64_t>("turns of dq", held, group, tiles);
    dbias = p.gradients.dbias;
    if (dbias.present()) {
      const Shape& shape = dbias.shape;
      if (plan.dbias_copied) {
        const auto copy = ws.take<T>("dbias", shape[0], shape[1], shape[2], shape[3]);
        dbias = {copy.data, dtype_of<T>(), copy.shape, copy.strides};
      }
      dbias_turns =
          ws.take<std::int64_t>("turns of dbias", shape[0], shape[1], plan.dbias_over_queries ? 1 : tiles, blocks);
    }
    const std::size_t bytes = count_bytes<BackwardScratch<T>>(plan);
    scratch = ws.take<std::byte>("threads", plan.threads, bytes);
  }

  View<T, 5> keys_t, values_t;          ///< (held, blocks, panels, D or Dv, kNR)
  View<T, 3> keys;                      ///< (held, blocks, ColumnPanels)
  View<T, 6> query_strips, out_strips;  ///< (held, group, tiles, strips, D or Dv, kMR); out: do
  View<T, 4> query_panels, out_panels;  ///< (held, group, tiles, ColumnPanels)
  View<T, 5> dq;                        ///< (held, group, tiles, kTile, D_padded), not yet scaled
  View<T, 4> lse, delta;                ///< (held, group, tiles, kTile); lse in units of log2(e), delta less dlse
  View<double, 3> sink_parts;           ///< (B, Hq, tiles)
  View<std::int64_t, 3> dq_turns;       ///< a Turnstile for each tile's dq
  TensorView dbias;                     ///< where dbias accumulates: the caller's tensor, or a copy in T
  View<std::int64_t, 4> dbias_turns;    ///< a Turnstile for each part of dbias that tiles share
  View<std::byte, 2> scratch;           ///< a thread's BackwardScratch
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_BACKWARD_PLAN_INL_
