// SPDX-License-Identifier: Apache-2.0
// Computes the attention weights of queries, walking back over the tokens. Included once per Highway target.
#if defined(HEADGATE_LINEAR_QUERY_WALK_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_QUERY_WALK_INL_
#undef HEADGATE_LINEAR_QUERY_WALK_INL_
#else
#define HEADGATE_LINEAR_QUERY_WALK_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "library/core/cancellation.hpp"
#include "library/linear_attention/cpu/state_tasks-inl.hpp"
#include "library/linear_attention/linear_statistics.hpp"

// A walk computes the attention weights of a tile of queries. The vectors r of the queries
// (linear_attention_statistics.hpp) are the columns of a matrix R (D × queries). A walk visits the tokens from the last
// to the first. Token j yields the weights a_j = β_j Rᵀ k_j and changes R to e^{g_j} ∘ (R − k_j a_jᵀ). The reverse scan
// updates a state's gradient in the same way.
//
// Columns are independent. A block of columns therefore stays in the L1 cache while it walks through a chunk of tokens.
// Decay factors F are those of scan_operands-inl.hpp. When the walk reaches token t, it sets the columns of the queries
// at t to scale · q_t. This also discards any NaN or infinity that later tokens have left in these columns.

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Buffers of a walk. `queries` is the largest number of queries in a tile.
template <typename T>
struct QueryWalkBuffers {
  QueryWalkBuffers(Workspace& ws, const LinearProblem& p, std::int64_t queries)
      : factors(ws, p),
        padded(round_up(queries, kMostVectors * kLanes<T>)),
        columns(ws.take<T>("columns", padded_dim<T>(p.D) * padded)),
        keys(ws.take<T>("operands", kChunk, padded_dim<T>(p.D))),
        keys_times_f(ws.take<T>("operands", kChunk, padded_dim<T>(p.D))),
        second_keys_times_f(ws.take<T>("operands", kChunk, padded_dim<T>(p.D))),
        keys_over_f(ws.take<T>("operands", kChunk, padded_dim<T>(p.D))),
        betas(ws.take<T>("operands", kChunk)),
        pair_dots(ws.take<T>("operands", kChunk)),
        query(ws.take<T>("operands", padded_dim<T>(p.D))),
        tokens(ws.take<std::int64_t>("tokens", queries)) {}

  DecayFactors<T> factors;
  std::int64_t padded;      ///< number of queries, rounded up to whole blocks
  View<T, 1> columns;       ///< the matrix R divided by the decay factors F, stored block by block
  View<T, 2> keys;          ///< (kChunk,D) k
  View<T, 2> keys_times_f;  ///< (kChunk,D): k times F for each token, from DecayFactors::times_before()
  /// (kChunk,D): `keys_times_f` for the second step n + 1 of a pair of steps, where n is even. A walk that takes pairs
  /// multiplies R by both keys before step n. Row n + 1 therefore includes the factors with which step n rescales R.
  View<T, 2> second_keys_times_f;
  View<T, 2> keys_over_f;  ///< (kChunk,D): k divided by F for each token, from DecayFactors::times_inverse()
  View<T, 1> betas;        ///< (kChunk)
  /// (kChunk): for odd n, element n is the dot product of row n of `keys_times_f` and row n − 1 of `keys_over_f`
  View<T, 1> pair_dots;
  View<T, 1> query;              ///< (D)
  View<std::int64_t, 1> tokens;  ///< for each column, the token of the column's query; ascending
};

/// Computes the walks of one thread. Passes the weights of each token and block of columns to a Sink, which has these
/// members:
///   - kPairs: whether the walk may process two tokens at a time in chunks where no query of the block starts. This
///     changes the last bits of results.
///   - Block<kVectors>: receives the weights of one block and chunk. The walk calls enter(lane) when the query of a
///     column starts, receive(weights, step) for each token, and finish() after the last token.
///   - end_chunk(chunk): called when all blocks have processed the chunk.
template <typename T, class Sink>
class QueryWalk {
 public:
  QueryWalk(const LinearProblem& p, const QueryWalkBuffers<T>& buffers) : p_(p), D_(padded_dim<T>(p.D)), b_(buffers) {}

  /// Walks from the queries of head `ho` back to the first token of the sequence. The queries' tokens are the first
  /// `count` entries of the buffer `tokens`.
  void run(const TokenRange& s, std::int64_t ho, std::int64_t count, Sink& sink, Cancellation& cancellation) {
    h_ = ho / p_.heads_per_state();
    keys_ = token_rows(p_.inputs.k, s, p_.key_head(h_));
    queries_ = token_rows(p_.inputs.q, s, p_.query_head(ho));
    std::fill_n(b_.columns.data, b_.columns.count(), T{0});
    for (std::int64_t c = b_.tokens(count - 1) / kChunk; c >= 0 && !cancellation.requested(); --c) {
      const Chunk chunk{c * kChunk, std::min(kChunk, s.T - c * kChunk), Direction::reverse};
      pack(s, chunk);
      for_blocks(count, [&](auto block, const StateColumns& columns) HWY_ATTR {
        if (b_.tokens(columns.first + columns.count - 1) < chunk.t0) return;
        p_.has_delta ? scan<1>(block, columns, chunk, sink) : scan<0>(block, columns, chunk, sink);
      });
      sink.end_chunk(chunk);
    }
  }

  /// Copies column c of R to `to` after the walk. This column is the vector r_t of a query at token t. S_0ᵀ r_t is the
  /// contribution of the initial state S_0 to y_t.
  void copy_column(std::int64_t c, std::int64_t count, T* to) const {
    for_blocks(count, [&](auto block, const StateColumns& columns) HWY_ATTR {
      if (c < columns.first || c >= columns.first + columns.count) return;
      for (std::int64_t i = 0; i < p_.D; ++i) to[i] = block.row(i)[c - columns.first];
    });
  }

 private:
  struct AllBlocks {
    std::int64_t first, end;
  };

  /// Calls visit(block, columns) for each block. `columns` are the columns of the block that hold a query. All blocks
  /// have the same width, because the width determines the order of additions.
  template <class Visit>
  HWY_INLINE void for_blocks(std::int64_t count, const Visit& visit) const {
    const std::int64_t padded = round_up(count, kMostVectors * kLanes<T>);
    for_state_blocks(b_.columns.data, D_, padded, AllBlocks{0, ColumnBlocks<T>(padded).count()},
                     [&](auto block, const StateColumns& columns, std::int64_t /*n*/) HWY_ATTR {
                       visit(block, StateColumns{columns.first, std::min(columns.count, count - columns.first)});
                     });
  }

  void pack(const TokenRange& s, const Chunk& chunk) const {
    const DecayFactors<T>& factors = b_.factors;
    if (factors.present()) factors.make(token_rows(p_.inputs.decay, s, h_), chunk);
    for (std::int64_t n = 0; n < chunk.count; ++n) {
      T *const key = b_.keys.at(n), *const read = b_.keys_times_f.at(n), *const second = b_.second_keys_times_f.at(n);
      load_normalised(key, keys_, chunk, n, D_, p_, T{1});
      factors.times_before(read, key, n, D_);
      factors.times_inverse(b_.keys_over_f.at(n), key, n, D_);
      std::copy_n(read, D_, second);
      if (n % 2 == 0) continue;
      b_.pair_dots(n) = dot(b_.keys_over_f.at(n - 1), read, D_);
      if (factors.rescales(n - 1)) factors.times_before(second, read, n - 1, D_);
    }
    load_betas(b_.betas, p_, s, h_, chunk);
  }

  /// Updates one block of R for the tokens of a chunk.
  template <int kOuterProducts, std::int64_t kVectors>
  void scan(const StateBlock<T, kVectors>& block, const StateColumns& columns, const Chunk& chunk, Sink& sink) {
    typename Sink::template Block<kVectors> weights(sink, columns, chunk);
    // The walk visits chunks from the last to the first. The columns from `entered` on belong to queries in later
    // chunks, so they already take part in the walk.
    std::int64_t entered = columns.first + columns.count;
    while (entered > columns.first && b_.tokens(entered - 1) >= chunk.t0 + chunk.count) --entered;
    const bool some_enter = entered > columns.first && b_.tokens(entered - 1) >= chunk.t0;
    if (Sink::kPairs && !some_enter) {
      scan_pairs<kOuterProducts>(block, chunk, weights);
    } else {
      scan_alone<kOuterProducts>(block, columns, chunk, entered, weights);
    }
    weights.finish();
    rescaling_.finish(block);
  }

  template <int kOuterProducts, std::int64_t kVectors, class Weights>
  void scan_alone(const StateBlock<T, kVectors>& block, const StateColumns& columns, const Chunk& chunk,
                  std::int64_t entered, Weights& weights) {
    using Row = BlockRow<T, kVectors>;
    Row read = read_block(block, b_.keys_times_f.at(0));
    for (std::int64_t n = 0; n < chunk.count; ++n) {
      Pass<1, kOuterProducts, 0, 1, T, kVectors> pass;
      Rescaling rescaling = rescaling_.set(pass, n, 1);
      if (entered > columns.first && b_.tokens(entered - 1) == chunk.token(n)) {
        Pass<1, 0, 0, 0, T, kVectors> rescaled;
        rescaled.factors[0] = pass.factors[0];
        if (rescaling != Rescaling::none) run_pass(rescaled, block, rescaling);
        rescaling = Rescaling::none;
        for (; entered > columns.first && b_.tokens(entered - 1) == chunk.token(n); --entered)
          enter(block, entered - 1 - columns.first, chunk, n, read, weights);
      }
      pass_weights<kOuterProducts>(pass, 0, n, read, weights);
      pass.next[0] = b_.keys_times_f.at(std::min(n + 1, chunk.count - 1));
      run_pass(pass, block, rescaling);
      read = pass.sums[0];
    }
  }

  /// Starts a query at step n: column `lane` of the block becomes scale · q, divided by the decay factors.
  /// Element `lane` of `read` becomes the dot product of scale · q and the step's key.
  template <std::int64_t kVectors, class Weights>
  void enter(const StateBlock<T, kVectors>& block, std::int64_t lane, const Chunk& chunk, std::int64_t n,
             BlockRow<T, kVectors>& read, Weights& weights) {
    T lanes[StateBlock<T, kVectors>::kWidth];
    T* const query = b_.query.data;
    load_normalised(query, queries_, chunk, n, D_, p_, static_cast<T>(p_.scale));
    read.store(lanes);
    lanes[lane] = dot(query, b_.keys.at(n), D_);
    read = BlockRow<T, kVectors>::load(lanes);
    b_.factors.times_inverse(query, query, n, D_);
    for (std::int64_t i = 0; i < D_; ++i) block.row(i)[lane] = query[i];
    weights.enter(lane);
  }

  /// Computes the weights a_n = β_n Rᵀ k_n of step n and passes them to the sink. `read` is Rᵀ k_n. With the delta rule
  /// (kOuterProducts = 1), also sets the outer product of token t of `pass`, which subtracts k_n a_nᵀ from R.
  template <int kOuterProducts, class PassT, std::int64_t kVectors, class Weights>
  HWY_INLINE void pass_weights(PassT& pass, int t, std::int64_t n, BlockRow<T, kVectors> read, Weights& weights) const {
    read.multiply(hn::Set(Tag<T>(), b_.betas(n)));
    weights.receive(read, n);
    if constexpr (kOuterProducts == 1) {
      read.multiply(hn::Set(Tag<T>(), T{-1}));
      pass.outer_products[t][0] = {b_.keys_over_f.at(n), read};
    }
  }

  template <int kOuterProducts, std::int64_t kVectors, class Weights>
  void scan_pairs(const StateBlock<T, kVectors>& block, const Chunk& chunk, Weights& weights) {
    BlockRow<T, kVectors> returned[2] = {
        read_block(block, b_.keys_times_f.at(0)),
        read_block(block, b_.second_keys_times_f.at(std::min<std::int64_t>(1, chunk.count - 1)))};
    std::int64_t n = 0;
    for (; n + 2 <= chunk.count; n += 2) visit<2, kOuterProducts>(block, chunk, n, returned, weights);
    if (n < chunk.count) visit<1, kOuterProducts>(block, chunk, n, returned, weights);
  }

  /// Processes the tokens of steps [n, n + kTokens). n is even.
  template <int kTokens, int kOuterProducts, std::int64_t kVectors, class Weights>
  HWY_INLINE void visit(const StateBlock<T, kVectors>& block, const Chunk& chunk, std::int64_t n,
                        BlockRow<T, kVectors>* returned, Weights& weights) {
    Pass<kTokens, kOuterProducts, 0, 2, T, kVectors> pass;
    for (int t = 0; t < kTokens; ++t) {
      // returned[1] was computed before the first token updated R. Adds the product of this update and the second key.
      if (kOuterProducts == 1 && t == 1)
        returned[1].add_product(pass.outer_products[0][0].x, hn::Set(Tag<T>(), b_.pair_dots(n + 1)));
      pass_weights<kOuterProducts>(pass, t, n + t, returned[t], weights);
    }
    pass.next[0] = b_.keys_times_f.at(std::min(n + kTokens, chunk.count - 1));
    pass.next[1] = b_.second_keys_times_f.at(std::min(n + kTokens + 1, chunk.count - 1));
    run_pass(pass, block, rescaling_.set(pass, n, kTokens));
    for (int k = 0; k < 2; ++k) returned[k] = pass.sums[k];
  }

  const LinearProblem& p_;
  std::int64_t D_, h_ = 0;
  const QueryWalkBuffers<T>& b_;
  BlockFactors<T> rescaling_{b_.factors};
  HeadRows<const void> keys_{ConstTensorView(), 0, 0}, queries_{ConstTensorView(), 0, 0};
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_QUERY_WALK_INL_
