// SPDX-License-Identifier: Apache-2.0
// Computes the forward pass for few queries and many keys: decoding and short chunks of new tokens. K and V are read
// once, in place, for all queries and heads that share them. Keys are cut into splits of a fixed length, which threads
// share. Each split has its own softmax. The splits of a row are merged by their maxima before the gate applies.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/visibility.hpp"
#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/cpu/decode/cpu_tuning.hpp"
#include "library/attention/cpu/kernels.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/sum_blocks.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/attention/cpu/decode/few_queries_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Per-target headers must follow foreach_target.h.
#include "library/attention/cpu/common/open_rows-inl.hpp"
#include "library/attention/cpu/common/output_rows-inl.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/cpu/common/shown_keys-inl.hpp"
#include "library/attention/cpu/decode/dot_scores-inl.hpp"
#include "library/attention/cpu/decode/packed_queries-inl.hpp"
#include "library/attention/cpu/decode/row_weights-inl.hpp"
#include "library/attention/cpu/decode/split_rows-inl.hpp"
#include "library/attention/cpu/decode/stored_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Describes a sequence with few queries. Its keys are cut into splits, which are ranges of keys.
/// Splits that no query sees, because of key lengths, causality or window, are not counted: they take no time or
/// memory. A row is one query of one query head. Row g·T + i is query i of the g-th query head that reads a key/value
/// head. Each split of a key/value head yields one partial softmax per row. Partial softmaxes are numbered by sequence,
/// then head, then split, then row. A gate threshold closes the rows that it skips. Scratch and partial softmaxes hold
/// only the other rows, the open rows. The members first_… locate the sequence's results in the buffers of the call.
struct FewQueries {
  Sequence sequence;
  std::int64_t rows = 0;           ///< number of rows of a key/value head: group · T
  std::int64_t split_keys = 0;     ///< number of keys per split
  std::int64_t hidden_splits = 0;  ///< number of splits before the first split that a query sees
  std::int64_t splits = 0;         ///< number of splits of each key/value head that a query sees
  std::int64_t first_split = 0;    ///< number of splits of all heads in all earlier sequences
  std::int64_t first_partial = 0;  ///< number of partial softmaxes of all heads in all earlier sequences
  std::int64_t first_query = 0;    ///< number of queries of all query heads in all earlier sequences
  bool dots = false;               ///< true if scores use bf16 dot products
};

/// Row stride of scores, in elements.
/// A row is one cache line longer than the longest split, so that rows map to different cache sets.
/// The stride is the same for all types of keys, so that they share the compiled code of products.
inline constexpr std::int64_t kScoreStride = kLongSplitKeys + 16;

/// Plans the forward pass for few queries. E is the element type of k and v. T is the type of the arithmetic.
template <typename T, typename E>
struct FewQueriesPlan {
  FewQueriesPlan(const ForwardProblem& problem, const WorkList& sequences)
      : p(problem),
        list(sequences),
        rules(problem),
        dots(problem, std::is_same_v<E, BFloat16>, rules.query_factor()),
        Dv_padded(round_up(p.Dv, kLanes<T>)) {
    totals = visit_sequences([this](const FewQueries& each) { most_rows = std::max(most_rows, each.rows); });
    const std::int64_t tasks = std::max(totals.first_split, totals.first_query);
    threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, p.context.threads));
  }

  /// Calls visit(each) for every sequence of the list.
  /// Returns the totals of all sequences as members first_split, first_partial and first_query.
  template <class Visit>
  FewQueries visit_sequences(const Visit& visit) const {
    FewQueries each;
    for (std::int64_t i = 0; i < list.size(); ++i) {
      each.sequence = p.sequence(list[i].number);
      each.rows = p.group * each.sequence.T;
      each.split_keys = split_keys<E>(each.sequence.S);
      const KeyRange seen = Visibility(p, each.sequence).rows(0, each.sequence.T);
      each.hidden_splits = seen.begin / each.split_keys;
      each.splits = seen.empty() ? 0 : divide_up(seen.end, each.split_keys) - each.hidden_splits;
      visit(each);
      each.first_split += p.Hkv * each.splits;
      each.first_partial += p.Hkv * each.splits * each.rows;
      each.first_query += p.Hq * each.sequence.T;
    }
    return each;
  }

  const ForwardProblem& p;
  WorkList list;
  ScoreRules<T> rules;
  DotScores dots;
  std::int64_t Dv_padded;
  std::int64_t most_rows = 0;  ///< largest number of rows of any key/value head
  FewQueries totals;           ///< result of visit_sequences(): total numbers of splits, partial softmaxes and queries
  int threads = 1;
};

/// Scratch buffers of one thread.
template <typename T, typename E>
struct FewQueriesScratch {
  FewQueriesScratch(Workspace& ws, const FewQueriesPlan<T, E>& plan)
      : dot_queries(ws, plan.dots, plan.most_rows, plan.p.D), wide_queries(ws, plan.most_rows, plan.p.D) {
    scores = ws.take<T>("scores", plan.most_rows, kScoreStride);
    widened = ws.take<T>("widened", kWidenedKeys, std::max(round_up(plan.p.D, kLanes<T>), plan.Dv_padded));
    out = ws.take<T>("out", plan.Dv_padded);
    gate = ws.take<T>("gate", plan.Dv_padded);
    gated = ws.take<T>("gated", plan.Dv_padded);
    slots = ws.take<const E*>("row addresses", 3 * kMostSplitKeys<E>);
    if (plan.p.inputs.k_scale.present()) scale_rows = ws.take<T>("scale rows", 2, kMostSplitKeys<E>);
    if (plan.rules.any()) rule_row = ws.take<T>("rule rows", 2 * kMostSplitKeys<E>);
  }

  DotQueries dot_queries;       ///< queries of one head, packed for bf16 dot products; used if FewQueries::dots is true
  WideQueries<T> wide_queries;  ///< queries of one head, packed for products in T; used if FewQueries::dots is false
  View<T, 2> scores;            ///< scores for a split's keys; later the exponentials of the scores
  View<T, 2> widened;           ///< rows of k or v converted to T
  View<T, 1> out, gate, gated;  ///< scratch for the output, gate and gated output of one query
  View<const E*, 1> slots;      ///< addresses of the k and v rows of a split, then of the next split's first k rows
  View<T, 2> scale_rows;        ///< scales of a split's keys in row 0, and of its values in row 1
  View<T, 1> rule_row;          ///< scratch for a row of bias or mask, and a row of key bias
};

/// Buffers shared by all threads. They hold the partial softmax of each row and split.
template <typename T>
struct FewQueriesBuffers {
  template <typename E>
  FewQueriesBuffers(Workspace& ws, const FewQueriesPlan<T, E>& plan) {
    sequences = ws.take<FewQueries>("sequences", plan.list.size());
    maxima = ws.take<T>("maxima", plan.totals.first_partial);
    sums = ws.take<T>("sums", plan.totals.first_partial);
    out = ws.take<T>("out by split", plan.totals.first_partial, plan.Dv_padded);
    if (plan.p.gate_threshold > 0) {
      open_rows = ws.take<std::int64_t>("open rows", plan.totals.first_query);
      open_counts = ws.take<std::int64_t>("open row counts", plan.list.size(), plan.p.Hkv);
    }
    const std::size_t bytes = count_bytes<FewQueriesScratch<T, E>>(plan);
    scratch = ws.take<std::byte>("threads", plan.threads, bytes);
  }

  View<FewQueries, 1> sequences;
  // maxima, sums and out hold the partial softmaxes, in the order that FewQueries describes.
  View<T, 1> maxima;  ///< maximum score times log2(e); −∞ if the row sees no key of the split
  View<T, 1> sums;    ///< Σ exp2(s − maximum)
  View<T, 2> out;     ///< Σ exp2(s − maximum) v
  // With a gate threshold, open_rows lists the open rows (see FewQueries) of each key/value head in ascending order.
  // The list of head h begins at element first_query + h · rows.
  // open_counts holds the number of open rows of each head, (sequences, Hkv).
  View<std::int64_t, 1> open_rows;
  View<std::int64_t, 2> open_counts;
  View<std::byte, 2> scratch;  ///< memory for each thread's FewQueriesScratch, (threads, bytes)
};

/// Identifies split number `split` of key/value head h of sequence `each`.
struct KeySplit {
  const FewQueries* each = nullptr;
  std::int64_t h = 0, split = 0;
  bool operator==(const KeySplit& other) const = default;
};

/// The keys of one split, and the addresses of their rows in k. Empty if at.each is null.
template <typename T, typename E>
struct LocatedKeys {
  KeySplit at;
  SplitRows<T, E> rows;
  bool have_rules = false;  ///< true if biases, masks or other score rules may change or hide scores of these keys
};

/// Partial softmax of a split, with the same members as in FewQueriesBuffers.
/// Each array has one entry per open row. Open rows are those that the gate threshold does not skip.
template <typename T>
struct PartialSoftmax {
  T *maxima, *sums;
  View<T, 2> out;
};

/// Computes the tasks of one thread.
template <typename T, typename E>
class FewQueriesWorker {
 public:
  using Plan = FewQueriesPlan<T, E>;

  FewQueriesWorker(const Plan& plan, const FewQueriesBuffers<T>& shared, int thread)
      : plan_(plan),
        p_(plan.p),
        shared_(shared),
        scratch_(place_buffers<FewQueriesScratch<T, E>>(shared.scratch.at(thread), plan)),
        keys_{{}, {scratch_.widened, tuning_of_cpu()}, false},
        next_keys_(keys_),
        values_(keys_.rows),
        shown_(p_) {}

  /// Lists the open rows of key/value head h of a sequence, and writes the outputs of the closed rows.
  /// A row is closed if all its gate values |g(z)| are at most the gate threshold.
  void list_open_rows(const FewQueries& each, std::int64_t h) const {
    const std::int64_t T_each = each.sequence.T;
    std::int64_t count = 0;
    for (std::int64_t g = 0; g < p_.group; ++g) {
      const OutputRows<T> outputs(p_, each.sequence, h * p_.group + g, scratch_.gate, scratch_.gated);
      OpenRows<T>(p_, each.sequence, h * p_.group + g)
          .visit(
              0, T_each,
              [&](std::int64_t i) { shared_.open_rows(each.first_query + h * each.rows + count++) = g * T_each + i; },
              [&](std::int64_t i) { outputs.write_closed(i); });
    }
    shared_.open_counts(number_of(each), h) = count;
  }

  /// Computes the partial softmax of one split. Reads no keys if the gate threshold closes all rows of the head.
  /// Unless `following` is empty, prefetches its first keys. It is the split that this thread will probably run next.
  void run_split(const KeySplit& at, const KeySplit& following) {
    pack_head_queries(*at.each, at.h);
    if (scores_.shape[0] == 0) return;
    const PartialSoftmax<T> partial = cleared_partial(at);
    if (keys_of(at).empty()) return;
    set_current_keys(at);
    values_.select(rows_of_values(p_, at.each->sequence, at.h), scores_.shape[0]);
    // Stores addresses in the order of their use: keys, values, then the first keys of the next split.
    const E** const end = values_.assign(keys_.rows.move(scratch_.slots.data), keys_.rows.keys());
    SplitRows<T, E>* const next = locate_next_keys(following, end) ? &next_keys_.rows : nullptr;
    const std::int64_t distance = keys_.rows.prefetch_distance();
    keys_.rows.visit_rows(distance, &values_, [&](const auto& rows, std::int64_t first, std::int64_t count) {
      score(scores_.range(1, first, count), rows, count);
    });
    weigh(partial);
    const std::int64_t at_a_time = values_.values_at_a_time();
    values_.visit_rows(distance, next, [&](const auto& rows, std::int64_t first, std::int64_t count) {
      add_weighted_rows<kScoreStride>(partial.out, scores_.range(1, first, count), rows, count, at_a_time);
    });
  }

  /// Merges the partial softmaxes of row number r of a key/value head, applies the gate and writes the outputs.
  /// Only open rows, which the gate threshold does not skip, are counted.
  void finish_row(const FewQueries& each, std::int64_t h_kv, std::int64_t r) const {
    if (r >= rows_of(each, h_kv)) return;
    const auto [h, i] = query_of(each, h_kv, r);
    const std::int64_t first = partial_of(each, h_kv, 0) + r;
    const auto partial = [&](std::int64_t split) { return first + split * each.rows; };
    const T sink = p_.inputs.sinks.present() ? in_log2_units<T>(p_.sink(each.sequence, h, i)) : kHidden;
    T largest = kHidden;
    for (std::int64_t split = 0; split < each.splits; ++split) {
      largest = std::max(largest, shared_.maxima(partial(split)));
    }
    const T max = std::max(largest, sink);
    T sum = sink == kHidden ? T{0} : std::exp2(sink - max);
    const Tag<T> d;
    T* HWY_RESTRICT out = scratch_.out.data;
    std::fill_n(out, plan_.Dv_padded, T{0});
    for (std::int64_t split = 0; split < each.splits; ++split) {
      const T split_max = shared_.maxima(partial(split));
      // If the maximum of a split is −∞, its sum and output are 0, or NaN if a score is NaN.
      // The factor 1 preserves both. exp2(−∞ − (−∞)) would be NaN.
      const T factor = split_max == kHidden ? T{1} : std::exp2(split_max - max);
      sum += factor * shared_.sums(partial(split));
      const T* HWY_RESTRICT from = shared_.out.at(partial(split));
      for (std::int64_t x = 0; x < plan_.Dv_padded; x += kLanes<T>) {
        hn::Store(hn::MulAdd(hn::Set(d, factor), hn::Load(d, from + x), hn::Load(d, out + x)), d, out + x);
      }
    }
    OutputRows<T>(p_, each.sequence, h, scratch_.gate, scratch_.gated).write(i, out, max, sum, largest);
  }

 private:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();

  std::int64_t partial_of(const FewQueries& each, std::int64_t h, std::int64_t split) const {
    return each.first_partial + (h * each.splits + split) * each.rows;
  }

  /// Returns the smallest range that contains every key of the split that some query sees. The range may be empty.
  KeyRange keys_of(const KeySplit& at) const {
    const Sequence& sequence = at.each->sequence;
    const std::int64_t n = at.each->split_keys, j0 = (at.each->hidden_splits + at.split) * n;
    const KeyRange seen = Visibility(p_, sequence).rows(0, sequence.T);
    KeyRange keys{j0 + n, j0};
    for (std::int64_t g = 0; g < heads_of_maps(); ++g) {
      const KeyRange columns =
          shown_.columns(seen, j0, n, sequence, at.h * p_.group + g, sequence.T, [](std::int64_t i) { return i; });
      if (columns.empty()) continue;
      keys = {std::min(keys.begin, j0 + columns.begin), std::max(keys.end, j0 + columns.end)};
    }
    return keys;
  }

  /// Returns the number of query heads whose masks and biases must be read: 1 if heads share them, otherwise p_.group.
  std::int64_t heads_of_maps() const { return shown_.by_head() ? p_.group : 1; }

  /// Returns true if score rules may change or hide scores of these keys.
  /// Returns false if the only rule is a mask that shows all these keys to every query. Padding masks often do so.
  bool have_rules(const KeySplit& at, const KeyRange& keys) const {
    const AttentionInputs& in = p_.inputs;
    const bool has_other_rules = p_.softcap > 0 || in.alibi_slopes.present() || in.bias.present() ||
                                 in.key_bias.present() || in.key_indices.present();
    if (!in.mask.present() || has_other_rules) return plan_.rules.any();
    for (std::int64_t g = 0; g < heads_of_maps(); ++g) {
      const HeadRows<const void> mask = map_rows(in.mask, at.each->sequence, at.h * p_.group + g);
      for (std::int64_t i = 0; i < (mask.row_stride == 0 ? 1 : mask.rows); ++i) {
        const auto* row = mask.at<std::uint8_t>(i, keys.begin, keys.end - keys.begin);
        for (std::int64_t j = 0; j < keys.end - keys.begin; ++j) {
          if (row[j * mask.stride] == 0) return true;
        }
      }
    }
    return false;
  }

  /// Returns the order in which the split uses its keys (OrderedKeys). Streams contain only keys that all rows see.
  /// There are no streams if score rules depend on positions.
  OrderedKeys order_of(const Sequence& sequence, const KeyRange& keys, bool with_rules) const {
    const Visibility visibility(p_, sequence);
    OrderedKeys order{keys.begin, keys.end - keys.begin};
    const std::int64_t unrounded_rows = std::max<std::int64_t>(p_.inputs.k_first.shape[2] - keys.begin, 0);
    order.before_streams = std::min(order.count, round_up(unrounded_rows, kTileKeys));
    if (!(with_rules && plan_.rules.by_position()) && visibility.row(sequence.T - 1).begin <= keys.begin) {
      const std::int64_t seen_by_all = std::min(visibility.row(0).end, keys.end) - keys.begin;
      order.streamed = std::max<std::int64_t>(seen_by_all - order.before_streams, 0) / kTileKeys * kTileKeys;
    }
    return order;
  }

  /// Stores the addresses of a split's keys in `slots`, and describes the split in next_keys_.
  /// The keys can then be prefetched before the split runs.
  /// Returns false if `at` is empty, if all rows of its head are closed, or if no query sees a key of the split.
  bool locate_next_keys(const KeySplit& at, const E** slots) {
    if (at.each == nullptr) return false;
    const Sequence& sequence = at.each->sequence;
    const KeyRange range = keys_of(at);
    const std::int64_t rows = rows_of(*at.each, at.h);
    if (rows == 0 || range.empty()) return false;
    next_keys_.at = at;
    next_keys_.have_rules = have_rules(at, range);
    next_keys_.rows.select(rows_of_keys(p_, sequence, at.h), rows, at.each->dots);
    next_keys_.rows.assign(slots, order_of(sequence, range, next_keys_.have_rules));
    return true;
  }

  /// Makes split `at` the current one: moves its keys from next_keys_ to keys_.
  /// If next_keys_ holds another split, first stores the addresses of the keys of `at`, and prefetches the first keys.
  void set_current_keys(const KeySplit& at) {
    if (!(next_keys_.at == at)) {
      locate_next_keys(at, scratch_.slots.data);
      next_keys_.rows.prefetch_first(next_keys_.rows.prefetch_distance());
    }
    std::swap(keys_, next_keys_);
    next_keys_.at = {};
  }

  /// Returns the partial softmax of a split, initialised as if no row sees a key.
  PartialSoftmax<T> cleared_partial(const KeySplit& at) const {
    const std::int64_t first = partial_of(*at.each, at.h, at.split), rows = scores_.shape[0];
    const PartialSoftmax<T> partial{shared_.maxima.at(first), shared_.sums.at(first),
                                    shared_.out.range(0, first, rows)};
    std::fill_n(partial.maxima, rows, kHidden);
    std::fill_n(partial.sums, rows, T{0});
    std::fill_n(partial.out.data, partial.out.count(), T{0});
    return partial;
  }

  /// Computes scores(r, j) = factor · query r · row j of `keys` for j < n, where factor is ScoreRules::query_factor().
  template <typename Key>
  void score(const View<T, 2>& scores, const StoredRows<Key>& keys, std::int64_t n) const {
#if HWY_TARGET == HWY_AVX3
    if constexpr (std::is_same_v<Key, BFloat16>) {
      if (keys_.at.each->dots) return scratch_.dot_queries.template score<kScoreStride>(scores, keys, n);
    }
#endif
    scratch_.wide_queries.template score<kScoreStride>(scores, keys, n);
  }

  /// Turns the scores of the split's keys into weights exp2(s − maximum), and stores the maximum and sum of each row.
  /// If values have scales, then multiplies the weights by these scales.
  void weigh(const PartialSoftmax<T>& partial) const {
    const OrderedKeys& keys = keys_.rows.keys();
    const T* key_scales = keys_.rows.scales(scratch_.scale_rows.data);
    const T* const value_scales = values_.scales(scratch_.scale_rows.data + scratch_.scale_rows.strides[0]);
    const bool all_seen = keys.streamed > 0 && keys.streams_end() == keys.count && keys.count % kLanes<T> == 0;
    if (!all_seen || keys_.have_rules) {
      if (key_scales != nullptr) scale_scores(key_scales, keys.count);
      key_scales = nullptr;
      rule_and_hide(keys);
    }
    for (std::int64_t r = 0; r < scores_.shape[0]; ++r) {
      const auto [max, sum] = scores_to_weights(scores_.at(r), keys.count, key_scales, value_scales);
      partial.maxima[r] = max;
      partial.sums[r] = sum;
    }
  }

  std::int64_t number_of(const FewQueries& each) const { return &each - shared_.sequences.data; }

  /// Returns the number of a head's open rows, which the gate threshold does not skip.
  std::int64_t rows_of(const FewQueries& each, std::int64_t h) const {
    return shared_.open_counts.present() ? shared_.open_counts(number_of(each), h) : each.rows;
  }

  struct Query {
    std::int64_t h, i;
  };
  /// Returns the query head and the query of open row number r of key/value head h. Closed rows are not counted.
  Query query_of(const FewQueries& each, std::int64_t h, std::int64_t r) const {
    const std::int64_t row = shared_.open_rows.present() ? shared_.open_rows(each.first_query + h * each.rows + r) : r;
    return {h * p_.group + row / each.sequence.T, row % each.sequence.T};
  }

  /// Packs the queries of a head. Does nothing if they are already packed.
  void pack_head_queries(const FewQueries& each, std::int64_t h) {
    if (packed_sequence_ == &each && h_ == h) return;
    packed_sequence_ = &each;
    h_ = h;
    const std::int64_t rows = rows_of(each, h);
    scores_ = scratch_.scores.range(0, 0, rows);
    const auto row_of = [&](std::int64_t r) {
      const auto [query_head, i] = query_of(each, h, r);
      return QueryRow{query_rows(p_.inputs.q, each.sequence, query_head), i};
    };
    if constexpr (std::is_same_v<E, BFloat16>) {
      if (each.dots) return scratch_.dot_queries.pack(rows, row_of);
    }
    scratch_.wide_queries.pack(rows, plan_.rules.query_factor(), row_of);
  }

  /// Applies the score rules to the keys that each row sees.
  /// Sets the scores of other keys to −∞, and pads rows with −∞ to whole vectors.
  void rule_and_hide(const OrderedKeys& keys) const {
    const Sequence& sequence = packed_sequence_->sequence;
    const Visibility visibility(p_, sequence);
    const std::int64_t n = keys.count;
    for (std::int64_t r = 0; r < scores_.shape[0]; ++r) {
      // Hides keys as if they were in ascending order. Streams are not, but every row sees all keys of the streams.
      const auto [h, i] = query_of(*packed_sequence_, h_, r);
      plan_.rules.apply_and_hide(scores_.at(r), visibility, sequence, h, i, keys.first, 0, n, scratch_.rule_row.data);
      std::fill(scores_.at(r) + n, scores_.at(r) + round_up(n, kLanes<T>), kHidden);
    }
  }

  void scale_scores(const T* HWY_RESTRICT key_scales, std::int64_t n) const {
    for (std::int64_t r = 0; r < scores_.shape[0]; ++r) {
      T* HWY_RESTRICT s = scores_.at(r);
      for (std::int64_t j = 0; j < n; ++j) s[j] *= key_scales[j];
    }
  }

  const Plan& plan_;
  const ForwardProblem& p_;
  const FewQueriesBuffers<T>& shared_;
  FewQueriesScratch<T, E> scratch_;
  const FewQueries* packed_sequence_ = nullptr;  // sequence whose queries are packed, or null
  std::int64_t h_ = 0;                           // key/value head whose queries are packed
  View<T, 2> scores_;                            // scores of the head's open rows, in scratch_.scores
  // keys_ holds the keys of the current split.
  // next_keys_ holds the keys of the next split, whose first rows are already prefetched.
  LocatedKeys<T, E> keys_, next_keys_;
  SplitRows<T, E> values_;  // values of the current split
  ShownKeys shown_;
};

/// Returns split number n, counted over the splits of all sequences.
template <class Plan>
KeySplit split_at(const FewQueries* sequences, const Plan& plan, std::int64_t n) {
  const FewQueries& each = find_owner(sequences, plan.list.size(), &FewQueries::first_split, n);
  return {&each, (n - each.first_split) / each.splits, (n - each.first_split) % each.splits};
}

template <typename T, typename E>
void run_few_queries(const FewQueriesPlan<T, E>& plan, const FewQueriesBuffers<T>& shared) {
  const ForwardProblem& p = plan.p;
  const FewQueries* const sequences = shared.sequences.data;
  FewQueries* next = shared.sequences.data;
  plan.visit_sequences([&](const FewQueries& each) {
    *next = each;
    next->dots = plan.dots.suit(each.sequence);
    ++next;
  });
  constexpr std::int64_t kSplitsAtOnce = 16;
  Cancellation cancellation(p.context);
  run_team(plan.threads, [&](const Team& team) {
    FewQueriesWorker<T, E> worker(plan, shared, team.thread());
    if (p.gate_threshold > 0) {
      team.in_turn(plan.list.size() * p.Hkv,
                   [&](std::int64_t n) { worker.list_open_rows(sequences[n / p.Hkv], n % p.Hkv); });
    }
    // Gives each thread ranges of consecutive splits, because each split prefetches the first keys of the next one.
    // Long ranges come first.
    team.in_guided_ranges(plan.totals.first_split, [&](std::int64_t n) {
      if (cancellation.requested(n, kSplitsAtOnce)) return;
      const bool is_last = n + 1 == plan.totals.first_split;
      worker.run_split(split_at(sequences, plan, n), is_last ? KeySplit{} : split_at(sequences, plan, n + 1));
    });
    team.in_parts(plan.totals.first_query, [&](std::int64_t n) {
      const FewQueries& each = find_owner(sequences, plan.list.size(), &FewQueries::first_query, n);
      worker.finish_row(each, (n - each.first_query) / each.rows, (n - each.first_query) % each.rows);
    });
  });
  cancellation.throw_if_seen();
}

template <typename T>
void few_queries_typed(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot) {
  with_stored_type<T, true>(problem.inputs.k.dtype, [&]<typename E>() {
    slot.emplace<PlannedKernel<FewQueriesPlan<T, E>, FewQueriesBuffers<T>, run_few_queries<T, E>>>(problem, list);
  });
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(few_queries_typed);

void few_queries_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot) {
  HEADGATE_FOR_DTYPE(few_queries_typed, problem.inputs.q.dtype, problem.context.target)(problem, list, slot);
}

}  // namespace headgate
#endif  // HWY_ONCE
