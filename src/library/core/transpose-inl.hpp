// SPDX-License-Identifier: Apache-2.0
// Transposes of small matrices in registers; included once per Highway target.
#if defined(HEADGATE_CORE_TRANSPOSE_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_CORE_TRANSPOSE_INL_
#undef HEADGATE_CORE_TRANSPOSE_INL_
#else
#define HEADGATE_CORE_TRANSPOSE_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "library/core/vec-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Number of columns that one transpose handles: the elements that fill 16 bytes. Interleave instructions move elements
/// only within blocks of 16 bytes.
template <typename T>
inline constexpr std::int64_t kTransposedCols = 16 / sizeof(T);

#if HWY_TARGET != HWY_SCALAR
/// Loads a vector from several rows, 16 bytes from each. With n = kTransposedCols, block b of 16 bytes holds columns
/// [c, c + n) of row_at(b · n).
template <class D, class RowAt>
HWY_INLINE hn::Vec<D> load_blocks(D d, const RowAt& row_at, std::int64_t c) {
  constexpr std::int64_t kN = hn::MaxLanes(d);
  if constexpr (kN == kTransposedCols<hn::TFromD<D>>) {
    return hn::LoadU(d, row_at(0) + c);
  } else {
    const hn::Half<D> half;
    const auto upper = [&row_at](std::int64_t r) HWY_ATTR { return row_at(kN / 2 + r); };
    return hn::Combine(d, load_blocks(half, upper, c), load_blocks(half, row_at, c));
  }
}

/// Transposes a matrix with kTransposedCols columns, and as many rows as a vector of D has lanes: to[c · stride + r] =
/// change(row_at(r)[from + c]). `change` maps a vector of D to another.
template <class D, typename T = hn::TFromD<D>, class RowAt, class Change>
HWY_INLINE void transpose_blocks(D d, T* HWY_RESTRICT to, std::int64_t stride, const RowAt& row_at, std::int64_t from,
                                 const Change& change) {
  constexpr std::int64_t kCols = kTransposedCols<T>;
  hn::Vec<D> rows[kCols];
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kCols; ++r) {
    const auto rows_after = [&row_at, r](std::int64_t n) HWY_ATTR { return row_at(r + n); };
    rows[r] = change(load_blocks(d, rows_after, from));
  }
  // The position of an element is one binary number: the bits of its row, then the bits of its column. Interleaving row
  // r with row r + kCols / 2 rotates this number by one bit. log2(kCols) rotations exchange row and column.
  HWY_UNROLL(3) for (std::int64_t round = 1; round < kCols; round *= 2) {
    hn::Vec<D> mixed[kCols];
    HWY_UNROLL(4) for (std::int64_t r = 0; r < kCols / 2; ++r) {
      mixed[2 * r] = hn::InterleaveLower(d, rows[r], rows[r + kCols / 2]);
      mixed[2 * r + 1] = hn::InterleaveUpper(d, rows[r], rows[r + kCols / 2]);
    }
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kCols; ++r) rows[r] = mixed[r];
  }
  HWY_UNROLL(8) for (std::int64_t c = 0; c < kCols; ++c) hn::StoreU(rows[c], d, to + c * stride);
}
#endif

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_CORE_TRANSPOSE_INL_
