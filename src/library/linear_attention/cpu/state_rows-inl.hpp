// SPDX-License-Identifier: Apache-2.0
// Copies blocks of a state between buffers and tensors, and rescales blocks; included once per Highway target.
#if defined(HEADGATE_LINEAR_STATE_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_STATE_ROWS_INL_
#undef HEADGATE_LINEAR_STATE_ROWS_INL_
#else
#define HEADGATE_LINEAR_STATE_ROWS_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "library/core/transpose-inl.hpp"
#include "library/linear_attention/cpu/scan_operands-inl.hpp"
#include "library/linear_attention/cpu/state_block-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Columns [first, first + count) of a tensor, which a block or a task covers. If a block is wider, its other columns
/// are padding.
struct StateColumns {
  std::int64_t first, count;
};

template <typename T, std::int64_t kVectors>
StateColumns columns_of(std::int64_t first_vector, std::int64_t cols) {
  const std::int64_t first = first_vector * kLanes<T>;
  return {first, std::min(StateBlock<T, kVectors>::kWidth, cols - first)};
}

/// Loads the block's columns of a state (D,Dv) from a tensor. Fills padding with zeros. If the tensor is absent, fills
/// the whole block with zeros.
template <typename T, std::int64_t kVectors>
void load_block(const StateBlock<T, kVectors>& block, const HeadRows<const void>& state, const StateColumns& columns) {
  constexpr std::int64_t kWidth = StateBlock<T, kVectors>::kWidth;
  const std::int64_t rows = state.present() ? state.rows : 0;
  if (rows > 0 && state.dtype == dtype_of<T>() && state.stride == 1 && columns.count == kWidth) {
    for (std::int64_t i = 0; i < rows; ++i)
      BlockRow<T, kVectors>::load(state.template at<T>(i, columns.first, kWidth)).store(block.row(i));
  } else {
    for (std::int64_t i = 0; i < rows; ++i) {
      load_row(block.row(i), state, i, columns.first, columns.count);
      std::fill(block.row(i) + columns.count, block.row(i) + kWidth, T{0});
    }
  }
  std::fill(block.row(rows), block.row(block.rows), T{0});
}

/// Writes the block's columns to a state (D,Dv) in a tensor.
template <typename T, std::int64_t kVectors>
void store_block(const HeadRows<void>& state, const StateBlock<T, kVectors>& block, const StateColumns& columns) {
  constexpr std::int64_t kWidth = StateBlock<T, kVectors>::kWidth;
  if (state.dtype == dtype_of<T>() && state.stride == 1 && columns.count == kWidth) {
    for (std::int64_t i = 0; i < state.rows; ++i)
      BlockRow<T, kVectors>::load(block.row(i)).store(state.template at<T>(i, columns.first, kWidth));
  } else {
    for (std::int64_t i = 0; i < state.rows; ++i) store_row(state, block.row(i), i, columns.first, columns.count);
  }
}

/// Loads a block of the transposed state (Dv,D). Columns of the block are rows of the tensor. `row` is scratch for one
/// row of the tensor.
template <typename T, std::int64_t kVectors>
void load_transposed_block(const StateBlock<T, kVectors>& block, const HeadRows<const void>& state,
                           const StateColumns& columns, T* row) {
  std::fill(block.row(0), block.row(block.rows), T{0});
  if (!state.present()) return;
  for (std::int64_t c = 0; c < columns.count; ++c) {
    load_row(row, state, columns.first + c, 0, state.cols);
    for (std::int64_t i = 0; i < state.cols; ++i) block.row(i)[c] = row[i];
  }
}

/// Transposes kLanes rows of `cols` elements: to[c · to_stride + r] = from[r · from_stride + c] for c < cols and r <
/// kLanes.
template <typename T>
HWY_INLINE void transpose_lanes(T* HWY_RESTRICT to, std::int64_t to_stride, const T* HWY_RESTRICT from,
                                std::int64_t from_stride, std::int64_t cols) {
  std::int64_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  const auto row_at = [&](std::int64_t r) HWY_ATTR { return from + r * from_stride; };
  const auto unchanged = [](auto x) HWY_ATTR { return x; };
  for (; c + kTransposedCols<T> <= cols; c += kTransposedCols<T>)
    transpose_blocks(Tag<T>(), to + c * to_stride, to_stride, row_at, c, unchanged);
#endif
  for (; c < cols; ++c) {
    for (std::int64_t r = 0; r < kLanes<T>; ++r) to[c * to_stride + r] = from[r * from_stride + c];
  }
}

/// Multiplies each column of a block by its own factor.
template <typename T, std::int64_t kVectors>
void scale_columns(const StateBlock<T, kVectors>& block, const T* factors) {
  const auto by = BlockRow<T, kVectors>::load(factors);
  for (std::int64_t i = 0; i < block.rows; ++i) {
    auto row = BlockRow<T, kVectors>::load(block.row(i));
    row.multiply(by);
    row.store(block.row(i));
  }
}

/// Multiplies each row of a block by its own factor.
template <typename T, std::int64_t kVectors>
void scale_rows(const StateBlock<T, kVectors>& block, const T* factors) {
  for (std::int64_t i = 0; i < block.rows; ++i) {
    auto row = BlockRow<T, kVectors>::load(block.row(i));
    row.multiply(hn::Set(Tag<T>(), factors[i]));
    row.store(block.row(i));
  }
}

/// Supplies the factors with which a scan rescales the blocks of a state (D,Dv):
///   - one factor per row, if each feature has its own decay
///   - the same factor for all columns, if one decay applies to the whole state
template <typename T>
class BlockFactors {
 public:
  explicit BlockFactors(const DecayFactors<T>& factors) : factors_(factors) { std::fill_n(ones_, kMostCols, T{1}); }

  /// Sets the factors of a pass over `tokens` tokens, which begins with step n. Returns whether the factors multiply
  /// rows, columns or nothing.
  template <class PassT>
  HWY_INLINE Rescaling set(PassT& pass, std::int64_t n, int tokens) {
    bool any = false;
    for (int t = 0; t < tokens; ++t) any = any || factors_.rescales(n + t);
    if (!any) return Rescaling::none;
    for (int t = 0; t < tokens; ++t) {
      pass.factors[t] = !factors_.rescales(n + t) ? ones_ : expanded(factors_.before(n + t), column_factors_[t]);
    }
    return factors_.by_feature() ? Rescaling::rows : Rescaling::columns;
  }

  /// Multiplies the stored state S̃ by the decay factors F after the last token of a chunk. The block then holds the
  /// state S.
  template <std::int64_t kVectors>
  void finish(const StateBlock<T, kVectors>& block) {
    if (!factors_.present()) return;
    const T* const by = expanded(factors_.last(), column_factors_[0]);
    factors_.by_feature() ? scale_rows(block, by) : scale_columns(block, by);
  }

 private:
  static constexpr std::int64_t kWidth = kMostVectors * kLanes<T>;
  static constexpr std::int64_t kMostCols = round_up(kMaxStateDim, kWidth);

  HWY_INLINE const T* expanded(const T* of_step, T* column_factors) const {
    if (factors_.by_feature()) return of_step;
    std::fill_n(column_factors, kWidth, *of_step);
    return column_factors;
  }

  const DecayFactors<T>& factors_;
  T ones_[kMostCols];
  T column_factors_[2][kWidth];
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_STATE_ROWS_INL_
