// SPDX-License-Identifier: Apache-2.0
// Rows between strided storage and dense compute buffers, and the packed operands of the products; once per target.
#if defined(HEADGATE_ATTENTION_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_ROWS_INL_
#undef HEADGATE_ATTENTION_ROWS_INL_
#else
#define HEADGATE_ATTENTION_ROWS_INL_
#endif

#include <algorithm>

#include "attention/cpu/vec-inl.hpp"
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

  /// The same with zeros from `cols` up to whole vectors, for which `buffer` has room.
  template <typename T>
  const T* padded_row(std::int64_t i, T* HWY_RESTRICT buffer) const {
    const T* in_place = row(i, buffer);
    const std::size_t padded = round_up(cols, kLanes<T>);
    if (padded == cols) return in_place;
    if (in_place != buffer) std::copy_n(in_place, cols, buffer);
    std::fill(buffer + cols, buffer + padded, T{0});
    return buffer;
  }
};

#if HWY_TARGET != HWY_SCALAR
/// Four rows of f32, two of f64: 16 bytes, the block that targets with vectors transpose in.
template <typename T>
inline constexpr std::size_t kQuad = 16 / sizeof(T);

/// to[c · stride + r] = factor · rows[r][c] for c, r < kQuad.
template <typename T>
HWY_INLINE void transpose_quad(const T* const* rows, std::size_t c, T factor, T* HWY_RESTRICT to, std::size_t stride) {
  const hn::FixedTag<T, kQuad<T>> d;
  const auto f = hn::Set(d, factor);
  const auto row = [&](std::size_t r) HWY_ATTR { return hn::Mul(f, hn::LoadU(d, rows[r] + c)); };
  const auto low = hn::InterleaveLower(d, row(0), row(1));
  const auto high = hn::InterleaveUpper(d, row(0), row(1));
  if constexpr (kQuad<T> == 2) {
    hn::StoreU(low, d, to);
    hn::StoreU(high, d, to + stride);
  } else {
    const auto low2 = hn::InterleaveLower(d, row(2), row(3));
    const auto high2 = hn::InterleaveUpper(d, row(2), row(3));
    hn::StoreU(hn::ConcatLowerLower(d, low2, low), d, to);
    hn::StoreU(hn::ConcatUpperUpper(d, low2, low), d, to + stride);
    hn::StoreU(hn::ConcatLowerLower(d, high2, high), d, to + 2 * stride);
    hn::StoreU(hn::ConcatUpperUpper(d, high2, high), d, to + 3 * stride);
  }
}
#endif

/// A matrix's transpose, element by element: out[c · kRows + r] = factor · rows[r][c] for r < n ≤ kRows, c < cols.
template <std::size_t kRows, typename T>
HWY_INLINE void interleave_rows(const T* const* rows, std::size_t n, std::size_t cols, T factor, T* HWY_RESTRICT out) {
  std::size_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  const std::size_t whole_cols = cols / kQuad<T> * kQuad<T>;
  for (; r + kQuad<T> <= n; r += kQuad<T>) {
    for (std::size_t c = 0; c < whole_cols; c += kQuad<T>)
      transpose_quad(rows + r, c, factor, out + c * kRows + r, kRows);
    for (std::size_t c = whole_cols; c < cols; ++c) {
      for (std::size_t x = 0; x < kQuad<T>; ++x) out[c * kRows + r + x] = factor * rows[r + x][c];
    }
  }
#endif
  for (; r < n; ++r) {
    for (std::size_t c = 0; c < cols; ++c) out[c * kRows + r] = factor * rows[r][c];
  }
}

/// Rows first … first + n of the slice as groups of kRows: out (ceil(n/kRows), cols, kRows), element (p,c,r) =
/// factor · row first + p·kRows + r; zero beyond n. `rows_buffer`: kRows · cols elements.
template <std::size_t kRows, typename T>
void pack_interleaved(const Slice& from, std::int64_t first, std::size_t n, T factor, T* HWY_RESTRICT out,
                      T* HWY_RESTRICT rows_buffer) {
  for (std::size_t p = 0; p < n; p += kRows) {
    const std::size_t rows = std::min(kRows, n - p);
    const T* source[kRows];
    for (std::size_t r = 0; r < rows; ++r) {
      source[r] = from.row(first + static_cast<std::int64_t>(p + r), rows_buffer + r * from.cols);
    }
    T* to = out + p * from.cols;
    if (rows < kRows) std::fill_n(to, kRows * from.cols, T{0});
    interleave_rows<kRows>(source, rows, from.cols, factor, to);
  }
}

/// Interleaved strips, the left operand "rows": groups of kMR.
template <typename T>
void pack_strips(const Slice& from, std::int64_t first, std::size_t n, T factor, T* HWY_RESTRICT out,
                 T* HWY_RESTRICT rows_buffer) {
  pack_interleaved<kMR>(from, first, n, factor, out, rows_buffer);
}

/// Transposed panels, the right operand of products that run along cols: groups of kNR.
template <typename T>
void pack_transposed(const Slice& from, std::int64_t first, std::size_t n, T* HWY_RESTRICT out,
                     T* HWY_RESTRICT rows_buffer) {
  pack_interleaved<kNR<T>>(from, first, n, T{1}, out, rows_buffer);
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
  for (std::size_t r = 0; r < n; ++r) {
    const T* row = from.padded_row(first + static_cast<std::int64_t>(r), row_buffer);
    copy_to_panels(row, padded, panel_rows, to_row + r, out);
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_ROWS_INL_
