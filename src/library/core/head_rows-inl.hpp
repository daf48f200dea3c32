// SPDX-License-Identifier: Apache-2.0
// Rows between strided storage of any element type and dense compute buffers; included once per Highway target.
#if defined(HEADGATE_CORE_HEAD_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_CORE_HEAD_ROWS_INL_
#undef HEADGATE_CORE_HEAD_ROWS_INL_
#else
#define HEADGATE_CORE_HEAD_ROWS_INL_
#endif

#include <cassert>
#include <cstdint>
#include <type_traits>

#include "headgate/tensor.hpp"
#include "library/core/convert.hpp"
#include "library/core/vec-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

template <typename T, typename From>
HWY_INLINE T widen(From x) {
  if constexpr (std::is_arithmetic_v<From>) {
    return static_cast<T>(x);
  } else {
    return static_cast<T>(to_f32(x));
  }
}

template <typename To, typename T>
HWY_INLINE To narrow(T x) {
  if constexpr (std::is_same_v<To, BFloat16>) {
    return to_bf16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, Float16>) {
    return to_f16(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

/// True if vector instructions convert f16. On other targets (SSE4, scalar), Highway's conversion in software does not
/// support infinities.
inline constexpr bool kWidensHalves = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON;

template <typename T>
HWY_INLINE void widen_halves(T* HWY_RESTRICT to, const Float16* HWY_RESTRICT from, std::int64_t n) {
  std::int64_t i = 0;
  if constexpr (std::is_same_v<T, float> && kWidensHalves) {
    const Tag<float> d;
    const hn::Rebind<hwy::float16_t, Tag<float>> dh;
    const auto* halves = reinterpret_cast<const hwy::float16_t*>(from);
    for (; i + kLanes<float> <= n; i += kLanes<float>)
      hn::StoreU(hn::PromoteTo(d, hn::LoadU(dh, halves + i)), d, to + i);
  }
  for (; i < n; ++i) to[i] = widen<T>(from[i]);
}

template <typename T, typename From>
HWY_INLINE void load_strided(T* HWY_RESTRICT to, const From* HWY_RESTRICT from, std::int64_t n, std::int64_t stride) {
  if (stride == 1) {
    if constexpr (std::is_same_v<From, Float16>) {
      widen_halves(to, from, n);
    } else {
      for (std::int64_t i = 0; i < n; ++i) to[i] = widen<T>(from[i]);
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i] = widen<T>(from[i * stride]);
  }
}

template <typename To, typename T>
HWY_INLINE void store_strided(To* HWY_RESTRICT to, const T* HWY_RESTRICT from, std::int64_t n, std::int64_t stride) {
  if (stride == 1) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = narrow<To>(from[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i * stride] = narrow<To>(from[i]);
  }
}

/// A view of the rows of one head (b,h) of a tensor, with any dtype and strides. If the tensor is absent, load_row()
/// does nothing.
template <typename Void>
struct HeadRows {
  Void* data;
  DType dtype;
  std::int64_t start;  ///< offset of row 0 from `data`, in elements
  std::int64_t rows, cols;
  std::int64_t row_stride, stride;

  HeadRows(const BasicTensorView<Void>& tensor, std::int64_t b, std::int64_t h)
      : data(tensor.data),
        dtype(tensor.dtype),
        start(b * tensor.strides[0] + h * tensor.strides[1]),
        rows(tensor.shape[2]),
        cols(tensor.shape[3]),
        row_stride(tensor.strides[2]),
        stride(tensor.strides[3]) {}
  /// Converts writable rows to read-only rows.
  template <typename Other>
  HeadRows(const HeadRows<Other>& other)  // NOLINT(google-explicit-constructor)
      requires(std::is_const_v<Void> && !std::is_const_v<Other>)
      : data(other.data),
        dtype(other.dtype),
        start(other.start),
        rows(other.rows),
        cols(other.cols),
        row_stride(other.row_stride),
        stride(other.stride) {}

  bool present() const { return dtype != DType::none; }

  /// Returns n of these rows: row i of the result is row first + i.
  HeadRows range(std::int64_t first, std::int64_t n) const {
    assert(!present() || (first >= 0 && n >= 0 && first + n <= rows));
    HeadRows part = *this;
    part.start += first * row_stride;
    part.rows = n;
    return part;
  }
  /// Returns n columns of each row: column c of the result is column first + c.
  HeadRows columns(std::int64_t first, std::int64_t n) const {
    assert(!present() || (first >= 0 && n >= 0 && first + n <= cols));
    HeadRows part = *this;
    part.start += first * stride;
    part.cols = n;
    return part;
  }

  /// Returns a pointer to column `first` of row i. `Element` is the tensor's element type. Debug builds check that
  /// columns [first, first + n) exist.
  template <typename Element>
  auto* at(std::int64_t i, std::int64_t first, [[maybe_unused]] std::int64_t n) const {
    assert(i >= 0 && i < rows && first >= 0 && n >= 0 && first + n <= cols);
    using Pointer = std::conditional_t<std::is_const_v<Void>, const Element*, Element*>;
    return static_cast<Pointer>(data) + (start + i * row_stride + first * stride);
  }
};

/// Copies columns [first, first + n) of row i to to[0 .. n), converted to T.
template <typename T>
HWY_NOINLINE void load_row(T* HWY_RESTRICT to, const HeadRows<const void>& from, std::int64_t i, std::int64_t first,
                           std::int64_t n) {
  switch (from.dtype) {
    case DType::f32: return load_strided(to, from.at<float>(i, first, n), n, from.stride);
    case DType::f64: return load_strided(to, from.at<double>(i, first, n), n, from.stride);
    case DType::bf16: return load_strided(to, from.at<BFloat16>(i, first, n), n, from.stride);
    case DType::f16: return load_strided(to, from.at<Float16>(i, first, n), n, from.stride);
    case DType::boolean: return load_strided(to, from.at<std::uint8_t>(i, first, n), n, from.stride);
    case DType::i8: return load_strided(to, from.at<std::int8_t>(i, first, n), n, from.stride);
    default: return;  // kernels get no other dtypes
  }
}

template <typename T, typename From>
HWY_INLINE void gather_strided(T* HWY_RESTRICT to, const From* HWY_RESTRICT from, const std::int64_t* columns,
                               std::int64_t n, std::int64_t stride) {
  for (std::int64_t x = 0; x < n; ++x) to[x] = widen<T>(from[columns[x] * stride]);
}

/// Copies the given columns of row i to to[0 .. n), converted to T. The n column numbers are ascending.
template <typename T>
HWY_NOINLINE void gather_row(T* HWY_RESTRICT to, const HeadRows<const void>& from, std::int64_t i,
                             const std::int64_t* columns, std::int64_t n) {
  if (n == 0) return;
  const std::int64_t end = columns[n - 1] + 1;
  switch (from.dtype) {
    case DType::f32: return gather_strided(to, from.at<float>(i, 0, end), columns, n, from.stride);
    case DType::f64: return gather_strided(to, from.at<double>(i, 0, end), columns, n, from.stride);
    case DType::bf16: return gather_strided(to, from.at<BFloat16>(i, 0, end), columns, n, from.stride);
    case DType::f16: return gather_strided(to, from.at<Float16>(i, 0, end), columns, n, from.stride);
    case DType::boolean: return gather_strided(to, from.at<std::uint8_t>(i, 0, end), columns, n, from.stride);
    default: return;  // kernels get no other dtypes
  }
}

/// Stores from[0 .. n) in columns [first, first + n) of row i, rounded to the tensor's dtype.
template <typename T>
HWY_NOINLINE void store_row(const HeadRows<void>& to, const T* HWY_RESTRICT from, std::int64_t i, std::int64_t first,
                            std::int64_t n) {
  switch (to.dtype) {
    case DType::f32: return store_strided(to.at<float>(i, first, n), from, n, to.stride);
    case DType::f64: return store_strided(to.at<double>(i, first, n), from, n, to.stride);
    case DType::bf16: return store_strided(to.at<BFloat16>(i, first, n), from, n, to.stride);
    case DType::f16: return store_strided(to.at<Float16>(i, first, n), from, n, to.stride);
    default: return;
  }
}

/// Returns row i as contiguous elements of type T: the tensor's own memory if possible, otherwise a copy in `buffer`.
template <typename T>
const T* dense_row(const HeadRows<const void>& from, std::int64_t i, T* HWY_RESTRICT buffer) {
  if (from.dtype == dtype_of<T>() && from.stride == 1) return from.at<T>(i, 0, from.cols);
  load_row(buffer, from, i, 0, from.cols);
  return buffer;
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_CORE_HEAD_ROWS_INL_
