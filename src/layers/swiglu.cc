// SPDX-License-Identifier: Apache-2.0
#include "layers/swiglu.hpp"

#include "core/dispatch.hpp"
#include "headgate/runtime.hpp"
#include "layers/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/swiglu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

template <typename T>
void swiglu_forward_rows(T* h, const T* ab, std::int64_t F, std::int64_t begin, std::int64_t end) {
  const Tag<T> d;
  for (std::int64_t n = begin; n < end; ++n) {
    const T* a = ab + n * 2 * F;
    const T* b = a + F;
    T* out = h + n * F;
    each_vector<T>(F, [&](std::int64_t f, auto lanes) HWY_ATTR {
      const auto z = lanes.load(a + f);
      const SigmoidPair<Tag<T>> s(d, z);
      lanes.store(hn::Mul(hn::Mul(z, s.sigma), lanes.load(b + f)), out + f);
    });
  }
}

template <typename T>
void swiglu_backward_rows(T* dab, T* h_out, const T* dh, const T* ab, std::int64_t F, std::int64_t begin,
                          std::int64_t end) {
  const Tag<T> d;
  for (std::int64_t n = begin; n < end; ++n) {
    const T* a = ab + n * 2 * F;
    const T* b = a + F;
    T* da = dab + n * 2 * F;
    T* db = da + F;
    const T* g = dh + n * F;
    T* out = h_out != nullptr ? h_out + n * F : nullptr;
    each_vector<T>(F, [&](std::int64_t f, auto lanes) HWY_ATTR {
      const auto z = lanes.load(a + f);
      const auto up = lanes.load(b + f);
      const auto dy = lanes.load(g + f);
      const SigmoidPair<Tag<T>> s(d, z);
      const auto silu = hn::Mul(z, s.sigma);
      const auto slope = hn::MulAdd(silu, s.complement, s.sigma);  // silu′ = σ + zσ(1 − σ)
      lanes.store(hn::Mul(hn::Mul(dy, up), slope), da + f);
      lanes.store(hn::Mul(dy, silu), db + f);
      if (out != nullptr) lanes.store(hn::Mul(silu, up), out + f);
    });
  }
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate::layers {
namespace {

HEADGATE_TARGET_TABLE(swiglu_forward_rows);
HEADGATE_TARGET_TABLE(swiglu_backward_rows);

}  // namespace

template <typename T>
void swiglu_forward(T* h, const T* ab, std::int64_t N, std::int64_t F) {
  const auto kernel = HEADGATE_FOR_TARGET(swiglu_forward_rows, T, active_target_bit());
  for_parts(parts_of(N, 2 * F),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(h, ab, F, begin, end); });
}

template <typename T>
void swiglu_backward(T* dab, T* h_out, const T* dh, const T* ab, std::int64_t N, std::int64_t F) {
  const auto kernel = HEADGATE_FOR_TARGET(swiglu_backward_rows, T, active_target_bit());
  for_parts(parts_of(N, 4 * F), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    kernel(dab, h_out, dh, ab, F, begin, end);
  });
}

template void swiglu_forward(float*, const float*, std::int64_t, std::int64_t);
template void swiglu_forward(double*, const double*, std::int64_t, std::int64_t);
template void swiglu_backward(float*, float*, const float*, const float*, std::int64_t, std::int64_t);
template void swiglu_backward(double*, double*, const double*, const double*, std::int64_t, std::int64_t);

}  // namespace headgate::layers
#endif  // HWY_ONCE
