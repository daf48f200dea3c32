// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"
#include "models/layers/arguments.hpp"

// Multiplies matrices of models:
// - f32 with oneDNN or OpenBLAS, as HEADGATE_PRODUCTS selects in the build
// - bf16 with oneDNN if the CPU has bf16 dot products, otherwise as f32
// - f64 with skinny_gemm(), for gradient checks and small matrices

namespace headgate::layers {

/// Selects whether an operand is read as stored or transposed.
enum class Form { stored, transposed };

/// Describes a matrix product: out(M,N) = a(M,K) b(K,N), or out += a b. The views `a` and `b` have the stored shapes,
/// before transposition. Rows of each view may have gaps between them. `out` overlaps neither operand.
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

/// Computes a product on the threads of the context. Each thread multiplies a range of rows or columns, so the order of
/// every sum is fixed. Results are bitwise identical at the same number of threads. Throws Error under the conditions
/// of require_products(), and std::bad_alloc if memory for packed operands runs out later.
void multiply(const Product<float>& product, const ExecutionContext& context);
void multiply(const Product<double>& product, const ExecutionContext& context);
/// Computes a product of bf16 operands. Sums are f32, and bf16 results are rounded once, after the addition of `out`.
/// On CPUs without bf16 dot products, multiplies operands widened to f32.
void multiply(const Product<BFloat16, float>& product, const ExecutionContext& context);
void multiply(const Product<BFloat16>& product, const ExecutionContext& context);

/// Throws Error if memory for products on `threads` threads is not available. multiply() calls this function; a program
/// can call it earlier to fail early.
void require_products(std::int64_t threads);

/// Returns the name and version of the matrix library and its kernels, such as "oneDNN 2.6.3, avx512_core_bf16".
std::string gemm_description();

}  // namespace headgate::layers
