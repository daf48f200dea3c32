// SPDX-License-Identifier: Apache-2.0
// Packs the operands for the scans of the backward pass. Writes the gradients of q, k, decay and beta from the results
// of the scans. Included once per Highway target.
#if defined(HEADGATE_LINEAR_STATE_GROUP_CHUNK_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_STATE_GROUP_CHUNK_INL_
#undef HEADGATE_LINEAR_STATE_GROUP_CHUNK_INL_
#else
#define HEADGATE_LINEAR_STATE_GROUP_CHUNK_INL_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "library/core/team.hpp"
#include "library/core/workspace.hpp"
#include "library/linear_attention/cpu/backward_plan-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Writes row `token` of dx, which is dq or dk. x is the same row of q or k. `row` is x after normalisation and
/// multiplication by `factor`. `gradient` is the gradient of `row`. `norm` is 1/√(Σ x² + eps). If the problem
/// normalises:
///   x̂ = norm · x and row = factor · x̂.
///   dx = factor · norm (gradient − x̂ Σ x̂ ∘ gradient).
/// Otherwise:
///   row = factor · x.
///   dx = factor · gradient.
/// `scratch` has D elements.
template <typename T>
void write_row_gradient(const HeadRows<void>& to, const T* HWY_RESTRICT gradient, const T* HWY_RESTRICT row, T norm,
                        std::int64_t token, T factor, const LinearProblem& p, T* HWY_RESTRICT scratch) {
  if (!p.normalises) {
    for (std::int64_t x = 0; x < p.D; ++x) scratch[x] = factor * gradient[x];
    return store_row(to, scratch, token, 0, p.D);
  }
  const T along = factor == T{0} ? T{0} : dot(row, gradient, round_up(p.D, kLanes<T>)) / factor;
  for (std::int64_t x = 0; x < p.D; ++x) scratch[x] = norm * (factor * gradient[x] - row[x] * along);
  store_row(to, scratch, token, 0, p.D);
}

/// Memory of one call: buffers for the state groups of a batch, scratch of each thread, and dbeta of each head.
template <typename T>
struct LinearBackwardMemory {
  template <class Plan>
  LinearBackwardMemory(Workspace& ws, const LinearBackwardProblem& p, const Plan& plan)
      : groups(ws.take<std::byte>("groups", plan.groups_in_batch, plan.group_bytes)),
        scratch(ws.take<std::byte>("threads", plan.threads, plan.scratch_bytes)),
        dbetas(ws.take<T>("dbetas", p.sums_beta && p.gradients.dbeta.present() ? p.B : 0, p.Hv, p.T)) {}

  View<std::byte, 2> groups;   ///< (groups in a batch, bytes): memory for the results of each group
  View<std::byte, 2> scratch;  ///< (threads, bytes): scratch memory of each thread
  View<T, 3> dbetas;  ///< (B,Hv,T): dbeta of each head; empty unless all heads share one beta and dbeta is requested
};

/// Writes dbeta of one token of state h. If all heads share beta, writes to `dbetas`. Otherwise, writes to the
/// gradient's tensor.
template <typename T>
void store_dbeta(const LinearBackwardProblem& p, const TokenRange& s, std::int64_t h, std::int64_t t, T dbeta,
                 const View<T, 3>& dbetas) {
  if (p.sums_beta) {
    dbetas(s.b, h, s.t0 + t) = dbeta;
  } else {
    store_row(token_rows(p.gradients.dbeta, s, h), &dbeta, t, 0, 1);
  }
}

/// Packs the tokens of chunk c of a state group before the scans, and writes their gradients after the scans.
template <typename T>
class StateGroupChunk {
 public:
  StateGroupChunk(const LinearBackwardProblem& p, const StateGroup<T>& group, std::int64_t c, std::byte* scratch)
      : p_(p),
        group_(group),
        t0_(c * kChunk),
        end_(std::min(group.s.T, (c + 1) * kChunk)),
        b_(place_buffers<ScanBuffers<T>>(scratch, p)) {}

  /// Packs k, q and dy of the chunk's tokens for the scans.
  void pack() const {
    const StateGroupBuffers<T>& to = group_.buffers;
    pack_rows(to.keys, to.key_norms, p_.inputs.k, T{1});
    pack_rows(to.queries, to.query_norms, p_.inputs.q, static_cast<T>(p_.scale));
    const std::int64_t heads = to.dy.shape[0];
    for (std::int64_t h = 0; h < heads; ++h) {
      const HeadRows<const void> rows = token_rows(p_.incoming.dy, group_.s, group_.index * heads + h);
      load_rows(View<T, 2>(to.dy.at(h, t0_), {end_ - t0_, to.dy.shape[2]}), rows, chunk());
    }
  }

  void write_dq() const {
    const StateGroupBuffers<T>& from = group_.buffers;
    write_rows(p_.gradients.dq, from.dq, from.queries, from.query_norms, static_cast<T>(p_.scale));
  }

  void write_dk() const {
    const StateGroupBuffers<T>& from = group_.buffers;
    write_rows(p_.gradients.dk, from.dk, from.keys, from.key_norms, T{1});
  }

  void write_ddecay(std::int64_t g) const {
    const HeadRows<void> to = token_rows(p_.gradients.ddecay, group_.s, group_.state(p_, g));
    for (std::int64_t t = t0_; t < end_; ++t) {
      const T* const of_features = group_.buffers.ddecays.at(g, t);
      if (p_.decays_by_feature()) {
        store_row(to, of_features, t, 0, p_.D);
      } else {
        const T sum = sum_of(of_features, p_.D);
        store_row(to, &sum, t, 0, 1);
      }
    }
  }

  void write_dbeta(std::int64_t g, const View<T, 3>& dbetas) const {
    const std::int64_t h = group_.state(p_, g);
    for (std::int64_t t = t0_; t < end_; ++t) {
      const T dbeta = dot(group_.buffers.du.at(g, t), group_.buffers.differences.at(g, t), round_up(p_.Dv, kLanes<T>));
      store_dbeta(p_, group_.s, h, t, dbeta, dbetas);
    }
  }

 private:
  Chunk chunk() const { return {t0_, end_ - t0_, Direction::forward}; }

  /// Packs the rows of q or k for the group's heads, and saves their inverse norms.
  void pack_rows(const View<T, 3>& rows, const View<T, 2>& norms, const ConstTensorView& input, T factor) const {
    const auto& [heads, tokens, padded] = rows.shape;
    for (std::int64_t h = 0; h < heads; ++h) {
      const HeadRows<const void> from = token_rows(input, group_.s, group_.index * heads + h);
      for (std::int64_t n = 0; n < end_ - t0_; ++n)
        norms(h, t0_ + n) = load_normalised(rows.at(h, t0_ + n), from, chunk(), n, padded, p_, factor);
    }
  }

  void write_rows(const TensorView& gradient, const View<T, 3>& gradients, const View<T, 3>& rows,
                  const View<T, 2>& norms, T factor) const {
    const std::int64_t heads = gradients.shape[0];
    for (std::int64_t h = 0; h < heads; ++h) {
      const HeadRows<void> to = token_rows(gradient, group_.s, group_.index * heads + h);
      for (std::int64_t t = t0_; t < end_; ++t)
        write_row_gradient(to, gradients.at(h, t), rows.at(h, t), norms(h, t), t, factor, p_, b_.row.data);
    }
  }

  const LinearBackwardProblem& p_;
  const StateGroup<T>& group_;
  std::int64_t t0_, end_;
  ScanBuffers<T> b_;
};

template <typename T>
void pack_tokens(const LinearBackwardProblem& p, const StateGroup<T>& group, std::int64_t c, std::byte* scratch) {
  if (c * kChunk < group.s.T) StateGroupChunk<T>(p, group, c, scratch).pack();
}

template <typename T>
void write_token_gradients(const LinearBackwardProblem& p, const StateGroup<T>& group, std::int64_t c,
                           const View<T, 3>& dbetas, std::byte* scratch) {
  if (c * kChunk >= group.s.T) return;
  const StateGroupChunk<T> tokens(p, group, c, scratch);
  if (p.gradients.dq.present()) tokens.write_dq();
  if (p.gradients.dk.present()) tokens.write_dk();
  for (std::int64_t g = 0; g < p.group_states(); ++g) {
    if (p.gradients.ddecay.present()) tokens.write_ddecay(g);
    if (p.gradients.dbeta.present()) tokens.write_dbeta(g, dbetas);
  }
}

/// Sums dbeta over the heads, in ascending order, for the tokens of the chosen sequences. All threads of the team must
/// call this function.
template <typename T>
void sum_dbetas(const Team& team, const LinearBackwardProblem& p, const View<T, 3>& dbetas) {
  if (dbetas.shape[0] == 0) return;
  for (std::int64_t m = 0; m < p.chosen_count(); ++m) {
    const TokenRange s = p.chosen_sequence(m);
    const HeadRows<void> to = token_rows(p.gradients.dbeta, s, 0);
    team.in_parts_nowait(s.T, [&](std::int64_t t) {
      T sum{0};
      for (std::int64_t h = 0; h < p.Hv; ++h) sum += dbetas(s.b, h, s.t0 + t);
      store_row(to, &sum, t, 0, 1);
    });
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_UNIT_CHUNK_INL_
