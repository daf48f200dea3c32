// SPDX-License-Identifier: Apache-2.0
// Scores of queries with keys of 16 bits, two of which share a vector of AVX-512.
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

#include "library/attention/cpu/decode/stored_rows-inl.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Whether two keys of E share a vector of T, each with a block of half its lanes: products are then summed within
/// blocks, in fewer instructions than sums of whole vectors take.
template <typename T, typename E>
inline constexpr bool kPairsKeys = HWY_TARGET == HWY_AVX3&& std::is_same_v<T, float> && sizeof(E) == 2;

/// Keys in a vector.
inline constexpr std::int64_t kPairedKeys = 2;

/// Elements of a key in a vector of Q, in AVX-512.
template <typename Q>
inline constexpr std::int64_t kBlock = 64 / sizeof(Q) / kPairedKeys;

/// Queries as paired_score_rows reads them: rows of a register tile together, block after block of each, once for every
/// key of a vector. load(r, to) writes row r to `buffer`; rows of `packed` have room for kPairedKeys times its
/// elements.
template <typename Q, class Load>
void pack_paired_queries(const View<Q, 2>& packed, Q* HWY_RESTRICT buffer, const Load& load) {
  constexpr std::int64_t kVector = kPairedKeys * kBlock<Q>;
  for_register_tiles(packed.shape[0], [&](auto tile, std::int64_t first) {
    for (std::int64_t r = 0; r < tile; ++r) {
      load(first + r, buffer);
      Q* to = packed.at(first) + r * kVector;
      for (std::int64_t x = 0; x < packed.shape[1] / kPairedKeys; x += kBlock<Q>, to += tile * kVector) {
        for (std::int64_t k = 0; k < kPairedKeys; ++k) std::copy_n(buffer + x, kBlock<Q>, to + k * kBlock<Q>);
      }
    }
  });
}

#if HWY_TARGET == HWY_AVX3
/// How queries in Q meet keys of E: float, which keys are widened to, or BFloat16, in dot products of AVX-512 BF16.
template <typename Q, typename E>
struct PairedProducts {
  /// Columns x … x + kBlock of two keys; all of them are there.
  static HWY_INLINE __m512 load(const E* first, const E* second, std::int64_t) {
    const auto block = [](const E* from) HWY_ATTR { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); };
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(block(first)), block(second), 1);
    if constexpr (std::is_same_v<E, Float16>) {
      return _mm512_cvtph_ps(both);
    } else {
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(both), 16));
    }
  }
  static HWY_INLINE __m512 add(__m512 query, __m512 key, __m512 sum) { return _mm512_fmadd_ps(query, key, sum); }
};

template <>
struct PairedProducts<BFloat16, BFloat16> {
  /// The first `columns` of kBlock columns of two keys, zeros behind them.
  static HWY_INLINE __m512 load(const BFloat16* first, const BFloat16* second, std::int64_t columns) {
    const auto block = [columns](const BFloat16* from) HWY_ATTR {
      if (columns >= kBlock<BFloat16>) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
      return _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1U << columns) - 1U), from);
    };
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(block(first)), block(second), 1);
    return _mm512_castsi512_ps(both);
  }
  static HWY_INLINE __m512 add(__m512 query, __m512 key, __m512 sum) {
    // Not an intrinsic: only functions compiled for AVX-512 BF16 may use those, which all callers would have to be.
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(query), "v"(key));
    return sum;
  }
};

/// Sums of the register tile of kRows queries by kVectors vectors of keys, on the way into rows of scores, s_stride
/// apart, in kParts parts. Instructions of a part wait for each other, so that between products of the tile after it
/// they cost nothing, and all at once at the end of their own tile a sixth of its time (Zen 4).
template <std::int64_t kRows, bool kScaled, std::int64_t s_stride>
class PairedSums {
 public:
  static constexpr std::int64_t kVectors = kRows == kHighRows ? kHighKeys : kTileKeys;
  static constexpr std::int64_t kParts = kRows * kVectors / 4;

  explicit PairedSums(float factor) : factor_(_mm512_set1_ps(factor)) {
    HWY_UNROLL(8) for (std::int64_t i = 0; i < 2 * kParts; ++i) halves_[i] = _mm512_setzero_ps();
  }

  /// sums[r][v]: those of row r, in two blocks, of one key each.
  HWY_INLINE void take(const __m512 (&sums)[kRows][kVectors]) {
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
      HWY_UNROLL(2) for (std::int64_t v = 0; v < kVectors; v += 2) {
        halves_[(r * kVectors + v) / 2] = _mm512_add_ps(_mm512_unpacklo_ps(sums[r][v], sums[r][v + 1]),
                                                        _mm512_unpackhi_ps(sums[r][v], sums[r][v + 1]));
      }
    }
  }

  /// to[r · s_stride + k] = the sum of row r and key k, for a part of the rows.
  HWY_INLINE void store(std::int64_t part, float* HWY_RESTRICT to) const {
    const __m512d low = _mm512_castps_pd(halves_[2 * part]), high = _mm512_castps_pd(halves_[2 * part + 1]);
    __m512 fours =
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)), _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
    fours = _mm512_add_ps(fours, _mm512_shuffle_f32x4(fours, fours, 0xB1));
    if constexpr (kScaled) fours = _mm512_mul_ps(fours, factor_);
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

 private:
  __m512 halves_[2 * kParts];
  __m512 factor_;
};

/// s[r · s_stride + j] = query r · key j, times `factor` for dot products, for the kRows rows of a register tile and j
/// < n. q: of pack_paired_queries. As many rows of `keys` from n on as a tile has may be read, and scores written.
template <std::int64_t kRows, bool kAsk, std::int64_t s_stride, typename Q, typename E>
HWY_NOINLINE void paired_score_tile(float* HWY_RESTRICT s, const Q* HWY_RESTRICT q, const StoredRows<E>& keys,
                                    std::int64_t columns, std::int64_t n, float factor) {
  using Products = PairedProducts<Q, E>;
  using Sums = PairedSums<kRows, std::is_same_v<Q, BFloat16>, s_stride>;
  constexpr std::int64_t kVectors = Sums::kVectors, kKeys = kVectors * kPairedKeys;
  // A line is read in kSteps steps; in every kEach-th of them one of each of kTileKeys rows is asked for.
  constexpr std::int64_t kSteps = kLine_bytes / sizeof(E) / kBlock<Q>, kEach = kSteps * kTileKeys / kKeys;
  constexpr std::int64_t kVector = kPairedKeys * kBlock<Q>;
  const std::int64_t steps = divide_up(columns, kBlock<Q>), lines = columns / (kSteps * kBlock<Q>);
  Sums before(factor);
  float* to = s;  // where those belong; until there are some, scores are written that others replace
  for (std::int64_t j = 0; j < n; j += kKeys) {
    const E* const* rows = keys.rows + j;
    const E* const* coming = rows + keys.ahead;
    const Q* query = q;
    __m512 sums[kRows][kVectors];
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
      HWY_UNROLL(4) for (std::int64_t v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_ps();
    }
    const auto multiply = [&](std::int64_t line, std::int64_t step) HWY_ATTR {
      const std::int64_t x = (line * kSteps + step) * kBlock<Q>;
      if (kAsk && step % kEach == 0)
        prefetch_interleaved(coming + step / kEach * kTileKeys, line, keys.into_first_level);
      __m512 key[kVectors];
      HWY_UNROLL(4) for (std::int64_t v = 0; v < kVectors; ++v) {
        key[v] = Products::load(rows[v] + x, rows[kVectors + v] + x, columns - x);
      }
      HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
        const __m512 in_lanes = in_register(hn::Load(Tag<float>(), reinterpret_cast<const float*>(query))).raw;
        query += kVector;
        HWY_UNROLL(4) for (std::int64_t v = 0; v < kVectors; ++v) {
          sums[r][v] = Products::add(in_lanes, key[v], sums[r][v]);
        }
      }
    };
    const auto multiply_line = [&](std::int64_t line) HWY_ATTR {
      HWY_UNROLL(4) for (std::int64_t step = 0; step < kSteps; ++step) multiply(line, step);
    };
    HWY_UNROLL(4) for (std::int64_t part = 0; part < Sums::kParts; ++part) {
      if (part < lines) multiply_line(part);
      before.store(part, to);
    }
    for (std::int64_t line = Sums::kParts; line < lines; ++line) multiply_line(line);
    for (std::int64_t step = lines * kSteps; step < steps; ++step) multiply(lines, step - lines * kSteps);
    before.take(sums);
    to = s + j;
  }
  HWY_UNROLL(4) for (std::int64_t part = 0; part < Sums::kParts; ++part) before.store(part, to);
}

/// As score_rows, of queries of pack_paired_queries with `columns` elements each; dot products times `factor`.
template <std::int64_t s_stride, typename Q, typename E>
HWY_NOINLINE void paired_score_rows(const View<float, 2>& scores, const View<Q, 2>& queries, const StoredRows<E>& keys,
                                    std::int64_t columns, std::int64_t n, float factor) {
  assert(scores.strides[0] == s_stride);
  for_shared_keys(scores.shape[0], n, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
    for_register_tiles(scores.shape[0], [&](auto tile, std::int64_t r) HWY_ATTR {
      with_bool(r == 0 && keys.ahead > 0, [&](auto ask) HWY_ATTR {
        paired_score_tile<tile, ask, s_stride>(scores.at(r) + j, queries.at(r), keys.from(j), columns, count, factor);
      });
    });
  });
}
#endif

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_BLOCK_SCORES_INL_
