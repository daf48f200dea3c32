// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/machine_peak.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h comes first: it includes this file again once a target.
#include <hwy/highway.h>

#include "bench/machine_peak.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Chains a round: an FMA takes 4 or 5 cycles and two start a cycle, so 10 in flight reach the peak; 12 accumulators,
// two constants and a temporary fit the 16 registers of AVX2.
constexpr std::int64_t kChains = 12;
// Rounds for each count of the loop, so that counter and branch cost nothing.
constexpr std::int64_t kUnroll = 4;

template <class D>
double fma_chains(D d, std::int64_t rounds) {
  using T = hn::TFromD<D>;
  // x ← x·m + a tends to a / (1 − m) = 1: no overflow, no denormals.
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

double fma_f32(std::int64_t rounds) { return fma_chains(hn::ScalableTag<float>(), rounds); }
double fma_f64(std::int64_t rounds) { return fma_chains(hn::ScalableTag<double>(), rounds); }

double read(const float* HWY_RESTRICT data, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t n = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (std::size_t i = 0; i < count; i += 4 * n) {
    s0 = hn::Add(s0, hn::Load(d, data + i));
    s1 = hn::Add(s1, hn::Load(d, data + i + n));
    s2 = hn::Add(s2, hn::Load(d, data + i + 2 * n));
    s3 = hn::Add(s3, hn::Load(d, data + i + 3 * n));
  }
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)))));
}

// FLOPs a round: a function, because the number of lanes is known only in the code of the target.
PeakLoops loops() {
  PeakLoops out;
  out.fma_f32 = &fma_f32;
  out.fma_f64 = &fma_f64;
  out.flops_per_round_f32 = 2 * kChains * hn::Lanes(hn::ScalableTag<float>());
  out.flops_per_round_f64 = 2 * kChains * hn::Lanes(hn::ScalableTag<double>());
  out.read = &read;
  return out;
}

}  // namespace HWY_NAMESPACE
}  // namespace headgate::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <cctype>

#include "core/check.hpp"

namespace headgate::bench {
namespace {

using LoopsFunction = PeakLoops (*)();

#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0  // one target: the dispatch list does not apply
constexpr std::int64_t kFallbackTarget = HWY_STATIC_TARGET;
LoopsFunction loops_of(std::int64_t target) {
  return target == HWY_STATIC_TARGET ? &HWY_STATIC_DISPATCH(loops) : nullptr;
}
#else
constexpr std::int64_t kFallbackTarget = (HWY_TARGETS & HWY_EMU128) != 0   ? HWY_EMU128
                                         : (HWY_TARGETS & HWY_SCALAR) != 0 ? HWY_SCALAR
                                                                           : HWY_STATIC_TARGET;
// Entry i of the list belongs to target bit i above the lowest dynamic one.
LoopsFunction loops_of(std::int64_t target) {
  static const LoopsFunction kList[HWY_MAX_DYNAMIC_TARGETS] = {HWY_CHOOSE_TARGET_LIST(loops)};
  for (int i = 0; i < HWY_MAX_DYNAMIC_TARGETS; ++i) {
    if (target == (std::int64_t{1} << (HWY_HIGHEST_TARGET_BIT + 1 - HWY_MAX_DYNAMIC_TARGETS + i))) return kList[i];
  }
  return target == kFallbackTarget ? HWY_CHOOSE_FALLBACK(loops) : nullptr;
}
#endif

}  // namespace

// Highway's portable target has two forms, of which a build has one.
PeakLoops peak_loops(const std::string& isa) {
  for (std::int64_t rest = HWY_TARGETS; rest != 0; rest &= rest - 1) {
    const std::int64_t target = rest & ~(rest - 1);
    std::string name = hwy::TargetName(target);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    const bool portable = target == kFallbackTarget && (isa == "emu128" || isa == "scalar");
    if (name != isa && !portable) continue;
    if (const LoopsFunction function = loops_of(target)) return function();
  }
  throw Error("fma peak: this build has no vector target \"" + isa + "\"");
}

}  // namespace headgate::bench

#endif  // HWY_ONCE
