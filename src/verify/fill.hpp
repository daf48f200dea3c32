// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headgate/tensor.hpp"
#include "library/core/element.hpp"
#include "library/core/random.hpp"

// Functions that fill the tensors of problems with values drawn from a seed.

namespace headgate::verify {

/// Random number generator for one tensor of a problem.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) : bits_(seed * kSplitMix64Step + stream * 0xD1B54A32D192ED03U) {}
  double uniform() { return bits_.uniform(); }
  /// Returns a random number within ±3.5 that is approximately normal with variance 1: a scaled sum of four uniform
  /// numbers.
  double normal() { return (uniform() + uniform() + uniform() + uniform() - 2.0) * 1.7320508075688772; }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(bits_.below(static_cast<std::uint64_t>(n))); }

 private:
  SplitMix64 bits_;
};

/// Calls visit(a, b, c, d) for every index of `shape`, in row-major order.
template <typename Visit>
void for_each_index(const Shape& shape, const Visit& visit) {
  for (std::int64_t a = 0; a < shape[0]; ++a) {
    for (std::int64_t b = 0; b < shape[1]; ++b) {
      for (std::int64_t c = 0; c < shape[2]; ++c) {
        for (std::int64_t d = 0; d < shape[3]; ++d) visit(a, b, c, d);
      }
    }
  }
}

inline void fill_normal(const TensorView& view, std::uint64_t seed, std::uint64_t stream, double factor) {
  Random random(seed, stream);
  for_each_index(view.shape, [&](std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    store(view, a, b, c, d, factor * random.normal());
  });
}

/// Stores `value` in entry n of a vector (1,1,1,N) of i32 or i64.
void store_integer(const TensorView& view, std::int64_t n, std::int64_t value);

/// Writes the bounds (1,1,1,N+1) of N packed sequences with `total` rows in all. Uses the lengths `given`, or draws
/// them if `given` is empty. Drawn lengths are arbitrary in two thirds of the problems. In the others, one sequence is
/// long and the rest have length 0 or 1.
void fill_bounds(const TensorView& bounds, std::int64_t total, const std::vector<std::int64_t>& given, Random random);

/// Writes snapshot lengths: the numbers of tokens after which kernels copy the state.
/// Each of N sequences gets M ascending lengths (1,1,N,M), or all sequences share one row (1,1,1,M).
/// `cu_seqlens` bounds the sequences. Without `cu_seqlens`, each sequence has T tokens.
/// Lengths may repeat. About half of the rows begin with 0 and end with the largest length.
void fill_snapshot_lengths(const TensorView& lengths, const ConstTensorView& cu_seqlens, std::int64_t T, Random random);

}  // namespace headgate::verify
