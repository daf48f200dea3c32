// SPDX-License-Identifier: Apache-2.0
// Computes the backward pass with lists of keys, in time that grows with the lists:
//   P = exp(q kᵀ − lse)    ds = P ∘ (M ∘ d_o vᵀ − Δ)    dq = ds k    dk = dsᵀ q    dv = (P ∘ M)ᵀ d_o.
// The queries of a key/value head are processed in chunks, each in two steps:
//   1. Threads share the queries. Each query computes P ∘ M and ds of its listed keys, and dq.
//   2. Threads share ranges of keys. Each range adds the terms of all queries of the chunk to dk, dv and dbias.
// Every sum is thus in the order of the queries, whichever thread computes it.

#include <algorithm>
#include <cmath>
#include <limits>

#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/cpu/kernels.hpp"
#include "library/attention/cpu/listed/listed_keys.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/attention/cpu/listed/listed_backward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Per-target headers must follow foreach_target.h.
#include "library/attention/cpu/common/backward_rows-inl.hpp"
#include "library/attention/cpu/common/dropout-inl.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/cpu/decode/packed_queries-inl.hpp"
#include "library/attention/cpu/decode/stored_rows-inl.hpp"
#include "library/attention/cpu/listed/listed_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Least number of keys per range. One task sums dk and dv of a range. The sums stay in the second-level cache.
inline constexpr std::int64_t kLeastRange = 128;

template <typename T>
struct ListedBackwardPlan {
  ListedBackwardPlan(const BackwardProblem& problem, const WorkList& sequences, const View<double, 2>& dsinks_terms)
      : p(problem),
        list(sequences),
        rules(problem),
        dropout(problem),
        sink_parts(dsinks_terms),
        D_padded(round_up(p.D, kLanes<T>)),
        Dv_padded(round_up(p.Dv, kLanes<T>)),
        key_room(room_for_listed_keys(problem)),
        most_blocks(listed_blocks(key_room - 1)) {
    const Sequence longest = longest_sequence(p, list);
    most_keys = longest.S;
    // Cuts the keys into at most max(kFewRanges, list length) ranges.
    // Finding how many listed keys precede each range then takes no longer than reading a long list.
    constexpr std::int64_t kFewRanges = 64;
    range_keys = std::max(kLeastRange, divide_up(longest.S, std::max(kFewRanges, key_room - 1)));
    ranges = divide_up(longest.S, range_keys);
    const TensorView& dbias = p.gradients.dbias;
    dbias_over_queries = dbias.present() && dbias.shape[2] == 1 && p.T != 1;
    dbias_copied = dbias.present() && dbias.dtype != dtype_of<T>();
    keeps_unsloped = dbias.present() && rules.capped();
    constexpr double kChunk_bytes = std::int64_t{32} << 20;
    const double of_keys = static_cast<double>((keeps_unsloped ? 3 : 2) * most_blocks * kListedStride);
    const double bytes =
        sizeof(T) * static_cast<double>(p.group) * (of_keys + static_cast<double>(D_padded + Dv_padded)) +
        sizeof(std::int64_t) * static_cast<double>(key_room + ranges);
    const std::int64_t in_budget = static_cast<std::int64_t>(std::min(kChunk_bytes / std::max(bytes, 1.0), 4096.0));
    constexpr std::int64_t kQueriesPerThread = 4;
    const std::int64_t least = kQueriesPerThread * p.context.threads;
    chunk = std::clamp<std::int64_t>(std::max(in_budget, least), 1, std::max<std::int64_t>(longest.T, 1));
    threads = static_cast<int>(std::clamp<std::int64_t>(std::max(chunk, ranges), 1, p.context.threads));
  }

  const BackwardProblem& p;
  WorkList list;
  ScoreRules<T> rules;
  Dropout<T> dropout;
  View<double, 2> sink_parts;  ///< contribution of each query tile to dsinks, (query tiles of all sequences, Hq)
  std::int64_t D_padded, Dv_padded;
  std::int64_t key_room;            ///< room for one list of keys, in elements
  std::int64_t most_blocks;         ///< largest number of blocks (of kListedBlock keys) in a list
  std::int64_t most_keys = 0;       ///< largest number of keys in a sequence
  std::int64_t range_keys = 0;      ///< number of keys per range
  std::int64_t ranges = 0;          ///< number of ranges in a sequence of most_keys keys
  std::int64_t chunk = 1;           ///< number of queries per chunk; see ListedBackwardBuffers
  bool dbias_over_queries = false;  ///< true if each element of dbias is a sum over queries
  bool dbias_copied = false;        ///< true if dbias is summed in a copy of type T
  bool keeps_unsloped = false;      ///< true if dbias needs a copy of ds without the softcap's derivative
  int threads = 1;
};

/// Scratch buffers of one thread.
template <typename T, typename E>
struct ListedBackwardScratch {
  ListedBackwardScratch(Workspace& ws, const ListedBackwardPlan<T>& plan)
      : collector(ws, plan.p),
        queries(ws, plan.p.group, plan.p.D),
        gradients(ws, plan.p.group, plan.p.Dv),
        k(ws, plan.p.D),
        v(ws, plan.p.Dv) {
    const std::int64_t group = plan.p.group;
    weights = ws.take<T>("probabilities", group, kListedStride);
    ds = ws.take<T>("ds", group, kListedStride);
    dq = ws.take<T>("dq", group, plan.D_padded);
    for (View<T, 1>* row : {&lse, &lse_error, &delta}) *row = ws.take<T>("lse and delta", group);
    for (View<T, 1>* row : {&dy, &y, &attn, &gate, &dgate}) *row = ws.take<T>("rows of a query", plan.Dv_padded);
    scaled = ws.take<T>("scaled", std::max(plan.D_padded, plan.Dv_padded));
    factors = ws.take<T>("dropout factors", kListedBlock);
    slope = ws.take<T>("slope", kListedStride);
    if (plan.rules.any()) rule_row = ws.take<T>("rule rows", 2 * kListedBlock);
  }

  KeyCollector collector;
  WideQueries<T> queries, gradients;  ///< q and d_o of one query, for all query heads that share the key/value head
  ListedRows<T, E> k, v;
  View<T, 2> weights, ds;  ///< P and ds of one block of listed keys, (group, kListedStride)
  View<T, 2> dq;           ///< dq of one query, not yet multiplied by scale
  /// results of prepare_row() for each head of the group: lse · log2(e), rounding error of lse · log2(e), and Δ − dlse
  View<T, 1> lse, lse_error, delta;
  View<T, 1> dy, y, attn, gate, dgate;
  View<T, 1> scaled;    ///< scratch for one row of dq, dk or dv: scaled, not yet rounded to its dtype
  View<T, 1> factors;   ///< dropout factors of a block of keys
  View<T, 1> slope;     ///< softcap's derivative for a block of keys
  View<T, 1> rule_row;  ///< scratch for a row of bias or mask, and a row of key bias
};

/// Buffers shared by all threads, for one key/value head. The head is computed in two steps:
///   1. for each query of a chunk, compute and store weights and gradients;
///   2. sum dk and dv over the chunk's queries.
template <typename T, typename E>
struct ListedBackwardBuffers {
  ListedBackwardBuffers(Workspace& ws, const ListedBackwardPlan<T>& plan) {
    const std::int64_t chunk = plan.chunk, group = plan.p.group, blocks = plan.most_blocks;
    keys = ws.take<std::int64_t>("listed keys", chunk, plan.key_room);
    starts = ws.take<std::int64_t>("starts of ranges", chunk, plan.ranges + 1);
    weights = ws.take<T>("probabilities of a chunk", chunk, blocks, group, kListedStride);
    ds = ws.take<T>("ds of a chunk", chunk, blocks, group, kListedStride);
    if (plan.keeps_unsloped) unsloped = ws.take<T>("unsloped ds of a chunk", chunk, blocks, group, kListedStride);
    q = ws.take<T>("q of a chunk", chunk, group, plan.D_padded);
    d_o = ws.take<T>("do of a chunk", chunk, group, plan.Dv_padded);
    sink_terms = ws.take<double>("dsinks", chunk, group);
    if (plan.p.gradients.dk.present()) dk = ws.take<T>("dk", plan.most_keys, plan.D_padded);
    if (plan.p.gradients.dv.present()) dv = ws.take<T>("dv", plan.most_keys, plan.Dv_padded);
    dbias = plan.p.gradients.dbias;
    if (plan.dbias_copied) {
      const Shape& shape = dbias.shape;
      const auto copy = ws.take<T>("dbias", shape[0], shape[1], shape[2], shape[3]);
      dbias = {copy.data, dtype_of<T>(), copy.shape, copy.strides};
    }
    scratch = ws.take<std::byte>("threads", plan.threads, count_bytes<ListedBackwardScratch<T, E>>(plan));
  }

  View<std::int64_t, 2> keys;    ///< listed keys of each query in ascending order
  View<std::int64_t, 2> starts;  ///< for each query and range: how many of the query's keys precede the range
  View<T, 4> weights, ds;        ///< P (times dropout factors M) and ds, (queries, blocks, group, kListedStride)
  View<T, 4> unsloped;           ///< ds before it is multiplied by the softcap's derivative
  View<T, 3> q, d_o;
  View<double, 2> sink_terms;
  View<T, 2> dk, dv;
  TensorView dbias;  ///< sums of dbias: the caller's tensor, or a copy of type T
  View<std::byte, 2> scratch;
};

/// Computes to[m][x] += Σ_k w[k · kListedStride + m] · rows[k · stride + x] over k < K.
/// Covers kRows rows m, and kVecs vectors of columns from x on.
template <std::int64_t kRows, std::int64_t kVecs, typename T>
HWY_INLINE void add_outer_tile(T* const* to, std::int64_t x, const T* HWY_RESTRICT w, const T* HWY_RESTRICT rows,
                               std::int64_t stride, std::int64_t K) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  hn::Vec<Tag<T>> acc[kRows][kVecs];
  HWY_UNROLL(8) for (std::int64_t m = 0; m < kRows; ++m) {
    HWY_UNROLL(4) for (std::int64_t n = 0; n < kVecs; ++n) acc[m][n] = hn::Load(d, to[m] + x + n * kN);
  }
  rows += x;
  for (std::int64_t k = 0; k < K; ++k) {
    hn::Vec<Tag<T>> right[kVecs];
    HWY_UNROLL(4) for (std::int64_t n = 0; n < kVecs; ++n) right[n] = hn::Load(d, rows + n * kN);
    HWY_UNROLL(8) for (std::int64_t m = 0; m < kRows; ++m) {
      const auto left = in_register(hn::Set(d, w[m]));
      HWY_UNROLL(4) for (std::int64_t n = 0; n < kVecs; ++n) acc[m][n] = hn::MulAdd(left, right[n], acc[m][n]);
    }
    rows += stride;
    w += kListedStride;
  }
  HWY_UNROLL(8) for (std::int64_t m = 0; m < kRows; ++m) {
    HWY_UNROLL(4) for (std::int64_t n = 0; n < kVecs; ++n) hn::Store(acc[m][n], d, to[m] + x + n * kN);
  }
}

/// Adds row m of wᵀ · `rows` to row keys[m] of `sums`, for m < n.
/// `w` has kListedStride weights for each row of `rows`.
template <typename T>
HWY_NOINLINE void add_outer(const View<T, 2>& sums, const std::int64_t* keys, std::int64_t n, const T* w,
                            const View<T, 2>& rows) {
  constexpr std::int64_t kVecs = 2, kStep = kVecs * kLanes<T>;
  const std::int64_t columns = sums.shape[1], stride = rows.strides[0], K = rows.shape[0];
  for_register_tiles(n, [&](auto tile, std::int64_t first) HWY_ATTR {
    T* to[tile];
    for (std::int64_t m = 0; m < tile; ++m) to[m] = sums.at(keys[first + m]);
    std::int64_t x = 0;
    for (; x + kStep <= columns; x += kStep) add_outer_tile<tile, kVecs>(to, x, w + first, rows.data, stride, K);
    for (; x < columns; x += kLanes<T>) add_outer_tile<tile, 1>(to, x, w + first, rows.data, stride, K);
  });
}

/// Computes the tasks of one thread in the backward pass.
template <typename T, typename E>
class ListedBackwardWorker {
 public:
  using Plan = ListedBackwardPlan<T>;

  ListedBackwardWorker(const Plan& plan, const ListedBackwardBuffers<T, E>& shared, int thread)
      : plan_(plan),
        p_(plan.p),
        shared_(shared),
        scratch_(place_buffers<ListedBackwardScratch<T, E>>(shared.scratch.at(thread), plan)) {}

  /// Selects a key/value head of a sequence for the following calls.
  void select(const Sequence& sequence, std::int64_t h_kv) {
    sequence_ = sequence;
    h_kv_ = h_kv;
    scratch_.k.select(rows_of_keys(p_, sequence_, h_kv_), p_.group);
    scratch_.v.select(rows_of_values(p_, sequence_, h_kv_), p_.group);
  }

  /// Clears dk and dv of a range of keys.
  void clear(std::int64_t range) const {
    const auto [j0, j1] = keys_of(range);
    for (const View<T, 2>* sums : {&shared_.dk, &shared_.dv}) {
      if (sums->count() > 0) std::fill_n(sums->at(j0), (j1 - j0) * sums->shape[1], T{0});
    }
  }

  /// Performs the first step for query i: computes its weights, ds and dq. `c` is the index of the query in the chunk.
  void run_query(std::int64_t c, std::int64_t i) {
    const std::int64_t* const keys = shared_.keys.at(c);
    const std::int64_t count = scratch_.collector.collect(shared_.keys.at(c), sequence_, h_kv_, i);
    find_ranges(shared_.starts.at(c), keys, count);
    prepare(c, i);
    const View<T, 2>& dq = scratch_.dq;
    std::fill_n(dq.data, dq.count(), T{0});
    for (std::int64_t n = 0; n < listed_blocks(count); ++n) {
      const ListedBlock block = ListedBlock::of(keys, count, n);
      multiply(scratch_.weights, scratch_.queries, scratch_.k, block);
      multiply(scratch_.ds, scratch_.gradients, scratch_.v, block);
      for (std::int64_t g = 0; g < p_.group; ++g) differentiate(c, i, g, n, block);
      if (!p_.gradients.dq.present()) continue;
      constexpr std::int64_t kAtOnce = 32;
      scratch_.k.visit_rows(block, [&](const auto& rows, std::int64_t first, std::int64_t size) {
        add_weighted_rows<kListedStride>(dq, scratch_.ds.range(1, first, size), rows, size, kAtOnce);
      });
    }
    for (std::int64_t g = 0; g < p_.group; ++g) {
      write_rows(query_rows(p_.gradients.dq, sequence_, head(g)), dq.range(0, g, 1), i, static_cast<T>(p_.scale),
                 scratch_.scaled.data);
    }
  }

  /// Performs the second step for a range of keys: adds the contributions of a chunk's queries to dk, dv and dbias.
  /// The chunk has `count` queries from query i0 on.
  void add_queries(std::int64_t range, std::int64_t i0, std::int64_t count) const {
    for (std::int64_t c = 0; c < count; ++c) {
      const std::int64_t end = shared_.starts(c, range + 1);
      for (std::int64_t at = shared_.starts(c, range); at < end;) {
        const std::int64_t block = at / kListedBlock, column = at % kListedBlock;
        const std::int64_t n = std::min(end - at, kListedBlock - column);
        const std::int64_t* const keys = shared_.keys.at(c, at);
        if (p_.gradients.dk.present()) {
          add_outer(shared_.dk, keys, n, shared_.ds.at(c, block, 0, column), shared_.q.sub(c));
        }
        if (p_.gradients.dv.present()) {
          add_outer(shared_.dv, keys, n, shared_.weights.at(c, block, 0, column), shared_.d_o.sub(c));
        }
        if (p_.gradients.dbias.present()) {
          add_dbias(i0 + c, keys, n, (plan_.keeps_unsloped ? shared_.unsloped : shared_.ds).at(c, block, 0, column));
        }
        at += n;
      }
    }
  }

  /// Writes dk and dv of a range of keys to the caller's tensors.
  void write(std::int64_t range) const {
    const auto [j0, j1] = keys_of(range);
    const auto write_sums = [&, j0 = j0, j1 = j1](const TensorView& to, const View<T, 2>& sums, T factor) {
      if (!to.present()) return;
      write_rows(key_rows(to, sequence_, h_kv_), sums.range(0, j0, j1 - j0), j0, factor, scratch_.scaled.data);
    };
    write_sums(p_.gradients.dk, shared_.dk, static_cast<T>(p_.scale));
    write_sums(p_.gradients.dv, shared_.dv, T{1});
  }

  /// Clears row n of dbias, or of the copy of dbias. Rows are numbered by batch, then head, then query.
  void clear_dbias_row(std::int64_t n) const {
    const HeadRows to(shared_.dbias, batch_of(n), head_of(n));
    const T zeros[kListedBlock] = {};
    for (std::int64_t j = 0; j < to.cols; j += kListedBlock)
      store_row(to, zeros, query_of(n), j, std::min(kListedBlock, to.cols - j));
  }
  /// Rounds row n of the copy of dbias, and writes it to the caller's dbias.
  void write_dbias_row(std::int64_t n) const {
    const HeadRows from(shared_.dbias, batch_of(n), head_of(n)), to(p_.gradients.dbias, batch_of(n), head_of(n));
    store_row(to, static_cast<const T*>(from.template at<T>(query_of(n), 0, from.cols)), query_of(n), 0, to.cols);
  }

 private:
  struct Keys {
    std::int64_t begin, end;
  };

  std::int64_t head(std::int64_t g) const { return h_kv_ * p_.group + g; }
  Keys keys_of(std::int64_t range) const {
    return {range * plan_.range_keys, std::min((range + 1) * plan_.range_keys, sequence_.S)};
  }
  std::int64_t batch_of(std::int64_t n) const { return n / (shared_.dbias.shape[1] * shared_.dbias.shape[2]); }
  std::int64_t head_of(std::int64_t n) const { return n / shared_.dbias.shape[2] % shared_.dbias.shape[1]; }
  std::int64_t query_of(std::int64_t n) const { return n % shared_.dbias.shape[2]; }

  /// For each range of keys, stores in `starts` how many of the listed keys precede the range.
  void find_ranges(std::int64_t* starts, const std::int64_t* keys, std::int64_t count) const {
    std::int64_t at = 0;
    const std::int64_t ranges = divide_up(sequence_.S, plan_.range_keys);
    for (std::int64_t range = 0; range < ranges; ++range) {
      starts[range] = at;
      while (at < count && keys[at] < (range + 1) * plan_.range_keys) ++at;
    }
    starts[ranges] = count;
  }

  /// Prepares query i, which is query number c of the chunk. Writes dgate of the query.
  /// Packs its q and d_o for the first step, which computes weights and gradients.
  /// Stores q and d_o for the second step, which sums dk and dv.
  void prepare(std::int64_t c, std::int64_t i) {
    for (std::int64_t g = 0; g < p_.group; ++g) {
      double sink_term = 0;
      prepare_row(p_, scratch_, QueryRows(p_, sequence_, head(g)), i, shared_.d_o.at(c, g), &scratch_.lse(g),
                  &scratch_.lse_error(g), &scratch_.delta(g), &sink_term);
      shared_.sink_terms(c, g) = sink_term;
      T* const q = shared_.q.at(c, g);
      load_row(q, query_rows(p_.inputs.q, sequence_, head(g)), i, 0, p_.D);
      std::fill(q + p_.D, q + plan_.D_padded, T{0});
    }
    const auto rows_of = [&](const View<T, 2>& rows, std::int64_t columns) {
      const ConstTensorView view{rows.data, dtype_of<T>(), {1, 1, p_.group, columns}, {0, 0, rows.strides[0], 1}};
      return [rows = HeadRows<const void>(view, 0, 0)](std::int64_t g) { return QueryRow{rows, g}; };
    };
    scratch_.queries.pack(p_.group, plan_.rules.query_factor(), rows_of(shared_.q.sub(c), p_.D));
    scratch_.gradients.pack(p_.group, T{1}, rows_of(shared_.d_o.sub(c), p_.Dv));
  }

  /// Computes to(g, j) = (row g of `left`) · (row j of the block), for all heads g of the group.
  /// `right` has the rows of the block.
  void multiply(const View<T, 2>& to, const WideQueries<T>& left, const ListedRows<T, E>& right,
                const ListedBlock& block) const {
    right.visit_rows(block, [&](const auto& rows, std::int64_t first, std::int64_t n) {
      left.template score<kListedStride>(to.range(1, first, n), rows, n);
    });
  }

  /// Turns the scores and dP of head g into P ∘ M and ds, where M are the dropout factors.
  /// Copies P ∘ M and ds to the buffers for the second step.
  void differentiate(std::int64_t c, std::int64_t i, std::int64_t g, std::int64_t number,
                     const ListedBlock& block) const {
    const Tag<T> d;
    const std::int64_t n = block.count, padded = round_up(n, kLanes<T>);
    T* HWY_RESTRICT p = scratch_.weights.at(g);
    T* HWY_RESTRICT ds = scratch_.ds.at(g);
    const bool capped = plan_.rules.capped();
    if (plan_.rules.any()) {
      plan_.rules.apply_listed(p, capped ? scratch_.slope.data : nullptr, sequence_, head(g), i, block.keys, n,
                               scratch_.rule_row.data);
    }
    std::fill(p + n, p + padded, -std::numeric_limits<T>::infinity());
    std::fill(ds + n, ds + padded, T{0});
    const auto lse = hn::Set(d, scratch_.lse(g));
    for (std::int64_t j = 0; j < padded; j += kLanes<T>)
      hn::Store(exp2_fast(d, hn::Sub(hn::Load(d, p + j), lse)), d, p + j);
    if (has_coarse_lse(scratch_.lse(g))) correct_weights(p, n, scratch_.lse_error(g));
    if (plan_.dropout.any()) {
      T* HWY_RESTRICT factors = scratch_.factors.data;
      plan_.dropout.factors_of(factors, sequence_, head(g), i, block.keys, n);
      std::fill(factors + n, factors + padded, T{0});
      for (std::int64_t j = 0; j < padded; j += kLanes<T>) {
        const auto factor = hn::Load(d, factors + j);
        hn::Store(zero_where_zero(d, factor, hn::Mul(factor, hn::Load(d, ds + j))), d, ds + j);
      }
    }
    const auto delta = hn::Set(d, scratch_.delta(g));
    for (std::int64_t j = 0; j < padded; j += kLanes<T>) {
      const auto weight = hn::Load(d, p + j);
      hn::Store(zero_where_zero(d, weight, hn::Mul(weight, hn::Sub(hn::Load(d, ds + j), delta))), d, ds + j);
    }
    if (plan_.dropout.any()) {
      for (std::int64_t j = 0; j < n; ++j) p[j] *= scratch_.factors(j);
    }
    std::copy_n(p, n, shared_.weights.at(c, number, g));
    if (plan_.keeps_unsloped) std::copy_n(ds, n, shared_.unsloped.at(c, number, g));
    for (std::int64_t j = 0; capped && j < n; ++j) ds[j] *= scratch_.slope(j);
    std::copy_n(ds, n, shared_.ds.at(c, number, g));
  }

  /// Adds ds of query i to dbias for n keys. Several heads of the group may add to the same row of dbias.
  /// The row stride of ds is kListedStride.
  void add_dbias(std::int64_t i, const std::int64_t* keys, std::int64_t n, const T* HWY_RESTRICT ds) const {
    const Shape& shape = shared_.dbias.shape;
    for (std::int64_t g = 0; g < p_.group; ++g, ds += kListedStride) {
      const HeadRows to(shared_.dbias, shape[0] == 1 ? 0 : sequence_.b, shape[1] == 1 ? 0 : head(g));
      const std::int64_t row = plan_.dbias_over_queries ? 0 : sequence_.q0 + i;
      T* HWY_RESTRICT sums = to.template at<T>(row, sequence_.k0, sequence_.S);
      for (std::int64_t j = 0; j < n; ++j) sums[keys[j] * to.stride] += ds[j];
    }
  }

  const Plan& plan_;
  const BackwardProblem& p_;
  const ListedBackwardBuffers<T, E>& shared_;
  ListedBackwardScratch<T, E> scratch_;
  Sequence sequence_;
  std::int64_t h_kv_ = 0;
};

/// Adds the contributions of a chunk's queries to dsinks. There is one sum per query tile.
template <typename T, typename E>
void add_sink_terms(const ListedBackwardPlan<T>& plan, const ListedBackwardBuffers<T, E>& shared,
                    std::int64_t tiles_before, std::int64_t h_kv, std::int64_t i0, std::int64_t count) {
  for (std::int64_t c = 0; c < count; ++c) {
    for (std::int64_t g = 0; g < plan.p.group; ++g) {
      double& part = plan.sink_parts(tiles_before + (i0 + c) / kQueryTile, h_kv * plan.p.group + g);
      part = ((i0 + c) % kQueryTile == 0 ? 0.0 : part) + shared.sink_terms(c, g);
    }
  }
}

template <typename T, typename E>
void run_listed_backward(const ListedBackwardPlan<T>& plan, const ListedBackwardBuffers<T, E>& shared) {
  const BackwardProblem& p = plan.p;
  Cancellation cancellation(p.context);
  const Shape& dbias = shared.dbias.shape;
  const std::int64_t bias_rows = shared.dbias.present() ? dbias[0] * dbias[1] * dbias[2] : 0;
  run_team(plan.threads, [&](const Team& team) {
    ListedBackwardWorker<T, E> worker(plan, shared, team.thread());
    const auto each = [&](std::int64_t count, const auto& visit) {
      team.in_turn(count, [&](std::int64_t n) {
        if (!cancellation.requested()) visit(n);
      });
    };
    team.in_parts(bias_rows, [&](std::int64_t n) { worker.clear_dbias_row(n); });
    for (std::int64_t n = 0; n < plan.list.size() * p.Hkv; ++n) {
      const ListedSequence& listed = plan.list[n / p.Hkv];
      const Sequence sequence = p.sequence(listed.number);
      const std::int64_t h_kv = n % p.Hkv, ranges = divide_up(sequence.S, plan.range_keys);
      worker.select(sequence, h_kv);
      each(ranges, [&](std::int64_t range) { worker.clear(range); });
      for (std::int64_t i0 = 0; i0 < sequence.T; i0 += plan.chunk) {
        const std::int64_t count = std::min(plan.chunk, sequence.T - i0);
        each(count, [&](std::int64_t c) { worker.run_query(c, i0 + c); });
        each(ranges, [&](std::int64_t range) { worker.add_queries(range, i0, count); });
        if (plan.sink_parts.present()) {
          team.once([&] { add_sink_terms(plan, shared, listed.tiles_before, h_kv, i0, count); });
        }
      }
      each(ranges, [&](std::int64_t range) { worker.write(range); });
    }
    team.in_parts(plan.dbias_copied ? bias_rows : 0, [&](std::int64_t n) { worker.write_dbias_row(n); });
  });
  cancellation.throw_if_seen();
}

template <typename T>
void listed_backward_typed(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                           WorkSlot& slot) {
  with_stored_type<T, false>(problem.inputs.k.dtype, [&]<typename E>() {
    slot.emplace<PlannedKernel<ListedBackwardPlan<T>, ListedBackwardBuffers<T, E>, run_listed_backward<T, E>>>(
        problem, list, sink_parts);
  });
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(listed_backward_typed);

void listed_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                     WorkSlot& slot) {
  HEADGATE_FOR_DTYPE(listed_backward_typed, problem.inputs.q.dtype, problem.context.target)
  (problem, sink_parts, list, slot);
}

}  // namespace headgate
#endif  // HWY_ONCE
