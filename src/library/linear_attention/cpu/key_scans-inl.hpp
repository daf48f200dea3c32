// SPDX-License-Identifier: Apache-2.0
// Scans 3 and 4 of the backward pass: the transposes of S and dS (Dv,D), with columns of k; included once per Highway
// target.
#if defined(HEADGATE_LINEAR_KEY_SCANS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_KEY_SCANS_INL_
#undef HEADGATE_LINEAR_KEY_SCANS_INL_
#else
#define HEADGATE_LINEAR_KEY_SCANS_INL_
#endif

#include <algorithm>
#include <cstdint>
#include <optional>

#include "library/core/cancellation.hpp"
#include "library/linear_attention/cpu/backward_plan-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Factors of a step for the columns of a block.
template <typename T, std::int64_t kVectors>
HWY_INLINE BlockRow<T, kVectors> factor_row(const DecayFactors<T>& factors, const T* of_step, std::int64_t first) {
  if (factors.by_feature()) return BlockRow<T, kVectors>::load(of_step + first);
  return BlockRow<T, kVectors>::filled(*of_step);
}

template <typename T>
class KeyScans {
 public:
  KeyScans(const LinearBackwardProblem& p, const Unit<T>& unit, std::byte* scratch, Cancellation& cancellation)
      : p_(p),
        unit_(unit),
        cancellation_(cancellation),
        D_(padded_dim<T>(p.D)),
        Dv_(round_up(p.Dv, kLanes<T>)),
        readers_(p.readers()),
        chunks_(divide_up(unit.s.T, kChunk)),
        b_(place_buffers<ScanBuffers<T>>(scratch, static_cast<const LinearProblem&>(p))) {}

  /// The blocks of a piece, of all states of the unit: they add to the gradients of the heads that they share.
  void run(const typename LinearBackwardPlan<T>::Piece& piece) {
    piece_ = piece;
    clear_gradients();
    for (g_ = 0; g_ < p_.group_states(); ++g_) {
      rows_.emplace(p_, unit_, g_);
      load_states(p_.inputs.state);
      for (std::int64_t c = 0; c < chunks_ && !cancellation_.requested(); ++c) run_chunk(chunk(c, Direction::forward));
      load_states(p_.incoming.dstate);
      for (std::int64_t c = chunks_; c-- > 0 && !cancellation_.requested();) run_chunk(chunk(c, Direction::reverse));
    }
  }

 private:
  template <std::int64_t kVectors>
  using Row = BlockRow<T, kVectors>;

  Chunk chunk(std::int64_t c, Direction direction) const {
    return {c * kChunk, std::min(kChunk, unit_.s.T - c * kChunk), direction};
  }

  /// for_state_blocks of the piece.
  template <class Visit>
  HWY_INLINE void for_blocks(const Visit& visit) {
    for_state_blocks(b_.state.data, round_up(p_.Dv, kMostVectors), p_.D, piece_, visit);
  }

  void clear_gradients() {
    const StateColumns columns = task_columns<T>(piece_, p_.D);
    const std::int64_t first = columns.first, count = round_up(columns.count, kLanes<T>);
    for (const View<T, 3>* heads : {&unit_.buffers.dq, &unit_.buffers.dk}) {
      for (std::int64_t h = 0; h < heads->shape[0]; ++h) {
        for (std::int64_t t = 0; t < unit_.s.T; ++t) std::fill_n(heads->at(h, t, first), count, T{0});
      }
    }
  }

  void load_states(const ConstTensorView& states) {
    const HeadRows<const void> rows(states, unit_.s.n, unit_.state(p_, g_));
    for_blocks([&](auto block, const StateColumns& columns, std::int64_t /*n*/)
                   HWY_ATTR { load_transposed_block(block, rows, columns, b_.row.data); });
  }

  void run_chunk(const Chunk& chunk) {
    pack(chunk);
    const bool forward = chunk.direction == Direction::forward;
    for_blocks([&](auto block, const StateColumns& columns, std::int64_t /*n*/) HWY_ATTR {
      const std::int64_t first = columns.first;
      if (forward) {
        scan<Direction::forward, 1>(block, first, chunk);
      } else if (p_.has_delta) {
        scan<Direction::reverse, 2>(block, first, chunk);
      } else {
        scan<Direction::reverse, 1>(block, first, chunk);
      }
    });
  }

  void pack(const Chunk& chunk) {
    const std::int64_t h = unit_.state(p_, g_);
    const bool forward = chunk.direction == Direction::forward;
    if (b_.factors.present()) b_.factors.make(token_rows(p_.inputs.decay, unit_.s, h), chunk);
    for (std::int64_t n = 0; n < chunk.count; ++n) {
      const std::int64_t token = chunk.token(n);
      for (std::int64_t r = 0; r < readers_; ++r) b_.dots(r, n) = dot(rows_->dy(r, token), update(token), Dv_);
      if (n % 2 == 0) continue;
      const std::int64_t before = chunk.token(n - 1);
      const T* const read = forward ? dvalue(token) : update(token);
      b_.overlaps(0, n) = dot(forward ? update(before) : rows_->dy(0, before), read, Dv_);
      if (!forward) b_.overlaps(1, n) = dot(dvalue(before), read, Dv_);
    }
  }

  /// u and β du.
  const T* update(std::int64_t token) const { return unit_.buffers.updates.at(g_, token); }
  const T* dvalue(std::int64_t token) const { return unit_.buffers.dvalues.at(g_, token); }

  /// What a token reads the state with before it changes that.
  template <Direction kDirection>
  HWY_INLINE const T* read_of(std::int64_t token) const {
    return kDirection == Direction::forward ? dvalue(token) : update(token);
  }

  /// k or q of a token as it is added to S̃: divided by F.
  template <std::int64_t kVectors>
  HWY_INLINE Row<kVectors> added(const T* row, std::int64_t n, std::int64_t first) const {
    Row<kVectors> x = Row<kVectors>::load(row);
    if (b_.factors.present()) x.multiply(factor_row<T, kVectors>(b_.factors, b_.factors.inverse(n), first));
    return x;
  }

  template <Direction kDirection, int kAdds, std::int64_t kVectors>
  void scan(const StateBlock<T, kVectors>& block, std::int64_t first, const Chunk& chunk) {
    Row<kVectors> returned[2];
    for (std::int64_t n = 0; n < 2; ++n)
      returned[n] = read_block(block, read_of<kDirection>(chunk.token(std::min(n, chunk.count - 1))));
    std::int64_t n = 0;
    if (readers_ == 1) {
      for (; n + 2 <= chunk.count; n += 2) visit<kDirection, 2, kAdds>(block, first, chunk, n, returned);
    }
    for (; n < chunk.count; ++n) visit<kDirection, 1, kAdds>(block, first, chunk, n, returned);
    if (b_.factors.present()) {
      T columns[StateBlock<T, kVectors>::kWidth];
      factor_row<T, kVectors>(b_.factors, b_.factors.last(), first).store(columns);
      scale_columns(block, columns);
    }
  }

  template <Direction kDirection, int kTokens, int kAdds, std::int64_t kVectors>
  HWY_INLINE void visit(const StateBlock<T, kVectors>& block, std::int64_t first, const Chunk& chunk, std::int64_t n,
                        Row<kVectors>* returned) {
    constexpr int kOuts = kDirection == Direction::forward ? 1 : 0;
    const Tag<T> d;
    Pass<kTokens, kAdds, kOuts, 2, T, kVectors> pass;
    Row<kVectors> met[kTokens];  // what each token reads of the state before it changes that
    for (int t = 0; t < kTokens; ++t) {
      const std::int64_t token = chunk.token(n + t);
      met[t] = returned[t];
      if (t == 1) {
        // The second token meets the state behind the first: rescaled, with what that adds.
        if (b_.factors.rescales(n)) met[1].multiply(factor_row<T, kVectors>(b_.factors, b_.factors.before(n), first));
        for (int a = 0; a < kAdds; ++a) met[1].add_product(pass.adds[0][a].x, hn::Set(d, b_.overlaps(a, n + 1)));
      }
      if (b_.factors.present()) met[t].multiply(factor_row<T, kVectors>(b_.factors, b_.factors.before(n + t), first));
      if constexpr (kDirection == Direction::forward) {
        pass.adds[t][0] = {update(token), added<kVectors>(rows_->key(token, first), n + t, first)};
        pass.reads[t] = rows_->dy(0, token);
      } else {
        pass.adds[t][0] = {rows_->dy(0, token), added<kVectors>(rows_->query(0, token, first), n + t, first)};
        if constexpr (kAdds == 2) {
          pass.adds[t][1] = {dvalue(token), added<kVectors>(rows_->key(token, first), n + t, first)};
          pass.adds[t][1].x.multiply(hn::Set(d, T{-1}));
        }
      }
    }
    for (std::int64_t k = 0; k < 2; ++k)
      pass.next[k] = read_of<kDirection>(chunk.token(std::min(n + kTokens + k, chunk.count - 1)));
    T columns[kTokens][StateBlock<T, kVectors>::kWidth];
    const Rescaling rescaling = set_factors<kTokens>(pass, columns, n, first);
    run_pass(pass, block, kOuts > 0 ? rescaling : add_other_readers(pass, block, first, chunk, n, rescaling));
    for (int k = 0; k < 2; ++k) returned[k] = pass.sums[k];
    for (int t = 0; t < kTokens; ++t) {
      const std::int64_t token = chunk.token(n + t);
      if constexpr (kDirection == Direction::forward) {
        add_reading(met[t], token, first);
        add_query(pass.outs[t], 0, n + t, token, first);
        for (std::int64_t r = 1; r < readers_; ++r)
          add_query(read_block(block, rows_->dy(r, token)), r, n, token, first);
      } else {
        add_adding(met[t], n + t, token, first);
      }
    }
  }

  template <int kTokens, class PassT, std::int64_t kWidth>
  HWY_INLINE Rescaling set_factors(PassT& pass, T (*columns)[kWidth], std::int64_t n, std::int64_t first) const {
    constexpr std::int64_t kVectors = kWidth / kLanes<T>;
    bool any = false;
    for (int t = 0; t < kTokens; ++t) any = any || b_.factors.rescales(n + t);
    if (!any) return Rescaling::none;
    for (int t = 0; t < kTokens; ++t) {
      b_.factors.rescales(n + t)
          ? factor_row<T, kVectors>(b_.factors, b_.factors.before(n + t), first).store(columns[t])
          : Row<kVectors>::filled(T{1}).store(columns[t]);
      pass.factors[t] = columns[t];
    }
    return Rescaling::columns;
  }

  /// Adds the products of the other heads of q that read the state, behind the rescaling. Returns what is left of that.
  template <class PassT, std::int64_t kVectors>
  HWY_INLINE Rescaling add_other_readers(const PassT& like, const StateBlock<T, kVectors>& block, std::int64_t first,
                                         const Chunk& chunk, std::int64_t n, Rescaling rescaling) {
    for (std::int64_t r = 1; r < readers_; ++r) {
      Pass<1, 1, 0, 0, T, kVectors> pass;
      pass.adds[0][0] = {rows_->dy(r, chunk.token(n)),
                         added<kVectors>(rows_->query(r, chunk.token(n), first), n, first)};
      pass.factors[0] = like.factors[0];
      run_pass(pass, block, rescaling);
      rescaling = Rescaling::none;
    }
    return rescaling;
  }

  /// dk −= e^g S_{t−1} β du, of the state that the token has read; dG += k ∘ that.
  template <std::int64_t kVectors>
  HWY_INLINE void add_reading(const Row<kVectors>& read, std::int64_t token, std::int64_t first) {
    if (unit_.buffers.dsums.shape[0] > 0) {  // the first that writes a token's
      Row<kVectors> sum = Row<kVectors>::zero();
      if (p_.has_delta) {
        sum = Row<kVectors>::load(rows_->key(token, first));
        sum.multiply(read);
        sum.multiply(hn::Set(Tag<T>(), T{-1}));
      }
      sum.store(unit_.buffers.dsums.at(g_, token, first));
    }
    if (!p_.has_delta) return;
    T* const dk = unit_.buffers.dk.at(unit_.own_key(p_, g_), token, first);
    Row<kVectors> sum = Row<kVectors>::load(dk);
    sum.subtract(read);
    sum.store(dk);
  }

  /// dq += F ∘ out = S_t do; dG += q ∘ that.
  template <std::int64_t kVectors>
  HWY_INLINE void add_query(Row<kVectors> out, std::int64_t r, std::int64_t n, std::int64_t token, std::int64_t first) {
    if (b_.factors.present() && !b_.factors.rescales(n))
      out.multiply(factor_row<T, kVectors>(b_.factors, b_.factors.before(n), first));
    add_to_sums(out, rows_->query(r, token, first), token, first);
    T* const dq = unit_.buffers.dq.at(unit_.own_query(p_, g_, r), token, first);
    Row<kVectors> sum = Row<kVectors>::load(dq);
    sum.add(out);
    sum.store(dq);
  }

  /// dk += dS_t u, of dS_t with the token's own q do; dG −= k ∘ that.
  template <std::int64_t kVectors>
  HWY_INLINE void add_adding(Row<kVectors> read, std::int64_t n, std::int64_t token, std::int64_t first) {
    const Tag<T> d;
    for (std::int64_t r = 0; r < readers_; ++r)
      read.add_product(Row<kVectors>::load(rows_->query(r, token, first)), hn::Set(d, b_.dots(r, n)));
    T* const dk = unit_.buffers.dk.at(unit_.own_key(p_, g_), token, first);
    Row<kVectors> sum = Row<kVectors>::load(dk);
    sum.add(read);
    sum.store(dk);
    read.multiply(hn::Set(d, T{-1}));
    add_to_sums(read, rows_->key(token, first), token, first);
  }

  template <std::int64_t kVectors>
  HWY_INLINE void add_to_sums(const Row<kVectors>& gradient, const T* of, std::int64_t token, std::int64_t first) {
    if (unit_.buffers.dsums.shape[0] == 0) return;
    T* const sums = unit_.buffers.dsums.at(g_, token, first);
    Row<kVectors> product = Row<kVectors>::load(of);
    product.multiply(gradient);
    product.add(Row<kVectors>::load(sums));
    product.store(sums);
  }

  const LinearBackwardProblem& p_;
  const Unit<T> unit_;
  Cancellation& cancellation_;
  std::int64_t D_, Dv_, readers_, chunks_;
  ScanBuffers<T> b_;
  std::int64_t g_ = 0;
  std::optional<TokenRows<T>> rows_;  ///< of state g_
  typename LinearBackwardPlan<T>::Piece piece_{};
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_KEY_SCANS_INL_
