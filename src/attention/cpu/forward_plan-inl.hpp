// SPDX-License-Identifier: Apache-2.0
// Sizes and buffers of one forward call; included once per Highway target.
#if defined(HEADGATE_ATTENTION_FORWARD_PLAN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_FORWARD_PLAN_INL_
#undef HEADGATE_ATTENTION_FORWARD_PLAN_INL_
#else
#define HEADGATE_ATTENTION_FORWARD_PLAN_INL_
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

/// Keys are cut into blocks of kBlock: a group's scores (kGroup · kBlock) and a block of packed K and V stay in L2
/// while the kTile queries of a tile pass over it.
template <typename T>
struct ForwardPlan {
  static constexpr std::int64_t kTile = kQueryTile;
  static constexpr std::int64_t kBlock = kForwardKeys;
  static constexpr std::int64_t kScoreStride = kBlock + 16;  // a cache line more, so that rows lie in different sets
  /// Packed K and V of as many heads as fit here are held at a time, at least one: three quarters of a third-level
  /// cache of 32 MiB, from which all threads read them (docs/notes/2026-11-21-constants.md).
  static constexpr std::int64_t kPackedBudget_bytes = std::int64_t{24} << 20;
  /// Rows that a panel of K or V serves while it is in L1 (docs/notes/2026-11-22-forward-strips.md).
  static constexpr std::int64_t kGroup = 48;
  static_assert(kTile % kGroup == 0 && kGroup % kMR == 0 && kBlock % kNR<T> == 0);

  using ScoreLeft = LeftLayout<1, kMR>;           // packed strips of q
  using ValueLeft = LeftLayout<kScoreStride, 1>;  // rows of probabilities

  explicit ForwardPlan(const ForwardProblem& problem)
      : p(problem),
        rules(problem),
        Dv_padded(round_up(p.Dv, kLanes<T>)),
        panels(divide_up(p.S, kNR<T>)),
        block_rows(std::min(kBlock / kNR<T>, panels) * kNR<T>),
        tiles(divide_up(p.T, kTile)),
        blocks(divide_up(p.S, kBlock)),
        heads(p.sequences() * p.Hkv) {
    // Doubles, as the sizes of tensors that lie nowhere in full (stride 0) can multiply beyond 64 bits.
    const double head_bytes = sizeof(T) * (static_cast<double>(panels) * static_cast<double>(kNR<T> * p.D) +
                                           static_cast<double>(blocks) * static_cast<double>(block_rows * Dv_padded));
    whole_heads = heads_are_tasks(p, head_bytes);
    if (whole_heads) {
      heads_at_once = threads = p.context.threads;
      asks_ahead = next_head_fits(head_bytes);
      return;
    }
    const auto fit = static_cast<std::int64_t>(kPackedBudget_bytes / std::max(head_bytes, 1.0));
    heads_at_once = std::clamp<std::int64_t>(fit, 1, std::max<std::int64_t>(heads, 1));
    threads = static_cast<int>(std::clamp<std::int64_t>(heads_at_once * p.group * tiles, 1, p.context.threads));
  }

  const ForwardProblem& p;
  ScoreRules<T> rules;
  std::int64_t Dv_padded;
  std::int64_t panels;      ///< of kNR keys, the last perhaps not full
  std::int64_t block_rows;  ///< keys of a block, padded to panels
  std::int64_t tiles, blocks, heads;
  std::int64_t heads_at_once = 1;  ///< key/value heads that are held packed at a time
  int threads = 1;
  bool whole_heads = false;  ///< each thread packs a head of its own
  bool asks_ahead = false;   ///< and asks for the rows of the next while it works on one
};

/// What one thread works in.
template <typename T>
struct ForwardScratch {
  ForwardScratch(Workspace& ws, const ForwardPlan<T>& plan) {
    using Plan = ForwardPlan<T>;
    const std::int64_t D = plan.p.D;
    queries = ws.take<T>("q strips", Plan::kTile / kMR, D, kMR);
    scores = ws.take<T>("scores", Plan::kGroup, Plan::kScoreStride);
    out = ws.take<T>("out", Plan::kTile, plan.Dv_padded);
    maxima = ws.take<T>("maxima", Plan::kTile);
    sums = ws.take<T>("sums", Plan::kTile, kLanes<T>);
    packing = ws.take<T>("packing", std::max(kNR<T>, kMR), std::max(D, plan.Dv_padded));
    gate = ws.take<T>("gate", plan.Dv_padded);
    gated = ws.take<T>("gated", plan.Dv_padded);
    if (plan.rules.any()) rule_row = ws.take<T>("rule row", Plan::kBlock);
  }

  View<T, 3> queries;      ///< (strips, D, kMR), of the tile
  View<T, 2> scores;       ///< of a group by a key block; then their exponentials
  View<T, 2> out;          ///< of the tile's queries, not yet divided by the sums
  View<T, 1> maxima;       ///< of the tile's queries over the keys so far, in units of log2(e)
  View<T, 2> sums;         ///< of the exponentials, by lane
  View<T, 2> packing;      ///< rows on their way into packed operands
  View<T, 1> gate, gated;  ///< one query's gate logits, and its output past the gate
  View<T, 1> rule_row;     ///< a row of bias or mask
};

/// What threads share: K and V packed, for heads_at_once key/value heads.
template <typename T>
struct ForwardBuffers {
  ForwardBuffers(Workspace& ws, const ForwardPlan<T>& plan) {
    keys = ws.take<T>("keys", plan.heads_at_once, plan.panels, plan.p.D, kNR<T>);
    values = ws.take<T>("values", plan.heads_at_once, plan.blocks, plan.block_rows * plan.Dv_padded);
    const std::size_t bytes = count_bytes<ForwardScratch<T>>(plan);
    scratch = ws.take<std::byte>("threads", plan.threads, bytes);
  }

  View<T, 4> keys;             ///< (held, panels, D, kNR), transposed
  View<T, 3> values;           ///< (held, blocks, ColumnPanels)
  View<std::byte, 2> scratch;  ///< a thread's ForwardScratch
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_FORWARD_PLAN_INL_
