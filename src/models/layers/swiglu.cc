// SPDX-License-Identifier: Apache-2.0
#include "models/layers/swiglu.hpp"

#include <cassert>
#include <limits>

#include "library/core/dispatch.hpp"
#include "models/layers/parallel.hpp"

#ifndef HEADGATE_LAYERS_SWIGLU_CALL_  // Highway compiles this file once per SIMD target
#define HEADGATE_LAYERS_SWIGLU_CALL_
namespace headgate::layers {

template <typename T>
struct SwigluBackward {
  View<T, 2> dgate_up, h;
  View<const T, 2> dh, gate_up;
};

}  // namespace headgate::layers
#endif  // HEADGATE_LAYERS_SWIGLU_CALL_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/layers/swiglu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Headers that Highway compiles once per SIMD target must follow foreach_target.h.
#include "models/layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// Defines silu in the form act(x) = x·σ(z(x)). z(x) = x, and slope(x) is the derivative z′(x) = 1.
struct Silu {
  template <class D, class V>
  static V z(D /*d*/, V x) {
    return x;
  }
  template <class D, class V>
  static V slope(D d, V /*x*/) {
    return hn::Set(d, 1);
  }
};

struct GeluTanh {
  template <class D, class V>
  static V z(D d, V x) {
    const V cubic = hn::MulAdd(hn::Mul(hn::Mul(x, x), x), constant(d, kCubic), x);
    return hn::Mul(cubic, constant(d, kTwiceRoot));
  }
  template <class D, class V>
  static V slope(D d, V x) {
    const V derivative = hn::MulAdd(hn::Mul(x, x), constant(d, 3.0 * kCubic), hn::Set(d, 1));
    return hn::Mul(derivative, constant(d, kTwiceRoot));
  }

 private:
  static constexpr double kCubic = 0.044715;
  static constexpr double kTwiceRoot = 1.5957691216057308;  // 2·√(2/π)

  template <class D>
  static auto constant(D d, double value) {
    return hn::Set(d, static_cast<hn::TFromD<D>>(value));
  }
};

template <class Act, typename T>
void forward_rows(const View<T, 2>& h, const View<const T, 2>& gate_up, std::int64_t begin, std::int64_t end) {
  using W = Wide<T>;
  const Tag<W> d;
  const std::int64_t F = h.shape[1];
  for (std::int64_t n = begin; n < end; ++n) {
    const T* a = gate_up.at(n);
    const T* b = a + F;
    T* out = h.at(n);
    each_vector<W>(F, [&](std::int64_t f, auto lanes) HWY_ATTR {
      const auto x = lanes.load(a + f);
      const SigmoidPair<Tag<W>> s(d, Act::z(d, x));
      lanes.store(hn::Mul(hn::Mul(x, s.sigma), lanes.load(b + f)), out + f);
    });
  }
}

template <typename T>
void swiglu_clamped_rows(const View<T, 2>& h, const View<const T, 2>& gate_up, Wide<T> limit, std::int64_t begin,
                         std::int64_t end) {
  using W = Wide<T>;
  const Tag<W> d;
  const std::int64_t F = h.shape[1];
  const auto most = hn::Set(d, limit), least = hn::Set(d, -limit);
  for (std::int64_t n = begin; n < end; ++n) {
    const T* a = gate_up.at(n);
    const T* b = a + F;
    T* out = h.at(n);
    each_vector<W>(F, [&](std::int64_t f, auto lanes) HWY_ATTR {
      const auto z = lanes.load(a + f), up = lanes.load(b + f);
      const auto silu = hn::Mul(z, SigmoidPair<Tag<W>>(d, z).sigma);
      // Clamps with comparisons, because they keep NaN; Min and Max may return the limit instead.
      const auto gate = hn::IfThenElse(hn::Gt(silu, most), most, silu);
      const auto below = hn::IfThenElse(hn::Gt(up, most), most, up);
      lanes.store(hn::Mul(gate, hn::IfThenElse(hn::Lt(below, least), least, below)), out + f);
    });
  }
}

template <typename T>
void swiglu_shifted_rows(const View<T, 2>& h, const View<const T, 2>& gate_up, Wide<T> limit, std::int64_t begin,
                         std::int64_t end) {
  using W = Wide<T>;
  const Tag<W> d;
  const std::int64_t F = h.shape[1];
  const auto most = hn::Set(d, limit), least = hn::Set(d, -limit);
  const auto one = hn::Set(d, 1), gain = hn::Set(d, static_cast<W>(kShiftedGain));
  // Clamps with comparisons, because they keep NaN; Min and Max may return the limit instead.
  const auto at_most = [most](auto x) HWY_ATTR { return hn::IfThenElse(hn::Gt(x, most), most, x); };
  for (std::int64_t n = begin; n < end; ++n) {
    const T* a = gate_up.at(n);
    const T* b = a + F;
    T* out = h.at(n);
    each_vector<W>(F, [&](std::int64_t f, auto lanes) HWY_ATTR {
      const auto gate = at_most(lanes.load(a + f)), below = at_most(lanes.load(b + f));
      const auto up = hn::IfThenElse(hn::Lt(below, least), least, below);
      const auto glu = hn::Mul(gate, SigmoidPair<Tag<W>>(d, hn::Mul(gain, gate)).sigma);
      lanes.store(hn::Mul(hn::Add(up, one), glu), out + f);
    });
  }
}

template <class Act, typename T>
void backward_rows(const SwigluBackward<T>& call, std::int64_t begin, std::int64_t end) {
  using W = Wide<T>;
  const Tag<W> d;
  const std::int64_t F = call.dh.shape[1];
  for (std::int64_t n = begin; n < end; ++n) {
    const T* a = call.gate_up.at(n);
    const T* b = a + F;
    T* da = call.dgate_up.at(n);
    T* db = da + F;
    const T* g = call.dh.at(n);
    T* out = call.h.present() ? call.h.at(n) : nullptr;
    each_vector<W>(F, [&](std::int64_t f, auto lanes) HWY_ATTR {
      const auto x = lanes.load(a + f);
      const auto up = lanes.load(b + f);
      const auto dy = lanes.load(g + f);
      const SigmoidPair<Tag<W>> s(d, Act::z(d, x));
      const auto act = hn::Mul(x, s.sigma);
      // act′ = σ + xσ(1 − σ)z′, where σ is σ(z(x)) and z′ is Act::slope(x).
      const auto slope = hn::MulAdd(hn::Mul(act, Act::slope(d, x)), s.complement, s.sigma);
      lanes.store(hn::Mul(hn::Mul(dy, up), slope), da + f);
      lanes.store(hn::Mul(dy, act), db + f);
      if (out != nullptr) lanes.store(hn::Mul(act, up), out + f);
    });
  }
}

template <typename T>
void swiglu_forward_rows(Activation activation, const View<T, 2>& h, const View<const T, 2>& gate_up,
                         std::int64_t begin, std::int64_t end) {
  return activation == Activation::silu ? forward_rows<Silu>(h, gate_up, begin, end)
                                        : forward_rows<GeluTanh>(h, gate_up, begin, end);
}

template <typename T>
void swiglu_backward_rows(Activation activation, const SwigluBackward<T>& call, std::int64_t begin, std::int64_t end) {
  return activation == Activation::silu ? backward_rows<Silu>(call, begin, end)
                                        : backward_rows<GeluTanh>(call, begin, end);
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate::layers {
namespace {

HEADGATE_TARGET_TABLE(swiglu_forward_rows);
HEADGATE_TARGET_TABLE(swiglu_clamped_rows);
HEADGATE_TARGET_TABLE(swiglu_shifted_rows);
HEADGATE_TARGET_TABLE(swiglu_backward_rows);

}  // namespace

template <typename T>
void swiglu_forward(View<T, 2> h, ConstView<T, 2> gate_up, Activation activation, const ExecutionContext& context) {
  const std::int64_t N = h.shape[0], F = h.shape[1];
  assert(gate_up.shape[0] == N && gate_up.shape[1] == 2 * F && has_whole_rows(h) && has_whole_rows(gate_up));
  const auto kernel = HEADGATE_FOR_TARGET(swiglu_forward_rows, T, context.target);
  for_parts(parts_of(context, N, 2 * F), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    kernel(activation, h, gate_up, begin, end);
  });
}

template <typename T>
void swiglu_clamped_forward(View<T, 2> h, ConstView<T, 2> gate_up, double limit, const ExecutionContext& context) {
  const std::int64_t N = h.shape[0], F = h.shape[1];
  assert(gate_up.shape[0] == N && gate_up.shape[1] == 2 * F && has_whole_rows(h) && has_whole_rows(gate_up));
  assert(limit > 0.0);
  const auto kernel = HEADGATE_FOR_TARGET(swiglu_clamped_rows, T, context.target);
  for_parts(parts_of(context, N, 2 * F), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    kernel(h, gate_up, static_cast<Wide<T>>(limit), begin, end);
  });
}

template <typename T>
void swiglu_shifted_forward(View<T, 2> h, ConstView<T, 2> gate_up, double limit, const ExecutionContext& context) {
  const std::int64_t N = h.shape[0], F = h.shape[1];
  assert(gate_up.shape[0] == N && gate_up.shape[1] == 2 * F && has_whole_rows(h) && has_whole_rows(gate_up));
  assert(limit >= 0.0);
  const auto kernel = HEADGATE_FOR_TARGET(swiglu_shifted_rows, T, context.target);
  const auto bound = limit > 0.0 ? static_cast<Wide<T>>(limit) : std::numeric_limits<Wide<T>>::infinity();
  for_parts(parts_of(context, N, 2 * F), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    kernel(h, gate_up, bound, begin, end);
  });
}

template <typename T>
void swiglu_backward(View<T, 2> dgate_up, View<T, 2> h, ConstView<T, 2> dh, ConstView<T, 2> gate_up,
                     Activation activation, const ExecutionContext& context) {
  const std::int64_t N = dh.shape[0], F = dh.shape[1];
  assert(gate_up.shape[0] == N && gate_up.shape[1] == 2 * F && dgate_up.shape == gate_up.shape);
  assert(has_whole_rows(dgate_up) && has_whole_rows(dh) && has_whole_rows(gate_up));
  assert(!h.present() || (h.shape == dh.shape && has_whole_rows(h)));
  const auto kernel = HEADGATE_FOR_TARGET(swiglu_backward_rows, T, context.target);
  const SwigluBackward<T> call{dgate_up, h, dh, gate_up};
  for_parts(parts_of(context, N, 4 * F),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(activation, call, begin, end); });
}

template void swiglu_forward(View<float, 2>, ConstView<float, 2>, Activation, const ExecutionContext&);
template void swiglu_forward(View<double, 2>, ConstView<double, 2>, Activation, const ExecutionContext&);
template void swiglu_forward(View<BFloat16, 2>, ConstView<BFloat16, 2>, Activation, const ExecutionContext&);
template void swiglu_clamped_forward(View<float, 2>, ConstView<float, 2>, double, const ExecutionContext&);
template void swiglu_clamped_forward(View<double, 2>, ConstView<double, 2>, double, const ExecutionContext&);
template void swiglu_shifted_forward(View<float, 2>, ConstView<float, 2>, double, const ExecutionContext&);
template void swiglu_shifted_forward(View<double, 2>, ConstView<double, 2>, double, const ExecutionContext&);
template void swiglu_backward(View<float, 2>, View<float, 2>, ConstView<float, 2>, ConstView<float, 2>, Activation,
                              const ExecutionContext&);
template void swiglu_backward(View<double, 2>, View<double, 2>, ConstView<double, 2>, ConstView<double, 2>, Activation,
                              const ExecutionContext&);
template void swiglu_backward(View<BFloat16, 2>, View<BFloat16, 2>, ConstView<BFloat16, 2>, ConstView<BFloat16, 2>,
                              Activation, const ExecutionContext&);

}  // namespace headgate::layers
#endif  // HWY_ONCE
