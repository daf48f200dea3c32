// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "library/attention/cpu/dense_bias.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/element.hpp"
#include "library/core/team.hpp"
#include "library/core/view.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/attention/cpu/dense_bias_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Per-target headers must follow foreach_target.h.
#include "library/core/transpose-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Computes to[r · to_row + c · to_col] = from[r · from_row + c · from_col] for r < rows and c < cols.
/// T is an unsigned integer type of the element's size, so that elements are copied bit by bit.
template <typename T>
void copy_transposed(T* HWY_RESTRICT to, std::int64_t to_row, std::int64_t to_col, const T* HWY_RESTRICT from,
                     std::int64_t from_row, std::int64_t from_col, std::int64_t rows, std::int64_t cols) {
  std::int64_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  // Copies kCols columns of `from` at a time. They become kCols rows of `to`.
  constexpr std::int64_t kCols = kTransposedCols<T>;
  const auto transpose_columns = [&](auto d) HWY_ATTR {
    const auto unchanged = [](auto x) HWY_ATTR { return x; };
    for (; c + kCols <= cols; c += kCols) {
      for (std::int64_t r = 0; r < rows; r += hn::MaxLanes(d)) {
        const auto row_at = [&](std::int64_t x) HWY_ATTR { return from + (r + x) * from_row; };
        transpose_blocks(d, to + c * to_col + r, to_col, row_at, c, unchanged);
      }
    }
  };
  const bool is_contiguous = to_row == 1 && from_col == 1;
  if (is_contiguous && rows % kLanes<T> == 0) transpose_columns(Tag<T>());
  if (is_contiguous && rows % kCols == 0) transpose_columns(hn::FixedTag<T, kCols>());  // of rows that fill no vector
#endif
  for (; c < cols; ++c) {
    for (std::int64_t r = 0; r < rows; ++r) to[r * to_row + c * to_col] = from[r * from_row + c * from_col];
  }
}

/// Copies rows [i, end) of all heads of batch element b. `shape` is distinct_shape() of the tensors.
/// Reads long runs of memory: hardware prefetchers follow them.
template <typename T>
void copy_bias_rows(const TensorView& to, const ConstTensorView& from, const Shape& shape, std::int64_t b,
                    std::int64_t i, std::int64_t end) {
  // number of keys copied at a time; both cache lines of a row and vectors divide it
  constexpr std::int64_t kKeys = std::max<std::int64_t>(64 / sizeof(T), kLanes<T>);
  constexpr std::size_t kHead = 1, kQuery = 2, kKey = 3;
  // Transposes (keys, heads) for each query if heads are adjacent, otherwise (keys, queries) for each head.
  const bool from_keys = from.strides[kKey] == 1;
  const Shape& strided = from_keys ? to.strides : from.strides;
  const bool heads_adjacent = strided[kHead] == 1 && shape[kHead] > 1;
  const std::size_t across = heads_adjacent ? kHead : kQuery, other = heads_adjacent ? kQuery : kHead;
  const Shape sizes{1, shape[kHead], end - i, shape[kKey]};
  const T* const source = static_cast<const T*>(from.data) + b * from.strides[0] + i * from.strides[kQuery];
  T* const target = static_cast<T*>(to.data) + b * to.strides[0] + i * to.strides[kQuery];
  const std::size_t rows = from_keys ? across : kKey, cols = from_keys ? kKey : across;
  for (std::int64_t n = 0; n < sizes[other]; ++n) {
    for (std::int64_t j = 0; j < shape[kKey]; j += kKeys) {
      Shape part = sizes;
      part[kKey] = std::min(kKeys, shape[kKey] - j);
      copy_transposed(target + n * to.strides[other] + j * to.strides[kKey], to.strides[rows], to.strides[cols],
                      source + n * from.strides[other] + j * from.strides[kKey], from.strides[rows], from.strides[cols],
                      part[rows], part[cols]);
    }
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {
namespace {

HEADGATE_TARGET_TABLE(copy_bias_rows);

/// Returns the shape of the bias, with size 1 in dimensions with stride 0.
Shape distinct_shape(const ConstTensorView& bias) {
  Shape shape = bias.shape;
  for (std::size_t n = 0; n < shape.size(); ++n)
    shape[n] = bias.strides[n] == 0 ? std::min<std::int64_t>(shape[n], 1) : shape[n];
  return shape;
}

template <typename T>
void copy_all_rows(const Problem& problem, const TensorView& to, const ConstTensorView& from) {
  constexpr std::int64_t kRows = 64 / sizeof(T);  // queries per task: one cache line, if they are contiguous
  const Shape shape = distinct_shape(from);
  const std::int64_t blocks = (shape[2] + kRows - 1) / kRows;
  run_team(problem.context.threads, [&](const Team& team) {
    team.in_parts(shape[0] * blocks, [&](std::int64_t n) {
      const std::int64_t i = n % blocks * kRows;
      HEADGATE_FOR_TARGET(copy_bias_rows, T, problem.context.target)
      (to, from, shape, n / blocks, i, std::min(i + kRows, shape[2]));
    });
  });
}

}  // namespace

bool DenseBias::pays(const Problem& problem, const ConstTensorView& given) {
  constexpr double kMost_bytes = std::int64_t{256} << 20;
  constexpr std::int64_t kFewestQueries = 8, kFewestKeys = 16;
  // Declines packed batches and calls with window_left. They may read so little of the bias that a copy costs too much.
  // Causality and window_right hide at most half of the bias if there are as many queries as keys.
  if (!given.present() || given.numel() == 0 || problem.packed() || problem.window_left != kNoWindow) return false;
  if (given.strides[3] == 1 || given.strides[3] == 0 || given.strides[2] == 0) return false;
  double bytes = static_cast<double>(dtype_bytes(given.dtype));
  const Shape shape = distinct_shape(given);
  for (const std::int64_t size : shape) bytes *= static_cast<double>(size);
  return shape[2] >= kFewestQueries && shape[3] >= kFewestKeys && bytes <= kMost_bytes;
}

DenseBias::DenseBias(Workspace& ws, const ConstTensorView& given) {
  const Shape shape = distinct_shape(given);
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(given.dtype));
  // Heads are a cache line further apart than their elements need. Otherwise the lines of one row of all heads would
  // often share a set of the cache, because T · S is often a multiple of a power of two.
  const std::int64_t head = shape[2] * shape[3] + 64 / bytes;
  const auto memory = ws.take<std::byte>("bias", shape[0], shape[1], head, bytes);
  copy = {memory.data, given.dtype, given.shape, {shape[1] * head, head, shape[3], 1}};
  for (std::size_t n = 0; n < shape.size(); ++n) {
    if (given.strides[n] == 0) copy.strides[n] = 0;
  }
}

void copy_bias(const Problem& problem, const TensorView& to, const ConstTensorView& from) {
  switch (dtype_bytes(from.dtype)) {
    case sizeof(std::uint16_t): return copy_all_rows<std::uint16_t>(problem, to, from);
    case sizeof(std::uint32_t): return copy_all_rows<std::uint32_t>(problem, to, from);
    default: return copy_all_rows<std::uint64_t>(problem, to, from);
  }
}

}  // namespace headgate
#endif  // HWY_ONCE
