// SPDX-License-Identifier: Apache-2.0
// Rows between strided storage and dense compute buffers, and the packed operands of the products; once per target.
#if defined(HEADGATE_ATTENTION_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_ROWS_INL_
#undef HEADGATE_ATTENTION_ROWS_INL_
#else
#define HEADGATE_ATTENTION_ROWS_INL_
#endif

#include <algorithm>

#include "attention/vec-inl.hpp"
#include "core/convert.hpp"
#include "headgate/tensor.hpp"

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

template <typename T>
HWY_INLINE void widen_halves(const Float16* HWY_RESTRICT from, std::size_t n, T* HWY_RESTRICT to) {
  std::size_t i = 0;
  // Highway's conversion in software (SSE4, scalar) knows no infinities.
  if constexpr (std::is_same_v<T, float> &&
                (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON)) {
    const Tag<float> d;
    const hn::Rebind<hwy::float16_t, Tag<float>> dh;
    const auto* halves = reinterpret_cast<const hwy::float16_t*>(from);
    for (; i + kLanes<float> <= n; i += kLanes<float>)
      hn::StoreU(hn::PromoteTo(d, hn::LoadU(dh, halves + i)), d, to + i);
  }
  for (; i < n; ++i) to[i] = widen<T>(from[i]);
}

template <typename From, typename T>
HWY_INLINE void load_strided(const From* HWY_RESTRICT from, std::int64_t stride, std::size_t n, T* HWY_RESTRICT to) {
  if (stride == 1) {
    if constexpr (std::is_same_v<From, Float16>) {
      widen_halves(from, n, to);
    } else {
      for (std::size_t i = 0; i < n; ++i) to[i] = widen<T>(from[i]);
    }
  } else {
    for (std::size_t i = 0; i < n; ++i) to[i] = widen<T>(from[static_cast<std::int64_t>(i) * stride]);
  }
}

/// to[0..n) = elements i3 = first … first + n of row (i0,i1,i2).
template <typename T>
HWY_NOINLINE void load_row(const ConstTensorView& v, std::int64_t i0, std::int64_t i1, std::int64_t i2,
                           std::int64_t first, std::size_t n, T* HWY_RESTRICT to) {
  const std::int64_t at = i0 * v.strides[0] + i1 * v.strides[1] + i2 * v.strides[2] + first * v.strides[3];
  const std::int64_t stride = v.strides[3];
  switch (v.dtype) {
    case DType::f32: return load_strided(static_cast<const float*>(v.data) + at, stride, n, to);
    case DType::f64: return load_strided(static_cast<const double*>(v.data) + at, stride, n, to);
    case DType::bf16: return load_strided(static_cast<const BFloat16*>(v.data) + at, stride, n, to);
    case DType::f16: return load_strided(static_cast<const Float16*>(v.data) + at, stride, n, to);
    case DType::boolean: return load_strided(static_cast<const std::uint8_t*>(v.data) + at, stride, n, to);
    default: return;  // other dtypes never reach a kernel
  }
}

template <typename T, typename To>
HWY_INLINE void store_strided(const T* HWY_RESTRICT from, std::size_t n, To* HWY_RESTRICT to, std::int64_t stride) {
  if (stride == 1) {
    for (std::size_t i = 0; i < n; ++i) to[i] = narrow<To>(from[i]);
  } else {
    for (std::size_t i = 0; i < n; ++i) to[static_cast<std::int64_t>(i) * stride] = narrow<To>(from[i]);
  }
}

/// Elements i3 = first … first + n of row (i0,i1,i2) = from[0..n), rounded to the view's dtype.
template <typename T>
HWY_NOINLINE void store_row(const T* HWY_RESTRICT from, std::size_t n, const TensorView& v, std::int64_t i0,
                            std::int64_t i1, std::int64_t i2, std::int64_t first) {
  const std::int64_t at = i0 * v.strides[0] + i1 * v.strides[1] + i2 * v.strides[2] + first * v.strides[3];
  const std::int64_t stride = v.strides[3];
  switch (v.dtype) {
    case DType::f32: return store_strided(from, n, static_cast<float*>(v.data) + at, stride);
    case DType::f64: return store_strided(from, n, static_cast<double*>(v.data) + at, stride);
    case DType::bf16: return store_strided(from, n, static_cast<BFloat16*>(v.data) + at, stride);
    case DType::f16: return store_strided(from, n, static_cast<Float16*>(v.data) + at, stride);
    default: return;
  }
}

/// One (b,h) slice of a tensor: rows of `cols` elements.
struct Slice {
  const ConstTensorView* view;
  std::int64_t b, h;
  std::size_t cols;

  /// Row `i` in T: in place where it lies dense in that type, else loaded into `buffer`.
  template <typename T>
  const T* row(std::int64_t i, T* HWY_RESTRICT buffer) const {
    if (view->dtype == dtype_of<T>() && view->strides[3] == 1) {
      return static_cast<const T*>(view->data) + b * view->strides[0] + h * view->strides[1] + i * view->strides[2];
    }
    load_row(*view, b, h, i, 0, cols, buffer);
    return buffer;
  }
};

/// Interleaved strips, the left operand "rows": out (ceil(n/kMR), cols, kMR), element (s,c,m) = factor · row first +
/// s·kMR
/// + m; zero beyond n. `row_buffer`: cols elements.
template <typename T>
void pack_strips(const Slice& from, std::int64_t first, std::size_t n, T factor, T* HWY_RESTRICT out,
                 T* HWY_RESTRICT row_buffer) {
  for (std::size_t r = 0; r < round_up(n, kMR); ++r) {
    T* to = out + (r / kMR) * kMR * from.cols + r % kMR;
    if (r < n) {
      const T* HWY_RESTRICT row = from.row(first + static_cast<std::int64_t>(r), row_buffer);
      for (std::size_t c = 0; c < from.cols; ++c) to[c * kMR] = factor * row[c];
    } else {
      for (std::size_t c = 0; c < from.cols; ++c) to[c * kMR] = T{0};
    }
  }
}

/// Transposed panels, the right operand of products that run along cols: out (ceil(n/kNR), cols, kNR), element (p,c,j)
/// = row first + p·kNR + j; zero beyond n. `rows_buffer`: kNR · cols elements.
template <typename T>
void pack_transposed(const Slice& from, std::int64_t first, std::size_t n, T* HWY_RESTRICT out,
                     T* HWY_RESTRICT rows_buffer) {
  constexpr std::size_t kCols = kNR<T>;
  for (std::size_t p = 0; p < n; p += kCols) {
    const std::size_t rows = std::min(kCols, n - p);
    const T* source[kCols];
    for (std::size_t r = 0; r < rows; ++r) {
      source[r] = from.row(first + static_cast<std::int64_t>(p + r), rows_buffer + r * from.cols);
    }
    if (rows < kCols) std::fill(out + p * from.cols, out + (p + kCols) * from.cols, T{0});
    T* HWY_RESTRICT to = out + p * from.cols;
    for (std::size_t c = 0; c < from.cols; ++c) {
      for (std::size_t r = 0; r < rows; ++r) to[c * kCols + r] = source[r][c];
    }
  }
}

/// Row `r` of the column panels `out` (pack_panels) = from[0 .. cols), cols a multiple of the lanes.
template <typename T>
HWY_INLINE void copy_to_panels(const T* HWY_RESTRICT from, std::size_t cols, std::size_t panel_rows, std::size_t r,
                               T* HWY_RESTRICT out) {
  const Tag<T> d;
  for (std::size_t c = 0; c < cols; c += kNR<T>) {
    const std::size_t width = std::min(kNR<T>, cols - c);
    for (std::size_t x = 0; x < width; x += kLanes<T>) {
      hn::StoreU(hn::LoadU(d, from + c + x), d, out + c * panel_rows + r * width + x);
    }
  }
}

/// Column panels, the right operand of products that run along rows: panels of kNR columns, each (panel_rows, width)
/// dense, one after the other; the last is as wide as the vectors that hold its columns, with zeros beyond `cols`.
/// Rows first … first + n of the slice become the panels' rows to_row …
template <typename T>
void pack_panels(const Slice& from, std::int64_t first, std::size_t n, std::size_t panel_rows, std::size_t to_row,
                 T* HWY_RESTRICT out, T* HWY_RESTRICT row_buffer) {
  const std::size_t padded = round_up(from.cols, kLanes<T>);
  std::fill(row_buffer + from.cols, row_buffer + padded, T{0});
  for (std::size_t r = 0; r < n; ++r) {
    const T* row = from.row(first + static_cast<std::int64_t>(r), row_buffer);
    if (row != row_buffer && padded != from.cols) row = std::copy_n(row, from.cols, row_buffer) - from.cols;
    copy_to_panels(row, padded, panel_rows, to_row + r, out);
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_ROWS_INL_
