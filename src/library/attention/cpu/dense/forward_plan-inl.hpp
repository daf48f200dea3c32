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

/// Keys are cut into blocks of kBlock: a group's scores (kBandRows · kBlock) and a block of packed K and V stay in L2
/// while the kTile queries of a tile pass over it.
template <typename T>
struct ForwardPlan {
  static constexpr bool kMaySelect = true;  ///< rows, as selects() says
  static constexpr std::int64_t kTile = kQueryTile;
  static constexpr std::int64_t kBlock = kForwardKeys;
  static constexpr std::int64_t kPanel = kNR<T>;
  static constexpr std::int64_t kScoreStride = kBlock + 16;  // a cache line more, so that rows lie in different sets
  /// Rows that a panel of K or V serves while it is in L1 (docs/design/forward.md).
  static constexpr std::int64_t kBandRows = 48;
  /// Open rows of a tile under a gate threshold: with fewer rows in all, keys are read more often for each.
  static constexpr std::int64_t kOpenTile = 5 * kBandRows;
  static_assert(kTile % kBandRows == 0 && kOpenTile % kBandRows == 0 && kBandRows % kMR == 0 && kBlock % kNR<T> == 0);

  using ScoreLeft = LeftLayout<1, kMR>;           // packed strips of q
  using ValueLeft = LeftLayout<kScoreStride, 1>;  // rows of probabilities

  ForwardPlan(const ForwardProblem& problem, const WorkList& sequences)
      : p(problem),
        list(sequences),
        rules(problem),
        dropout(problem),
        Dv_padded(round_up(p.Dv, kLanes<T>)),
        tile_rows(p.gate_threshold > 0 ? kOpenTile : kTile) {
    const HeadBatches batches(*this);
    const HeadSurvey heads = batches.survey();
    largest = heads.largest;
    const int threads_asked = p.context.threads;
    whole_heads = !selects() && heads_are_tasks(heads, threads_asked, shared_head_bytes(threads_asked));
    prefetches_heads = whole_heads && p.page == 0 && next_head_fits(heads.largest_bytes);
    prefetches_tiles = whole_heads && !prefetches_heads && heads.largest_bytes <= kOwnHead_bytes;
    HeadCursor end;
    most = batches.most(end);
    threads = static_cast<int>(std::clamp<std::int64_t>(most.tiles, 1, p.context.threads));
    if (whole_heads) most.pack_one_each(largest, p.group, threads);
  }

  /// Whether rows that the gate closes are left out.
  bool selects() const { return p.gate_threshold > 0; }
  /// Doubles, as the sizes of tensors that lie nowhere in full (stride 0) can multiply beyond 64 bits.
  double head_bytes(const PackedHeads& part) const {
    return sizeof(T) * static_cast<double>(part.panels) * static_cast<double>(kPanel * (p.D + Dv_padded));
  }

  const ForwardProblem& p;
  WorkList list;
  ScoreRules<T> rules;
  Dropout<T> dropout;
  std::int64_t Dv_padded;
  std::int64_t tile_rows;  ///< queries of a tile, at most
  HeadPieces largest;      ///< of a head
  HeadTotals most;         ///< what is packed packed at a time
  int threads = 1;
  bool whole_heads = false;  ///< each thread packs heads of its own; not where rows are selected, for all heads at once
  bool prefetches_heads = false;  ///< and asks for the rows of the next while it works on one
  /// Or for the rows of the next tile, where those of a head would not fit the second-level cache beside its own.
  bool prefetches_tiles = false;
};

/// What one thread works in.
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
    packing = ws.take<T>("packing", std::max(kNR<T>, kMR), std::max(D, plan.Dv_padded));
    gate = ws.take<T>("gate", plan.Dv_padded);
    gated = ws.take<T>("gated", plan.Dv_padded);
    if (plan.rules.any()) rule_row = ws.take<T>("rule row", Plan::kBlock);
    if (plan.dropout.any()) dropout_row = ws.take<T>("dropout row", Plan::kBlock);
  }

  View<std::int64_t, 1> rows;  ///< the tile's queries, ascending
  View<T, 3> queries;          ///< (strips, D, kMR), of the tile
  View<T, 2> scores;           ///< of a group by a key block; then their exponentials
  View<T, 2> out;              ///< of the tile's queries, not yet divided by the sums
  View<T, 1> maxima;           ///< of the tile's queries over the keys so far, in units of log2(e)
  View<T, 2> sums;             ///< of the exponentials, by lane
  View<T, 2> packing;          ///< rows on their way into packed operands
  View<T, 1> gate, gated;      ///< one query's gate logits, and its output past the gate
  View<T, 1> rule_row;         ///< a row of bias or mask
  View<T, 1> dropout_row;      ///< a row of factors
};

/// What threads share: K and V packed, for the heads of a batch.
template <typename T>
struct ForwardBuffers {
  ForwardBuffers(Workspace& ws, const ForwardPlan<T>& plan) {
    keys = ws.take<T>("keys", plan.most.panels, plan.p.D, kNR<T>);
    values = ws.take<T>("values", plan.most.panels, kNR<T> * plan.Dv_padded);
    parts = ws.take<PackedHeads>("parts", plan.most.parts);
    if (plan.selects()) {
      open_rows = ws.take<std::int64_t>("open rows", plan.most.tiles, plan.tile_rows);
      open_counts = ws.take<std::int64_t>("open rows", plan.most.tiles);
    }
    const std::size_t bytes = count_bytes<ForwardScratch<T>>(plan);
    scratch = ws.take<std::byte>("threads", plan.threads, bytes);
  }

  View<T, 3> keys;             ///< (packed panels, D, kNR), transposed
  View<T, 2> values;           ///< (packed panels, their rows); the panels of a block are ColumnPanels together
  View<PackedHeads, 1> parts;  ///< of the batch
  /// With a gate threshold: of the queries of each packed tile those that are open, ascending, and how many they are.
  View<std::int64_t, 2> open_rows;
  View<std::int64_t, 1> open_counts;
  View<std::byte, 2> scratch;  ///< a thread's ForwardScratch
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_FORWARD_PLAN_INL_
