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

/// Computes to[c · stride + r] = from[r · row_stride + c · col_stride] for r < rows and c < cols.
/// T is an unsigned integer type of the element's size, so that elements are copied bit by bit.
template <typename T>
void copy_transposed(T* HWY_RESTRICT to, std::int64_t stride, const T* HWY_RESTRICT from, std::int64_t row_stride,
                     std::int64_t col_stride, std::int64_t rows, std::int64_t cols) {
  std::int64_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  // Copies kCols columns of `from` at a time. They become kCols rows of `to`.
  // The stride of `to` is often a power of two. Cache lines of its rows then share a set of the first-level cache.
  // A set holds eight lines.
  constexpr std::int64_t kCols = kTransposedCols<T>;
  const auto unchanged = [](auto x) HWY_ATTR { return x; };
  if (col_stride == 1 && rows % kLanes<T> == 0) {
    for (; c + kCols <= cols; c += kCols) {
      for (std::int64_t r = 0; r < rows; r += kLanes<T>) {
        const auto row_at = [&](std::int64_t x) HWY_ATTR { return from + (r + x) * row_stride; };
        transpose_blocks(Tag<T>(), to + c * stride + r, stride, row_at, c, unchanged);
      }
    }
  }
#endif
  for (; c < cols; ++c) {
    for (std::int64_t r = 0; r < rows; ++r) to[c * stride + r] = from[r * row_stride + c * col_stride];
  }
}

/// Number of keys in a block. copy_bias_rows() copies a block for all its rows and heads, and then the next block.
/// The cache lines of a block fit in the first-level cache, whichever dimension of the bias is contiguous.
template <typename T>
inline constexpr std::int64_t kBlockKeys = std::max<std::int64_t>(16, kLanes<T>);

/// Copies rows [i, end) of all heads of batch element b. `shape` is distinct_shape() of the bias.
template <typename T>
void copy_bias_rows(const TensorView& to, const ConstTensorView& from, const Shape& shape, std::int64_t b,
                    std::int64_t i, std::int64_t end) {
  // If heads are adjacent in memory, transposes (keys, heads) for each query. Otherwise transposes (keys, queries) for
  // each head.
  const bool heads_adjacent = from.strides[1] == 1 && shape[1] > 1;
  const std::size_t cols = heads_adjacent ? 1 : 2, other = heads_adjacent ? 2 : 1;
  const Shape sizes{1, shape[1], end - i, shape[3]};
  const T* source = static_cast<const T*>(from.data) + b * from.strides[0] + i * from.strides[2];
  T* target = static_cast<T*>(to.data) + b * to.strides[0] + i * to.strides[2];
  for (std::int64_t j = 0; j < shape[3]; j += kBlockKeys<T>) {
    const std::int64_t keys = std::min(kBlockKeys<T>, shape[3] - j);
    for (std::int64_t n = 0; n < sizes[other]; ++n) {
      copy_transposed(target + n * to.strides[other] + j, to.strides[cols],
                      source + n * from.strides[other] + j * from.strides[3], from.strides[3], from.strides[cols], keys,
                      sizes[cols]);
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

/// Copies all rows of the bias.
template <typename T>
void copy_rows(const DenseBias& to, const Problem& problem) {
  constexpr std::int64_t kRows = 64 / sizeof(T);  // queries per task: one cache line, if they are contiguous
  const ConstTensorView& bias = problem.inputs.bias;
  const Shape shape = distinct_shape(bias);
  const std::int64_t blocks = (shape[2] + kRows - 1) / kRows;
  run_team(problem.context.threads, [&](const Team& team) {
    team.in_parts(shape[0] * blocks, [&](std::int64_t n) {
      const std::int64_t i = n % blocks * kRows;
      HEADGATE_FOR_TARGET(copy_bias_rows, T, problem.context.target)
      (to.copy, bias, shape, n / blocks, i, std::min(i + kRows, shape[2]));
    });
  });
}

}  // namespace

bool DenseBias::pays(const Problem& problem) {
  constexpr double kMost_bytes = std::int64_t{256} << 20;
  constexpr std::int64_t kFewestQueries = 8, kFewestKeys = 16;
  const ConstTensorView& bias = problem.inputs.bias;
  // Declines packed batches and calls with window_left. They may read so little of the bias that a copy costs too much.
  // Causality and window_right hide at most half of the bias if there are as many queries as keys.
  if (!bias.present() || bias.numel() == 0 || problem.packed() || problem.window_left != kNoWindow) return false;
  if (bias.strides[3] == 1 || bias.strides[3] == 0 || bias.strides[2] == 0) return false;
  double bytes = static_cast<double>(dtype_bytes(bias.dtype));
  const Shape shape = distinct_shape(bias);
  for (const std::int64_t size : shape) bytes *= static_cast<double>(size);
  return shape[2] >= kFewestQueries && shape[3] >= kFewestKeys && bytes <= kMost_bytes;
}

DenseBias::DenseBias(Workspace& ws, const Problem& problem) {
  const ConstTensorView& bias = problem.inputs.bias;
  const Shape shape = distinct_shape(bias);
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(bias.dtype));
  const auto memory = ws.take<std::byte>("bias", shape[0], shape[1], shape[2], shape[3], bytes);
  copy = {memory.data, bias.dtype, bias.shape, dense_strides(shape)};
  for (std::size_t n = 0; n < shape.size(); ++n) {
    if (bias.strides[n] == 0) copy.strides[n] = 0;
  }
}

void DenseBias::fill(const Problem& problem) const {
  switch (dtype_bytes(problem.inputs.bias.dtype)) {
    case sizeof(std::uint16_t): return copy_rows<std::uint16_t>(*this, problem);
    case sizeof(std::uint32_t): return copy_rows<std::uint32_t>(*this, problem);
    default: return copy_rows<std::uint64_t>(*this, problem);
  }
}

}  // namespace headgate
#endif  // HWY_ONCE
