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

/// A bfloat16 number, stored as the upper 16 bits of an IEEE binary32.
struct BFloat16 {
  std::uint16_t bits;
};

/// An IEEE binary16 number, stored as its bits.
struct Float16 {
  std::uint16_t bits;
};

/// Returns the DType of a C++ type: float, double, BFloat16, Float16, std::int8_t, std::int32_t or std::int64_t. bool
/// and std::uint8_t give boolean. Other types do not compile.
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

/// Returns the size of an element in bytes, or 0 for `none`.
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

/// Returns the name of an element type: "f32", "bf16", …, "none".
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

/// Four sizes or four strides. For a tensor of fewer dimensions, the leading sizes are 1.
using Shape = std::array<std::int64_t, 4>;

/// Returns the row-major strides, in elements, of a contiguous tensor of `shape`. If the number of elements overflows
/// 64 bits, the strides wrap around. Functions refuse a view with such a shape.
constexpr Shape contiguous_strides(const Shape& shape) {
  Shape strides{};
  std::uint64_t step = 1;
  for (std::size_t i = 4; i-- > 0;) {
    strides[i] = static_cast<std::int64_t>(step);
    step *= static_cast<std::uint64_t>(shape[i]);
  }
  return strides;
}

/// A non-owning view of rank 4. Element (i0,i1,i2,i3) is i0·s0 + i1·s1 + i2·s2 + i3·s3 elements after `data`, where s
/// are the strides. Strides may be negative, or zero to broadcast an input. Elements of an output must not overlap. A
/// default-constructed view means "absent".
template <typename Void>
struct BasicTensorView {
  Void* data = nullptr;
  DType dtype = DType::none;
  Shape shape{};
  Shape strides{};

  /// Creates the view of an absent tensor.
  constexpr BasicTensorView() = default;
  /// Creates a view of `data_in` with the given dtype. make_view() takes the dtype from the pointer type.
  constexpr BasicTensorView(Void* data_in, DType dtype_in, const Shape& shape_in, const Shape& strides_in)
      : data(data_in), dtype(dtype_in), shape(shape_in), strides(strides_in) {}
  /// Converts a mutable view to a read-only view.
  template <typename Other, typename = std::enable_if_t<std::is_convertible_v<Other*, Void*>>>
  constexpr BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT(google-explicit-constructor)
      : data(other.data), dtype(other.dtype), shape(other.shape), strides(other.strides) {}

  /// Returns whether the tensor is present.
  constexpr bool present() const { return dtype != DType::none; }
  /// Returns the number of elements.
  constexpr std::int64_t numel() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

/// A tensor that a function writes.
using TensorView = BasicTensorView<void>;

/// A tensor that a function reads.
using ConstTensorView = BasicTensorView<const void>;

/// The type of a view of T elements: read-only if T is const.
template <typename T>
using ViewOf = std::conditional_t<std::is_const_v<T>, ConstTensorView, TensorView>;

/// Returns a view of `data` with explicit strides. For example, strides {T·H·D, D, H·D, 1} view (B,T,H,D) memory as
/// (B,H,T,D).
template <typename T>
constexpr ViewOf<T> make_view(T* data, const Shape& shape, const Shape& strides) {
  return {data, dtype_of<T>(), shape, strides};
}

/// Returns a view of contiguous `data`.
template <typename T>
constexpr ViewOf<T> make_view(T* data, const Shape& shape) {
  return {data, dtype_of<T>(), shape, contiguous_strides(shape)};
}

/// Returns a view (B,H,T,D) of contiguous (B,T,H,D) memory. (B,T,H,D) is the layout of q, k, v, gate and y between
/// projections.
template <typename Element>
constexpr ViewOf<Element> make_bthd_view(Element* data, std::int64_t B, std::int64_t T, std::int64_t H,
                                         std::int64_t D) {
  return make_view(data, Shape{B, H, T, D}, Shape{T * H * D, D, H * D, 1});
}

/// Returns a view (1,1,1,n) of a contiguous vector of n elements.
template <typename T>
constexpr ViewOf<T> make_vector_view(T* data, std::int64_t n) {
  return make_view(data, Shape{1, 1, 1, n});
}

}  // namespace headgate

#endif  // HEADGATE_TENSOR_HPP_
