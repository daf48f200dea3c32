// SPDX-License-Identifier: Apache-2.0
// Sizes and buffers of one call of attention_statistics; included once per Highway target.
#if defined(HEADGATE_ATTENTION_STATISTICS_PLAN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_STATISTICS_PLAN_INL_
#undef HEADGATE_ATTENTION_STATISTICS_PLAN_INL_
#else
#define HEADGATE_ATTENTION_STATISTICS_PLAN_INL_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "library/attention/cpu/common/multiply-inl.hpp"
#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/cpu/statistics/listed_scores-inl.hpp"
#include "library/attention/cpu/statistics/top_keys-inl.hpp"
#include "library/attention/problem.hpp"
#include "library/core/statistics_outputs.hpp"
#include "library/core/sum_blocks.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Plans a statistics call. Tiles, blocks and bands have the same sizes as in the forward pass.
template <typename T>
struct StatisticsPlan {
  static constexpr std::int64_t kTile = kQueryTile;
  static constexpr std::int64_t kBlock = kForwardKeys;
  static constexpr std::int64_t kPanel = kNR<T>;
  // padded by a cache line, so that rows map to different cache sets
  static constexpr std::int64_t kScoreStride = kBlock + 16;
  static constexpr std::int64_t kStripRows = kMR, kBandRows = 48;
  static constexpr bool whole_heads = false;
  static_assert(kTile % kBandRows == 0 && kBandRows % kMR == 0 && kBlock % kNR<T> == 0);

  using ScoreLeft = LeftLayout<1, kMR>;  // layout of q, which is packed in strips

  StatisticsPlan(const StatisticsProblem& problem, const WorkList& sequences)
      : p(problem), list(sequences), rules(problem) {
    const AttentionStatistics& out = p.outputs;
    exponentials = wants_row_statistic(out, kEntropy) || out.key_mass.present();
    if (out.topk_index.present() || out.topk_weight.present()) {
      top_keys = (out.topk_index.present() ? out.topk_index : out.topk_weight).shape[3];
    }
    scan = exponentials || wants_row_statistic(out, kRowMax) || top_keys > 0;
    window = wants_row_statistic(out, kWindowShare);
    first = wants_row_statistic(out, kFirst) || wants_row_statistic(out, kFirstGated);
    if (out.key_weights.present() || out.mean_key_weights.present()) selected_keys = p.selection.keys.shape[3];
    requested_keys = (first ? 1 : 0) + selected_keys;
    if (out.rows.present()) row_strips = divide_up(p.selection.queries.shape[3], kMR);
    sums = out.key_mass.present() || out.mean_key_weights.present();
    for (std::size_t f = 0; f < kRowStatistics; ++f) sums = sums || mean_of_row_statistic(out, f).present();
    by_tile = scan || window || requested_keys > 0;
    by_list = p.inputs.key_indices.present() && (scan || window);
    if (by_list) {
      tile_rows = rows_of_listed_tile();
      list_stride = ListedScores<T>::padded(room_for_listed_keys(p));
    }
    packs_keys = (!by_list && (scan || window)) || row_strips > 0;

    const HeadBatches batches(*this);
    longest_panels = batches.survey().max_head_counts.panels;
    buffer_counts = batches.max_batch_counts();
    threads = static_cast<int>(std::clamp<std::int64_t>(
        std::max(by_tile ? buffer_counts.tiles : 0, buffer_counts.heads * p.group * row_strips), 1, p.context.threads));
  }

  /// Returns the bytes packed per key/value head.
  /// The type is double because sizes of broadcast tensors (stride 0) can overflow int64.
  double head_bytes(const PackedHeads& part) const {
    const auto keys = static_cast<double>(part.panels * kPanel);
    const double packed = (packs_keys ? keys : 0.0) + static_cast<double>(round_up(requested_keys, kPanel));
    const double summed =
        static_cast<double>(kSumsOfHead + selected_keys) + (p.outputs.key_mass.present() ? keys : 0.0);
    return sizeof(T) * packed * static_cast<double>(p.D) + sizeof(double) * summed * static_cast<double>(p.group);
  }

  const StatisticsProblem& p;
  WorkList list;
  ScoreRules<T> rules;
  /// true if query tiles must be computed: for statistics of each query, or for sums over queries
  bool by_tile = false;
  bool scan = false;                ///< true if every query needs the scores of all keys
  bool exponentials = false;        ///< true if every query needs the exponentials of all keys
  bool window = false;              ///< true if weights within selection.window are summed
  bool first = false;               ///< true if the weight on key 0 is requested; the first requested key is then key 0
  bool sums = false;                ///< true if any output is a sum over queries
  bool by_list = false;             ///< true if queries visit the keys of their lists (key_indices), not ranges of keys
  bool packs_keys = false;          ///< true if blocks of keys are packed, not only the requested keys
  std::int64_t tile_rows = kTile;   ///< number of queries per tile, at most kTile
  std::int64_t list_stride = 0;     ///< room for the weights of one query's listed keys
  std::int64_t selected_keys = 0;   ///< number of selected keys (selection.keys)
  std::int64_t requested_keys = 0;  ///< number of requested keys: key 0 if `first` is true, and the selected keys
  std::int64_t top_keys = 0;        ///< number of top keys, K
  std::int64_t row_strips = 0;      ///< number of strips of kMR queries in selection.queries
  std::int64_t longest_panels = 0;  ///< number of key panels of the longest sequence
  HeadCounts buffer_counts;         ///< numbers of tiles, blocks and panels that fit in the packed buffers
  int threads = 1;

 private:
  /// Returns the number of queries per tile if queries visit lists of keys.
  /// With this number, the scores of all heads of a group fit in the second-level cache.
  /// The number does not depend on S, so that a packed batch is bitwise identical to separate calls.
  std::int64_t rows_of_listed_tile() const {
    constexpr double kMost_bytes = std::int64_t{1} << 18;
    const double keys = static_cast<double>(p.inputs.key_indices.shape[3]) * static_cast<double>(p.key_block_size);
    const double bytes = std::max(keys, 1.0) * static_cast<double>(p.group * std::int64_t{sizeof(T)});
    return static_cast<std::int64_t>(std::clamp(kMost_bytes / bytes, 1.0, static_cast<double>(kTile)));
  }

  // one sum per statistic, and 1 for the head's element of `turns`
  static constexpr std::int64_t kSumsOfHead = std::int64_t{kRowStatistics} + 1;
};

/// Scratch buffers of one thread.
template <typename T>
struct StatisticsScratch {
  using Index = typename TopKeys<T>::Index;

  StatisticsScratch(Workspace& ws, const StatisticsPlan<T>& plan) {
    using Plan = StatisticsPlan<T>;
    const std::int64_t D = plan.p.D;
    queries = ws.take<T>("q strips", Plan::kTile / kMR, D, kMR);
    scores = ws.take<T>("scores", Plan::kBandRows, Plan::kScoreStride);
    lse = ws.take<double>("lse", Plan::kTile);
    negated_lse = ws.take<T>("negated lse", Plan::kTile);
    negated_lse_error = ws.take<T>("negated lse errors", Plan::kTile);
    maxima = ws.take<T>("maxima", Plan::kTile, kLanes<T>);
    entropies = ws.take<T>("entropies", Plan::kTile, kLanes<T>);
    in_window = ws.take<T>("in window", Plan::kTile, kLanes<T>);
    first = ws.take<double>("first", Plan::kTile);
    packing = ws.take<T>("packing", std::max(kNR<T>, kMR), D);
    figure_sums = ws.take<double>("figure sums", static_cast<std::int64_t>(kRowStatistics));
    if (plan.selected_keys > 0) key_sums = ws.take<double>("key sums", plan.selected_keys);
    if (plan.by_list) listed.emplace(ws, plan.p, plan.rules, plan.tile_rows);
    if (plan.p.outputs.key_mass.present()) {
      mass = ws.take<T>("mass", plan.by_list ? plan.tile_rows * plan.list_stride : plan.longest_panels * kNR<T>);
    }
    if (plan.top_keys > 0) {
      const std::int64_t padded = round_up(plan.top_keys, kLanes<T>);
      top_scores = ws.take<T>("top scores", Plan::kTile, padded);
      top_keys = ws.take<Index>("top keys", Plan::kTile, padded);
    }
    if (plan.rules.any()) rule_row = ws.take<T>("rule rows", 2 * Plan::kBlock);
    if (plan.p.inputs.gate.present()) {
      const std::int64_t features = round_up(plan.p.inputs.gate.shape[3], kLanes<T>);
      gate = ws.take<T>("gate", features);
      ones = ws.take<T>("ones", features);
      gated = ws.take<T>("gated", features);
    }
  }

  /// scores of listed keys; used only if queries have lists of keys (key_indices)
  std::optional<ListedScores<T>> listed;

  View<T, 3> queries;            ///< packed queries of the tile, (strips, D, kMR)
  View<T, 2> scores;             ///< score − lse of the queries of a band and the keys of one block
  View<double, 1> lse;           ///< log-sum-exp of the tile's queries
  View<T, 1> negated_lse;        ///< −lse times log2(e) for each query; −∞ makes all weights of the query 0
  View<T, 1> negated_lse_error;  ///< rounding error of negated_lse
  View<T, 2> maxima;             ///< largest score − lse of each query, one per lane
  View<T, 2> entropies;          ///< Σ p log2 p of each query, one sum per lane
  View<T, 2> in_window;          ///< Σ p over the window of each query, one sum per lane
  View<double, 1> first;         ///< weight of each query on key 0
  View<T, 2> packing;            ///< scratch in which strided rows become dense before they are packed
  View<double, 1> figure_sums;   ///< sum of each per-query statistic (figures_of()) over the tile's counted queries
  View<double, 1> key_sums;      ///< weight of each selected key, summed over the tile's queries
  /// weight of each key, summed over the tile's queries; with key lists, weights of each query's listed keys
  View<T, 1> mass;
  View<T, 2> top_scores;    ///< score − lse of each query's top keys, largest first
  View<Index, 2> top_keys;  ///< keys of top_scores; −1 if there is no key
  View<T, 1> rule_row;      ///< scratch for a row of bias or mask, and a row of key bias
  /// scratch rows for one query: gate logits z, a row of ones, and ones ∘ g(z)
  View<T, 1> gate, ones, gated;
};

/// Buffers shared by all threads, for one batch of heads.
template <typename T>
struct StatisticsBuffers {
  StatisticsBuffers(Workspace& ws, const StatisticsPlan<T>& plan) {
    const HeadCounts& counts = plan.buffer_counts;
    const std::int64_t D = plan.p.D, query_heads = counts.heads * plan.p.group;
    parts = ws.take<PackedHeads>("parts", counts.parts);
    if (plan.packs_keys) keys = ws.take<T>("keys", counts.panels, D, kNR<T>);
    if (plan.requested_keys > 0) {
      requested_keys = ws.take<T>("requested keys", counts.heads, divide_up(plan.requested_keys, kNR<T>), D, kNR<T>);
    }
    figure_sums = ws.take<double>("figure sums", query_heads, static_cast<std::int64_t>(kRowStatistics));
    key_sums = ws.take<double>("key sums", query_heads, plan.selected_keys);
    if (plan.p.outputs.key_mass.present()) mass = ws.take<double>("mass", counts.panels * plan.p.group, kNR<T>);
    turns = ws.take<std::int64_t>("turns", query_heads);
    const std::size_t bytes = count_bytes<StatisticsScratch<T>>(plan);
    scratch = ws.take<std::byte>("threads", plan.threads, bytes);
  }

  View<PackedHeads, 1> parts;  ///< parts of the current batch; each part holds heads of one sequence
  View<T, 3> keys;             ///< packed keys, transposed, (packed panels, D, kNR)
  View<T, 4> requested_keys;   ///< requested keys, transposed, (packed heads, panels, D, kNR)
  /// sum of each per-query statistic (figures_of()) over counted queries, (packed query heads, kRowStatistics)
  View<double, 2> figure_sums;
  View<double, 2> key_sums;  ///< weights of selected keys, summed over queries, (packed query heads, selected keys)
  View<double, 2> mass;      ///< weight of each key, summed over queries, (packed panels · group, kNR)
  /// for each packed query head: the turn that may add its sums next (Turnstile)
  View<std::int64_t, 1> turns;
  View<std::byte, 2> scratch;  ///< memory for each thread's StatisticsScratch, (threads, bytes)
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_STATISTICS_PLAN_INL_
