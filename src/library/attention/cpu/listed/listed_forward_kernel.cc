// SPDX-License-Identifier: Apache-2.0
// Computes the forward pass with lists of keys. A row of work is one query of one key/value head. The query heads of
// its group share the list, and read the listed rows of k and v in place. A list is cut into blocks of kListedBlock
// keys. Each block has its own softmax, and blocks are merged in order.
//
// If a call has few rows, threads share the blocks of a row. Results are bitwise identical either way.

#include <algorithm>
#include <cmath>
#include <limits>

#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/cpu/kernels.hpp"
#include "library/attention/cpu/listed/listed_keys.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/attention/cpu/listed/listed_forward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Per-target headers must follow foreach_target.h.
#include "library/attention/cpu/common/dropout-inl.hpp"
#include "library/attention/cpu/common/open_rows-inl.hpp"
#include "library/attention/cpu/common/output_rows-inl.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/scores-inl.hpp"
#include "library/attention/cpu/decode/packed_queries-inl.hpp"
#include "library/attention/cpu/decode/row_weights-inl.hpp"
#include "library/attention/cpu/decode/stored_rows-inl.hpp"
#include "library/attention/cpu/listed/listed_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// One sequence, and the number of its first row. A row is one query in all query heads of one key/value head.
/// Query i of key/value head h_kv is row first_row + h_kv · T + i of the call.
struct ListedSequenceRows {
  Sequence sequence;
  std::int64_t first_row = 0;
};

template <typename T>
struct ListedForwardPlan {
  ListedForwardPlan(const ForwardProblem& problem, const WorkList& sequences)
      : p(problem),
        list(sequences),
        rules(problem),
        dropout(problem),
        Dv_padded(round_up(p.Dv, kLanes<T>)),
        key_room(room_for_listed_keys(problem)),
        most_blocks(listed_blocks(key_room - 1)) {
    for (std::int64_t i = 0; i < list.size(); ++i) rows += p.Hkv * p.sequence(list[i].number).T;
    constexpr std::int64_t kFewRows = 4;  // per thread
    constexpr double kMostShared_bytes = std::int64_t{64} << 20;
    const double shared_bytes = static_cast<double>(rows) * static_cast<double>(most_blocks) *
                                static_cast<double>(p.group * Dv_padded) * sizeof(T);
    shares_rows = p.context.threads > 1 && most_blocks > 1 && rows < kFewRows * p.context.threads &&
                  shared_bytes <= kMostShared_bytes;
    const std::int64_t tasks = shares_rows ? rows * most_blocks : rows;
    threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, p.context.threads));
  }

  const ForwardProblem& p;
  WorkList list;
  ScoreRules<T> rules;
  Dropout<T> dropout;
  std::int64_t Dv_padded;
  std::int64_t key_room;     ///< room for one list of keys, in elements
  std::int64_t most_blocks;  ///< largest number of blocks in a list
  std::int64_t rows = 0;     ///< number of rows (queries times key/value heads) of the call
  bool shares_rows = false;  ///< true if several threads share the blocks of each row
  int threads = 1;
};

/// Softmax of one query over some of its keys, for each query head that reads one key/value head.
template <typename T>
struct ListedSoftmax {
  T *maxima, *sums;  ///< maximum score times log2(e), or −∞ without keys; Σ exp2(s − maximum)
  View<T, 2> out;    ///< Σ exp2(s − maximum) v, (group, Dv_padded)
};

/// Scratch buffers of one thread.
template <typename T, typename E>
struct ListedForwardScratch {
  ListedForwardScratch(Workspace& ws, const ListedForwardPlan<T>& plan)
      : collector(ws, plan.p), queries(ws, plan.p.group, plan.p.D), k(ws, plan.p.D), v(ws, plan.p.Dv) {
    keys = ws.take<std::int64_t>("listed keys", plan.key_room);
    heads = ws.take<std::int64_t>("open heads", plan.p.group);
    scores = ws.take<T>("scores", plan.p.group, kListedStride);
    maxima = ws.take<T>("maxima", 2, plan.p.group);
    sums = ws.take<T>("sums", 2, plan.p.group);
    largest = ws.take<T>("largest scores", plan.p.group);
    out = ws.take<T>("out", 2, plan.p.group, plan.Dv_padded);
    gate = ws.take<T>("gate", plan.Dv_padded);
    gated = ws.take<T>("gated", plan.Dv_padded);
    factors = ws.take<T>("scales and factors", 3, kListedBlock);
    if (plan.rules.any()) rule_row = ws.take<T>("rule rows", 2 * kListedBlock);
  }

  KeyCollector collector;
  WideQueries<T> queries;
  ListedRows<T, E> k, v;
  View<std::int64_t, 1> keys;   ///< listed keys of the row
  View<std::int64_t, 1> heads;  ///< open query heads of the group, which the gate threshold does not skip
  View<T, 2> scores;            ///< scores of a block, later the exponentials of the scores, (group, kListedStride)
  View<T, 2> maxima, sums;      ///< softmax(0) is the softmax of one block, softmax(1) of all blocks so far
  View<T, 3> out;
  View<T, 1> largest;      ///< largest score of each head, excluding the sink, times log2(e)
  View<T, 1> gate, gated;  ///< scratch for one query's gate logits and gated output
  View<T, 2> factors;      ///< scales of a block's keys, scales of its values, and dropout factors
  View<T, 1> rule_row;     ///< scratch for a row of bias or mask, and a row of key bias

  ListedSoftmax<T> softmax(std::int64_t n) const { return {maxima.at(n), sums.at(n), out.sub(n)}; }
};

/// Buffers shared by all threads.
template <typename T, typename E>
struct ListedForwardBuffers {
  ListedForwardBuffers(Workspace& ws, const ListedForwardPlan<T>& plan) {
    sequences = ws.take<ListedSequenceRows>("sequences", plan.list.size());
    if (plan.shares_rows) {
      const std::int64_t blocks = plan.most_blocks, group = plan.p.group;
      keys = ws.take<std::int64_t>("listed keys", plan.rows, plan.key_room);
      counts = ws.take<std::int64_t>("list lengths", plan.rows);
      maxima = ws.take<T>("maxima", plan.rows, blocks, group);
      sums = ws.take<T>("sums", plan.rows, blocks, group);
      out = ws.take<T>("out by block", plan.rows * blocks, group, plan.Dv_padded);
    }
    scratch = ws.take<std::byte>("threads", plan.threads, count_bytes<ListedForwardScratch<T, E>>(plan));
  }

  View<ListedSequenceRows, 1> sequences;
  // keys, counts, maxima, sums and out are used only if threads share rows.
  // They hold the listed keys of each row, and the softmax of each block of these keys.
  View<std::int64_t, 2> keys;
  View<std::int64_t, 1> counts;
  View<T, 3> maxima, sums, out;
  View<std::byte, 2> scratch;

  ListedSoftmax<T> softmax(std::int64_t row, std::int64_t block) const {
    return {maxima.at(row, block), sums.at(row, block), out.sub(row * maxima.shape[1] + block)};
  }
};

/// Computes the tasks of one thread in the forward pass.
template <typename T, typename E>
class ListedForwardWorker {
 public:
  using Plan = ListedForwardPlan<T>;
  using Softmax = ListedSoftmax<T>;

  ListedForwardWorker(const Plan& plan, const ListedForwardBuffers<T, E>& shared, int thread)
      : plan_(plan),
        p_(plan.p),
        shared_(shared),
        scratch_(place_buffers<ListedForwardScratch<T, E>>(shared.scratch.at(thread), plan)) {}

  /// Computes row n and writes its outputs.
  void run_row(std::int64_t n) {
    select(n);
    const std::int64_t count = scratch_.collector.collect(scratch_.keys.data, sequence_, h_kv_, i_);
    const Softmax block = scratch_.softmax(0);
    finish(scratch_.keys.data, count, [&](std::int64_t number) {
      run_block(ListedBlock::of(scratch_.keys.data, count, number), block);
      return block;
    });
  }

  // The next three functions are for threads that share the blocks of a row. The threads call them one after another.
  // All threads must have finished one function before any thread calls the next.

  void collect(std::int64_t n) {
    locate_row(n);
    shared_.counts(n) = scratch_.collector.collect(shared_.keys.at(n), sequence_, h_kv_, i_);
  }
  void run_block_of(std::int64_t n, std::int64_t number) {
    if (number >= listed_blocks(shared_.counts(n))) return;
    if (n != row_) select(n);
    run_block(ListedBlock::of(shared_.keys.at(n), shared_.counts(n), number), shared_.softmax(n, number));
  }
  void finish_row(std::int64_t n) {
    select(n);
    finish(shared_.keys.at(n), shared_.counts(n), [&](std::int64_t number) { return shared_.softmax(n, number); });
  }

 private:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();

  /// Sets the sequence, key/value head and query of row n.
  void locate_row(std::int64_t n) {
    const ListedSequenceRows& each =
        find_owner(shared_.sequences.data, plan_.list.size(), &ListedSequenceRows::first_row, n);
    sequence_ = each.sequence;
    h_kv_ = (n - each.first_row) / sequence_.T;
    i_ = (n - each.first_row) % sequence_.T;
  }

  std::int64_t head(std::int64_t r) const { return h_kv_ * p_.group + scratch_.heads(r); }

  /// Selects row n, lists its open heads, which the gate threshold does not skip, and packs the queries of these heads.
  void select(std::int64_t n) {
    locate_row(n);
    row_ = n;
    open_ = 0;
    for (std::int64_t g = 0; g < p_.group; ++g) {
      const std::int64_t h = h_kv_ * p_.group + g;
      const auto open = [&](std::int64_t) { scratch_.heads(open_++) = g; };
      if (p_.gate_threshold > 0) {
        OpenRows<T>(p_, sequence_, h).visit(i_, 1, open, [](std::int64_t) {});
      } else {
        open(i_);
      }
    }
    if (open_ == 0) return;
    scores_ = scratch_.scores.range(0, 0, open_);
    scratch_.queries.pack(open_, plan_.rules.query_factor(), [&](std::int64_t r) {
      return QueryRow{query_rows(p_.inputs.q, sequence_, head(r)), i_};
    });
    scratch_.k.select(rows_of_keys(p_, sequence_, h_kv_), open_);
    scratch_.v.select(rows_of_values(p_, sequence_, h_kv_), open_);
  }

  /// Computes the scores of a block, times log2(e). Hidden keys, and the padding to whole vectors, get −∞.
  void score(const ListedBlock& block) const {
    scratch_.k.visit_rows(block, [&](const auto& rows, std::int64_t first, std::int64_t n) {
      scratch_.queries.template score<kListedStride>(scores_.range(1, first, n), rows, n);
    });
    const T* const scales = scratch_.k.scales(block, scratch_.factors.at(0));
    for (std::int64_t r = 0; r < open_; ++r) {
      T* HWY_RESTRICT s = scores_.at(r);
      for (std::int64_t j = 0; scales != nullptr && j < block.count; ++j) s[j] *= scales[j];
      if (plan_.rules.any()) {
        plan_.rules.apply_listed(s, nullptr, sequence_, head(r), i_, block.keys, block.count, scratch_.rule_row.data);
      }
      std::fill(s + block.count, s + round_up(block.count, kLanes<T>), kHidden);
    }
  }

  /// Computes the softmax over the keys of a block.
  void run_block(const ListedBlock& block, const Softmax& to) const {
    if (open_ == 0) return;
    score(block);
    const T* const scales = scratch_.v.scales(block, scratch_.factors.at(1));
    for (std::int64_t r = 0; r < open_; ++r) {
      const auto [max, sum] = scores_to_weights(scores_.at(r), block.count, static_cast<const T*>(nullptr), scales);
      to.maxima[r] = max;
      to.sums[r] = sum;
      if (plan_.dropout.any()) drop(block, r);
    }
    const View<T, 2> out = to.out.range(0, 0, open_);
    std::fill_n(out.data, out.count(), T{0});
    if (plan_.Dv_padded == 0) return;
    constexpr std::int64_t kAtOnce = 32;
    scratch_.v.visit_rows(block, [&](const auto& rows, std::int64_t first, std::int64_t n) {
      add_weighted_rows<kListedStride>(out, scores_.range(1, first, n), rows, n, kAtOnce);
    });
  }

  void drop(const ListedBlock& block, std::int64_t r) const {
    T* HWY_RESTRICT factors = scratch_.factors.at(2);
    plan_.dropout.factors_of(factors, sequence_, head(r), i_, block.keys, block.count);
    T* HWY_RESTRICT weights = scores_.at(r);
    for (std::int64_t j = 0; j < block.count; ++j) weights[j] *= factors[j];
  }

  /// Merges the softmaxes of all blocks of a row, and writes the outputs of all heads.
  /// softmax_of(n) returns the softmax of block n.
  template <class SoftmaxOf>
  void finish(const std::int64_t* keys, std::int64_t count, const SoftmaxOf& softmax_of) {
    write_closed();
    if (open_ == 0) return;
    const Softmax total = scratch_.softmax(1);
    for (std::int64_t r = 0; r < open_; ++r) {
      const T sink = p_.inputs.sinks.present() ? in_log2_units<T>(p_.sink(sequence_, head(r), i_)) : kHidden;
      total.maxima[r] = sink;
      scratch_.largest(r) = kHidden;
      total.sums[r] = sink == kHidden ? T{0} : T{1};
    }
    std::fill_n(total.out.data, total.out.count(), T{0});
    for (std::int64_t n = 0; n < listed_blocks(count); ++n) {
      const Softmax block = softmax_of(n);
      for (std::int64_t r = 0; r < open_; ++r) merge(total, block, r);
    }
    for (std::int64_t r = 0; r < open_; ++r) {
      OutputRows<T>(p_, sequence_, head(r), scratch_.gate, scratch_.gated)
          .write(i_, total.out.at(r), total.maxima[r], total.sums[r], scratch_.largest(r));
    }
    if (p_.outputs.weights.present()) write_weights(keys, count, total);
  }

  void merge(const Softmax& total, const Softmax& block, std::int64_t r) const {
    const T before = total.maxima[r], max = std::max(before, block.maxima[r]);
    // If the maximum of a block is −∞, its sum and output are 0, or NaN if a score is NaN.
    // The factor 1 preserves both. exp2(−∞ − (−∞)) would be NaN.
    const T keep = before == kHidden ? T{1} : std::exp2(before - max);
    const T add = block.maxima[r] == kHidden ? T{1} : std::exp2(block.maxima[r] - max);
    total.maxima[r] = max;
    scratch_.largest(r) = std::max(scratch_.largest(r), block.maxima[r]);
    total.sums[r] = keep * total.sums[r] + add * block.sums[r];
    const Tag<T> d;
    const auto kept = hn::Set(d, keep), added = hn::Set(d, add);
    T* HWY_RESTRICT to = total.out.at(r);
    const T* HWY_RESTRICT from = block.out.at(r);
    for (std::int64_t x = 0; x < plan_.Dv_padded; x += kLanes<T>) {
      hn::Store(hn::MulAdd(added, hn::Load(d, from + x), hn::Mul(kept, hn::Load(d, to + x))), d, to + x);
    }
  }

  /// Writes the outputs of closed heads, which the gate threshold skips.
  void write_closed() const {
    for (std::int64_t g = 0, r = 0; g < p_.group && open_ < p_.group; ++g) {
      if (r < open_ && scratch_.heads(r) == g) {
        ++r;
      } else {
        OutputRows<T>(p_, sequence_, h_kv_ * p_.group + g, scratch_.gate, scratch_.gated).write_closed(i_);
      }
    }
  }

  /// Writes the weights of all keys. Keys that the row does not see get 0. Computes the scores again.
  void write_weights(const std::int64_t* keys, std::int64_t count, const Softmax& total) const {
    for (std::int64_t r = 0; r < open_; ++r) {
      const HeadRows all = query_rows(p_.outputs.weights, sequence_, head(r));
      const T zeros[kListedBlock] = {};
      for (std::int64_t j = 0; j < all.cols; j += kListedBlock)
        store_row(all, zeros, i_, j, std::min(kListedBlock, all.cols - j));
    }
    for (std::int64_t n = 0; n < listed_blocks(count); ++n) {
      const ListedBlock block = ListedBlock::of(keys, count, n);
      score(block);
      for (std::int64_t r = 0; r < open_; ++r) {
        const Tag<T> d;
        T* HWY_RESTRICT s = scores_.at(r);
        const auto shift = hn::Set(d, total.maxima[r] == kHidden ? T{0} : total.maxima[r]);
        const auto inverse = hn::Set(d, total.sums[r] == T{0} ? T{0} : T{1} / total.sums[r]);
        for (std::int64_t j = 0; j < block.count; j += kLanes<T>)
          hn::Store(hn::Mul(inverse, exp2_fast(d, hn::Sub(hn::Load(d, s + j), shift))), d, s + j);
        if (plan_.dropout.any()) drop(block, r);
        const HeadRows to = map_rows(p_.outputs.weights, sequence_, head(r));
        for (std::int64_t j = 0; j < block.count; ++j) store_row(to, s + j, i_, block.keys[j], 1);
      }
    }
  }

  const Plan& plan_;
  const ForwardProblem& p_;
  const ListedForwardBuffers<T, E>& shared_;
  ListedForwardScratch<T, E> scratch_;
  Sequence sequence_;
  std::int64_t row_ = -1, h_kv_ = 0, i_ = 0;
  std::int64_t open_ = 0;  // number of open query heads of the row, which the gate threshold does not skip
  View<T, 2> scores_;      // part of scratch_.scores, with one row per open query head
};

template <typename T, typename E>
void run_listed_forward(const ListedForwardPlan<T>& plan, const ListedForwardBuffers<T, E>& shared) {
  std::int64_t first_row = 0;
  for (std::int64_t i = 0; i < plan.list.size(); ++i) {
    shared.sequences(i) = {plan.p.sequence(plan.list[i].number), first_row};
    first_row += plan.p.Hkv * shared.sequences(i).sequence.T;
  }
  Cancellation cancellation(plan.p.context);
  run_team(plan.threads, [&](const Team& team) {
    ListedForwardWorker<T, E> worker(plan, shared, team.thread());
    const auto each = [&](std::int64_t count, const auto& visit) {
      team.in_turn(count, [&](std::int64_t n) {
        if (!cancellation.requested()) visit(n);
      });
    };
    if (!plan.shares_rows) return each(plan.rows, [&](std::int64_t n) { worker.run_row(n); });
    each(plan.rows, [&](std::int64_t n) { worker.collect(n); });
    each(plan.rows * plan.most_blocks,
         [&](std::int64_t n) { worker.run_block_of(n / plan.most_blocks, n % plan.most_blocks); });
    each(plan.rows, [&](std::int64_t n) { worker.finish_row(n); });
  });
  cancellation.throw_if_seen();
}

template <typename T>
void listed_forward_typed(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot) {
  with_stored_type<T, true>(problem.inputs.k.dtype, [&]<typename E>() {
    slot.emplace<PlannedKernel<ListedForwardPlan<T>, ListedForwardBuffers<T, E>, run_listed_forward<T, E>>>(problem,
                                                                                                            list);
  });
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(listed_forward_typed);

void listed_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot) {
  HEADGATE_FOR_DTYPE(listed_forward_typed, problem.inputs.q.dtype, problem.context.target)(problem, list, slot);
}

}  // namespace headgate
#endif  // HWY_ONCE
