// SPDX-License-Identifier: Apache-2.0
// The gate functions; included once per Highway target.
#if defined(HEADGATE_ATTENTION_GATE_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_GATE_INL_
#undef HEADGATE_ATTENTION_GATE_INL_
#else
#define HEADGATE_ATTENTION_GATE_INL_
#endif

#include "attention/vec-inl.hpp"
#include "headgate/attention.hpp"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

// A gate function: value g(z), derivative g′(z), and ratio g′(z)/g(z) where g has no zero (kRatio), which lets the
// backward pass read y = o ∘ g instead of o.

struct SigmoidGate {
  static constexpr bool kRatio = true;
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

struct Sigmoid2Gate {
  static constexpr bool kRatio = true;
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

struct NsSigmoidGate {
  static constexpr bool kRatio = true;
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

struct SiluGate {
  static constexpr bool kRatio = false;
  template <class D, class V>
  static HWY_INLINE V value(D d, V z) {
    return hn::Mul(z, SigmoidGate::value(d, z));
  }
  /// σ + zσ(1 − σ)
  template <class D, class V>
  static HWY_INLINE V derivative(D d, V z) {
    const SigmoidPair<D> s(d, z);
    return hn::MulAdd(hn::Mul(z, s.sigma), s.complement, s.sigma);
  }
};

struct SoftplusGate {
  static constexpr bool kRatio = true;
  /// max(z, 0) + log(1 + e^−|z|)
  template <class D, class V>
  static HWY_INLINE V value(D d, V z) {
    const SigmoidPair<D> s(d, z);
    return hn::Add(hn::Max(z, hn::Zero(d)), hn::Log1p(d, s.e));
  }
  template <class D, class V>
  static HWY_INLINE V derivative(D d, V z) {
    return SigmoidGate::value(d, z);
  }
  /// σ/softplus → 1 as z → −∞, where both underflow to 0.
  template <class D, class V>
  static HWY_INLINE V ratio(D d, V z) {
    const V g = value(d, z);
    const V one = hn::Set(d, hn::TFromD<D>{1});
    return hn::IfThenElse(hn::Eq(g, hn::Zero(d)), one, hn::Div(derivative(d, z), g));
  }
};

struct IdentityGate {
  static constexpr bool kRatio = false;
  template <class D, class V>
  static HWY_INLINE V value(D /*d*/, V z) {
    return z;
  }
  template <class D, class V>
  static HWY_INLINE V derivative(D d, V /*z*/) {
    return hn::Set(d, hn::TFromD<D>{1});
  }
};

/// Calls visit(Functor{}) for `fn`; `none` never reaches a gate loop.
template <class Visit>
HWY_INLINE void with_gate(GateFn fn, const Visit& visit) {
  switch (fn) {
    case GateFn::sigmoid: return visit(SigmoidGate{});
    case GateFn::sigmoid2: return visit(Sigmoid2Gate{});
    case GateFn::ns_sigmoid: return visit(NsSigmoidGate{});
    case GateFn::silu: return visit(SiluGate{});
    case GateFn::softplus: return visit(SoftplusGate{});
    case GateFn::identity: return visit(IdentityGate{});
    case GateFn::none: return;
  }
}

/// y[x] = o[x] ∘ g(z[x]) or o[x] + g(z[x]), x < n rounded up to vectors.
template <typename T>
HWY_NOINLINE void apply_gate(GateFn fn, GateOp op, const T* HWY_RESTRICT z, std::size_t n, const T* HWY_RESTRICT o,
                             T* HWY_RESTRICT y) {
  with_gate(fn, [&](auto gate) HWY_ATTR {
    const Tag<T> d;
    for (std::size_t x = 0; x < n; x += kLanes<T>) {
      const auto g = gate.value(d, hn::LoadU(d, z + x));
      const auto ov = hn::LoadU(d, o + x);
      hn::StoreU(op == GateOp::mul ? hn::Mul(ov, g) : hn::Add(ov, g), d, y + x);
    }
  });
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_GATE_INL_
