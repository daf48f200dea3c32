// SPDX-License-Identifier: Apache-2.0
#include "models/layers/linear.hpp"

#include <algorithm>
#include <cassert>

#include "library/core/cancellation.hpp"
#include "models/layers/gemm_parts.hpp"
#include "models/layers/skinny_gemm.hpp"
#include "models/layers/stored_gemm.hpp"
#include "models/layers/widen.hpp"

namespace headgate::layers {
namespace {

/// y(N,O) = or += x(N,C) wᵀ, where widen(rows, first) makes rows of w, [first, first + their number), in f32.
template <class Widen>
void multiply_widened(const View<float, 2>& y, const View<const float, 2>& x, std::int64_t O, Update update,
                      const ExecutionContext& context, const Widen& widen) {
  // Elements of w that are widened at a time: 512 KiB in f32, half of a second-level cache of 1 MiB.
  constexpr std::int64_t kWidened = std::int64_t{1} << 17;
  const std::int64_t N = x.shape[0], C = x.shape[1];
  const Parts parts = parts_of_product(context, O, N * C);
  const std::int64_t block = std::min(O, std::max<std::int64_t>(1, kWidened / std::max<std::int64_t>(C, 1)));
  const View<float, 3> wide(scratch<float>(parts.count * block * C), {parts.count, block, C});
  multiply_parts(parts, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; o += block) {
      const View<float, 2> rows = wide[part].range(0, 0, std::min(block, end - o));
      widen(rows, o);
      const View<float, 2> out = y.range(1, o, rows.shape[0]);
      if (!gemm(Product<float>{out, x, Form::stored, rows, Form::transposed, update})) return false;
    }
    return true;
  });
}

/// y = or += x wᵀ. Moves the columns of x to those of the stored blocks.
void multiply_reordered(const View<float, 2>& y, const View<const float, 2>& x, const StoredMatrix& w, Update update,
                        const ExecutionContext& context) {
  const auto [N, C] = x.shape;
  std::vector<float> moved(static_cast<std::size_t>(N * C));
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t c = 0; c < C; ++c) moved[static_cast<std::size_t>(n * C + w.column_order[c])] = x(n, c);
  }
  linear_forward(y, View<const float, 2>(moved.data(), {N, C}), StoredMatrix{w.parts, nullptr}, update, context);
}

}  // namespace

template <typename T>
void linear_forward(View<T, 2> y, ConstView<T, 2> x, ConstView<T, 2> w, Update update,
                    const ExecutionContext& context) {
  throw_if_cancelled(context);
  if (x.shape[0] <= kSkinnyRows) return skinny_gemm<T>(y, x, w, update, context);
  multiply(Product<T>{y, x, Form::stored, w, Form::transposed, update}, context);
}

void linear_forward(View<float, 2> y, ConstView<float, 2> x, View<const BFloat16, 2> w, Update update,
                    const ExecutionContext& context) {
  throw_if_cancelled(context);
  if (x.shape[0] <= kSkinnyRows) return skinny_gemm<BFloat16>(y, x, w, update, context);
  assert(has_whole_rows(w) && w.shape[1] == x.shape[1]);
  multiply_widened(y, x, w.shape[0], update, context, [&](const View<float, 2>& rows, std::int64_t first) {
    for (std::int64_t r = 0; r < rows.shape[0]; ++r) widen(rows.at(r), w.at(first + r), rows.shape[1]);
  });
}

void linear_forward(View<float, 2> y, ConstView<float, 2> x, const StoredMatrix& w, Update update,
                    const ExecutionContext& context) {
  throw_if_cancelled(context);
  assert(w.columns() == x.shape[1]);
  if (w.column_order != nullptr) return multiply_reordered(y, x, w, update, context);
  if (x.shape[0] <= kSkinnyRows) return stored_gemm(y, x, w, update, context);
  multiply_widened(y, x, w.rows(), update, context,
                   [&](const View<float, 2>& rows, std::int64_t first) { widen_rows(rows, w, first, context.target); });
}

template <typename T>
void linear_backward_input(View<T, 2> dx, ConstView<T, 2> dy, ConstView<T, 2> w, Update update,
                           const ExecutionContext& context) {
  throw_if_cancelled(context);
  multiply(Product<T>{dx, dy, Form::stored, w, Form::stored, update}, context);
}

template <typename T>
void linear_backward_weight(View<T, 2> dw, ConstView<T, 2> dy, ConstView<T, 2> x, const ExecutionContext& context) {
  throw_if_cancelled(context);
  multiply(Product<T>{dw, dy, Form::transposed, x, Form::stored, Update::add}, context);
}

void linear_forward(View<float, 2> y, ConstView<BFloat16, 2> x, View<const BFloat16, 2> w, Update update,
                    const ExecutionContext& context) {
  throw_if_cancelled(context);
  multiply(Product<BFloat16, float>{y, x, Form::stored, w, Form::transposed, update}, context);
}

template <>
void linear_forward(View<BFloat16, 2> y, ConstView<BFloat16, 2> x, ConstView<BFloat16, 2> w, Update update,
                    const ExecutionContext& context) {
  throw_if_cancelled(context);
  multiply(Product<BFloat16>{y, x, Form::stored, w, Form::transposed, update}, context);
}

void linear_backward_input(View<float, 2> dx, ConstView<BFloat16, 2> dy, View<const BFloat16, 2> w, Update update,
                           const ExecutionContext& context) {
  throw_if_cancelled(context);
  multiply(Product<BFloat16, float>{dx, dy, Form::stored, w, Form::stored, update}, context);
}

void linear_backward_weight(View<float, 2> dw, ConstView<BFloat16, 2> dy, ConstView<BFloat16, 2> x,
                            const ExecutionContext& context) {
  throw_if_cancelled(context);
  multiply(Product<BFloat16, float>{dw, dy, Form::transposed, x, Form::stored, Update::add}, context);
}

template void linear_forward(View<float, 2>, ConstView<float, 2>, ConstView<float, 2>, Update, const ExecutionContext&);
template void linear_forward(View<double, 2>, ConstView<double, 2>, ConstView<double, 2>, Update,
                             const ExecutionContext&);
template void linear_backward_input(View<float, 2>, ConstView<float, 2>, ConstView<float, 2>, Update,
                                    const ExecutionContext&);
template void linear_backward_input(View<double, 2>, ConstView<double, 2>, ConstView<double, 2>, Update,
                                    const ExecutionContext&);
template void linear_backward_input(View<BFloat16, 2>, ConstView<BFloat16, 2>, ConstView<BFloat16, 2>, Update,
                                    const ExecutionContext&);
template void linear_backward_weight(View<float, 2>, ConstView<float, 2>, ConstView<float, 2>, const ExecutionContext&);
template void linear_backward_weight(View<double, 2>, ConstView<double, 2>, ConstView<double, 2>,
                                     const ExecutionContext&);

}  // namespace headgate::layers
