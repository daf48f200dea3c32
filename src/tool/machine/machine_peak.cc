// SPDX-License-Identifier: Apache-2.0
#include "tool/machine/machine_peak.hpp"

#include "headgate/runtime.hpp"
#include "library/core/dispatch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tool/machine/machine_peak.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Per-target headers must follow foreach_target.h.
#include "library/core/vec-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

// Number of independent FMA chains. An FMA takes up to 5 cycles and two start per cycle, so that 10 must be in flight.
// 12 accumulators, two constants and a temporary fit in the 16 registers of AVX2.
constexpr std::int64_t kChains = 12;
// Number of FMAs per chain in one loop iteration, so that the loop's counter and branch cost nothing.
constexpr std::int64_t kUnroll = 4;

template <typename T>
double fma_chains(std::int64_t rounds) {
  const Tag<T> d;
  // x ← x·m + a converges to a / (1 − m) = 1, so that no value overflows or becomes subnormal.
  const auto m = hn::Set(d, static_cast<T>(0.5));
  const auto a = hn::Set(d, static_cast<T>(0.5));
  auto x0 = hn::Iota(d, static_cast<T>(0)), x1 = hn::Iota(d, static_cast<T>(1)), x2 = hn::Iota(d, static_cast<T>(2)),
       x3 = hn::Iota(d, static_cast<T>(3)), x4 = hn::Iota(d, static_cast<T>(4)), x5 = hn::Iota(d, static_cast<T>(5)),
       x6 = hn::Iota(d, static_cast<T>(6)), x7 = hn::Iota(d, static_cast<T>(7)), x8 = hn::Iota(d, static_cast<T>(8)),
       x9 = hn::Iota(d, static_cast<T>(9)), x10 = hn::Iota(d, static_cast<T>(10)),
       x11 = hn::Iota(d, static_cast<T>(11));
  for (std::int64_t r = 0; r < rounds; r += kUnroll) {
    for (std::int64_t u = 0; u < kUnroll; ++u) {
      x0 = hn::MulAdd(x0, m, a);
      x1 = hn::MulAdd(x1, m, a);
      x2 = hn::MulAdd(x2, m, a);
      x3 = hn::MulAdd(x3, m, a);
      x4 = hn::MulAdd(x4, m, a);
      x5 = hn::MulAdd(x5, m, a);
      x6 = hn::MulAdd(x6, m, a);
      x7 = hn::MulAdd(x7, m, a);
      x8 = hn::MulAdd(x8, m, a);
      x9 = hn::MulAdd(x9, m, a);
      x10 = hn::MulAdd(x10, m, a);
      x11 = hn::MulAdd(x11, m, a);
    }
  }
  const auto sum =
      hn::Add(hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)),
              hn::Add(hn::Add(hn::Add(x4, x5), hn::Add(x6, x7)), hn::Add(hn::Add(x8, x9), hn::Add(x10, x11))));
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
}

template <typename T>
double read_all(const T* HWY_RESTRICT data, std::int64_t count) {
  const Tag<T> d;
  constexpr auto n = static_cast<std::int64_t>(kLanes<T>);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (std::int64_t i = 0; i < count; i += 4 * n) {
    s0 = hn::Add(s0, hn::Load(d, data + i));
    s1 = hn::Add(s1, hn::Load(d, data + i + n));
    s2 = hn::Add(s2, hn::Load(d, data + i + 2 * n));
    s3 = hn::Add(s3, hn::Load(d, data + i + 3 * n));
  }
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)))));
}

template <typename T>
bench::PeakLoops<T> loops() {
  return {&fma_chains<T>, 2 * kChains * static_cast<std::int64_t>(kLanes<T>), &read_all<T>};
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(loops);

namespace bench {

template <typename T>
PeakLoops<T> peak_loops(const std::string& isa) {
  return HEADGATE_FOR_TARGET(loops, T, find_target(isa))();
}
template PeakLoops<float> peak_loops(const std::string& isa);
template PeakLoops<double> peak_loops(const std::string& isa);

}  // namespace bench
}  // namespace headgate
#endif  // HWY_ONCE
