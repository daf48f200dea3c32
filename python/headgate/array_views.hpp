// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "headgate/tensor.hpp"
#include "library/core/tensor_rows.hpp"
#include "library/core/words.hpp"

// Maps the dimensions of users' arrays to the four dimensions of a view. This file does not depend on Python.

namespace headgate::python {

/// Order of the dimensions of q, k, v, gate and arrays of the same shapes.
enum class Layout { bhtd, bthd };

/// Maps a dtype to its name in NumPy, PyTorch and JAX.
struct DTypeName {
  DType dtype;
  const char* name;
};
inline constexpr std::array<DTypeName, 8> kDTypeNames{{{DType::f32, "float32"},
                                                       {DType::f64, "float64"},
                                                       {DType::bf16, "bfloat16"},
                                                       {DType::f16, "float16"},
                                                       {DType::boolean, "bool"},
                                                       {DType::i32, "int32"},
                                                       {DType::i64, "int64"},
                                                       {DType::i8, "int8"}}};

/// Determines the dimensions of a Python array, and the position of each dimension in the four-dimensional view.
/// Letters: B batch, N sequences, H heads, T queries, S keys, X features; M and P are any sizes.
enum class ArrayKind {
  heads,           ///< (B,H,T,X) or (B,T,H,X), depending on the layout; (H,T,X) or (T,H,X) without a batch
  rows,            ///< one number for each query: (B,H,T) in every layout, or (H,T) without a batch
  rows_or_heads,   ///< one number for each query (B,H,T), or for each head: (N,H), or (H) without a batch
  scores,          ///< (B,H,T,S), (H,T,S) or (T,S) in every layout
  vector,          ///< (N)
  query_numbers,   ///< numbers for heads (H), or for queries (B,H,T) or (H,T); view (1,1,1,H) or (B,H,T,1)
  head_numbers,    ///< numbers for heads, (H) or (N,H); the view is (1,1,1,H) or (1,1,N,H)
  table,           ///< (B,M)
  pages,           ///< pages of a paged KV cache: (P,H,page,X) or (P,page,H,X), depending on the layout
  states,          ///< states of linear attention: (N,H,D,Dv) in every layout, even if q has no batch dimension
  channels,        ///< (B,T,X), or (T,X) without a batch; the view is (B,1,T,X)
  channel_states,  ///< states of a convolution: (N,M,X), even if x has no batch dimension; the view is (N,1,M,X)
  head_features,   ///< numbers for features, (X) or (H,X); the view is (1,1,1,X) or (1,H,1,X)
  any,             ///< up to four dimensions; size 1 fills the missing leading dimensions of the view
};

/// Returns the rank of an array of `kind` with a batch dimension.
std::size_t rank_with_batch(ArrayKind kind);

/// Returns the dimensions of an array as error messages show them, such as "(B,H,T,D) or (H,T,D)".
const char* letters_of(ArrayKind kind, Layout layout);

/// Converts the kind of a tensor in the library's tables to the kind of its Python array.
constexpr ArrayKind array_kind(TensorKind kind) {
  switch (kind) {
    case TensorKind::heads: return ArrayKind::heads;
    case TensorKind::rows: return ArrayKind::rows;
    case TensorKind::rows_or_heads: return ArrayKind::rows_or_heads;
    case TensorKind::scores: return ArrayKind::scores;
    case TensorKind::vector: return ArrayKind::vector;
    case TensorKind::state: return ArrayKind::states;
    case TensorKind::channels: return ArrayKind::channels;
    case TensorKind::channel_state: return ArrayKind::channel_states;
    case TensorKind::query_numbers: return ArrayKind::query_numbers;
    case TensorKind::head_numbers: return ArrayKind::head_numbers;
    case TensorKind::head_features: return ArrayKind::head_features;
    case TensorKind::table: break;
  }
  return ArrayKind::table;
}

/// The memory of an array: address, dtype, shape and strides.
struct StridedArray {
  static constexpr std::size_t kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::none;
  std::size_t rank = 0;
  Shape shape{}, strides{};  ///< the first `rank` entries are valid; strides are in elements
};

/// Returns a four-dimensional view of `array`. `kind` and `layout` determine which dimension of the array becomes which
/// dimension of the view. Throws Error, "FUNCTION: NAME …", if the array's rank does not match `kind`.
template <typename View>
View view_of_array(const char* function, const char* name, const StridedArray& array, ArrayKind kind, Layout layout);

/// Throws Error, "FUNCTION: NAME has shape …", with the dimensions that an array of `kind` must have.
[[noreturn]] void refuse_rank(const char* function, const char* name, std::span<const std::int64_t> sizes,
                              ArrayKind kind, Layout layout);

/// Returns whether the option `layout` determines the order of the dimensions of arrays of this kind.
bool has_layout(ArrayKind kind);

/// Returns whether arrays of this kind have no head dimension. Views of such arrays have a head dimension of size 1.
bool has_no_heads(ArrayKind kind);

/// Converts the shape of a view to the shape of a Python array of `kind`. Omits the batch dimension unless `has_batch`
/// is true.
std::vector<std::int64_t> sizes_of(const Shape& shape, ArrayKind kind, Layout layout, bool has_batch);

/// Formats a shape, for example as "(2,8,5)".
std::string sizes_text(std::span<const std::int64_t> sizes);

}  // namespace headgate::python

template <>
struct headgate::Words<headgate::python::Layout> {
  static constexpr std::array<Word<python::Layout>, 2> kAll{
      {{python::Layout::bhtd, "bhtd"}, {python::Layout::bthd, "bthd"}}};
};
