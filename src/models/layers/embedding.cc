// SPDX-License-Identifier: Apache-2.0
#include "models/layers/embedding.hpp"

#include <algorithm>
#include <cassert>

#include "library/core/dispatch.hpp"
#include "models/layers/parallel.hpp"
#include "models/layers/stored_gemm.hpp"
#include "models/layers/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/layers/embedding.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Headers that Highway compiles once per SIMD target must follow foreach_target.h.
#include "models/layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// Adds dy[n] to dtable[tokens[n]] in columns [begin, end), in the order of n.
template <typename T>
void scatter_columns(const View<T, 2>& dtable, const View<const T, 2>& dy, const View<const std::int32_t, 1>& tokens,
                     std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = 0; n < tokens.shape[0]; ++n) {
    T* row = dtable.at(tokens(n)) + begin;
    const T* add = dy.at(n) + begin;
    each_vector<T>(end - begin, [&](std::int64_t c, auto lanes) HWY_ATTR {
      lanes.store(hn::Add(lanes.load(row + c), lanes.load(add + c)), row + c);
    });
  }
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate::layers {
namespace {

HEADGATE_TARGET_TABLE(scatter_columns);

/// Calls copy(to, from, C) for every token, on the threads of the context. `to` is the token's row in y, and `from` is
/// the token's row in the table.
template <typename T, typename M, class Copy>
void gather(const View<T, 2>& y, const View<const M, 2>& table, const View<const std::int32_t, 1>& tokens,
            const ExecutionContext& context, const Copy& copy) {
  const std::int64_t N = y.shape[0], C = y.shape[1];
  assert(table.shape[1] == C && tokens.shape[0] == N && has_whole_rows(y) && has_whole_rows(table));
  for_parts(parts_of(context, N, C), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) copy(y.at(n), table.at(tokens(n)), C);
  });
}

}  // namespace

template <typename T>
void embedding_forward(View<T, 2> y, ConstView<T, 2> table, ConstView<std::int32_t, 1> tokens,
                       const ExecutionContext& context) {
  gather(y, table, tokens, context, [](T* to, const T* row, std::int64_t C) { std::copy(row, row + C, to); });
}

void embedding_forward(View<float, 2> y, View<const BFloat16, 2> table, ConstView<std::int32_t, 1> tokens,
                       const ExecutionContext& context) {
  gather(y, table, tokens, context, widen);
}

void embedding_forward(View<float, 2> y, const StoredMatrix& table, ConstView<std::int32_t, 1> tokens,
                       const ExecutionContext& context) {
  const std::int64_t N = y.shape[0], C = y.shape[1];
  assert(table.columns() == C && tokens.shape[0] == N && has_whole_rows(y));
  for_parts(parts_of(context, N, C), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) widen_rows(y.range(0, n, 1), table, tokens(n), context.target);
  });
}

template <typename T>
void embedding_backward(View<T, 2> dtable, ConstView<T, 2> dy, ConstView<std::int32_t, 1> tokens,
                        const ExecutionContext& context) {
  const std::int64_t N = dy.shape[0], C = dy.shape[1];
  assert(dtable.shape[1] == C && tokens.shape[0] == N && has_whole_rows(dtable) && has_whole_rows(dy));
  const auto kernel = HEADGATE_FOR_TARGET(scatter_columns, T, context.target);
  for_parts(
      parts_of(context, C, N, kFalseSharingElements<T>),
      [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(dtable, dy, tokens, begin, end); });
}

template void embedding_forward(View<float, 2>, ConstView<float, 2>, ConstView<std::int32_t, 1>,
                                const ExecutionContext&);
template void embedding_forward(View<double, 2>, ConstView<double, 2>, ConstView<std::int32_t, 1>,
                                const ExecutionContext&);
template void embedding_backward(View<float, 2>, ConstView<float, 2>, ConstView<std::int32_t, 1>,
                                 const ExecutionContext&);
template void embedding_backward(View<double, 2>, ConstView<double, 2>, ConstView<std::int32_t, 1>,
                                 const ExecutionContext&);

}  // namespace headgate::layers
#endif  // HWY_ONCE
