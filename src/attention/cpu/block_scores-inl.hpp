// SPDX-License-Identifier: Apache-2.0
// Scores of a register tile of queries with keys of 8 and 16 bits, several of which share a vector of AVX-512.
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

/// How many keys of E share a vector of T, each with a block of its lanes: products are then summed within blocks, in
/// fewer instructions than sums of whole vectors take. 1: none do.
template <typename T, typename E>
inline constexpr std::int64_t kKeysInVector =
    HWY_TARGET != HWY_AVX3 || !std::is_same_v<T, float> || std::is_same_v<T, E> ? 1 : 4 / std::int64_t{sizeof(E)};
template <typename T, typename E>
inline constexpr bool kKeysShareVectors = kKeysInVector<T, E> != 1;

#if HWY_TARGET == HWY_AVX3
/// Whether so many rows are one register tile whose keys share vectors.
constexpr bool rows_suit_blocks(std::int64_t rows) { return rows == kHighRows || rows == kTileRows; }

/// Bytes become numbers 2²⁴ times as large, for which queries below this leave room in f32.
inline constexpr float kLargestForBytes = 0x1p64F;

/// Elements of a key in a vector.
template <typename E>
inline constexpr std::int64_t kBlock = kLanes<float> / kKeysInVector<float, E>;

/// Queries as block_score_rows reads them: packed(b, r) holds block b of row r, once for every key of a vector.
/// load(r, to) writes row r, as many elements as `buffer` has. Returns false if the queries do not suit keys of E.
template <typename E, class Load>
bool pack_block_queries(const View<float, 3>& packed, const View<float, 1>& buffer, const Load& load) {
  const Tag<float> d;
  for (std::int64_t r = 0; r < packed.shape[1]; ++r) {
    load(r, buffer.data);
    for (std::int64_t x = 0; sizeof(E) == 1 && x < buffer.shape[0]; x += kLanes<float>) {
      const auto suits = hn::Lt(hn::Abs(hn::Load(d, buffer.at(x))), hn::Set(d, kLargestForBytes));
      if (!hn::AllTrue(d, suits)) return false;
    }
    for (std::int64_t b = 0; b < packed.shape[0]; ++b) {
      for (std::int64_t x = 0; x < kLanes<float>; x += kBlock<E>) {
        std::copy_n(buffer.at(b * kBlock<E>), kBlock<E>, packed.at(b, r) + x);
      }
    }
  }
  return true;
}

/// Reads kBytes from column x on of each of the kKeysInVector keys row[0], row[kStride], … as vectors of f32, in which
/// every key has a block.
template <typename E, std::int64_t kStride>
class BlockLoader {
 public:
  static constexpr std::int64_t kBytes = 16;
  static constexpr std::int64_t kColumns = kBytes / sizeof(E);
  static constexpr std::int64_t kVectors = kColumns * kKeysInVector<float, E> / kLanes<float>;

  HWY_INLINE BlockLoader() {
    if constexpr (sizeof(E) == 1) {
      HWY_UNROLL(4) for (int i = 0; i < kVectors; ++i) {
        const auto byte = [i](int lane) { return static_cast<char>(4 * i + lane); };
        to_top_[i] = _mm512_broadcast_i32x4(
            _mm_set_epi8(byte(3), -1, -1, -1, byte(2), -1, -1, -1, byte(1), -1, -1, -1, byte(0), -1, -1, -1));
      }
    }
  }

  HWY_INLINE __m512i load(const E* const* row, std::int64_t x) const {
    const auto bytes = [&](std::int64_t k)
                           HWY_ATTR { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row[k * kStride] + x)); };
    if constexpr (sizeof(E) == 1) {
      __m512i all = _mm512_castsi128_si512(bytes(0));
      all = _mm512_mask_broadcast_i32x4(all, 0x00F0, bytes(1));
      all = _mm512_mask_broadcast_i32x4(all, 0x0F00, bytes(2));
      return _mm512_mask_broadcast_i32x4(all, 0xF000, bytes(3));
    } else {
      return _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(bytes(0)), bytes(1), 1));
    }
  }

  /// The i-th of kVectors of what load() gave; bytes times 2²⁴.
  HWY_INLINE __m512 vector(__m512i loaded, int i) const {
    if constexpr (sizeof(E) == 1) {
      return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(loaded, to_top_[i]));
    } else if constexpr (std::is_same_v<E, Float16>) {
      return _mm512_cvtph_ps(_mm512_castsi512_si256(loaded));
    } else {
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(loaded)), 16));
    }
  }

 private:
  __m512i to_top_[kVectors];  ///< moves byte 4 i + n of every 16 to the top of lane n
};

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
template <typename E, std::int64_t kRows, std::int64_t kVectors>
HWY_INLINE void store_block_sums(const __m512 (&sums)[kRows][kVectors], float* HWY_RESTRICT to, std::int64_t stride) {
  static_assert(kVectors == 4 || (kVectors == 2 && kRows % 2 == 0));
  constexpr bool kBytes = sizeof(E) == 1;
  constexpr std::int64_t kRowsAtOnce = 4 / kVectors;
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; r += kRowsAtOnce) {
    const auto& next = sums[r + kRowsAtOnce - 1];
    __m512 fours = sums_of_fours(sums[r][0], sums[r][1], next[kVectors - 2], next[kVectors - 1]);
    float *row = to + r * stride, *next_row = row + stride;
    if constexpr (kBytes) {
      fours = _mm512_mul_ps(fours, _mm512_set1_ps(0x1p-24F));
    } else {
      fours = _mm512_add_ps(fours, _mm512_shuffle_f32x4(fours, fours, 0xB1));
    }
    const __m128 first = _mm512_castps512_ps128(fours), second = _mm512_extractf32x4_ps(fours, 2);
    if constexpr (kBytes && kVectors == 4) {
      _mm512_storeu_ps(row, fours);
    } else if constexpr (kBytes) {
      const __m512i by_row = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
      const __m512 rows = _mm512_castpd_ps(_mm512_permutexvar_pd(by_row, _mm512_castps_pd(fours)));
      _mm256_storeu_ps(row, _mm512_castps512_ps256(rows));
      _mm256_storeu_ps(next_row, _mm512_extractf32x8_ps(rows, 1));
    } else if constexpr (kVectors == 4) {
      _mm_storeu_ps(row, first);
      _mm_storeu_ps(row + kVectors, second);
    } else {
      _mm_storeu_ps(row, _mm_movelh_ps(first, second));
      _mm_storeu_ps(next_row, _mm_movehl_ps(second, first));
    }
  }
}

/// As score_tile, of the first kVectors · kKeysInVector of `keys`.
template <std::int64_t kRows, std::int64_t kVectors, bool kAsk, std::int64_t s_stride, typename E>
HWY_INLINE void block_tile(const float* HWY_RESTRICT q, const StoredRows<E>& keys, std::int64_t columns,
                           float* HWY_RESTRICT s) {
  constexpr std::int64_t kN = kLanes<float>;
  using Loader = BlockLoader<E, kVectors>;
  const Loader loader;
  __m512 acc[kRows][kVectors];
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kVectors; ++k) acc[r][k] = _mm512_setzero_ps();
  }
  const E* const* coming = keys.rows + keys.ahead;
  // A line is read in kSteps steps; in every kEach-th of them one of each of kTileKeys rows is asked for.
  constexpr std::int64_t kSteps = kLine_bytes / Loader::kBytes;
  constexpr std::int64_t kEach = kSteps * kTileKeys / (kVectors * kKeysInVector<float, E>);
  const auto multiply = [&](std::int64_t x) HWY_ATTR {
    if constexpr (kAsk) {
      const std::int64_t step = x / Loader::kColumns;
      if (step % kEach == 0) {
        ask_in_turn(coming + step % kSteps / kEach * kTileKeys, step / kSteps, keys.into_first_level);
      }
    }
    __m512i loaded[kVectors];
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kVectors; ++k) loaded[k] = loader.load(keys.rows + k, x);
    HWY_UNROLL(4) for (int i = 0; i < Loader::kVectors; ++i) {
      __m512 key[kVectors];
      HWY_UNROLL(4) for (std::int64_t k = 0; k < kVectors; ++k) key[k] = loader.vector(loaded[k], i);
      HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
        const __m512 query = in_register(hn::Load(Tag<float>(), q + r * kN)).raw;
        HWY_UNROLL(4) for (std::int64_t k = 0; k < kVectors; ++k) acc[r][k] = _mm512_fmadd_ps(query, key[k], acc[r][k]);
      }
      q += kRows * kN;
    }
  };
  for (std::int64_t x = 0; x < columns; x += kN) {
    HWY_UNROLL(2) for (std::int64_t i = 0; i < kN; i += Loader::kColumns) multiply(x + i);
  }
  store_block_sums<E>(acc, s, s_stride);
}

/// As score_rows, of queries of pack_block_queries; a tile's rows of `keys` from n on may be read.
template <std::int64_t s_stride, typename E>
HWY_NOINLINE void block_score_rows(const View<float, 2>& scores, const View<float, 3>& queries,
                                   const StoredRows<E>& keys, std::int64_t n) {
  assert(scores.strides[0] == s_stride && rows_suit_blocks(queries.shape[1]));
  const std::int64_t columns = queries.shape[0] * kBlock<E>;
  row_tiles(queries.shape[1], [&](auto tile, std::int64_t) HWY_ATTR {
    if constexpr (rows_suit_blocks(tile)) {
      constexpr std::int64_t kVectors = tile == kHighRows ? kHighKeys : kTileKeys;
      for (std::int64_t j = 0; j < n; j += kVectors * kKeysInVector<float, E>) {
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
