// SPDX-License-Identifier: Apache-2.0
#include "models/layers/linear.hpp"

#include <algorithm>
#include <cassert>
#include <type_traits>
#include <vector>

#include "library/core/cancellation.hpp"
#include "library/core/convert.hpp"
#include "models/layers/elementwise.hpp"
#include "models/layers/gemm_parts.hpp"
#include "models/layers/skinny_gemm.hpp"
#include "models/layers/stored_gemm.hpp"
#include "models/layers/widen.hpp"

namespace headgate::layers {
namespace {

/// Computes y(N,O) = x(N,C) wᵀ or y += x wᵀ. Decodes w(O,C) block by block, a few rows at a time. widen(rows, first)
/// must set `rows` to the f32 values of w's rows from `first` on. If x is bf16, rounds the decoded rows to bf16.
template <typename X, typename Y, class Widen>
void multiply_widened(const View<Y, 2>& y, const View<const X, 2>& x, std::int64_t O, Update update,
                      const ExecutionContext& context, const Widen& widen) {
  // Number of elements of w that a thread decodes at a time. In f32, 2^17 elements take 512 KiB, half of a second-level
  // cache of 1 MiB.
  constexpr std::int64_t kWidened = std::int64_t{1} << 17;
  constexpr bool kRounds = !std::is_same_v<X, float>;
  const std::int64_t N = x.shape[0], C = x.shape[1];
  const Parts parts = parts_of_product(context, O, N * C);
  const std::int64_t block = std::min(O, std::max<std::int64_t>(1, kWidened / std::max<std::int64_t>(C, 1)));
  const View<float, 3> wide(scratch<float>(parts.count * block * C), {parts.count, block, C});
  const View<X, 3> rounded(kRounds ? scratch<X>(parts.count * block * C) : nullptr, wide.shape);
  multiply_parts(parts, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; o += block) {
      const std::int64_t count = std::min(block, end - o);
      const View<float, 2> rows = wide[part].range(0, 0, count);
      widen(rows, o);
      View<X, 2> matrix;
      if constexpr (kRounds) {
        matrix = rounded[part].range(0, 0, count);
        copy_to<X, float>(matrix.flat(), rows.flat(), context);
      } else {
        matrix = rows;
      }
      if (!gemm(Product<X, Y>{y.range(1, o, count), x, Form::stored, matrix, Form::transposed, update})) return false;
    }
    return true;
  });
}

/// Replaces multiply_widened() for x in bf16 on CPUs without bf16 dot products. Rounds w to bf16, then multiplies in
/// f32.
template <typename Y, class Widen>
void multiply_without_bf16(const View<Y, 2>& y, const View<const BFloat16, 2>& x, std::int64_t O, Update update,
                           const ExecutionContext& context, const Widen& widen_to) {
  const auto [N, C] = x.shape;
  std::vector<float> wide_x(static_cast<std::size_t>(N * C));
  const View<float, 2> from(wide_x.data(), {N, C});
  for (std::int64_t n = 0; n < N; ++n) widen(from.at(n), x.at(n), C);
  const auto rounded_rows = [&](const View<float, 2>& rows, std::int64_t first) {
    widen_to(rows, first);
    std::transform(rows.data, rows.data + rows.count(), rows.data, [](float w) { return to_f32(to_bf16(w)); });
  };
  if constexpr (std::is_same_v<Y, float>) {
    multiply_widened<float, float>(y, from, O, update, context, rounded_rows);
  } else {
    std::vector<float> wide_y(static_cast<std::size_t>(N * O));
    const View<float, 2> sums(wide_y.data(), {N, O});
    for (std::int64_t n = 0; n < N && update == Update::add; ++n) widen(sums.at(n), y.at(n), O);
    multiply_widened<float, float>(sums, from, O, update, context, rounded_rows);
    for (std::int64_t n = 0; n < N; ++n) std::transform(sums.at(n), sums.at(n) + O, y.at(n), to_bf16);
  }
}

template <typename Y, class Widen>
void multiply_rounded(const View<Y, 2>& y, const View<const BFloat16, 2>& x, std::int64_t O, Update update,
                      const ExecutionContext& context, const Widen& widen) {
  has_bf16_gemm() ? multiply_widened<BFloat16>(y, x, O, update, context, widen)
                  : multiply_without_bf16(y, x, O, update, context, widen);
}

/// Computes y = x wᵀ or y += x wᵀ for a matrix w with column_order, whose parts store its columns in another order.
/// Permutes the columns of x instead of those of w.
template <typename X, typename Y>
void multiply_reordered(const View<Y, 2>& y, const View<const X, 2>& x, const StoredMatrix& w, Update update,
                        const ExecutionContext& context) {
  const auto [N, C] = x.shape;
  std::vector<X> moved(static_cast<std::size_t>(N * C));
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t c = 0; c < C; ++c) moved[static_cast<std::size_t>(n * C + w.column_order[c])] = x(n, c);
  }
  linear_forward(y, View<const X, 2>(moved.data(), {N, C}), StoredMatrix{w.parts, nullptr}, update, context);
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
  multiply_widened<float>(y, x, w.shape[0], update, context, [&](const View<float, 2>& rows, std::int64_t first) {
    for (std::int64_t r = 0; r < rows.shape[0]; ++r) widen(rows.at(r), w.at(first + r), rows.shape[1]);
  });
}

void linear_forward(View<float, 2> y, ConstView<float, 2> x, const StoredMatrix& w, Update update,
                    const ExecutionContext& context) {
  throw_if_cancelled(context);
  assert(w.columns() == x.shape[1]);
  if (w.column_order != nullptr) return multiply_reordered(y, x, w, update, context);
  if (x.shape[0] <= kSkinnyRows) return stored_gemm(y, x, w, update, context);
  multiply_widened<float>(y, x, w.rows(), update, context, [&](const View<float, 2>& rows, std::int64_t first) {
    widen_rows(rows, w, first, context.target);
  });
}

template <typename Y>
void linear_forward(View<Y, 2> y, ConstView<BFloat16, 2> x, View<const float, 2> w, Update update,
                    const ExecutionContext& context) {
  throw_if_cancelled(context);
  assert(has_whole_rows(w) && w.shape[1] == x.shape[1]);
  multiply_rounded(y, x, w.shape[0], update, context, [&](const View<float, 2>& rows, std::int64_t first) {
    for (std::int64_t r = 0; r < rows.shape[0]; ++r) std::copy_n(w.at(first + r), rows.shape[1], rows.at(r));
  });
}

template <typename Y>
void linear_forward(View<Y, 2> y, ConstView<BFloat16, 2> x, const StoredMatrix& w, Update update,
                    const ExecutionContext& context) {
  throw_if_cancelled(context);
  assert(w.columns() == x.shape[1]);
  if (w.column_order != nullptr) return multiply_reordered(y, x, w, update, context);
  multiply_rounded(y, x, w.rows(), update, context,
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
  if (!dw.present()) return;
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
  if (!dw.present()) return;
  multiply(Product<BFloat16, float>{dw, dy, Form::transposed, x, Form::stored, Update::add}, context);
}

template void linear_forward(View<float, 2>, ConstView<float, 2>, ConstView<float, 2>, Update, const ExecutionContext&);
template void linear_forward(View<double, 2>, ConstView<double, 2>, ConstView<double, 2>, Update,
                             const ExecutionContext&);
template void linear_forward(View<float, 2>, ConstView<BFloat16, 2>, View<const float, 2>, Update,
                             const ExecutionContext&);
template void linear_forward(View<BFloat16, 2>, ConstView<BFloat16, 2>, View<const float, 2>, Update,
                             const ExecutionContext&);
template void linear_forward(View<float, 2>, ConstView<BFloat16, 2>, const StoredMatrix&, Update,
                             const ExecutionContext&);
template void linear_forward(View<BFloat16, 2>, ConstView<BFloat16, 2>, const StoredMatrix&, Update,
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
