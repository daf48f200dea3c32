// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_TENSOR_HPP_
#define HEADGATE_TENSOR_HPP_

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "headgate/cxx20.hpp"

namespace headgate {

/// Element type of a view. `none` marks an absent tensor.
enum class DType : std::int32_t {
  none = 0,
  f32 = 1,
  f64 = 2,
  bf16 = 3,
  f16 = 4,
  boolean = 5,
  i32 = 6,
  i64 = 7,
  i8 = 8
};

/// Storage of one bfloat16: the upper 16 bits of an IEEE binary32.
struct BFloat16 {
  std::uint16_t bits;
};

/// Storage of one IEEE binary16.
struct Float16 {
  std::uint16_t bits;
};

/// The element type of a C++ type: float f32, double f64, BFloat16, Float16, bool and uint8_t boolean, int32_t,
/// int64_t, int8_t. Other types do not compile.
template <typename T>
constexpr DType dtype_of() {
  using U = std::remove_const_t<T>;
  if constexpr (std::is_same_v<U, float>) {
    return DType::f32;
  } else if constexpr (std::is_same_v<U, double>) {
    return DType::f64;
  } else if constexpr (std::is_same_v<U, BFloat16>) {
    return DType::bf16;
  } else if constexpr (std::is_same_v<U, Float16>) {
    return DType::f16;
  } else if constexpr (std::is_same_v<U, bool> || std::is_same_v<U, std::uint8_t>) {
    return DType::boolean;
  } else if constexpr (std::is_same_v<U, std::int32_t>) {
    return DType::i32;
  } else if constexpr (std::is_same_v<U, std::int8_t>) {
    return DType::i8;
  } else {
    static_assert(std::is_same_v<U, std::int64_t>, "headgate: no dtype for this element type");
    return DType::i64;
  }
}

/// Size in bytes of one element; 0 for `none`.
constexpr std::size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::boolean:
    case DType::i8: return 1;
    case DType::none: break;
  }
  return 0;
}

/// "f32", "bf16", …, "none".
constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::boolean: return "bool";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::i8: return "i8";
    case DType::none: break;
  }
  return "none";
}

/// Four sizes, or four strides; the dimensions of a tensor with fewer come last, after ones.
using Shape = std::array<std::int64_t, 4>;

/// Row-major strides, in elements, of a contiguous tensor of `shape`. Sizes whose product leaves 64 bits wrap around,
/// to be refused by the function that gets the view.
constexpr Shape contiguous_strides(const Shape& shape) {
  Shape strides{};
  std::uint64_t step = 1;
  for (std::size_t i = 4; i-- > 0;) {
    strides[i] = static_cast<std::int64_t>(step);
    step *= static_cast<std::uint64_t>(shape[i]);
  }
  return strides;
}

/// A non-owning rank-4 view: element (i0,i1,i2,i3) lies at data + (i0·s0 + i1·s1 + i2·s2 + i3·s3) elements.
/// Strides count elements and may be negative, or zero in inputs that broadcast; outputs must not overlap themselves.
/// A default-constructed view means "absent".
template <typename Void>
struct BasicTensorView {
  Void* data = nullptr;
  DType dtype = DType::none;
  Shape shape{};
  Shape strides{};

  /// An absent tensor.
  constexpr BasicTensorView() = default;
  /// A view of `data_in`; make_view derives the dtype.
  constexpr BasicTensorView(Void* data_in, DType dtype_in, const Shape& shape_in, const Shape& strides_in)
      : data(data_in), dtype(dtype_in), shape(shape_in), strides(strides_in) {}
  /// A mutable view converts to a read-only one.
  template <typename Other, typename = std::enable_if_t<std::is_convertible_v<Other*, Void*>>>
  constexpr BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT(google-explicit-constructor)
      : data(other.data), dtype(other.dtype), shape(other.shape), strides(other.strides) {}

  /// Whether there is a tensor.
  constexpr bool present() const { return dtype != DType::none; }
  /// The number of elements.
  constexpr std::int64_t numel() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

/// A tensor that a function writes.
using TensorView = BasicTensorView<void>;

/// A tensor that a function reads.
using ConstTensorView = BasicTensorView<const void>;

/// The view of memory of T: read-only where T is const.
template <typename T>
using ViewOf = std::conditional_t<std::is_const_v<T>, ConstTensorView, TensorView>;

/// View of `data` with explicit strides, e.g. (B,T,H,D) memory seen as (B,H,T,D): strides {T·H·D, D, H·D, 1}.
template <typename T>
constexpr ViewOf<T> make_view(T* data, const Shape& shape, const Shape& strides) {
  return {data, dtype_of<T>(), shape, strides};
}

/// View of contiguous `data`.
template <typename T>
constexpr ViewOf<T> make_view(T* data, const Shape& shape) {
  return {data, dtype_of<T>(), shape, contiguous_strides(shape)};
}

/// View (B,H,T,D) of contiguous (B,T,H,D) memory, the layout of projections: what q, k, v, gate and y are in a model.
template <typename Element>
constexpr ViewOf<Element> make_bthd_view(Element* data, std::int64_t B, std::int64_t T, std::int64_t H,
                                         std::int64_t D) {
  return make_view(data, Shape{B, H, T, D}, Shape{T * H * D, D, H * D, 1});
}

/// View of a contiguous vector of n elements, as shape (1,1,1,n).
template <typename T>
constexpr ViewOf<T> make_vector_view(T* data, std::int64_t n) {
  return make_view(data, Shape{1, 1, 1, n});
}

}  // namespace headgate

#endif  // HEADGATE_TENSOR_HPP_
