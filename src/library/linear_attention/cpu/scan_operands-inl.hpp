// SPDX-License-Identifier: Apache-2.0
// Packs the operands of a chunk's tokens for a scan: decay factors, and keys and queries times these factors. Included
// once per Highway target.
#if defined(HEADGATE_LINEAR_SCAN_OPERANDS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_SCAN_OPERANDS_INL_
#undef HEADGATE_LINEAR_SCAN_OPERANDS_INL_
#else
#define HEADGATE_LINEAR_SCAN_OPERANDS_INL_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "hwy/cache_control.h"
#include "library/core/head_rows-inl.hpp"
#include "library/core/vec-inl.hpp"
#include "library/core/workspace.hpp"
#include "library/linear_attention/cpu/state_block-inl.hpp"
#include "library/linear_attention/problem.hpp"

// Scans avoid multiplying the state S by e^g at each token, which would be one instruction in four. Instead of S, a
// scan stores S̃ with S = F ∘ S̃. F is one factor for the whole state, or one per row. The decay of a token changes
// only F. To compute Sᵀ x, a scan multiplies S̃ᵀ by F ∘ x. To add w xᵀ to S, a scan adds (w / F) xᵀ to S̃.
//
// If F leaves [1/kMostFactor, kMostFactor], the scan rescales: it multiplies S̃ by F and resets F to 1. A scan also
// rescales at the end of each chunk.

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Number of tokens in a chunk. Operands are packed chunk by chunk, and the backward pass saves one state per chunk.
/// The number affects the last bits of results, because F is reset to 1 at the end of each chunk.
inline constexpr std::int64_t kChunk = 64;

/// Bound of the decay factors F: a scan rescales if F leaves [1/kMostFactor, kMostFactor]. A scan stores S̃ = S / F
/// instead of the state S. With the bound 64, S̃ overflows only if S exceeds 1/64 of the largest number.
inline constexpr double kMostFactor = 64.0;

/// Returns the size of D or Dv in buffers: padded to a multiple of kLanes and of 4. Scalar loops process 4 elements at
/// a time, and passes process kMostVectors rows of a state at a time.
template <typename T>
constexpr std::int64_t padded_dim(std::int64_t n) {
  return round_up(n, std::max<std::int64_t>(kLanes<T>, 4));
}

/// Order in which a scan visits the tokens of a sequence.
enum class Direction { forward, reverse };

/// Tokens [t0, t0 + count) of a sequence, in the order in which a scan visits them.
struct Chunk {
  std::int64_t t0, count;
  Direction direction;

  /// Returns the token that a scan visits at step n of the chunk.
  std::int64_t token(std::int64_t n) const { return direction == Direction::forward ? t0 + n : t0 + count - 1 - n; }
};

/// Returns e^x, or ∞ if x · log₂e is at least 127.5 (f32) or 1023.5 (f64).
template <typename T>
HWY_INLINE hn::Vec<Tag<T>> exp_of(hn::Vec<Tag<T>> x) {
  const Tag<T> d;
  constexpr T kLargest = sizeof(T) == 4 ? T{127.5} : T{1023.5};
  const auto power = hn::Mul(x, hn::Set(d, static_cast<T>(kLog2e)));
  const auto result = exp2_fast(d, power);
  return hn::IfThenElse(hn::Ge(power, hn::Set(d, kLargest)), hn::Inf(d), result);
}

/// Number of steps by which rows are prefetched ahead. It is small, because rows of a head often lie a power of two
/// apart. Such rows map to few sets of the L1 cache, which then holds only eight rows.
inline constexpr std::int64_t kStepsAhead = 4;

/// Prefetches the row that step n + kStepsAhead visits, if rows are dense.
template <typename Void>
HWY_INLINE void prefetch_ahead(const HeadRows<Void>& rows, const Chunk& chunk, std::int64_t n) {
  constexpr std::int64_t kLine_bytes = 64;
  if (rows.stride != 1 || n + kStepsAhead >= chunk.count) return;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(rows.dtype));
  const std::int64_t token = chunk.token(n + kStepsAhead);
  const char* const first = static_cast<const char*>(rows.data) + (rows.start + token * rows.row_stride) * bytes;
  for (std::int64_t at = 0; at < rows.cols * bytes; at += kLine_bytes) hwy::Prefetch(first + at);
}

/// Prefetches n elements of a dense row.
template <typename T>
HWY_INLINE void prefetch_row(const T* row, std::int64_t n) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t x = 0; x < n; x += kLine) hwy::Prefetch(row + x);
}

/// Decay factors F at each token of a chunk: one for the whole state, or one per row of the state. F is the product of
/// the decays e^g since the start of the chunk's scan, or since the last rescaling. The direction of the scan
/// determines whether F at token t includes the decay of t:
///
///   - Forward: F includes the decay of t, because the scan uses F for e^{g_t} S_{t−1}.
///   - Reverse: F includes only the decays of the tokens after t, because the scan uses F for the gradient of S_t.
///     last() also includes the decay of the chunk's first token t0, and applies to the gradient of S_{t0−1}.
template <typename T>
class DecayFactors {
 public:
  DecayFactors(Workspace& ws, const LinearProblem& p)
      : by_feature_(p.decays_by_feature()),
        cols_(!p.has_decay() ? 0
              : by_feature_  ? padded_dim<T>(p.D)
                             : 1),
        before_(ws.take<T>("factors", cols_ > 0 ? kChunk : 0, cols_)),
        inverse_(ws.take<T>("factors", cols_ > 0 ? kChunk : 0, cols_)),
        rescales_(ws.take<bool>("factors", kChunk)),
        exps_(ws.take<T>("factors", round_up(std::max<std::int64_t>(cols_, 1), kLanes<T>))),
        running_(ws.take<T>("factors", exps_.shape[0])) {}

  bool present() const { return cols_ > 0; }
  bool by_feature() const { return by_feature_; }

  /// Computes the factors of a chunk. `decay` holds the logarithms g of the head's decays.
  void make(const HeadRows<const void>& decay, const Chunk& chunk) const {
    if (!present()) return;
    std::fill_n(running_.data, running_.shape[0], T{1});
    const std::int64_t shift = chunk.direction == Direction::forward ? 0 : 1;
    for (std::int64_t n = 0; n < chunk.count; ++n) {
      prefetch_ahead(decay, chunk, n);
      if (n >= shift) multiply_running(decay, chunk.token(n - shift));
      add_step(n);
    }
    if (shift == 1) multiply_running(decay, chunk.t0);
  }

  /// Returns F at step n, before any rescaling in this step. A step that rescales multiplies the stored state by this
  /// F.
  const T* before(std::int64_t n) const { return before_.at(n); }
  /// Returns whether step n rescales, that is, multiplies the stored state by before(n) and resets F to 1.
  bool rescales(std::int64_t n) const { return present() && rescales_(n); }
  /// Returns 1/F at step n, after any rescaling in this step. The result is 1 if the step rescales.
  const T* inverse(std::int64_t n) const { return inverse_.at(n); }
  /// Returns F after the last step of the chunk. The stored state times this F gives the state.
  const T* last() const { return running_.data; }

  /// These functions multiply n elements of `from` by the decay factors of step s, or divide by them. They write the
  /// result to `to`, which may alias `from`. Without decay, they copy.
  ///   - times_before() multiplies by F before any rescaling in step s.
  ///   - times_after() multiplies by F after any rescaling in step s, which is 1 if the step rescales.
  ///   - times_inverse() divides by F after any rescaling in step s.
  void times_before(T* to, const T* from, std::int64_t s, std::int64_t n) const {
    present() ? multiply(to, from, before(s), n) : copy(to, from, n);
  }
  void times_after(T* to, const T* from, std::int64_t s, std::int64_t n) const {
    rescales(s) || !present() ? copy(to, from, n) : multiply(to, from, before(s), n);
  }
  void times_inverse(T* to, const T* from, std::int64_t s, std::int64_t n) const {
    present() ? multiply(to, from, inverse(s), n) : copy(to, from, n);
  }

 private:
  void multiply_running(const HeadRows<const void>& decay, std::int64_t token) const {
    const Tag<T> d;
    T* e = exps_.data;
    const std::int64_t padded = running_.shape[0];
    std::fill_n(e, padded, T{0});
    load_row(e, decay, token, 0, decay.cols);
    for (std::int64_t x = 0; x < padded; x += kLanes<T>) {
      const auto power = exp_of<T>(hn::LoadU(d, e + x));
      hn::StoreU(hn::Mul(hn::LoadU(d, running_.data + x), power), d, running_.data + x);
    }
  }

  void add_step(std::int64_t n) const {
    const Tag<T> d;
    const auto least = hn::Set(d, static_cast<T>(1.0 / kMostFactor)), most = hn::Set(d, static_cast<T>(kMostFactor));
    T* running = running_.data;
    std::copy_n(running, cols_, before_.at(n));
    bool fits = true;  // false if a factor is out of range or NaN
    for (std::int64_t x = 0; x < running_.shape[0]; x += kLanes<T>) {
      const auto f = hn::LoadU(d, running + x);
      fits = fits && hn::AllTrue(d, hn::And(hn::Ge(f, least), hn::Le(f, most)));
    }
    rescales_(n) = !fits;
    if (!fits) {
      std::fill_n(running, running_.shape[0], T{1});
      std::fill_n(inverse_.at(n), cols_, T{1});
      return;
    }
    for (std::int64_t x = 0; x < cols_; ++x) inverse_(n, x) = T{1} / running[x];
  }

  static void copy(T* to, const T* from, std::int64_t n) {
    if (to != from) std::copy_n(from, n, to);
  }

  void multiply(T* to, const T* from, const T* factors, std::int64_t n) const {
    const Tag<T> d;
    if (!by_feature_) {
      const auto f = hn::Set(d, factors[0]);
      for (std::int64_t x = 0; x < n; x += kLanes<T>) hn::StoreU(hn::Mul(hn::LoadU(d, from + x), f), d, to + x);
    } else {
      for (std::int64_t x = 0; x < n; x += kLanes<T>)
        hn::StoreU(hn::Mul(hn::LoadU(d, from + x), hn::LoadU(d, factors + x)), d, to + x);
    }
  }

  bool by_feature_;
  std::int64_t cols_;
  View<T, 2> before_, inverse_;  ///< (kChunk, cols)
  View<bool, 1> rescales_;
  /// exps_ holds the logarithms g of one token's decays, running_ the product F so far. Both have cols_ elements,
  /// rounded up to whole vectors.
  View<T, 1> exps_, running_;
};

/// Returns 1/√(Σ x² + eps) over n numbers. Returns 0 if the square root is 0. Computes in f64: neither the squares of
/// f32 numbers nor the result can then overflow.
template <typename T>
HWY_INLINE double inverse_norm(const T* HWY_RESTRICT x, std::int64_t n, double eps) {
  double sum[4] = {};
  for (std::int64_t i = 0; i < n; i += 4) {
    for (std::int64_t l = 0; l < 4; ++l) sum[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
  }
  const double square = (sum[0] + sum[1]) + (sum[2] + sum[3]) + eps;
  return square == 0.0 ? 0.0 : 1.0 / std::sqrt(square);
}

/// Returns the dot product of n numbers. n must be a multiple of kLanes.
template <typename T>
HWY_INLINE T dot(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, std::int64_t n) {
  const Tag<T> d;
  auto even = hn::Zero(d), odd = hn::Zero(d);
  std::int64_t x = 0;
  for (; x + 2 * kLanes<T> <= n; x += 2 * kLanes<T>) {
    even = hn::MulAdd(hn::LoadU(d, a + x), hn::LoadU(d, b + x), even);
    odd = hn::MulAdd(hn::LoadU(d, a + x + kLanes<T>), hn::LoadU(d, b + x + kLanes<T>), odd);
  }
  if (x < n) even = hn::MulAdd(hn::LoadU(d, a + x), hn::LoadU(d, b + x), even);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

/// Returns the sum of n numbers.
template <typename T>
HWY_INLINE T sum_of(const T* x, std::int64_t n) {
  const Tag<T> d;
  auto lanes = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) lanes = hn::Add(lanes, hn::LoadU(d, x + i));
  T sum = hn::GetLane(hn::SumOfLanes(d, lanes));
  for (; i < n; ++i) sum += x[i];
  return sum;
}

/// Loads the row of q or k that step n visits, and pads the row with zeros to `padded` columns. If the problem
/// normalises, divides the row by its L2 norm. Then multiplies the row by `factor`. Returns the inverse norm, limited
/// to the largest number of type T, or 1 without normalisation.
template <typename T>
T load_normalised(T* HWY_RESTRICT to, const HeadRows<const void>& from, const Chunk& chunk, std::int64_t n,
                  std::int64_t padded, const LinearProblem& p, T factor) {
  prefetch_ahead(from, chunk, n);
  load_row(to, from, chunk.token(n), 0, from.cols);
  std::fill(to + from.cols, to + padded, T{0});
  const double inverse_f64 = p.normalises ? inverse_norm(to, padded, p.eps) : 1.0;
  constexpr T kLargest = std::numeric_limits<T>::max();
  if (inverse_f64 > static_cast<double>(kLargest)) {  // a tiny norm: subnormal numbers, or zeros with a tiny eps
    for (std::int64_t x = 0; x < padded; ++x) to[x] = static_cast<T>(static_cast<double>(to[x]) * inverse_f64) * factor;
    return kLargest;
  }
  const Tag<T> d;
  const T inverse = static_cast<T>(inverse_f64), all = inverse * factor;
  if (p.normalises || factor != T{1}) {
    const auto f = hn::Set(d, all);
    for (std::int64_t x = 0; x < padded; x += kLanes<T>) hn::StoreU(hn::Mul(hn::LoadU(d, to + x), f), d, to + x);
  }
  return inverse;
}

/// Returns the rows of head h in a tensor (B,H,T,…), restricted to the tokens of one sequence.
template <typename Void>
HeadRows<Void> token_rows(const BasicTensorView<Void>& tensor, const TokenRange& s, std::int64_t h) {
  return HeadRows<Void>(tensor, s.b, h).range(s.t0, s.T);
}

/// Loads beta of a chunk's tokens in the order in which a scan visits them. Fills in 1 if beta is absent.
template <typename T>
void load_betas(const View<T, 1>& to, const LinearProblem& p, const TokenRange& s, std::int64_t h, const Chunk& chunk) {
  if (!p.inputs.beta.present()) {
    std::fill_n(to.data, chunk.count, T{1});
    return;
  }
  const HeadRows<const void> rows = token_rows(p.inputs.beta, s, h);
  for (std::int64_t n = 0; n < chunk.count; ++n) load_row(to.at(n), rows, chunk.token(n), 0, 1);
}

/// Loads the rows of a chunk's tokens in the order in which a scan visits them. Pads each row with zeros to the width
/// of `to`.
template <typename T>
void load_rows(const View<T, 2>& to, const HeadRows<const void>& from, const Chunk& chunk) {
  for (std::int64_t n = 0; n < chunk.count; ++n) {
    prefetch_ahead(from, chunk, n);
    load_row(to.at(n), from, chunk.token(n), 0, from.cols);
    std::fill(to.at(n) + from.cols, to.at(n) + to.shape[1], T{0});
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_SCAN_OPERANDS_INL_
