// SPDX-License-Identifier: Apache-2.0
// Forward pass of few queries against many keys: decoding, short chunks of new tokens. K and V are read once, where
// they lie, for all queries and heads that share them. Keys are cut into splits that threads take; each leaves a
// softmax of its own, and the splits of a row are merged by their maxima before the gate acts.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "attention/cpu/kernels.hpp"
#include "attention/cpu/visibility.hpp"
#include "core/dispatch.hpp"
#include "core/sum_blocks.hpp"
#include "core/workspace.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/few_queries_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "attention/cpu/gate_rows-inl.hpp"
#include "attention/cpu/rows-inl.hpp"
#include "attention/cpu/scores-inl.hpp"
#include "attention/cpu/stored_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Sizes of one call. The rows of a key/value head are the T queries of each of its query heads: row g·T + i.
template <typename T>
struct FewQueriesSizes {
  explicit FewQueriesSizes(const Problem& problem)
      : heads(problem.B * problem.Hkv),
        rows(problem.group * problem.T),
        D(problem.D),
        Dv(problem.Dv),
        D_padded(padded(problem.D)),
        Dv_padded(padded(problem.Dv)),
        splits((problem.S + kSplitKeys - 1) / kSplitKeys),
        threads(static_cast<int>(std::clamp<std::int64_t>(heads * splits, 1, problem.context.threads))) {}

  static std::int64_t padded(std::int64_t n) {
    return static_cast<std::int64_t>(round_up(static_cast<std::size_t>(n), kLanes<T>));
  }

  std::int64_t heads, rows, D, Dv, D_padded, Dv_padded, splits;
  int threads;
};

/// What every split leaves behind.
template <typename T>
struct PartialSoftmax {
  PartialSoftmax(Workspace& ws, const FewQueriesSizes<T>& n)
      : max(ws.take<T>("maxima", n.heads, n.splits, n.rows)),
        sum(ws.take<T>("sums", n.heads, n.splits, n.rows)),
        out(ws.take<T>("weighted sums of v", n.heads, n.splits, n.rows, n.Dv_padded)),
        scratch(ws.take<std::byte>("scratch of each thread", std::int64_t{n.threads}, scratch_bytes(n))) {}

  static std::int64_t scratch_bytes(const FewQueriesSizes<T>& n);

  View<T, 3> max;  ///< in units of log2; −∞ where the row sees no key of the split
  View<T, 3> sum;
  View<T, 4> out;  ///< Σ exp2(s − max) v
  View<std::byte, 2> scratch;
};

template <typename T>
struct FewQueriesScratch {
  FewQueriesScratch(Workspace& ws, const FewQueriesSizes<T>& n)
      : queries(ws.take<T>("queries", n.rows, n.D_padded)),
        scores(ws.take<T>("scores", n.rows, kStepKeys)),
        widened(ws.take<T>("rows of k or v in T", kStepKeys, std::max(n.D_padded, n.Dv_padded))),
        row(ws.take<T>("a row", std::max({n.D_padded, 3 * n.Dv_padded, kStepKeys}))) {}

  View<T, 2> queries;  ///< times the factor of ScoreRules, zeros from D on
  View<T, 2> scores;
  View<T, 2> widened;
  View<T, 1> row;
};

template <typename T>
std::int64_t PartialSoftmax<T>::scratch_bytes(const FewQueriesSizes<T>& n) {
  Workspace count;
  const FewQueriesScratch<T> counted(count, n);
  return static_cast<std::int64_t>(count.bytes());
}

/// Rows of k or v of one (b,h), for products with them.
template <typename T, typename E>
class KeyRows {
 public:
  KeyRows(const ConstTensorView& view, std::int64_t b, std::int64_t h, std::int64_t rows_against,
          const View<T, 2>& widened)
      : view_(view), b_(b), h_(h), widened_(widened) {
    // Rows that several tiles of queries read are widened once.
    in_place_ = loads_stored<T, E>() && view.strides[3] == 1 &&
                view.shape[3] % static_cast<std::int64_t>(kLanes<T>) == 0 &&
                (std::is_same_v<T, E> || rows_against <= kTileRows);
  }

  /// visit(rows) with rows j … j + n as StoredRows, n at most kStepKeys.
  template <class Visit>
  HWY_INLINE void with(std::int64_t j, std::int64_t n, const Visit& visit) const {
    if constexpr (loads_stored<T, E>()) {
      if (in_place_) return visit(StoredRows<E>{at(j), view_.strides[2]});
    }
    const std::int64_t columns = view_.shape[3];
    const auto padded = static_cast<std::int64_t>(round_up(static_cast<std::size_t>(columns), kLanes<T>));
    for (std::int64_t r = 0; r < n; ++r) {
      load_row(view_, b_, h_, j + r, 0, static_cast<std::size_t>(columns), widened_.at(r));
      std::fill(widened_.at(r) + columns, widened_.at(r) + padded, T{0});
    }
    visit(StoredRows<T>{widened_.data, widened_.strides[0]});
  }

  /// Asks for rows j … j + n over `steps` steps.
  Prefetch prefetch(std::int64_t j, std::int64_t n, std::int64_t steps) const {
    if (n <= 0) return {};
    constexpr auto kBytes = static_cast<std::int64_t>(sizeof(E));
    return {at(j), n, view_.shape[3] * view_.strides[3] * kBytes, view_.strides[2] * kBytes, steps};
  }

 private:
  const E* at(std::int64_t j) const {
    return static_cast<const E*>(view_.data) + b_ * view_.strides[0] + h_ * view_.strides[1] + j * view_.strides[2];
  }

  const ConstTensorView& view_;
  std::int64_t b_, h_;
  View<T, 2> widened_;
  bool in_place_ = false;
};

/// One thread's work. E: the element type of k and v.
template <typename T, typename E>
class FewQueriesWorker {
 public:
  FewQueriesWorker(const ForwardCall& call, const FewQueriesSizes<T>& sizes, const PartialSoftmax<T>& partial,
                   Workspace& thread_scratch)
      : call_(call), p_(call.problem), n_(sizes), partial_(partial), scratch_(thread_scratch, sizes), rules_(p_) {}

  /// Split `split` of key/value head `head` (b · Hkv + h).
  void run_split(std::int64_t head, std::int64_t split) {
    if (head != packed_head_) pack_queries(head);
    const std::int64_t b = head / p_.Hkv;
    const std::int64_t h = head % p_.Hkv;
    std::fill_n(partial_.max.at(head, split), n_.rows, kHidden);
    std::fill_n(partial_.sum.at(head, split), n_.rows, T{0});
    std::fill_n(partial_.out.at(head, split), n_.rows * n_.Dv_padded, T{0});
    const Visibility visibility(p_, b);
    const KeyRange seen = visibility.rows(0, p_.T);
    const std::int64_t begin = std::max(seen.begin, split * kSplitKeys);
    const std::int64_t end = std::min(seen.end, (split + 1) * kSplitKeys);
    const KeyRows<T, E> keys(call_.inputs.k, b, h, n_.rows, scratch_.widened);
    const KeyRows<T, E> values(call_.inputs.v, b, h, n_.rows, scratch_.widened);
    for (std::int64_t j = begin; j < end; j += kStepKeys) {
      const std::int64_t n = std::min(kStepKeys, end - j);
      const std::int64_t ahead = std::min(kStepKeys, end - j - n);
      const Prefetch these_values = values.prefetch(j, n, score_steps(n_.rows, n));
      keys.with(j, n, [&](const auto& rows) { score_rows(scratch_.scores, scratch_.queries, rows, n, these_values); });
      hide_and_rule(visibility, head, j, n);
      for (std::int64_t r = 0; r < n_.rows; ++r) exponentials(head, split, r, n);
      constexpr auto kN = static_cast<std::int64_t>(kLanes<T>);
      const Prefetch next_keys = keys.prefetch(j + n, ahead, value_steps(n_.rows, n_.Dv_padded, n, kN));
      values.with(j, n, [&](const auto& rows) {
        add_weighted_rows(partial_.out[head][split], scratch_.scores, rows, n, next_keys);
      });
    }
  }

  /// Merges the splits of query i of query head h, gates and writes.
  void finish_row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const std::int64_t head = b * p_.Hkv + h / p_.group;
    const std::int64_t r = h % p_.group * p_.T + i;
    T max = p_.sinks.present() ? static_cast<T>(p_.sink(h) * kLog2e) : kHidden;
    T sum = max == kHidden ? T{0} : T{1};
    const T sink = max;
    for (std::int64_t split = 0; split < n_.splits; ++split) max = std::max(max, partial_.max(head, split, r));
    const Tag<T> d;
    const auto lanes = static_cast<std::int64_t>(kLanes<T>);
    T* HWY_RESTRICT o = scratch_.row.data;
    std::fill_n(o, n_.Dv_padded, T{0});
    if (sink != kHidden) sum = std::exp2(sink - max);
    for (std::int64_t split = 0; split < n_.splits; ++split) {
      if (partial_.max(head, split, r) == kHidden) continue;
      const T factor = std::exp2(partial_.max(head, split, r) - max);
      sum += factor * partial_.sum(head, split, r);
      const auto f = hn::Set(d, factor);
      const T* HWY_RESTRICT from = partial_.out.at(head, split, r);
      for (std::int64_t x = 0; x < n_.Dv_padded; x += lanes) {
        hn::StoreU(hn::MulAdd(f, hn::LoadU(d, from + x), hn::LoadU(d, o + x)), d, o + x);
      }
    }
    write_row(b, h, i, max, sum);
  }

 private:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();

  void pack_queries(std::int64_t head) {
    packed_head_ = head;
    const std::int64_t b = head / p_.Hkv;
    const T factor = rules_.query_factor();
    for (std::int64_t r = 0; r < n_.rows; ++r) {
      T* q = scratch_.queries.at(r);
      load_row(call_.inputs.q, b, head % p_.Hkv * p_.group + r / p_.T, r % p_.T, 0, static_cast<std::size_t>(p_.D), q);
      for (std::int64_t x = 0; x < n_.D; ++x) q[x] *= factor;
      std::fill(q + n_.D, q + n_.D_padded, T{0});
    }
  }

  void hide_and_rule(const Visibility& visibility, std::int64_t head, std::int64_t j, std::int64_t n) const {
    const std::int64_t b = head / p_.Hkv;
    for (std::int64_t r = 0; r < n_.rows; ++r) {
      const std::int64_t i = r % p_.T;
      const KeyRange seen = visibility.row(i);
      const std::int64_t begin = std::clamp<std::int64_t>(seen.begin - j, 0, n);
      const std::int64_t end = std::max(begin, std::clamp<std::int64_t>(seen.end - j, 0, n));
      T* s = scratch_.scores.at(r);
      if (rules_.any() && begin < end) {
        rules_.apply(b, head % p_.Hkv * p_.group + r / p_.T, i, j + begin, static_cast<std::size_t>(end - begin),
                     s + begin, nullptr, scratch_.row.data);
      }
      std::fill(s, s + begin, kHidden);
      std::fill(s + end, s + kStepKeys, kHidden);
    }
  }

  /// Row r of the scores becomes exp2(s − max); maximum, sum and weighted values of the split follow.
  void exponentials(std::int64_t head, std::int64_t split, std::int64_t r, std::int64_t n) const {
    const Tag<T> d;
    const auto lanes = static_cast<std::int64_t>(kLanes<T>);
    T* HWY_RESTRICT s = scratch_.scores.at(r);
    T& max = *partial_.max.at(head, split, r);
    T& sum = *partial_.sum.at(head, split, r);
    auto largest = hn::Set(d, max);
    for (std::int64_t j = 0; j < n; j += lanes) largest = hn::Max(largest, hn::Load(d, s + j));
    const T new_max = hn::GetLane(hn::MaxOfLanes(d, largest));
    if (new_max == kHidden) {
      std::fill_n(s, n, T{0});
      return;
    }
    if (new_max != max) {
      const T decay = std::exp2(max - new_max);
      max = new_max;
      sum *= decay;
      T* HWY_RESTRICT out = partial_.out.at(head, split, r);
      for (std::int64_t x = 0; x < n_.Dv_padded; ++x) out[x] *= decay;
    }
    const auto shift = hn::Set(d, max);
    auto total = hn::Zero(d);
    for (std::int64_t j = 0; j < n; j += lanes) {
      const auto e = exp2_fast(d, hn::Sub(hn::Load(d, s + j), shift));
      hn::Store(e, d, s + j);
      total = hn::Add(total, e);
    }
    sum += hn::GetLane(hn::SumOfLanes(d, total));
  }

  void write_row(std::int64_t b, std::int64_t h, std::int64_t i, T max, T sum) const {
    const AttentionOutputs& to = call_.outputs;
    const auto Dv = static_cast<std::size_t>(n_.Dv);
    T* o = scratch_.row.data;
    T* z = o + n_.Dv_padded;
    T* y = z + n_.Dv_padded;
    const T inverse = sum == T{0} ? T{0} : T{1} / sum;
    for (std::int64_t x = 0; x < n_.Dv_padded; ++x) o[x] *= inverse;
    if (to.attn.present()) store_row(o, Dv, to.attn, b, h, i, 0);
    if (p_.gate_fn != GateFn::none) {
      load_row(call_.inputs.gate, b, h, i, 0, p_.gate_headwise ? 1 : Dv, z);
      if (p_.gate_headwise) std::fill(z + 1, z + n_.Dv, z[0]);
      std::fill(z + n_.Dv, z + n_.Dv_padded, T{0});
      gate_row_forward(p_.gate_fn, p_.gate_op, z, static_cast<std::size_t>(n_.Dv_padded), o, y);
    } else {
      y = o;
    }
    store_row(y, Dv, to.y, b, h, i, 0);
    if (!to.lse.present()) return;
    const double lse = (static_cast<double>(max) + std::log2(static_cast<double>(sum))) * kLn2;
    const auto lse32 = static_cast<float>(lse);
    to.lse.dtype == DType::f64 ? store_row(&lse, 1, to.lse, b, h, i, 0) : store_row(&lse32, 1, to.lse, b, h, i, 0);
  }

  const ForwardCall& call_;
  const Problem& p_;
  const FewQueriesSizes<T>& n_;
  const PartialSoftmax<T>& partial_;
  FewQueriesScratch<T> scratch_;
  ScoreRules<T> rules_;
  std::int64_t packed_head_ = -1;
};

template <typename T, typename E>
void few_queries_stored(const ForwardCall& call) {
  const Problem& p = call.problem;
  const FewQueriesSizes<T> n(p);
  const Placed<PartialSoftmax<T>> partial(n);
#pragma omp parallel num_threads(n.threads) default(none) shared(call, p, n, partial)
  {
    Workspace thread_scratch(partial->scratch.at(omp_get_thread_num()));
    FewQueriesWorker<T, E> worker(call, n, *partial, thread_scratch);
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t task = 0; task < n.heads * n.splits; ++task) worker.run_split(task / n.splits, task % n.splits);
#pragma omp for schedule(dynamic, 4)
    for (std::int64_t row = 0; row < p.B * p.Hq * p.T; ++row) {
      worker.finish_row(row / (p.Hq * p.T), row / p.T % p.Hq, row % p.T);
    }
  }
}

template <typename T>
void few_queries_typed(const ForwardCall& call) {
  if constexpr (std::is_same_v<T, double>) {
    few_queries_stored<double, double>(call);
  } else {
    switch (call.inputs.k.dtype) {
      case DType::bf16: return few_queries_stored<float, BFloat16>(call);
      case DType::f16: return few_queries_stored<float, Float16>(call);
      default: return few_queries_stored<float, float>(call);
    }
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(few_queries_typed);

bool suits_few_queries(const ForwardCall& call) {
  const Problem& p = call.problem;
  return p.T * p.group <= kMostSharedRows && !call.outputs.weights.present() && call.inputs.k.strides[3] == 1 &&
         call.inputs.v.strides[3] == 1;
}

void few_queries_forward(const ForwardCall& call) {
  const std::int64_t target = call.problem.context.target;
  const auto run = call.inputs.q.dtype == DType::f64 ? HEADGATE_FOR_TARGET(few_queries_typed, double, target)
                                                     : HEADGATE_FOR_TARGET(few_queries_typed, float, target);
  run(call);
}

}  // namespace headgate
#endif  // HWY_ONCE
