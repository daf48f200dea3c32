// SPDX-License-Identifier: Apache-2.0
#include "library/attention/cpu/dense_bias.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "library/core/element.hpp"
#include "library/core/team.hpp"
#include "library/core/view.hpp"

namespace headgate {
namespace {

/// Returns the shape of the bias, with size 1 for dimensions that are broadcast (stride 0).
Shape distinct_shape(const ConstTensorView& bias) {
  Shape shape = bias.shape;
  for (std::size_t n = 0; n < shape.size(); ++n)
    shape[n] = bias.strides[n] == 0 ? std::min<std::int64_t>(shape[n], 1) : shape[n];
  return shape;
}

/// Size of a block that is copied at a time.
/// The block's cache lines fit the first-level cache, whichever dimension of the bias is contiguous in memory.
constexpr std::int64_t kQueries = 8, kKeys = 16;

/// Copies rows i … i + kQueries of all heads of batch element b, kKeys columns at a time.
template <typename Element>
void copy_rows(const TensorView& to, const ConstTensorView& from, const Shape& shape, std::int64_t b, std::int64_t i) {
  const std::int64_t end = std::min(i + kQueries, shape[2]);
  const auto* source = static_cast<const Element*>(from.data) + b * from.strides[0];
  auto* target = static_cast<Element*>(to.data) + b * to.strides[0];
  for (std::int64_t j0 = 0; j0 < shape[3]; j0 += kKeys) {
    const std::int64_t keys = std::min(kKeys, shape[3] - j0);
    for (std::int64_t h = 0; h < shape[1]; ++h) {
      for (std::int64_t row = i; row < end; ++row) {
        const Element* read = source + h * from.strides[1] + row * from.strides[2] + j0 * from.strides[3];
        Element* write = target + h * to.strides[1] + row * to.strides[2] + j0;
        for (std::int64_t j = 0; j < keys; ++j) write[j] = read[j * from.strides[3]];
      }
    }
  }
}

}  // namespace

bool DenseBias::pays(const Problem& problem) {
  constexpr double kMost_bytes = std::int64_t{256} << 20;
  const ConstTensorView& bias = problem.inputs.bias;
  // A call with a window or a packed batch may read only little of the bias: a copy would not pay.
  if (!bias.present() || bias.numel() == 0 || problem.packed() || problem.window_left != kNoWindow) return false;
  if (bias.strides[3] == 1 || bias.strides[3] == 0 || bias.strides[2] == 0) return false;
  double bytes = static_cast<double>(dtype_bytes(bias.dtype));
  const Shape shape = distinct_shape(bias);
  for (const std::int64_t size : shape) bytes *= static_cast<double>(size);
  return shape[2] >= kQueries && shape[3] >= kKeys && bytes <= kMost_bytes;
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
  const ConstTensorView& bias = problem.inputs.bias;
  const Shape shape = distinct_shape(bias);
  const std::int64_t blocks = (shape[2] + kQueries - 1) / kQueries;
  const std::size_t bytes = dtype_bytes(bias.dtype);
  run_team(problem.context.threads, [&](const Team& team) {
    team.in_parts(shape[0] * blocks, [&](std::int64_t n) {
      const std::int64_t b = n / blocks, i = n % blocks * kQueries;
      if (bytes == sizeof(std::uint16_t)) return copy_rows<std::uint16_t>(copy, bias, shape, b, i);
      if (bytes == sizeof(std::uint32_t)) return copy_rows<std::uint32_t>(copy, bias, shape, b, i);
      copy_rows<std::uint64_t>(copy, bias, shape, b, i);
    });
  });
}

}  // namespace headgate
