// SPDX-License-Identifier: Apache-2.0
// Dropout of attention weights; included once per Highway target.
#if defined(HEADGATE_ATTENTION_DROPOUT_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_DROPOUT_INL_
#undef HEADGATE_ATTENTION_DROPOUT_INL_
#else
#define HEADGATE_ATTENTION_DROPOUT_INL_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "library/attention/cpu/common/multiply-inl.hpp"
#include "library/attention/problem.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Multiplies the low 32 bits of each lane by `multiplier`. Returns the 64-bit products.
template <class D, class V>
HWY_INLINE V multiply_low_halves([[maybe_unused]] D d, V x, std::uint32_t multiplier) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, (hn::GetLane(x) & 0xFFFFFFFFU) * multiplier);
#else
  const hn::Repartition<std::uint32_t, D> d32;
  return hn::MulEven(hn::BitCast(d32, x), hn::Set(d32, multiplier));
#endif
}

/// Computes Philox 4x32-10 for `lanes` counters, one per lane (Salmon et al., Parallel Random Numbers: As Easy as 1, 2,
/// 3, SC 2011).
/// The lowest word of a counter is c + lane. The other three words are `fixed`.
/// Stores output word w of all counters in words[w · step …].
template <class D>
HWY_INLINE void philox(D d, std::uint64_t key, std::uint64_t c, const std::uint32_t (&fixed)[3],
                       std::uint32_t* HWY_RESTRICT words, std::int64_t step) {
  auto c0 = hn::Iota(d, c);
  auto c1 = hn::Set(d, std::uint64_t{fixed[0]});
  auto c2 = hn::Set(d, std::uint64_t{fixed[1]});
  auto c3 = hn::Set(d, std::uint64_t{fixed[2]});
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32U);
  // Only the low 32 bits of a lane are used. The high bits are remainders of earlier products.
  for (int round = 0; round < 10; ++round) {
    const auto product0 = multiply_low_halves(d, c0, 0xD2511F53U);
    const auto product1 = multiply_low_halves(d, c2, 0xCD9E8D57U);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), c1), hn::Set(d, std::uint64_t{key0}));
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), c3), hn::Set(d, std::uint64_t{key1}));
    c1 = product1;
    c3 = product0;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  const hn::Rebind<std::uint32_t, D> d32;
  hn::StoreU(hn::TruncateTo(d32, c0), d32, words);
  hn::StoreU(hn::TruncateTo(d32, c1), d32, words + step);
  hn::StoreU(hn::TruncateTo(d32, c2), d32, words + 2 * step);
  hn::StoreU(hn::TruncateTo(d32, c3), d32, words + 3 * step);
}

/// Generates dropout factors for attention weights: 1 / (1 − p) with probability 1 − p, otherwise 0.
/// A factor depends only on the seed, sequence, query head, query and key.
/// Forward and backward pass therefore use bitwise identical factors, for any number of threads and on every target.
template <typename T>
class Dropout {
 public:
  /// Number of keys in a chunk. The random numbers of a chunk are drawn together from kCounters Philox counters.
  /// Each counter yields four words. Key 8 w + l of a chunk (w < 4, l < 8) gets word w of counter 8 · chunk + l.
  static constexpr std::int64_t kChunk = 32;
  static constexpr std::int64_t kCounters = kChunk / 4;

  explicit Dropout(const Problem& p)
      : any_(p.dropout > 0.0),
        seed_(static_cast<std::uint64_t>(p.dropout_seed)),
        dropped_(static_cast<std::uint32_t>(std::min(std::round(p.dropout * 0x1p32), 0x1p32 - 1))),
        factor_(static_cast<T>(1.0 / (1.0 - p.dropout))) {}

  bool any() const { return any_; }

  /// Computes the dropout factors of query i of query head h for keys first … first + n.
  void factors(T* HWY_RESTRICT factors, const Sequence& sequence, std::int64_t h, std::int64_t i, std::int64_t first,
               std::int64_t n) const {
    const FixedWords fixed = fixed_words(sequence, h, i);
    HWY_ALIGN std::uint32_t random[kChunk];
    for (std::int64_t j = first; j < first + n;) {
      const std::int64_t chunk = j / kChunk;
      draw(random, chunk, fixed);
      const std::int64_t from = j - chunk * kChunk;
      const std::int64_t count = std::min(kChunk - from, first + n - j);
      T* HWY_RESTRICT to = factors + (j - first);
      for (std::int64_t x = 0; x < count; ++x) to[x] = random[from + x] < dropped_ ? T{0} : factor_;
      j += count;
    }
  }

  /// Computes the dropout factors of query i of query head h for the n keys in `keys`, which are in ascending order.
  void factors_of(T* HWY_RESTRICT factors, const Sequence& sequence, std::int64_t h, std::int64_t i,
                  const std::int64_t* keys, std::int64_t n) const {
    HWY_ALIGN std::uint32_t random[kChunk];
    std::int64_t drawn = -1;
    for (std::int64_t j = 0; j < n; ++j) {
      const std::int64_t chunk = keys[j] / kChunk;
      if (chunk != drawn) draw(random, chunk, fixed_words(sequence, h, i));
      drawn = chunk;
      factors[j] = random[keys[j] % kChunk] < dropped_ ? T{0} : factor_;
    }
  }

 private:
  /// Upper three words of the Philox counter. All keys of a query share them.
  struct FixedWords {
    std::uint32_t words[3];
  };
  static FixedWords fixed_words(const Sequence& sequence, std::int64_t h, std::int64_t i) {
    return {
        {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(h), static_cast<std::uint32_t>(sequence.number)}};
  }

  HWY_INLINE void draw(std::uint32_t* HWY_RESTRICT random, std::int64_t chunk, const FixedWords& fixed) const {
    const hn::CappedTag<std::uint64_t, kCounters> d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t l = 0; l < kCounters; l += lanes) {
      philox(d, seed_, static_cast<std::uint64_t>(chunk * kCounters + l), fixed.words, random + l, kCounters);
    }
  }

  bool any_;
  std::uint64_t seed_;
  std::uint32_t dropped_;  // threshold: a weight is dropped if its random number is smaller
  T factor_;
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_DROPOUT_INL_
