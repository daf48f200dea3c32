// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.hpp"

#include <cblas.h>

#include <algorithm>
#include <cassert>

#include "core/check.hpp"
#include "layers/parallel.hpp"

// Products run on our own threads, each calling a single-threaded BLAS on its slice of the result: OpenMP and BLAS
// threads never compete, and sums have one order.

namespace headgate::layers {
namespace {

/// One product out(M,N) = a(M,K) b(K,N) + beta·out. Each of a and b is given as it is stored, itself or transposed.
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

void gemm(const Product<float>& p) {
  cblas_sgemm(CblasRowMajor, p.a_form, p.b_form, static_cast<blasint>(p.M()), static_cast<blasint>(p.N()),
              static_cast<blasint>(p.K()), 1.0F, p.a.data, static_cast<blasint>(p.a.strides[0]), p.b.data,
              static_cast<blasint>(p.b.strides[0]), p.beta, p.out.data, static_cast<blasint>(p.out.strides[0]));
}

void gemm(const Product<double>& p) {
  cblas_dgemm(CblasRowMajor, p.a_form, p.b_form, static_cast<blasint>(p.M()), static_cast<blasint>(p.N()),
              static_cast<blasint>(p.K()), 1.0, p.a.data, static_cast<blasint>(p.a.strides[0]), p.b.data,
              static_cast<blasint>(p.b.strides[0]), p.beta, p.out.data, static_cast<blasint>(p.out.strides[0]));
}

/// The longer side is cut.
template <typename T>
void multiply(const Product<T>& p, const ExecutionContext& context) {
  constexpr std::int64_t kTile = 16;  // a multiple of the register tiles of OpenBLAS, 4, 8 or 16 long
  // Of multiply-adds, 16 count as an operation: a part has 262 144 or more, 4.4 µs at the 118 GFLOP/s of a Zen 4 core,
  // since each part packs the operand that they share for itself.
  constexpr std::int64_t kPerOperation = 16;
  assert(p.fits());
  if (p.M() == 0 || p.N() == 0) return;
  require(openblas_get_num_threads() == 1,
          "linear: OpenBLAS has {} threads but must have 1, which layers::use_one_blas_thread() sets for the process",
          openblas_get_num_threads());
  const bool by_rows = p.M() >= p.N();
  const std::int64_t cut = by_rows ? p.M() : p.N();
  const std::int64_t work = p.M() * p.N() / cut * std::max<std::int64_t>(p.K(), 1) / kPerOperation;
  for_parts(parts_of(context, cut, work, kTile), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    if (begin < end) gemm(by_rows ? p.rows(begin, end) : p.columns(begin, end));
  });
}

template <typename T>
T beta_of(Update update) {
  return update == Update::add ? T{1} : T{0};
}

}  // namespace

void use_one_blas_thread() { openblas_set_num_threads(1); }

template <typename T>
void linear_forward(View<T, 2> y, ConstView<T, 2> x, ConstView<T, 2> w, Update update,
                    const ExecutionContext& context) {
  multiply(Product<T>{y, x, CblasNoTrans, w, CblasTrans, beta_of<T>(update)}, context);
}

template <typename T>
void linear_backward_input(View<T, 2> dx, ConstView<T, 2> dy, ConstView<T, 2> w, Update update,
                           const ExecutionContext& context) {
  multiply(Product<T>{dx, dy, CblasNoTrans, w, CblasNoTrans, beta_of<T>(update)}, context);
}

template <typename T>
void linear_backward_weight(View<T, 2> dw, ConstView<T, 2> dy, ConstView<T, 2> x, const ExecutionContext& context) {
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
