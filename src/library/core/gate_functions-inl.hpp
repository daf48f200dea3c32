// SPDX-License-Identifier: Apache-2.0
// The vector code of the gate functions; included once per Highway target.
#if defined(HEADGATE_GATES_GATE_FUNCTIONS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_GATES_GATE_FUNCTIONS_INL_
#undef HEADGATE_GATES_GATE_FUNCTIONS_INL_
#else
#define HEADGATE_GATES_GATE_FUNCTIONS_INL_
#endif

#include <cstddef>
#include <utility>

#include "hwy/contrib/math/math-inl.h"
#include "library/core/gate_functions.hpp"
#include "library/core/vec-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Vector code of a gate function g. value() returns g(z), and derivative() returns g′(z). If g has no zero, ratio()
/// returns g′(z)/g(z). The backward pass uses ratio() to compute dz from y = o ∘ g without o. The relative errors of
/// all three are at most 8 + 2|z| unit roundoffs (docs/reference/numerics.md).
template <GateFn kFn>
struct Gate;

/// Properties of a gate function, taken from its row in kGateFunctions.
template <GateFn kFn>
struct GateRowTraits {
  static constexpr bool kHasZero = gate_function(kFn).has_zero;
};

template <>
struct Gate<GateFn::sigmoid> : GateRowTraits<GateFn::sigmoid> {
  template <class D, class V>
  static HWY_INLINE V value(D d, V z) {
    return SigmoidPair<D>(d, z).sigma;
  }
  template <class D, class V>
  static HWY_INLINE V derivative(D d, V z) {
    const SigmoidPair<D> s(d, z);
    return hn::Mul(s.sigma, s.complement);
  }
  template <class D, class V>
  static HWY_INLINE V ratio(D d, V z) {
    return SigmoidPair<D>(d, z).complement;
  }
};

using SigmoidGate = Gate<GateFn::sigmoid>;

template <>
struct Gate<GateFn::sigmoid2> : GateRowTraits<GateFn::sigmoid2> {
  template <class D, class V>
  static HWY_INLINE V value(D d, V z) {
    const V s = SigmoidGate::value(d, z);
    return hn::Add(s, s);
  }
  template <class D, class V>
  static HWY_INLINE V derivative(D d, V z) {
    const V s = SigmoidGate::derivative(d, z);
    return hn::Add(s, s);
  }
  template <class D, class V>
  static HWY_INLINE V ratio(D d, V z) {
    return SigmoidGate::ratio(d, z);
  }
};

template <>
struct Gate<GateFn::ns_sigmoid> : GateRowTraits<GateFn::ns_sigmoid> {
  template <class D, class V>
  static HWY_INLINE V value(D d, V z) {
    const V half = hn::Set(d, static_cast<hn::TFromD<D>>(0.5));
    return hn::MulAdd(half, SigmoidGate::value(d, z), half);
  }
  template <class D, class V>
  static HWY_INLINE V derivative(D d, V z) {
    return hn::Mul(hn::Set(d, static_cast<hn::TFromD<D>>(0.5)), SigmoidGate::derivative(d, z));
  }
  template <class D, class V>
  static HWY_INLINE V ratio(D d, V z) {
    return hn::Div(derivative(d, z), value(d, z));
  }
};

template <>
struct Gate<GateFn::silu> : GateRowTraits<GateFn::silu> {
  template <class D, class V>
  static HWY_INLINE V value(D d, V z) {
    return hn::Mul(z, SigmoidGate::value(d, z));
  }
  /// Returns the derivative of zσ(z), that is, σ + zσ(1 − σ) with σ = σ(z).
  template <class D, class V>
  static HWY_INLINE V derivative(D d, V z) {
    const SigmoidPair<D> s(d, z);
    return hn::MulAdd(hn::Mul(z, s.sigma), s.complement, s.sigma);
  }
};

template <>
struct Gate<GateFn::softplus> : GateRowTraits<GateFn::softplus> {
  /// Returns softplus as max(z, 0) + log(1 + e^−|z|), which cannot overflow.
  template <class D, class V>
  static HWY_INLINE V value(D d, V z) {
    const SigmoidPair<D> s(d, z);
    return hn::Add(hn::Max(z, hn::Zero(d)), hn::Log1p(d, s.e));
  }
  template <class D, class V>
  static HWY_INLINE V derivative(D d, V z) {
    return SigmoidGate::value(d, z);
  }
  /// Returns σ(z)/softplus(z). Returns 1 where softplus(z) underflows to 0, because the ratio tends to 1 as z → −∞.
  template <class D, class V>
  static HWY_INLINE V ratio(D d, V z) {
    const V g = value(d, z);
    const V one = hn::Set(d, hn::TFromD<D>{1});
    return hn::IfThenElse(hn::Eq(g, hn::Zero(d)), one, hn::Div(derivative(d, z), g));
  }
};

template <>
struct Gate<GateFn::identity> : GateRowTraits<GateFn::identity> {
  template <class D, class V>
  static HWY_INLINE V value(D /*d*/, V z) {
    return z;
  }
  template <class D, class V>
  static HWY_INLINE V derivative(D d, V /*z*/) {
    return hn::Set(d, hn::TFromD<D>{1});
  }
};

template <class Visit, std::size_t... kRow>
HWY_INLINE void with_gate_row(std::size_t row, const Visit& visit, std::index_sequence<kRow...> /*rows*/) {
  const bool found = ((row == kRow && (visit(Gate<kGateFunctions[kRow].value>{}), true)) || ...);
  static_cast<void>(found);
}

/// Calls visit(Gate<fn>{}). Does nothing if `fn` is none. Does not compile if a row of kGateFunctions has no Gate.
template <class Visit>
HWY_INLINE void with_gate(GateFn fn, const Visit& visit) {
  with_gate_row(gate_row(fn), visit, std::make_index_sequence<kGateFunctions.size()>());
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_GATES_GATE_FUNCTIONS_INL_
