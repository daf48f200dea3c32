// SPDX-License-Identifier: Apache-2.0
// Computes scores of bf16 queries and keys with the dot products of AVX-512 BF16.
#if defined(HEADGATE_ATTENTION_DOT_SCORES_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_DOT_SCORES_INL_
#undef HEADGATE_ATTENTION_DOT_SCORES_INL_
#else
#define HEADGATE_ATTENTION_DOT_SCORES_INL_
#endif

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/decode/cpu_tuning.hpp"
#include "library/attention/cpu/decode/stored_rows-inl.hpp"
#include "library/call/native16.hpp"
#include "library/core/convert.hpp"
#include "library/core/dots-inl.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Decides which sequences use bf16 dot products (AVX-512 BF16) for scores, and prepares their queries.
/// Dot products require that q and k are bf16, and that native16_unit() selects AVX-512 BF16.
/// Scores are as accurate as with f32 products: a product of two bf16 numbers is exact, and sums are f32.
/// ScoreRules::query_factor() is split into a power of two and a remaining factor.
/// Queries are multiplied by the power of two, which is exact. Scores are multiplied by the remaining factor.
class DotScores {
 public:
  /// `factor` is ScoreRules::query_factor().
  DotScores(const ForwardProblem& p, bool bf16_keys, double factor) : p_(p) {
    if (!bf16_keys || p.inputs.q.dtype != DType::bf16 || p.inputs.k.strides[3] != 1 || !std::isnormal(factor)) return;
    const int exponent = std::ilogb(factor);
    available_ = std::abs(exponent) <= kMostExponent && native16_unit(p.context.target) == Native16Unit::dots;
    factor_of_queries_ = static_cast<float>(std::ldexp(1.0, exponent));
    factor_of_scores_ = static_cast<float>(std::ldexp(factor, -exponent));
  }

  bool available() const { return available_; }
  /// Returns true if a sequence should use dot products. Returns false in two cases:
  ///   There are few query rows. Memory bandwidth is then the limit.
  ///   An element of q is outside the bounds of all_between_bounds().
  /// Dot products flush numbers below 2⁻¹²⁶ to 0. For q within the bounds, this changes a score by at most D · 2⁻⁶⁶.
  bool suit(const Sequence& sequence) const {
    if (!available_ || p_.group * sequence.T < least_rows_) return false;
    for (std::int64_t h = 0; h < p_.Hq; ++h) {
      const HeadRows<const void> q = query_rows(p_.inputs.q, sequence, h);
      for (std::int64_t i = 0; i < sequence.T; ++i) {
        const BFloat16* row = q.at<BFloat16>(i, 0, p_.D);
        if (!(q.stride == 1 ? all_between_bounds(row, 1) : all_between_bounds(row, q.stride))) return false;
      }
    }
    return true;
  }

  /// Writes query i times factor_of_queries_ to `to`. This is exact, because the factor is a power of two.
  void load_query(BFloat16* HWY_RESTRICT to, const HeadRows<const void>& q, std::int64_t i) const {
    const BFloat16* row = q.at<BFloat16>(i, 0, p_.D);
    for (std::int64_t x = 0; x < p_.D; ++x) to[x] = to_bf16(to_f32(row[x * q.stride]) * factor_of_queries_);
  }
  float factor_of_scores() const { return factor_of_scores_; }

 private:
  static constexpr int kMostExponent = 20;

  /// Returns true if the magnitude of every element of a row is 0 or in [2⁻¹⁰⁰, 2⁴⁰).
  HWY_INLINE bool all_between_bounds(const BFloat16* row, std::int64_t stride) const {
    constexpr unsigned kBias = 127, kMantissaBits = 7;
    constexpr std::uint16_t kLeast = (kBias - 100) << kMantissaBits, kBeyond = (kBias + 40) << kMantissaBits;
    std::uint16_t outside = 0;
    for (std::int64_t x = 0; x < p_.D; ++x) {
      const auto magnitude = static_cast<std::uint16_t>(row[x * stride].bits & 0x7FFFU);
      const bool inside = magnitude == 0 || (magnitude >= kLeast && magnitude < kBeyond);
      outside |= static_cast<std::uint16_t>(!inside);
    }
    return outside == 0;
  }

  const ForwardProblem& p_;
  bool available_ = false;
  std::int64_t least_rows_ = tuning_of_cpu().least_dot_rows;
  float factor_of_queries_ = 1, factor_of_scores_ = 1;
};

/// Number of keys per vector. Each key has half of the lanes, and its own sum.
inline constexpr std::int64_t kPairedKeys = 2;
/// Number of elements of one key per vector.
inline constexpr std::int64_t kHalfVector = kDotLanes / kPairedKeys;

/// Packs queries for dot_score_rows(). Interleaves the rows of a register tile by half vectors.
/// Stores each half vector twice, because two keys share a vector.
/// load(r, buffer) writes row r to `buffer`. A row of `packed` has kPairedKeys times as many elements as `buffer`.
template <class Load>
void pack_dot_queries(const View<BFloat16, 2>& packed, BFloat16* HWY_RESTRICT buffer, const Load& load) {
  for_register_tiles(packed.shape[0], [&](auto tile, std::int64_t first) {
    for (std::int64_t r = 0; r < tile; ++r) {
      load(first + r, buffer);
      BFloat16* to = packed.at(first) + r * kDotLanes;
      for (std::int64_t x = 0; x < packed.shape[1] / kPairedKeys; x += kHalfVector, to += tile * kDotLanes) {
        for (std::int64_t k = 0; k < kPairedKeys; ++k) std::copy_n(buffer + x, kHalfVector, to + k * kHalfVector);
      }
    }
  });
}

#if HWY_TARGET == HWY_AVX3
/// Loads kHalfVector elements of key `first` into the lower half of a vector, and of key `second` into the upper half.
/// Elements from `columns` on are zeros.
HWY_INLINE __m512 load_paired_keys(const BFloat16* first, const BFloat16* second, std::int64_t columns) {
  const auto half = [columns](const BFloat16* from) HWY_ATTR {
    if (columns >= kHalfVector) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1U << columns) - 1U), from);
  };
  return _mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(half(first)), half(second), 1));
}

/// Returns sum + query · key. Each lane adds the products of two pairs of bf16 numbers.
HWY_INLINE __m512 add_dots(__m512 query, __m512 key, __m512 sum) {
  // Intrinsics would require that this function and all its callers are compiled for AVX-512 BF16.
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(query), "v"(key));
  return sum;
}

/// Adds up the lanes of each half of sums[r][v], and stores the totals times `factor` in to[r · s_stride + key].
/// The lower half of sums[r][v] belongs to query r and key v, the upper half to query r and key kVectors + v.
template <std::int64_t kRows, std::int64_t kVectors, std::int64_t s_stride>
HWY_INLINE void store_paired_sums(const __m512 (&sums)[kRows][kVectors], __m512 factor, float* HWY_RESTRICT to) {
  // Adds lanes that are two apart, in each block of four lanes of vectors n and n + 1 of `sums`.
  // Interleaves the results of both vectors. Vectors are numbered row by row.
  const auto halved = [&](std::int64_t n) HWY_ATTR {
    const __m512 even = sums[n / kVectors][n % kVectors], odd = sums[n / kVectors][n % kVectors + 1];
    return _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(even, odd), _mm512_unpackhi_ps(even, odd)));
  };
  HWY_UNROLL(4) for (std::int64_t part = 0; part < kRows * kVectors / 4; ++part) {
    const __m512d low = halved(4 * part), high = halved(4 * part + 2);
    __m512 fours =
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)), _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
    fours = _mm512_mul_ps(_mm512_add_ps(fours, _mm512_shuffle_f32x4(fours, fours, 0xB1)), factor);
    const __m128 first = _mm512_castps512_ps128(fours), second = _mm512_extractf32x4_ps(fours, 2);
    if constexpr (kVectors == 4) {
      float* row = to + part * s_stride;
      _mm_storeu_ps(row, first);
      _mm_storeu_ps(row + kVectors, second);
    } else {
      float* row = to + 2 * part * s_stride;
      _mm_storeu_ps(row, _mm_movelh_ps(first, second));
      _mm_storeu_ps(row + s_stride, _mm_movehl_ps(second, first));
    }
  }
}

/// Computes s[r · s_stride + j] = factor · query r · key j for the kRows rows of a register tile and j < n.
/// `q` is packed by pack_dot_queries(). May read `keys` and write scores beyond n, up to the end of a tile.
template <std::int64_t kRows, bool kPrefetch, std::int64_t s_stride>
HWY_NOINLINE void dot_score_tile(float* HWY_RESTRICT s, const BFloat16* HWY_RESTRICT q,
                                 const StoredRows<BFloat16>& keys, std::int64_t columns, std::int64_t n, float factor) {
  constexpr std::int64_t kVectors = kRows == kHighRows ? kHighKeys : kTileKeys, kKeys = kVectors * kPairedKeys;
  // Prefetches later rows as fast as the loop reads rows. A cache line of a key is read in kSteps steps.
  // Every kEach-th step prefetches one line of each of kTileKeys rows.
  constexpr std::int64_t kSteps = kLine_bytes / sizeof(BFloat16) / kHalfVector, kEach = kSteps * kTileKeys / kKeys;
  for (std::int64_t j = 0; j < n; j += kKeys) {
    const BFloat16* const* rows = keys.rows + j;
    const BFloat16* const* later_rows = rows + keys.prefetch_distance;
    const BFloat16* query = q;
    __m512 sums[kRows][kVectors];
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
      HWY_UNROLL(4) for (std::int64_t v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_ps();
    }
    for (std::int64_t line = 0; line * kSteps * kHalfVector < columns; ++line) {
      HWY_UNROLL(2) for (std::int64_t step = 0; step < kSteps; ++step) {
        const std::int64_t x = (line * kSteps + step) * kHalfVector;
        if (x >= columns) break;
        if (kPrefetch && step % kEach == 0) {
          prefetch_interleaved(later_rows + step / kEach * kTileKeys, line, keys.into_first_level);
        }
        __m512 key[kVectors];
        HWY_UNROLL(4) for (std::int64_t v = 0; v < kVectors; ++v) {
          key[v] = load_paired_keys(rows[v] + x, rows[kVectors + v] + x, columns - x);
        }
        HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
          const __m512 in_lanes = in_register(hn::Load(Tag<float>(), reinterpret_cast<const float*>(query))).raw;
          query += kDotLanes;
          HWY_UNROLL(4) for (std::int64_t v = 0; v < kVectors; ++v) sums[r][v] = add_dots(in_lanes, key[v], sums[r][v]);
        }
      }
    }
    store_paired_sums<kRows, kVectors, s_stride>(sums, _mm512_set1_ps(factor), s + j);
  }
}

/// Computes scores(r, j) = factor · query r · key j for j < n.
/// Queries have `columns` elements, and are packed by pack_dot_queries().
template <std::int64_t s_stride>
HWY_NOINLINE void dot_score_rows(const View<float, 2>& scores, const View<BFloat16, 2>& queries,
                                 const StoredRows<BFloat16>& keys, std::int64_t columns, std::int64_t n, float factor) {
  assert(scores.strides[0] == s_stride);
  for_shared_keys(scores.shape[0], n, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
    for_register_tiles(scores.shape[0], [&](auto tile, std::int64_t r) HWY_ATTR {
      with_bool(r == 0 && keys.prefetch_distance > 0, [&](auto prefetch) HWY_ATTR {
        dot_score_tile<tile, prefetch, s_stride>(scores.at(r) + j, queries.at(r), keys.from(j), columns, count, factor);
      });
    });
  });
}
#endif

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_DOT_SCORES_INL_
