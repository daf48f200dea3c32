// SPDX-License-Identifier: Apache-2.0
// What the tokens of a chunk bring to a scan: decays as factors, and keys and queries that carry them; once per target.
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

// A scan does not multiply the state by e^g at each token, which would be one instruction in four. The state S of a
// scan is kept as S̃, with S = F ∘ S̃ for a factor F of the whole state or of each row. A token changes F alone; what it
// reads the state with is multiplied by F, what it adds to the state by 1/F. Where F would leave [1/kMostFactor,
// kMostFactor], S̃ is multiplied by it and F starts from 1 again. F is 1 between chunks.

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Tokens of a chunk: what is packed at a time, and how far apart states lie that the backward pass keeps. It decides
/// bits: F is 1 at multiples of it.
inline constexpr std::int64_t kChunk = 64;

/// Small enough that S̃ overflows only where S is above 1/64 of the largest number.
inline constexpr double kMostFactor = 64.0;

/// Numbers of a dimension of D or Dv as buffers have them: whole vectors, and what is visited together in plain C++ or
/// as rows of a state. Of columns of a block, those beyond whole vectors are not written.
template <typename T>
constexpr std::int64_t padded_dim(std::int64_t n) {
  return round_up(n, std::max<std::int64_t>(kLanes<T>, 4));
}

/// In which order a scan meets the tokens of a sequence.
enum class Direction { forward, reverse };

/// Tokens t0 … t0 + count of a sequence's head, in the order of a scan.
struct Chunk {
  std::int64_t t0, count;
  Direction direction;

  /// The token of step n.
  std::int64_t token(std::int64_t n) const { return direction == Direction::forward ? t0 + n : t0 + count - 1 - n; }
};

/// e^x in the kernels' accuracy; ∞ where it is too large.
template <typename T>
HWY_INLINE hn::Vec<Tag<T>> exp_of(hn::Vec<Tag<T>> x) {
  const Tag<T> d;
  constexpr T kLargest = sizeof(T) == 4 ? T{127.5} : T{1023.5};
  const auto power = hn::Mul(x, hn::Set(d, static_cast<T>(kLog2e)));
  const auto result = exp2_fast(d, power);
  return hn::IfThenElse(hn::Ge(power, hn::Set(d, kLargest)), hn::Inf(d), result);
}

/// The factors F of a chunk's tokens, for the whole state (one column) or for each row of it.
///
/// forward: the state of token t has met the decay of t itself: F is that of e^{g_t} S_{t−1}.
/// reverse: the gradient of S_t has met the decays of the tokens after t. After the last step it meets that of the
/// first token, and is the gradient of S_{t0−1}.
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

  /// `decay`: g of the head.
  void make(const HeadRows<const void>& decay, const Chunk& chunk) const {
    if (!present()) return;
    std::fill_n(running_.data, running_.shape[0], T{1});
    const std::int64_t shift = chunk.direction == Direction::forward ? 0 : 1;
    for (std::int64_t n = 0; n < chunk.count; ++n) {
      if (n >= shift) multiply_running(decay, chunk.token(n - shift));
      add_step(n);
    }
    if (shift == 1) multiply_running(decay, chunk.t0);
  }

  /// F before S̃ is multiplied by it, where it is; what then multiplies it.
  const T* before(std::int64_t n) const { return before_.at(n); }
  /// Whether S̃ is multiplied by before(n) when token n comes.
  bool rescales(std::int64_t n) const { return present() && rescales_(n); }
  /// 1/F behind that.
  const T* inverse(std::int64_t n) const { return inverse_.at(n); }
  /// F behind the last token.
  const T* last() const { return running_.data; }

  /// to[0 .. n) = from ∘ F before, F behind or 1/F of step s; from itself where nothing decays. to may be from.
  void times_before(T* to, const T* from, std::int64_t s, std::int64_t n) const {
    present() ? multiply(to, from, before(s), n) : copy(to, from, n);
  }
  void times_behind(T* to, const T* from, std::int64_t s, std::int64_t n) const {
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
    bool fits = true;  // not where a factor is NaN
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
  View<T, 1> exps_, running_;  ///< whole vectors
};

/// Asks for the row of the step that comes kStepsAhead after step n; for nothing where rows are not dense. Rows of a
/// head often lie a power of two apart, which leaves few sets of a cache to them: a first-level cache holds eight.
template <typename Void>
HWY_INLINE void prefetch_ahead(const HeadRows<Void>& rows, const Chunk& chunk, std::int64_t n) {
  constexpr std::int64_t kStepsAhead = 4, kLine_bytes = 64;
  if (rows.stride != 1 || n + kStepsAhead >= chunk.count) return;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(rows.dtype));
  const std::int64_t token = chunk.token(n + kStepsAhead);
  const char* const first = static_cast<const char*>(rows.data) + (rows.start + token * rows.row_stride) * bytes;
  for (std::int64_t at = 0; at < rows.cols * bytes; at += kLine_bytes) hwy::Prefetch(first + at);
}

/// 1/√(Σ x² + eps) of n numbers, 0 where that is 1/0. It is f64: squares of f32 numbers do not overflow there, nor do
/// inverses.
template <typename T>
HWY_INLINE double inverse_norm(const T* HWY_RESTRICT x, std::int64_t n, double eps) {
  double sum[4] = {};
  for (std::int64_t i = 0; i < n; i += 4) {
    for (std::int64_t l = 0; l < 4; ++l) sum[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
  }
  const double square = (sum[0] + sum[1]) + (sum[2] + sum[3]) + eps;
  return square == 0.0 ? 0.0 : 1.0 / std::sqrt(square);
}

/// Σ a ∘ b of n numbers, whole vectors.
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

/// The row of step n of q or k as the recurrence has it: divided by its norm where the problem asks for it, times
/// `factor`, with zeros up to `padded` columns. Returns the inverse norm, or 1.
template <typename T>
T load_normalised(T* HWY_RESTRICT to, const HeadRows<const void>& from, const Chunk& chunk, std::int64_t n,
                  std::int64_t padded, const LinearProblem& p, T factor) {
  prefetch_ahead(from, chunk, n);
  load_row(to, from, chunk.token(n), 0, from.cols);
  std::fill(to + from.cols, to + padded, T{0});
  const double inverse_f64 = p.normalises ? inverse_norm(to, padded, p.eps) : 1.0;
  constexpr T kLargest = std::numeric_limits<T>::max();
  if (inverse_f64 > static_cast<double>(kLargest)) {  // a row of subnormal numbers, or of zeros with a tiny eps
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

/// The rows of a token in a tensor (B,H,T,…) of a sequence.
template <typename Void>
HeadRows<Void> token_rows(const BasicTensorView<Void>& tensor, const TokenRange& s, std::int64_t h) {
  return HeadRows<Void>(tensor, s.b, h).range(s.t0, s.T);
}

/// beta of a head's tokens in the order of a scan; 1 where there is none.
template <typename T>
void load_betas(const View<T, 1>& to, const LinearProblem& p, const TokenRange& s, std::int64_t h, const Chunk& chunk) {
  if (!p.inputs.beta.present()) {
    std::fill_n(to.data, chunk.count, T{1});
    return;
  }
  const HeadRows<const void> rows = token_rows(p.inputs.beta, s, h);
  for (std::int64_t n = 0; n < chunk.count; ++n) load_row(to.at(n), rows, chunk.token(n), 0, 1);
}

/// Rows of a chunk's tokens in the order of a scan, with zeros up to the columns of `to`.
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
