// SPDX-License-Identifier: Apache-2.0
// Scans 3 and 4 of the backward pass (see backward_kernel.cc). The scans hold the transposed states Sᵀ and dSᵀ, (Dv,D),
// in blocks of columns. Columns are features of k. Included once per Highway target.
#if defined(HEADGATE_LINEAR_KEY_SCANS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_KEY_SCANS_INL_
#undef HEADGATE_LINEAR_KEY_SCANS_INL_
#else
#define HEADGATE_LINEAR_KEY_SCANS_INL_
#endif

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "library/core/cancellation.hpp"
#include "library/linear_attention/cpu/backward_plan-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Returns the decay factors F at the columns of a block that begins at `first_column`. `of_step` points to the factors
/// of a step: one for each feature, or one for all.
template <typename T, std::int64_t kVectors>
HWY_INLINE BlockRow<T, kVectors> factor_row(const DecayFactors<T>& factors, const T* of_step,
                                            std::int64_t first_column) {
  if (factors.by_feature()) return BlockRow<T, kVectors>::load(of_step + first_column);
  return BlockRow<T, kVectors>::filled(*of_step);
}

template <typename T>
class KeyScans {
 public:
  KeyScans(const LinearBackwardProblem& p, const StateGroup<T>& group, std::byte* scratch, Cancellation& cancellation)
      : p_(p),
        group_(group),
        cancellation_(cancellation),
        D_(padded_dim<T>(p.D)),
        Dv_(round_up(p.Dv, kLanes<T>)),
        heads_per_state_(p.heads_per_state()),
        chunks_(divide_up(group.s.T, kChunk)),
        b_(place_buffers<ScanBuffers<T>>(scratch, p)) {}

  /// Runs scans 3 and 4 on a piece, which is a range of column blocks, for all states of the group. One task computes
  /// all states of the group, because states that share a head of q or k add to the same gradients.
  void run(const typename LinearBackwardPlan<T>::Piece& piece) {
    piece_ = piece;
    for (g_ = 0; g_ < p_.group_states(); ++g_) {
      rows_.emplace(p_, group_, g_);
      p_.gradients.ddecay.present() ? run_by_chunks() : run_by_scans();
    }
  }

 private:
  template <std::int64_t kVectors>
  using Row = BlockRow<T, kVectors>;

  Chunk chunk(std::int64_t c, Direction direction) const {
    return {c * kChunk, std::min(kChunk, group_.s.T - c * kChunk), direction};
  }

  /// Calls visit(block, columns, index) for each column block of the piece.
  template <class Visit>
  HWY_INLINE void for_blocks(const Visit& visit) {
    for_state_blocks(b_.state.data, round_up(p_.Dv, kMostVectors), p_.D, piece_, visit);
  }

  /// Sets dq and dk of a chunk's tokens to zero before the first state adds to them. Does nothing for other states.
  /// Clearing one chunk at a time leaves the rows in the cache for the scan.
  void clear_gradients(const Chunk& chunk) {
    if (g_ > 0) return;
    const StateColumns columns = task_columns<T>(piece_, p_.D);
    const std::int64_t first_column = columns.first, count = round_up(columns.count, kLanes<T>);
    for (const View<T, 3>* heads : {&group_.buffers.dq, &group_.buffers.dk}) {
      for (std::int64_t h = 0; h < heads->shape[0]; ++h) {
        for (std::int64_t n = 0; n < chunk.count; ++n)
          std::fill_n(heads->at(h, chunk.t0 + n, first_column), count, T{0});
      }
    }
  }

  void load_states(const ConstTensorView& states) {
    const HeadRows<const void> rows(states, group_.s.n, group_.state(p_, g_));
    for_blocks([&](auto block, const StateColumns& columns, std::int64_t /*n*/)
                   HWY_ATTR { load_transposed_block(block, rows, columns, b_.row.data); });
  }

  /// Runs scan 3 over all chunks, from the first to the last. Then runs scan 4 over all chunks, from the last to the
  /// first.
  void run_by_scans() {
    load_states(p_.inputs.state);
    for (std::int64_t c = 0; c < chunks_ && !cancellation_.requested(); ++c) {
      const Chunk tokens = chunk(c, Direction::forward);
      clear_gradients(tokens);
      pack(tokens);
      for_blocks([&](auto block, const StateColumns& columns, std::int64_t /*n*/)
                     HWY_ATTR { scan_forward<SecondBlock::unused>(block, columns.first, tokens); });
    }
    load_states(p_.incoming.dstate);
    for (std::int64_t c = chunks_; c-- > 0 && !cancellation_.requested();) {
      const Chunk tokens = chunk(c, Direction::reverse);
      pack(tokens);
      for_blocks([&](auto block, const StateColumns& columns, std::int64_t /*n*/)
                     HWY_ATTR { scan_reverse<SecondBlock::unused>(block, columns.first, tokens); });
    }
  }

  /// Runs scans 3 and 4 on each chunk, from the last chunk to the first. The gradient of a decay needs the elementwise
  /// product of the state before a token and the gradient of this state. Scan 3 saves the states of the chunk. Scan 4
  /// computes the gradients and multiplies them by the saved states.
  void run_by_chunks() {
    load_states(p_.incoming.dstate);
    for (std::int64_t c = chunks_; c-- > 0 && !cancellation_.requested();) {
      const Chunk forward = chunk(c, Direction::forward), reverse = chunk(c, Direction::reverse);
      clear_gradients(forward);
      pack(forward);
      pack(reverse);
      for_blocks([&](auto gradient, const StateColumns& columns, std::int64_t /*n*/) HWY_ATTR {
        auto state = gradient;
        state.data = b_.block_states.data;
        load_saved_state(state, columns, c);
        scan_forward<SecondBlock::written>(state, columns.first, forward);
        scan_reverse<SecondBlock::multiplied>(gradient, columns.first, reverse);
      });
    }
  }

  /// Loads a block of Sᵀ at the start of chunk c. Scan 1 (value_scans-inl.hpp) saved the state.
  template <std::int64_t kVectors>
  void load_saved_state(const StateBlock<T, kVectors>& block, const StateColumns& columns, std::int64_t c) const {
    std::fill(block.row(p_.Dv), block.row(block.rows), T{0});
    T* const saved = group_.buffers.states.at(g_, c);
    const typename LinearBackwardPlan<T>::Piece all{0, ColumnBlocks<T>(p_.Dv).count()};
    for_state_blocks(saved, D_, p_.Dv, all, [&](auto from, const StateColumns& values, std::int64_t /*n*/) HWY_ATTR {
      for (std::int64_t x = 0; x < block.kWidth; x += kLanes<T>)
        transpose_lanes(block.row(values.first) + x, block.kWidth, from.row(columns.first + x), from.kWidth,
                        values.count);
    });
  }

  void pack(const Chunk& chunk) {
    const std::int64_t h = group_.state(p_, g_);
    const bool forward = chunk.direction == Direction::forward;
    const ChunkNumbers<T>& numbers = b_.numbers(chunk.direction);
    if (numbers.factors.present()) numbers.factors.make(token_rows(p_.inputs.decay, group_.s, h), chunk);
    for (std::int64_t n = 0; n < chunk.count; ++n) {
      const std::int64_t token = chunk.token(n);
      for (std::int64_t r = 0; r < heads_per_state_; ++r)
        numbers.dots(r, n) = dot(rows_->dy(r, token), rows_->update(token), Dv_);
      if (!is_second(chunk, n)) continue;
      const std::int64_t previous = chunk.token(n - 1);
      const T* const read = forward ? rows_->dvalue(token) : rows_->update(token);
      numbers.pair_dots(0, n) = dot(forward ? rows_->update(previous) : rows_->dy(0, previous), read, Dv_);
      if (!forward) numbers.pair_dots(1, n) = dot(rows_->dvalue(previous), read, Dv_);
    }
  }

  /// Returns the vector that step n multiplies by the state before the step updates the state: β du in scan 3, u in
  /// scan 4. For n after the last step, returns the vector of the last step.
  template <Direction kDirection>
  HWY_INLINE const T* read_vector(const Chunk& chunk, std::int64_t n) const {
    const std::int64_t token = chunk.token(std::min(n, chunk.count - 1));
    return kDirection == Direction::forward ? rows_->dvalue(token) : rows_->update(token);
  }

  /// Returns `row`, a row of k or q, divided by the decay factors F of step n. The step adds this row to the stored
  /// state, which does not include F.
  template <std::int64_t kVectors>
  HWY_INLINE Row<kVectors> divided_by_factors(const DecayFactors<T>& factors, const T* row, std::int64_t n,
                                              std::int64_t first_column) const {
    Row<kVectors> x = Row<kVectors>::load(row);
    if (factors.present()) x.multiply(factor_row<T, kVectors>(factors, factors.inverse(n), first_column));
    return x;
  }

  /// Runs scan 3 on one block of the state, over the tokens of a chunk from the first to the last.
  template <SecondBlock kSecond, std::int64_t kVectors>
  void scan_forward(const StateBlock<T, kVectors>& block, std::int64_t first_column, const Chunk& chunk) {
    scan<Direction::forward, kSecond>(block, first_column, chunk,
                                      [&](auto tokens, std::int64_t n, Row<kVectors>* returned) HWY_ATTR {
                                        visit_forward<kSecond, tokens>(block, first_column, chunk, n, returned);
                                      });
  }

  /// Runs scan 4 on one block of dS, the gradient of the state, over the tokens of a chunk from the last to the first.
  template <SecondBlock kSecond, std::int64_t kVectors>
  void scan_reverse(const StateBlock<T, kVectors>& block, std::int64_t first_column, const Chunk& chunk) {
    p_.has_delta ? scan_reverse_with<kSecond, 2>(block, first_column, chunk)
                 : scan_reverse_with<kSecond, 1>(block, first_column, chunk);
  }

  /// Runs scan 4 on one block of dS, the gradient of the state, over the tokens of a chunk from the last to the first.
  /// Each token adds kOuterProducts outer products to dS.
  template <SecondBlock kSecond, int kOuterProducts, std::int64_t kVectors>
  void scan_reverse_with(const StateBlock<T, kVectors>& block, std::int64_t first_column, const Chunk& chunk) {
    scan<Direction::reverse, kSecond>(
        block, first_column, chunk, [&](auto tokens, std::int64_t n, Row<kVectors>* returned) HWY_ATTR {
          visit_reverse<kSecond, tokens, kOuterProducts>(block, first_column, chunk, n, returned);
        });
  }

  /// Returns how many steps at the start of a scan are taken one at a time; later steps are taken in pairs. The result
  /// is 1 in a reverse scan of an odd number of tokens, otherwise 0. Both scans then pair the same tokens.
  static std::int64_t single_steps(const Chunk& chunk) {
    return chunk.direction == Direction::reverse ? chunk.count % 2 : 0;
  }

  /// Returns whether step n is the second of a pair, in a scan that takes two steps at a time.
  static bool is_second(const Chunk& chunk, std::int64_t n) {
    return n > single_steps(chunk) && (n - single_steps(chunk)) % 2 == 1;
  }

  /// Returns the copy of the block before step n that scan 3 saves. Each pass saves one copy. A pass takes two steps,
  /// or one if several query heads read the state.
  T* state_before(std::int64_t n) const { return b_.block_states.at(heads_per_state_ == 1 ? divide_up(n, 2) : n); }

  /// Calls visit(count, step, returned) for the steps of a chunk:
  ///   - count: number of steps to take, an integral_constant. It is usually 2. It is 1 for a step without a partner,
  ///     or if several query heads read the state.
  ///   - step: the first of these steps.
  ///   - returned: the products of the stored state before `step` with read_vector(step) and with
  ///     read_vector(step + 1).
  /// After the last step, multiplies the block by the decay factors F. SecondBlock::written leaves the block unchanged.
  template <Direction kDirection, SecondBlock kSecond, std::int64_t kVectors, class Visit>
  HWY_INLINE void scan(const StateBlock<T, kVectors>& block, std::int64_t first_column, const Chunk& chunk,
                       const Visit& visit) {
    const DecayFactors<T>& factors = b_.numbers(kDirection).factors;
    Row<kVectors> returned[2];
    read_block_twice(block, read_vector<kDirection>(chunk, 0), read_vector<kDirection>(chunk, 1), returned);
    std::int64_t n = 0;
    if (heads_per_state_ == 1) {
      for (; n < single_steps(chunk); ++n) visit(std::integral_constant<int, 1>{}, n, returned);
      for (; n + 2 <= chunk.count; n += 2) visit(std::integral_constant<int, 2>{}, n, returned);
    }
    for (; n < chunk.count; ++n) visit(std::integral_constant<int, 1>{}, n, returned);
    if (kSecond != SecondBlock::written && factors.present()) {
      T column_factors[StateBlock<T, kVectors>::kWidth];
      factor_row<T, kVectors>(factors, factors.last(), first_column).store(column_factors);
      scale_columns(block, column_factors);
    }
  }

  /// Runs kTokens steps of scan 3 on a block, beginning with step n. Each step adds u kᵀ to the state S, and then adds
  /// S dy to dq.
  /// With SecondBlock::written, reads the state before step n from state_before(n). Writes the state after the steps to
  /// the next copy.
  template <SecondBlock kSecond, int kTokens, std::int64_t kVectors>
  HWY_INLINE void visit_forward(StateBlock<T, kVectors> block, std::int64_t first_column, const Chunk& chunk,
                                std::int64_t n, Row<kVectors>* returned) {
    const DecayFactors<T>& factors = b_.forward.factors;
    Pass<kTokens, 1, 1, 2, T, kVectors, kSecond> pass;
    Row<kVectors> read[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      const std::int64_t token = chunk.token(n + t);
      read[t] =
          times_before(b_.forward.factors, stored_product<Direction::forward>(pass, returned[t], n, t, first_column),
                       n + t, first_column);
      pass.outer_products[t][0] = {
          rows_->update(token),
          divided_by_factors<kVectors>(factors, rows_->key(token, first_column), n + t, first_column)};
      pass.out_operands[t] = rows_->dy(0, token);
      const std::int64_t ahead = chunk.token(std::min(n + t + kTokens, chunk.count - 1));
      Row<kVectors>::prefetch(rows_->key(ahead, first_column));
      for (std::int64_t r = 0; r < heads_per_state_; ++r) Row<kVectors>::prefetch(rows_->dq(r, ahead, first_column));
      Row<kVectors>::prefetch(rows_->dk(ahead, first_column));
    }
    for (std::int64_t k = 0; k < 2; ++k) pass.next[k] = read_vector<Direction::forward>(chunk, n + kTokens + k);
    T column_factors[kTokens][StateBlock<T, kVectors>::kWidth];
    const Rescaling rescaling = set_factors<kTokens>(pass, factors, column_factors, n, first_column);
    if constexpr (kSecond == SecondBlock::written) {
      block.data = state_before(n);
      pass.second_block = state_before(n + kTokens);
    }
    run_pass(pass, block, rescaling);
    for (int k = 0; k < 2; ++k) returned[k] = pass.sums[k];
    for (int t = 0; t < kTokens; ++t) {
      const std::int64_t token = chunk.token(n + t);
      add_dk_of_read(read[t], token, first_column);
      add_dq(pass.outs[t], 0, n + t, token, first_column);
      if constexpr (kSecond == SecondBlock::written) block.data = pass.second_block;
      for (std::int64_t r = 1; r < heads_per_state_; r += 2) {
        const std::int64_t last = std::min(r + 1, heads_per_state_ - 1);
        Row<kVectors> others[2];
        read_block_twice(block, rows_->dy(r, token), rows_->dy(last, token), others);
        for (std::int64_t q = r; q <= last; ++q) add_dq(others[q - r], q, n, token, first_column);
      }
    }
  }

  /// Runs kTokens steps of scan 4 on a block of dS, the gradient of the state, beginning with step n. Each step adds
  /// the outer product dy qᵀ to dS. With a delta rule (kOuterProducts = 2), the step also adds −β du kᵀ.
  /// With SecondBlock::multiplied, each step also computes the gradient of the decay: it sums the elementwise product
  /// of dS and the state that scan 3 saved.
  template <SecondBlock kSecond, int kTokens, int kOuterProducts, std::int64_t kVectors>
  HWY_INLINE void visit_reverse(const StateBlock<T, kVectors>& block, std::int64_t first_column, const Chunk& chunk,
                                std::int64_t n, Row<kVectors>* returned) {
    const DecayFactors<T>& factors = b_.reverse.factors;
    Pass<kTokens, kOuterProducts, 0, 2, T, kVectors, kSecond> pass;
    Row<kVectors> stored[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      const std::int64_t token = chunk.token(n + t);
      stored[t] = stored_product<Direction::reverse>(pass, returned[t], n, t, first_column);
      pass.outer_products[t][0] = {
          rows_->dy(0, token),
          divided_by_factors<kVectors>(factors, rows_->query(0, token, first_column), n + t, first_column)};
      if constexpr (kOuterProducts == 2) {
        pass.outer_products[t][1] = {
            rows_->dvalue(token),
            divided_by_factors<kVectors>(factors, rows_->key(token, first_column), n + t, first_column)};
        pass.outer_products[t][1].x.multiply(hn::Set(Tag<T>(), T{-1}));
      }
      const std::int64_t ahead = chunk.token(std::min(n + t + kTokens, chunk.count - 1));
      for (std::int64_t r = 0; r < heads_per_state_; ++r) Row<kVectors>::prefetch(rows_->query(r, ahead, first_column));
      Row<kVectors>::prefetch(rows_->key(ahead, first_column));
      Row<kVectors>::prefetch(rows_->dk(ahead, first_column));
      if constexpr (kSecond == SecondBlock::multiplied) Row<kVectors>::prefetch(rows_->ddecay(ahead, first_column));
    }
    for (std::int64_t k = 0; k < 2; ++k) pass.next[k] = read_vector<Direction::reverse>(chunk, n + kTokens + k);
    T column_factors[kTokens][StateBlock<T, kVectors>::kWidth];
    const Rescaling rescaling = set_factors<kTokens>(pass, factors, column_factors, n, first_column);
    if constexpr (kSecond == SecondBlock::multiplied)
      pass.second_block = state_before(chunk.token(n + kTokens - 1) - chunk.t0);
    run_pass(pass, block, add_other_heads(pass, factors, block, first_column, chunk, n, rescaling));
    for (int k = 0; k < 2; ++k) returned[k] = pass.sums[k];
    for (int t = 0; t < kTokens; ++t) {
      const std::int64_t token = chunk.token(n + t);
      add_dk_of_write(times_before(factors, stored[t], n + t, first_column), n + t, token, first_column);
      if constexpr (kSecond == SecondBlock::multiplied && kTokens == 2) {
        if (t == 0) pass.products[t] = add_update(pass.products[t], stored[1], token - 1, first_column);
      }
      if constexpr (kSecond == SecondBlock::multiplied) write_ddecay(pass.products[t], n + t, token, first_column);
    }
  }

  /// Returns the product of read_vector(n + t) with the stored state before step n + t, where t is 0 or 1. `returned`
  /// is the product of the same vector with the stored state before step n. If t is 1, applies the rescaling and the
  /// outer products of step n to `returned`.
  template <Direction kDirection, class PassT, std::int64_t kVectors>
  HWY_INLINE Row<kVectors> stored_product(const PassT& pass, Row<kVectors> returned, std::int64_t n, int t,
                                          std::int64_t first_column) const {
    const ChunkNumbers<T>& numbers = b_.numbers(kDirection);
    const DecayFactors<T>& factors = numbers.factors;
    if (t == 0) return returned;
    if (factors.rescales(n)) returned.multiply(factor_row<T, kVectors>(factors, factors.before(n), first_column));
    std::int64_t a = 0;
    for (const auto& product : pass.outer_products[0])
      returned.add_product(product.x, hn::Set(Tag<T>(), numbers.pair_dots(a++, n + 1)));
    return returned;
  }

  /// Multiplies `row` by F, the decay factors of step n before any rescaling, and returns it.
  template <std::int64_t kVectors>
  HWY_INLINE Row<kVectors> times_before(const DecayFactors<T>& factors, Row<kVectors> row, std::int64_t n,
                                        std::int64_t first_column) const {
    if (factors.present()) row.multiply(factor_row<T, kVectors>(factors, factors.before(n), first_column));
    return row;
  }

  template <int kTokens, class PassT, std::int64_t kWidth>
  HWY_INLINE Rescaling set_factors(PassT& pass, const DecayFactors<T>& factors, T (*column_factors)[kWidth],
                                   std::int64_t n, std::int64_t first_column) const {
    constexpr std::int64_t kVectors = kWidth / kLanes<T>;
    bool any = false;
    for (int t = 0; t < kTokens; ++t) any = any || factors.rescales(n + t);
    if (!any) return Rescaling::none;
    for (int t = 0; t < kTokens; ++t) {
      factors.rescales(n + t)
          ? factor_row<T, kVectors>(factors, factors.before(n + t), first_column).store(column_factors[t])
          : Row<kVectors>::filled(T{1}).store(column_factors[t]);
      pass.factors[t] = column_factors[t];
    }
    return Rescaling::columns;
  }

  /// Adds the outer products dy qᵀ of query heads 1 … R − 1 to the block. The first of these passes also rescales the
  /// block. Returns the rescaling that remains for the pass of head 0: none if R > 1, otherwise `rescaling`.
  template <class PassT, std::int64_t kVectors>
  HWY_INLINE Rescaling add_other_heads(const PassT& like, const DecayFactors<T>& factors,
                                       const StateBlock<T, kVectors>& block, std::int64_t first_column,
                                       const Chunk& chunk, std::int64_t n, Rescaling rescaling) {
    for (std::int64_t r = 1; r < heads_per_state_; ++r) {
      Pass<1, 1, 0, 0, T, kVectors> pass;
      pass.outer_products[0][0] = {
          rows_->dy(r, chunk.token(n)),
          divided_by_factors<kVectors>(factors, rows_->query(r, chunk.token(n), first_column), n, first_column)};
      pass.factors[0] = like.factors[0];
      run_pass(pass, block, rescaling);
      rescaling = Rescaling::none;
    }
    return rescaling;
  }

  /// Subtracts `read` from dk if there is a delta rule. `read` is e^{g_t} S_{t−1} β_t du_t.
  template <std::int64_t kVectors>
  HWY_INLINE void add_dk_of_read(const Row<kVectors>& read, std::int64_t token, std::int64_t first_column) {
    if (!p_.has_delta) return;
    T* const dk = rows_->dk(token, first_column);
    Row<kVectors> sum = Row<kVectors>::load(dk);
    sum.subtract(read);
    sum.store(dk);
  }

  /// Adds S_t dy to dq, where S_t is the state after the token. `out` is this product without the decay factors F.
  template <std::int64_t kVectors>
  HWY_INLINE void add_dq(Row<kVectors> out, std::int64_t r, std::int64_t n, std::int64_t token,
                         std::int64_t first_column) {
    out.multiply(factors_after<kVectors>(Direction::forward, n, first_column));
    T* const dq = rows_->dq(r, token, first_column);
    Row<kVectors> sum = Row<kVectors>::load(dq);
    sum.add(out);
    sum.store(dq);
  }

  /// Adds dS_t u to dk, where dS_t is the gradient of the state after token t. `read` is dS u before the token added
  /// the outer products q dyᵀ of the query heads to dS. The function therefore first adds q (dy · u) to `read` for each
  /// head.
  template <std::int64_t kVectors>
  HWY_INLINE void add_dk_of_write(Row<kVectors> read, std::int64_t n, std::int64_t token, std::int64_t first_column) {
    for (std::int64_t r = 0; r < heads_per_state_; ++r)
      read.add_product(Row<kVectors>::load(rows_->query(r, token, first_column)),
                       hn::Set(Tag<T>(), b_.reverse.dots(r, n)));
    T* const dk = rows_->dk(token, first_column);
    Row<kVectors> sum = Row<kVectors>::load(dk);
    sum.add(read);
    sum.store(dk);
  }

  /// Returns the sum of S ∘ dS over the features of v, where S is the state after `token`. `product` is the same sum
  /// with the state before `token`. Rescales `product` if the token rescales S. Then adds k ∘ `read`, where `read` is
  /// dS u. None of these values includes the decay factors F.
  template <std::int64_t kVectors>
  HWY_INLINE Row<kVectors> add_update(Row<kVectors> product, const Row<kVectors>& read, std::int64_t token,
                                      std::int64_t first_column) const {
    const DecayFactors<T>& factors = b_.forward.factors;
    const std::int64_t n = token % kChunk;
    if (factors.rescales(n)) product.multiply(factor_row<T, kVectors>(factors, factors.before(n), first_column));
    product.add_product(divided_by_factors<kVectors>(factors, rows_->key(token, first_column), n, first_column), read);
    return product;
  }

  /// Writes the gradient of the decay at step n of the reverse scan. `product` is the sum over the features of v of
  /// S ∘ dS, the stored state before the token and its stored gradient. Stored values do not include their decay
  /// factors F, so the function multiplies `product` by both factors.
  template <std::int64_t kVectors>
  HWY_INLINE void write_ddecay(Row<kVectors> product, std::int64_t n, std::int64_t token, std::int64_t first_column) {
    const DecayFactors<T>& factors = b_.forward.factors;
    product.multiply(factors_after<kVectors>(Direction::reverse, n, first_column));
    if (factors.present())
      product.multiply(factor_row<T, kVectors>(factors, factors.before(token % kChunk), first_column));
    product.store(rows_->ddecay(token, first_column));
  }

  /// Returns the decay factors F after any rescaling in step n: 1 if the step rescales, otherwise before(n).
  template <std::int64_t kVectors>
  HWY_INLINE Row<kVectors> factors_after(Direction direction, std::int64_t n, std::int64_t first_column) const {
    const DecayFactors<T>& factors = b_.numbers(direction).factors;
    if (!factors.present() || factors.rescales(n)) return Row<kVectors>::filled(T{1});
    return factor_row<T, kVectors>(factors, factors.before(n), first_column);
  }

  const LinearBackwardProblem& p_;
  const StateGroup<T> group_;
  Cancellation& cancellation_;
  std::int64_t D_, Dv_, heads_per_state_, chunks_;
  ScanBuffers<T> b_;
  std::int64_t g_ = 0;
  std::optional<TokenRows<T>> rows_;  ///< pointers to the rows of state g_ in the group's buffers
  typename LinearBackwardPlan<T>::Piece piece_{};
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_KEY_SCANS_INL_
