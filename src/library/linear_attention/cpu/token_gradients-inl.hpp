// SPDX-License-Identifier: Apache-2.0
// The gradients of q, k, decay and beta from what the scans of the backward pass have left; once per Highway target.
#if defined(HEADGATE_LINEAR_TOKEN_GRADIENTS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_TOKEN_GRADIENTS_INL_
#undef HEADGATE_LINEAR_TOKEN_GRADIENTS_INL_
#else
#define HEADGATE_LINEAR_TOKEN_GRADIENTS_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "library/linear_attention/cpu/backward_plan-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// A row of dq or dk: `gradient` is that of x̂ = x / |x|, or of x where the problem does not divide by norms, but for
/// `factor`. With r = 1/√(Σ x² + eps): dx = r (dx̂ − x̂ Σ x̂ dx̂). `row`: scratch.
template <typename T>
void write_row_gradient(const HeadRows<void>& to, const HeadRows<const void>& from, T* HWY_RESTRICT gradient,
                        std::int64_t token, T factor, const LinearProblem& p, T* HWY_RESTRICT row) {
  const std::int64_t padded = padded_dim<T>(p.D);
  if (!p.normalises) {
    for (std::int64_t x = 0; x < p.D; ++x) row[x] = factor * gradient[x];
    return store_row(to, row, token, 0, p.D);
  }
  const T inverse = load_normalised(row, from, {token, 1, Direction::forward}, 0, padded, p, T{1});
  const T along = dot(row, gradient, round_up(p.D, kLanes<T>));
  for (std::int64_t x = 0; x < p.D; ++x) row[x] = factor * inverse * (gradient[x] - row[x] * along);
  store_row(to, row, token, 0, p.D);
}

/// The tokens of chunk c of a unit, if it has them.
template <typename T>
class TokenGradients {
 public:
  TokenGradients(const LinearBackwardProblem& p, const Unit<T>& unit, std::int64_t c, std::byte* scratch)
      : p_(p),
        unit_(unit),
        c_(c),
        t0_(c * kChunk),
        end_(std::min(unit.s.T, (c + 1) * kChunk)),
        b_(place_buffers<ScanBuffers<T>>(scratch, static_cast<const LinearProblem&>(p))) {}

  void write_dq() const {
    const std::int64_t heads = unit_.buffers.dq.shape[0];
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t head = unit_.group * heads + h;
      write_rows(p_.gradients.dq, p_.inputs.q, head, View<T, 2>(unit_.buffers.dq.at(h), row_shape()),
                 static_cast<T>(p_.scale));
    }
  }

  void write_dk() const {
    const std::int64_t heads = unit_.buffers.dk.shape[0];
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t head = unit_.group * heads + h;
      write_rows(p_.gradients.dk, p_.inputs.k, head, View<T, 2>(unit_.buffers.dk.at(h), row_shape()), T{1});
    }
  }

  void write_ddecay(std::int64_t g) const {
    const HeadRows<void> to = token_rows(p_.gradients.ddecay, unit_.s, unit_.state(p_, g));
    const bool by_feature = p_.decays_by_feature();
    T* const sums = b_.row.data;  // from the end of the chunk
    std::fill_n(sums, p_.D, T{0});
    for (std::int64_t block = 0; block < unit_.buffers.ends.shape[2]; ++block) {
      const T* const ends = unit_.buffers.ends.at(g, c_, block);
      for (std::int64_t x = 0; x < p_.D; ++x) sums[x] += ends[x];
    }
    for (std::int64_t t = end_; t-- > t0_;) {
      const T* const terms = unit_.buffers.dsums.at(g, t);
      for (std::int64_t x = 0; x < p_.D; ++x) sums[x] += terms[x];
      if (by_feature) {
        store_row(to, sums, t, 0, p_.D);
      } else {
        T sum{0};
        for (std::int64_t x = 0; x < p_.D; ++x) sum += sums[x];
        store_row(to, &sum, t, 0, 1);
      }
    }
  }

  void write_dbeta(std::int64_t g, const View<T, 3>& dbetas) const {
    const std::int64_t h = unit_.state(p_, g);
    for (std::int64_t t = t0_; t < end_; ++t) {
      const T dbeta = dot(unit_.buffers.du.at(g, t), unit_.buffers.differences.at(g, t), round_up(p_.Dv, kLanes<T>));
      if (p_.sums_beta) {
        dbetas(unit_.s.b, h, unit_.s.t0 + t) = dbeta;
      } else {
        store_row(token_rows(p_.gradients.dbeta, unit_.s, h), &dbeta, t, 0, 1);
      }
    }
  }

 private:
  std::array<std::int64_t, 2> row_shape() const { return {unit_.buffers.dq.shape[1], padded_dim<T>(p_.D)}; }

  void write_rows(const TensorView& gradient, const ConstTensorView& input, std::int64_t head, const View<T, 2>& rows,
                  T factor) const {
    const HeadRows<void> to = token_rows(gradient, unit_.s, head);
    const HeadRows<const void> from = token_rows(input, unit_.s, head);
    for (std::int64_t t = t0_; t < end_; ++t) write_row_gradient(to, from, rows.at(t), t, factor, p_, b_.row.data);
  }

  const LinearBackwardProblem& p_;
  const Unit<T>& unit_;
  std::int64_t c_, t0_, end_;
  ScanBuffers<T> b_;
};

template <typename T>
void write_token_gradients(const LinearBackwardProblem& p, const Unit<T>& unit, std::int64_t c,
                           const View<T, 3>& dbetas, std::byte* scratch) {
  if (c * kChunk >= unit.s.T) return;
  const TokenGradients<T> tokens(p, unit, c, scratch);
  if (p.gradients.dq.present()) tokens.write_dq();
  if (p.gradients.dk.present()) tokens.write_dk();
  for (std::int64_t g = 0; g < p.group_states(); ++g) {
    if (p.gradients.ddecay.present()) tokens.write_ddecay(g);
    if (p.gradients.dbeta.present()) tokens.write_dbeta(g, dbetas);
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_TOKEN_GRADIENTS_INL_
