// SPDX-License-Identifier: Apache-2.0
// Computes scores of int8 keys with the byte dot products of AVX-512 VNNI.
#if defined(HEADGATE_ATTENTION_DIGIT_SCORES_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_DIGIT_SCORES_INL_
#undef HEADGATE_ATTENTION_DIGIT_SCORES_INL_
#else
#define HEADGATE_ATTENTION_DIGIT_SCORES_INL_
#endif

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "library/attention/cpu/decode/stored_rows-inl.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// True if queries of type T can be split into digits for keys of type E.
template <typename T, typename E>
inline constexpr bool kHasDigits = HWY_TARGET == HWY_AVX3&& std::is_same_v<T, float>&& std::is_same_v<E, std::int8_t>;

/// Number of digits per query element; a digit is a signed 8-bit integer.
inline constexpr std::int64_t kDigits = 3;
/// Number of digits in a 32-bit word: the same place of this many elements. The instruction multiplies them by key
/// bytes and adds the products.
inline constexpr std::int64_t kBytesAdded = 4;

/// Returns the 32-bit words in DigitQueries::digits per row of `columns` elements, zero-padded to whole cache lines of
/// a key.
constexpr std::int64_t digits_a_row(std::int64_t columns) {
  return round_up(columns, kLine_bytes) / kBytesAdded * kDigits;
}

/// Queries as fixed-point numbers: an element of row r is steps(r) · (2¹⁶ · digit 0 + 2⁸ · digit 1 + digit 2). steps(r)
/// is a power of two, at most 2⁻²² of the row's largest element; elements are rounded to multiples of steps(r).
/// Products with int8 keys and their sums are then exact (docs/reference/numerics.md, What is computed in what).
struct DigitQueries {
  /// Words of digits, by register tile of rows, then group of kBytesAdded columns, then row, then place.
  View<std::int32_t, 1> digits;
  View<std::int32_t, 2> offsets;  ///< (rows, kDigits): −128 · Σ digits, which compensates for multiplying by key + 128
  View<float, 1> steps;           ///< value of one step, (rows)
};

#if HWY_TARGET == HWY_AVX3
/// Returns true if the CPU has AVX-512 VNNI and int32 sums cannot overflow for keys of `columns` elements.
inline bool suit_digits(std::int64_t columns) {
  // The two lower digits add up to at most (2⁸ + 1) · 128 · 128 per column.
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / (257 * 128 * 128);
  return columns <= kMost && __builtin_cpu_supports("avx512vnni") != 0;
}

/// Destination of a row's digits. `digits` is the word of place 0 of the first kBytesAdded columns; the next columns
/// follow `stride` words later.
struct DigitRow {
  std::int32_t* digits;
  std::int64_t stride;
  std::int32_t* offsets;
  float* step;
};

/// Splits a row into digits; `columns` is a multiple of 16. Returns false if an element is NaN or above 2⁸⁰ in
/// magnitude, or if the largest is below 2⁻⁸⁰ and not 0. Steps or scores might then leave the range of f32.
inline bool pack_digits(const float* HWY_RESTRICT elements, std::int64_t columns, const DigitRow& row) {
  constexpr float kLeast = 0x1p-80F, kMost = 0x1p80F;
  constexpr std::int64_t kN = kLanes<float>;
  __m512 largest_of = _mm512_setzero_ps();
  __mmask16 suits = 0xFFFF;
  for (std::int64_t x = 0; x < columns; x += kN) {
    const __m512 magnitudes = _mm512_abs_ps(_mm512_loadu_ps(elements + x));
    suits &= _mm512_cmp_ps_mask(magnitudes, _mm512_set1_ps(kMost), _CMP_LE_OQ);  // false for NaN
    largest_of = _mm512_max_ps(largest_of, magnitudes);
  }
  const float largest = _mm512_reduce_max_ps(largest_of);
  if (suits != 0xFFFF || (largest != 0 && largest < kLeast)) return false;
  // The largest number has 127 in each place, a little less than 2²³ steps.
  constexpr float kMostSteps = 127 * (0x1p16F + 0x1p8F + 1), kRoom = 0x1p23F / kMostSteps;
  const int exponent = largest == 0 ? 0 : std::ilogb(largest * kRoom) - 22;
  *row.step = std::ldexp(1.0F, exponent);
  const __m512 steps_of_one = _mm512_set1_ps(std::ldexp(1.0F, -exponent));
  __m512i sums[kDigits] = {};
  for (std::int64_t x = 0; x < columns; x += kN) {
    __m512i left = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(elements + x), steps_of_one));
    for (std::int64_t place = kDigits - 1; place >= 0; --place) {
      const __m512i digit = _mm512_srai_epi32(_mm512_slli_epi32(left, 24), 24);
      sums[place] = _mm512_add_epi32(sums[place], digit);
      left = _mm512_srai_epi32(_mm512_sub_epi32(left, digit), 8);
      alignas(16) std::int32_t words[kN / kBytesAdded];
      _mm_store_si128(reinterpret_cast<__m128i*>(words), _mm512_cvtepi32_epi8(digit));
      for (std::int64_t i = 0; i < kN / kBytesAdded; ++i) {
        row.digits[(x / kBytesAdded + i) * row.stride + place] = words[i];
      }
    }
  }
  for (std::int64_t place = 0; place < kDigits; ++place) {
    row.offsets[place] = -128 * _mm512_reduce_add_epi32(sums[place]);
  }
  return true;
}

/// Splits all queries into digits. load(r, to) writes row r, with as many elements as `buffer`. Returns false if any
/// row cannot be split.
template <class Load>
bool pack_digit_queries(const DigitQueries& packed, const View<float, 1>& buffer, const Load& load) {
  const std::int64_t rows = packed.steps.shape[0], columns = buffer.shape[0];
  std::fill_n(packed.digits.data, rows * digits_a_row(columns), 0);
  bool suit = true;
  for_register_tiles(rows, [&](auto tile, std::int64_t first) {
    std::int32_t* const digits = packed.digits.at(first * digits_a_row(columns));
    for (std::int64_t r = 0; r < tile && suit; ++r) {
      load(first + r, buffer.data);
      suit =
          pack_digits(buffer.data, columns,
                      {digits + r * kDigits, tile * kDigits, packed.offsets.at(first + r), packed.steps.at(first + r)});
    }
  });
  return suit;
}

/// Number of keys per vector: each lane holds one word, four bytes of one key. kBlockLanes lanes form a block.
inline constexpr std::int64_t kLaneKeys = kLanes<float>;
inline constexpr std::int64_t kBlockLanes = 4;
/// Number of words in a cache line of a key.
inline constexpr std::int64_t kWords = kLine_bytes / kBytesAdded;

/// Transposes 4 × 4 words within each 128-bit block of the four vectors.
HWY_INLINE void transpose_in_blocks(__m512i& a, __m512i& b, __m512i& c, __m512i& d) {
  const __m512i low_ab = _mm512_unpacklo_epi32(a, b), high_ab = _mm512_unpackhi_epi32(a, b);
  const __m512i low_cd = _mm512_unpacklo_epi32(c, d), high_cd = _mm512_unpackhi_epi32(c, d);
  a = _mm512_unpacklo_epi64(low_ab, low_cd);
  b = _mm512_unpackhi_epi64(low_ab, low_cd);
  c = _mm512_unpacklo_epi64(high_ab, high_cd);
  d = _mm512_unpackhi_epi64(high_ab, high_cd);
}

/// Transposes the 4 × 4 blocks of 128 bits in the four vectors.
HWY_INLINE void transpose_blocks(__m512i& a, __m512i& b, __m512i& c, __m512i& d) {
  constexpr int kLow = 0x44, kHigh = 0xEE, kEven = 0x88, kOdd = 0xDD;
  const __m512i low_ab = _mm512_shuffle_i32x4(a, b, kLow), high_ab = _mm512_shuffle_i32x4(a, b, kHigh);
  const __m512i low_cd = _mm512_shuffle_i32x4(c, d, kLow), high_cd = _mm512_shuffle_i32x4(c, d, kHigh);
  a = _mm512_shuffle_i32x4(low_ab, low_cd, kEven);
  b = _mm512_shuffle_i32x4(low_ab, low_cd, kOdd);
  c = _mm512_shuffle_i32x4(high_ab, high_cd, kEven);
  d = _mm512_shuffle_i32x4(high_ab, high_cd, kOdd);
}

/// Loads columns x … x + 64 of kLaneKeys keys by load(address), and reorders their 128-bit blocks for add_block: block
/// b of lines[4 n + i] is block n of the line of key 4 b + i.
template <class Load>
HWY_INLINE void load_lines(__m512i* lines, const std::int8_t* const* rows, std::int64_t x, const Load& load) {
  HWY_UNROLL(4) for (std::int64_t i = 0; i < kBlockLanes; ++i) {
    __m512i line[kBlockLanes];
    HWY_UNROLL(4) for (std::int64_t b = 0; b < kBlockLanes; ++b) line[b] = load(rows[kBlockLanes * b + i] + x);
    transpose_blocks(line[0], line[1], line[2], line[3]);
    HWY_UNROLL(4) for (std::int64_t n = 0; n < kBlockLanes; ++n) lines[kBlockLanes * n + i] = line[n];
  }
}

/// Adds four byte products to each lane of sum: unsigned bytes of `keys` times the signed bytes of *digits.
HWY_INLINE void add_products(__m512i& sum, __m512i keys, const std::int32_t* digits) {
  // Uses asm, because GCC would load all digits of a step beforehand, for which there are no registers.
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(keys), "m"(*digits));
}

/// Adds the products of one block of words; `lines` come from load_lines.
template <std::int64_t kRows>
HWY_INLINE void add_block(__m512i (&sums)[kRows][kDigits], const __m512i* lines, const std::int32_t* digits) {
  __m512i keys[] = {lines[0], lines[1], lines[2], lines[3]};
  transpose_in_blocks(keys[0], keys[1], keys[2], keys[3]);
  HWY_UNROLL(4) for (std::int64_t i = 0; i < kBlockLanes; ++i) {
    keys[i] = _mm512_xor_si512(keys[i], _mm512_set1_epi8(-128));  // key + 128, unsigned
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
      HWY_UNROLL(3) for (std::int64_t n = 0; n < kDigits; ++n) {
        add_products(sums[r][n], keys[i], digits + (i * kRows + r) * kDigits + n);
      }
    }
  }
}

/// Computes a tile of scores like score_tile, for 16 keys with one lane each, so that no sums over lanes remain.
/// digits, offsets and steps belong to the tile's rows.
template <std::int64_t kRows, bool kAsk, std::int64_t s_stride>
HWY_INLINE void digit_tile(const std::int32_t* HWY_RESTRICT digits, const std::int32_t* HWY_RESTRICT offsets,
                           const float* HWY_RESTRICT steps, const StoredRows<std::int8_t>& keys, std::int64_t columns,
                           float* HWY_RESTRICT s) {
  __m512i sums[kRows][kDigits];
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(3) for (std::int64_t n = 0; n < kDigits; ++n) sums[r][n] = _mm512_set1_epi32(offsets[r * kDigits + n]);
  }
  std::int64_t x = 0;
  do {  // do-while, because GCC copies all sums for a loop that might not run
    const std::int64_t left = columns - x;
    const std::int8_t* const* rows = opaque_to_optimizer(keys.rows);
    __m512i lines[kWords];
    if (left >= kLine_bytes) {
      load_lines(lines, rows, x, [](const std::int8_t* from) HWY_ATTR { return _mm512_loadu_si512(from); });
    } else {
      const __mmask64 present = (__mmask64{1} << left) - 1;
      load_lines(lines, rows, x,
                 [present](const std::int8_t* from) HWY_ATTR { return _mm512_maskz_loadu_epi8(present, from); });
    }
    // The sums of the highest tile leave no registers for the lines. Reading the lines from an array is faster than
    // spilling.
    if constexpr (kRows > kTileRows) {
      HWY_UNROLL(1) for (std::int64_t b = 0; b < kBlockLanes; ++b) {
        if constexpr (kAsk)
          prefetch_interleaved(rows + keys.ahead + b * kTileKeys, x / kLine_bytes, keys.into_first_level);
        add_block(sums, lines + b * kBlockLanes, digits + b * kBlockLanes * kRows * kDigits);
      }
    } else {
      HWY_UNROLL(4) for (std::int64_t b = 0; b < kBlockLanes; ++b) {
        if constexpr (kAsk)
          prefetch_interleaved(rows + keys.ahead + b * kTileKeys, x / kLine_bytes, keys.into_first_level);
        add_block(sums, lines + b * kBlockLanes, digits + b * kBlockLanes * kRows * kDigits);
      }
    }
    digits += kWords * kRows * kDigits;
    x += kLine_bytes;
  } while (x < columns);
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
    const __m512i low = _mm512_add_epi32(_mm512_slli_epi32(sums[r][1], 8), sums[r][2]);
    const __m512 high = _mm512_cvtepi32_ps(sums[r][0]);
    const __m512 sum = _mm512_fmadd_ps(high, _mm512_set1_ps(0x1p16F), _mm512_cvtepi32_ps(low));
    _mm512_storeu_ps(s + r * s_stride, _mm512_mul_ps(sum, _mm512_set1_ps(steps[r])));
  }
}

/// Computes digit_tile for n keys and the tile's rows from `first` on. Not inlined, because the caller's variables
/// would take up registers that the products need.
template <std::int64_t kRows, bool kAsk, std::int64_t s_stride>
HWY_NOINLINE void digit_score_tiles(float* HWY_RESTRICT s, const DigitQueries& queries, std::int64_t first,
                                    const StoredRows<std::int8_t>& keys, std::int64_t columns, std::int64_t n) {
  const std::int32_t* const digits = queries.digits.at(first * digits_a_row(columns));
  for (std::int64_t j = 0; j < n; j += kLaneKeys) {
    digit_tile<kRows, kAsk, s_stride>(digits, queries.offsets.at(first), queries.steps.at(first), keys.from(j), columns,
                                      s + j);
  }
}

/// Computes scores like score_rows, from digits. May read up to 16 rows of `keys` from n on, and write as many columns
/// of `scores`.
template <std::int64_t s_stride>
void digit_score_rows(const View<float, 2>& scores, const DigitQueries& queries, const StoredRows<std::int8_t>& keys,
                      std::int64_t columns, std::int64_t n) {
  assert(scores.strides[0] == s_stride && columns % kLanes<float> == 0);
  for_shared_keys(scores.shape[0], n, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
    for_register_tiles(scores.shape[0], [&](auto tile, std::int64_t r) HWY_ATTR {
      with_bool(r == 0 && keys.ahead > 0, [&](auto ask) HWY_ATTR {
        digit_score_tiles<tile, ask, s_stride>(scores.at(r) + j, queries, r, keys.from(j), columns, count);
      });
    });
  });
}
#endif

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_DIGIT_SCORES_INL_
