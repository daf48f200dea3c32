// SPDX-License-Identifier: Apache-2.0
// Sizes and buffers of one forward call with bf16 products (AVX-512 only).
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
#include "library/attention/problem.hpp"
#include "library/core/bf16_products-inl.hpp"
#include "library/core/sum_blocks.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Plans the forward pass with bf16 products, in strips of kSquare rows. ForwardPlan is its f32 counterpart.
struct Native16ForwardPlan {
  static constexpr bool kSkipsClosedRows = false;  ///< another kernel computes calls with gate_threshold
  static constexpr std::int64_t kTile = kQueryTile;
  static constexpr std::int64_t kBlock = kForwardKeys;
  static constexpr std::int64_t kPanel = kSquare;
  static constexpr std::int64_t kStripRows = kSquare, kBandRows = kSquare;
  // padded by a cache line, so that rows map to different cache sets
  static constexpr std::int64_t kScoreStride = kBlock + 16;
  static constexpr std::int64_t kWeightStride = kBlock + 32;  // row stride of the weights, in bf16 elements
  static_assert(kTile % kSquare == 0 && kBlock % kSquare == 0);

  Native16ForwardPlan(const ForwardProblem& problem, const WorkList& sequences)
      : p(problem), list(sequences), rules(problem), D_padded(whole_squares(p.D)), Dv_padded(whole_squares(p.Dv)) {
    const HeadBatches batches(*this);
    const HeadSurvey heads = batches.survey();
    max_head_counts = heads.max_head_counts;
    whole_heads = heads_are_tasks(heads, p.context.threads, kOwnHead_bytes);
    buffer_counts = batches.max_batch_counts();
    threads = static_cast<int>(std::clamp<std::int64_t>(buffer_counts.tiles, 1, p.context.threads));
    if (whole_heads) buffer_counts.set_head_buffers(max_head_counts, p.group, threads);
  }

  double head_bytes(const PackedHeads& part) const {
    return sizeof(BFloat16) * static_cast<double>(part.panels) * static_cast<double>(kPanel * (D_padded + Dv_padded));
  }

  const ForwardProblem& p;
  WorkList list;
  ScoreRules<float> rules;
  std::int64_t D_padded, Dv_padded;
  std::int64_t tile_rows = kTile;
  HeadCounts max_head_counts;  ///< largest numbers of tiles, blocks and panels of any head
  HeadCounts buffer_counts;    ///< numbers of tiles, blocks and panels that fit in the packed buffers
  int threads = 1;
  bool whole_heads = false;  ///< true if each head is computed by a single thread
};

/// Scratch buffers of one thread.
struct Native16ForwardScratch {
  Native16ForwardScratch(Workspace& ws, const Native16ForwardPlan& plan) {
    using Plan = Native16ForwardPlan;
    queries = ws.take<BFloat16>("q", Plan::kTile, plan.D_padded);
    scores = ws.take<float>("scores", kSquare, Plan::kScoreStride);
    weights = ws.take<BFloat16>("weights", kSquare, Plan::kWeightStride);
    out = ws.take<float>("out", Plan::kTile, plan.Dv_padded);
    maxima = ws.take<float>("maxima", Plan::kTile);
    sums = ws.take<float>("sums", Plan::kTile, kLanes<float>);
    if (plan.p.outputs.max_logit.present()) largest = ws.take<float>("largest scores", Plan::kTile);
    packing = ws.take<BFloat16>("packing", kTileCols, std::max(plan.D_padded, plan.Dv_padded));
    gate = ws.take<float>("gate", round_up(plan.p.Dv, kLanes<float>));
    gated = ws.take<float>("gated", round_up(plan.p.Dv, kLanes<float>));
    if (plan.rules.any()) rule_row = ws.take<float>("rule rows", 2 * Plan::kBlock);
  }

  View<BFloat16, 2> queries;   ///< packed queries of the tile, (kTile, D_padded)
  View<float, 2> scores;       ///< scores of one strip of queries with one key block
  View<BFloat16, 2> weights;   ///< exponentials of the scores, rounded to bf16
  View<float, 2> out;          ///< Σ weight · v for each query of the tile, not yet divided by the sum of weights
  View<float, 1> maxima;       ///< running maxima of the tile's queries, times log2(e)
  View<float, 2> sums;         ///< sums of exponentials, one per lane, (kTile, lanes)
  View<float, 1> largest;      ///< largest score of each query, times log2(e), if max_logit is requested
  View<BFloat16, 2> packing;   ///< dense copies of strided rows, made before packing
  View<float, 1> gate, gated;  ///< scratch for one query's gate logits and gated output
  View<float, 1> rule_row;     ///< scratch for a row of bias or mask, and a row of key bias
};

/// Buffers shared by all threads. They hold the packed K and V of one batch of heads.
struct Native16ForwardBuffers {
  Native16ForwardBuffers(Workspace& ws, const Native16ForwardPlan& plan) {
    keys = ws.take<BFloat16>("keys", plan.buffer_counts.panels, kSquare * plan.D_padded);
    values = ws.take<BFloat16>("values", plan.buffer_counts.panels, kSquare * plan.Dv_padded);
    parts = ws.take<PackedHeads>("parts", plan.buffer_counts.parts);
    scratch = ws.take<std::byte>("threads", plan.threads, count_bytes<Native16ForwardScratch>(plan));
  }

  View<BFloat16, 2> keys;      ///< packed k, (packed panels, two PairPanels of 16 keys)
  View<BFloat16, 2> values;    ///< packed v, (packed panels, kSquare · Dv_padded); one PairPanels per key block
  View<PackedHeads, 1> parts;  ///< parts of the current batch; each part holds heads of one sequence
  View<std::byte, 2> scratch;  ///< memory for each thread's Native16ForwardScratch, (threads, bytes)
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_AVX3

#endif  // HEADGATE_ATTENTION_NATIVE16_FORWARD_PLAN_INL_
