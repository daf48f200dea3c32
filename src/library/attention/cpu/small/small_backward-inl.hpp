// SPDX-License-Identifier: Apache-2.0
// Computes the backward pass of small heads with five products on transposed scores (keys by queries); once per target:
//   P = exp(k qᵀ − lse)    dP = v doᵀ    ds = P ∘ (dP − Δ)    dv += P do    dk += ds q    dq = dsᵀ k.
#if defined(HEADGATE_ATTENTION_SMALL_BACKWARD_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_SMALL_BACKWARD_INL_
#undef HEADGATE_ATTENTION_SMALL_BACKWARD_INL_
#else
#define HEADGATE_ATTENTION_SMALL_BACKWARD_INL_
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "library/attention/cpu/common/backward_rows-inl.hpp"
#include "library/attention/cpu/small/small_heads-inl.hpp"
#include "library/core/sum_blocks.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

using SmallBackwardPlan = SmallHeadsPlan<BackwardProblem>;

/// Scratch buffers of one thread.
template <typename T>
struct SmallBackwardScratch {
  static constexpr std::int64_t kScoreStride = kQueryTile + 16;  // padded by a cache line: rows map to different sets

  SmallBackwardScratch(Workspace& ws, const SmallBackwardPlan& plan) {
    const BackwardProblem& p = plan.p;
    const std::int64_t keys_rows = plan.longest.S + kMR, tile_rows = std::min(plan.longest.T, kQueryTile);
    const std::int64_t D_padded = round_up(p.D, kLanes<T>), Dv_padded = round_up(p.Dv, kLanes<T>);
    keys = ws.take<T>("keys", keys_rows, kRowStride);
    values = ws.take<T>("values", keys_rows, kRowStride);
    query_rows = ws.take<T>("q rows", tile_rows, kRowStride);
    d_o = ws.take<T>("do", tile_rows, kRowStride);
    queries_t = ws.take<T>("queries", p.D, kNR<T>);
    d_o_t = ws.take<T>("do, transposed", p.Dv, kNR<T>);
    probabilities = ws.take<T>("probabilities", keys_rows, kScoreStride);
    ds = ws.take<T>("ds", keys_rows, kScoreStride);
    dk = ws.take<T>("dk", plan.longest.S, D_padded);
    dv = ws.take<T>("dv", plan.longest.S, Dv_padded);
    dq = ws.take<T>("dq", kMR, D_padded);
    lse = ws.take<T>("lse", round_up(kQueryTile, kNR<T>));
    delta = ws.take<T>("delta", round_up(kQueryTile, kNR<T>));
    dy = ws.take<T>("dy", Dv_padded);
    y = ws.take<T>("y", Dv_padded);
    attn = ws.take<T>("attn", Dv_padded);
    gate = ws.take<T>("gate", Dv_padded);
    dgate = ws.take<T>("dgate", Dv_padded);
    scaled = ws.take<T>("scaled", std::max(D_padded, Dv_padded));
  }

  View<T, 2> keys, values;       ///< dense rows of k and v
  View<T, 2> query_rows, d_o;    ///< dense rows of q and do for a tile of queries; q only if it cannot be read in place
  View<T, 2> queries_t, d_o_t;   ///< q and do of a panel, transposed; q is multiplied by scale · log2 e
  View<T, 2> probabilities, ds;  ///< P and ds, keys by the queries of a tile; ds is multiplied by scale
  View<T, 2> dk, dv;             ///< sums over tiles and query heads, if the tensors cannot hold them
  View<T, 2> dq;                 ///< dq of the rows of one register tile
  View<T, 1> lse, delta;         ///< for a tile's queries: lse in units of log2(e), and −(Δ − dlse)
  View<T, 1> dy, y, attn, gate, dgate;  ///< rows of one query
  View<T, 1> scaled;                    ///< a row of dk or dv, not yet rounded
};

template <typename T>
class SmallBackwardWorker {
 public:
  using Plan = SmallBackwardPlan;
  using Scratch = SmallBackwardScratch<T>;

  SmallBackwardWorker(const Plan& plan, std::byte* scratch)
      : p_(plan.p),
        scratch_(place_buffers<Scratch>(scratch, plan)),
        key_cols_(round_up(p_.D, kLanes<T>)),
        value_cols_(round_up(p_.Dv, kLanes<T>)) {}

  void run_head(const HeadTask& head, const HeadTask& next) {
    sequence_ = head.part->sequence;
    hkv_ = head.h;
    const Visibility visibility(p_, sequence_);
    const KeyRange seen = visibility.rows(0, sequence_.T);
    if (!seen.empty()) {
      const std::int64_t filled = seen.end + kRowUnit;  // register tiles read past the last key
      place_rows(scratch_.keys, p_, p_.inputs.k, {}, sequence_, hkv_, seen, filled);
      place_rows(scratch_.values, p_, p_.inputs.v, {}, sequence_, hkv_, seen, filled);
    }
    prefetch_next_head(next);
    dk_ = begin_sums(p_.gradients.dk, scratch_.dk);
    dv_ = begin_sums(p_.gradients.dv, scratch_.dv);
    if (p_.group == 0) {  // otherwise the first tile of queries overwrites the sums
      clear_sums(dk_, key_cols_);
      clear_sums(dv_, value_cols_);
    }
    for (std::int64_t g = 0; g < p_.group; ++g) {
      const std::int64_t h = hkv_ * p_.group + g;
      const QueryRows from(p_, sequence_, h);
      for (std::int64_t i = 0; i < sequence_.T; i += kQueryTile) {
        const std::int64_t n = std::min(kQueryTile, sequence_.T - i);
        prepare(from, i, n);
        run_tile(visibility, h, i, n, g == 0 && i == 0);
      }
    }
    end_sums(p_.gradients.dk, dk_);
    end_sums(p_.gradients.dv, dv_);
    ahead_.prefetch_rest();
  }

 private:
  static constexpr std::int64_t kScoreStride = Scratch::kScoreStride;
  /// The gradients of the next head are prefetched only if the head has at most this many bytes. Prefetching those of
  /// larger heads made the pass slower (docs/design/small-sequences.md).
  static constexpr std::int64_t kMostAhead_bytes = 192 * 1024;
  using RowsLeft = LeftLayout<kRowStride, 1>;
  using ScoreLeft = LeftLayout<kScoreStride, 1>;   // scores with keys as rows
  using ScoreLeftT = LeftLayout<1, kScoreStride>;  // scores with queries as rows

  /// Accumulator for rows of dk or dv, to which tiles of queries add.
  struct Sums {
    T* data = nullptr;
    std::int64_t stride = 0;
    bool in_place = false;
    bool present() const { return data != nullptr; }
  };

  /// Returns an accumulator in the tensor if its rows are dense, otherwise in `own`.
  Sums begin_sums(const TensorView& tensor, const View<T, 2>& own) const {
    if (!tensor.present()) return {};
    const HeadRows<void> rows = key_rows(tensor, sequence_, hkv_);
    if (lie_dense<T>(rows)) return {rows.template at<T>(0, 0, rows.cols), rows.row_stride, true};
    return {own.data, own.strides[0], false};
  }
  void clear_sums(const Sums& sums, std::int64_t cols) const {
    for (std::int64_t j = 0; sums.present() && j < sequence_.S; ++j)
      std::fill_n(sums.data + j * sums.stride, cols, T{0});
  }
  void end_sums(const TensorView& tensor, const Sums& sums) const {
    if (!sums.present() || sums.in_place) return;
    const View<T, 2> rows(sums.data, {sequence_.S, sums.stride});
    write_rows(key_rows(tensor, sequence_, hkv_), rows, 0, T{1}, scratch_.scaled.data);
  }

  /// Returns the bytes of the operands and gradients of one query head and of its keys.
  std::int64_t head_bytes(const Sequence& s) const {
    return std::int64_t{sizeof(T)} * (s.T * (2 * p_.D + 4 * p_.Dv) + s.S * (2 * p_.D + 2 * p_.Dv));
  }

  /// Schedules prefetches of the head that this thread is likely to take next, to run during the current head's
  /// products.
  void prefetch_next_head(const HeadTask& next) {
    ahead_ = {};
    if (next.part == nullptr) return;
    const Sequence& s = next.part->sequence;
    const std::int64_t h = next.h * p_.group;
    coming_ = {prefetch_rows(key_rows(p_.inputs.k, s, next.h)), prefetch_rows(key_rows(p_.inputs.v, s, next.h)),
               prefetch_rows(query_rows(p_.incoming.dy, s, h)), prefetch_rows(query_rows(p_.saved.y, s, h)),
               prefetch_rows(query_rows(p_.inputs.gate, s, h)), prefetch_rows(query_rows(p_.inputs.q, s, h))};
    if (head_bytes(s) <= kMostAhead_bytes) {
      coming_[6] = prefetch_rows(query_rows(p_.gradients.dq, s, h));
      coming_[7] = prefetch_rows(query_rows(p_.gradients.dgate, s, h));
      coming_[8] = prefetch_rows(key_rows(p_.gradients.dk, s, next.h));
      coming_[9] = prefetch_rows(key_rows(p_.gradients.dv, s, next.h));
    }
    const std::int64_t T_each = sequence_.T, S = sequence_.S;
    const std::int64_t key_panels = divide_up(p_.D, kNR<T>), value_panels = divide_up(p_.Dv, kNR<T>);
    const std::int64_t steps = score_tiles<T>(T_each, S) * (p_.D + p_.Dv) +
                               row_tiles_of(S) * (key_panels + value_panels) * T_each +
                               row_tiles_of(T_each) * key_panels * S;
    ahead_ = {coming_.data(), std::ssize(coming_), steps / kStepsACall};
  }

  /// Computes do, lse and −(Δ − dlse) of queries i … i + n, and writes their dz to dgate.
  void prepare(const QueryRows& from, std::int64_t i, std::int64_t n) const {
    T* HWY_RESTRICT lse = scratch_.lse.data;
    T* HWY_RESTRICT delta = scratch_.delta.data;
    if (from.all_dense<T>()) {
      prepare_rows(p_, from, i, n, scratch_.d_o, lse, delta);
    } else {
      double sink_part = 0;  // unused: the route declines sinks
      for (std::int64_t r = 0; r < n; ++r)
        prepare_row(p_, scratch_, from, i + r, scratch_.d_o.at(r), lse + r, delta + r, &sink_part);
    }
    // Pads lanes beyond n with lse = ∞, so that P = 0 there.
    const std::int64_t padded = round_up(n, kNR<T>);
    std::fill(lse + n, lse + padded, std::numeric_limits<T>::infinity());
    std::fill(delta + n, delta + padded, T{0});
    for (std::int64_t r = 0; r < padded; ++r) delta[r] = -delta[r];
  }

  OperandRows<T> place_queries(std::int64_t h, std::int64_t i, std::int64_t n) const {
    const HeadRows<const void> q = query_rows(p_.inputs.q, sequence_, h).range(i, n);
    const OperandRows<T> dense = lie_dense<T>(q) ? rows_in_place<T>(q) : OperandRows<T>{};
    if (dense.data != nullptr && dense.stride <= kRowStride) return dense;
    copy_rows(scratch_.query_rows, dense, q, 0, n, n);
    return {scratch_.query_rows.data, kRowStride};
  }

  /// Processes queries i … i + n of query head h, at most kQueryTile, after prepare(). `first` is true for the first
  /// tile of the key/value head.
  void run_tile(const Visibility& visibility, std::int64_t h, std::int64_t i, std::int64_t n, bool first) {
    const OperandRows<T> q = place_queries(h, i, n);
    for (std::int64_t r = 0; r < n; r += kNR<T>) {
      const std::int64_t rows = std::min(kNR<T>, n - r);
      if (rows > kLanes<T>) {
        score_panel<kNV>(visibility, q, i, r, rows);
      } else {
        score_panel<1>(visibility, q, i, r, rows);
      }
    }
    add_key_gradients(visibility, q, i, n, first);
    write_query_gradients(visibility, h, i, n);
  }

  /// Computes P and ds of queries r … r + n of the tile, at most kVecs vectors, for all keys that any of them sees.
  template <std::int64_t kVecs>
  void score_panel(const Visibility& visibility, const OperandRows<T>& q, std::int64_t i, std::int64_t r,
                   std::int64_t n) {
    transpose_panel<kVecs>(
        scratch_.queries_t.data, [&](std::int64_t m) { return q.at(r + m); }, n, p_.D,
        static_cast<T>(p_.scale * kLog2e));
    transpose_panel<kVecs>(
        scratch_.d_o_t.data, [&](std::int64_t m) { return scratch_.d_o.at(r + m); }, n, p_.Dv, T{1});
    const KeyRange seen = visibility.rows(i + r, i + r + n);
    const KeyRange narrowest = {visibility.row(i + r + n - 1).begin, visibility.row(i + r).end};
    for_row_tiles<kVecs == 1 ? 4 : 3>(seen.begin, seen.end,
                                      [&]<std::int64_t kRows>(std::int64_t j, std::int64_t rows) HWY_ATTR {
                                        make_probabilities<kRows, kVecs>(j, r);
                                        if (j < narrowest.begin || j + rows > narrowest.end)
                                          hide(visibility, j, rows, i, r, n);
                                        make_score_gradients<kRows, kVecs>(j, r);
                                      });
    zero_keys(0, seen.begin, r, kVecs * kLanes<T>);
    zero_keys(seen.end, sequence_.S, r, kVecs * kLanes<T>);
  }

  /// Zeroes P and ds for keys [begin, end) and `n` queries from r on, because register tiles read some of these.
  void zero_keys(std::int64_t begin, std::int64_t end, std::int64_t r, std::int64_t n) const {
    for (std::int64_t j = begin; j < end; ++j) {
      std::fill_n(scratch_.probabilities.at(j, r), n, T{0});
      std::fill_n(scratch_.ds.at(j, r), n, T{0});
    }
  }

  /// Computes P = exp2(k qᵀ − lse) for keys j … j + kRows and the queries of the panel at column r. Products are
  /// bitwise identical to the forward pass, and lse is subtracted afterwards, like the maximum there. With scores near
  /// 100, an f32 product that starts at −lse would change P by 10⁻⁵.
  template <std::int64_t kRows, std::int64_t kVecs>
  HWY_NOINLINE void make_probabilities(std::int64_t j, std::int64_t r) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    hn::Vec<Tag<T>> x[kRows][kVecs];
    HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
      HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) x[m][v] = hn::Zero(d);
    }
    PrefetchQueue ahead = ahead_;
    multiply_add<RowsLeft, kRows, kVecs>(x, scratch_.keys.at(j), scratch_.queries_t.data, kVecs * kN, p_.D,
                                         [&] { ahead.ask(); });
    ahead_ = ahead;
    hn::Vec<Tag<T>> lse[kVecs];
    HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) lse[v] = hn::Load(d, scratch_.lse.at(r + v * kN));
    T* HWY_RESTRICT to = scratch_.probabilities.at(j, r);
    HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
      HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) {
        hn::Store(exp2_fast(d, hn::Sub(x[m][v], lse[v])), d, to + m * kScoreStride + v * kN);
      }
    }
  }

  /// Computes ds = scale · P ∘ (v doᵀ − Δ) for the same keys and queries as make_probabilities.
  template <std::int64_t kRows, std::int64_t kVecs>
  HWY_NOINLINE void make_score_gradients(std::int64_t j, std::int64_t r) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    hn::Vec<Tag<T>> x[kRows][kVecs];
    HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) x[0][v] = hn::Load(d, scratch_.delta.at(r + v * kN));
    HWY_UNROLL(16) for (std::int64_t m = 1; m < kRows; ++m) {
      HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) x[m][v] = x[0][v];
    }
    PrefetchQueue ahead = ahead_;
    multiply_add<RowsLeft, kRows, kVecs>(x, scratch_.values.at(j), scratch_.d_o_t.data, kVecs * kN, p_.Dv,
                                         [&] { ahead.ask(); });
    ahead_ = ahead;
    const auto scale = hn::Set(d, static_cast<T>(p_.scale));
    const T* HWY_RESTRICT probabilities = scratch_.probabilities.at(j, r);
    T* HWY_RESTRICT to = scratch_.ds.at(j, r);
    HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
      HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) {
        const std::int64_t at = m * kScoreStride + v * kN;
        const auto p = hn::Load(d, probabilities + at);
        hn::Store(zero_where_zero(d, p, hn::Mul(hn::Mul(p, x[m][v]), scale)), d, to + at);
      }
    }
  }

  /// Sets P = 0 where queries of a panel do not see keys j … j + rows.
  void hide(const Visibility& visibility, std::int64_t j, std::int64_t rows, std::int64_t i, std::int64_t r,
            std::int64_t n) const {
    for (std::int64_t m = 0; m < rows; ++m) {
      const KeyRange seeing = visibility.queries(j + m, j + m + 1, sequence_.T);
      T* row = scratch_.probabilities.at(j + m, r);
      const std::int64_t begin = std::clamp<std::int64_t>(seeing.begin - i - r, 0, n);
      std::fill(row, row + begin, T{0});
      std::fill(row + std::clamp<std::int64_t>(seeing.end - i - r, begin, n), row + n, T{0});
    }
  }

  /// Adds dv += P do and dk += ds q, in register tiles of keys, over the queries that see any key of a register tile.
  void add_key_gradients(const Visibility& visibility, const OperandRows<T>& q, std::int64_t i, std::int64_t n,
                         bool first) const {
    for_row_tiles<3>(0, sequence_.S, [&]<std::int64_t kRows>(std::int64_t j, std::int64_t rows) HWY_ATTR {
      const KeyRange seeing = visibility.queries(j, j + rows, sequence_.T);
      const std::int64_t begin = std::max<std::int64_t>(seeing.begin - i, 0);
      const std::int64_t count = std::max<std::int64_t>(std::min(seeing.end - i, n) - begin, 0);
      if (count == 0 && !first) return;
      add_rows<kRows>(dv_, scratch_.probabilities, {scratch_.d_o.data, kRowStride}, j, rows, begin, count, value_cols_,
                      first);
      add_rows<kRows>(dk_, scratch_.ds, q, j, rows, begin, count, key_cols_, first);
    });
  }

  /// Computes rows j … j + rows of `to` = or += left (rows, count) · right (count, cols). Both operands start at query
  /// `begin` of the tile.
  template <std::int64_t kRows>
  HWY_INLINE void add_rows(const Sums& to, const View<T, 2>& left, const OperandRows<T>& right, std::int64_t j,
                           std::int64_t rows, std::int64_t begin, std::int64_t count, std::int64_t cols,
                           bool first) const {
    if (!to.present()) return;
    const T* a = left.data + j * kScoreStride + begin;
    T* c = to.data + j * to.stride;
    if (first) {
      multiply_row_tiles<kRows, ScoreLeft, ProductWrite::overwrite>(a, right.at(begin), right.stride, count, c,
                                                                    to.stride, rows, cols, ahead_);
    } else {
      multiply_row_tiles<kRows, ScoreLeft, ProductWrite::accumulate>(a, right.at(begin), right.stride, count, c,
                                                                     to.stride, rows, cols, ahead_);
    }
  }

  /// Computes dq = dsᵀ k of queries i … i + n, summed in blocks of kBackwardKeys keys.
  void write_query_gradients(const Visibility& visibility, std::int64_t h, std::int64_t i, std::int64_t n) const {
    if (!p_.gradients.dq.present()) return;
    const HeadRows<void> to = query_rows(p_.gradients.dq, sequence_, h);
    const bool in_place = lie_dense<T>(to);
    for_row_tiles<3>(0, n, [&]<std::int64_t kRows>(std::int64_t r, std::int64_t rows) HWY_ATTR {
      T* const c = in_place ? to.at<T>(i + r, 0, p_.D) : scratch_.dq.data;
      const std::int64_t ldc = in_place ? to.row_stride : key_cols_;
      const KeyRange seen = visibility.rows(i + r, i + r + rows);
      const std::int64_t middle = std::clamp(kBackwardKeys, seen.begin, std::max(seen.begin, seen.end));
      const auto keys = [&](std::int64_t j) { return scratch_.keys.data + j * kRowStride; };
      const auto left = [&](std::int64_t j) { return scratch_.ds.data + j * kScoreStride + r; };
      multiply_row_tiles<kRows, ScoreLeftT, ProductWrite::overwrite>(
          left(seen.begin), keys(seen.begin), kRowStride, middle - seen.begin, c, ldc, rows, key_cols_, ahead_);
      if (middle < seen.end) {
        multiply_row_tiles<kRows, ScoreLeftT, ProductWrite::accumulate>(
            left(middle), keys(middle), kRowStride, seen.end - middle, c, ldc, rows, key_cols_, ahead_);
      }
      if (in_place) return;
      for (std::int64_t m = 0; m < rows; ++m) store_row(to, scratch_.dq.at(m), i + r + m, 0, p_.D);
    });
  }

  const BackwardProblem& p_;
  const Scratch scratch_;
  const std::int64_t key_cols_, value_cols_;  // D and Dv, rounded up to vectors
  Sequence sequence_;
  std::int64_t hkv_ = 0;
  Sums dk_, dv_;
  std::array<RowPrefetch, 10> coming_{};  // prefetches of the next head's rows
  mutable PrefetchQueue ahead_;           // issues the prefetches of coming_ during products
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_SMALL_BACKWARD_INL_
