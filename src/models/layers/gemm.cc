// SPDX-License-Identifier: Apache-2.0
#include "models/layers/gemm.hpp"

#include <algorithm>
#include <cassert>
#include <vector>

#include "library/core/convert.hpp"
#include "models/layers/gemm_parts.hpp"
#include "models/layers/skinny_gemm.hpp"
#include "models/layers/widen.hpp"

namespace headgate::layers {
namespace {

/// Computes a product on the threads of the context. The threads split the longer side of `out`.
template <typename In, typename Out>
void multiply_in_parts(const Product<In, Out>& p, const ExecutionContext& context) {
  assert(p.fits());
  if (p.M() == 0 || p.N() == 0) return;
  if (p.K() == 0) {  // handled here, because the libraries do not write `out` if K is 0
    for (std::int64_t i = 0; i < p.M() && p.update == Update::overwrite; ++i) std::fill_n(p.out.at(i), p.N(), Out{});
    return;
  }
  const bool by_rows = p.M() >= p.N();
  const std::int64_t cut = by_rows ? p.M() : p.N();
  multiply_parts(parts_of_product(context, cut, p.M() * p.N() / cut * p.K()),
                 [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
                   return gemm(by_rows ? p.rows(begin, end) : p.columns(begin, end));
                 });
}

/// Owns the memory of a dense matrix.
template <typename T>
class Matrix {
 public:
  Matrix(std::int64_t rows, std::int64_t columns)
      : shape_{rows, columns}, values_(static_cast<std::size_t>(rows * columns)) {}
  View<T, 2> view() { return {values_.data(), shape_}; }

 private:
  std::array<std::int64_t, 2> shape_;
  std::vector<T> values_;
};

Matrix<double> transpose(View<const double, 2> x) {
  Matrix<double> out(x.shape[1], x.shape[0]);
  const View<double, 2> to = out.view();
  for (std::int64_t i = 0; i < x.shape[0]; ++i) {
    for (std::int64_t j = 0; j < x.shape[1]; ++j) to(j, i) = x(i, j);
  }
  return out;
}

/// Calls row(i) for each row of a matrix, on the threads of the context.
template <class Row>
void each_row(const std::array<std::int64_t, 2>& shape, const ExecutionContext& context, const Row& row) {
  for_parts(parts_of(context, shape[0], shape[1]), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) row(i);
  });
}

Matrix<float> widened(View<const BFloat16, 2> x, const ExecutionContext& context) {
  Matrix<float> out(x.shape[0], x.shape[1]);
  const View<float, 2> to = out.view();
  each_row(x.shape, context, [&](std::int64_t i) { widen(to.at(i), x.at(i), x.shape[1]); });
  return out;
}

void multiply_widened(const Product<BFloat16, float>& p, const ExecutionContext& context) {
  Matrix<float> a = widened(p.a, context), b = widened(p.b, context);
  multiply(Product<float>{p.out, a.view(), p.a_form, b.view(), p.b_form, p.update}, context);
}

void multiply_widened(const Product<BFloat16>& p, const ExecutionContext& context) {
  Matrix<float> sums = p.update == Update::add ? widened(p.out, context) : Matrix<float>(p.M(), p.N());
  const View<float, 2> from = sums.view();
  multiply_widened(Product<BFloat16, float>{from, p.a, p.a_form, p.b, p.b_form, p.update}, context);
  each_row(from.shape, context,
           [&](std::int64_t i) { std::transform(from.at(i), from.at(i) + p.N(), p.out.at(i), to_bf16); });
}

template <typename Out>
void multiply_bf16(const Product<BFloat16, Out>& p, const ExecutionContext& context) {
  has_bf16_gemm() ? multiply_in_parts(p, context) : multiply_widened(p, context);
}

}  // namespace

Parts parts_of_product(const ExecutionContext& context, std::int64_t cut, std::int64_t products) {
  constexpr std::int64_t kTile = 16;  // parts begin at multiples of the 16 f32 elements of an AVX-512 vector
  // Counts 16 multiply-adds as one operation, so that a part has at least 262,144 multiply-adds. These take 4.4 µs at
  // the 118 GFLOP/s of a Zen 4 core. Smaller parts would not pay, because each thread packs its own copy of the operand
  // that all threads share.
  constexpr std::int64_t kPerOperation = 16;
  return parts_of(context, cut, products / kPerOperation, kTile);
}

void multiply(const Product<float>& p, const ExecutionContext& context) { multiply_in_parts(p, context); }
void multiply(const Product<BFloat16, float>& p, const ExecutionContext& context) { multiply_bf16(p, context); }
void multiply(const Product<BFloat16>& p, const ExecutionContext& context) { multiply_bf16(p, context); }

void multiply(const Product<double>& p, const ExecutionContext& context) {
  assert(p.fits());
  const bool copies_a = p.a_form == Form::transposed, copies_b = p.b_form == Form::stored;
  Matrix<double> a_copy = copies_a ? transpose(p.a) : Matrix<double>(0, 0);
  Matrix<double> b_copy = copies_b ? transpose(p.b) : Matrix<double>(0, 0);
  const View<const double, 2> a = copies_a ? a_copy.view() : p.a, b = copies_b ? b_copy.view() : p.b;
  for (std::int64_t first = 0; first < p.M(); first += kSkinnyRows) {
    const std::int64_t rows = std::min(kSkinnyRows, p.M() - first);
    skinny_gemm<double>(p.out.range(0, first, rows), a.range(0, first, rows), b, p.update, context);
  }
}

}  // namespace headgate::layers
