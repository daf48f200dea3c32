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

/// Plans the forward pass in tiles of kTile queries by blocks of kBlock keys.
/// Tiles are cut into bands of kBandRows queries.
/// While a tile visits a block, the block's packed K and V and a band's scores stay in the second-level cache.
template <typename T>
struct ForwardPlan {
  static constexpr bool kSkipsClosedRows = true;  ///< with a gate threshold, the kernel computes only open rows
  static constexpr std::int64_t kTile = kQueryTile;
  static constexpr std::int64_t kBlock = kForwardKeys;
  static constexpr std::int64_t kPanel = kNR<T>;
  static constexpr std::int64_t kStripRows = kMR;
  // padded by a cache line, so that rows map to different cache sets
  static constexpr std::int64_t kScoreStride = kBlock + 16;
  /// Number of query rows in a band. All rows of a band use a panel of K or V while it is in the first-level cache
  /// (docs/design/forward.md).
  static constexpr std::int64_t kBandRows = 48;
  /// Number of queries per tile if there is a gate threshold.
  /// Such tiles hold only queries that the threshold does not skip.
  /// With larger tiles, keys are read less often per query.
  static constexpr std::int64_t kOpenTile = 5 * kBandRows;
  static_assert(kTile % kBandRows == 0 && kOpenTile % kBandRows == 0 && kBandRows % kMR == 0 && kBlock % kNR<T> == 0);

  using ScoreLeft = LeftLayout<1, kMR>;           // layout of q, which is packed in strips
  using ValueLeft = LeftLayout<kScoreStride, 1>;  // layout of softmax weights

  ForwardPlan(const ForwardProblem& problem, const WorkList& sequences)
      : p(problem),
        list(sequences),
        rules(problem),
        dropout(problem),
        Dv_padded(round_up(p.Dv, kLanes<T>)),
        tile_rows(has_gate_threshold() ? kOpenTile : kTile) {
    const HeadBatches batches(*this);
    const HeadSurvey heads = batches.survey();
    max_head_counts = heads.max_head_counts;
    const int threads_asked = p.context.threads;
    whole_heads = !has_gate_threshold() && heads_are_tasks(heads, threads_asked, shared_head_bytes(threads_asked));
    prefetches_heads = whole_heads && p.page == 0 && next_head_fits(heads.max_head_bytes);
    prefetches_tiles = whole_heads && !prefetches_heads && heads.max_head_bytes <= kOwnHead_bytes;
    buffer_counts = batches.max_batch_counts();
    threads = static_cast<int>(std::clamp<std::int64_t>(buffer_counts.tiles, 1, p.context.threads));
    if (whole_heads) buffer_counts.set_head_buffers(max_head_counts, p.group, threads);
  }

  bool has_gate_threshold() const { return p.gate_threshold > 0; }
  /// Returns the packed bytes of one head.
  /// The type is double because sizes of broadcast tensors (stride 0) can overflow int64.
  double head_bytes(const PackedHeads& part) const {
    return sizeof(T) * static_cast<double>(part.panels) * static_cast<double>(kPanel * (p.D + Dv_padded));
  }

  const ForwardProblem& p;
  WorkList list;
  ScoreRules<T> rules;
  Dropout<T> dropout;
  std::int64_t Dv_padded;
  std::int64_t tile_rows;      ///< largest number of queries per tile
  HeadCounts max_head_counts;  ///< largest numbers of tiles, blocks and panels of any head
  HeadCounts buffer_counts;    ///< numbers of tiles, blocks and panels that fit in the packed buffers
  int threads = 1;
  bool whole_heads = false;       ///< true if each head is computed by a single thread; false with a gate threshold
  bool prefetches_heads = false;  ///< true if a thread prefetches the next head's rows while it computes a head
  /// True if a thread prefetches the rows of the next tile while it computes a tile.
  /// Used if prefetches_heads is false: k and v are paged, or the next head does not fit in the second-level cache.
  bool prefetches_tiles = false;
};

/// Scratch buffers of one thread.
template <typename T>
struct ForwardScratch {
  ForwardScratch(Workspace& ws, const ForwardPlan<T>& plan) {
    using Plan = ForwardPlan<T>;
    const std::int64_t D = plan.p.D;
    rows = ws.take<std::int64_t>("rows", plan.tile_rows);
    queries = ws.take<T>("q strips", plan.tile_rows / kMR, D, kMR);
    scores = ws.take<T>("scores", Plan::kBandRows, Plan::kScoreStride);
    out = ws.take<T>("out", plan.tile_rows, plan.Dv_padded);
    maxima = ws.take<T>("maxima", plan.tile_rows);
    sums = ws.take<T>("sums", plan.tile_rows, kLanes<T>);
    if (plan.p.outputs.max_logit.present()) largest = ws.take<T>("largest scores", plan.tile_rows);
    packing = ws.take<T>("packing", std::max(kNR<T>, kMR), std::max(D, plan.Dv_padded));
    gate = ws.take<T>("gate", plan.Dv_padded);
    gated = ws.take<T>("gated", plan.Dv_padded);
    if (plan.rules.any()) rule_row = ws.take<T>("rule rows", 2 * Plan::kBlock);
    if (plan.dropout.any()) dropout_row = ws.take<T>("dropout row", Plan::kBlock);
  }

  View<std::int64_t, 1> rows;  ///< the tile's queries in ascending order
  View<T, 3> queries;          ///< packed queries of the tile, (strips, D, kMR)
  View<T, 2> scores;           ///< scores of a band of queries with one key block; later the exponentials of the scores
  View<T, 2> out;              ///< Σ weight · v for each query of the tile, not yet divided by the sum of weights
  View<T, 1> maxima;           ///< running maxima of the tile's queries, times log2(e)
  View<T, 2> sums;             ///< sums of exponentials, one per lane, (tile_rows, lanes)
  View<T, 1> largest;          ///< largest score of each query, times log2(e), if max_logit is requested
  View<T, 2> packing;          ///< scratch in which strided rows become dense before they are packed
  View<T, 1> gate, gated;      ///< scratch for one query's gate logits and gated output
  View<T, 1> rule_row;         ///< scratch for a row of bias or mask, and a row of key bias
  View<T, 1> dropout_row;      ///< a row of dropout factors
};

/// Buffers shared by all threads. They hold the packed K and V of one batch of heads.
template <typename T>
struct ForwardBuffers {
  ForwardBuffers(Workspace& ws, const ForwardPlan<T>& plan) {
    keys = ws.take<T>("keys", plan.buffer_counts.panels, plan.p.D, kNR<T>);
    values = ws.take<T>("values", plan.buffer_counts.panels, kNR<T> * plan.Dv_padded);
    parts = ws.take<PackedHeads>("parts", plan.buffer_counts.parts);
    if (plan.has_gate_threshold()) {
      open_rows = ws.take<std::int64_t>("open rows", plan.buffer_counts.tiles, plan.tile_rows);
      open_counts = ws.take<std::int64_t>("open rows", plan.buffer_counts.tiles);
    }
    const std::size_t bytes = count_bytes<ForwardScratch<T>>(plan);
    scratch = ws.take<std::byte>("threads", plan.threads, bytes);
  }

  View<T, 3> keys;             ///< packed k, transposed, (packed panels, D, kNR)
  View<T, 2> values;           ///< packed v, (packed panels, kNR · Dv_padded); each key block is one ColumnPanels
  View<PackedHeads, 1> parts;  ///< parts of the current batch; each part holds heads of one sequence
  /// Open queries of each packed tile in ascending order. Open queries are those that the gate threshold does not skip.
  /// open_counts holds the number of open queries per tile. Both buffers are used only with a gate threshold.
  View<std::int64_t, 2> open_rows;
  View<std::int64_t, 1> open_counts;
  View<std::byte, 2> scratch;  ///< memory for each thread's ForwardScratch, (threads, bytes)
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_FORWARD_PLAN_INL_
