// SPDX-License-Identifier: Apache-2.0
// Scores of a register tile of queries with keys of 16 bits, two of which share a vector of AVX-512.
#if defined(HEADGATE_ATTENTION_BLOCK_SCORES_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_BLOCK_SCORES_INL_
#undef HEADGATE_ATTENTION_BLOCK_SCORES_INL_
#else
#define HEADGATE_ATTENTION_BLOCK_SCORES_INL_
#endif

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <type_traits>

#include "attention/cpu/stored_rows-inl.hpp"
#include "core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Whether two keys of E share a vector of T, each with a block of half its lanes: products are then summed within
/// blocks, in fewer instructions than sums of whole vectors take.
template <typename T, typename E>
inline constexpr bool kKeysShareVectors = HWY_TARGET == HWY_AVX3&& std::is_same_v<T, float> && sizeof(E) == 2;

/// Keys in a vector.
inline constexpr std::int64_t kBlocks = 2;

#if HWY_TARGET == HWY_AVX3
/// Whether so many rows are one register tile whose keys share vectors.
constexpr bool rows_suit_blocks(std::int64_t rows) { return rows == kHighRows || rows == kTileRows; }

/// Elements of a key in a vector.
inline constexpr std::int64_t kBlock = kLanes<float> / kBlocks;

/// Queries as block_score_rows reads them: packed(b, r) holds block b of row r, once for every key of a vector.
/// load(r, to) writes row r, as many elements as `buffer` has.
template <class Load>
void pack_block_queries(const View<float, 3>& packed, const View<float, 1>& buffer, const Load& load) {
  for (std::int64_t r = 0; r < packed.shape[1]; ++r) {
    load(r, buffer.data);
    for (std::int64_t b = 0; b < packed.shape[0]; ++b) {
      for (std::int64_t x = 0; x < kLanes<float>; x += kBlock) {
        std::copy_n(buffer.at(b * kBlock), kBlock, packed.at(b, r) + x);
      }
    }
  }
}

/// Columns x … x + kBlock of row[0] and row[stride].
template <typename E>
HWY_INLINE __m512 load_blocks(const E* const* row, std::int64_t stride, std::int64_t x) {
  const auto block = [&](std::int64_t k)
                         HWY_ATTR { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row[k * stride] + x)); };
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(block(0)), block(1), 1);
  if constexpr (std::is_same_v<E, Float16>) {
    return _mm512_cvtph_ps(both);
  } else {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(both), 16));
  }
}

/// Lane n of every four: the sum of those four lanes of argument n.
HWY_INLINE __m512 sums_of_fours(__m512 v0, __m512 v1, __m512 v2, __m512 v3) {
  const auto halved = [](__m512 a, __m512 b) HWY_ATTR {
    return _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  };
  const __m512d low = halved(v0, v1), high = halved(v2, v3);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
}

/// to[r · stride + b · kVectors + k] = sum of block b of sums[r][k].
template <std::int64_t kRows, std::int64_t kVectors>
HWY_INLINE void store_block_sums(const __m512 (&sums)[kRows][kVectors], float* HWY_RESTRICT to, std::int64_t stride) {
  static_assert(kVectors == 4 || (kVectors == 2 && kRows % 2 == 0));
  constexpr std::int64_t kRowsAtOnce = 4 / kVectors;
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; r += kRowsAtOnce) {
    const auto& next = sums[r + kRowsAtOnce - 1];
    __m512 fours = sums_of_fours(sums[r][0], sums[r][1], next[kVectors - 2], next[kVectors - 1]);
    fours = _mm512_add_ps(fours, _mm512_shuffle_f32x4(fours, fours, 0xB1));
    float *row = to + r * stride, *next_row = row + stride;
    const __m128 first = _mm512_castps512_ps128(fours), second = _mm512_extractf32x4_ps(fours, 2);
    if constexpr (kVectors == 4) {
      _mm_storeu_ps(row, first);
      _mm_storeu_ps(row + kVectors, second);
    } else {
      _mm_storeu_ps(row, _mm_movelh_ps(first, second));
      _mm_storeu_ps(next_row, _mm_movehl_ps(second, first));
    }
  }
}

/// As score_tile, of the first kVectors · kBlocks of `keys`.
template <std::int64_t kRows, std::int64_t kVectors, bool kAsk, std::int64_t s_stride, typename E>
HWY_INLINE void block_tile(const float* HWY_RESTRICT q, const StoredRows<E>& keys, std::int64_t columns,
                           float* HWY_RESTRICT s) {
  constexpr std::int64_t kN = kLanes<float>;
  __m512 acc[kRows][kVectors];
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kVectors; ++k) acc[r][k] = _mm512_setzero_ps();
  }
  const E* const* coming = keys.rows + keys.ahead;
  // A line is read in kSteps steps; in every kEach-th of them one of each of kTileKeys rows is asked for.
  constexpr std::int64_t kSteps = kLine_bytes / sizeof(E) / kBlock;
  constexpr std::int64_t kEach = kSteps * kTileKeys / (kVectors * kBlocks);
  const auto multiply = [&](std::int64_t x) HWY_ATTR {
    if constexpr (kAsk) {
      const std::int64_t step = x / kBlock;
      if (step % kEach == 0) {
        ask_in_turn(coming + step % kSteps / kEach * kTileKeys, step / kSteps, keys.into_first_level);
      }
    }
    __m512 key[kVectors];
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kVectors; ++k) key[k] = load_blocks(keys.rows + k, kVectors, x);
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
      const __m512 query = in_register(hn::Load(Tag<float>(), q + r * kN)).raw;
      HWY_UNROLL(4) for (std::int64_t k = 0; k < kVectors; ++k) acc[r][k] = _mm512_fmadd_ps(query, key[k], acc[r][k]);
    }
    q += kRows * kN;
  };
  for (std::int64_t x = 0; x < columns; x += kN) {
    HWY_UNROLL(2) for (std::int64_t i = 0; i < kN; i += kBlock) multiply(x + i);
  }
  store_block_sums(acc, s, s_stride);
}

/// As score_rows, of queries of pack_block_queries; a tile's rows of `keys` from n on may be read.
template <std::int64_t s_stride, typename E>
HWY_NOINLINE void block_score_rows(const View<float, 2>& scores, const View<float, 3>& queries,
                                   const StoredRows<E>& keys, std::int64_t n) {
  assert(scores.strides[0] == s_stride && rows_suit_blocks(queries.shape[1]));
  const std::int64_t columns = queries.shape[0] * kBlock;
  row_tiles(queries.shape[1], [&](auto tile, std::int64_t) HWY_ATTR {
    if constexpr (rows_suit_blocks(tile)) {
      constexpr std::int64_t kVectors = tile == kHighRows ? kHighKeys : kTileKeys;
      for (std::int64_t j = 0; j < n; j += kVectors * kBlocks) {
        const StoredRows<E> rows = keys.from(j);
        if (keys.ahead > 0) {
          block_tile<tile, kVectors, true, s_stride>(queries.data, rows, columns, scores.data + j);
        } else {
          block_tile<tile, kVectors, false, s_stride>(queries.data, rows, columns, scores.data + j);
        }
      }
    }
  });
}
#endif

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_BLOCK_SCORES_INL_
