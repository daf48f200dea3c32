// SPDX-License-Identifier: Apache-2.0
// Multiplies bf16 matrices with f32 sums, and packs their operands (AVX-512 only).
#if defined(HEADGATE_CORE_BF16_PRODUCTS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_CORE_BF16_PRODUCTS_INL_
#undef HEADGATE_CORE_BF16_PRODUCTS_INL_
#else
#define HEADGATE_CORE_BF16_PRODUCTS_INL_
#endif

#if HWY_TARGET == HWY_AVX3
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>

#include "library/core/convert.hpp"
#include "library/core/dots-inl.hpp"
#include "library/core/vec-inl.hpp"

#undef HEADGATE_TILES_ATTR
/// Function attribute for code that uses AMX and AVX-512 BF16.
#define HEADGATE_TILES_ATTR __attribute__((target(HWY_TARGET_STR ",avx512bf16,amx-tile,amx-bf16")))

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

// The products in this file are c = a b, with f32 c (m,n), bf16 a (m,k) and bf16 b (k,n). m and n are multiples of 16.
// k is padded with zeros to a multiple of 32.
//   - a: the left operand, stored as rows of k elements with any row stride.
//   - b: the right operand, stored as panels of 16 columns. A panel has shape (k/2, 16, 2). Its element (x,y) is at
//     [x/2][y][x % 2].

/// Sizes of the product that one AMX instruction computes: rows of c, columns of c, and the depth k.
inline constexpr std::int64_t kTileRows = 16, kTileCols = 16, kTileDepth = 32;
/// Number of rows and columns of c that are computed at a time: four AMX tiles of c, from two tiles of a and two of b.
inline constexpr std::int64_t kSquare = 32;

constexpr std::int64_t whole_squares(std::int64_t n) { return round_up(n, kSquare); }

/// Right operand b of a bf16 product, stored in panels of 16 columns.
struct PairPanels {
  BFloat16* data;
  std::int64_t panel_stride;  ///< distance between panels, in elements

  /// Returns the address of row x of panel n. x must be even, because rows are stored in pairs.
  BFloat16* at(std::int64_t n, std::int64_t x) const { return data + n * panel_stride + x * kTileCols; }
  /// Returns the part of the operand from row x and panel n on. x must be even, because rows are stored in pairs.
  PairPanels from(std::int64_t n, std::int64_t x) const { return {at(n, x), panel_stride}; }
};

/// Selects how a product of square blocks writes c:
///   - overwrite: c = a b
///   - accumulate: c += a b
///   - scale_and_accumulate: multiplies row i of c by factors[i], and then adds a b.
enum class SquareWrite { overwrite, accumulate, scale_and_accumulate };

/// Multiplies square blocks of bf16 numbers with AMX. The constructor configures the calling thread's AMX tiles.
/// The destructor restores the configuration that the thread had before.
class Tiles {
 public:
  HEADGATE_TILES_ATTR Tiles() {
    _tile_storeconfig(before_.data());
    memory_is_used();
    alignas(64) std::array<std::uint8_t, 64> config{};
    config[0] = 1;  // palette
    for (std::size_t tile = 0; tile < 8; ++tile) {
      config[16 + 2 * tile] = 64;  // bytes per row of a tile
      config[48 + tile] = 16;      // rows
    }
    memory_is_used();
    _tile_loadconfig(config.data());
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  HEADGATE_TILES_ATTR ~Tiles() {
    if (before_[0] == 0) {
      _tile_release();
    } else {
      _tile_loadconfig(before_.data());
    }
  }

  /// Computes c as kWrite says, for a square c with row stride ldc. a has 32 rows with row stride lda. `depth` is
  /// the number of columns of a and of rows of b.
  template <SquareWrite kWrite>
  HEADGATE_TILES_ATTR static void multiply(const BFloat16* a, std::int64_t lda, const PairPanels& b, std::int64_t depth,
                                           float* c, std::int64_t ldc, const float* factors = nullptr) {
    for (std::int64_t r = 0; kWrite == SquareWrite::scale_and_accumulate && r < kSquare; ++r) {
      for (std::int64_t x = 0; x < kSquare; x += kTileCols)
        _mm512_storeu_ps(c + r * ldc + x, _mm512_mul_ps(_mm512_set1_ps(factors[r]), _mm512_loadu_ps(c + r * ldc + x)));
    }
    memory_is_used();
    const std::int64_t c_step = ldc * 4, a_step = lda * 2;
    float* const low = c + kTileRows * ldc;
    if constexpr (kWrite != SquareWrite::overwrite) {
      _tile_loadd(0, c, c_step);
      _tile_loadd(1, c + kTileCols, c_step);
      _tile_loadd(2, low, c_step);
      _tile_loadd(3, low + kTileCols, c_step);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    const BFloat16* const a_low = a + kTileRows * lda;
    for (std::int64_t k = 0; k < depth; k += kTileDepth) {
      _tile_loadd(4, a + k, a_step);
      _tile_loadd(6, b.at(0, k), 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b.at(1, k), 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a_low + k, a_step);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_step);
    _tile_stored(1, c + kTileCols, c_step);
    _tile_stored(2, low, c_step);
    _tile_stored(3, low + kTileCols, c_step);
  }

 private:
  /// Keeps the compiler from moving memory accesses across this call. GCC's tile intrinsics do not declare all the
  /// memory that they access.
  HWY_INLINE static void memory_is_used() { asm volatile("" : : : "memory"); }

  alignas(64) std::array<std::uint8_t, 64> before_{};
};

/// Multiplies square blocks of bf16 numbers with AVX-512 BF16 dot products.
class Dots {
 public:
  /// Computes the same product as Tiles::multiply().
  template <SquareWrite kWrite>
  HEADGATE_DOTS_ATTR static void multiply(const BFloat16* a, std::int64_t lda, const PairPanels& b, std::int64_t depth,
                                          float* c, std::int64_t ldc, const float* factors = nullptr) {
    constexpr std::int64_t kRows = 8;
    for (std::int64_t m = 0; m < kSquare; m += kRows) {
      __m512 sums[kRows][2];
      HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
        float* const row = c + (m + r) * ldc;
        sums[r][0] = kWrite != SquareWrite::overwrite ? _mm512_loadu_ps(row) : _mm512_setzero_ps();
        sums[r][1] = kWrite != SquareWrite::overwrite ? _mm512_loadu_ps(row + kTileCols) : _mm512_setzero_ps();
        if constexpr (kWrite == SquareWrite::scale_and_accumulate) {
          const __m512 by = _mm512_set1_ps(factors[m + r]);
          sums[r][0] = _mm512_mul_ps(by, sums[r][0]);
          sums[r][1] = _mm512_mul_ps(by, sums[r][1]);
        }
      }
      for (std::int64_t k = 0; k < depth; k += 2) {
        const auto b0 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b.at(0, 0) + k * kTileCols));
        const auto b1 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b.at(1, 0) + k * kTileCols));
        HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
          std::int32_t pair = 0;
          __builtin_memcpy(&pair, a + (m + r) * lda + k, sizeof(pair));
          const auto left = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
          sums[r][0] = _mm512_dpbf16_ps(sums[r][0], left, b0);
          sums[r][1] = _mm512_dpbf16_ps(sums[r][1], left, b1);
        }
      }
      HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
        float* const row = c + (m + r) * ldc;
        _mm512_storeu_ps(row, sums[r][0]);
        _mm512_storeu_ps(row + kTileCols, sums[r][1]);
      }
    }
  }
};

/// Rounds 32 numbers to bf16: 16 from `low`, followed by 16 from `high`.
HEADGATE_DOTS_ATTR inline __attribute__((always_inline)) __m512i halves_of(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

/// Rounds n numbers to bf16; n is a multiple of 32.
HEADGATE_DOTS_ATTR inline HWY_NOINLINE void round_row(BFloat16* HWY_RESTRICT to, const float* HWY_RESTRICT from,
                                                      std::int64_t n) {
  for (std::int64_t x = 0; x < n; x += 32)
    _mm512_storeu_si512(to + x, halves_of(_mm512_loadu_ps(from + x), _mm512_loadu_ps(from + x + 16)));
}

/// Transposes a matrix of 16 rows with 16 elements of 32 bits.
HWY_INLINE void transpose_words(__m512i (&x)[16]) {
  __m512i y[16];
  HWY_UNROLL(8) for (int r = 0; r < 16; r += 2) {
    y[r] = _mm512_unpacklo_epi32(x[r], x[r + 1]);
    y[r + 1] = _mm512_unpackhi_epi32(x[r], x[r + 1]);
  }
  HWY_UNROLL(4) for (int r = 0; r < 16; r += 4) {
    x[r] = _mm512_unpacklo_epi64(y[r], y[r + 2]);
    x[r + 1] = _mm512_unpackhi_epi64(y[r], y[r + 2]);
    x[r + 2] = _mm512_unpacklo_epi64(y[r + 1], y[r + 3]);
    x[r + 3] = _mm512_unpackhi_epi64(y[r + 1], y[r + 3]);
  }
  // Exchanges 128-bit lanes to form whole rows of the result.
  // Before this step, lane l of x[4b + c] holds rows 4b … 4b + 3 of column c + 4l.
  HWY_UNROLL(4) for (int c = 0; c < 4; ++c) {
    const __m512i low02 = _mm512_shuffle_i32x4(x[c], x[4 + c], 0x88);
    const __m512i low13 = _mm512_shuffle_i32x4(x[c], x[4 + c], 0xDD);
    const __m512i high02 = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0x88);
    const __m512i high13 = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0xDD);
    y[c] = _mm512_shuffle_i32x4(low02, high02, 0x88);
    y[8 + c] = _mm512_shuffle_i32x4(low02, high02, 0xDD);
    y[4 + c] = _mm512_shuffle_i32x4(low13, high13, 0x88);
    y[12 + c] = _mm512_shuffle_i32x4(low13, high13, 0xDD);
  }
  HWY_UNROLL(16) for (int r = 0; r < 16; ++r) x[r] = y[r];
}

/// Packs n ≤ 16 rows of `cols` elements as columns of a right operand. They become the first n columns of a panel.
/// The other columns are zeros. The panel has shape (round_up(cols, 32) / 2, 16, 2).
inline HWY_NOINLINE void pairs_of_transpose(BFloat16* HWY_RESTRICT to, const BFloat16* const* rows, std::int64_t n,
                                            std::int64_t cols) {
  for (std::int64_t c = 0; c < cols; c += kTileDepth) {
    __m512i x[16];
    for (std::int64_t r = 0; r < 16; ++r) x[r] = r < n ? load_halves(rows[r] + c, cols - c) : _mm512_setzero_si512();
    transpose_words(x);
    for (std::int64_t r = 0; r < 16; ++r) _mm512_storeu_si512(to + c * kTileCols + r * kTileDepth, x[r]);
  }
}

/// Packs two rows of `cols` elements as rows x and x + 1 of a right operand, 16 elements per panel. `to` points to row
/// x of the first panel. A null row stands for zeros.
inline HWY_NOINLINE void pairs_of_rows(BFloat16* HWY_RESTRICT to, std::int64_t panel_stride, const BFloat16* even,
                                       const BFloat16* odd, std::int64_t cols) {
  const __m512i zero = _mm512_setzero_si512();
  for (std::int64_t c = 0; c < cols; c += 2 * kTileCols, to += 2 * panel_stride) {
    const __m512i x = even != nullptr ? load_halves(even + c, cols - c) : zero;
    const __m512i y = odd != nullptr ? load_halves(odd + c, cols - c) : zero;
    const auto pairs = [](__m256i low, __m256i high) HWY_ATTR {
      return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
    };
    _mm512_storeu_si512(to, pairs(_mm512_castsi512_si256(x), _mm512_castsi512_si256(y)));
    _mm512_storeu_si512(to + panel_stride, pairs(_mm512_extracti64x4_epi64(x, 1), _mm512_extracti64x4_epi64(y, 1)));
  }
}

/// Copies a row of n bf16 elements and pads it with zeros to whole_squares(n) elements.
HWY_INLINE void load_halves_padded(BFloat16* HWY_RESTRICT to, const BFloat16* from, std::int64_t stride,
                                   std::int64_t n) {
  if (stride == 1) {
    for (std::int64_t c = 0; c < n; c += 32) _mm512_storeu_si512(to + c, load_halves(from + c, n - c));
    return;
  }
  for (std::int64_t c = 0; c < n; ++c) to[c] = from[c * stride];
  std::fill(to + n, to + whole_squares(n), BFloat16{});
}

/// Returns a row of a bf16 tensor as contiguous elements: the tensor's own memory if possible, otherwise a copy in
/// `buffer`.
HWY_INLINE const BFloat16* dense_halves(const BFloat16* row, std::int64_t stride, std::int64_t cols,
                                        BFloat16* HWY_RESTRICT buffer) {
  if (stride == 1) return row;
  for (std::int64_t c = 0; c < cols; ++c) buffer[c] = row[c * stride];
  return buffer;
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_AVX3

#endif  // HEADGATE_CORE_BF16_PRODUCTS_INL_
