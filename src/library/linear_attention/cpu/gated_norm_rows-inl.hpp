// SPDX-License-Identifier: Apache-2.0
// Computes the gated norm on dense rows; included once per Highway target.
#if defined(HEADGATE_LINEAR_ATTENTION_GATED_NORM_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_ATTENTION_GATED_NORM_ROWS_INL_
#undef HEADGATE_LINEAR_ATTENTION_GATED_NORM_ROWS_INL_
#else
#define HEADGATE_LINEAR_ATTENTION_GATED_NORM_ROWS_INL_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "library/core/gate_functions-inl.hpp"
#include "library/core/vec-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Stands for an absent gate: the value is always 1, and the derivative 0.
struct OpenGate {
  template <class D, class V>
  static HWY_INLINE V value(D d, V /*z*/) {
    return hn::Set(d, hn::TFromD<D>{1});
  }
  template <class D, class V>
  static HWY_INLINE V derivative(D d, V /*z*/) {
    return hn::Zero(d);
  }
};

/// Calls visit(Gate<fn>{}), or visit(OpenGate{}) if `fn` is none.
template <class Visit>
HWY_INLINE void with_gate_or_open(GateFn fn, const Visit& visit) {
  if (fn == GateFn::none) return visit(OpenGate{});
  with_gate(fn, visit);
}

/// Returns the vector of gate logits z that begins at element i. Returns zeros without reading z if there is no gate.
template <typename T, class Gate, typename Stored>
HWY_INLINE hn::Vec<Tag<T>> load_logits([[maybe_unused]] const Stored* z, [[maybe_unused]] std::int64_t i) {
  if constexpr (std::is_same_v<Gate, OpenGate>) {
    return hn::Zero(Tag<T>());
  } else {
    return load_as<T>(z + i);
  }
}

/// Returns Σ x² over n elements. n must be a multiple of kLanes.
template <typename T, typename Stored>
HWY_INLINE T sum_of_squares(const Stored* HWY_RESTRICT x, std::int64_t n) {
  const Tag<T> d;
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  constexpr std::int64_t kN = kLanes<T>;
  const auto add = [&](auto& sum, std::int64_t i) HWY_ATTR {
    const auto v = load_as<T>(x + i);
    sum = hn::MulAdd(v, v, sum);
  };
  std::int64_t i = 0;
  for (; i + 4 * kN <= n; i += 4 * kN) {
    add(sum0, i);
    add(sum1, i + kN);
    add(sum2, i + 2 * kN);
    add(sum3, i + 3 * kN);
  }
  for (; i < n; i += kN) add(sum0, i);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

/// The scale 1/rms of a row.
/// Usually the scale is `factor`, and `exponent` is 0. If squares of the row would overflow or underflow, scale_row()
/// multiplies the stored row by 2^exponent. The stored row then has the scale `factor`, and the original row has the
/// scale factor · 2^exponent.
template <typename T>
struct RowScale {
  T factor = 0;
  int exponent = 0;
};

/// Computes the scale of a row of D features from `sum`, the sum of their squares. Returns false if a square
/// overflowed, or if squares lost precision by underflow. The caller must then use scale_row().
template <typename T>
HWY_INLINE bool find_scale(T sum, std::int64_t D, double eps, RowScale<T>& scale) {
  constexpr double kLeast = sizeof(T) == 4 ? 0x1p-100 : 0x1p-960;
  const double mean = static_cast<double>(sum) / static_cast<double>(D) + eps;
  if (!(sum <= std::numeric_limits<T>::max() && mean >= kLeast)) return false;
  scale = {static_cast<T>(1.0 / std::sqrt(mean)), 0};
  return true;
}

/// Computes the scale of any row of D features, padded with zeros to n. Multiplies a finite row by a power of two that
/// keeps the squares in range. Returns factor 0 for a row with an infinity, and for a row of zeros with eps 0.
template <typename T>
HWY_NOINLINE RowScale<T> scale_row(T* HWY_RESTRICT x, std::int64_t n, std::int64_t D, double eps) {
  double largest = std::sqrt(eps);
  for (std::int64_t i = 0; i < D; ++i) {
    if (std::isnan(x[i])) return {x[i], 0};
    largest = std::max(largest, static_cast<double>(std::abs(x[i])));
  }
  if (largest == 0.0 || std::isinf(largest)) return {};
  const int exponent = -std::ilogb(largest);
  for (std::int64_t i = 0; i < D; ++i) x[i] = std::ldexp(x[i], exponent);
  const double mean = static_cast<double>(sum_of_squares<T>(x, n)) / static_cast<double>(D);
  return {static_cast<T>(1.0 / std::sqrt(mean + std::ldexp(eps, 2 * exponent))), exponent};
}

/// Operands of one row of the forward pass. `factor` is the row's scale. z is not read if there is no gate.
template <typename T, typename Stored>
struct NormRow {
  const Stored* x;
  const Stored* z;
  Stored* y;
  const T* weight;
  T factor;
};

/// Computes kVecs vectors of y, beginning at element i. Computes the gate values of all vectors first, so that their
/// dependency chains overlap.
template <std::int64_t kVecs, class Gate, typename T, typename Stored>
HWY_INLINE void norm_vectors(const NormRow<T, Stored>& row, std::int64_t i) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  const auto factor = hn::Set(d, row.factor);
  hn::Vec<Tag<T>> g[kVecs];
  HWY_UNROLL(8) for (std::int64_t v = 0; v < kVecs; ++v) g[v] = Gate::value(d, load_logits<T, Gate>(row.z, i + v * kN));
  HWY_UNROLL(8) for (std::int64_t v = 0; v < kVecs; ++v) {
    const std::int64_t at = i + v * kN;
    const auto normed = hn::Mul(hn::Mul(load_as<T>(row.x + at), factor), hn::LoadU(d, row.weight + at));
    store_as<T>(hn::Mul(normed, g[v]), row.y + at);
  }
}

/// Computes y = x · factor · weight · g(z) for `count` rows of n elements. n must be a multiple of kLanes.
template <typename T, typename Stored>
HWY_NOINLINE void norm_rows(const NormRow<T, Stored>* rows, std::int64_t count, std::int64_t n, GateFn fn) {
  constexpr std::int64_t kVecs = 4;
  with_gate_or_open(fn, [&](auto gate) HWY_ATTR {
    using Gate = decltype(gate);
    for (std::int64_t r = 0; r < count; ++r) {
      const NormRow<T, Stored> row = rows[r];
      std::int64_t i = 0;
      for (; i + kVecs * kLanes<T> <= n; i += kVecs * kLanes<T>) norm_vectors<kVecs, Gate>(row, i);
      for (; i < n; i += kLanes<T>) norm_vectors<1, Gate>(row, i);
    }
  });
}

/// Operands and results of one row of the backward pass. Each array has n elements; n is a multiple of kLanes.
template <typename T>
struct NormGradientRow {
  T* x;  ///< input: the row, possibly rescaled by scale_row(); output: the normalised row x · factor
  const T* dy;
  const T* z;  ///< not read if there is no gate
  const T* weight;
  T* dx;
  T* dz;       ///< not written if there is no gate
  T* dweight;  ///< gradient of the weights; the kernel adds to it
};

/// Computes the gradients of a row of D features, padded with zeros to n.
template <typename T>
HWY_NOINLINE void norm_row_backward(const NormGradientRow<T>& row, const RowScale<T>& scale, std::int64_t n,
                                    std::int64_t D, GateFn fn) {
  const Tag<T> d;
  const auto factor = hn::Set(d, scale.factor);
  auto products = hn::Zero(d);
  with_gate_or_open(fn, [&](auto gate) HWY_ATTR {
    for (std::int64_t i = 0; i < n; i += kLanes<T>) {
      const auto z = load_logits<T, decltype(gate)>(row.z, i);
      const auto dy = hn::LoadU(d, row.dy + i);
      const auto weight = hn::LoadU(d, row.weight + i);
      const auto normed = hn::Mul(hn::LoadU(d, row.x + i), factor);
      const auto gated = hn::Mul(dy, gate.value(d, z));
      const auto e = hn::Mul(gated, weight);
      hn::StoreU(hn::MulAdd(gated, normed, hn::LoadU(d, row.dweight + i)), d, row.dweight + i);
      if constexpr (!std::is_same_v<decltype(gate), OpenGate>)
        hn::StoreU(hn::Mul(hn::Mul(hn::Mul(dy, normed), weight), gate.derivative(d, z)), d, row.dz + i);
      products = hn::MulAdd(e, normed, products);
      hn::StoreU(normed, d, row.x + i);
      hn::StoreU(e, d, row.dx + i);
    }
  });
  const auto mean = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, products)) / static_cast<T>(D));
  for (std::int64_t i = 0; i < n; i += kLanes<T>) {
    const auto dx = hn::NegMulAdd(hn::LoadU(d, row.x + i), mean, hn::LoadU(d, row.dx + i));
    hn::StoreU(hn::Mul(dx, factor), d, row.dx + i);
  }
  if (scale.exponent == 0) return;
  for (std::int64_t i = 0; i < n; ++i) row.dx[i] = std::ldexp(row.dx[i], scale.exponent);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_ATTENTION_GATED_NORM_ROWS_INL_
