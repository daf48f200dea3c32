// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.hpp"

#include <cblas.h>

#include <algorithm>

#include "layers/parallel.hpp"

// Products run on our own threads, each calling a single-threaded BLAS on its slice of the result: OpenMP and BLAS
// threads never compete, and sums have one order.

namespace headgate::layers {
namespace {

/// One product out(M,N) = a(M,K) b(K,N) + beta·out, row-major; a or b may be stored transposed.
template <typename T>
struct Product {
  std::int64_t M, N, K;
  const T* a;
  std::int64_t lda;
  CBLAS_TRANSPOSE a_form;
  const T* b;
  std::int64_t ldb;
  CBLAS_TRANSPOSE b_form;
  T beta;
  T* out;
  std::int64_t ldo;
};

void gemm(const Product<float>& p) {
  cblas_sgemm(CblasRowMajor, p.a_form, p.b_form, static_cast<blasint>(p.M), static_cast<blasint>(p.N),
              static_cast<blasint>(p.K), 1.0F, p.a, static_cast<blasint>(p.lda), p.b, static_cast<blasint>(p.ldb),
              p.beta, p.out, static_cast<blasint>(p.ldo));
}

void gemm(const Product<double>& p) {
  cblas_dgemm(CblasRowMajor, p.a_form, p.b_form, static_cast<blasint>(p.M), static_cast<blasint>(p.N),
              static_cast<blasint>(p.K), 1.0, p.a, static_cast<blasint>(p.lda), p.b, static_cast<blasint>(p.ldb),
              p.beta, p.out, static_cast<blasint>(p.ldo));
}

/// Rows [begin, end) of p.
template <typename T>
Product<T> rows_of(Product<T> p, std::int64_t begin, std::int64_t end) {
  p.a += begin * (p.a_form == CblasNoTrans ? p.lda : 1);
  p.out += begin * p.ldo;
  p.M = end - begin;
  return p;
}

/// Columns [begin, end) of p.
template <typename T>
Product<T> columns_of(Product<T> p, std::int64_t begin, std::int64_t end) {
  p.b += begin * (p.b_form == CblasNoTrans ? 1 : p.ldb);
  p.out += begin;
  p.N = end - begin;
  return p;
}

/// The longer side is cut.
template <typename T>
void multiply(const Product<T>& p) {
  constexpr std::int64_t kTile = 16;  // a multiple of the register tiles of OpenBLAS, 4, 8 or 16 long
  // Of multiply-adds, 16 count as an operation: a part has 262 144 or more, 4.4 µs at the 118 GFLOP/s of a Zen 4 core,
  // since each part packs the operand that they share for itself.
  constexpr std::int64_t kPerOperation = 16;
  if (p.M == 0 || p.N == 0) return;
  if (openblas_get_num_threads() != 1) openblas_set_num_threads(1);
  const bool by_rows = p.M >= p.N;
  const std::int64_t cut = by_rows ? p.M : p.N;
  const Parts parts = parts_of(cut, p.M * p.N / cut * std::max<std::int64_t>(p.K, 1) / kPerOperation, kTile);
  for_parts(parts, [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    if (begin < end) gemm(by_rows ? rows_of(p, begin, end) : columns_of(p, begin, end));
  });
}

LinearShape with_strides(LinearShape s) {
  if (s.ldx == 0) s.ldx = s.C;
  if (s.ldy == 0) s.ldy = s.O;
  if (s.ldw == 0) s.ldw = s.C;
  return s;
}

template <typename T>
T beta_of(Store store) {
  return store == Store::add ? T{1} : T{0};
}

}  // namespace

template <typename T>
void linear_forward(T* y, const T* x, const T* w, const LinearShape& shape, Store store) {
  const LinearShape s = with_strides(shape);
  multiply(Product<T>{s.N, s.O, s.C, x, s.ldx, CblasNoTrans, w, s.ldw, CblasTrans, beta_of<T>(store), y, s.ldy});
}

template <typename T>
void linear_backward(T* dx, T* dw, const T* dy, const T* x, const T* w, const LinearShape& shape, Store store_dx) {
  const LinearShape s = with_strides(shape);
  if (dx != nullptr) {
    multiply(
        Product<T>{s.N, s.C, s.O, dy, s.ldy, CblasNoTrans, w, s.ldw, CblasNoTrans, beta_of<T>(store_dx), dx, s.ldx});
  }
  if (dw != nullptr) {
    multiply(Product<T>{s.O, s.C, s.N, dy, s.ldy, CblasTrans, x, s.ldx, CblasNoTrans, T{1}, dw, s.ldw});
  }
}

template void linear_forward(float*, const float*, const float*, const LinearShape&, Store);
template void linear_forward(double*, const double*, const double*, const LinearShape&, Store);
template void linear_backward(float*, float*, const float*, const float*, const float*, const LinearShape&, Store);
template void linear_backward(double*, double*, const double*, const double*, const double*, const LinearShape&, Store);

}  // namespace headgate::layers
