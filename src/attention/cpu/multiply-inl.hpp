// SPDX-License-Identifier: Apache-2.0
// The register-tiled product on which every pass is built; included once per Highway target.
#if defined(HEADGATE_ATTENTION_MULTIPLY_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_MULTIPLY_INL_
#undef HEADGATE_ATTENTION_MULTIPLY_INL_
#else
#define HEADGATE_ATTENTION_MULTIPLY_INL_
#endif

#include "attention/cpu/vec-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Where element (m,k) of the left operand lies: a[m · kRow + k · kCol]. Compile-time strides keep every broadcast a
/// load at a constant displacement from one pointer.
template <std::size_t kRow_, std::size_t kCol_>
struct LeftLayout {
  static constexpr std::size_t kRow = kRow_;
  static constexpr std::size_t kCol = kCol_;
};

/// What a product does with c: c = ab, c = start + ab with one start a row, c += ab.
enum class Store { overwrite, overwrite_from, accumulate };

/// A register tile: kRows rows of kVecs vectors.
template <std::size_t kRows, std::size_t kVecs, typename T>
struct RegisterTile {
  hn::Vec<Tag<T>> at[kRows][kVecs];
};

/// tile += ab: tile[m][n] += Σ_k a(m,k) · b[k][n] for m < kRows, n < kVecs vectors.
/// b: (K, kVecs · lanes) dense, vector-aligned.
template <class Layout, std::size_t kRows, std::size_t kVecs, typename T>
HWY_INLINE void multiply_add(RegisterTile<kRows, kVecs, T>& tile, const T* HWY_RESTRICT a, const T* HWY_RESTRICT b,
                             std::size_t K) {
  const Tag<T> d;
  constexpr std::size_t kN = kLanes<T>;
  using V = hn::Vec<Tag<T>>;
#pragma GCC unroll 2
  for (std::size_t k = 0; k < K; ++k) {
    V right[kVecs];
    HWY_UNROLL(4) for (std::size_t n = 0; n < kVecs; ++n) right[n] = hn::Load(d, b + n * kN);
    HWY_UNROLL(16) for (std::size_t m = 0; m < kRows; ++m) {
      const V left = hn::Set(d, a[m * Layout::kRow]);
      HWY_UNROLL(4) for (std::size_t n = 0; n < kVecs; ++n) tile.at[m][n] = hn::MulAdd(left, right[n], tile.at[m][n]);
    }
    a += Layout::kCol;
    b += kVecs * kN;
  }
}

/// c[m][n] (+)= Σ_k a(m,k) · b[k][n] for m < kRows, n < kVecs vectors.
/// b as for multiply_add; c: row stride ldc; start: kRows, read by overwrite_from alone.
template <std::size_t kRows, std::size_t kVecs, class Layout, Store kStore, typename T>
HWY_NOINLINE void multiply_tile(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, std::size_t K, T* HWY_RESTRICT c,
                                std::size_t ldc, const T* start = nullptr) {
  const Tag<T> d;
  RegisterTile<kRows, kVecs, T> tile;
  HWY_UNROLL(16) for (std::size_t m = 0; m < kRows; ++m) {
    HWY_UNROLL(4) for (std::size_t n = 0; n < kVecs; ++n) {
      tile.at[m][n] = kStore == Store::overwrite_from ? hn::Set(d, start[m]) : hn::Zero(d);
    }
  }
  multiply_add<Layout>(tile, a, b, K);
  HWY_UNROLL(16) for (std::size_t m = 0; m < kRows; ++m) {
    HWY_UNROLL(4) for (std::size_t n = 0; n < kVecs; ++n) {
      T* to = c + m * ldc + n * kLanes<T>;
      hn::StoreU(kStore == Store::accumulate ? hn::Add(tile.at[m][n], hn::LoadU(d, to)) : tile.at[m][n], d, to);
    }
  }
}

/// Calls f.operator()<kRows>() with the smallest of three tile heights that holds 1 ≤ rows ≤ kMR.
template <typename F>
HWY_INLINE void with_tile_height(std::size_t rows, const F& f) {
  constexpr std::size_t kHalf = kMR / 2;
  constexpr std::size_t kQuarter = (kMR + 3) / 4;
  if (rows > kHalf) {
    f.template operator()<kMR>();
  } else if (rows > kQuarter) {
    f.template operator()<kHalf>();
  } else {
    f.template operator()<kQuarter>();
  }
}

/// multiply_tile for 1 ≤ rows ≤ kMR, vecs ≤ kNV: reads of a and writes of c reach up to the tile's height.
template <class Layout, Store kStore, typename T>
HWY_INLINE void multiply_strip(std::size_t rows, std::size_t vecs, const T* a, const T* b, std::size_t K, T* c,
                               std::size_t ldc, const T* start = nullptr) {
  static_assert(kNV == 2);
  with_tile_height(rows, [&]<std::size_t kRows>() HWY_ATTR {
    vecs == kNV ? multiply_tile<kRows, 2, Layout, kStore>(a, b, K, c, ldc, start)
                : multiply_tile<kRows, 1, Layout, kStore>(a, b, K, c, ldc, start);
  });
}

/// c (rows, cols) (+)= a (rows, K) · rows first … first + K of the column panels b (pack_panels with panel_rows).
/// cols: a multiple of the lanes.
template <class Layout, Store kStore, typename T>
HWY_INLINE void multiply_panels(std::size_t rows, const T* a, const T* b, std::size_t panel_rows, std::size_t first,
                                std::size_t K, std::size_t cols, T* c, std::size_t ldc) {
  for (std::size_t x = 0; x < cols; x += kNR<T>) {
    const std::size_t width = cols - x < kNR<T> ? cols - x : kNR<T>;
    multiply_strip<Layout, kStore>(rows, width / kLanes<T>, a, b + x * panel_rows + first * width, K, c + x, ldc);
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_MULTIPLY_INL_
