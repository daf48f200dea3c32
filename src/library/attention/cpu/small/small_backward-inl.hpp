// SPDX-License-Identifier: Apache-2.0
// Computes the backward pass of small heads with five products on transposed scores (keys by queries); once per target:
//   P = exp(k qᵀ − lse)    dP = v d_oᵀ    ds = P ∘ (dP − Δ)    dv += P d_o    dk += ds q    dq = dsᵀ k.
#if defined(HEADGATE_ATTENTION_SMALL_BACKWARD_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_SMALL_BACKWARD_INL_
#undef HEADGATE_ATTENTION_SMALL_BACKWARD_INL_
#else
#define HEADGATE_ATTENTION_SMALL_BACKWARD_INL_
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "library/attention/cpu/common/backward_rows-inl.hpp"
#include "library/attention/cpu/small/small_heads-inl.hpp"
#include "library/core/sum_blocks.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Plans the backward pass. If dbias is requested, dbias is summed over all sequences that share a bias.
/// These sequences are cut into ranges. A task computes one key/value head in all sequences of one range.
/// Ranges, and therefore the order of summation, do not depend on the number of threads.
struct SmallBackwardPlan : SmallHeadsPlan<BackwardProblem> {
  static constexpr std::int64_t kFewTasks = 32;  ///< number of tasks to reach, if sequences and memory permit
  static constexpr double kMostSums_bytes = std::int64_t{64} << 20;  ///< limit in bytes of the dbias sums of all ranges

  SmallBackwardPlan(const BackwardProblem& problem, const WorkList& sequences) : SmallHeadsPlan(problem, sequences) {
    has_dbias = p.gradients.dbias.present();
    if (!has_dbias) return;
    biases = p.gradients.dbias.shape[0];
    sequences_each = p.B / biases;
    const double range_bytes = static_cast<double>(sizeof(double) * biases * p.Hq) * static_cast<double>(p.T * p.S);
    const auto affordable = static_cast<std::int64_t>(kMostSums_bytes / std::max(range_bytes, 1.0));
    ranges = std::min(sequences_each, divide_up(kFewTasks, std::max<std::int64_t>(biases * p.Hkv, 1)));
    ranges = std::clamp<std::int64_t>(affordable, 1, ranges);
    threads = static_cast<int>(std::clamp<std::int64_t>(dbias_tasks(), 1, p.context.threads));
  }

  std::int64_t dbias_tasks() const { return biases * ranges * p.Hkv; }
  /// Returns the number of buffers in which dbias is summed.
  /// There is one per task, or one per thread if each head has a single range.
  /// A buffer has one (queries, keys) plane for each query head that reads a key/value head.
  std::int64_t dbias_buffers() const { return ranges > 1 ? dbias_tasks() : threads; }

  bool has_dbias = false;
  std::int64_t biases = 1;          ///< batch size of dbias
  std::int64_t sequences_each = 1;  ///< number of sequences that share a bias
  std::int64_t ranges = 1;          ///< number of ranges into which the sequences that share a bias are cut
};

/// Buffers shared by all threads.
template <typename T>
struct SmallBackwardScratch;
template <typename T>
struct SmallBackwardBuffers : SmallHeadsBuffers<SmallBackwardPlan, SmallBackwardScratch<T>> {
  SmallBackwardBuffers(Workspace& ws, const SmallBackwardPlan& plan)
      : SmallHeadsBuffers<SmallBackwardPlan, SmallBackwardScratch<T>>(ws, plan) {
    if (!plan.has_dbias) return;
    dbias = ws.take<T>("dbias", plan.dbias_buffers() * plan.p.group, divide_up(plan.longest.T, kNR<T>),
                       plan.longest.S + kMR, kNR<T>);
  }

  /// planes with sums of ds, transposed like scores, (dbias_buffers() · group, panels, keys, kNR)
  View<T, 4> dbias;
};

/// Scratch buffers of one thread.
template <typename T>
struct SmallBackwardScratch {
  using Element = T;
  // padded by a cache line, so that rows map to different cache sets
  static constexpr std::int64_t kScoreStride = kQueryTile + 16;

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
    lse_error = ws.take<T>("lse errors", round_up(kQueryTile, kNR<T>));
    delta = ws.take<T>("delta", round_up(kQueryTile, kNR<T>));
    dy = ws.take<T>("dy", Dv_padded);
    y = ws.take<T>("y", Dv_padded);
    attn = ws.take<T>("attn", Dv_padded);
    gate = ws.take<T>("gate", Dv_padded);
    dgate = ws.take<T>("dgate", Dv_padded);
    scaled = ws.take<T>("scaled", std::max(D_padded, Dv_padded));
    terms = ScoreTermsScratch<T>(ws, plan.terms, plan.longest.S);
    if (plan.has_dbias) dbias_rows = ws.take<T>("dbias rows", kNR<T>, plan.longest.S);
  }

  View<T, 2> keys, values;  ///< dense rows of the head's k and v
  /// dense rows of q and d_o for a tile of queries; q is unused if the kernel reads it in place
  View<T, 2> query_rows, d_o;
  View<T, 2> queries_t, d_o_t;   ///< q and d_o of a panel of queries, transposed; q is multiplied by scale · log2(e)
  View<T, 2> probabilities, ds;  ///< P, and scale · ds, each (keys, queries of a tile)
  View<T, 2> dk, dv;             ///< sums of dk, dv over tiles and query heads; unused if caller's tensors hold them
  View<T, 2> dq;                 ///< dq of the rows of one register tile
  View<T, 1> lse, lse_error;     ///< for each query of a tile: lse · log2(e); rounding error of lse · log2(e)
  View<T, 1> delta;              ///< −(Δ − dlse) for each query of a tile, where Δ = rowsum(d_o ∘ o)
  View<T, 1> dy, y, attn, gate, dgate;  ///< scratch for one query's rows
  View<T, 1> scaled;                    ///< scratch for one row of dk or dv that is not yet rounded to its dtype
  ScoreTermsScratch<T> terms;
  View<T, 2> dbias_rows;  ///< rows of dbias for the queries of a panel
};

template <typename T>
class SmallBackwardWorker {
 public:
  using Plan = SmallBackwardPlan;
  using Scratch = SmallBackwardScratch<T>;

  SmallBackwardWorker(const Plan& plan, const SmallBackwardBuffers<T>& shared, int thread)
      : plan_(plan),
        p_(plan.p),
        shared_(shared),
        thread_(thread),
        scratch_(place_buffers<Scratch>(shared.scratch.at(thread), plan)),
        terms_(p_, plan.terms, shared.terms, scratch_.terms),
        key_cols_(round_up(p_.D, kLanes<T>)),
        value_cols_(round_up(p_.Dv, kLanes<T>)) {}

  const ScoreTerms<T>& terms() const { return terms_; }

  /// Runs task n of a call with dbias: computes one key/value head in all sequences of one range, in ascending order.
  void run_dbias_task(std::int64_t n) {
    const std::int64_t range = n / p_.Hkv, h = n % p_.Hkv, bias = range / plan_.ranges, each = plan_.sequences_each;
    const std::int64_t begin = range % plan_.ranges * each / plan_.ranges;
    const std::int64_t end = (range % plan_.ranges + 1) * each / plan_.ranges;
    first_plane_ = (plan_.ranges > 1 ? n : thread_) * p_.group;
    for (std::int64_t g = 0; g < p_.group; ++g) {
      const View<T, 3> plane = shared_.dbias.sub(first_plane_ + g);
      std::fill_n(plane.data, plane.count(), T{0});
    }
    PackedHeads part, next;
    for (std::int64_t b = begin; b < end; ++b) {
      part.sequence = p_.sequence(bias * each + b);
      if (b + 1 < end) next.sequence = p_.sequence(bias * each + b + 1);
      run_head({&part, h}, b + 1 < end ? HeadTask{&next, h} : HeadTask{});
    }
    if (plan_.ranges > 1) return;
    for (std::int64_t g = 0; g < p_.group; ++g) {
      for (std::int64_t panel = 0; panel < shared_.dbias.shape[1]; ++panel)
        write_dbias(bias, h, g, panel, first_plane_ + g, 0);
    }
  }

  /// Writes dbias of one panel of kNR queries, summed over ranges. Panels are numbered through all query heads.
  void sum_dbias(std::int64_t n) const {
    const std::int64_t panels = shared_.dbias.shape[1], panel = n % panels, head = n / panels;
    const std::int64_t bias = head / p_.Hq, h = head % p_.Hq / p_.group, g = head % p_.group;
    const std::int64_t first = bias * plan_.ranges * p_.Hkv + h;
    write_dbias(bias, h, g, panel, first * p_.group + g, p_.Hkv * p_.group);
  }

  void run_head(const HeadTask& head, const HeadTask& next) {
    sequence_ = head.part->sequence;
    hkv_ = head.h;
    const Visibility visibility(p_, sequence_);
    const KeyRange seen = visibility.rows(0, sequence_.T);
    if (!seen.empty()) {
      const std::int64_t filled = seen.end + kRowUnit;  // end of the zeroed rows: register tiles read past the last key
      copy_key_rows(scratch_.keys, p_, key_tensors(p_), sequence_, hkv_, seen, filled);
      copy_key_rows(scratch_.values, p_, value_tensors(p_), sequence_, hkv_, seen, filled);
    }
    prefetch_next_head(next);
    dk_ = begin_sums(p_.gradients.dk, scratch_.dk);
    dv_ = begin_sums(p_.gradients.dv, scratch_.dv);
    if (p_.group == 0) {  // without query heads, no query tile overwrites the sums
      clear_sums(dk_, key_cols_);
      clear_sums(dv_, value_cols_);
    }
    for (std::int64_t g = 0; g < p_.group; ++g) {
      const std::int64_t h = hkv_ * p_.group + g;
      const QueryRows from(p_, sequence_, h);
      terms_.begin_head(sequence_, h);
      dbias_ = plan_.has_dbias ? shared_.dbias.at(first_plane_ + g) : nullptr;
      for (std::int64_t i = 0; i < sequence_.T; i += kQueryTile) {
        const std::int64_t n = std::min(kQueryTile, sequence_.T - i);
        prepare(from, i, n);
        run_tile(visibility, h, i, n, g == 0 && i == 0);
      }
    }
    end_sums(p_.gradients.dk, dk_);
    end_sums(p_.gradients.dv, dv_);
    prefetch_queue_.prefetch_rest();
  }

 private:
  static constexpr std::int64_t kScoreStride = Scratch::kScoreStride;
  /// Size in bytes up to which a head's gradients are prefetched for the next task.
  /// Prefetching larger heads made the pass slower (docs/design/small-sequences.md).
  static constexpr std::int64_t kMostPrefetched_bytes = 192 * 1024;
  using ScoreLeft = LeftLayout<kScoreStride, 1>;   // layout of scores with keys as rows
  using ScoreLeftT = LeftLayout<1, kScoreStride>;  // layout of scores with queries as rows

  /// Rows in which dk or dv is summed over tiles of queries.
  struct Sums {
    T* data = nullptr;
    std::int64_t stride = 0;
    bool in_place = false;
    bool present() const { return data != nullptr; }
  };

  /// Returns the rows in which dk or dv is summed: rows of `tensor` if they are dense, otherwise rows of `own`.
  /// Returns no rows if `tensor` is absent.
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

  /// Returns the bytes of the operands and gradients of one query head and its keys.
  std::int64_t head_bytes(const Sequence& s) const {
    return std::int64_t{sizeof(T)} * (s.T * (2 * p_.D + 4 * p_.Dv) + s.S * (2 * p_.D + 2 * p_.Dv));
  }

  /// Schedules prefetches of the head that this thread will probably take next.
  /// The prefetches run during the products of the current head.
  void prefetch_next_head(const HeadTask& next) {
    prefetch_queue_ = {};
    if (next.part == nullptr) return;
    const Sequence& s = next.part->sequence;
    const std::int64_t h = next.h * p_.group;
    next_head_rows_ = {prefetch_rows(key_rows(p_.inputs.k, s, next.h)), prefetch_rows(key_rows(p_.inputs.v, s, next.h)),
                       prefetch_rows(query_rows(p_.incoming.dy, s, h)), prefetch_rows(query_rows(p_.saved.y, s, h)),
                       prefetch_rows(query_rows(p_.inputs.gate, s, h)), prefetch_rows(query_rows(p_.inputs.q, s, h))};
    if (head_bytes(s) <= kMostPrefetched_bytes) {
      next_head_rows_[6] = prefetch_rows(query_rows(p_.gradients.dq, s, h));
      next_head_rows_[7] = prefetch_rows(query_rows(p_.gradients.dgate, s, h));
      next_head_rows_[8] = prefetch_rows(key_rows(p_.gradients.dk, s, next.h));
      next_head_rows_[9] = prefetch_rows(key_rows(p_.gradients.dv, s, next.h));
    }
    const std::int64_t T_each = sequence_.T, S = sequence_.S;
    const std::int64_t key_panels = divide_up(p_.D, kNR<T>), value_panels = divide_up(p_.Dv, kNR<T>);
    const std::int64_t steps = score_tiles<T>(T_each, S) * (p_.D + p_.Dv) +
                               row_tiles_of(S) * (key_panels + value_panels) * T_each +
                               row_tiles_of(T_each) * key_panels * S;
    prefetch_queue_ = {next_head_rows_.data(), std::ssize(next_head_rows_), steps / kStepsACall};
  }

  /// Computes d_o, lse, the rounding error of lse, and −(Δ − dlse) of queries i … i + n, where Δ = rowsum(d_o ∘ o).
  /// Writes dz to dgate.
  void prepare(const QueryRows& from, std::int64_t i, std::int64_t n) const {
    T* HWY_RESTRICT lse = scratch_.lse.data;
    T* HWY_RESTRICT lse_error = scratch_.lse_error.data;
    T* HWY_RESTRICT delta = scratch_.delta.data;
    if (from.all_dense<T>()) {
      prepare_rows(p_, from, i, n, scratch_.d_o, lse, lse_error, delta);
    } else {
      double sink_part = 0;  // unused, because another kernel computes calls with sinks
      for (std::int64_t r = 0; r < n; ++r)
        prepare_row(p_, scratch_, from, i + r, scratch_.d_o.at(r), lse + r, lse_error + r, delta + r, &sink_part);
    }
    // Pads the panel after its n queries. lse = ∞ makes P = 0 in the padding.
    const std::int64_t padded = round_up(n, kNR<T>);
    std::fill(lse + n, lse + padded, std::numeric_limits<T>::infinity());
    std::fill(lse_error + n, lse_error + padded, T{0});
    std::fill(delta + n, delta + padded, T{0});
    for (std::int64_t r = 0; r < padded; ++r) delta[r] = -delta[r];
  }

  /// Returns queries i … i + n as dense rows, in place or copied to scratch.
  OperandRows<T> dense_queries(std::int64_t h, std::int64_t i, std::int64_t n) const {
    const HeadRows<const void> q = query_rows(p_.inputs.q, sequence_, h).range(i, n);
    const OperandRows<T> dense = lie_dense<T>(q) ? rows_in_place<T>(q) : OperandRows<T>{};
    if (dense.data != nullptr && dense.stride <= kRowStride) return dense;
    copy_rows(scratch_.query_rows, dense, q, 0, n, n);
    return {scratch_.query_rows.data, kRowStride};
  }

  /// Computes the n ≤ kQueryTile queries i … i + n of query head h. Requires that prepare() has prepared them.
  /// `first` is true for the first tile of the key/value head.
  /// That tile overwrites dk and dv, and later tiles add to them.
  void run_tile(const Visibility& visibility, std::int64_t h, std::int64_t i, std::int64_t n, bool first) {
    const OperandRows<T> q = dense_queries(h, i, n);
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

  /// Computes P and ds of queries r … r + n of the tile, for all keys that any of these queries sees.
  /// Requires that n is at most the number of lanes of kVecs vectors.
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
    const T* const terms = terms_.panel([&](std::int64_t m) { return i + r + m; }, n);
    const T* const lse = scratch_.lse.at(r);
    const bool is_coarse = std::any_of(lse, lse + n, has_coarse_lse<T>);
    T* const dbias = dbias_ == nullptr ? nullptr : dbias_ + (i + r) / kNR<T> * shared_.dbias.strides[1];
    for_row_tiles<kVecs == 1 ? 4 : 3>(seen.begin, seen.end,
                                      [&]<std::int64_t kRows>(std::int64_t j, std::int64_t rows) HWY_ATTR {
                                        make_probabilities<kRows, kVecs>(j, r, terms);
                                        if (is_coarse) correct_probabilities(j, rows, r, n);
                                        if (j < narrowest.begin || j + rows > narrowest.end)
                                          hide_probabilities(visibility, j, rows, i, r, n);
                                        make_score_gradients<kRows, kVecs>(j, r, rows, dbias);
                                      });
    zero_keys(0, seen.begin, r, kVecs * kLanes<T>);
    zero_keys(seen.end, sequence_.S, r, kVecs * kLanes<T>);
  }

  /// Zeroes P and ds for keys [begin, end) and queries r … r + n, because register tiles read some keys that no query
  /// sees.
  void zero_keys(std::int64_t begin, std::int64_t end, std::int64_t r, std::int64_t n) const {
    for (std::int64_t j = begin; j < end; ++j) {
      std::fill_n(scratch_.probabilities.at(j, r), n, T{0});
      std::fill_n(scratch_.ds.at(j, r), n, T{0});
    }
  }

  /// Computes P = exp2(s − lse) for keys j … j + kRows and the queries of the panel at column r.
  /// The scores s come from score_keys().
  /// Subtracts lse after the product, as the forward pass does with the maximum.
  /// If the sum began at −lse instead, f32 rounding would change P by 10⁻⁵ for scores near 100.
  template <std::int64_t kRows, std::int64_t kVecs>
  HWY_NOINLINE void make_probabilities(std::int64_t j, std::int64_t r, const T* terms) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    hn::Vec<Tag<T>> x[kRows][kVecs];
    score_keys(x, scratch_.keys, j, scratch_.queries_t.data, p_.D, terms, prefetch_queue_);
    hn::Vec<Tag<T>> lse[kVecs];
    HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) lse[v] = hn::Load(d, scratch_.lse.at(r + v * kN));
    T* HWY_RESTRICT to = scratch_.probabilities.at(j, r);
    HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
      HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) {
        hn::Store(exp2_fast(d, hn::Sub(x[m][v], lse[v])), d, to + m * kScoreStride + v * kN);
      }
    }
  }

  /// Corrects P for the rounding error of lse, like corrected_weight().
  /// Covers keys j … j + rows, and the n queries from column r on.
  HWY_NOINLINE void correct_probabilities(std::int64_t j, std::int64_t rows, std::int64_t r, std::int64_t n) const {
    for (std::int64_t x = 0; x < n; ++x) {
      if (!has_coarse_lse(scratch_.lse(r + x))) continue;
      const T factor = std::exp2(-scratch_.lse_error(r + x));
      for (std::int64_t m = 0; m < rows; ++m) {
        T& p = scratch_.probabilities(j + m, r + x);
        p = p * factor > T{1} ? T{1} : p * factor;
      }
    }
  }

  /// Computes ds = scale · P ∘ (v d_oᵀ − (Δ − dlse)), where Δ = rowsum(d_o ∘ o).
  /// The keys and queries are the same as in make_probabilities().
  /// Unless `dbias` is null, adds ds / scale of the first `rows` keys to `dbias`, which holds the sums of the panel.
  template <std::int64_t kRows, std::int64_t kVecs>
  HWY_NOINLINE void make_score_gradients(std::int64_t j, std::int64_t r, std::int64_t rows, T* dbias) const {
    const Tag<T> d;
    constexpr std::int64_t kN = kLanes<T>;
    hn::Vec<Tag<T>> x[kRows][kVecs];
    HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) x[0][v] = hn::Load(d, scratch_.delta.at(r + v * kN));
    HWY_UNROLL(16) for (std::int64_t m = 1; m < kRows; ++m) {
      HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) x[m][v] = x[0][v];
    }
    multiply_add_and_prefetch<LeftLayout<kRowStride, 1>>(x, static_cast<const T*>(scratch_.values.at(j)),
                                                         scratch_.d_o_t.data, kVecs * kN, p_.Dv, prefetch_queue_);
    const auto scale = hn::Set(d, static_cast<T>(p_.scale));
    const T* HWY_RESTRICT probabilities = scratch_.probabilities.at(j, r);
    T* HWY_RESTRICT to = scratch_.ds.at(j, r);
    HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
      HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) {
        const std::int64_t at = m * kScoreStride + v * kN;
        const auto p = hn::Load(d, probabilities + at);
        x[m][v] = zero_where_zero(d, p, hn::Mul(p, x[m][v]));
        hn::Store(hn::Mul(x[m][v], scale), d, to + at);
      }
    }
    if (dbias == nullptr) return;
    HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
      if (m >= rows) break;
      T* HWY_RESTRICT sum = dbias + (j + m) * kNR<T>;
      HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) {
        hn::Store(hn::Add(hn::Load(d, sum + v * kN), x[m][v]), d, sum + v * kN);
      }
    }
  }

  /// Writes dbias of one panel of queries, for the g-th query head that reads key/value head h.
  /// Adds up the sums of all ranges of sequences in ascending order.
  /// Plane first + n · step of shared_.dbias holds range n.
  void write_dbias(std::int64_t bias, std::int64_t h, std::int64_t g, std::int64_t panel, std::int64_t first,
                   std::int64_t step) const {
    const HeadRows<void> to(p_.gradients.dbias, bias, h * p_.group + g);
    const std::int64_t i = panel * kNR<T>, n = std::min(kNR<T>, p_.T - i), S = p_.S;
    T* HWY_RESTRICT sums = shared_.dbias.sub(first).at(panel);
    for (std::int64_t range = 1; range < plan_.ranges; ++range) {
      const T* HWY_RESTRICT more = shared_.dbias.sub(first + range * step).at(panel);
      for (std::int64_t x = 0; x < S * kNR<T>; ++x) sums[x] += more[x];
    }
    deinterleave_rows<kNR<T>>(scratch_.dbias_rows, sums, S);
    for (std::int64_t r = 0; r < n; ++r) store_row(to, scratch_.dbias_rows.at(r), i + r, 0, S);
  }

  /// Sets P = 0 where a query of the panel does not see a key of j … j + rows.
  void hide_probabilities(const Visibility& visibility, std::int64_t j, std::int64_t rows, std::int64_t i,
                          std::int64_t r, std::int64_t n) const {
    for (std::int64_t m = 0; m < rows; ++m) {
      const KeyRange seeing = visibility.queries(j + m, j + m + 1, sequence_.T);
      T* row = scratch_.probabilities.at(j + m, r);
      const std::int64_t begin = std::clamp<std::int64_t>(seeing.begin - i - r, 0, n);
      std::fill(row, row + begin, T{0});
      std::fill(row + std::clamp<std::int64_t>(seeing.end - i - r, begin, n), row + n, T{0});
    }
  }

  /// Adds P d_o to dv and ds q to dk, one register tile of keys at a time. Reads only queries that see a key of the
  /// tile.
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

  /// Multiplies left (rows, count) by right (count, cols), which is a sum over `count` queries from `begin` on.
  /// If `first`, writes the product to rows j … j + rows of `to`. Otherwise adds the product to these rows.
  template <std::int64_t kRows>
  HWY_INLINE void add_rows(const Sums& to, const View<T, 2>& left, const OperandRows<T>& right, std::int64_t j,
                           std::int64_t rows, std::int64_t begin, std::int64_t count, std::int64_t cols,
                           bool first) const {
    if (!to.present()) return;
    const T* a = left.data + j * kScoreStride + begin;
    T* c = to.data + j * to.stride;
    if (first) {
      multiply_row_tiles<kRows, ScoreLeft, ProductWrite::overwrite>(a, right.at(begin), right.stride, count, c,
                                                                    to.stride, rows, cols, prefetch_queue_);
    } else {
      multiply_row_tiles<kRows, ScoreLeft, ProductWrite::accumulate>(a, right.at(begin), right.stride, count, c,
                                                                     to.stride, rows, cols, prefetch_queue_);
    }
  }

  /// Computes dq = dsᵀ k of queries i … i + n.
  /// Sums over each block of kBackwardKeys keys, and then over the blocks, as the tiles kernel does.
  void write_query_gradients(const Visibility& visibility, std::int64_t h, std::int64_t i, std::int64_t n) const {
    if (!p_.gradients.dq.present()) return;
    const HeadRows<void> to = query_rows(p_.gradients.dq, sequence_, h);
    const bool in_place = lie_dense<T>(to);
    for_row_tiles<3>(0, n, [&]<std::int64_t kRows>(std::int64_t r, std::int64_t rows) HWY_ATTR {
      T* const c = in_place ? to.at<T>(i + r, 0, p_.D) : scratch_.dq.data;
      const std::int64_t ldc = in_place ? to.row_stride : key_cols_;
      const KeyRange seen = visibility.rows(i + r, i + r + rows);
      const auto keys = [&](std::int64_t j) { return scratch_.keys.data + j * kRowStride; };
      const auto left = [&](std::int64_t j) { return scratch_.ds.data + j * kScoreStride + r; };
      const auto end_of_block = [&](std::int64_t j) {
        return std::clamp(round_up(j + 1, kBackwardKeys), seen.begin, std::max(seen.begin, seen.end));
      };
      std::int64_t j = end_of_block(seen.begin);
      multiply_row_tiles<kRows, ScoreLeftT, ProductWrite::overwrite>(
          left(seen.begin), keys(seen.begin), kRowStride, j - seen.begin, c, ldc, rows, key_cols_, prefetch_queue_);
      for (std::int64_t end = 0; j < seen.end; j = end) {
        end = end_of_block(j);
        multiply_row_tiles<kRows, ScoreLeftT, ProductWrite::accumulate>(left(j), keys(j), kRowStride, end - j, c, ldc,
                                                                        rows, key_cols_, prefetch_queue_);
      }
      if (in_place) return;
      for (std::int64_t m = 0; m < rows; ++m) store_row(to, scratch_.dq.at(m), i + r + m, 0, p_.D);
    });
  }

  const Plan& plan_;
  const BackwardProblem& p_;
  const SmallBackwardBuffers<T>& shared_;
  const int thread_;
  const Scratch scratch_;
  ScoreTerms<T> terms_;
  const std::int64_t key_cols_, value_cols_;  // D and Dv, rounded up to vectors
  Sequence sequence_;
  std::int64_t hkv_ = 0;
  std::int64_t first_plane_ = 0;  // index of the first plane of the task; a plane holds the dbias of one query head
  T* dbias_ = nullptr;            // plane with the sums of dbias for the current query head
  Sums dk_, dv_;
  std::array<RowPrefetch, 10> next_head_rows_{};  // objects that prefetch the next head's rows
  // spreads the prefetches of next_head_rows_ over the products of the current head
  mutable PrefetchQueue prefetch_queue_;
};

/// Runs the backward pass over small heads.
template <typename T>
void run_small_backward(const SmallBackwardPlan& plan, const SmallBackwardBuffers<T>& shared) {
  using Worker = SmallBackwardWorker<T>;
  if (!plan.has_dbias) return run_small_heads<Worker>(plan, shared);
  Cancellation cancellation(plan.p.context);
  run_team(plan.threads, [&](const Team& team) {
    Worker worker(plan, shared, team.thread());
    pack_terms(team, worker, plan, shared);
    team.in_turn(plan.dbias_tasks(), [&](std::int64_t n) {
      if (!cancellation.requested()) worker.run_dbias_task(n);
    });
    if (plan.ranges == 1 || cancellation.seen()) return;
    team.in_turn(plan.biases * plan.p.Hq * shared.dbias.shape[1], [&](std::int64_t n) { worker.sum_dbias(n); });
  });
  cancellation.throw_if_seen();
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_SMALL_BACKWARD_INL_
