// SPDX-License-Identifier: Apache-2.0
// Converts rows between strided storage and dense compute buffers, and packs operands of products; once per target.
#if defined(HEADGATE_ATTENTION_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_ROWS_INL_
#undef HEADGATE_ATTENTION_ROWS_INL_
#else
#define HEADGATE_ATTENTION_ROWS_INL_
#endif

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "headgate/tensor.hpp"
#include "library/attention/cpu/common/multiply-inl.hpp"
#include "library/attention/cpu/common/row_prefetch.hpp"
#include "library/attention/problem.hpp"
#include "library/core/head_rows-inl.hpp"
#include "library/core/transpose-inl.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Returns the rows of a sequence's queries in a tensor (B,Hq,T,…).
template <typename Void>
HeadRows<Void> query_rows(const BasicTensorView<Void>& tensor, const Sequence& s, std::int64_t h) {
  return HeadRows<Void>(tensor, s.b, h).range(s.q0, s.T);
}

/// Returns the rows of a sequence's keys in a tensor (B,Hkv,S,…).
template <typename Void>
HeadRows<Void> key_rows(const BasicTensorView<Void>& tensor, const Sequence& s, std::int64_t h) {
  return HeadRows<Void>(tensor, s.kb, h).range(s.k0, s.S);
}

/// Returns the rows of a sequence's queries in a tensor (B,Hq,T,S), with only the columns of the sequence's keys.
template <typename Void>
HeadRows<Void> map_rows(const BasicTensorView<Void>& tensor, const Sequence& s, std::int64_t h) {
  return query_rows(tensor, s, h).columns(s.k0, s.S);
}

/// Returns true if rows are dense in memory and consist of whole vectors of T. Stored is the storage type, T or bf16.
template <typename T, typename Stored = T, typename Void>
bool lie_dense(const HeadRows<Void>& rows) {
  return rows.dtype == dtype_of<Stored>() && rows.stride == 1 && rows.cols % kLanes<T> == 0;
}

/// Returns an object that prefetches all rows in `steps` steps. Returns an empty one if rows are absent or not dense.
inline RowPrefetch prefetch_rows(const HeadRows<const void>& from, std::int64_t steps = 1) {
  if (!from.present() || from.stride != 1) return {};
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(from.dtype));
  return {static_cast<const char*>(from.data) + from.start * bytes, from.rows, from.cols * bytes,
          from.row_stride * bytes, steps};
}

/// The tensors that store the keys, or those that store the values.
struct KeyTensors {
  const ConstTensorView& rows;       ///< k or v
  const ConstTensorView& scale;      ///< scales of int8 rows; absent for other dtypes
  const ConstTensorView& unrounded;  ///< first rows of each sequence in floating point, beside int8 rows; may be absent
};
inline KeyTensors key_tensors(const Problem& p) { return {p.inputs.k, p.inputs.k_scale, p.inputs.k_first}; }
inline KeyTensors value_tensors(const Problem& p) { return {p.inputs.v, p.inputs.v_scale, p.inputs.v_first}; }

/// Rows of k or v of one sequence and head. The rows may be stored in pages. They may be int8, with one scale per row.
/// Beside int8 rows, a second tensor may hold unrounded rows: the sequence's first rows in floating point.
class KeyRows {
 public:
  KeyRows(const Problem& p, const KeyTensors& of, const Sequence& s, std::int64_t h)
      : cols(of.rows.shape[3]),
        page_(p.page),
        table_row_(s.number),
        table_(p.inputs.block_table),
        rows_(page_ > 0 ? HeadRows<const void>(of.rows, 0, h) : key_rows(of.rows, s, h)),
        scales_(page_ > 0 || !of.scale.present() ? HeadRows<const void>(of.scale, 0, h) : key_rows(of.scale, s, h)),
        unrounded_(of.unrounded, s.number, h),
        page_stride_(of.rows.strides[0]),
        scale_page_stride_(of.scale.strides[0]) {}

  DType dtype() const { return rows_.dtype; }
  /// Returns the column stride in elements.
  std::int64_t stride() const { return rows_.stride; }
  bool scaled() const { return scales_.present(); }
  /// Returns how many rows at the start of the sequence are unrounded. These rows have no scale.
  std::int64_t unrounded_rows() const { return unrounded_.rows; }

  /// Returns a view of row j. The view does not include the row's scale.
  HeadRows<const void> row(std::int64_t j) const {
    return j < unrounded_.rows ? unrounded_.range(j, 1) : stored_row(j);
  }
  /// Returns row j of the tensor of dtype(), even if the row is also stored unrounded in another tensor.
  HeadRows<const void> stored_row(std::int64_t j) const { return at(rows_, page_stride_, j); }
  float scale(std::int64_t j) const {
    return j < unrounded_.rows ? 1.0F : *at(scales_, scale_page_stride_, j).template at<float>(0, 0, 1);
  }

  /// Elements at addresses first, first + step, first + 2 · step, …
  template <typename E>
  struct Run {
    const E* first = nullptr;  ///< null if k and v are stored in pages
    std::int64_t step = 0;
  };
  /// Returns the run of stored rows (of dtype()) that begins with row j.
  /// Run::first is null if rows are stored in pages.
  /// scales_from() does the same for the scales of the rows.
  template <typename E>
  Run<E> rows_from(std::int64_t j) const {
    return page_ > 0 ? Run<E>() : Run<E>{rows_.at<E>(j, 0, cols), rows_.row_stride};
  }
  Run<float> scales_from(std::int64_t j) const {
    return page_ > 0 ? Run<float>() : Run<float>{scales_.at<float>(j, 0, 1), scales_.row_stride};
  }

  /// Calls visit(r, address) for r < n. `address` points to row first + r, as stored with dtype().
  template <typename E, class Visit>
  void each_row(std::int64_t first, std::int64_t n, const Visit& visit) const {
    each_run<E>(rows_, page_stride_, first, n,
                [&visit](std::int64_t r, std::int64_t end, const E* row, std::int64_t step) {
                  for (; r < end; ++r, row += step) visit(r, row);
                });
  }
  /// Writes the stored scales of rows first … first + n to `to`.
  template <typename T>
  void scales(T* HWY_RESTRICT to, std::int64_t first, std::int64_t n) const {
    each_run<float>(scales_, scale_page_stride_, first, n,
                    [to](std::int64_t r, std::int64_t end, const float* scale, std::int64_t step) {
                      if (step == 1) {
                        std::copy(scale, scale + (end - r), to + r);
                      } else {
                        for (; r < end; ++r, scale += step) to[r] = static_cast<T>(*scale);
                      }
                    });
  }

  std::int64_t cols;

 private:
  /// Calls visit(r, end, address, step) for each run of rows that lie in one page.
  /// All runs together are rows first … first + n.
  /// A run is rows first + r … first + end. Its first row is at `address`, and `step` is its row stride.
  template <typename E, class Visit>
  void each_run(const HeadRows<const void>& rows, std::int64_t page_stride, std::int64_t first, std::int64_t n,
                const Visit& visit) const {
    for (std::int64_t r = 0; r < n;) {
      const std::int64_t in_page = page_ == 0 ? n : page_ - (first + r) % page_;
      const std::int64_t end = std::min(n, r + in_page);
      visit(r, end, at(rows, page_stride, first + r).template at<E>(0, 0, rows.cols), rows.row_stride);
      r = end;
    }
  }

  HeadRows<const void> at(const HeadRows<const void>& rows, std::int64_t page_stride, std::int64_t j) const {
    if (page_ == 0) return rows.range(j, 1);
    HeadRows<const void> page = rows;
    page.start += page_of(table_, table_row_, j / page_) * page_stride;
    return page.range(j % page_, 1);
  }

  std::int64_t page_, table_row_;
  ConstTensorView table_;
  HeadRows<const void> rows_, scales_;  // rows of the sequence, or rows of page 0 if k and v are stored in pages
  HeadRows<const void> unrounded_;      // the sequence's unrounded rows, or absent
  std::int64_t page_stride_, scale_page_stride_;
};

inline KeyRows rows_of_keys(const Problem& p, const Sequence& s, std::int64_t h) { return {p, key_tensors(p), s, h}; }
inline KeyRows rows_of_values(const Problem& p, const Sequence& s, std::int64_t h) {
  return {p, value_tensors(p), s, h};
}

/// Returns row j as T, multiplied by its scale.
/// Returns an address in the tensor if the row is stored as T without a scale, otherwise writes the row to `buffer`.
template <typename T>
const T* dense_row(const KeyRows& from, std::int64_t j, T* HWY_RESTRICT buffer) {
  const T* row = dense_row(from.row(j), 0, buffer);
  if (!from.scaled() || j < from.unrounded_rows()) return row;
  const T scale = static_cast<T>(from.scale(j));
  for (std::int64_t x = 0; x < from.cols; ++x) buffer[x] *= scale;
  return buffer;
}

/// Returns row i as dense T, zero-padded to whole vectors.
/// A row that needs conversion or padding is written to `buffer`, which must have room for the padding.
template <typename T, class Rows>
const T* padded_row(const Rows& from, std::int64_t i, T* HWY_RESTRICT buffer) {
  const T* row = dense_row(from, i, buffer);
  const std::int64_t padded = round_up(from.cols, kLanes<T>);
  if (padded == from.cols) return row;
  if (row != buffer) std::copy_n(row, from.cols, buffer);
  std::fill(buffer + from.cols, buffer + padded, T{0});
  return buffer;
}

/// Replaces to[j] by op(to[j], from[j]…) for j < n, one vector at a time. Accesses no elements beyond n.
template <typename T, class Op, class... From>
HWY_INLINE void update_row(T* HWY_RESTRICT to, std::int64_t n, const Op& op, const From* HWY_RESTRICT... from) {
  const Tag<T> d;
  std::int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) hn::StoreU(op(hn::LoadU(d, to + j), hn::LoadU(d, from + j)...), d, to + j);
  if (j == n) return;
  const auto tail = [&](const T* row) HWY_ATTR {
    HWY_ALIGN T lanes[kLanes<T>] = {};
    std::copy(row + j, row + n, lanes);
    return hn::Load(d, lanes);
  };
  HWY_ALIGN T lanes[kLanes<T>];
  hn::Store(op(tail(to), tail(from)...), d, lanes);
  std::copy_n(lanes, n - j, to + j);
}

#if HWY_TARGET != HWY_SCALAR
/// Implements interleave_rows() for those of the rows r … n that fill whole vectors.
/// Uses vectors of type D, then vectors of half as many lanes, and so on. Adds the number of rows done to r.
template <std::int64_t kRows, class D, typename T = hn::TFromD<D>>
HWY_INLINE void interleave_vectors(D d, T* HWY_RESTRICT out, const T* const* rows, std::int64_t& r, std::int64_t n,
                                   std::int64_t cols, T factor) {
  constexpr std::int64_t kN = hn::MaxLanes(d);
  for (; r + kN <= n; r += kN) {
    constexpr std::int64_t kCols = kTransposedCols<T>;
    const std::int64_t whole_cols = cols / kCols * kCols;
    const auto f = hn::Set(d, factor);
    const auto row_at = [&](std::int64_t x) HWY_ATTR { return rows[r + x]; };
    const auto scaled = [f](auto x) HWY_ATTR { return hn::Mul(f, x); };
    for (std::int64_t c = 0; c < whole_cols; c += kCols)
      transpose_blocks(d, out + c * kRows + r, kRows, row_at, c, scaled);
    for (std::int64_t c = whole_cols; c < cols; ++c) {
      for (std::int64_t x = 0; x < kN; ++x) out[c * kRows + r + x] = factor * rows[r + x][c];
    }
  }
  if constexpr (kN > kTransposedCols<T>) interleave_vectors<kRows>(hn::Half<D>(), out, rows, r, n, cols, factor);
}
#endif

/// Transposes and scales a matrix: out[c · kRows + r] = factor · rows[r][c] for r < n ≤ kRows and c < cols.
template <std::int64_t kRows, typename T>
HWY_INLINE void interleave_rows(T* HWY_RESTRICT out, const T* const* rows, std::int64_t n, std::int64_t cols,
                                T factor) {
  std::int64_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  interleave_vectors<kRows>(Tag<T>(), out, rows, r, n, cols, factor);
#endif
  for (; r < n; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) out[c * kRows + r] = factor * rows[r][c];
  }
}

/// Reverses interleave_rows(): to(r, c) = from[c · kRows + r] for r < kRows and c < cols.
template <std::int64_t kRows, typename T>
HWY_INLINE void deinterleave_rows(const View<T, 2>& to, const T* HWY_RESTRICT from, std::int64_t cols) {
  std::int64_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  static_assert(kRows % kTransposedCols<T> == 0);
  const auto unchanged = [](auto x) HWY_ATTR { return x; };
  for (; c + kLanes<T> <= cols; c += kLanes<T>) {
    const auto row_at = [&](std::int64_t x) HWY_ATTR { return from + (c + x) * kRows; };
    for (std::int64_t r = 0; r < kRows; r += kTransposedCols<T>)
      transpose_blocks(Tag<T>(), to.at(r, c), to.strides[0], row_at, r, unchanged);
  }
#endif
  for (; c < cols; ++c) {
    for (std::int64_t r = 0; r < kRows; ++r) to(r, c) = from[c * kRows + r];
  }
}

/// Packs rows row_of(0) … row_of(n − 1) into groups of kRows rows. Transposes each group and multiplies it by `factor`.
/// Element (p, c, r) of out (groups, cols, kRows) is factor · row_of(p · kRows + r)[c].
/// Pads the last group with zeros. `buffer` is scratch for kRows rows.
template <std::int64_t kRows, typename T, class Rows, class RowOf>
void pack_interleaved(const View<T, 3>& out, const Rows& from, const RowOf& row_of, std::int64_t n, T factor,
                      const View<T, 2>& buffer) {
  for (std::int64_t p = 0; p * kRows < n; ++p) {
    const std::int64_t i0 = p * kRows;
    const std::int64_t rows = std::min(kRows, n - i0);
    const T* source[kRows];
    for (std::int64_t r = 0; r < rows; ++r) source[r] = dense_row(from, row_of(i0 + r), buffer.at(r));
    T* to = out.at(p);
    if (rows < kRows) std::fill_n(to, kRows * from.cols, T{0});
    interleave_rows<kRows>(to, source, rows, from.cols, factor);
  }
}

/// Packs rows first … first + n as the left operand of products: strips of kMR interleaved rows, (strips, cols, kMR).
template <typename T>
void pack_strips(const View<T, 3>& out, const HeadRows<const void>& from, std::int64_t first, std::int64_t n, T factor,
                 const View<T, 2>& buffer) {
  pack_interleaved<kMR>(
      out, from, [first](std::int64_t r) { return first + r; }, n, factor, buffer);
}

/// Packs the rows listed in `rows` as the left operand of products: strips of kMR interleaved rows, (strips, cols,
/// kMR).
template <typename T>
void pack_strips(const View<T, 3>& out, const HeadRows<const void>& from, const View<std::int64_t, 1>& rows,
                 std::int64_t n, T factor, const View<T, 2>& buffer) {
  pack_interleaved<kMR>(
      out, from, [&rows](std::int64_t r) { return rows(r); }, n, factor, buffer);
}

/// Packs rows first … first + n as the transposed right operand of products.
/// The result is panels of kNR interleaved rows, (panels, cols, kNR).
template <typename T, class Rows>
void pack_transposed(const View<T, 3>& out, const Rows& from, std::int64_t first, std::int64_t n,
                     const View<T, 2>& buffer) {
  pack_interleaved<kNR<T>>(
      out, from, [first](std::int64_t r) { return first + r; }, n, T{1}, buffer);
}

/// Copies from[0 .. out.cols) to row r of `out`.
template <typename T>
HWY_INLINE void copy_to_panels(const ColumnPanels<T>& out, std::int64_t r, const T* HWY_RESTRICT from) {
  const Tag<T> d;
  for (std::int64_t c = 0; c < out.cols; c += kNR<T>) {
    T* to = out.at(r, c);
    for (std::int64_t x = 0; x < out.width(c); x += kLanes<T>) hn::StoreU(hn::LoadU(d, from + c + x), d, to + x);
  }
}

/// Copies rows first … first + n of `from` to rows to_row … to_row + n of `out`, zero-padded to out.cols.
template <typename T, class Rows>
void pack_panels(const ColumnPanels<T>& out, std::int64_t to_row, const Rows& from, std::int64_t first, std::int64_t n,
                 const View<T, 2>& buffer) {
  for (std::int64_t r = 0; r < n; ++r) copy_to_panels(out, to_row + r, padded_row(from, first + r, buffer.data));
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_ROWS_INL_
