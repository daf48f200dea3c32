// SPDX-License-Identifier: Apache-2.0
// Forward pass of gated attention. A query tile visits the key blocks that its rows see; within it strips of kMR rows
// take scores, online softmax and the product with v, all in cache. K and V are packed once per key/value head.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/cpu/kernels.hpp"
#include "attention/cpu/visibility.hpp"
#include "core/dispatch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/forward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "attention/cpu/forward_plan-inl.hpp"
#include "attention/cpu/gate_rows-inl.hpp"
#include "attention/cpu/multiply-inl.hpp"
#include "attention/cpu/rows-inl.hpp"
#include "attention/cpu/scores-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// One thread's part of the forward pass.
template <typename T>
class ForwardWorker {
 public:
  using Plan = ForwardPlan<T>;
  static constexpr std::int64_t kTile = Plan::kTile;
  static constexpr std::int64_t kBlock = Plan::kBlock;

  ForwardWorker(const Plan& plan, const ForwardBuffers<T>& shared, int thread)
      : plan_(plan),
        p_(plan.p),
        shared_(shared),
        own_(place_buffers<ForwardScratch<T>>(shared.scratch.at(thread), plan)) {}

  /// Packs a block of key/value head `head` (b · Hkv + h) into `slot`: keys that no query sees stay unread, but for
  /// those that share a panel with one that is seen.
  void pack_block(std::int64_t head, std::int64_t slot, std::int64_t block) const {
    const std::int64_t b = head / p_.Hkv;
    const std::int64_t h = head % p_.Hkv;
    const KeyRange seen = Visibility(p_, b).rows(0, p_.T);
    const std::int64_t begin = std::max(block * kBlock, seen.begin / kNR<T> * kNR<T>);
    const std::int64_t end = std::min((block + 1) * kBlock, seen.end);
    if (begin >= end) return;
    const View<T, 3> keys = shared_.keys[slot].range(0, begin / kNR<T>, divide_up(end - begin, kNR<T>));
    pack_transposed(keys, HeadRows(p_.inputs.k, b, h), begin, end - begin, own_.packing);
    pack_panels(values(slot, block), begin - block * kBlock, HeadRows(p_.inputs.v, b, h), begin, end - begin,
                own_.packing);
  }

  /// Query tile `tile` of query head h of batch b, whose packed keys and values lie in `slot`.
  void run_tile(std::int64_t b, std::int64_t h, std::int64_t slot, std::int64_t tile) {
    b_ = b;
    h_ = h;
    slot_ = slot;
    first_ = tile * kTile;
    count_ = std::min(kTile, p_.T - first_);
    pack_strips(own_.queries, HeadRows(p_.inputs.q, b, h), first_, count_, plan_.rules.query_factor(), own_.packing);
    reset();
    const Visibility visibility(p_, b);
    const KeyRange seen = visibility.rows(first_, first_ + count_);
    for (std::int64_t j0 = seen.begin / kBlock * kBlock; j0 < seen.end; j0 += kBlock) {
      for (std::int64_t r = 0; r < count_; r += kMR) visit(visibility, strip(visibility, j0, r));
    }
    for (std::int64_t r = 0; r < count_; ++r) finish_row(r);
    if (p_.outputs.weights.present()) write_weights(visibility);
  }

 private:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();
  /// How far, in powers of two, scores may exceed the running maximum before it follows: exp2 of it, times the number
  /// of keys, stays far from overflow.
  static constexpr T kSlack = 16;

  ColumnPanels<T> values(std::int64_t slot, std::int64_t block) const {
    return {shared_.values.at(slot, block), plan_.block_rows, plan_.Dv_padded};
  }

  void reset() const {
    // A sink opens the softmax: its logit is the first maximum, its term the first 1 of the sum.
    const T sink = p_.inputs.sinks.present() ? static_cast<T>(p_.sink(h_) * kLog2e) : kHidden;
    std::fill_n(own_.maxima.data, kTile, sink);
    std::fill_n(own_.sums.data, own_.sums.count(), T{0});
    for (std::int64_t r = 0; sink != kHidden && r < kTile; ++r) own_.sums(r, 0) = T{1};
    std::fill_n(own_.out.data, own_.out.count(), T{0});
  }

  /// Rows r … r + rows of the tile, at most kMR, beside the key block that begins with key j0.
  struct Strip {
    std::int64_t r, rows, j0;
    std::int64_t begin = 0, end = 0;  // the block's keys that they see
    std::int64_t c0 = 0, c1 = 0;      // columns of the whole panels that hold those
    bool empty() const { return begin >= end; }
  };

  Strip strip(const Visibility& visibility, std::int64_t j0, std::int64_t r) const {
    const std::int64_t rows = std::min(kMR, count_ - r);
    const KeyRange keys = visibility.rows(first_ + r, first_ + r + rows);
    const std::int64_t begin = std::max(keys.begin, j0) - j0;
    const std::int64_t end = std::min(keys.end, j0 + kBlock) - j0;
    if (begin >= end) return {r, rows, j0};
    return {r, rows, j0, begin, end, begin / kNR<T> * kNR<T>, round_up(end, kNR<T>)};
  }

  /// Columns [c0, c1) of the strip's scores: q kᵀ, plus start[m] in row m with overwrite_from.
  template <ProductWrite kWrite>
  void products(const Strip& s, std::int64_t c0, std::int64_t c1, const T* start = nullptr) const {
    for (std::int64_t c = c0; c < c1; c += kNR<T>) {
      multiply_strip<typename Plan::ScoreLeft, kWrite>(s.rows, kNV, own_.queries.at(s.r / kMR),
                                                       shared_.keys.at(slot_, (s.j0 + c) / kNR<T>), p_.D,
                                                       own_.scores.at(0, c), Plan::kScoreStride, start);
    }
  }

  /// Score rules on what each row sees of columns [c0, c1), −∞ on the rest of them.
  void rule_and_hide(const Visibility& visibility, const Strip& s, std::int64_t c0, std::int64_t c1) const {
    for (std::int64_t m = 0; m < s.rows; ++m) {
      const std::int64_t i = first_ + s.r + m;
      const KeyRange seen = visibility.row(i);
      const std::int64_t begin = std::clamp(seen.begin - s.j0, c0, c1);
      const std::int64_t end = std::max(begin, std::clamp(seen.end - s.j0, c0, c1));
      T* row = own_.scores.at(m);
      if (plan_.rules.any() && begin < end) {
        plan_.rules.apply(b_, h_, i, s.j0 + begin, end - begin, row + begin, nullptr, own_.rule_row.data);
      }
      std::fill(row + c0, row + begin, kHidden);
      std::fill(row + end, row + c1, kHidden);
    }
  }

  /// One strip against one key block: scores, online softmax, product with v.
  void visit(const Visibility& visibility, const Strip& s) const {
    if (s.empty()) return;
    if (plan_.rules.any() || !exponentials_near_maxima(visibility, s)) {
      products<ProductWrite::overwrite>(s, s.c0, s.c1);
      rule_and_hide(visibility, s, s.c0, s.c1);
      raise_maxima(s, s.c0, s.c1);
      subtract_maxima(s, s.c0, s.c1);
      exponentials(s);
    }
    multiply_panels<typename Plan::ValueLeft, ProductWrite::accumulate>(
        own_.out.range(0, s.r, s.rows), own_.scores.at(0, s.begin), values(slot_, s.j0 / kBlock), s.begin,
        s.end - s.begin);
  }

  /// The common case: the running maxima stay as they are while no score exceeds one by more than kSlack. The product
  /// starts at −maximum, so that one pass over the scores does it all; a strip's first maxima come from its first
  /// panel. False, with maxima and sums as they were or higher, where that does not do.
  bool exponentials_near_maxima(const Visibility& visibility, const Strip& s) const {
    std::int64_t done = s.c0;
    if (lowest_maximum(s) == kHidden) {
      done += kNR<T>;
      products<ProductWrite::overwrite>(s, s.c0, done);
      rule_and_hide(visibility, s, s.c0, done);
      raise_maxima(s, s.c0, done);
      if (lowest_maximum(s) == kHidden) return false;
      subtract_maxima(s, s.c0, done);
    }
    T start[kMR];
    for (std::int64_t m = 0; m < kMR; ++m) start[m] = -own_.maxima(s.r + m);
    products<ProductWrite::overwrite_from>(s, done, s.c1, start);
    rule_and_hide(visibility, s, done, s.c1);
    T kept[kMR * kLanes<T>];
    T* sums = own_.sums.at(s.r);
    std::copy_n(sums, s.rows * kLanes<T>, kept);
    if (exponentials(s) <= kSlack) return true;
    std::copy_n(kept, s.rows * kLanes<T>, sums);
    return false;
  }

  T lowest_maximum(const Strip& s) const {
    const T* maxima = own_.maxima.at(s.r);
    return *std::min_element(maxima, maxima + s.rows);
  }

  /// Running maxima of the strip's rows take in columns [c0, c1); sums and output rows follow them.
  void raise_maxima(const Strip& s, std::int64_t c0, std::int64_t c1) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    for (std::int64_t m = 0; m < s.rows; ++m) {
      const T* HWY_RESTRICT row = own_.scores.at(m);
      T& running_max = own_.maxima(s.r + m);
      auto max0 = hn::Set(d, running_max);
      auto max1 = max0;
      for (std::int64_t j = c0; j < c1; j += 2 * kN) {
        max0 = hn::Max(max0, hn::Load(d, row + j));
        max1 = hn::Max(max1, hn::Load(d, row + j + kN));
      }
      const T new_max = hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
      if (new_max == running_max) continue;
      const auto decay = exp2_fast(d, hn::Sub(hn::Set(d, running_max), hn::Set(d, new_max)));
      running_max = new_max;
      T* sum = own_.sums.at(s.r + m);
      hn::Store(hn::Mul(decay, hn::Load(d, sum)), d, sum);
      T* HWY_RESTRICT out = own_.out.at(s.r + m);
      for (std::int64_t x = 0; x < plan_.Dv_padded; x += kN)
        hn::Store(hn::Mul(decay, hn::Load(d, out + x)), d, out + x);
    }
  }

  /// Columns [c0, c1) of the scores, less the row's maximum; less 0 in a row that saw nothing, whose −∞ stay so.
  void subtract_maxima(const Strip& s, std::int64_t c0, std::int64_t c1) const {
    const Tag<T> d;
    for (std::int64_t m = 0; m < s.rows; ++m) {
      T* HWY_RESTRICT row = own_.scores.at(m);
      const T max = own_.maxima(s.r + m);
      const auto shift = hn::Set(d, max == kHidden ? T{0} : max);
      for (std::int64_t j = c0; j < c1; j += kLanes<T>) hn::Store(hn::Sub(hn::Load(d, row + j), shift), d, row + j);
    }
  }

  /// The strip's scores become exp2 of themselves; the sums take them in. Returns the largest exponent.
  T exponentials(const Strip& s) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    auto max0 = hn::Set(d, kHidden);
    auto max1 = max0;
    for (std::int64_t m = 0; m < s.rows; ++m) {
      T* HWY_RESTRICT row = own_.scores.at(m);
      T* HWY_RESTRICT sum = own_.sums.at(s.r + m);
      auto sum0 = hn::Load(d, sum);
      auto sum1 = hn::Zero(d);
      for (std::int64_t j = s.c0; j < s.c1; j += 2 * kN) {
        const auto x0 = hn::Load(d, row + j);
        const auto x1 = hn::Load(d, row + j + kN);
        max0 = hn::Max(max0, x0);
        max1 = hn::Max(max1, x1);
        const auto p0 = exp2_fast(d, x0);
        const auto p1 = exp2_fast(d, x1);
        hn::Store(p0, d, row + j);
        hn::Store(p1, d, row + j + kN);
        sum0 = hn::Add(sum0, p0);
        sum1 = hn::Add(sum1, p1);
      }
      hn::Store(hn::Add(sum0, sum1), d, sum);
    }
    return hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
  }

  T row_sum(std::int64_t r) const {
    const Tag<T> d;
    return hn::GetLane(hn::SumOfLanes(d, hn::Load(d, own_.sums.at(r))));
  }

  /// Normalises, gates and writes row r of the tile.
  void finish_row(std::int64_t r) const {
    const std::int64_t i = first_ + r;
    const AttentionOutputs& to = p_.outputs;
    T* o = own_.out.at(r);
    const T sum = row_sum(r);
    const T inverse = sum == T{0} ? T{0} : T{1} / sum;
    for (std::int64_t x = 0; x < plan_.Dv_padded; ++x) o[x] *= inverse;
    if (to.attn.present()) store_row(HeadRows(to.attn, b_, h_), o, i, 0, p_.Dv);
    const T* y = o;
    if (p_.gate_fn != GateFn::none) {
      const T* z = gate_logits(HeadRows(p_.inputs.gate, b_, h_), i, p_.Dv, own_.gate.data);
      gate_row_forward(own_.gated.data, o, z, plan_.Dv_padded, p_.gate_fn, p_.gate_op);
      y = own_.gated.data;
    }
    store_row(HeadRows(to.y, b_, h_), y, i, 0, p_.Dv);
    if (to.lse.present()) {
      const double lse = (static_cast<double>(own_.maxima(r)) + std::log2(static_cast<double>(sum))) * kLn2;
      store_row(HeadRows(to.lse, b_, h_), &lse, i, 0, 1);
    }
  }

  /// exp(s − lse) of every key, hidden ones as 0.
  void write_weights(const Visibility& visibility) const {
    const HeadRows to(p_.outputs.weights, b_, h_);
    for (std::int64_t r = 0; r < count_; r += kMR) {
      for (std::int64_t j0 = 0; j0 < p_.S; j0 += kBlock) {
        const Strip s = strip(visibility, j0, r);
        products<ProductWrite::overwrite>(s, s.c0, s.c1);
        rule_and_hide(visibility, s, s.c0, s.c1);
        const std::int64_t width = std::min(kBlock, p_.S - j0);
        for (std::int64_t m = 0; m < s.rows; ++m) {
          make_weights(s, m, width);
          store_row(to, own_.scores.at(m), first_ + r + m, j0, width);
        }
      }
    }
  }

  /// The first `width` scores of row m of the strip become weights.
  void make_weights(const Strip& s, std::int64_t m, std::int64_t width) const {
    const Tag<T> d;
    T* row = own_.scores.at(m);
    const T max = own_.maxima(s.r + m);
    const T sum = row_sum(s.r + m);
    const auto shift = hn::Set(d, max == kHidden ? T{0} : max);
    const auto inverse = hn::Set(d, sum == T{0} ? T{0} : T{1} / sum);
    std::fill(row, row + s.c0, T{0});
    for (std::int64_t j = s.c0; j < s.c1; j += kLanes<T>) {
      hn::Store(hn::Mul(inverse, exp2_fast(d, hn::Sub(hn::Load(d, row + j), shift))), d, row + j);
    }
    if (s.c1 < width) std::fill(row + s.c1, row + width, T{0});
  }

  const Plan& plan_;
  const ForwardProblem& p_;
  const ForwardBuffers<T>& shared_;
  const ForwardScratch<T> own_;
  std::int64_t b_ = 0, h_ = 0, slot_ = 0, first_ = 0, count_ = 0;
};

template <typename T>
void forward_typed(const ForwardProblem& p) {
  const ForwardPlan<T> plan(p);
  const Placed<ForwardBuffers<T>> placed(plan);
  const ForwardBuffers<T>& shared = *placed;
#pragma omp parallel num_threads(plan.threads) default(none) shared(plan, p, shared)
  {
    ForwardWorker<T> worker(plan, shared, omp_get_thread_num());
    for (std::int64_t head0 = 0; head0 < plan.heads; head0 += plan.heads_at_once) {
      const std::int64_t held = std::min(plan.heads_at_once, plan.heads - head0);
#pragma omp for schedule(dynamic, 1)
      for (std::int64_t n = 0; n < held * plan.blocks; ++n) {
        worker.pack_block(head0 + n / plan.blocks, n / plan.blocks, n % plan.blocks);
      }
      // Under a causal mask the last queries cost most: they go first, so that threads end together.
#pragma omp for schedule(dynamic, 1)
      for (std::int64_t n = 0; n < held * p.group * plan.tiles; ++n) {
        const std::int64_t slot = n / (p.group * plan.tiles);
        const std::int64_t head = head0 + slot;
        const std::int64_t h = head % p.Hkv * p.group + n / plan.tiles % p.group;
        worker.run_tile(head / p.Hkv, h, slot, plan.tiles - 1 - n % plan.tiles);
      }
    }
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(forward_typed);

void cpu_forward(const ForwardProblem& problem) {
  const std::int64_t target = problem.context.target;
  const auto run = problem.inputs.q.dtype == DType::f64 ? HEADGATE_FOR_TARGET(forward_typed, double, target)
                                                        : HEADGATE_FOR_TARGET(forward_typed, float, target);
  run(problem);
}

}  // namespace headgate
#endif  // HWY_ONCE
