// SPDX-License-Identifier: Apache-2.0
#include "models/layers/skinny_gemm.hpp"

#include <cassert>

#include "library/core/dispatch.hpp"
#include "models/layers/parallel.hpp"

#ifndef HEADGATE_LAYERS_SKINNY_GEMM_CALL_  // Highway compiles this file once per SIMD target
#define HEADGATE_LAYERS_SKINNY_GEMM_CALL_
namespace headgate::layers {

template <typename M>
struct SkinnyGemm {
  View<Widened<M>, 2> y;
  View<const Widened<M>, 2> x;
  View<const M, 2> w;
  Update update;
};

}  // namespace headgate::layers
#endif  // HEADGATE_LAYERS_SKINNY_GEMM_CALL_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/layers/skinny_gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Headers that Highway compiles once per SIMD target must follow foreach_target.h.
#include "models/layers/rows-inl.hpp"
#include "models/layers/widen-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

inline constexpr std::int64_t kLine_bytes = 64;
/// Prefetch distance in bytes of w. Of distances from 4 to 32 KiB, 8 KiB was fastest (docs/design/decoding.md).
inline constexpr std::int64_t kAhead_bytes = 8192;

/// Says whether a tile is the first or a later one to read its rows of w.
/// - first: the rows come from memory, so the kernel prefetches.
/// - later: the rows are in the first-level cache.
enum class Visit { first, later };

/// Computes a tile of y: rows n to n + kN − 1 of x times rows o to o + kO − 1 of w.
template <std::int64_t kN, std::int64_t kO, Visit kVisit, typename M>
HWY_INLINE void multiply_tile(const SkinnyGemm<M>& call, std::int64_t n, std::int64_t o) {
  using T = Widened<M>;
  const Tag<T> d;
  const std::int64_t C = call.x.shape[1];
  const M* w = call.w.at(o);
  const T* x = call.x.at(n);
  const std::int64_t w_stride = call.w.strides[0], x_stride = call.x.strides[0];
  Vec<T> sums[kN][kO];
  for (std::int64_t i = 0; i < kN; ++i) {
    for (std::int64_t j = 0; j < kO; ++j) sums[i][j] = hn::Zero(d);
  }
  const auto add_products = [&](std::int64_t c, auto lanes) HWY_ATTR {
    Vec<T> weights[kO];
    for (std::int64_t j = 0; j < kO; ++j) weights[j] = widened(lanes, w + j * w_stride + c);
    for (std::int64_t i = 0; i < kN; ++i) {
      const Vec<T> x_values = lanes.load(x + i * x_stride + c);
      for (std::int64_t j = 0; j < kO; ++j) sums[i][j] = hn::MulAdd(x_values, weights[j], sums[i][j]);
    }
  };
  constexpr std::int64_t kLine = kLine_bytes / static_cast<std::int64_t>(sizeof(M));
  std::int64_t c = 0;
  for (; c + kLine <= C; c += kLine) {
    for (std::int64_t j = 0; kVisit == Visit::first && j < kO; ++j) {
      constexpr int kReads = 0, kIntoSecondLevel = 2;
      const auto line = reinterpret_cast<std::uintptr_t>(w + j * w_stride + c);
      __builtin_prefetch(reinterpret_cast<const void*>(line + kAhead_bytes), kReads, kIntoSecondLevel);
    }
    for (std::int64_t v = 0; v < kLine; v += kLanes<T>) add_products(c + v, Whole<T>());
  }
  each_vector<T>(C - c, [&](std::int64_t v, auto lanes) HWY_ATTR { add_products(c + v, lanes); });
  for (std::int64_t i = 0; i < kN; ++i) {
    for (std::int64_t j = 0; j < kO; ++j) {
      const T sum = hn::GetLane(hn::SumOfLanes(d, sums[i][j]));
      T& y = call.y(n + i, o + j);
      y = call.update == Update::add ? y + sum : sum;
    }
  }
}

/// Multiplies two or more rows of x by kO rows of w, with up to four rows of x in a tile. The first tile reads the rows
/// of w from memory; later tiles find them in the first-level cache.
template <std::int64_t kO, typename M>
HWY_INLINE void multiply_weight_rows(const SkinnyGemm<M>& call, std::int64_t o) {
  const std::int64_t N = call.x.shape[0];
  std::int64_t n = 0;
  if (N >= 4) {
    multiply_tile<4, kO, Visit::first>(call, n, o);
    n = 4;
  } else {
    multiply_tile<2, kO, Visit::first>(call, n, o);
    n = 2;
  }
  for (; n + 4 <= N; n += 4) multiply_tile<4, kO, Visit::later>(call, n, o);
  for (; n + 2 <= N; n += 2) multiply_tile<2, kO, Visit::later>(call, n, o);
  if (n < N) multiply_tile<1, kO, Visit::later>(call, n, o);
}

/// Computes columns [begin, end) of y.
/// - One row of x: reads the rows of w one by one, because sequential reads are fastest.
/// - More rows of x: reads four rows of w at a time, so that each load of x serves four products.
template <typename M>
void skinny_gemm_range(const SkinnyGemm<M>& call, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kWeightRows = 4;
  std::int64_t o = begin;
  if (call.x.shape[0] == 1) {
    for (; o < end; ++o) multiply_tile<1, 1, Visit::first>(call, 0, o);
    return;
  }
  for (; o + kWeightRows <= end; o += kWeightRows) multiply_weight_rows<kWeightRows>(call, o);
  for (; o < end; ++o) multiply_weight_rows<1>(call, o);
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate::layers {
namespace {

HEADGATE_TARGET_TABLE(skinny_gemm_range);

}  // namespace

template <typename M>
void skinny_gemm(View<Widened<M>, 2> y, ConstView<Widened<M>, 2> x, ConstView<M, 2> w, Update update,
                 const ExecutionContext& context) {
  const std::int64_t N = x.shape[0], C = x.shape[1], O = w.shape[0];
  assert(N <= kSkinnyRows && y.shape[0] == N && y.shape[1] == O && w.shape[1] == C);
  assert(has_whole_rows(y) && has_whole_rows(x) && has_whole_rows(w));
  const auto kernel = HEADGATE_FOR_TARGET(skinny_gemm_range, M, context.target);
  if (N == 0) return;
  const SkinnyGemm<M> call{y, x, w, update};
  for_parts(parts_of(context, O, N * C, kFalseSharingElements<Widened<M>>),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(call, begin, end); });
}

template void skinny_gemm<float>(View<float, 2>, ConstView<float, 2>, ConstView<float, 2>, Update,
                                 const ExecutionContext&);
template void skinny_gemm<double>(View<double, 2>, ConstView<double, 2>, ConstView<double, 2>, Update,
                                  const ExecutionContext&);
template void skinny_gemm<BFloat16>(View<float, 2>, ConstView<float, 2>, ConstView<BFloat16, 2>, Update,
                                    const ExecutionContext&);

}  // namespace headgate::layers
#endif  // HWY_ONCE
