// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <new>

#include "models/layers/gemm.hpp"
#include "models/layers/parallel.hpp"

// Products as parts, one a thread, and what the library that multiplies them implements: gemm_dnnl.cc or gemm_cblas.cc.

namespace headgate::layers {

/// Splits `cut` rows or columns of a product, of `products` multiply-adds each, among threads.
Parts parts_of_product(const ExecutionContext& context, std::int64_t cut, std::int64_t products);

/// Calls body(part, begin, end) for every part, one part a thread. Throws std::bad_alloc if it returns false for one.
template <class Body>
void multiply_parts(const Parts& parts, const Body& body) {
  require_products(parts.count);
  std::atomic<bool> computed = true;
  for_parts(parts, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    if (begin < end && !body(part, begin, end)) computed = false;
  });
  if (!computed) throw std::bad_alloc();
}

/// Computes a product with K > 0 on the calling thread alone. Returns false if memory for packed operands runs out.
[[nodiscard]] bool gemm(const Product<float>& product);
/// Computes the same from bf16, where has_bf16_gemm().
[[nodiscard]] bool gemm(const Product<BFloat16, float>& product);
[[nodiscard]] bool gemm(const Product<BFloat16>& product);
bool has_bf16_gemm();

/// The memory that the library maps: in the first product, and in the first product of each thread.
struct GemmMemory {
  std::uint64_t first_bytes, thread_bytes;
};
GemmMemory gemm_memory();

/// Makes the library take the memory of the first product. Returns false if it fails.
[[nodiscard]] bool prepare_gemm();

}  // namespace headgate::layers
