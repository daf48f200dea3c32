// SPDX-License-Identifier: Apache-2.0
#include "layers/few_rows.hpp"

#include <cassert>

#include "core/dispatch.hpp"
#include "layers/parallel.hpp"

#ifndef HEADGATE_LAYERS_FEW_ROWS_CALL_  // this file is read once per Highway target
#define HEADGATE_LAYERS_FEW_ROWS_CALL_
namespace headgate::layers {

template <typename M>
struct FewRows {
  View<Widened<M>, 2> y;
  View<const Widened<M>, 2> x;
  View<const M, 2> w;
  Update update;
};

}  // namespace headgate::layers
#endif  // HEADGATE_LAYERS_FEW_ROWS_CALL_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/few_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "layers/rows-inl.hpp"
#include "layers/widen-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// Rows of w that a tile has, each with a stream of its own from memory.
inline constexpr std::int64_t kWeightRows = 4;

/// y[n][o] of kN rows of x and kO rows of w.
template <std::int64_t kN, std::int64_t kO, typename M>
HWY_INLINE void multiply_tile(const FewRows<M>& call, std::int64_t n, std::int64_t o) {
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
  each_vector<T>(C, [&](std::int64_t c, auto lanes) HWY_ATTR {
    Vec<T> weights[kO];
    for (std::int64_t j = 0; j < kO; ++j) {
      const M* row = w + j * w_stride + c;
      constexpr int kReads = 0, kIntoFirstLevel = 3;
      __builtin_prefetch(row + kO * w_stride, kReads, kIntoFirstLevel);  // of the next tile
      weights[j] = widened(lanes, row);
    }
    for (std::int64_t i = 0; i < kN; ++i) {
      const Vec<T> of_x = lanes.load(x + i * x_stride + c);
      for (std::int64_t j = 0; j < kO; ++j) sums[i][j] = hn::MulAdd(of_x, weights[j], sums[i][j]);
    }
  });
  for (std::int64_t i = 0; i < kN; ++i) {
    for (std::int64_t j = 0; j < kO; ++j) {
      const T sum = hn::GetLane(hn::SumOfLanes(d, sums[i][j]));
      T& y = call.y(n + i, o + j);
      y = call.update == Update::add ? y + sum : sum;
    }
  }
}

/// All rows of x by kO rows of w, which stay in the first level after the first visit.
template <std::int64_t kO, typename M>
HWY_INLINE void multiply_weight_rows(const FewRows<M>& call, std::int64_t o) {
  const std::int64_t N = call.x.shape[0];
  std::int64_t n = 0;
  for (; n + 4 <= N; n += 4) multiply_tile<4, kO>(call, n, o);
  for (; n + 2 <= N; n += 2) multiply_tile<2, kO>(call, n, o);
  if (n < N) multiply_tile<1, kO>(call, n, o);
}

/// Columns [begin, end) of y.
template <typename M>
void few_rows_range(const FewRows<M>& call, std::int64_t begin, std::int64_t end) {
  std::int64_t o = begin;
  for (; o + kWeightRows <= end; o += kWeightRows) multiply_weight_rows<kWeightRows>(call, o);
  for (; o < end; ++o) multiply_weight_rows<1>(call, o);
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate::layers {
namespace {

HEADGATE_TARGET_TABLE(few_rows_range);

}  // namespace

template <typename M>
void few_rows_forward(View<Widened<M>, 2> y, ConstView<Widened<M>, 2> x, ConstView<M, 2> w, Update update,
                      const ExecutionContext& context) {
  const std::int64_t N = x.shape[0], C = x.shape[1], O = w.shape[0];
  assert(N <= kFewRows && y.shape[0] == N && y.shape[1] == O && w.shape[1] == C);
  assert(has_whole_rows(y) && has_whole_rows(x) && has_whole_rows(w));
  const auto kernel = HEADGATE_FOR_TARGET(few_rows_range, M, context.target);
  const FewRows<M> call{y, x, w, update};
  for_parts(parts_of(context, O, N * C, kApart<Widened<M>>),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(call, begin, end); });
}

template void few_rows_forward<float>(View<float, 2>, ConstView<float, 2>, ConstView<float, 2>, Update,
                                      const ExecutionContext&);
template void few_rows_forward<double>(View<double, 2>, ConstView<double, 2>, ConstView<double, 2>, Update,
                                       const ExecutionContext&);
template void few_rows_forward<BFloat16>(View<float, 2>, ConstView<float, 2>, ConstView<BFloat16, 2>, Update,
                                         const ExecutionContext&);

}  // namespace headgate::layers
#endif  // HWY_ONCE
