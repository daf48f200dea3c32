// SPDX-License-Identifier: Apache-2.0
#include "library/attention/elementary.hpp"

#include "library/core/dispatch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/attention/elementary.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "hwy/contrib/math/math-inl.h"
#include "library/core/gate_functions-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

template <class Function, typename T>
auto gate_part(const Function& gate, numerics::Part part, hn::Vec<Tag<T>> z) {
  const Tag<T> d;
  if (part == numerics::Part::gate_value) return gate.value(d, z);
  if (part == numerics::Part::gate_derivative) return gate.derivative(d, z);
  if constexpr (!Function::kHasZero) return gate.ratio(d, z);
  return hn::Zero(d);
}

template <typename T>
void evaluate_typed(const numerics::Function& f, const T* x, std::size_t n, T* y) {
  const Tag<T> d;
  for (std::size_t i = 0; i < n; i += kLanes<T>) {
    const std::size_t count = n - i < kLanes<T> ? n - i : kLanes<T>;
    HWY_ALIGN T lane[kLanes<T>] = {};
    for (std::size_t j = 0; j < count; ++j) lane[j] = x[i + j];
    const auto v = hn::Load(d, lane);
    if (f.part == numerics::Part::exp2) {
      hn::Store(exp2_fast(d, v), d, lane);
    } else if (f.part == numerics::Part::tanh) {
      hn::Store(hn::Tanh(d, v), d, lane);
    } else {
      with_gate(f.fn, [&](auto gate) HWY_ATTR { hn::Store(gate_part<decltype(gate), T>(gate, f.part, v), d, lane); });
    }
    for (std::size_t j = 0; j < count; ++j) y[i + j] = lane[j];
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate::numerics {
HEADGATE_TARGET_TABLE(evaluate_typed);

std::vector<Target> runnable_targets() {
  std::vector<Target> targets;
  const std::int64_t runnable = (hwy::SupportedTargets() | HWY_STATIC_TARGET) & HWY_TARGETS;
  for (std::int64_t bits = runnable; bits != 0; bits &= bits - 1) {
    const std::int64_t bit = bits & -bits;
    targets.push_back({hwy::TargetName(bit), bit});
  }
  return targets;
}

void evaluate(const Target& target, const Function& f, const float* x, std::size_t n, float* y) {
  HEADGATE_FOR_TARGET(evaluate_typed, float, target.bit)(f, x, n, y);
}

void evaluate(const Target& target, const Function& f, const double* x, std::size_t n, double* y) {
  HEADGATE_FOR_TARGET(evaluate_typed, double, target.bit)(f, x, n, y);
}

}  // namespace headgate::numerics
#endif  // HWY_ONCE
