// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <new>

#include "models/layers/gemm.hpp"
#include "models/layers/parallel.hpp"

// Splits products into parts, one per thread. Declares the functions that gemm_dnnl.cc implements with oneDNN, or
// gemm_cblas.cc with OpenBLAS.

namespace headgate::layers {

/// Splits the rows or columns of a product's output among threads. `cut` is their number, and `products` is the number
/// of multiply-adds for each of them.
Parts parts_of_product(const ExecutionContext& context, std::int64_t cut, std::int64_t products);

/// Calls body(part, begin, end) for every part, one part per thread. Throws std::bad_alloc if body returns false, which
/// means that memory ran out.
template <class Body>
void multiply_parts(const Parts& parts, const Body& body) {
  require_products(parts.count);
  std::atomic<bool> computed = true;
  for_parts(parts, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    if (begin < end && !body(part, begin, end)) computed = false;
  });
  if (!computed) throw std::bad_alloc();
}

/// Computes a product with K > 0 on the calling thread. Returns false if memory for packed operands runs out.
[[nodiscard]] bool gemm(const Product<float>& product);
/// Computes a product of bf16 operands; requires has_bf16_gemm().
[[nodiscard]] bool gemm(const Product<BFloat16, float>& product);
[[nodiscard]] bool gemm(const Product<BFloat16>& product);
bool has_bf16_gemm();

/// Number of bytes that the library maps in its first product: once per process (first_bytes) and once per thread
/// (thread_bytes).
struct GemmMemory {
  std::uint64_t first_bytes, thread_bytes;
};
GemmMemory gemm_memory();

/// Makes the library allocate the memory for products in advance. Returns false if the allocation fails.
[[nodiscard]] bool prepare_gemm();

}  // namespace headgate::layers
