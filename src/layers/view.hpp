// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

// Shared by all layers. Every function here is instantiated for float and double, works on row-major memory, runs on
// omp_get_max_threads() threads and gives the same bits whenever that number is the same.

namespace headgate::layers {

/// Whether a result replaces what its buffer holds (=) or joins it (+=).
enum class Store { overwrite, add };

/// A (N,H,D) tensor inside a larger buffer: element (n,h,d) lies at data + n·token_stride + h·head_stride + d.
template <typename T>
struct HeadView {
  T* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  operator HeadView<const T>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<T>) {
    return {data, token_stride, head_stride};
  }
};

/// Sizes that go with a HeadView. Heads may be 1: then these are N plain rows.
struct HeadShape {
  std::int64_t N = 0;  ///< tokens
  std::int64_t H = 1;  ///< heads
  std::int64_t D = 0;  ///< features
};

/// Contiguous (N,D) rows as a view with one head.
template <typename T>
constexpr HeadView<T> rows_view(T* data, std::int64_t D) {
  return {data, D, D};
}

/// A parameter type from which T is not deduced, so that views of T convert to views of const T.
template <typename T>
using ConstHeadView = std::type_identity_t<HeadView<const T>>;

}  // namespace headgate::layers
