// SPDX-License-Identifier: Apache-2.0
// Scans 1 and 2 of the backward pass (see backward_kernel.cc). The scans hold the states S and dS, (D,Dv), in blocks of
// columns. Columns are features of v. Included once per Highway target.
#if defined(HEADGATE_LINEAR_VALUE_SCANS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_VALUE_SCANS_INL_
#undef HEADGATE_LINEAR_VALUE_SCANS_INL_
#else
#define HEADGATE_LINEAR_VALUE_SCANS_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "library/core/cancellation.hpp"
#include "library/linear_attention/cpu/backward_plan-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

template <typename T>
class ValueScans {
 public:
  /// Prepares scans 1 and 2 of state g of the group. `scratch` is memory for the ScanBuffers of the calling thread.
  ValueScans(const LinearBackwardProblem& p, const StateGroup<T>& group, std::int64_t g, std::byte* scratch,
             Cancellation& cancellation)
      : p_(p),
        group_(group),
        cancellation_(cancellation),
        D_(padded_dim<T>(p.D)),
        heads_per_state_(p.heads_per_state()),
        chunks_(divide_up(group.s.T, kChunk)),
        b_(place_buffers<ScanBuffers<T>>(scratch, p)),
        rows_(p, group, g),
        g_(g),
        h_(group.state(p, g)) {}

  /// Runs scans 1 and 2 on a piece, which is a range of column blocks. Scan 1 computes the states S in the order of the
  /// tokens. Scan 2 computes their gradients dS in reverse.
  void run(const typename LinearBackwardPlan<T>::Piece& piece) {
    piece_ = piece;
    if (p_.has_delta || saves_states()) {
      load_states(p_.inputs.state);
      for (std::int64_t c = 0; c < chunks_ && !cancellation_.requested(); ++c)
        run_forward(chunk(c, Direction::forward));
    } else {
      copy_values();
    }
    load_states(p_.incoming.dstate);
    for (std::int64_t c = chunks_; c-- > 0 && !cancellation_.requested();) run_reverse(chunk(c, Direction::reverse));
    clear_padding();
    if (!p_.gradients.dstate.present()) return;
    for_blocks([&](auto block, const StateColumns& columns, std::int64_t /*n*/)
                   HWY_ATTR { store_block(HeadRows<void>(p_.gradients.dstate, group_.s.n, h_), block, columns); });
  }

 private:
  Chunk chunk(std::int64_t c, Direction direction) const {
    return {c * kChunk, std::min(kChunk, group_.s.T - c * kChunk), direction};
  }

  bool saves_states() const { return group_.buffers.states.shape[0] > 0; }

  /// Calls visit(block, columns, index) for each column block of the piece.
  template <class Visit>
  HWY_INLINE void for_blocks(const Visit& visit) {
    for_state_blocks(b_.state.data, D_, p_.Dv, piece_, visit);
  }

  void load_states(const ConstTensorView& states) {
    for_blocks([&](auto block, const StateColumns& columns, std::int64_t /*n*/)
                   HWY_ATTR { load_block(block, HeadRows<const void>(states, group_.s.n, h_), columns); });
  }

  StateColumns piece_columns() const { return task_columns<T>(piece_, p_.Dv); }

  /// Fills the columns after Dv with zeros, in the buffers that later scans read in whole vectors.
  void clear_padding() {
    const std::int64_t end = round_up(p_.Dv, std::max(kLanes<T>, kMostVectors));
    const StateColumns columns = piece_columns();
    if (end == p_.Dv || columns.first + columns.count < p_.Dv) return;
    const StateGroupBuffers<T>& to = group_.buffers;
    for (const View<T, 3>& rows : {to.differences, to.du, to.updates, to.dvalues}) {
      for (std::int64_t t = 0; t < group_.s.T && rows.shape[0] > 0; ++t)
        std::fill(rows.at(g_, t, p_.Dv), rows.at(g_, t) + end, T{0});
    }
  }

  /// Copies v to `differences` and, if scans 3 and 4 will run, to `updates`. Runs instead of scan 1 if there is no
  /// delta rule and no state to save.
  void copy_values() {
    const StateColumns columns = piece_columns();
    const HeadRows<const void> rows = token_rows(p_.inputs.v, group_.s, h_);
    for (std::int64_t t = 0; t < group_.s.T; ++t) {
      T* const row = rows_.difference(t, columns.first);
      std::fill_n(row, round_up(columns.count, kLanes<T>), T{0});
      load_row(row, rows, t, columns.first, columns.count);
      if (saves_rows_) std::copy_n(row, columns.count, rows_.update(t, columns.first));
    }
  }

  void pack_keys(const Chunk& chunk) {
    const DecayFactors<T>& factors = b_.numbers(chunk.direction).factors;
    if (factors.present()) factors.make(token_rows(p_.inputs.decay, group_.s, h_), chunk);
    for (std::int64_t n = 0; n < chunk.count; ++n) {
      const T* const key = rows_.key(chunk.token(n));
      prefetch_row(rows_.key(chunk.token(std::min(n + kStepsAhead, chunk.count - 1))), D_);
      factors.times_before(b_.keys_times_f.at(n), key, n, D_);
      factors.times_inverse(b_.keys_over_f.at(n), key, n, D_);
    }
    load_betas(b_.betas, p_, group_.s, h_, chunk);
  }

  // Scan 1.

  void run_forward(const Chunk& chunk) {
    pack_keys(chunk);
    load_rows(b_.values, token_rows(p_.inputs.v, group_.s, h_), chunk);
    const ChunkNumbers<T>& numbers = b_.forward;
    for (std::int64_t n = 1; n < chunk.count; n += 2) {
      T* const read = b_.keys_times_f.at(n);
      numbers.pair_dots(0, n) = dot(b_.keys_over_f.at(n - 1), read, D_);
      if (numbers.factors.rescales(n - 1)) numbers.factors.times_before(read, read, n - 1, D_);
    }
    for_blocks([&](auto block, const StateColumns& columns, std::int64_t /*n*/) HWY_ATTR {
      if (saves_states()) {
        T* const to = group_.buffers.states.at(g_, chunk.t0 / kChunk, columns.first * D_);
        std::copy_n(block.data, block.rows * block.kWidth, to);
      }
      scan_forward(block, columns, chunk);
    });
  }

  template <std::int64_t kVectors>
  void scan_forward(const StateBlock<T, kVectors>& block, const StateColumns& columns, const Chunk& chunk) {
    BlockRow<T, kVectors> returned[2];
    read_next(block, chunk, returned);
    std::int64_t n = 0;
    for (; n + 2 <= chunk.count; n += 2) visit_forward<2>(block, columns, chunk, n, returned);
    if (n < chunk.count) visit_forward<1>(block, columns, chunk, n, returned);
    forward_rescaling_.finish(block);
  }

  template <std::int64_t kVectors>
  HWY_INLINE void read_next(const StateBlock<T, kVectors>& block, const Chunk& chunk, BlockRow<T, kVectors>* sums) {
    read_block_twice(block, b_.keys_times_f.at(0), b_.keys_times_f.at(std::min<std::int64_t>(1, chunk.count - 1)),
                     sums);
  }

  /// Sets pass.next to the vectors of steps n and n + 1. The vector of a step is k times the decay factors F. For a
  /// step after the end of the chunk, sets the vector of the last step. Its product with the state is then not used.
  template <class PassT>
  HWY_INLINE void set_next(PassT& pass, const Chunk& chunk, std::int64_t n) const {
    for (std::int64_t k = 0; k < 2; ++k) pass.next[k] = b_.keys_times_f.at(std::min(n + k, chunk.count - 1));
  }

  template <int kTokens, std::int64_t kVectors>
  HWY_INLINE void visit_forward(const StateBlock<T, kVectors>& block, const StateColumns& columns, const Chunk& chunk,
                                std::int64_t n, BlockRow<T, kVectors>* returned) {
    using Row = BlockRow<T, kVectors>;
    Pass<kTokens, 1, 0, 2, T, kVectors> pass;
    for (int t = 0; t < kTokens; ++t) {
      Row x = Row::load(b_.values.at(n + t, columns.first));
      if (p_.has_delta) {
        x.subtract(returned[t]);
        if (t == 1) x.add_product(pass.outer_products[0][0].x, hn::Set(Tag<T>(), -b_.forward.pair_dots(0, n + 1)));
      }
      x.store(rows_.difference(chunk.token(n + t), columns.first));
      if (p_.has_delta) x.multiply(hn::Set(Tag<T>(), b_.betas(n + t)));
      if (saves_rows_) x.store(rows_.update(chunk.token(n + t), columns.first));
      pass.outer_products[t][0] = {b_.keys_over_f.at(n + t), x};
      const std::int64_t ahead = chunk.token(std::min(n + t + kTokens, chunk.count - 1));
      Row::prefetch(rows_.difference(ahead, columns.first));
      if (saves_rows_) Row::prefetch(rows_.update(ahead, columns.first));
    }
    set_next(pass, chunk, n + kTokens);
    run_pass(pass, block, forward_rescaling_.set(pass, n, kTokens));
    for (int k = 0; k < 2; ++k) returned[k] = pass.sums[k];
  }

  // Scan 2.

  void run_reverse(const Chunk& chunk) {
    pack_keys(chunk);
    const ChunkNumbers<T>& numbers = b_.reverse;
    for (std::int64_t r = 0; r < heads_per_state_; ++r) {
      for (std::int64_t n = 0; n < chunk.count; ++n) {
        const T* const query = rows_.query(r, chunk.token(n));
        prefetch_row(rows_.query(r, chunk.token(std::min(n + kStepsAhead, chunk.count - 1))), D_);
        numbers.dots(r, n) = dot(query, rows_.key(chunk.token(n)), D_);
        numbers.factors.times_inverse(b_.queries_over_f.at(r, n), query, n, D_);
      }
    }
    if (heads_per_state_ == 1) {
      for (std::int64_t n = 1; n < chunk.count; n += 2) {
        T* const read = b_.keys_times_f.at(n);
        numbers.pair_dots(0, n) = dot(b_.queries_over_f.at(0, n - 1), read, D_);
        numbers.pair_dots(1, n) = dot(b_.keys_over_f.at(n - 1), read, D_);
        if (numbers.factors.rescales(n - 1)) numbers.factors.times_before(read, read, n - 1, D_);
      }
    }
    for_blocks([&](auto block, const StateColumns& columns, std::int64_t /*n*/) HWY_ATTR {
      p_.has_delta ? scan_reverse<2>(block, columns, chunk) : scan_reverse<1>(block, columns, chunk);
    });
    if (p_.gradients.dv.present()) write_dv(chunk);
  }

  template <int kOuterProducts, std::int64_t kVectors>
  void scan_reverse(const StateBlock<T, kVectors>& block, const StateColumns& columns, const Chunk& chunk) {
    BlockRow<T, kVectors> returned[2];
    read_next(block, chunk, returned);
    std::int64_t n = 0;
    if (heads_per_state_ == 1) {
      for (; n + 2 <= chunk.count; n += 2) visit_reverse<2, kOuterProducts>(block, columns, chunk, n, returned);
    }
    for (; n < chunk.count; ++n) visit_reverse<1, kOuterProducts>(block, columns, chunk, n, returned);
    reverse_rescaling_.finish(block);
  }

  template <int kTokens, int kOuterProducts, std::int64_t kVectors>
  HWY_INLINE void visit_reverse(const StateBlock<T, kVectors>& block, const StateColumns& columns, const Chunk& chunk,
                                std::int64_t n, BlockRow<T, kVectors>* returned) {
    using Row = BlockRow<T, kVectors>;
    const Tag<T> d;
    Pass<kTokens, kOuterProducts, 0, 2, T, kVectors> pass;
    for (int t = 0; t < kTokens; ++t) {
      Row du = returned[t];
      if (t == 1) {
        du.add_product(pass.outer_products[0][0].x, hn::Set(d, b_.reverse.pair_dots(0, n + 1)));
        if constexpr (kOuterProducts == 2)
          du.add_product(pass.outer_products[0][1].x, hn::Set(d, b_.reverse.pair_dots(1, n + 1)));
      }
      for (std::int64_t r = 0; r < heads_per_state_; ++r)
        du.add_product(Row::load(rows_.dy(r, chunk.token(n + t), columns.first)),
                       hn::Set(d, b_.reverse.dots(r, n + t)));
      du.store(rows_.du(chunk.token(n + t), columns.first));
      if (p_.has_delta) du.multiply(hn::Set(d, b_.betas(n + t)));
      if (saves_rows_) du.store(rows_.dvalue(chunk.token(n + t), columns.first));
      pass.outer_products[t][0] = {b_.queries_over_f.at(0, n + t),
                                   Row::load(rows_.dy(0, chunk.token(n + t), columns.first))};
      if constexpr (kOuterProducts == 2) {
        du.multiply(hn::Set(d, T{-1}));
        pass.outer_products[t][1] = {b_.keys_over_f.at(n + t), du};
      }
      const std::int64_t ahead = chunk.token(std::min(n + t + kTokens, chunk.count - 1));
      for (std::int64_t r = 0; r < heads_per_state_; ++r) Row::prefetch(rows_.dy(r, ahead, columns.first));
      Row::prefetch(rows_.du(ahead, columns.first));
      if (saves_rows_) Row::prefetch(rows_.dvalue(ahead, columns.first));
    }
    set_next(pass, chunk, n + kTokens);
    const Rescaling rescaling = reverse_rescaling_.set(pass, n, kTokens);
    run_pass(pass, block, add_other_heads(pass, block, columns, chunk, n, rescaling));
    for (int k = 0; k < 2; ++k) returned[k] = pass.sums[k];
  }

  /// Adds the outer products q dyᵀ of query heads 1 … R − 1 to the block. The first of these passes also rescales the
  /// block. Returns the rescaling that remains for the pass of head 0: none if R > 1, otherwise `rescaling`.
  template <class PassT, std::int64_t kVectors>
  HWY_INLINE Rescaling add_other_heads(const PassT& like, const StateBlock<T, kVectors>& block,
                                       const StateColumns& columns, const Chunk& chunk, std::int64_t n,
                                       Rescaling rescaling) {
    for (std::int64_t r = 1; r < heads_per_state_; ++r) {
      Pass<1, 1, 0, 0, T, kVectors> pass;
      pass.outer_products[0][0] = {b_.queries_over_f.at(r, n),
                                   BlockRow<T, kVectors>::load(rows_.dy(r, chunk.token(n), columns.first))};
      pass.factors[0] = like.factors[0];
      run_pass(pass, block, rescaling);
      rescaling = Rescaling::none;
    }
    return rescaling;
  }

  void write_dv(const Chunk& chunk) {
    const StateColumns columns = piece_columns();
    const HeadRows<void> rows = token_rows(p_.gradients.dv, group_.s, h_);
    for (std::int64_t n = 0; n < chunk.count; ++n) {
      const T* const du = rows_.du(chunk.token(n), columns.first);
      for (std::int64_t x = 0; x < columns.count; ++x) b_.row(x) = b_.betas(n) * du[x];
      store_row(rows, b_.row.data, chunk.token(n), columns.first, columns.count);
    }
  }

  const LinearBackwardProblem& p_;
  const StateGroup<T> group_;
  Cancellation& cancellation_;
  std::int64_t D_, heads_per_state_, chunks_;
  ScanBuffers<T> b_;
  BlockFactors<T> forward_rescaling_{b_.forward.factors}, reverse_rescaling_{b_.reverse.factors};
  TokenRows<T> rows_;
  bool saves_rows_ = p_.needs_key_scans();  ///< whether to save u and β du, which scans 3 and 4 read
  std::int64_t g_, h_;
  typename LinearBackwardPlan<T>::Piece piece_{};
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_VALUE_SCANS_INL_
