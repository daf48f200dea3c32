// SPDX-License-Identifier: Apache-2.0
#include "models/layers/linear.hpp"

#include <algorithm>
#include <cassert>

#include "library/core/cancellation.hpp"
#include "models/layers/blas.hpp"
#include "models/layers/parallel.hpp"
#include "models/layers/skinny_gemm.hpp"
#include "models/layers/stored_gemm.hpp"
#include "models/layers/widen.hpp"

// Runs products on our own threads. Each thread calls a single-threaded BLAS for its slice of the result, so OpenMP and
// BLAS threads never compete, and each sum has one order.

namespace headgate::layers {
namespace {

/// Computes one product out(M,N) = a(M,K) b(K,N) + beta·out. Each of a and b is given as it is stored, or transposed.
template <typename T>
struct Product {
  View<T, 2> out;
  View<const T, 2> a;
  CBLAS_TRANSPOSE a_form;
  View<const T, 2> b;
  CBLAS_TRANSPOSE b_form;
  T beta;

  std::int64_t M() const { return out.shape[0]; }
  std::int64_t N() const { return out.shape[1]; }
  std::int64_t K() const { return a.shape[a_form == CblasNoTrans ? 1 : 0]; }

  bool fits() const {
    return has_whole_rows(out) && has_whole_rows(a) && has_whole_rows(b) &&
           a.shape[a_form == CblasNoTrans ? 0 : 1] == M() && b.shape[b_form == CblasNoTrans ? 1 : 0] == N() &&
           b.shape[b_form == CblasNoTrans ? 0 : 1] == K();
  }

  Product rows(std::int64_t begin, std::int64_t end) const {
    Product part = *this;
    part.out = out.range(0, begin, end - begin);
    part.a = a.range(a_form == CblasNoTrans ? 0 : 1, begin, end - begin);
    return part;
  }

  Product columns(std::int64_t begin, std::int64_t end) const {
    Product part = *this;
    part.out = out.range(1, begin, end - begin);
    part.b = b.range(b_form == CblasNoTrans ? 1 : 0, begin, end - begin);
    return part;
  }
};

void gemm(const Blas& blas, const Product<float>& p) {
  blas->sgemm(CblasRowMajor, p.a_form, p.b_form, static_cast<blasint>(p.M()), static_cast<blasint>(p.N()),
              static_cast<blasint>(p.K()), 1.0F, p.a.data, static_cast<blasint>(p.a.strides[0]), p.b.data,
              static_cast<blasint>(p.b.strides[0]), p.beta, p.out.data, static_cast<blasint>(p.out.strides[0]));
}

void gemm(const Blas& blas, const Product<double>& p) {
  blas->dgemm(CblasRowMajor, p.a_form, p.b_form, static_cast<blasint>(p.M()), static_cast<blasint>(p.N()),
              static_cast<blasint>(p.K()), 1.0, p.a.data, static_cast<blasint>(p.a.strides[0]), p.b.data,
              static_cast<blasint>(p.b.strides[0]), p.beta, p.out.data, static_cast<blasint>(p.out.strides[0]));
}

/// Splits `cut` rows or columns of a result, of `products` multiply-adds each, among threads.
Parts parts_of_product(const ExecutionContext& context, std::int64_t cut, std::int64_t products) {
  constexpr std::int64_t kTile = 16;  // a multiple of the register tiles of OpenBLAS, 4, 8 or 16 long
  // Counts 16 multiply-adds as one operation. A part then has at least 262,144, or 4.4 µs at the 118 GFLOP/s of a Zen 4
  // core, because each part packs the shared operand for itself.
  constexpr std::int64_t kPerOperation = 16;
  return parts_of(context, cut, products / kPerOperation, kTile);
}

/// Splits the longer side.
template <typename T>
void multiply(const Product<T>& p, const ExecutionContext& context) {
  assert(p.fits());
  if (p.M() == 0 || p.N() == 0) return;
  const bool by_rows = p.M() >= p.N();
  const std::int64_t cut = by_rows ? p.M() : p.N();
  const std::int64_t products = p.M() * p.N() / cut * std::max<std::int64_t>(p.K(), 1);
  const Parts parts = parts_of_product(context, cut, products);
  const Blas blas(parts.count);
  for_parts(parts, [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    if (begin < end) gemm(blas, by_rows ? p.rows(begin, end) : p.columns(begin, end));
  });
}

template <typename T>
T beta_of(Update update) {
  return update == Update::add ? T{1} : T{0};
}

/// y(N,O) = or += x(N,C) wᵀ, where widen(rows, first) makes rows of w, [first, first + their number), in f32.
template <class Widen>
void multiply_widened(const View<float, 2>& y, const View<const float, 2>& x, std::int64_t O, Update update,
                      const ExecutionContext& context, const Widen& widen) {
  // Elements of w that are widened at a time: 512 KiB in f32, half of a second-level cache of 1 MiB.
  constexpr std::int64_t kWidened = std::int64_t{1} << 17;
  const std::int64_t N = x.shape[0], C = x.shape[1];
  const Parts parts = parts_of_product(context, O, N * C);
  const Blas blas(parts.count);
  const std::int64_t block = std::min(O, std::max<std::int64_t>(1, kWidened / std::max<std::int64_t>(C, 1)));
  const View<float, 3> wide(scratch<float>(parts.count * block * C), {parts.count, block, C});
  for_parts(parts, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; o += block) {
      const View<float, 2> rows = wide[part].range(0, 0, std::min(block, end - o));
      widen(rows, o);
      const View<float, 2> out = y.range(1, o, rows.shape[0]);
      gemm(blas, Product<float>{out, x, CblasNoTrans, rows, CblasTrans, beta_of<float>(update)});
    }
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
  multiply(Product<T>{y, x, CblasNoTrans, w, CblasTrans, beta_of<T>(update)}, context);
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
  multiply(Product<T>{dx, dy, CblasNoTrans, w, CblasNoTrans, beta_of<T>(update)}, context);
}

template <typename T>
void linear_backward_weight(View<T, 2> dw, ConstView<T, 2> dy, ConstView<T, 2> x, const ExecutionContext& context) {
  throw_if_cancelled(context);
  multiply(Product<T>{dw, dy, CblasTrans, x, CblasNoTrans, T{1}}, context);
}

template void linear_forward(View<float, 2>, ConstView<float, 2>, ConstView<float, 2>, Update, const ExecutionContext&);
template void linear_forward(View<double, 2>, ConstView<double, 2>, ConstView<double, 2>, Update,
                             const ExecutionContext&);
template void linear_backward_input(View<float, 2>, ConstView<float, 2>, ConstView<float, 2>, Update,
                                    const ExecutionContext&);
template void linear_backward_input(View<double, 2>, ConstView<double, 2>, ConstView<double, 2>, Update,
                                    const ExecutionContext&);
template void linear_backward_weight(View<float, 2>, ConstView<float, 2>, ConstView<float, 2>, const ExecutionContext&);
template void linear_backward_weight(View<double, 2>, ConstView<double, 2>, ConstView<double, 2>,
                                     const ExecutionContext&);

}  // namespace headgate::layers
