// SPDX-License-Identifier: Apache-2.0
// Computes the backward pass of gated linear attention with bf16 products (Precision::native16), in chunks of kSquare
// tokens. native16_gradients-inl.hpp has the formulas. Each batch of state groups takes two steps:
//
//   step   tasks                  result
//   1      states, columns of v   S and dS of each chunk, E and dU, and from them dV; forward, then in reverse
//   2      groups, chunks         dQ, dK, dβ and dg, from the results of step 1
//
// A state group belongs to one sequence. States of different groups share no head of q or k.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "library/call/native16.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"
#include "library/linear_attention/cpu/kernels.hpp"
#include "library/linear_attention/problem.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/linear_attention/cpu/native16_backward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// The headers below are compiled once per target, so foreach_target.h must come first.
#include "library/linear_attention/cpu/native16_gradients-inl.hpp"
#include "library/linear_attention/cpu/state_group_chunk-inl.hpp"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Results of step 1, the scans, for one group of G states. native16_gradients-inl.hpp defines the letters.
struct Native16GroupBuffers {
  Native16GroupBuffers(Workspace& ws, const LinearBackwardProblem& p, std::int64_t tokens)
      : differences(ws.take<float>("differences", p.group_states(), tokens, whole_squares(p.Dv))),
        du(ws.take<float>("du", p.group_states(), tokens, whole_squares(p.Dv))),
        states(take_states(ws, "states", p, tokens)),
        gradients(take_states(ws, "gradients", p, tokens)) {}

  static View<BFloat16, 4> take_states(Workspace& ws, const char* name, const LinearBackwardProblem& p,
                                       std::int64_t tokens) {
    return ws.take<BFloat16>(name, p.group_states(), divide_up(tokens, kSquare), whole_squares(p.D),
                             whole_squares(p.Dv));
  }

  View<float, 3> differences;   ///< E, (G,T,Dv)
  View<float, 3> du;            ///< dU, (G,T,Dv)
  View<BFloat16, 4> states;     ///< (G,chunks,D,Dv): S before each chunk
  View<BFloat16, 4> gradients;  ///< (G,chunks,D,Dv): dS after each chunk
};

struct Native16BackwardPlan {
  explicit Native16BackwardPlan(const LinearBackwardProblem& p);

  std::int64_t groups = 0, groups_in_batch = 1, chunks = 1, longest = 0, squares = 1, pieces = 1;
  int threads = 1;
  std::size_t group_bytes = 0, scratch_bytes = 0;
};

/// One group of states of one sequence, with the group's buffers.
struct Native16StateGroup {
  TokenRange s;
  std::int64_t index;  ///< number of the group within the sequence
  Native16GroupBuffers buffers;
};

/// Scratch buffers of one thread, for both steps. native16_gradients-inl.hpp defines the letters.
struct Native16GradientBuffers {
  Native16GradientBuffers(Workspace& ws, const LinearBackwardProblem& p)
      : D(whole_squares(p.D)),
        cols(whole_squares(p.Dv)),
        keys(ws, D),
        queries(ws, D),
        weights(ws, kSquare),
        decays(ws, p),
        terms(ws),
        state(ws.take<float>("state", D, cols + kRowPadding)),
        state_panels(ws.take<BFloat16>("state panels", std::max(D, cols) / kTileCols, std::max(D, cols) * kTileCols)),
        gradient_panels(ws.take<BFloat16>("state panels", D / kTileCols, cols * kTileCols)),
        products(ws.take<float>("products", kSquare, kSquare)),
        value_products(ws.take<float>("products", kSquare, kSquare)),
        decayed_products(ws.take<float>("products", kSquare, kSquare)),
        values(ws.take<float>("values", kSquare, cols + kRowPadding)),
        sums(ws.take<float>("values", kSquare, std::max(D, cols) + kRowPadding)),
        plain_panels(ws.take<BFloat16>("panels", cols / kTileCols, kSquare * kTileCols)),
        decayed_panels(ws.take<BFloat16>("panels", cols / kTileCols, kSquare * kTileCols)),
        key_pairs(ws.take<BFloat16>("panels", D / kTileCols, kSquare * kTileCols)),
        query_pairs(ws.take<BFloat16>("panels", D / kTileCols, kSquare * kTileCols)),
        update_panels(ws.take<BFloat16>("panels", kSquare / kTileCols, cols * kTileCols)),
        updates(ws.take<BFloat16>("rows", kSquare, cols)),
        dvalues(ws.take<BFloat16>("rows", kSquare, cols)),
        dy(ws.take<BFloat16>("rows", kSquare, cols)),
        dq(ws.take<float>("gradients", p.Hq / p.groups(), kSquare, D)),
        dk(ws.take<float>("gradients", p.Hk / p.groups(), kSquare, D)),
        betas(ws.take<float>("operands", kSquare)),
        factors(ws.take<float>("operands", kSquare)),
        row(ws.take<float>("operands", std::max(D, cols))),
        gradient_row(ws.take<float>("operands", D)) {}

  std::int64_t D, cols;  ///< D and Dv, padded to multiples of kSquare
  ChunkKeys keys;
  ChunkRows queries;
  ChunkRows weights;  ///< weights between the tokens of a chunk, and their transpose
  ChunkDecays decays;
  DecayTerms terms;
  View<float, 2> state;  ///< (D,cols): S in the forward scan, dS in the reverse scan
  /// right operands of products: S or dS in step 1, Sᵀ and dSᵀ in step 2
  View<BFloat16, 2> state_panels, gradient_panels;
  View<float, 2> products;          ///< Q Kᵀ
  View<float, 2> value_products;    ///< the product dY Uᵀ or W Uᵀ
  View<float, 2> decayed_products;  ///< products ∘ F: A, Z, or X below the diagonal; also scratch of weigh()
  View<float, 2> values;            ///< rows of V, U, W or dY
  View<float, 2> sums;              ///< products of rows with states, such as K S; in step 1, then dU and W
  /// `values`, and `values` with its rows times factors, packed as right operands of products
  View<BFloat16, 2> plain_panels, decayed_panels;
  View<BFloat16, 2> key_pairs, query_pairs;  ///< K and Q, packed as right operands of products
  View<BFloat16, 2> update_panels;           ///< Uᵀ, packed as the right operand of products
  View<BFloat16, 2> updates, dvalues, dy;    ///< (kSquare,cols): U, W and dY, rounded to bf16
  /// (heads of the group,kSquare,D): gradients of the chunk's rows of q and k, after normalisation
  View<float, 3> dq, dk;
  View<float, 1> betas, factors;     ///< (kSquare)
  View<float, 1> row, gradient_row;  ///< scratch for one row
};

Native16BackwardPlan::Native16BackwardPlan(const LinearBackwardProblem& p) {
  double tokens = 0.0;
  for (std::int64_t n = 0; n < p.chosen_count(); ++n) {
    const std::int64_t T = p.chosen_sequence(n).T;
    longest = std::max(longest, T);
    tokens += static_cast<double>(T);
  }
  groups = p.chosen_count() * p.groups();
  chunks = divide_up(longest, kSquare);
  squares = divide_up(p.Dv, kSquare);
  // Uses one thread, plus one for each kLeastPerThread updates of state elements. For fewer updates, waking a thread
  // takes longer than the updates.
  constexpr double kLeastPerThread = 1 << 14;
  const double work = tokens * static_cast<double>(p.Hv * p.D * p.Dv);
  const auto useful = static_cast<std::int64_t>(std::min(work / kLeastPerThread, 1e6)) + 1;
  threads = static_cast<int>(std::clamp<std::int64_t>(useful, 1, p.context.threads));
  groups_in_batch = std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(groups, 1));
  // Aims at two tasks per thread in step 1. This bounds the time that threads wait for the last task.
  const std::int64_t wanted = threads == 1 ? 1 : 2 * threads;
  pieces = std::clamp<std::int64_t>(divide_up(wanted, groups_in_batch * p.group_states()), 1, squares);
  group_bytes = count_bytes<Native16GroupBuffers>(p, longest);
  scratch_bytes = count_bytes<Native16GradientBuffers>(p);
}

/// Packs the operands of one chunk of one state. Base class of both steps.
template <class Unit>
class Native16Chunks {
 public:
  Native16Chunks(const LinearBackwardProblem& p, std::byte* scratch)
      : p_(p), b_(place_buffers<Native16GradientBuffers>(scratch, p)) {
    if (!b_.decays.present) b_.decays.fill();
  }

 protected:
  static Chunk chunk_of(const TokenRange& s, std::int64_t c) {
    return {c * kSquare, std::min(kSquare, s.T - c * kSquare), Direction::forward};
  }

  /// Packs the keys, decays and β of a chunk of state h. If the rule has a delta, also computes K Kᵀ.
  void pack_keys(std::int64_t h, const TokenRange& s, const Chunk& chunk) {
    const ChunkDecays& decays = b_.decays;
    if (decays.present) {
      const HeadRows<const void> rows = token_rows(p_.inputs.decay, s, h);
      for (std::int64_t n = 0; n < chunk.count; ++n) load_row(decays.logs.at(n), rows, chunk.token(n), 0, 1);
    }
    decays.make(0, chunk.count);
    last_decays_ = decays.pair_decays.at(chunk.count - 1);
    pack_token_rows(b_.keys.rows, token_rows(p_.inputs.k, s, p_.key_head(h)), chunk, p_, b_.row);
    b_.keys.transpose();
    if (p_.has_delta) {
      multiply_rows_by<Unit, SquareWrite::overwrite>(b_.keys.products, kSquare, b_.keys.rows, b_.keys.transposed(),
                                                     b_.D);
    }
    std::fill(b_.betas.data + chunk.count, b_.betas.data + kSquare, 0.0F);
    load_betas(b_.betas, p_, s, h, chunk);
  }

  /// Packs the queries of output head `ho`, and computes Q Kᵀ as `products`.
  void pack_queries(std::int64_t ho, const TokenRange& s, const Chunk& chunk) {
    pack_token_rows(b_.queries.rows, token_rows(p_.inputs.q, s, p_.query_head(ho)), chunk, p_, b_.row);
    b_.queries.transpose();
    multiply_rows_by<Unit, SquareWrite::overwrite>(b_.products, kSquare, b_.queries.rows, b_.keys.transposed(), b_.D);
  }

  /// Sets `weights` to scale · products ∘ F on and below the diagonal, and computes the transpose of `weights`.
  void weigh(const View<float, 2>& products, const Chunk& chunk) {
    const auto scale = static_cast<float>(p_.scale);
    std::fill_n(b_.factors.data, kSquare, scale);
    for (std::int64_t i = 0; i < kSquare; ++i) std::copy_n(products.at(i), kSquare, b_.decayed_products.at(i));
    scale_rows_by(b_.decayed_products, b_.factors.data, kSquare, kSquare);
    weigh_products(b_.weights.rows, b_.decayed_products, b_.decays.pair_decays, chunk.count);
    b_.weights.transpose();
  }

  static PairPanels panels(const View<BFloat16, 2>& of) { return {of.data, of.shape[1]}; }

  const LinearBackwardProblem& p_;
  Native16GradientBuffers b_;
  [[no_unique_address]] Unit unit_;     // holds the thread's AMX configuration as long as this object exists
  const float* last_decays_ = nullptr;  // F_last: the decays from each token of the chunk to its last token
};

/// Computes step 1 for some columns of a state: scans the state S forward over the tokens, and then its gradient dS in
/// reverse.
template <class Unit>
class Native16ValueScans : Native16Chunks<Unit> {
  using Base = Native16Chunks<Unit>;
  using Base::b_, Base::chunk_of, Base::last_decays_, Base::p_, Base::panels;

 public:
  using Base::Base;

  /// Scans column blocks `first` to `end` − 1 of state g of the group. A block has kSquare columns.
  void run(const Native16StateGroup& group, std::int64_t g, std::int64_t first, std::int64_t end,
           Cancellation& cancellation) {
    h_ = group.index * p_.group_states() + g;
    first_ = first * kSquare;
    cols_ = std::min(end * kSquare, p_.Dv) - first_;
    padded_ = whole_squares(cols_);
    const std::int64_t chunks = divide_up(group.s.T, kSquare);
    load_state(HeadRows<const void>(p_.inputs.state, group.s.n, h_));
    for (std::int64_t c = 0; c < chunks && !cancellation.requested(); ++c) run_forward(group, g, c);
    load_state(HeadRows<const void>(p_.incoming.dstate, group.s.n, h_));
    for (std::int64_t c = chunks; c-- > 0 && !cancellation.requested();) run_reverse(group, g, c);
    if (!p_.gradients.dstate.present()) return;
    const HeadRows<void> to(p_.gradients.dstate, group.s.n, h_);
    for (std::int64_t x = 0; x < p_.D; ++x) store_row(to, b_.state.at(x), x, first_, cols_);
  }

 private:
  void load_state(const HeadRows<const void>& from) const {
    std::fill_n(b_.state.data, b_.state.count(), 0.0F);
    for (std::int64_t x = 0; from.present() && x < p_.D; ++x) load_row(b_.state.at(x), from, x, first_, cols_);
  }

  /// Saves the state rounded to bf16, and packs it as a right operand. Then multiplies the state by the decay over the
  /// chunk.
  void save_and_decay_state(const View<BFloat16, 4>& to, std::int64_t g, std::int64_t c, const Chunk& chunk) const {
    for (std::int64_t x = 0; x < b_.D; ++x) round_row(to.at(g, c, x, first_), b_.state.at(x), padded_);
    pack_and_decay_state(panels(b_.state_panels), b_.state, b_.decays.prefix_decays(chunk.count - 1), padded_);
  }

  /// Adds aᵀ b to the state. a and b have kSquare rows.
  void add_to_state(const ChunkRows& a, const View<BFloat16, 2>& b) const {
    for (std::int64_t x = 0; x < b_.D; x += kSquare) {
      for (std::int64_t c = 0; c < padded_; c += kSquare) {
        Unit::template multiply<SquareWrite::accumulate>(a.transposed_rows.at(x), kSquare,
                                                         panels(b).from(c / kTileCols, 0), kSquare, b_.state.at(x, c),
                                                         b_.state.strides[0]);
      }
    }
  }

  View<float, 2> rows_of(const View<float, 3>& array, std::int64_t g, const Chunk& chunk) const {
    return {array.at(g, chunk.t0, first_), {kSquare, array.shape[2]}};
  }

  void run_forward(const Native16StateGroup& group, std::int64_t g, std::int64_t c) {
    const Chunk tokens = chunk_of(group.s, c);
    const ChunkDecays& decays = b_.decays;
    const View<float, 2> differences = rows_of(group.buffers.differences, g, tokens);
    this->pack_keys(h_, group.s, tokens);
    save_and_decay_state(group.buffers.states, g, c, tokens);
    load_padded(b_.values, token_rows(p_.inputs.v, group.s, h_), tokens, first_, cols_);
    if (p_.has_delta) {
      multiply_rows_by<Unit, SquareWrite::overwrite>(b_.sums, padded_, b_.keys.rows, panels(b_.state_panels), b_.D);
      lower_products(b_.decayed_products, b_.keys.products, decays.pair_decays, tokens.count);
      substitute(b_.values, b_.sums, b_.decayed_products, decays.prefix_decays.data, b_.betas.data, tokens.count,
                 padded_, differences);
    } else {
      for (std::int64_t n = 0; n < tokens.count; ++n) std::copy_n(b_.values.at(n), padded_, differences.at(n));
    }
    pack_updates(panels(b_.plain_panels), panels(b_.decayed_panels), b_.values, last_decays_, tokens.count, padded_);
    add_to_state(b_.keys, b_.decayed_panels);
  }

  void run_reverse(const Native16StateGroup& group, std::int64_t g, std::int64_t c) {
    const Chunk tokens = chunk_of(group.s, c);
    const ChunkDecays& decays = b_.decays;
    this->pack_keys(h_, group.s, tokens);
    save_and_decay_state(group.buffers.gradients, g, c, tokens);
    multiply_rows_by<Unit, SquareWrite::overwrite>(b_.sums, padded_, b_.keys.rows, panels(b_.state_panels), b_.D);
    scale_rows_by(b_.sums, last_decays_, tokens.count, padded_);
    for (std::int64_t r = 0; r < p_.heads_per_state(); ++r) add_head(h_ * p_.heads_per_state() + r, group.s, tokens);
    if (p_.has_delta) {
      lower_products(b_.decayed_products, b_.keys.products, decays.pair_decays, tokens.count);
      substitute_back(b_.sums, b_.decayed_products, b_.betas.data, tokens.count, padded_);
    }
    const View<float, 2> du = rows_of(group.buffers.du, g, tokens);
    for (std::int64_t n = 0; n < tokens.count; ++n) std::copy_n(b_.sums.at(n), padded_, du.at(n));
    if (p_.has_delta) {
      for (std::int64_t n = 0; n < tokens.count; ++n) b_.factors(n) = -decays.prefix_decays(n) * b_.betas(n);
      pack_updates(panels(b_.plain_panels), panels(b_.decayed_panels), b_.sums, b_.factors.data, tokens.count, padded_);
      add_to_state(b_.keys, b_.decayed_panels);
      scale_rows_by(b_.sums, b_.betas.data, tokens.count, padded_);
    }
    if (!p_.gradients.dv.present()) return;
    const HeadRows<void> dv = token_rows(p_.gradients.dv, group.s, h_);
    for (std::int64_t n = 0; n < tokens.count; ++n) store_row(dv, b_.sums.at(n), tokens.token(n), first_, cols_);
  }

  /// Adds the terms of output head `ho`: Pᵀ dY to `sums`, and scale Qᵀ (f ∘ dY) to the gradient of the state.
  void add_head(std::int64_t ho, const TokenRange& s, const Chunk& tokens) {
    this->pack_queries(ho, s, tokens);
    this->weigh(b_.products, tokens);
    load_padded(b_.values, token_rows(p_.incoming.dy, s, ho), tokens, first_, cols_);
    const auto scale = static_cast<float>(p_.scale);
    for (std::int64_t n = 0; n < tokens.count; ++n) b_.factors(n) = scale * b_.decays.prefix_decays(n);
    pack_updates(panels(b_.plain_panels), panels(b_.decayed_panels), b_.values, b_.factors.data, tokens.count, padded_);
    multiply_rows_by<Unit, SquareWrite::accumulate>(b_.sums, padded_, b_.weights.transposed_rows,
                                                    panels(b_.plain_panels), kSquare);
    add_to_state(b_.queries, b_.decayed_panels);
  }

  std::int64_t h_ = 0, first_ = 0, cols_ = 0, padded_ = 0;
};

/// Step 2: computes dq, dk, dbeta and ddecay of one chunk of a state group.
template <class Unit>
class Native16ChunkGradients : Native16Chunks<Unit> {
  using Base = Native16Chunks<Unit>;
  using Base::b_, Base::chunk_of, Base::last_decays_, Base::p_, Base::panels;

 public:
  using Base::Base;

  /// Writes the gradients of chunk c. If all heads share one beta, writes dbeta to `dbetas`. Otherwise, writes it to
  /// the gradient's tensor.
  void run(const Native16StateGroup& group, std::int64_t c, const View<float, 3>& dbetas) {
    if (c * kSquare >= group.s.T) return;
    tokens_ = chunk_of(group.s, c);
    std::fill_n(b_.dq.data, b_.dq.count(), 0.0F);
    std::fill_n(b_.dk.data, b_.dk.count(), 0.0F);
    for (std::int64_t g = 0; g < p_.group_states(); ++g) {
      const std::int64_t h = group.index * p_.group_states() + g;
      this->pack_keys(h, group.s, tokens_);
      load_updates(group, g);
      write_dbeta(group, g, h, dbetas);
      add_state(group, g, c, h);
      write_ddecay(group, h);
    }
    write_rows(p_.gradients.dq, p_.inputs.q, b_.dq, group);
    write_rows(p_.gradients.dk, p_.inputs.k, b_.dk, group);
  }

 private:
  /// Packs U = β ∘ E or W = β ∘ dU, rounded to bf16. `rows` holds E or dU. Without a delta rule, U is E and W is dU.
  void pack_times_beta(const View<BFloat16, 2>& to, const float* rows) const {
    for (std::int64_t n = 0; n < tokens_.count; ++n) {
      const float by = p_.has_delta ? b_.betas(n) : 1.0F;
      for (std::int64_t x = 0; x < b_.cols; ++x) b_.row(x) = by * rows[n * b_.cols + x];
      round_row(to.at(n), b_.row.data, b_.cols);
    }
    std::fill(to.data + tokens_.count * b_.cols, to.data + to.count(), BFloat16{});
  }

  void load_updates(const Native16StateGroup& group, std::int64_t g) const {
    pack_times_beta(b_.updates, group.buffers.differences.at(g, tokens_.t0));
    pack_times_beta(b_.dvalues, group.buffers.du.at(g, tokens_.t0));
    pack_transposed(panels(b_.update_panels), b_.updates, kSquare, b_.cols);
  }

  void write_dbeta(const Native16StateGroup& group, std::int64_t g, std::int64_t h,
                   const View<float, 3>& dbetas) const {
    if (!p_.gradients.dbeta.present()) return;
    for (std::int64_t n = 0; n < tokens_.count; ++n) {
      const std::int64_t t = tokens_.token(n);
      const float dbeta = dot(group.buffers.du.at(g, t), group.buffers.differences.at(g, t), b_.cols);
      store_dbeta(p_, group.s, h, t, dbeta, dbetas);
    }
  }

  /// Adds the terms of state g to dq and dk, and computes the terms of its ddecay.
  void add_state(const Native16StateGroup& group, std::int64_t g, std::int64_t c, std::int64_t h) {
    const View<BFloat16, 2> S(group.buffers.states.at(g, c), {b_.D, b_.cols});
    const View<BFloat16, 2> dS(group.buffers.gradients.at(g, c), {b_.D, b_.cols});
    const View<float, 2> dk(b_.dk.at(p_.key_head(h) - group.index * b_.dk.shape[0]), {kSquare, b_.D});
    const ChunkDecays& decays = b_.decays;
    pack_transposed(panels(b_.gradient_panels), dS, b_.D, b_.cols);
    const PairPanels states{b_.state_panels.data, b_.cols * kTileCols};
    pack_transposed(states, S, b_.D, b_.cols);
    pack_pairs(panels(b_.key_pairs), b_.keys.rows, b_.D);
    b_.terms.clear();
    if (p_.gradients.ddecay.present())
      b_.terms.whole = decays.prefix_decays(tokens_.count - 1) * dot_of_halves(S.data, dS.data, S.count());

    multiply_rows_by<Unit, SquareWrite::overwrite>(b_.sums, b_.D, b_.updates, panels(b_.gradient_panels), b_.cols);
    add_scaled_rows(dk, b_.sums, last_decays_, tokens_.count, b_.D);
    for (std::int64_t n = 0; n < tokens_.count; ++n)
      b_.terms.writes(n) = last_decays_[n] * dot_with_halves(b_.keys.rows.at(n), b_.sums.at(n), b_.D);
    if (p_.has_delta) add_delta(dk, states);
    for (std::int64_t r = 0; r < p_.heads_per_state(); ++r) add_head(group, h * p_.heads_per_state() + r, dk, states);
  }

  /// Adds the terms of dk and ddecay that only the delta rule has. They come from f ∘ (K S) and A U in the formula of
  /// U.
  void add_delta(const View<float, 2>& dk, const PairPanels& states) {
    const ChunkDecays& decays = b_.decays;
    multiply_rows_by<Unit, SquareWrite::overwrite>(b_.sums, b_.D, b_.dvalues, states, b_.cols);
    for (std::int64_t n = 0; n < tokens_.count; ++n) {
      b_.factors(n) = -decays.prefix_decays(n);
      b_.terms.reads(n) += b_.factors(n) * dot_with_halves(b_.keys.rows.at(n), b_.sums.at(n), b_.D);
    }
    add_scaled_rows(dk, b_.sums, b_.factors.data, tokens_.count, b_.D);
    multiply_rows_by<Unit, SquareWrite::overwrite>(b_.value_products, kSquare, b_.dvalues, panels(b_.update_panels),
                                                   b_.cols);
    lower_products(b_.decayed_products, b_.value_products, decays.pair_decays, tokens_.count);
    std::fill_n(b_.factors.data, kSquare, -1.0F);
    scale_rows_by(b_.decayed_products, b_.factors.data, kSquare, kSquare);
    add_lower_terms(b_.terms.pairs, b_.decayed_products, b_.keys.products, tokens_.count);
    // Computes Z + Zᵀ with a bitwise OR: at each element, one of the two is zero.
    for (std::int64_t i = 0; i < kSquare; ++i) round_row(b_.weights.rows.at(i), b_.decayed_products.at(i), kSquare);
    b_.weights.transpose();
    for (std::int64_t i = 0; i < kSquare; ++i) {
      const __m512i both = _mm512_or_si512(_mm512_maskz_loadu_epi16(below(i), b_.weights.rows.at(i)),
                                           _mm512_maskz_loadu_epi16(~below(i + 1), b_.weights.transposed_rows.at(i)));
      _mm512_storeu_si512(b_.weights.rows.at(i), both);
    }
    multiply_rows_by<Unit, SquareWrite::accumulate>(dk, b_.D, b_.weights.rows, panels(b_.key_pairs), kSquare);
  }

  static __mmask32 below(std::int64_t n) { return n >= 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1U; }

  /// Adds the terms of one output head to dq, dk and ddecay.
  void add_head(const Native16StateGroup& group, std::int64_t ho, const View<float, 2>& dk, const PairPanels& states) {
    const ChunkDecays& decays = b_.decays;
    const View<float, 2> dq(b_.dq.at(p_.query_head(ho) - group.index * b_.dq.shape[0]), {kSquare, b_.D});
    this->pack_queries(ho, group.s, tokens_);
    pack_pairs(panels(b_.query_pairs), b_.queries.rows, b_.D);
    load_padded(b_.values, token_rows(p_.incoming.dy, group.s, ho), tokens_, 0, p_.Dv);
    for (std::int64_t n = 0; n < kSquare; ++n) round_row(b_.dy.at(n), b_.values.at(n), b_.cols);

    multiply_rows_by<Unit, SquareWrite::overwrite>(b_.sums, b_.D, b_.dy, states, b_.cols);
    for (std::int64_t n = 0; n < tokens_.count; ++n) {
      b_.factors(n) = static_cast<float>(p_.scale) * decays.prefix_decays(n);
      b_.terms.reads(n) += b_.factors(n) * dot_with_halves(b_.queries.rows.at(n), b_.sums.at(n), b_.D);
    }
    add_scaled_rows(dq, b_.sums, b_.factors.data, tokens_.count, b_.D);
    multiply_rows_by<Unit, SquareWrite::overwrite>(b_.value_products, kSquare, b_.dy, panels(b_.update_panels),
                                                   b_.cols);
    this->weigh(b_.value_products, tokens_);
    multiply_rows_by<Unit, SquareWrite::accumulate>(dq, b_.D, b_.weights.rows, panels(b_.key_pairs), kSquare);
    multiply_rows_by<Unit, SquareWrite::accumulate>(dk, b_.D, b_.weights.transposed_rows, panels(b_.query_pairs),
                                                    kSquare);
    lower_products(b_.decayed_products, b_.value_products, decays.pair_decays, tokens_.count);
    std::fill_n(b_.factors.data, kSquare, static_cast<float>(p_.scale));
    scale_rows_by(b_.decayed_products, b_.factors.data, kSquare, kSquare);
    add_lower_terms(b_.terms.pairs, b_.decayed_products, b_.products, tokens_.count);
  }

  void write_ddecay(const Native16StateGroup& group, std::int64_t h) {
    if (!p_.gradients.ddecay.present()) return;
    HWY_ALIGN float sums[kSquare];
    b_.terms.sum(sums, tokens_.count);
    const HeadRows<void> to = token_rows(p_.gradients.ddecay, group.s, h);
    for (std::int64_t n = 0; n < tokens_.count; ++n) store_row(to, sums + n, tokens_.token(n), 0, 1);
  }

  /// Writes the chunk's rows of dq or dk. `gradients` holds the gradients of the rows of q or k after normalisation.
  void write_rows(const TensorView& gradient, const ConstTensorView& input, const View<float, 3>& gradients,
                  const Native16StateGroup& group) const {
    if (!gradient.present()) return;
    for (std::int64_t i = 0; i < gradients.shape[0]; ++i) {
      const std::int64_t head = group.index * gradients.shape[0] + i;
      const HeadRows<const void> from = token_rows(input, group.s, head);
      const HeadRows<void> to = token_rows(gradient, group.s, head);
      for (std::int64_t n = 0; n < tokens_.count; ++n) {
        const float norm = load_normalised(b_.row.data, from, tokens_, n, b_.D, p_, 1.0F);
        write_row_gradient(to, gradients.at(i, n), b_.row.data, norm, tokens_.token(n), 1.0F, p_, b_.gradient_row.data);
      }
    }
  }

  Chunk tokens_{0, 0, Direction::forward};
};

/// Computes the gradients of a batch of state groups, beginning with group `first`. All threads of the team must call
/// this function.
template <class Unit>
void run_native16_batch(const LinearBackwardProblem& p, const Native16BackwardPlan& plan,
                        const LinearBackwardMemory<float>& memory, std::int64_t first, const Team& team,
                        Cancellation& cancellation) {
  const std::int64_t count = std::min(plan.groups_in_batch, plan.groups - first);
  std::byte* const scratch = memory.scratch.at(team.thread());
  const auto group_of = [&](std::int64_t n) {
    const std::int64_t group = first + n;
    return Native16StateGroup{p.chosen_sequence(group / p.groups()), group % p.groups(),
                              place_buffers<Native16GroupBuffers>(memory.groups.at(n), p, plan.longest)};
  };
  {
    Native16ValueScans<Unit> scans(p, scratch);
    const std::int64_t tasks = p.group_states() * plan.pieces;
    team.in_turn(count * tasks, [&](std::int64_t n) {
      if (cancellation.requested()) return;
      const std::int64_t g = n % tasks / plan.pieces, piece = n % plan.pieces;
      scans.run(group_of(n / tasks), g, plan.squares * piece / plan.pieces, plan.squares * (piece + 1) / plan.pieces,
                cancellation);
    });
  }
  if (p.needs_key_scans() || p.gradients.dbeta.present()) {
    Native16ChunkGradients<Unit> gradients(p, scratch);
    team.in_turn(count * plan.chunks, [&](std::int64_t n) {
      if (!cancellation.requested()) gradients.run(group_of(n / plan.chunks), n % plan.chunks, memory.dbetas);
    });
  }
}

/// Computes the chosen sequences of `others` with the scans, and then the chosen sequences of `p` with this kernel.
template <class Unit>
void native16_linear_backward_with(const LinearBackwardProblem& p, const LinearBackwardProblem& others) {
  const Native16BackwardPlan plan(p);
  const Placed<LinearBackwardMemory<float>> memory(p, plan);
  if (!others.chosen.empty()) linear_backward_scans(others);  // runs first: if it cannot allocate, no output is written
  Cancellation cancellation(p.context);
  run_team(plan.threads, [&](const Team& team) {
    for (std::int64_t first = 0; first < plan.groups; first += plan.groups_in_batch)
      run_native16_batch<Unit>(p, plan, *memory, first, team, cancellation);
    sum_dbetas(team, p, memory->dbetas);
  });
  cancellation.throw_if_seen();
}

/// Returns whether this kernel computes a sequence. Both conditions must hold:
///   - The sequence has at least kLeastNative16Tokens tokens.
///   - In each chunk of several tokens, the decays of consecutive tokens multiply to at most kMostFactor.
bool takes_sequence(const LinearBackwardProblem& p, const TokenRange& s) {
  if (s.T < kLeastNative16Tokens) return false;
  float logs[kSquare];
  for (std::int64_t h = 0; p.has_decay() && h < p.Hv; ++h) {
    const HeadRows<const void> rows = token_rows(p.inputs.decay, s, h);
    for (std::int64_t t = 0; t < s.T; t += kSquare) {
      const std::int64_t count = std::min(kSquare, s.T - t);
      for (std::int64_t n = 0; n < count; ++n) load_row(logs + n, rows, t + n, 0, 1);
      if (tokens_of_chunk(logs, count) < count) return false;
    }
  }
  return true;
}

struct SequenceLists {
  SequenceLists(Workspace& ws, std::int64_t N) : numbers(ws.take<std::int64_t>("sequences", N)) {}
  /// indices of the sequences that this kernel computes, then of those that the scans compute
  View<std::int64_t, 1> numbers;
};

void native16_linear_backward_on(const LinearBackwardProblem& p) {
  const Placed<SequenceLists> lists(p.N);
  std::int64_t* const numbers = lists->numbers.data;
  std::int64_t taken = 0, others = p.N;
  for (std::int64_t n = 0; n < p.N; ++n) numbers[takes_sequence(p, p.sequence(n)) ? taken++ : --others] = n;
  LinearBackwardProblem ours = p, rest = p;
  ours.chosen = {numbers, static_cast<std::size_t>(taken)};
  rest.chosen = {numbers + taken, static_cast<std::size_t>(p.N - taken)};
  if (taken == 0) return linear_backward_scans(p);
  if (native16_unit(p.context.target) == Native16Unit::tiles) {
    native16_linear_backward_with<Tiles>(ours, rest);
  } else {
    native16_linear_backward_with<Dots>(ours, rest);
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_AVX3

#if HWY_ONCE
namespace headgate {

const char* declines_native16(const LinearBackwardProblem& p) {
  if (p.precision != Precision::native16) return "precision is exact";
  if (native16_unit(p.context.target) == Native16Unit::none) return "this CPU or target has no fast bf16 products";
  if (p.decays_by_feature()) return "each feature has its own decay";
  for (std::int64_t n = 0; n < p.N; ++n) {
    if (p.sequence(n).T >= kLeastNative16Tokens) return nullptr;
  }
  return "sequences have fewer than 32 tokens";
}

void native16_linear_backward([[maybe_unused]] const LinearBackwardProblem& p) {
#if (HWY_TARGETS & HWY_AVX3) != 0
  N_AVX3::native16_linear_backward_on(p);
#endif
}

}  // namespace headgate
#endif  // HWY_ONCE
