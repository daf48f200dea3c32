// SPDX-License-Identifier: Apache-2.0
// Forward pass of few queries against many keys: decoding, short chunks of new tokens. K and V are read once, where
// they lie, for all queries and heads that share them. Keys are cut into splits of a fixed length, which threads take;
// each split has a softmax of its own, and the splits of a row are merged by their maxima before the gate acts.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/cpu/head_tasks.hpp"
#include "attention/cpu/kernels.hpp"
#include "attention/cpu/visibility.hpp"
#include "core/dispatch.hpp"
#include "core/sum_blocks.hpp"
#include "core/workspace.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/few_queries_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "attention/cpu/output_rows-inl.hpp"
#include "attention/cpu/rows-inl.hpp"
#include "attention/cpu/scores-inl.hpp"
#include "attention/cpu/stored_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// The rows of a key/value head are the T queries of each query head of its group: row g·T + i.
template <typename T>
struct FewQueriesPlan {
  explicit FewQueriesPlan(const ForwardProblem& problem)
      : p(problem),
        rules(problem),
        heads(p.sequences() * p.Hkv),
        rows(p.group * p.T),
        D_padded(round_up(p.D, kLanes<T>)),
        Dv_padded(round_up(p.Dv, kLanes<T>)),
        splits(divide_up(p.S, kSplitKeys)),
        threads(static_cast<int>(
            std::clamp<std::int64_t>(std::max(heads * splits, p.B * p.Hq * p.T), 1, p.context.threads))) {}

  const ForwardProblem& p;
  ScoreRules<T> rules;
  std::int64_t heads, rows, D_padded, Dv_padded;
  std::int64_t splits;  ///< of the keys of a head
  int threads;
};

/// What one thread works in.
template <typename T>
struct FewQueriesScratch {
  FewQueriesScratch(Workspace& ws, const FewQueriesPlan<T>& plan) {
    queries = ws.take<T>("queries", plan.rows, plan.D_padded);
    scores = ws.take<T>("scores", plan.rows, kStepKeys);
    widened = ws.take<T>("widened", kStepKeys, std::max(plan.D_padded, plan.Dv_padded));
    out = ws.take<T>("out", plan.Dv_padded);
    gate = ws.take<T>("gate", plan.Dv_padded);
    gated = ws.take<T>("gated", plan.Dv_padded);
    if (plan.rules.any()) rule_row = ws.take<T>("rule row", kStepKeys);
  }

  View<T, 2> queries;           ///< times the factor of ScoreRules, zeros from D on
  View<T, 2> scores;            ///< of a step's keys; then their exponentials
  View<T, 2> widened;           ///< a step's rows of k or v in T
  View<T, 1> out, gate, gated;  ///< of one query
  View<T, 1> rule_row;          ///< a row of bias or mask
};

/// What threads share: the softmax of each split.
template <typename T>
struct FewQueriesBuffers {
  FewQueriesBuffers(Workspace& ws, const FewQueriesPlan<T>& plan) {
    maxima = ws.take<T>("maxima", plan.heads, plan.splits, plan.rows);
    sums = ws.take<T>("sums", plan.heads, plan.splits, plan.rows);
    out = ws.take<T>("out by split", plan.heads, plan.splits, plan.rows, plan.Dv_padded);
    const std::size_t bytes = count_bytes<FewQueriesScratch<T>>(plan);
    scratch = ws.take<std::byte>("threads", plan.threads, bytes);
  }

  View<T, 3> maxima;           ///< of the scores, in units of log2(e); −∞ where the row sees no key of the split
  View<T, 3> sums;             ///< Σ exp2(s − maximum)
  View<T, 4> out;              ///< Σ exp2(s − maximum) v
  View<std::byte, 2> scratch;  ///< a thread's FewQueriesScratch
};

/// Rows of k or v of one (b,h), of elements E, for products in T.
template <typename T, typename E>
class KeyRows {
 public:
  /// Rows that several tiles of queries read (`rows_against`) are widened to T once.
  KeyRows(const HeadRows<const void>& rows, std::int64_t rows_against, const View<T, 2>& widened)
      : rows_(rows),
        widened_(widened),
        in_place_(loads_stored<T, E>() && rows.stride == 1 && rows.cols % kLanes<T> == 0 &&
                  (std::is_same_v<T, E> || rows_against <= kTileRows)) {}

  /// visit(rows) with rows j … j + n as StoredRows, n at most kStepKeys.
  template <class Visit>
  void with(std::int64_t j, std::int64_t n, const Visit& visit) const {
    if constexpr (loads_stored<T, E>()) {
      if (in_place_) return visit(StoredRows<E>{at(j), rows_.row_stride});
    }
    for (std::int64_t r = 0; r < n; ++r) {
      load_row(widened_.at(r), rows_, j + r, 0, rows_.cols);
      std::fill(widened_.at(r) + rows_.cols, widened_.at(r) + round_up(rows_.cols, kLanes<T>), T{0});
    }
    visit(StoredRows<T>{widened_.data, widened_.strides[0]});
  }

  /// Asks for rows j … j + n over `steps` steps.
  Prefetch prefetch(std::int64_t j, std::int64_t n, std::int64_t steps) const {
    if (n <= 0 || rows_.stride != 1) return {};
    constexpr std::int64_t kBytes = sizeof(E);
    return {at(j), n, rows_.cols * kBytes, rows_.row_stride * kBytes, steps};
  }

 private:
  const E* at(std::int64_t j) const { return rows_.template at<E>(j, 0, rows_.cols); }

  HeadRows<const void> rows_;
  View<T, 2> widened_;
  bool in_place_;
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
        own_(place_buffers<FewQueriesScratch<T>>(shared.scratch.at(thread), plan)) {}

  /// The softmax of split `split` of key/value head `head` (sequence · Hkv + h).
  void run_split(std::int64_t head, std::int64_t split) {
    if (head != packed_head_) pack_queries(head);
    head_ = head;
    split_ = split;
    std::fill_n(shared_.maxima.at(head, split), plan_.rows, kHidden);
    std::fill_n(shared_.sums.at(head, split), plan_.rows, T{0});
    std::fill_n(shared_.out.at(head, split), plan_.rows * plan_.Dv_padded, T{0});
    sequence_ = p_.sequence(head / p_.Hkv);
    const std::int64_t h = head % p_.Hkv;
    const Visibility visibility(p_, sequence_);
    const KeyRange seen = visibility.rows(0, sequence_.T);
    const std::int64_t begin = std::max(seen.begin, split * kSplitKeys);
    const std::int64_t end = std::min(seen.end, (split + 1) * kSplitKeys);
    const KeyRows<T, E> keys(key_rows(p_.inputs.k, sequence_, h), plan_.rows, own_.widened);
    const KeyRows<T, E> values(key_rows(p_.inputs.v, sequence_, h), plan_.rows, own_.widened);
    // While scores are made, the values of the same keys are asked for; while values are added, the next keys.
    for (std::int64_t j = begin; j < end; j += kStepKeys) {
      const std::int64_t n = std::min(kStepKeys, end - j);
      const Prefetch these_values = values.prefetch(j, n, score_steps(plan_.rows, n));
      keys.with(j, n, [&](const auto& rows) { score_rows(own_.scores, own_.queries, rows, n, these_values); });
      rule_and_hide(visibility, j, n);
      for (std::int64_t r = 0; r < plan_.rows; ++r) exponentials(r, n);
      const Prefetch next_keys = keys.prefetch(j + n, std::min(kStepKeys, end - j - n),
                                               value_steps(plan_.rows, plan_.Dv_padded / kLanes<T>, n));
      const View<T, 2> out = shared_.out.sub(head, split);
      values.with(j, n, [&](const auto& rows) { add_weighted_rows(out, own_.scores, rows, n, next_keys); });
    }
  }

  /// Merges the splits of query i of query head h of sequence n, gates and writes.
  void finish_row(std::int64_t n, std::int64_t h, std::int64_t i) const {
    const std::int64_t head = n * p_.Hkv + h / p_.group;
    const std::int64_t r = h % p_.group * p_.T + i;
    const T sink = p_.inputs.sinks.present() ? static_cast<T>(p_.sink(h) * kLog2e) : kHidden;
    T max = sink;
    for (std::int64_t split = 0; split < plan_.splits; ++split) max = std::max(max, shared_.maxima(head, split, r));
    T sum = sink == kHidden ? T{0} : std::exp2(sink - max);
    const Tag<T> d;
    T* HWY_RESTRICT out = own_.out.data;
    std::fill_n(out, plan_.Dv_padded, T{0});
    for (std::int64_t split = 0; split < plan_.splits; ++split) {
      const T split_max = shared_.maxima(head, split, r);
      // Of a split in which the row sees nothing, sum and output are 0; NaN where its scores are.
      const T factor = split_max == kHidden ? T{1} : std::exp2(split_max - max);
      sum += factor * shared_.sums(head, split, r);
      const T* HWY_RESTRICT from = shared_.out.at(head, split, r);
      for (std::int64_t x = 0; x < plan_.Dv_padded; x += kLanes<T>) {
        hn::Store(hn::MulAdd(hn::Set(d, factor), hn::Load(d, from + x), hn::Load(d, out + x)), d, out + x);
      }
    }
    OutputRows<T>(p_, p_.sequence(n), h, own_.gate, own_.gated).write(i, out, max, sum);
  }

 private:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();

  void pack_queries(std::int64_t head) {
    packed_head_ = head;
    const T factor = plan_.rules.query_factor();
    for (std::int64_t r = 0; r < plan_.rows; ++r) {
      T* q = own_.queries.at(r);
      const std::int64_t h = head % p_.Hkv * p_.group + r / p_.T;
      load_row(q, query_rows(p_.inputs.q, p_.sequence(head / p_.Hkv), h), r % p_.T, 0, p_.D);
      for (std::int64_t x = 0; x < p_.D; ++x) q[x] *= factor;
      std::fill(q + p_.D, q + plan_.D_padded, T{0});
    }
  }

  /// Score rules on what each row sees of the step's keys j … j + n; −∞ on the rest of the row.
  void rule_and_hide(const Visibility& visibility, std::int64_t j, std::int64_t n) const {
    for (std::int64_t r = 0; r < plan_.rows; ++r) {
      const std::int64_t i = r % p_.T;
      const KeyRange seen = visibility.row(i);
      const std::int64_t begin = std::clamp<std::int64_t>(seen.begin - j, 0, n);
      const std::int64_t end = std::clamp<std::int64_t>(seen.end - j, begin, n);
      T* s = own_.scores.at(r);
      if (plan_.rules.any() && begin < end) {
        const std::int64_t h = head_ % p_.Hkv * p_.group + r / p_.T;
        plan_.rules.apply(s + begin, nullptr, sequence_, h, i, j + begin, end - begin, own_.rule_row.data);
      }
      std::fill(s, s + begin, kHidden);
      std::fill(s + end, s + kStepKeys, kHidden);
    }
  }

  /// Row r of the scores becomes exp2(s − maximum); maximum, sum and output of the split follow.
  void exponentials(std::int64_t r, std::int64_t n) const {
    const Tag<T> d;
    T* HWY_RESTRICT s = own_.scores.at(r);
    T& max = shared_.maxima(head_, split_, r);
    T& sum = shared_.sums(head_, split_, r);
    auto largest = hn::Set(d, max);
    for (std::int64_t j = 0; j < n; j += kLanes<T>) largest = hn::Max(largest, hn::Load(d, s + j));
    const T new_max = hn::GetLane(hn::MaxOfLanes(d, largest));
    if (new_max != max) {
      const T decay = std::exp2(max - new_max);
      max = new_max;
      sum *= decay;
      T* HWY_RESTRICT out = shared_.out.at(head_, split_, r);
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
  Sequence sequence_;
  std::int64_t packed_head_ = -1, head_ = 0, split_ = 0;
};

template <typename T, typename E>
void few_queries_of(const ForwardProblem& p) {
  const FewQueriesPlan<T> plan(p);
  const Placed<FewQueriesBuffers<T>> shared(plan);
#pragma omp parallel num_threads(plan.threads) default(none) shared(p, plan, shared)
  {
    FewQueriesWorker<T, E> worker(plan, *shared, omp_get_thread_num());
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t n = 0; n < plan.heads * plan.splits; ++n) worker.run_split(n / plan.splits, n % plan.splits);
#pragma omp for schedule(static)
    for (std::int64_t n = 0; n < p.B * p.Hq * p.T; ++n) {
      worker.finish_row(n / (p.Hq * p.T), n / p.T % p.Hq, n % p.T);
    }
  }
}

template <typename T>
void few_queries_typed(const ForwardProblem& p) {
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

bool suits_few_queries(const ForwardProblem& problem) {
  // Measured: with more rows packing K and V pays (docs/notes/2026-11-22-few-queries.md), and earlier where what is
  // packed stays in the second-level cache of the thread that uses it (docs/notes/2026-11-22-dense-speed.md).
  // The number of threads has no say: the two kernels differ in their last bits.
  constexpr std::int64_t kMostSharedRows = 64, kMostOfManyHeads = 8, kManyHeads = 32;
  const double bytes = sizeof(float) * static_cast<double>(problem.S) * static_cast<double>(problem.D + problem.Dv);
  const bool many = problem.sequences() * problem.Hkv >= kManyHeads && bytes <= kOwnHead_bytes;
  return problem.T * problem.group <= (many ? kMostOfManyHeads : kMostSharedRows) && !problem.outputs.weights.present();
}

void few_queries_forward(const ForwardProblem& problem) {
  const std::int64_t target = problem.context.target;
  const auto run = problem.inputs.q.dtype == DType::f64 ? HEADGATE_FOR_TARGET(few_queries_typed, double, target)
                                                        : HEADGATE_FOR_TARGET(few_queries_typed, float, target);
  run(problem);
}

}  // namespace headgate
#endif  // HWY_ONCE
