// SPDX-License-Identifier: Apache-2.0
#include "layers/embedding.hpp"

#include <algorithm>

#include "core/dispatch.hpp"
#include "headgate/runtime.hpp"
#include "layers/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/embedding.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// Columns [begin, end) of every row: dtable[tokens[n]] += dy[n], n rising.
template <typename T>
void scatter_columns(T* dtable, const T* dy, const std::int32_t* tokens, std::int64_t N, std::int64_t C,
                     std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = 0; n < N; ++n) {
    T* row = dtable + static_cast<std::int64_t>(tokens[n]) * C + begin;
    const T* add = dy + n * C + begin;
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

}  // namespace

template <typename T>
void embedding_forward(T* y, const T* table, const std::int32_t* tokens, std::int64_t N, std::int64_t C) {
  for_parts(parts_of(N, C), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const T* row = table + static_cast<std::int64_t>(tokens[n]) * C;
      std::copy(row, row + C, y + n * C);
    }
  });
}

template <typename T>
void embedding_backward(T* dtable, const T* dy, const std::int32_t* tokens, std::int64_t N, std::int64_t C) {
  const auto kernel = HEADGATE_FOR_TARGET(scatter_columns, T, active_target_bit());
  for_parts(parts_of(C, N, kApart<T>), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    kernel(dtable, dy, tokens, N, C, begin, end);
  });
}

template void embedding_forward(float*, const float*, const std::int32_t*, std::int64_t, std::int64_t);
template void embedding_forward(double*, const double*, const std::int32_t*, std::int64_t, std::int64_t);
template void embedding_backward(float*, const float*, const std::int32_t*, std::int64_t, std::int64_t);
template void embedding_backward(double*, const double*, const std::int32_t*, std::int64_t, std::int64_t);

}  // namespace headgate::layers
#endif  // HWY_ONCE
