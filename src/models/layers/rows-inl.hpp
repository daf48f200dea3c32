// SPDX-License-Identifier: Apache-2.0
// Loops over a row of any length; included once per Highway target.
#if defined(HEADGATE_LAYERS_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LAYERS_ROWS_INL_
#undef HEADGATE_LAYERS_ROWS_INL_
#else
#define HEADGATE_LAYERS_ROWS_INL_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "library/core/vec-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

using namespace ::headgate::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
using Vec = hn::Vec<Tag<T>>;

/// Loads and stores full vectors of a row. Elements S in memory are T, or bf16 if T is float.
template <typename T>
struct Whole {
  template <typename S>
  HWY_INLINE Vec<T> load(const S* p) const {
    return load_as<T>(p);
  }
  template <typename S>
  HWY_INLINE void store(Vec<T> v, S* p) const {
    store_as<T>(v, p);
  }
  /// Returns v with the lanes beyond the end of the row set to 0. A full vector has no such lanes.
  HWY_INLINE Vec<T> keep(Vec<T> v) const { return v; }
};

/// Loads and stores the last `count` < kLanes elements of a row, without accessing memory beyond them. Loads set the
/// other lanes to 0.
template <typename T>
struct Tail {
  std::size_t count;
  template <typename S>
  HWY_INLINE Vec<T> load(const S* p) const {
    HWY_ALIGN S lane[kLanes<T>] = {};
    std::memcpy(lane, p, count * sizeof(S));
    return load_as<T>(lane);
  }
  template <typename S>
  HWY_INLINE void store(Vec<T> v, S* p) const {
    HWY_ALIGN S lane[kLanes<T>];
    store_as<T>(v, lane);
    std::memcpy(p, lane, count * sizeof(S));
  }
  HWY_INLINE Vec<T> keep(Vec<T> v) const { return hn::IfThenElseZero(hn::FirstN(Tag<T>(), count), v); }
};

/// Calls body(x, lanes) for each vector of a row: x = 0, kLanes, 2·kLanes, … < n. `lanes` is Whole for full vectors and
/// Tail for the last, partial vector.
template <typename T, class Body>
HWY_INLINE void each_vector(std::int64_t n, const Body& body) {
  constexpr auto kStep = static_cast<std::int64_t>(kLanes<T>);
  std::int64_t x = 0;
  for (; x + kStep <= n; x += kStep) body(x, Whole<T>());
  if (x < n) body(x, Tail<T>{static_cast<std::size_t>(n - x)});
}

/// Returns Σ term(x, lanes) over all elements of a row. Uses four partial sums so that additions overlap. In the last
/// vector, term() must return 0 in lanes beyond the end of the row. Products of loaded values do this.
template <typename T, class Term>
HWY_INLINE T sum_vectors(std::int64_t n, const Term& term) {
  const Tag<T> d;
  constexpr auto kStep = static_cast<std::int64_t>(kLanes<T>);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  std::int64_t x = 0;
  for (; x + 4 * kStep <= n; x += 4 * kStep) {
    s0 = hn::Add(s0, term(x, Whole<T>()));
    s1 = hn::Add(s1, term(x + kStep, Whole<T>()));
    s2 = hn::Add(s2, term(x + 2 * kStep, Whole<T>()));
    s3 = hn::Add(s3, term(x + 3 * kStep, Whole<T>()));
  }
  for (; x + kStep <= n; x += kStep) s0 = hn::Add(s0, term(x, Whole<T>()));
  if (x < n) s1 = hn::Add(s1, term(x, Tail<T>{static_cast<std::size_t>(n - x)}));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

/// Computes e^x for x ≤ 0. The relative error is the error of exp2_fast plus |x| rounding errors.
template <class D>
HWY_INLINE hn::Vec<D> exp_fast(D d, hn::Vec<D> x) {
  return exp2_fast(d, hn::Mul(x, hn::Set(d, static_cast<hn::TFromD<D>>(kLog2e))));
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LAYERS_ROWS_INL_
