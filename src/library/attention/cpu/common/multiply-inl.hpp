// SPDX-License-Identifier: Apache-2.0
// Register-tiled matrix products used by every pass; included once per Highway target.
#if defined(HEADGATE_ATTENTION_MULTIPLY_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_MULTIPLY_INL_
#undef HEADGATE_ATTENTION_MULTIPLY_INL_
#else
#define HEADGATE_ATTENTION_MULTIPLY_INL_
#endif

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <type_traits>

#include "library/core/vec-inl.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// True if the target has 32 vector registers (AVX-512, NEON). Other targets have 16.
inline constexpr bool kHas32Registers = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON;

/// Size of a product's register tile: kMR rows by kNV vectors of accumulators.
/// The tile fills the register file, together with kNV vectors of b and one broadcast element of a.
/// The accumulators suffice to hide the latency of FMA (4–5 cycles, two FMAs per cycle).
inline constexpr std::int64_t kMR = kHas32Registers ? 12 : 6;
inline constexpr std::int64_t kNV = 2;

/// Number of columns of a packed panel. The last panel may have fewer columns.
template <typename T>
constexpr std::int64_t kNR = kNV* kLanes<T>;

/// Layout of the left operand: element (m,k) is a[m · kRow + k · kCol].
/// Strides are compile-time constants, so that each broadcast loads at a constant offset from one pointer.
template <std::int64_t kRow_, std::int64_t kCol_>
struct LeftLayout {
  static constexpr std::int64_t kRow = kRow_;
  static constexpr std::int64_t kCol = kCol_;
};

/// Selects how a product writes c. `offsets` has one value per row of c.
///   overwrite             c = ab;
///   overwrite_from        c = offset + ab; the sum begins with the offset;
///   overwrite_exponents   c = min(ab + offset, 0); the offset is added last;
///   accumulate            c += ab.
enum class ProductWrite { overwrite, overwrite_from, overwrite_exponents, accumulate };

/// Does nothing. Default for the callback `besides`, which products call while they run.
struct NothingElse {
  HWY_INLINE void operator()() const {}
};
/// Number of values of k between two calls of the callback besides(). A power of two.
inline constexpr std::int64_t kStepsACall = 4;

/// Computes tile[m][n] += Σ_k a(m,k) · b[k · ldb + n · lanes] for m < kRows and n < kVecs vectors.
/// Rows of b need not be aligned. Calls the callback besides() for every kStepsACall-th k.
template <class Layout, std::int64_t kRows, std::int64_t kVecs, typename T, class Besides = NothingElse>
HWY_INLINE void multiply_add(hn::Vec<Tag<T>> (&tile)[kRows][kVecs], const T* HWY_RESTRICT a, const T* HWY_RESTRICT b,
                             std::int64_t ldb, std::int64_t K, const Besides& besides = {}) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  using V = hn::Vec<Tag<T>>;
#pragma GCC unroll 4
  for (std::int64_t k = 0; k < K; ++k) {
    V right[kVecs];
    if constexpr (!std::is_same_v<Besides, NothingElse>) {
      if (k % kStepsACall == 0) besides();
    }
    HWY_UNROLL(4) for (std::int64_t n = 0; n < kVecs; ++n) right[n] = hn::LoadU(d, b + n * kN);
    HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
      const V left = hn::Set(d, a[m * Layout::kRow]);
      HWY_UNROLL(4) for (std::int64_t n = 0; n < kVecs; ++n) tile[m][n] = hn::MulAdd(left, right[n], tile[m][n]);
    }
    a += Layout::kCol;
    b += ldb;
  }
}

/// Computes tile += ab for a dense b, (K, kVecs · lanes).
template <class Layout, std::int64_t kRows, std::int64_t kVecs, typename T>
HWY_INLINE void multiply_add(hn::Vec<Tag<T>> (&tile)[kRows][kVecs], const T* HWY_RESTRICT a, const T* HWY_RESTRICT b,
                             std::int64_t K) {
  multiply_add<Layout, kRows, kVecs>(tile, a, b, kVecs * kLanes<T>, K);
}

/// Computes c = ab, or updates c as kWrite selects, for kRows rows and kVecs vectors of columns.
/// b is dense, and c has row stride ldc. `offsets` has kRows values, which only overwrite_from and overwrite_exponents
/// read.
template <std::int64_t kRows, std::int64_t kVecs, class Layout, ProductWrite kWrite, typename T>
HWY_NOINLINE void multiply_tile(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, std::int64_t K, T* HWY_RESTRICT c,
                                std::int64_t ldc, const T* offsets = nullptr) {
  const Tag<T> d;
  hn::Vec<Tag<T>> tile[kRows][kVecs];
  HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
    HWY_UNROLL(4) for (std::int64_t n = 0; n < kVecs; ++n) {
      tile[m][n] = kWrite == ProductWrite::overwrite_from ? hn::Set(d, offsets[m]) : hn::Zero(d);
    }
  }
  multiply_add<Layout, kRows, kVecs>(tile, a, b, K);
  HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
    HWY_UNROLL(4) for (std::int64_t n = 0; n < kVecs; ++n) {
      T* to = c + m * ldc + n * kLanes<T>;
      auto x = tile[m][n];
      if constexpr (kWrite == ProductWrite::accumulate) x = hn::Add(x, hn::LoadU(d, to));
      if constexpr (kWrite == ProductWrite::overwrite_exponents)
        x = at_most(d, T{0}, hn::Add(x, hn::Set(d, offsets[m])));
      hn::StoreU(x, d, to);
    }
  }
}

/// Calls f.operator()<kRows>() with the smallest of three tile heights that has room for `rows` rows.
/// Requires 1 ≤ rows ≤ kMR.
template <typename F>
HWY_INLINE void with_tile_height(std::int64_t rows, const F& f) {
  constexpr std::int64_t kHalf = kMR / 2;
  constexpr std::int64_t kQuarter = (kMR + 3) / 4;
  if (rows > kHalf) {
    f.template operator()<kMR>();
  } else if (rows > kQuarter) {
    f.template operator()<kHalf>();
  } else {
    f.template operator()<kQuarter>();
  }
}

/// Calls multiply_tile with a tile height that has room for `rows` rows. Requires 1 ≤ rows ≤ kMR and vecs ≤ kNV.
/// Reads a and writes c for all rows of the tile.
template <class Layout, ProductWrite kWrite, typename T>
HWY_INLINE void multiply_strip(std::int64_t rows, std::int64_t vecs, const T* a, const T* b, std::int64_t K, T* c,
                               std::int64_t ldc, const T* offsets = nullptr) {
  static_assert(kNV == 2);
  with_tile_height(rows, [&]<std::int64_t kRows>() HWY_ATTR {
    vecs == kNV ? multiply_tile<kRows, 2, Layout, kWrite>(a, b, K, c, ldc, offsets)
                : multiply_tile<kRows, 1, Layout, kWrite>(a, b, K, c, ldc, offsets);
  });
}

/// Right operand of products: a matrix (rows, cols) stored as one panel of columns after another.
/// A panel is a dense (rows, width) array. Its width is kNR, or less in the last panel. cols is a multiple of the
/// lanes.
template <typename T>
struct ColumnPanels {
  T* data;
  std::int64_t rows, cols;

  /// Returns the width of the panel that begins at column c.
  std::int64_t width(std::int64_t c) const { return std::min(kNR<T>, cols - c); }
  /// Returns row r of the panel that begins at column c.
  T* at(std::int64_t r, std::int64_t c) const {
    assert(r >= 0 && r < rows && c >= 0 && c < cols && c % kNR<T> == 0);
    return data + c * rows + r * width(c);
  }
};

/// Computes c = ab, or updates c as kWrite selects. Uses only rows first … first + K of b.
template <class Layout, ProductWrite kWrite, typename T>
HWY_INLINE void multiply_panels(const View<T, 2>& c, const T* a, const ColumnPanels<T>& b, std::int64_t first,
                                std::int64_t K) {
  for (std::int64_t x = 0; x < b.cols; x += kNR<T>) {
    multiply_strip<Layout, kWrite>(c.shape[0], b.width(x) / kLanes<T>, a, b.at(first, x), K, c.at(0, x), c.strides[0]);
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_MULTIPLY_INL_
