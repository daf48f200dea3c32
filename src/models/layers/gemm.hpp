// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"
#include "models/layers/arguments.hpp"

// Multiplies matrices of models. oneDNN or OpenBLAS computes f32 (HEADGATE_PRODUCTS in the build), oneDNN bf16 where
// the CPU has dot products of bf16. f64, which gradient checks and small matrices need, is computed by skinny_gemm.

namespace headgate::layers {

/// Whether an operand is read as it is stored, or transposed.
enum class Form { stored, transposed };

/// Describes out(M,N) = or += a(M,K) b(K,N). The views of `a` and `b` have the shapes that are stored. Rows of each
/// view may have gaps between them. `out` overlaps neither operand.
template <typename In, typename Out = In>
struct Product {
  View<Out, 2> out;
  View<const In, 2> a;
  Form a_form;
  View<const In, 2> b;
  Form b_form;
  Update update;

  std::int64_t M() const { return out.shape[0]; }
  std::int64_t N() const { return out.shape[1]; }
  std::int64_t K() const { return a.shape[a_form == Form::stored ? 1 : 0]; }

  bool fits() const {
    return has_whole_rows(out) && has_whole_rows(a) && has_whole_rows(b) &&
           a.shape[a_form == Form::stored ? 0 : 1] == M() && b.shape[b_form == Form::stored ? 1 : 0] == N() &&
           b.shape[b_form == Form::stored ? 0 : 1] == K();
  }

  Product rows(std::int64_t begin, std::int64_t end) const {
    Product part = *this;
    part.out = out.range(0, begin, end - begin);
    part.a = a.range(a_form == Form::stored ? 0 : 1, begin, end - begin);
    return part;
  }

  Product columns(std::int64_t begin, std::int64_t end) const {
    Product part = *this;
    part.out = out.range(1, begin, end - begin);
    part.b = b.range(b_form == Form::stored ? 1 : 0, begin, end - begin);
    return part;
  }
};

/// Computes a product on the threads of the context. Each thread multiplies its slice of rows or columns, so every sum
/// has one order, and results are bitwise identical at the same number of threads. Throws Error as require_products()
/// does, and std::bad_alloc if memory for packed operands runs out later.
void multiply(const Product<float>& product, const ExecutionContext& context);
void multiply(const Product<double>& product, const ExecutionContext& context);
/// Computes the same from bf16. Sums are in f32, and bf16 results are rounded once, after the addition of `out`. CPUs
/// without dot products of bf16 multiply operands that are widened to f32.
void multiply(const Product<BFloat16, float>& product, const ExecutionContext& context);
void multiply(const Product<BFloat16>& product, const ExecutionContext& context);

/// Throws Error unless there is memory for products on so many threads. multiply() calls it; a program that calls it
/// earlier learns earlier.
void require_products(std::int64_t threads);

/// Returns the library that multiplies, its version and its kernels, such as "oneDNN 2.6.3, avx512_core_bf16".
std::string gemm_description();

}  // namespace headgate::layers
