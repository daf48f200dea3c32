// SPDX-License-Identifier: Apache-2.0
// Runs the recurrence of the forward pass token by token, on some columns of one state at a time. Included once per
// Highway target.
#if defined(HEADGATE_LINEAR_FORWARD_SCAN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_FORWARD_SCAN_INL_
#undef HEADGATE_LINEAR_FORWARD_SCAN_INL_
#else
#define HEADGATE_LINEAR_FORWARD_SCAN_INL_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "library/core/cancellation.hpp"
#include "library/core/workspace.hpp"
#include "library/linear_attention/cpu/decode_step-inl.hpp"
#include "library/linear_attention/cpu/scan_operands-inl.hpp"
#include "library/linear_attention/cpu/state_rows-inl.hpp"
#include "library/linear_attention/cpu/state_tasks-inl.hpp"
#include "library/linear_attention/problem.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// The states in row n of a tensor, which belong to one sequence or snapshot. operator() returns the state of head h.
template <typename Void>
struct StatesIn {
  BasicTensorView<Void> tensor;
  std::int64_t n;
  HeadRows<Void> operator()(std::int64_t h) const { return {tensor, n, h}; }
};
using States = StatesIn<void>;
using ConstStates = StatesIn<const void>;

/// Calls visit(part, old_states, new_states) for each part of sequence n, in order. A part ends at each snapshot.
/// visit() reads the states before the part from `old_states`, and writes the states after it to `new_states`.
template <class Visit>
void for_parts(const LinearForwardProblem& p, std::int64_t n, Cancellation& cancellation, const Visit& visit) {
  const TokenRange s = p.sequence(n);
  ConstStates old_states{p.inputs.state, s.n};
  std::int64_t from = 0;
  for (std::int64_t m = 0; m < p.snapshots() && !cancellation.requested(m, kChunk); ++m) {
    const std::int64_t to = snapshot_length(p.inputs.snapshot_lengths, s.n, m);
    const States snapshot{p.outputs.snapshots, s.n * p.snapshots() + m};
    visit(TokenRange{s.n, s.b, s.t0 + from, to - from}, old_states, snapshot);
    old_states = {snapshot.tensor, snapshot.n};
    from = to;
  }
  visit(TokenRange{s.n, s.b, s.t0 + from, s.T - from}, old_states, States{p.outputs.state, s.n});
}

/// Scratch buffers of one thread.
template <typename T>
struct LinearForwardBuffers {
  LinearForwardBuffers(Workspace& ws, const LinearProblem& p, std::int64_t heads)
      : factors(ws, p),
        states(ws.take<T>("state", heads, padded_dim<T>(p.D) * padded_dim<T>(p.Dv))),
        keys_times_f(ws.take<T>("operands", kChunk, padded_dim<T>(p.D))),
        keys_over_f(ws.take<T>("operands", p.has_decay() ? kChunk : 0, padded_dim<T>(p.D))),
        queries(ws.take<T>("operands", p.heads_per_state(), kChunk, padded_dim<T>(p.D))),
        values(ws.take<T>("operands", kChunk, padded_dim<T>(p.Dv))),
        betas(ws.take<T>("operands", kChunk)),
        pair_dots(ws.take<T>("operands", kChunk)),
        outputs(ws.take<T>("outputs", p.heads_per_state(), kChunk, padded_dim<T>(p.Dv))) {}

  DecayFactors<T> factors;
  View<T, 2> states;        ///< for each head of a task, the column blocks of the head's state
  View<T, 2> keys_times_f;  ///< (kChunk,D) k times F, from times_before(); prepare_pairs() rescales some rows
  /// (kChunk,D) k divided by F, from DecayFactors::times_inverse(). Empty without decay: `keys_times_f` then has the
  /// same values.
  View<T, 2> keys_over_f;
  View<T, 3> queries;  ///< (R,kChunk,D) scale · q times F, from DecayFactors::times_after()
  View<T, 2> values;   ///< (kChunk,Dv)
  View<T, 1> betas;    ///< (kChunk)
  /// (kChunk): for odd n, element n is the dot product of row n of `keys_times_f` and row n − 1 of `keys_over_f`
  View<T, 1> pair_dots;
  View<T, 3> outputs;  ///< (R,kChunk,Dv)
};

/// Computes the forward pass for the tasks of one thread.
template <typename T>
class LinearForwardWorker {
 public:
  LinearForwardWorker(const LinearForwardProblem& p, std::int64_t heads, std::byte* memory)
      : p_(p),
        D_(padded_dim<T>(p.D)),
        heads_per_state_(p.heads_per_state()),
        buffers_(place_buffers<LinearForwardBuffers<T>>(memory, static_cast<const LinearProblem&>(p), heads)) {}

  /// Computes the column blocks [task.first, task.end) of the task's states, and the same columns of y, for all tokens
  /// of a sequence.
  void run(const StateTask& task, Cancellation& cancellation) {
    for_parts(p_, task.n, cancellation,
              [&](const TokenRange& s, const ConstStates& old_states, const States& new_states)
                  HWY_ATTR { run_part(task, s, old_states, new_states, cancellation); });
  }

  /// Computes the task's column blocks for the tokens `s`, one part of a sequence. Reads the states before the part
  /// from `old_states`, and writes the states after it to `new_states`. Computes a chunk of tokens for all heads before
  /// the next chunk.
  void run_part(const StateTask& task, const TokenRange& s, const ConstStates& old_states, const States& new_states,
                Cancellation& cancellation) {
    if (s.T == 0 && !new_states.tensor.present()) return;
    const bool one_step = s.T == 1 && heads_per_state_ == 1 && DecodeStep<T>::supports(p_.Dv, old_states(task.h));
    for (std::int64_t i = 0; i < task.heads; ++i) {
      if (one_step) {
        step(task.head(i), s, old_states(task.h + i), new_states(task.h + i));
        continue;
      }
      for_blocks(task, i, [&](auto block, const StateColumns& columns, std::int64_t /*n*/) HWY_ATTR {
        load_block(block, old_states(task.h + i), columns);
      });
    }
    if (one_step) return;
    for (std::int64_t t = 0; t < s.T && !cancellation.requested(); t += kChunk) {
      for (std::int64_t i = 0; i < task.heads; ++i)
        run_chunk(task.head(i), i, s, {t, std::min(kChunk, s.T - t), Direction::forward});
    }
    for (std::int64_t i = 0; new_states.tensor.present() && i < task.heads; ++i) {
      for_blocks(task, i, [&](auto block, const StateColumns& columns, std::int64_t /*n*/) HWY_ATTR {
        store_block(new_states(task.h + i), block, columns);
      });
    }
  }

 private:
  /// Calls visit(block, columns, index) for each column block of the state of a task's i-th head.
  template <class Visit>
  HWY_INLINE void for_blocks(const StateTask& task, std::int64_t i, const Visit& visit) {
    for_state_blocks(buffers_.states.at(i), D_, p_.Dv, task, visit);
  }

  /// Computes a chunk of tokens for `task`, which has one head. buffers_.states.at(i) holds the state of this head.
  void run_chunk(const StateTask& task, std::int64_t i, const TokenRange& s, const Chunk& chunk) {
    pack(task, s, chunk);
    for_blocks(task, i, [&](auto block, const StateColumns& columns, std::int64_t /*n*/) HWY_ATTR {
      scan(block, columns, chunk);
    });
    if (!p_.outputs.y.present()) return;
    const StateColumns all = task_columns<T>(task, p_.Dv);
    for (std::int64_t r = 0; r < heads_per_state_; ++r) {
      const HeadRows<void> y = token_rows(p_.outputs.y, s, task.h * heads_per_state_ + r);
      for (std::int64_t n = 0; n < chunk.count; ++n) {
        prefetch_ahead(y, chunk, n);
        store_row(y, buffers_.outputs.at(r, n, all.first), chunk.token(n), all.first, all.count);
      }
    }
  }

  /// Computes a part of a sequence with a single token, by DecodeStep.
  void step(const StateTask& task, const TokenRange& s, const HeadRows<const void>& old_state,
            const HeadRows<void>& new_state) {
    const DecayFactors<T>& factors = buffers_.factors;
    const Chunk chunk{0, 1, Direction::forward};
    if (factors.present()) factors.make(token_rows(p_.inputs.decay, s, task.h), chunk);
    T* const read = buffers_.keys_times_f.at(0);
    T* const key = factors.present() ? buffers_.keys_over_f.at(0) : read;
    load_normalised(key, token_rows(p_.inputs.k, s, p_.key_head(task.h)), chunk, 0, D_, p_, T{1});
    factors.times_before(read, key, 0, D_);
    load_normalised(buffers_.queries.at(0, 0), token_rows(p_.inputs.q, s, p_.query_head(task.h)), chunk, 0, D_, p_,
                    static_cast<T>(p_.scale));
    load_rows(buffers_.values, token_rows(p_.inputs.v, s, task.h), chunk);
    load_betas(buffers_.betas, p_, s, task.h, chunk);
    const DecodeToken<T> token{read,
                               key,
                               buffers_.queries.at(0, 0),
                               factors.present() ? factors.before(0) : nullptr,
                               factors.by_feature(),
                               buffers_.values.at(0),
                               buffers_.betas(0),
                               p_.has_delta};
    const StateColumns columns = task_columns<T>(task, p_.Dv);
    T* const y = buffers_.outputs.at(0, 0);
    const DecodeStep<T> decode(token, columns, y, buffers_.outputs.at(0, 1));
    if (DecodeStep<T>::is_dense(new_state)) {
      decode.run(old_state, p_.D, new_state.template at<T>(0, 0, p_.Dv), new_state.row_stride);
    } else if (!new_state.present()) {
      decode.run(old_state, p_.D, nullptr, 0);
    } else {
      T* const state = buffers_.states.data;
      decode.run(old_state, p_.D, state, p_.Dv);
      for (std::int64_t i = 0; i < p_.D; ++i)
        store_row(new_state, state + i * p_.Dv + columns.first, i, columns.first, columns.count);
    }
    if (!p_.outputs.y.present()) return;
    store_row(token_rows(p_.outputs.y, s, task.h), y + columns.first, 0, columns.first, columns.count);
  }

  void pack(const StateTask& task, const TokenRange& s, const Chunk& chunk) {
    const DecayFactors<T>& factors = buffers_.factors;
    if (factors.present()) factors.make(token_rows(p_.inputs.decay, s, task.h), chunk);
    const HeadRows<const void> keys = token_rows(p_.inputs.k, s, p_.key_head(task.h));
    for (std::int64_t n = 0; n < chunk.count; ++n) {
      T* const read = buffers_.keys_times_f.at(n);
      load_normalised(read, keys, chunk, n, D_, p_, T{1});
      if (!factors.present()) continue;
      factors.times_inverse(buffers_.keys_over_f.at(n), read, n, D_);
      factors.times_before(read, read, n, D_);
    }
    for (std::int64_t r = 0; r < heads_per_state_; ++r) {
      const HeadRows<const void> queries = token_rows(p_.inputs.q, s, p_.query_head(task.h * heads_per_state_ + r));
      for (std::int64_t n = 0; n < chunk.count; ++n) {
        T* const query = buffers_.queries.at(r, n);
        load_normalised(query, queries, chunk, n, D_, p_, static_cast<T>(p_.scale));
        if (factors.present()) factors.times_after(query, query, n, D_);
      }
    }
    if (p_.has_delta && heads_per_state_ == 1) prepare_pairs(chunk);
    load_rows(buffers_.values, token_rows(p_.inputs.v, s, task.h), chunk);
    load_betas(buffers_.betas, p_, s, task.h, chunk);
  }

  /// Prepares a scan that takes two tokens at a time. Such a scan multiplies the state by both keys before the first
  /// token updates the state. Corrects the second product in two ways:
  ///   - If the first token rescales the state, multiplies the second key by the same factors.
  ///   - Saves the dot product of the two keys, with which run_tokens() takes the first token's update into account.
  void prepare_pairs(const Chunk& chunk) {
    const DecayFactors<T>& factors = buffers_.factors;
    const View<T, 2>& keys_over_f = factors.present() ? buffers_.keys_over_f : buffers_.keys_times_f;
    for (std::int64_t n = 1; n < chunk.count; n += 2) {
      T* const read = buffers_.keys_times_f.at(n);
      buffers_.pair_dots(n) = dot(keys_over_f.at(n - 1), read, D_);
      if (factors.rescales(n - 1)) factors.times_before(read, read, n - 1, D_);
    }
  }

  /// Applies the tokens of a chunk to one block of the state. Takes two tokens at a time, or one if several query heads
  /// read the state.
  template <std::int64_t kVectors>
  void scan(const StateBlock<T, kVectors>& block, const StateColumns& columns, const Chunk& chunk) {
    BlockRow<T, kVectors> returned[2];  // Sᵀ k of the next two tokens, computed before either token updates S
    if (p_.has_delta) {
      for (std::int64_t n = 0; n < std::min<std::int64_t>(2, chunk.count); ++n)
        returned[n] = read_block(block, buffers_.keys_times_f.at(n));
    }
    std::int64_t n = 0;
    if (heads_per_state_ == 1) {
      for (; n + 2 <= chunk.count; n += 2) visit<2>(block, columns, chunk, n, returned);
    }
    for (; n < chunk.count; ++n) visit<1>(block, columns, chunk, n, returned);
    rescaling_.finish(block);
  }

  /// Applies tokens [n, n + kTokens) to one block of the state. With the delta rule, the same pass also multiplies the
  /// block by the keys of the next two tokens.
  template <int kTokens, std::int64_t kVectors>
  HWY_INLINE void visit(const StateBlock<T, kVectors>& block, const StateColumns& columns, const Chunk& chunk,
                        std::int64_t n, BlockRow<T, kVectors>* returned) {
    const std::int64_t following = chunk.count - n - kTokens;
    if (p_.has_delta && following > 0) {
      Pass<kTokens, 1, 1, 2, T, kVectors> pass;
      for (std::int64_t k = 0; k < 2; ++k)
        pass.next[k] = buffers_.keys_times_f.at(n + kTokens + std::min(k, following - 1));
      run_tokens<kTokens>(pass, block, columns, n, returned);
      for (int k = 0; k < 2; ++k) returned[k] = pass.sums[k];
    } else {
      Pass<kTokens, 1, 1, 0, T, kVectors> pass;
      run_tokens<kTokens>(pass, block, columns, n, returned);
    }
  }

  /// Runs the pass for tokens [n, n + kTokens): sets its operands, runs it and stores the rows of y.
  template <int kTokens, class PassT, std::int64_t kVectors>
  HWY_INLINE void run_tokens(PassT& pass, const StateBlock<T, kVectors>& block, const StateColumns& columns,
                             std::int64_t n, const BlockRow<T, kVectors>* returned) {
    using Row = BlockRow<T, kVectors>;
    const View<T, 2>& keys_over_f = buffers_.factors.present() ? buffers_.keys_over_f : buffers_.keys_times_f;
    for (int t = 0; t < kTokens; ++t) {
      Row x = Row::load(buffers_.values.at(n + t, columns.first));
      if (p_.has_delta) {
        x.subtract(returned[t]);
        // returned[1] was computed before the first token updated the state. Subtracts the missing term from x.
        if (t == 1) x.add_product(pass.outer_products[0][0].x, hn::Set(Tag<T>(), -buffers_.pair_dots(n + 1)));
        x.multiply(hn::Set(Tag<T>(), buffers_.betas(n + t)));
      }
      pass.outer_products[t][0] = {keys_over_f.at(n + t), x};
      pass.out_operands[t] = buffers_.queries.at(0, n + t);
    }
    run_pass(pass, block, rescaling_.set(pass, n, kTokens));
    for (int t = 0; t < kTokens; ++t) pass.outs[t].store(buffers_.outputs.at(0, n + t, columns.first));
    for (std::int64_t r = 1; r < heads_per_state_; ++r)
      read_block(block, buffers_.queries.at(r, n)).store(buffers_.outputs.at(r, n, columns.first));
  }

  const LinearForwardProblem& p_;
  std::int64_t D_, heads_per_state_;
  LinearForwardBuffers<T> buffers_;
  BlockFactors<T> rescaling_{buffers_.factors};
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_FORWARD_SCAN_INL_
