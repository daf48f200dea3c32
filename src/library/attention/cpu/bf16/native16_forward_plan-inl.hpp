// SPDX-License-Identifier: Apache-2.0
// Sizes and buffers of one forward call with bf16 products; for the target AVX-512 alone.
#if defined(HEADGATE_ATTENTION_NATIVE16_FORWARD_PLAN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_NATIVE16_FORWARD_PLAN_INL_
#undef HEADGATE_ATTENTION_NATIVE16_FORWARD_PLAN_INL_
#else
#define HEADGATE_ATTENTION_NATIVE16_FORWARD_PLAN_INL_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/cpu/x86/bf16_products-inl.hpp"
#include "library/attention/problem.hpp"
#include "library/core/sum_blocks.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// As ForwardPlan, with strips of kSquare rows.
struct Native16ForwardPlan {
  static constexpr bool kMaySelect = false;  ///< the route declines a gate threshold
  static constexpr std::int64_t kTile = kQueryTile;
  static constexpr std::int64_t kBlock = kForwardKeys;
  static constexpr std::int64_t kPanel = kSquare;
  static constexpr std::int64_t kScoreStride = kBlock + 16;   // a cache line more, so that rows lie in different sets
  static constexpr std::int64_t kWeightStride = kBlock + 32;  // of bf16
  static_assert(kTile % kSquare == 0 && kBlock % kSquare == 0);

  Native16ForwardPlan(const ForwardProblem& problem, const WorkList& sequences)
      : p(problem), list(sequences), rules(problem), D_padded(whole_squares(p.D)), Dv_padded(whole_squares(p.Dv)) {
    const HeadBatches batches(*this);
    const HeadSurvey heads = batches.survey();
    largest = heads.largest;
    whole_heads = heads_are_tasks(heads, p.context.threads, kOwnHead_bytes);
    HeadCursor end;
    most = batches.most(end);
    threads = static_cast<int>(std::clamp<std::int64_t>(most.tiles, 1, p.context.threads));
    if (whole_heads) most.pack_one_each(largest, p.group, threads);
  }

  double head_bytes(const PackedHeads& part) const {
    return sizeof(BFloat16) * static_cast<double>(part.panels) * static_cast<double>(kPanel * (D_padded + Dv_padded));
  }

  const ForwardProblem& p;
  WorkList list;
  ScoreRules<float> rules;
  std::int64_t D_padded, Dv_padded;
  std::int64_t tile_rows = kTile;
  HeadPieces largest;  ///< of a head
  HeadTotals most;     ///< what is packed packed at a time
  int threads = 1;
  bool whole_heads = false;  ///< each thread packs heads of its own
};

/// What one thread works in.
struct Native16ForwardScratch {
  Native16ForwardScratch(Workspace& ws, const Native16ForwardPlan& plan) {
    using Plan = Native16ForwardPlan;
    queries = ws.take<BFloat16>("q", Plan::kTile, plan.D_padded);
    scores = ws.take<float>("scores", kSquare, Plan::kScoreStride);
    weights = ws.take<BFloat16>("weights", kSquare, Plan::kWeightStride);
    out = ws.take<float>("out", Plan::kTile, plan.Dv_padded);
    maxima = ws.take<float>("maxima", Plan::kTile);
    sums = ws.take<float>("sums", Plan::kTile, kLanes<float>);
    packing = ws.take<BFloat16>("packing", kTileCols, std::max(plan.D_padded, plan.Dv_padded));
    gate = ws.take<float>("gate", round_up(plan.p.Dv, kLanes<float>));
    gated = ws.take<float>("gated", round_up(plan.p.Dv, kLanes<float>));
    if (plan.rules.any()) rule_row = ws.take<float>("rule row", Plan::kBlock);
  }

  View<BFloat16, 2> queries;   ///< (kTile, D_padded), rows of the tile
  View<float, 2> scores;       ///< of a strip by a key block; then their exponents
  View<BFloat16, 2> weights;   ///< the exponentials
  View<float, 2> out;          ///< of the tile's queries, not yet divided by the sums
  View<float, 1> maxima;       ///< of the tile's queries over the keys so far, in units of log2(e)
  View<float, 2> sums;         ///< of the exponentials, by lane
  View<BFloat16, 2> packing;   ///< rows on their way into packed operands
  View<float, 1> gate, gated;  ///< one query's gate logits, and its output past the gate
  View<float, 1> rule_row;     ///< a row of bias or mask
};

/// What threads share: K and V packed, for the heads of a batch.
struct Native16ForwardBuffers {
  Native16ForwardBuffers(Workspace& ws, const Native16ForwardPlan& plan) {
    keys = ws.take<BFloat16>("keys", plan.most.panels, kSquare * plan.D_padded);
    values = ws.take<BFloat16>("values", plan.most.panels, kSquare * plan.Dv_padded);
    parts = ws.take<PackedHeads>("parts", plan.most.parts);
    scratch = ws.take<std::byte>("threads", plan.threads, count_bytes<Native16ForwardScratch>(plan));
  }

  View<BFloat16, 2> keys;      ///< (packed panels, two PairPanels of 16 keys)
  View<BFloat16, 2> values;    ///< (packed panels, …): of each block, PairPanels of 16 columns
  View<PackedHeads, 1> parts;  ///< of the batch
  View<std::byte, 2> scratch;  ///< a thread's Native16ForwardScratch
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_AVX3

#endif  // HEADGATE_ATTENTION_NATIVE16_FORWARD_PLAN_INL_
