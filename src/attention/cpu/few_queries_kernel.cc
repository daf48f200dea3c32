// SPDX-License-Identifier: Apache-2.0
// Forward pass of few queries against many keys: decoding, short chunks of new tokens. K and V are read once, where
// they lie, for all queries and heads that share them. Keys are cut into splits of a fixed length, which threads take;
// each split has a softmax of its own, and the splits of a row are merged by their maxima before the gate acts.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "attention/cpu/cache_requests.hpp"
#include "attention/cpu/head_batches.hpp"
#include "attention/cpu/head_tasks.hpp"
#include "attention/cpu/kernels.hpp"
#include "attention/cpu/native16.hpp"
#include "attention/cpu/small_heads.hpp"
#include "attention/cpu/visibility.hpp"
#include "core/dispatch.hpp"
#include "core/sum_blocks.hpp"
#include "core/workspace.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/few_queries_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "attention/cpu/dot_scores-inl.hpp"
#include "attention/cpu/open_rows-inl.hpp"
#include "attention/cpu/output_rows-inl.hpp"
#include "attention/cpu/rows-inl.hpp"
#include "attention/cpu/scores-inl.hpp"
#include "attention/cpu/stored_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// A sequence with few queries. The rows of a key/value head are the queries of each query head of its group: row
/// g·T + i. Each split of a head has a partial softmax of each row: partials are numbered by sequence, head, split,
/// row. A gate threshold leaves some of the rows open, which scratch and partials hold one after another.
struct FewQueries {
  Sequence sequence;
  std::int64_t rows = 0;           ///< group · T
  std::int64_t splits = 0;         ///< of the keys of a head
  std::int64_t first_split = 0;    ///< the splits of all heads of the sequences before this one
  std::int64_t first_partial = 0;  ///< their partials
  std::int64_t first_query = 0;    ///< the queries of all query heads of the sequences before this one
  bool dots = false;               ///< whether its scores are dot products of bf16
};

/// Rows of k and v that are widened together, to stay in the first level of the cache.
inline constexpr std::int64_t kWidenedKeys = 64;

template <typename T>
struct FewQueriesPlan {
  FewQueriesPlan(const ForwardProblem& problem, bool bf16_keys)
      : p(problem),
        rules(problem),
        dots(problem, bf16_keys, rules.query_factor()),
        D_padded(round_up(p.D, kLanes<T>)),
        Dv_padded(round_up(p.Dv, kLanes<T>)) {
    const auto count = [this](const FewQueries& each) {
      ++sequences;
      most_rows = std::max(most_rows, each.rows);
    };
    all = visit(count);
    const std::int64_t tasks = std::max(all.first_split, all.first_query);
    threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, p.context.threads));
  }

  /// take(each) for the sequences that have few queries; returns one past the last of them, of no sequence.
  template <class Take>
  FewQueries visit(const Take& take) const {
    FewQueries each;
    for (std::int64_t n = 0; n < p.sequences(); ++n) {
      each.sequence = p.sequence(n);
      if (!suits_few_queries(p, each.sequence)) continue;
      each.rows = p.group * each.sequence.T;
      each.splits = divide_up(each.sequence.S, kSplitKeys);
      take(each);
      each.first_split += p.Hkv * each.splits;
      each.first_partial += p.Hkv * each.splits * each.rows;
      each.first_query += p.Hq * each.sequence.T;
    }
    return each;
  }

  const ForwardProblem& p;
  ScoreRules<T> rules;
  DotScores dots;
  std::int64_t D_padded, Dv_padded;
  std::int64_t sequences = 0;  ///< with few queries
  std::int64_t most_rows = 0;  ///< of a key/value head
  FewQueries all;              ///< the numbers that follow the last sequence's
  int threads = 1;
};

/// What one thread works in.
template <typename T>
struct FewQueriesScratch {
  FewQueriesScratch(Workspace& ws, const FewQueriesPlan<T>& plan) {
    if (plan.dots.available()) {
      const std::int64_t D_padded = round_up(plan.p.D, kDotLanes);
      bf16_query = ws.take<BFloat16>("query", D_padded);
      bf16_queries = ws.take<BFloat16>("queries", plan.most_rows, D_padded);
    }
    query = ws.take<T>("query", plan.D_padded);
    queries = ws.take<T>("queries", plan.most_rows, plan.D_padded);
    scores = ws.take<T>("scores", plan.most_rows, kStepKeys);
    widened = ws.take<T>("widened", kWidenedKeys, std::max(plan.D_padded, plan.Dv_padded));
    out = ws.take<T>("out", plan.Dv_padded);
    gate = ws.take<T>("gate", plan.Dv_padded);
    gated = ws.take<T>("gated", plan.Dv_padded);
    if (plan.p.inputs.k_scale.present()) scale_row = ws.take<T>("scale row", kStepKeys);
    if (plan.rules.any()) rule_row = ws.take<T>("rule row", kStepKeys);
  }

  View<T, 1> query;                ///< times the factor of ScoreRules, zeros from D on
  View<T, 2> queries;              ///< the same, of pack_queries
  View<BFloat16, 1> bf16_query;    ///< the same for DotScores
  View<BFloat16, 2> bf16_queries;  ///< that, of pack_queries
  View<T, 2> scores;               ///< of a step's keys; then their exponentials
  View<T, 2> widened;              ///< rows of k or v in T
  View<T, 1> out, gate, gated;     ///< of one query
  View<T, 1> scale_row;            ///< of a step's keys or values
  View<T, 1> rule_row;             ///< a row of bias or mask
};

/// What threads share: the softmax of each split.
template <typename T>
struct FewQueriesBuffers {
  FewQueriesBuffers(Workspace& ws, const FewQueriesPlan<T>& plan) {
    sequences = ws.take<FewQueries>("sequences", plan.sequences);
    maxima = ws.take<T>("maxima", plan.all.first_partial);
    sums = ws.take<T>("sums", plan.all.first_partial);
    out = ws.take<T>("out by split", plan.all.first_partial, plan.Dv_padded);
    if (plan.p.gate_threshold > 0) {
      open_rows = ws.take<std::int64_t>("open rows", plan.all.first_query);
      open_counts = ws.take<std::int64_t>("open rows", plan.sequences, plan.p.Hkv);
    }
    const std::size_t bytes = count_bytes<FewQueriesScratch<T>>(plan);
    scratch = ws.take<std::byte>("threads", plan.threads, bytes);
  }

  View<FewQueries, 1> sequences;
  // Of each partial:
  View<T, 1> maxima;  ///< of the scores, in units of log2(e); −∞ where the row sees no key of the split
  View<T, 1> sums;    ///< Σ exp2(s − maximum)
  View<T, 2> out;     ///< Σ exp2(s − maximum) v
  // With a gate threshold, of each key/value head of a sequence, from its first query on: its open rows, ascending;
  // and how many there are.
  View<std::int64_t, 1> open_rows;
  View<std::int64_t, 2> open_counts;
  View<std::byte, 2> scratch;  ///< a thread's FewQueriesScratch
};

/// Keys that are used together, up to kStepKeys: those from `first` on or, streamed, as many from each of kTileKeys
/// places that are `gap` keys apart, one from each in turn.
struct Step {
  std::int64_t first = 0, count = 0, gap = 0;
  bool streamed() const { return gap > 0; }
};

/// The steps of the keys of a split. Where the order of keys says nothing, as many as make whole steps are streamed,
/// in groups of steps with the same places: those lie in pages of their own, in each of which hardware prefetchers
/// follow a stream (docs/notes/2026-11-22-few-queries.md).
class SplitSteps {
 public:
  /// seen_by_all: what all rows see; in_any_order: nothing but that depends on where a key is.
  SplitSteps(const KeyRange& keys, const KeyRange& seen_by_all, bool in_any_order, std::int64_t row_bytes)
      : keys_(keys), group_(std::clamp(kGroup_bytes / row_bytes, kStepKeys, kSplitKeys) / kStepKeys * kStepKeys) {
    if (!in_any_order || seen_by_all.begin > keys.begin) return;
    streamed_ = std::max<std::int64_t>(std::min(keys.end, seen_by_all.end) - keys.begin, 0) / kStepKeys * kStepKeys;
  }

  std::int64_t keys() const { return keys_.end - keys_.begin; }
  /// The step after those of `done` keys.
  Step after(std::int64_t done) const {
    if (done < streamed_) {
      const std::int64_t group = done / group_ * group_, in_group = std::min(group_, streamed_ - group);
      return {keys_.begin + group + (done - group) / kTileKeys, kStepKeys, in_group / kTileKeys};
    }
    return {keys_.begin + done, std::min(kStepKeys, keys() - done), 0};
  }

 private:
  static constexpr std::int64_t kGroup_bytes = 65536;  ///< of keys, at least a step's

  KeyRange keys_;
  std::int64_t group_;         ///< keys of a group
  std::int64_t streamed_ = 0;  ///< how many of them, the first ones
};

/// Rows of k or v of one sequence and head, of elements E, for products in T, a step's keys at a time, in slots.
template <typename T, typename E>
class StepRows {
 public:
  StepRows(const View<T, 2>& widened, const CacheRequests& requests) : widened_(widened), requests_(requests) {}

  /// Rows that several tiles of queries read (`rows_against`) are widened to T once, unless `dots` take them as they
  /// are.
  void select(const KeyRows& rows, std::int64_t rows_against, bool dots = false) {
    rows_ = rows;
    in_place_ = dots || (loads_stored<T, E>() && rows.stride() == 1 && rows.cols % kLanes<T> == 0 &&
                         (std::is_same_v<T, E> || rows_against <= kHighRows));
  }

  /// Makes the rows of `step` those in the slots, where their addresses are put, up to a multiple of kTileKeys.
  /// Returns the end of the slots.
  const E** place(const E** slots, const Step& step) {
    step_ = step;
    slots_ = slots;
    const E* rows[kStepKeys];
    each_stream([&](std::int64_t at, std::int64_t first, std::int64_t n) {
      rows_->each_row<E>(first, n, [&rows, at](std::int64_t r, const E* row) { rows[at + r] = row; });
    });
    to_slots(slots, rows);
    const std::int64_t end = round_up(step.count, kTileKeys);
    std::fill(slots + step.count, slots + end, slots[step.count - 1]);
    return slots + end;
  }

  /// Other slots for the same rows.
  const E** move(const E** slots) {
    const E** end = std::copy(slots_, slots_ + round_up(step_.count, kTileKeys), slots);
    slots_ = slots;
    return end;
  }

  const Step& step() const { return step_; }

  /// visit(rows, first, n) with the rows of slots first … first + n as StoredRows, for all slots of the step. While
  /// they are used, those `ahead` slots later are asked for.
  template <class Visit>
  void with(std::int64_t ahead, const Visit& visit) const {
    if constexpr (loads_stored<T, E>()) {
      if (in_place_) return visit(StoredRows<E>{slots_, ahead, requests_.into_first_level}, 0, step_.count);
    }
    for (std::int64_t first = 0; first < step_.count; first += kWidenedKeys) {
      const std::int64_t n = std::min(kWidenedKeys, step_.count - first);
      const T* wide[kWidenedKeys];
      ComingRows<E> coming = coming_rows(first + ahead, n);
      for (std::int64_t r = 0; r < n; ++r) {
        T* row = widened_.at(r);
        wide[r] = row;
        if (r % kTileKeys == 0) ask_whole_rows(coming);
        load_row(row, rows_->row(key(first + r)), 0, 0, rows_->cols);
        std::fill(row + rows_->cols, row + round_up(rows_->cols, kLanes<T>), T{0});
      }
      std::fill(wide + n, wide + round_up(n, kTileKeys), wide[n - 1]);
      visit(StoredRows<T>{wide}, first, n);
    }
  }

  /// How many slots before their use rows are asked for.
  std::int64_t ahead() const { return rows_in(requests_.ahead_bytes); }

  /// How many of the rows, as values, are used at a time. Memory streams best where they are used in the order in which
  /// they are asked for; where arithmetic takes longer, more rows at a time spare loads and stores of sums.
  std::int64_t values_at_a_time(std::int64_t rows_against) const {
    if (!in_place_ || rows_against > kHighRows) return kWidenedKeys;
    if (!std::is_same_v<T, E>) return rows_in(kChunk_bytes);
    return rows_against < kTileRows ? kTileKeys : 2 * kTileKeys;
  }

  /// Asks for the rows of the first `n` slots.
  void ask_first(std::int64_t n) const {
    ComingRows<E> coming = coming_rows(0, std::min(n, step_.count));
    for (std::int64_t r = 0; r < n; r += kTileKeys) ask_whole_rows(coming);
  }

  /// Each row of `x` times the scales of the rows in the step's slots. `buffer`: kStepKeys elements.
  void scale_columns(const View<T, 2>& x, T* HWY_RESTRICT buffer) const {
    if (!rows_->scaled()) return;
    T scales[kStepKeys];
    each_stream([&](std::int64_t at, std::int64_t first, std::int64_t n) { rows_->scales(scales + at, first, n); });
    to_slots(buffer, scales);
    for (std::int64_t i = 0; i < x.shape[0]; ++i) {
      T* HWY_RESTRICT row = x.at(i);
      for (std::int64_t r = 0; r < step_.count; ++r) row[r] *= buffer[r];
    }
  }

 private:
  static constexpr std::int64_t kStreamKeys = kStepKeys / kTileKeys;
  static constexpr std::int64_t kChunk_bytes = 8192;  ///< of values: they stay in the first level of the cache

  /// visit(at, first, n) for the keys first … first + n that are the step's from number `at` on, for all of them.
  template <class Visit>
  void each_stream(const Visit& visit) const {
    if (!step_.streamed()) return visit(0, step_.first, step_.count);
    for (std::int64_t s = 0; s < kTileKeys; ++s) visit(s * kStreamKeys, step_.first + s * step_.gap, kStreamKeys);
  }

  /// What belongs to the keys of each_stream, in the order of the slots.
  template <typename Each>
  void to_slots(Each* HWY_RESTRICT slots, const Each* HWY_RESTRICT keys) const {
    if (!step_.streamed()) {
      std::copy(keys, keys + step_.count, slots);
      return;
    }
    for (std::int64_t k = 0; k < kStreamKeys; ++k) {
      for (std::int64_t s = 0; s < kTileKeys; ++s) slots[k * kTileKeys + s] = keys[s * kStreamKeys + k];
    }
  }
  /// The key in a slot.
  std::int64_t key(std::int64_t slot) const {
    return step_.first + (step_.streamed() ? slot % kTileKeys * step_.gap + slot / kTileKeys : slot);
  }

  /// So many rows fit `bytes`, in multiples of kTileKeys up to a step.
  std::int64_t rows_in(std::int64_t bytes) const {
    const std::int64_t rows = bytes / (rows_->cols * std::int64_t{sizeof(E)});
    return std::clamp(rows / kTileKeys * kTileKeys, kTileKeys, kStepKeys);
  }

  /// Those of n slots, if their elements are neighbours.
  ComingRows<E> coming_rows(std::int64_t slot, std::int64_t n) const {
    return {slots_ + slot, rows_->stride() == 1 ? n : 0, rows_->cols, requests_.into_first_level};
  }
  /// Asks for kTileKeys rows.
  static void ask_whole_rows(ComingRows<E>& coming) {
    for (std::int64_t line = 0; line < coming.lines_a_row(); ++line) coming.ask_lines();
  }

  View<T, 2> widened_;
  CacheRequests requests_;
  std::optional<KeyRows> rows_;
  bool in_place_ = false;
  Step step_;
  const E** slots_ = nullptr;
};

/// Split `split` of key/value head h of a sequence.
struct KeySplit {
  const FewQueries* each = nullptr;
  std::int64_t h = 0, split = 0;
  bool operator==(const KeySplit& other) const = default;
};

/// One thread's part. E: the element type of k and v.
template <typename T, typename E>
class FewQueriesWorker {
 public:
  using Plan = FewQueriesPlan<T>;

  FewQueriesWorker(const Plan& plan, const FewQueriesBuffers<T>& shared, int thread)
      : plan_(plan),
        p_(plan.p),
        shared_(shared),
        own_(place_buffers<FewQueriesScratch<T>>(shared.scratch.at(thread), plan)),
        key_steps_{StepRows<T, E>(own_.widened, requests_of_cpu()), StepRows<T, E>(own_.widened, requests_of_cpu())},
        values_(own_.widened, requests_of_cpu()) {}

  /// Lists the open rows of key/value head h of a sequence and writes the outputs of the closed ones.
  void select_rows(const FewQueries& each, std::int64_t h) const {
    const std::int64_t T_each = each.sequence.T;
    std::int64_t count = 0;
    for (std::int64_t g = 0; g < p_.group; ++g) {
      const OutputRows<T> outputs(p_, each.sequence, h * p_.group + g, own_.gate, own_.gated);
      OpenRows<T>(p_, each.sequence, h * p_.group + g)
          .visit(
              0, T_each,
              [&](std::int64_t i) { shared_.open_rows(each.first_query + h * each.rows + count++) = g * T_each + i; },
              [&](std::int64_t i) { outputs.write_closed(i); });
    }
    shared_.open_counts(number_of(each), h) = count;
  }

  /// The softmax of a split. Without open rows nothing is read. `following`: what this thread is likely to run next, or
  /// of no sequence; its first keys are asked for.
  void run_split(const KeySplit& at, const KeySplit& following) {
    select(*at.each, at.h);
    const std::int64_t all_rows = scores_.shape[0];
    if (all_rows == 0) return;
    partial_ = partial_of(*at.each, at.h, at.split);
    std::fill_n(shared_.maxima.at(partial_), all_rows, kHidden);
    std::fill_n(shared_.sums.at(partial_), all_rows, T{0});
    const View<T, 2> out = shared_.out.range(0, partial_, all_rows);
    std::fill_n(out.data, out.count(), T{0});
    const KeyRange range = keys_of(at);
    if (range.empty()) return;
    if (!(coming_ == at)) {
      begin_split(at, slots_);
      next_keys_->ask_first(next_keys_->ahead());
    }
    coming_ = {};
    values_.select(rows_of_values(p_, sequence_, h_), all_rows);
    const std::int64_t chunk = values_.values_at_a_time(all_rows);
    const Visibility visibility(p_, sequence_);
    const SplitSteps steps = steps_of(sequence_, range);
    for (std::int64_t done = 0; done < steps.keys(); done += keys_->step().count) {
      std::swap(keys_, next_keys_);
      const Step step = keys_->step();
      // The slots are in the order of their use: the step's keys, its values, the keys of the next step.
      const E** end = values_.place(keys_->move(slots_), step);
      const E** const coming = end;
      if (done + step.count < steps.keys()) {
        next_keys_->select(rows_of_keys(p_, sequence_, h_), all_rows, at.each->dots);
        end = next_keys_->place(end, steps.after(done + step.count));
      } else if (following.each != nullptr) {
        end = begin_split(following, end);
      }
      const std::int64_t ahead = keys_->ahead();
      std::fill(end, std::max(end, coming + ahead), end[-1]);
      keys_->with(ahead, [&](const auto& rows, std::int64_t first, std::int64_t count) {
        score(scores_.range(1, first, count), rows, count);
      });
      keys_->scale_columns(scores_, own_.scale_row.data);
      if (!all_see(visibility, step) || plan_.rules.any()) rule_and_hide(visibility, step);
      for (std::int64_t r = 0; r < all_rows; ++r) exponentials(r, step.count);
      values_.scale_columns(scores_, own_.scale_row.data);
      values_.with(ahead, [&](const auto& rows, std::int64_t first, std::int64_t count) {
        add_weighted_rows<kStepKeys>(out, scores_.range(1, first, count), rows, count, chunk);
      });
    }
  }

  /// Merges the splits of the r-th open row of key/value head h_kv of a sequence, gates and writes.
  void finish_row(const FewQueries& each, std::int64_t h_kv, std::int64_t r) const {
    if (r >= rows_of(each, h_kv)) return;
    const auto [h, i] = query_of(each, h_kv, r);
    const std::int64_t first = partial_of(each, h_kv, 0) + r;
    const auto partial = [&](std::int64_t split) { return first + split * each.rows; };
    const T sink = p_.inputs.sinks.present() ? static_cast<T>(p_.sink(h) * kLog2e) : kHidden;
    T max = sink;
    for (std::int64_t split = 0; split < each.splits; ++split) max = std::max(max, shared_.maxima(partial(split)));
    T sum = sink == kHidden ? T{0} : std::exp2(sink - max);
    const Tag<T> d;
    T* HWY_RESTRICT out = own_.out.data;
    std::fill_n(out, plan_.Dv_padded, T{0});
    for (std::int64_t split = 0; split < each.splits; ++split) {
      const T split_max = shared_.maxima(partial(split));
      // Of a split in which the row sees nothing, sum and output are 0; NaN where its scores are.
      const T factor = split_max == kHidden ? T{1} : std::exp2(split_max - max);
      sum += factor * shared_.sums(partial(split));
      const T* HWY_RESTRICT from = shared_.out.at(partial(split));
      for (std::int64_t x = 0; x < plan_.Dv_padded; x += kLanes<T>) {
        hn::Store(hn::MulAdd(hn::Set(d, factor), hn::Load(d, from + x), hn::Load(d, out + x)), d, out + x);
      }
    }
    OutputRows<T>(p_, each.sequence, h, own_.gate, own_.gated).write(i, out, max, sum);
  }

 private:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();
  /// How far, in powers of two, scores may exceed a row's maximum before it follows: exp2 of it, times the number of
  /// keys, stays far from overflow.
  static constexpr T kSlack = 16;

  std::int64_t partial_of(const FewQueries& each, std::int64_t h, std::int64_t split) const {
    return each.first_partial + (h * each.splits + split) * each.rows;
  }

  /// The keys of the split that its rows see.
  KeyRange keys_of(const KeySplit& at) const {
    const Sequence& sequence = at.each->sequence;
    const KeyRange seen = Visibility(p_, sequence).rows(0, sequence.T);
    return {std::max(seen.begin, at.split * kSplitKeys), std::min(seen.end, (at.split + 1) * kSplitKeys)};
  }

  static KeyRange seen_by_all(const Visibility& visibility, const Sequence& sequence) {
    return {visibility.row(sequence.T - 1).begin, visibility.row(0).end};
  }
  /// Whether all rows see all keys of the step, a whole one.
  bool all_see(const Visibility& visibility, const Step& step) const {
    const KeyRange seen = seen_by_all(visibility, sequence_);
    return step.streamed() ||
           (step.count == kStepKeys && seen.begin <= step.first && seen.end >= step.first + step.count);
  }

  /// Of keys_of a split of the sequence.
  SplitSteps steps_of(const Sequence& sequence, const KeyRange& keys) const {
    return {keys, seen_by_all(Visibility(p_, sequence), sequence), !plan_.rules.by_position(),
            p_.D * std::int64_t{sizeof(E)}};
  }

  /// Makes the next step of keys, if there is one, the first of the split. Returns the end of their slots.
  const E** begin_split(const KeySplit& at, const E** slots) {
    const Sequence& sequence = at.each->sequence;
    const KeyRange range = keys_of(at);
    const std::int64_t rows = rows_of(*at.each, at.h);
    if (rows == 0 || range.empty()) return slots;
    next_keys_->select(rows_of_keys(p_, sequence, at.h), rows, at.each->dots);
    coming_ = at;
    return next_keys_->place(slots, steps_of(sequence, range).after(0));
  }

  /// scores(r, j) = query r · row j of `keys`, j < n, times the factor of ScoreRules.
  template <typename Key>
  void score(const View<T, 2>& scores, const StoredRows<Key>& keys, std::int64_t n) const {
#if HWY_TARGET == HWY_AVX3
    if constexpr (std::is_same_v<Key, BFloat16>) {
      if (sequence_at_->dots) {
        return dot_score_rows<kStepKeys>(scores, bf16_queries_, keys, p_.D, n, plan_.dots.factor_of_scores());
      }
    }
#endif
    score_rows<kStepKeys>(scores, queries_, keys, n);
  }

  std::int64_t number_of(const FewQueries& each) const { return &each - shared_.sequences.data; }

  /// How many rows of the head are open.
  std::int64_t rows_of(const FewQueries& each, std::int64_t h) const {
    return shared_.open_counts.present() ? shared_.open_counts(number_of(each), h) : each.rows;
  }

  struct Query {
    std::int64_t h, i;
  };
  /// The query head and the query that the r-th open row of key/value head h is.
  Query query_of(const FewQueries& each, std::int64_t h, std::int64_t r) const {
    const std::int64_t row = shared_.open_rows.present() ? shared_.open_rows(each.first_query + h * each.rows + r) : r;
    return {h * p_.group + row / each.sequence.T, row % each.sequence.T};
  }

  /// Makes the thread's scratch that of the head, whose queries it packs unless they are there.
  void select(const FewQueries& each, std::int64_t h) {
    if (sequence_at_ == &each && h_ == h) return;
    sequence_at_ = &each;
    sequence_ = each.sequence;
    h_ = h;
    const std::int64_t rows = rows_of(each, h);
    scores_ = own_.scores.range(0, 0, rows);
    if (each.dots) {
      bf16_queries_ = own_.bf16_queries.range(0, 0, rows);
      pack_queries<kDotLanes>(bf16_queries_, own_.bf16_query.data, [&](std::int64_t r, BFloat16* to) {
        const auto [query_head, i] = query_of(each, h, r);
        plan_.dots.load_query(to, query_rows(p_.inputs.q, sequence_, query_head), i);
        std::fill(to + p_.D, to + bf16_queries_.shape[1], BFloat16{0});
      });
      return;
    }
    queries_ = own_.queries.range(0, 0, rows);
    const T factor = plan_.rules.query_factor();
    pack_queries<kLanes<T>>(queries_, own_.query.data, [&](std::int64_t r, T* to) {
      const auto [query_head, i] = query_of(each, h, r);
      load_row(to, query_rows(p_.inputs.q, sequence_, query_head), i, 0, p_.D);
      for (std::int64_t x = 0; x < p_.D; ++x) to[x] *= factor;
      std::fill(to + p_.D, to + plan_.D_padded, T{0});
    });
  }

  /// Score rules on what each row sees of the step's keys; −∞ on the others, up to a whole vector.
  void rule_and_hide(const Visibility& visibility, const Step& step) const {
    const std::int64_t j = step.first, n = step.count;
    for (std::int64_t r = 0; r < scores_.shape[0]; ++r) {
      const auto [h, i] = query_of(*sequence_at_, h_, r);
      const KeyRange seen = step.streamed() ? KeyRange{j, j + n} : visibility.row(i);
      const std::int64_t begin = std::clamp<std::int64_t>(seen.begin - j, 0, n);
      const std::int64_t end = std::clamp<std::int64_t>(seen.end - j, begin, n);
      T* s = scores_.at(r);
      if (plan_.rules.any() && begin < end) {
        plan_.rules.apply(s + begin, nullptr, sequence_, h, i, j + begin, end - begin, own_.rule_row.data);
      }
      std::fill(s, s + begin, kHidden);
      std::fill(s + end, s + round_up(n, kLanes<T>), kHidden);
    }
  }

  /// Row r of the scores becomes exp2(s − maximum); maximum, sum and output of the split follow.
  void exponentials(std::int64_t r, std::int64_t n) const {
    const Tag<T> d;
    T* HWY_RESTRICT s = scores_.at(r);
    T& max = shared_.maxima(partial_ + r);
    T& sum = shared_.sums(partial_ + r);
    auto largest = hn::Set(d, max);
    for (std::int64_t j = 0; j < n; j += kLanes<T>) largest = hn::Max(largest, hn::Load(d, s + j));
    const T new_max = hn::GetLane(hn::MaxOfLanes(d, largest));
    if (new_max > max + kSlack) {
      const T decay = std::exp2(max - new_max);
      max = new_max;
      sum *= decay;
      T* HWY_RESTRICT out = shared_.out.at(partial_ + r);
      for (std::int64_t x = 0; x < plan_.Dv_padded; ++x) out[x] *= decay;
    }
    // Maxima may pass NaN by, so that one of −∞ does not say that all scores are: their exponentials tell.
    const auto shift = hn::Set(d, max == kHidden ? T{0} : max);
    auto total = hn::Zero(d);
    for (std::int64_t j = 0; j < n; j += kLanes<T>) {
      const auto e = exp2_fast(d, hn::Sub(hn::Load(d, s + j), shift));
      hn::Store(e, d, s + j);
      total = hn::Add(total, e);
    }
    sum += hn::GetLane(hn::SumOfLanes(d, total));
  }

  const Plan& plan_;
  const ForwardProblem& p_;
  const FewQueriesBuffers<T>& shared_;
  FewQueriesScratch<T> own_;
  const FewQueries* sequence_at_ = nullptr;
  Sequence sequence_;
  std::int64_t h_ = 0, partial_ = 0;  // key/value head; the split's first partial
  View<T, 2> queries_, scores_;       // of the open rows of the head
  View<BFloat16, 2> bf16_queries_;    // in place of queries_ for dot products
  // Addresses of rows: a step's keys and values, the next step's keys, and up to a step's more for requests.
  const E* slots_[4 * kStepKeys] = {};
  StepRows<T, E> key_steps_[2], values_;
  StepRows<T, E>* keys_ = &key_steps_[0];
  StepRows<T, E>* next_keys_ = &key_steps_[1];
  KeySplit coming_;  // whose first step the next keys are, asked for already; or of no sequence
};

/// The split with number n of all sequences.
template <typename T>
KeySplit split_at(const FewQueries* sequences, const FewQueriesPlan<T>& plan, std::int64_t n) {
  const FewQueries& each = holder_of(sequences, plan.sequences, &FewQueries::first_split, n);
  return {&each, (n - each.first_split) / each.splits, (n - each.first_split) % each.splits};
}

template <typename T, typename E>
void few_queries_of(const ForwardProblem& p) {
  const FewQueriesPlan<T> plan(p, std::is_same_v<E, BFloat16>);
  if (plan.sequences == 0) return;
  const Placed<FewQueriesBuffers<T>> shared(plan);
  const FewQueries* const sequences = shared->sequences.data;
  FewQueries* next = shared->sequences.data;
  plan.visit([&](const FewQueries& each) {
    *next = each;
    next->dots = plan.dots.suit(each.sequence);
    ++next;
  });
  const std::int64_t in_turn = heads_in_turn(plan.all.first_split, plan.threads);
#pragma omp parallel num_threads(plan.threads) default(none) shared(p, plan, shared, sequences, in_turn)
  {
    FewQueriesWorker<T, E> worker(plan, *shared, omp_get_thread_num());
    if (p.gate_threshold > 0) {
#pragma omp for schedule(dynamic, 1)
      for (std::int64_t n = 0; n < plan.sequences * p.Hkv; ++n) worker.select_rows(sequences[n / p.Hkv], n % p.Hkv);
    }
#pragma omp for schedule(dynamic, in_turn)
    for (std::int64_t n = 0; n < plan.all.first_split; ++n) {
      const bool last_in_turn = n + 1 == plan.all.first_split || (n + 1) % in_turn == 0;
      worker.run_split(split_at(sequences, plan, n), last_in_turn ? KeySplit{} : split_at(sequences, plan, n + 1));
    }
#pragma omp for schedule(static)
    for (std::int64_t n = 0; n < plan.all.first_query; ++n) {
      const FewQueries& each = holder_of(sequences, plan.sequences, &FewQueries::first_query, n);
      worker.finish_row(each, (n - each.first_query) / each.rows, (n - each.first_query) % each.rows);
    }
  }
}

template <typename T>
void few_queries_typed(const ForwardProblem& p) {
  if (p.inputs.k.dtype == DType::i8) return few_queries_of<T, std::int8_t>(p);
  if constexpr (std::is_same_v<T, double>) {
    few_queries_of<double, double>(p);
  } else {
    switch (p.inputs.k.dtype) {
      case DType::bf16: return few_queries_of<float, BFloat16>(p);
      case DType::f16: return few_queries_of<float, Float16>(p);
      default: return few_queries_of<float, float>(p);
    }
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(few_queries_typed);

bool suits_few_queries(const ForwardProblem& problem, const Sequence& sequence) {
  // Measured: with more rows packing K and V pays (docs/notes/2026-11-22-few-queries.md), and earlier where what is
  // packed stays in the second-level cache of the thread that uses it (docs/notes/2026-11-22-dense-speed.md), or where
  // the heads are small (docs/notes/2026-11-23-small-sequences.md).
  // The kernels differ in their last bits: threads, and the other sequences of a packed batch (B = 1), have no say.
  constexpr std::int64_t kMostSharedRows = 64, kMostQueriesBesidesOthers = 8, kManyHeads = 32;
  if (sequence.T == 0 || sequence.T * problem.group > kMostSharedRows || problem.outputs.weights.present())
    return false;
  if (sequence.T <= kMostQueriesBesidesOthers) return true;
  const double bytes = sizeof(float) * static_cast<double>(sequence.S) * static_cast<double>(problem.D + problem.Dv);
  const bool many = problem.B * problem.Hkv >= kManyHeads && bytes <= kOwnHead_bytes;
  return !many && (takes_native16(problem) || !has_small_heads(problem, sequence));
}

void few_queries_forward(const ForwardProblem& problem) {
  const std::int64_t target = problem.context.target;
  const auto run = problem.inputs.q.dtype == DType::f64 ? HEADGATE_FOR_TARGET(few_queries_typed, double, target)
                                                        : HEADGATE_FOR_TARGET(few_queries_typed, float, target);
  run(problem);
}

}  // namespace headgate
#endif  // HWY_ONCE
