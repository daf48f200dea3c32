// SPDX-License-Identifier: Apache-2.0
// Forward pass of gated attention. A query tile visits the key blocks that its rows see; within it strips of kMR rows
// take scores, online softmax and the product with v, all in cache. K and V are packed once per key/value head.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/cpu/kernels.hpp"
#include "attention/cpu/visibility.hpp"
#include "core/arena.hpp"
#include "core/dispatch.hpp"
#include "core/sum_blocks.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/forward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "attention/cpu/gate_rows-inl.hpp"
#include "attention/cpu/multiply-inl.hpp"
#include "attention/cpu/rows-inl.hpp"
#include "attention/cpu/scores-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Sizes and buffers of one forward call. Keys are cut into blocks of kBlock: a strip's scores (kMR · kBlock) stay in
/// L1 and a block of packed K and V in L2 while the kTile queries of a tile pass over it.
template <typename T>
struct ForwardPlan {
  static constexpr std::size_t kTile = kQueryTile;
  static constexpr std::size_t kBlock = kForwardKeys;
  static constexpr std::size_t kScoreStride = kBlock + 16;  // a cache line more, so that rows lie in different sets
  /// Packed K and V of as many heads as fit here are held at a time, at least one: three quarters of a third-level
  /// cache of 32 MiB, from which all threads read them (docs/notes/2026-11-21-constants.md).
  static constexpr std::size_t kPackedBudget_bytes = std::size_t{24} << 20;

  using ScoreLeft = LeftLayout<1, kMR>;           // packed strips of q
  using ValueLeft = LeftLayout<kScoreStride, 1>;  // rows of probabilities

  explicit ForwardPlan(const ForwardCall& c)
      : call(c),
        p(c.problem),
        rules(c.problem),
        D(static_cast<std::size_t>(p.D)),
        Dv(static_cast<std::size_t>(p.Dv)),
        Dv_padded(round_up(Dv, kLanes<T>)),
        S_padded(round_up(static_cast<std::size_t>(p.S), kNR<T>)),
        block_rows(std::min(kBlock, S_padded)),
        tiles((p.T + static_cast<std::int64_t>(kTile) - 1) / static_cast<std::int64_t>(kTile)),
        heads(p.B * p.Hkv) {
    const std::size_t blocks = (S_padded + kBlock - 1) / kBlock;
    key_head = S_padded * D;
    value_head = blocks * block_rows * Dv_padded;
    const std::size_t head_bytes = (key_head + value_head) * sizeof(T);
    const auto fit = static_cast<std::int64_t>(kPackedBudget_bytes / std::max<std::size_t>(head_bytes, 1));
    heads_at_once = std::clamp<std::int64_t>(fit, 1, std::max<std::int64_t>(heads, 1));
    const auto held = static_cast<std::size_t>(heads_at_once);
    keys_at = arena.reserve(held * key_head, sizeof(T));
    values_at = arena.reserve(held * value_head, sizeof(T));
    const std::int64_t tasks = std::max(heads_at_once * p.group * tiles, std::int64_t{1});
    threads = static_cast<int>(std::min<std::int64_t>(p.context.threads, tasks));
    Arena one;
    lay_out_scratch(one);
    scratch_bytes = one.size_bytes();
    scratch_at = arena.reserve(static_cast<std::size_t>(threads) * scratch_bytes, 1);
    arena.allocate();
  }

  void lay_out_scratch(Arena& a) {
    const std::size_t row = round_up(std::max({D, Dv, kBlock}), kLanes<T>);
    queries_at = a.reserve(kTile * D, sizeof(T));
    scores_at = a.reserve(kMR * kScoreStride, sizeof(T));
    out_at = a.reserve(kTile * Dv_padded, sizeof(T));
    max_at = a.reserve(kTile, sizeof(T));
    sum_at = a.reserve(kTile * kLanes<T>, sizeof(T));
    rows_at = a.reserve(std::max(std::max(kNR<T>, kMR) * D, 3 * row), sizeof(T));
    row_stride = row;
  }

  T* packed_keys(std::int64_t slot) const {
    return arena.template at<T>(keys_at) + static_cast<std::size_t>(slot) * key_head;
  }
  T* packed_values(std::int64_t slot) const {
    return arena.template at<T>(values_at) + static_cast<std::size_t>(slot) * value_head;
  }

  const ForwardCall& call;
  const Problem& p;
  ScoreRules<T> rules;
  std::size_t D, Dv, Dv_padded, S_padded, block_rows;
  std::int64_t tiles, heads, heads_at_once = 1;
  std::size_t key_head = 0, value_head = 0;
  std::size_t keys_at = 0, values_at = 0, scratch_at = 0, scratch_bytes = 0;
  std::size_t queries_at = 0, scores_at = 0, out_at = 0, max_at = 0, sum_at = 0, rows_at = 0, row_stride = 0;
  int threads = 1;
  Arena arena;
};

/// Packs block `block` of key/value head `head` (b · Hkv + h) into `slot`: keys that no query sees stay unread,
/// but for those that share a panel with one that is seen.
template <typename T>
void pack_block(const ForwardPlan<T>& plan, std::int64_t head, std::int64_t slot, std::int64_t block, T* rows) {
  const Problem& p = plan.p;
  const std::int64_t b = head / p.Hkv;
  const std::int64_t h = head % p.Hkv;
  constexpr auto kBlock = static_cast<std::int64_t>(ForwardPlan<T>::kBlock);
  const KeyRange seen = Visibility(p, b).rows(0, p.T);
  constexpr auto kPanel = static_cast<std::int64_t>(kNR<T>);
  const std::int64_t begin = std::max(block * kBlock, seen.begin / kPanel * kPanel);
  const std::int64_t end = std::min((block + 1) * kBlock, seen.end);
  if (begin >= end) return;
  const auto n = static_cast<std::size_t>(end - begin);
  pack_transposed(Slice{&plan.call.inputs.k, b, h, plan.D}, begin, n,
                  plan.packed_keys(slot) + static_cast<std::size_t>(begin) * plan.D, rows);
  T* values = plan.packed_values(slot) + static_cast<std::size_t>(block) * plan.block_rows * plan.Dv_padded;
  pack_panels(Slice{&plan.call.inputs.v, b, h, plan.Dv}, begin, n, plan.block_rows,
              static_cast<std::size_t>(begin - block * kBlock), values, rows);
}

/// One thread's work on one query tile.
template <typename T>
class ForwardTile {
 public:
  using Plan = ForwardPlan<T>;
  static constexpr auto kBlock = static_cast<std::int64_t>(Plan::kBlock);

  ForwardTile(const Plan& plan, int thread)
      : plan_(plan),
        p_(plan.p),
        scratch_(plan.arena.template at<std::byte>(plan.scratch_at) +
                 static_cast<std::size_t>(thread) * plan.scratch_bytes) {}

  T* rows_buffer() const { return at(plan_.rows_at); }

  /// Query tile `tile` of query head h of batch b, whose packed keys and values lie in `slot`.
  void run(std::int64_t b, std::int64_t h, std::int64_t slot, std::int64_t tile) {
    b_ = b;
    h_ = h;
    slot_ = slot;
    first_ = tile * static_cast<std::int64_t>(Plan::kTile);
    count_ = static_cast<std::size_t>(std::min<std::int64_t>(Plan::kTile, p_.T - first_));
    pack_strips(Slice{&plan_.call.inputs.q, b, h, plan_.D}, first_, count_, plan_.rules.query_factor(),
                at(plan_.queries_at), rows_buffer());
    reset();
    const Visibility visibility(p_, b);
    const KeyRange seen = visibility.rows(first_, first_ + static_cast<std::int64_t>(count_));
    for (std::int64_t j0 = seen.begin / kBlock * kBlock; j0 < seen.end; j0 += kBlock) {
      for (std::size_t r = 0; r < count_; r += kMR) visit(visibility, j0, r);
    }
    for (std::size_t r = 0; r < count_; ++r) finish_row(r);
    if (plan_.call.outputs.weights.present()) write_weights(visibility);
  }

 private:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();
  /// How far, in powers of two, scores may exceed the running maximum before it follows: exp2 of it, times the number
  /// of keys, stays far from overflow.
  static constexpr T kSlack = 16;

  T* at(std::size_t offset) const { return reinterpret_cast<T*>(scratch_ + offset); }

  void reset() const {
    // A sink opens the softmax: its logit is the first maximum, its term the first 1 of the sum.
    const T sink = p_.sinks.present() ? static_cast<T>(p_.sink(h_) * kLog2e) : kHidden;
    std::fill_n(at(plan_.max_at), Plan::kTile, sink);
    std::fill_n(at(plan_.sum_at), Plan::kTile * kLanes<T>, T{0});
    for (std::size_t r = 0; sink != kHidden && r < Plan::kTile; ++r) at(plan_.sum_at)[r * kLanes<T>] = T{1};
    std::fill_n(at(plan_.out_at), Plan::kTile * plan_.Dv_padded, T{0});
  }

  /// What strip rows see of a key block: keys [begin, end) of it, and the columns of whole panels that hold them.
  struct Seen {
    std::size_t begin = 0, end = 0;
    std::size_t c0 = 0, c1 = 0;
    bool empty() const { return begin >= end; }
  };

  Seen see(const Visibility& visibility, std::int64_t j0, std::size_t r, std::size_t rows) const {
    const std::int64_t i0 = first_ + static_cast<std::int64_t>(r);
    const KeyRange keys = visibility.rows(i0, i0 + static_cast<std::int64_t>(rows));
    const std::int64_t begin = std::max(keys.begin, j0) - j0;
    const std::int64_t end = std::min(keys.end, j0 + kBlock) - j0;
    if (begin >= end) return {};
    const auto first = static_cast<std::size_t>(begin);
    const auto last = static_cast<std::size_t>(end);
    return {first, last, first / kNR<T> * kNR<T>, round_up(last, kNR<T>)};
  }

  /// Columns [c0, c1) of the strip's scores: q kᵀ, plus start[m] in row m with overwrite_from.
  template <Store kStore>
  void products(std::int64_t j0, std::size_t r, std::size_t rows, std::size_t c0, std::size_t c1,
                const T* start = nullptr) const {
    const T* queries = at(plan_.queries_at) + r * plan_.D;
    const T* keys = plan_.packed_keys(slot_) + static_cast<std::size_t>(j0) * plan_.D;
    for (std::size_t c = c0; c < c1; c += kNR<T>) {
      multiply_strip<typename Plan::ScoreLeft, kStore>(rows, kNV, queries, keys + c * plan_.D, plan_.D,
                                                       at(plan_.scores_at) + c, Plan::kScoreStride, start);
    }
  }

  /// Score rules on what each row sees of columns [c0, c1), −∞ on the rest of them.
  void rule_and_hide(const Visibility& visibility, std::int64_t j0, std::size_t r, std::size_t rows, std::size_t c0,
                     std::size_t c1) const {
    const std::int64_t i0 = first_ + static_cast<std::int64_t>(r);
    const auto low = static_cast<std::int64_t>(c0);
    const auto high = static_cast<std::int64_t>(c1);
    for (std::size_t m = 0; m < rows; ++m) {
      const KeyRange row = visibility.row(i0 + static_cast<std::int64_t>(m));
      const auto begin = static_cast<std::size_t>(std::clamp(row.begin - j0, low, high));
      const auto end = std::max(begin, static_cast<std::size_t>(std::clamp(row.end - j0, low, high)));
      T* s = at(plan_.scores_at) + m * Plan::kScoreStride;
      if (plan_.rules.any() && begin < end) {
        plan_.rules.apply(b_, h_, i0 + static_cast<std::int64_t>(m), j0 + static_cast<std::int64_t>(begin), end - begin,
                          s + begin, nullptr, rows_buffer());
      }
      std::fill(s + c0, s + begin, kHidden);
      std::fill(s + end, s + c1, kHidden);
    }
  }

  /// One strip against one key block: scores, online softmax, product with v.
  void visit(const Visibility& visibility, std::int64_t j0, std::size_t r) {
    const std::size_t rows = std::min(kMR, count_ - r);
    const Seen seen = see(visibility, j0, r, rows);
    if (seen.empty()) return;
    if (plan_.rules.any() || !exponentials_near_maxima(visibility, j0, r, rows, seen)) {
      products<Store::overwrite>(j0, r, rows, seen.c0, seen.c1);
      rule_and_hide(visibility, j0, r, rows, seen.c0, seen.c1);
      raise_maxima(r, rows, seen.c0, seen.c1);
      subtract_maxima(r, rows, seen.c0, seen.c1);
      exponentials(r, rows, seen.c0, seen.c1);
    }
    T* out = at(plan_.out_at) + r * plan_.Dv_padded;
    const T* values = plan_.packed_values(slot_) + static_cast<std::size_t>(j0) * plan_.Dv_padded;
    multiply_panels<typename Plan::ValueLeft, Store::accumulate>(rows, at(plan_.scores_at) + seen.begin, values,
                                                                 plan_.block_rows, seen.begin, seen.end - seen.begin,
                                                                 plan_.Dv_padded, out, plan_.Dv_padded);
  }

  /// The common case: the running maxima stay as they are while no score exceeds one by more than kSlack. The product
  /// starts at −maximum, so that one pass over the scores does it all; a strip's first maxima come from its first
  /// panel. False, with maxima and sums as they were or higher, where that does not do.
  bool exponentials_near_maxima(const Visibility& visibility, std::int64_t j0, std::size_t r, std::size_t rows,
                                const Seen& seen) const {
    std::size_t done = seen.c0;
    if (lowest_maximum(r, rows) == kHidden) {
      done += kNR<T>;
      products<Store::overwrite>(j0, r, rows, seen.c0, done);
      rule_and_hide(visibility, j0, r, rows, seen.c0, done);
      raise_maxima(r, rows, seen.c0, done);
      if (lowest_maximum(r, rows) == kHidden) return false;
      subtract_maxima(r, rows, seen.c0, done);
    }
    T start[kMR];
    for (std::size_t m = 0; m < kMR; ++m) start[m] = -at(plan_.max_at)[r + m];
    products<Store::overwrite_from>(j0, r, rows, done, seen.c1, start);
    rule_and_hide(visibility, j0, r, rows, done, seen.c1);
    T kept[kMR * kLanes<T>];
    T* sums = at(plan_.sum_at) + r * kLanes<T>;
    std::copy_n(sums, rows * kLanes<T>, kept);
    if (exponentials(r, rows, seen.c0, seen.c1) <= kSlack) return true;
    std::copy_n(kept, rows * kLanes<T>, sums);
    return false;
  }

  T lowest_maximum(std::size_t r, std::size_t rows) const {
    return *std::min_element(at(plan_.max_at) + r, at(plan_.max_at) + r + rows);
  }

  /// Running maxima of the strip's rows take in columns [c0, c1); sums and output rows follow them.
  void raise_maxima(std::size_t r, std::size_t rows, std::size_t c0, std::size_t c1) const {
    const Tag<T> d;
    constexpr std::size_t kN = kLanes<T>;
    for (std::size_t m = 0; m < rows; ++m) {
      const T* HWY_RESTRICT s = at(plan_.scores_at) + m * Plan::kScoreStride;
      T& running_max = at(plan_.max_at)[r + m];
      auto max0 = hn::Set(d, running_max);
      auto max1 = max0;
      for (std::size_t j = c0; j < c1; j += 2 * kN) {
        max0 = hn::Max(max0, hn::Load(d, s + j));
        max1 = hn::Max(max1, hn::Load(d, s + j + kN));
      }
      const T new_max = hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
      if (new_max == running_max) continue;
      const auto decay = exp2_fast(d, hn::Sub(hn::Set(d, running_max), hn::Set(d, new_max)));
      running_max = new_max;
      T* sum = at(plan_.sum_at) + (r + m) * kN;
      hn::Store(hn::Mul(decay, hn::Load(d, sum)), d, sum);
      T* HWY_RESTRICT out = at(plan_.out_at) + (r + m) * plan_.Dv_padded;
      for (std::size_t x = 0; x < plan_.Dv_padded; x += kN) hn::Store(hn::Mul(decay, hn::Load(d, out + x)), d, out + x);
    }
  }

  /// Columns [c0, c1) of the scores, less the row's maximum; less 0 in a row that saw nothing, whose −∞ stay so.
  void subtract_maxima(std::size_t r, std::size_t rows, std::size_t c0, std::size_t c1) const {
    const Tag<T> d;
    for (std::size_t m = 0; m < rows; ++m) {
      T* HWY_RESTRICT s = at(plan_.scores_at) + m * Plan::kScoreStride;
      const T max = at(plan_.max_at)[r + m];
      const auto shift = hn::Set(d, max == kHidden ? T{0} : max);
      for (std::size_t j = c0; j < c1; j += kLanes<T>) hn::Store(hn::Sub(hn::Load(d, s + j), shift), d, s + j);
    }
  }

  /// Columns [c0, c1) become exp2 of themselves; the sums take them in. Returns the largest exponent.
  T exponentials(std::size_t r, std::size_t rows, std::size_t c0, std::size_t c1) const {
    const Tag<T> d;
    constexpr std::size_t kN = kLanes<T>;
    auto max0 = hn::Set(d, kHidden);
    auto max1 = max0;
    for (std::size_t m = 0; m < rows; ++m) {
      T* HWY_RESTRICT s = at(plan_.scores_at) + m * Plan::kScoreStride;
      T* HWY_RESTRICT sum = at(plan_.sum_at) + (r + m) * kN;
      auto sum0 = hn::Load(d, sum);
      auto sum1 = hn::Zero(d);
      for (std::size_t j = c0; j < c1; j += 2 * kN) {
        const auto x0 = hn::Load(d, s + j);
        const auto x1 = hn::Load(d, s + j + kN);
        max0 = hn::Max(max0, x0);
        max1 = hn::Max(max1, x1);
        const auto p0 = exp2_fast(d, x0);
        const auto p1 = exp2_fast(d, x1);
        hn::Store(p0, d, s + j);
        hn::Store(p1, d, s + j + kN);
        sum0 = hn::Add(sum0, p0);
        sum1 = hn::Add(sum1, p1);
      }
      hn::Store(hn::Add(sum0, sum1), d, sum);
    }
    return hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
  }

  T row_sum(std::size_t r) const {
    const Tag<T> d;
    return hn::GetLane(hn::SumOfLanes(d, hn::Load(d, at(plan_.sum_at) + r * kLanes<T>)));
  }

  /// Normalises, gates and writes row r of the tile.
  void finish_row(std::size_t r) const {
    const std::int64_t i = first_ + static_cast<std::int64_t>(r);
    const AttentionOutputs& to = plan_.call.outputs;
    T* o = at(plan_.out_at) + r * plan_.Dv_padded;
    const T sum = row_sum(r);
    const T inverse = sum == T{0} ? T{0} : T{1} / sum;
    for (std::size_t x = 0; x < plan_.Dv_padded; ++x) o[x] *= inverse;
    if (to.attn.present()) store_row(o, plan_.Dv, to.attn, b_, h_, i, 0);
    if (p_.gate_fn != GateFn::none) {
      T* z = rows_buffer();
      if (p_.gate_headwise) {
        load_row(plan_.call.inputs.gate, b_, h_, i, 0, 1, z);
        std::fill(z + 1, z + plan_.Dv_padded, z[0]);
      } else {
        load_row(plan_.call.inputs.gate, b_, h_, i, 0, plan_.Dv, z);
        std::fill(z + plan_.Dv, z + plan_.Dv_padded, T{0});
      }
      T* y = z + plan_.row_stride;
      gate_row_forward(p_.gate_fn, p_.gate_op, z, plan_.Dv_padded, o, y);
      store_row(y, plan_.Dv, to.y, b_, h_, i, 0);
    } else {
      store_row(o, plan_.Dv, to.y, b_, h_, i, 0);
    }
    if (to.lse.present()) {
      const double lse = (static_cast<double>(at(plan_.max_at)[r]) + std::log2(static_cast<double>(sum))) * kLn2;
      if (to.lse.dtype == DType::f64) {
        store_row(&lse, 1, to.lse, b_, h_, i, 0);
      } else {
        const auto lse32 = static_cast<float>(lse);
        store_row(&lse32, 1, to.lse, b_, h_, i, 0);
      }
    }
  }

  /// exp(s − lse) of every key, hidden ones as 0.
  void write_weights(const Visibility& visibility) const {
    for (std::size_t r = 0; r < count_; r += kMR) {
      const std::size_t rows = std::min(kMR, count_ - r);
      for (std::int64_t j0 = 0; j0 < p_.S; j0 += kBlock) {
        const Seen seen = see(visibility, j0, r, rows);
        products<Store::overwrite>(j0, r, rows, seen.c0, seen.c1);
        rule_and_hide(visibility, j0, r, rows, seen.c0, seen.c1);
        const auto width = static_cast<std::size_t>(std::min(kBlock, p_.S - j0));
        for (std::size_t m = 0; m < rows; ++m) write_weights_row(r + m, m, j0, seen, width);
      }
    }
  }

  void write_weights_row(std::size_t r, std::size_t m, std::int64_t j0, const Seen& seen, std::size_t width) const {
    const Tag<T> d;
    T* s = at(plan_.scores_at) + m * Plan::kScoreStride;
    const T max = at(plan_.max_at)[r];
    const T sum = row_sum(r);
    const auto shift = hn::Set(d, max == kHidden ? T{0} : max);
    const auto inverse = hn::Set(d, sum == T{0} ? T{0} : T{1} / sum);
    std::fill(s, s + seen.c0, T{0});
    for (std::size_t j = seen.c0; j < seen.c1; j += kLanes<T>) {
      hn::Store(hn::Mul(inverse, exp2_fast(d, hn::Sub(hn::Load(d, s + j), shift))), d, s + j);
    }
    if (seen.c1 < width) std::fill(s + seen.c1, s + width, T{0});
    store_row(s, width, plan_.call.outputs.weights, b_, h_, first_ + static_cast<std::int64_t>(r), j0);
  }

  const Plan& plan_;
  const Problem& p_;
  std::byte* scratch_;
  std::int64_t b_ = 0, h_ = 0, slot_ = 0, first_ = 0;
  std::size_t count_ = 0;
};

template <typename T>
void forward_typed(const ForwardCall& call) {
  const ForwardPlan<T> plan(call);
  const Problem& p = plan.p;
  const std::int64_t blocks =
      (p.S + static_cast<std::int64_t>(ForwardPlan<T>::kBlock) - 1) / static_cast<std::int64_t>(ForwardPlan<T>::kBlock);
#pragma omp parallel num_threads(plan.threads) default(none) shared(plan, p, blocks)
  {
    ForwardTile<T> tile(plan, omp_get_thread_num());
    for (std::int64_t head0 = 0; head0 < plan.heads; head0 += plan.heads_at_once) {
      const std::int64_t held = std::min(plan.heads_at_once, plan.heads - head0);
#pragma omp for schedule(dynamic, 1)
      for (std::int64_t n = 0; n < held * blocks; ++n) {
        pack_block(plan, head0 + n / blocks, n / blocks, n % blocks, tile.rows_buffer());
      }
      // Under a causal mask the last queries cost most: they go first, so that threads end together.
#pragma omp for schedule(dynamic, 1)
      for (std::int64_t n = 0; n < held * p.group * plan.tiles; ++n) {
        const std::int64_t slot = n / (p.group * plan.tiles);
        const std::int64_t head = head0 + slot;
        const std::int64_t h = head % p.Hkv * p.group + n / plan.tiles % p.group;
        tile.run(head / p.Hkv, h, slot, plan.tiles - 1 - n % plan.tiles);
      }
    }
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(forward_typed);

void cpu_forward(const ForwardCall& call) {
  if (suits_few_queries(call)) return few_queries_forward(call);
  const std::int64_t target = call.problem.context.target;
  const auto run = call.inputs.q.dtype == DType::f64 ? HEADGATE_FOR_TARGET(forward_typed, double, target)
                                                     : HEADGATE_FOR_TARGET(forward_typed, float, target);
  run(call);
}

}  // namespace headgate
#endif  // HWY_ONCE
