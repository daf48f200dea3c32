// SPDX-License-Identifier: Apache-2.0
// Computes gradients of chunks of gated linear attention with bf16 products (AVX-512 only).
#if defined(HEADGATE_LINEAR_NATIVE16_GRADIENTS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_NATIVE16_GRADIENTS_INL_
#undef HEADGATE_LINEAR_NATIVE16_GRADIENTS_INL_
#else
#define HEADGATE_LINEAR_NATIVE16_GRADIENTS_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "library/core/bf16_products-inl.hpp"
#include "library/core/view.hpp"
#include "library/linear_attention/cpu/native16_chunk-inl.hpp"

// Uses the letters of native16_chunk-inl.hpp, and these:
//
//   P: scale (Q Kᵀ) ∘ F, the weights of a chunk.
//   E: V − f ∘ (K S) − A U, so that U = β ∘ E.
//   S: the state before the chunk.
//   dS: the gradient of the state after the chunk.
//
// The gradients are:
//
//   dU = Pᵀ dY + F_last ∘ (K dS) − Aᵀ W with W = β ∘ dU, by backward substitution from the last row to the first.
//   dS before the chunk = f_last dS + scale Qᵀ (f ∘ dY) − Kᵀ (f ∘ W).
//   X = scale (dY Uᵀ) ∘ F, on and below the diagonal.
//   Z = −(W Uᵀ) ∘ F, below the diagonal.
//   dQ = scale f ∘ (dY Sᵀ) + X K.
//   dK = −f ∘ (W Sᵀ) + F_last ∘ (U dSᵀ) + Xᵀ Q + (Z + Zᵀ) K.
//   dV = W.
//   dβ = row sums of dU ∘ E.
//
// Without the delta rule, U and E are V, W is dU, and the terms with A, Z and W Sᵀ are absent. If several query heads
// read the state, each has its own Q and dY, and their terms are added.
//
// dg_m, the gradient of the log decay of token m, is a sum of the terms whose exponents contain this decay. Each term
// is a product of a value and its gradient, so no differences of large sums occur:
//
//   dg_m = f_last ⟨S, dS⟩ + Σ_{i ≥ m} f_i (scale Q_i · (dY Sᵀ)_i − K_i · (W Sᵀ)_i) + Σ_{j < m} F_last,j K_j · (U dSᵀ)_j
//          + Σ_{j < m ≤ i} (X_ij (Q Kᵀ)_ij + Z_ij (K Kᵀ)_ij).

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Packs the rows of a matrix (n,cols) as the columns of a right operand. n and cols are multiples of kSquare.
inline void pack_transposed(const PairPanels& to, const View<BFloat16, 2>& rows, std::int64_t n, std::int64_t cols) {
  for (std::int64_t x = 0; x < n; x += kTileCols) {
    const BFloat16* each[kTileCols];
    for (std::int64_t r = 0; r < kTileCols; ++r) each[r] = rows.at(x + r);
    pairs_of_transpose(to.at(x / kTileCols, 0), each, kTileCols, cols);
  }
}

/// Packs the rows of a chunk as the rows of a right operand.
inline void pack_pairs(const PairPanels& to, const View<BFloat16, 2>& rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < kSquare; r += 2)
    pairs_of_rows(to.at(0, r), to.panel_stride, rows.at(r), rows.at(r + 1), cols);
}

/// Solves dU = R − Aᵀ (β ∘ dU) for `count` rows, from the last to the first. `rows` holds R and receives dU.
/// `decayed_products` holds A, and receives β ∘ A. Takes four rows and 32 columns at a time.
inline HWY_NOINLINE void substitute_back(const View<float, 2>& rows, const View<float, 2>& decayed_products,
                                         const float* betas, std::int64_t count, std::int64_t cols) {
  constexpr std::int64_t kRows = 4;
  scale_rows_by(decayed_products, betas, count, kSquare);
  for (std::int64_t i = count; i < round_up(count, kRows); ++i) std::fill_n(rows.at(i), cols, 0.0F);
  for (std::int64_t c = 0; c < cols; c += kSquare) {
    for (std::int64_t i0 = round_up(count, kRows) - kRows; i0 >= 0; i0 -= kRows) {
      __m512 sums[kRows][2];
      HWY_UNROLL(4) for (std::int64_t r = 0; r < kRows; ++r) {
        sums[r][0] = _mm512_loadu_ps(rows.at(i0 + r, c));
        sums[r][1] = _mm512_loadu_ps(rows.at(i0 + r, c + 16));
      }
      for (std::int64_t j = i0 + kRows; j < count; ++j) {
        const __m512 u0 = _mm512_loadu_ps(rows.at(j, c)), u1 = _mm512_loadu_ps(rows.at(j, c + 16));
        HWY_UNROLL(4) for (std::int64_t r = 0; r < kRows; ++r) {
          const __m512 a = _mm512_set1_ps(decayed_products(j, i0 + r));
          sums[r][0] = _mm512_fnmadd_ps(a, u0, sums[r][0]);
          sums[r][1] = _mm512_fnmadd_ps(a, u1, sums[r][1]);
        }
      }
      HWY_UNROLL(4) for (std::int64_t r = kRows - 1; r >= 0; --r) {
        for (std::int64_t previous = r - 1; previous >= 0; --previous) {
          const __m512 a = _mm512_set1_ps(decayed_products(i0 + r, i0 + previous));
          sums[previous][0] = _mm512_fnmadd_ps(a, sums[r][0], sums[previous][0]);
          sums[previous][1] = _mm512_fnmadd_ps(a, sums[r][1], sums[previous][1]);
        }
        _mm512_storeu_ps(rows.at(i0 + r, c), sums[r][0]);
        _mm512_storeu_ps(rows.at(i0 + r, c + 16), sums[r][1]);
      }
    }
  }
}

/// Adds factors[i] · from[i] to row i of `to`, for `count` rows.
inline void add_scaled_rows(const View<float, 2>& to, const View<float, 2>& from, const float* factors,
                            std::int64_t count, std::int64_t cols) {
  for (std::int64_t i = 0; i < count; ++i) {
    const __m512 by = _mm512_set1_ps(factors[i]);
    for (std::int64_t c = 0; c < cols; c += kTileCols) {
      const __m512 sum = _mm512_loadu_ps(to.at(i, c));
      _mm512_storeu_ps(to.at(i, c), _mm512_fmadd_ps(by, _mm512_loadu_ps(from.at(i, c)), sum));
    }
  }
}

/// Converts 16 bf16 numbers to f32.
HWY_INLINE __m512 widened(const BFloat16* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/// Returns the sum of all lanes of two vectors.
HWY_INLINE float sum_of_lanes(__m512 a, __m512 b) {
  return hn::GetLane(hn::SumOfLanes(Tag<float>(), hn::Vec<Tag<float>>{_mm512_add_ps(a, b)}));
}

/// Returns the dot product of n bf16 numbers and n f32 numbers, summed in f32. n is a multiple of 32.
inline float dot_with_halves(const BFloat16* a, const float* b, std::int64_t n) {
  __m512 low = _mm512_setzero_ps(), high = _mm512_setzero_ps();
  for (std::int64_t x = 0; x < n; x += 32) {
    low = _mm512_fmadd_ps(widened(a + x), _mm512_loadu_ps(b + x), low);
    high = _mm512_fmadd_ps(widened(a + x + 16), _mm512_loadu_ps(b + x + 16), high);
  }
  return sum_of_lanes(low, high);
}

/// Returns the dot product of two vectors of n bf16 numbers, summed in f32. n is a multiple of 32.
inline HWY_NOINLINE float dot_of_halves(const BFloat16* a, const BFloat16* b, std::int64_t n) {
  __m512 low = _mm512_setzero_ps(), high = _mm512_setzero_ps();
  for (std::int64_t x = 0; x < n; x += 32) {
    low = _mm512_fmadd_ps(widened(a + x), widened(b + x), low);
    high = _mm512_fmadd_ps(widened(a + x + 16), widened(b + x + 16), high);
  }
  return sum_of_lanes(low, high);
}

/// Multiplies two f32 matrices (kSquare,kSquare) element by element and adds the products to `to`. Computes only the
/// elements below the diagonal, in the first `count` rows.
inline void add_lower_terms(const View<float, 2>& to, const View<float, 2>& a, const View<float, 2>& b,
                            std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t c = 0; c < kSquare; c += kTileCols) {
      const __mmask16 mask = lanes_below(i, c > 0);
      const __m512 x = _mm512_maskz_loadu_ps(mask, a.at(i, c)), y = _mm512_maskz_loadu_ps(mask, b.at(i, c));
      _mm512_storeu_ps(to.at(i, c), _mm512_fmadd_ps(x, y, _mm512_loadu_ps(to.at(i, c))));
    }
  }
}

/// Holds the terms of dg_m, the gradients of a chunk's decays (see the top of this file), and sums them.
struct DecayTerms {
  explicit DecayTerms(Workspace& ws)
      : pairs(ws.take<float>("decay terms", kSquare, kSquare)),
        reads(ws.take<float>("decay terms", kSquare)),
        writes(ws.take<float>("decay terms", kSquare)) {}

  void clear() {
    std::fill_n(pairs.data, pairs.count(), 0.0F);
    std::fill_n(reads.data, kSquare, 0.0F);
    std::fill_n(writes.data, kSquare, 0.0F);
    whole = 0.0F;
  }

  /// Sets the first `count` elements of `sums` to the gradients of the tokens' decays. Overwrites all kSquare elements
  /// of `sums`.
  void sum(float* sums, std::int64_t count) const {
    __m512 low = _mm512_set1_ps(whole), high = low;
    // Adds `term` to the gradients of tokens first … end − 1.
    const auto add = [&](std::int64_t first, std::int64_t end, float term) HWY_ATTR {
      const __m512 x = _mm512_set1_ps(term);
      low = _mm512_mask_add_ps(low, lanes_below(end, false) & ~lanes_below(first, false), low, x);
      high = _mm512_mask_add_ps(high, lanes_below(end, true) & ~lanes_below(first, true), high, x);
    };
    for (std::int64_t i = 0; i < count; ++i) {
      add(0, i + 1, reads(i));
      for (std::int64_t j = 0; j < i; ++j) add(j + 1, i + 1, pairs(i, j));
      add(i + 1, count, writes(i));
    }
    _mm512_storeu_ps(sums, low);
    _mm512_storeu_ps(sums + kTileCols, high);
  }

  View<float, 2> pairs;   ///< (i,j), j < i: X_ij (Q Kᵀ)_ij + Z_ij (K Kᵀ)_ij, a term of dg_m for j < m ≤ i
  View<float, 1> reads;   ///< i: f_i (scale Q_i · (dY Sᵀ)_i − K_i · (W Sᵀ)_i), a term of dg_m for m ≤ i
  View<float, 1> writes;  ///< j: F_last,j K_j · (U dSᵀ)_j, a term of dg_m for m > j
  float whole = 0.0F;     ///< f_last ⟨S, dS⟩, a term of every dg_m
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_AVX3

#endif  // HEADGATE_LINEAR_NATIVE16_GRADIENTS_INL_
