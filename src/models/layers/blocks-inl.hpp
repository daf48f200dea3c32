// SPDX-License-Identifier: Apache-2.0
// Decodes blocks of GGUF formats into vectors of f32; included once per Highway target. Numbers are bitwise those of
// io::widen_blocks, so files that include this are compiled without contraction of products and sums.
#if defined(HEADGATE_LAYERS_BLOCKS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LAYERS_BLOCKS_INL_
#undef HEADGATE_LAYERS_BLOCKS_INL_
#else
#define HEADGATE_LAYERS_BLOCKS_INL_
#endif

#include <cstring>

#include "library/core/convert.hpp"
#include "models/layers/block_formats.hpp"
#include "models/layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// Numbers that are decoded at a time.
inline constexpr std::int64_t kChunk = 32;
inline constexpr std::int64_t kChunkVectors = kChunk / kLanes<float>;

using Bytes = hn::CappedTag<std::uint8_t, kChunk>;
using HalfBytes = hn::CappedTag<std::uint8_t, kChunk / 2>;

/// Widens the f16 number at `from`.
HWY_INLINE float load_half(const std::uint8_t* from) {
  Float16 half;
  std::memcpy(&half, from, sizeof(half));
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half.bits)));
#else
  return to_f32(half);
#endif
}

/// out = step · code + offset for kChunk codes of 8 bits, with both roundings; without kOffset step · code.
template <bool kOffset>
HWY_INLINE void scale_codes(const std::uint8_t* codes, float step, float offset, Vec<float>* out) {
  const Tag<float> d;
  const hn::Rebind<std::int32_t, Tag<float>> wide;
  const hn::Rebind<std::int8_t, Tag<float>> narrow;
  const auto steps = hn::Set(d, step), offsets = hn::Set(d, offset);
  for (std::int64_t v = 0; v < kChunkVectors; ++v) {
    const auto* from = reinterpret_cast<const std::int8_t*>(codes) + v * kLanes<float>;
    const auto product = hn::Mul(steps, hn::ConvertTo(d, hn::PromoteTo(wide, hn::LoadU(narrow, from))));
    out[v] = kOffset ? hn::Add(product, offsets) : product;
  }
}

#if HWY_TARGET == HWY_AVX3
/// Returns step · (q − kZero) + offset for q = 0 … 15, with both roundings.
template <bool kOffset, int kZero>
HWY_INLINE Vec<float> nibble_table(float step, float offset) {
  const Tag<float> d;
  const auto product = hn::Mul(hn::Set(d, step), hn::Iota(d, static_cast<float>(-kZero)));
  return kOffset ? hn::Add(product, hn::Set(d, offset)) : product;
}

/// Looks up the low 4 bits of each number.
HWY_INLINE Vec<float> look_up(Vec<float> table, __m512i indices) {
  return Vec<float>{_mm512_permutexvar_ps(indices, table.raw)};
}
#endif

/// Returns 16 in the bytes i … of 16 whose bits are set, 0 in the others.
HWY_INLINE hn::Vec<HalfBytes> fifth_bits(std::uint16_t bits, [[maybe_unused]] std::size_t i) {
  const HalfBytes d;
#if HWY_TARGET == HWY_AVX3
  return hn::Vec<HalfBytes>{_mm_maskz_set1_epi8(bits, 16)};
#elif HWY_TARGET == HWY_SCALAR
  return hn::Set(d, static_cast<std::uint8_t>((bits >> i & 1U) << 4));
#else
  constexpr std::uint64_t kEach = 0x0101'0101'0101'0101U;
  const hn::Repartition<std::uint64_t, HalfBytes> words;
  const auto low = hn::Set(words, (bits & 0xFFU) * kEach), high = hn::Set(words, (bits >> 8) * kEach);
  const auto own = hn::BitCast(d, hn::Set(words, std::uint64_t{0x8040'2010'0804'0201U}));
  const auto found = hn::And(hn::BitCast(d, hn::InterleaveLower(words, low, high)), own);
  return hn::IfThenElseZero(hn::Eq(found, own), hn::Set(d, std::uint8_t{16}));
#endif
}

/// codes(32) = 16 bytes' low nibbles, then their high ones, plus 16 where bit i of `fifth` is set, minus kZero.
template <bool kFifth, int kZero>
HWY_INLINE void split_nibbles(const std::uint8_t* from, std::uint32_t fifth, std::uint8_t* codes) {
  const HalfBytes d;
  const auto zero = hn::Set(d, std::uint8_t{kZero});
  for (std::size_t i = 0; i < kChunk / 2; i += hn::Lanes(d)) {
    const auto bytes = hn::LoadU(d, from + i);
    auto low = hn::And(bytes, hn::Set(d, std::uint8_t{0x0F})), high = hn::ShiftRight<4>(bytes);
    if constexpr (kFifth) {
      low = hn::Or(low, fifth_bits(static_cast<std::uint16_t>(fifth), i));
      high = hn::Or(high, fifth_bits(static_cast<std::uint16_t>(fifth >> 16), i));
    }
    if constexpr (kZero != 0) {
      low = hn::Sub(low, zero);
      high = hn::Sub(high, zero);
    }
    hn::StoreU(low, d, codes + i);
    hn::StoreU(high, d, codes + kChunk / 2 + i);
  }
}

/// Decodes a block of Q4_0, Q4_1, Q5_0 or Q5_1: scale, minimum if kOffset, fifth bits if kFifth, nibbles. Codes count
/// from kZero.
template <bool kOffset, bool kFifth, int kZero>
HWY_INLINE void decode_nibbles(const std::uint8_t* block, Vec<float>* out) {
  const float step = load_half(block), offset = kOffset ? load_half(block + 2) : 0.0F;
  const std::uint8_t* at = block + (kOffset ? 4 : 2);
  std::uint32_t fifth = 0;
  if constexpr (kFifth) {
    std::memcpy(&fifth, at, sizeof(fifth));
    at += sizeof(fifth);
  }
#if HWY_TARGET == HWY_AVX3
  if constexpr (!kFifth) {
    const Vec<float> table = nibble_table<kOffset, kZero>(step, offset);
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    out[0] = look_up(table, bytes);
    out[1] = look_up(table, _mm512_srli_epi32(bytes, 4));
    return;
  }
#endif
  HWY_ALIGN std::uint8_t codes[kChunk];
  split_nibbles<kFifth, kZero>(at, fifth, codes);
  scale_codes<kOffset>(codes, step, offset, out);
}

/// Decodes one block after open(block): chunk(g, out) makes its numbers [32 g, 32 g + 32).
template <class Format>
class BlockDecoder;

template <>
class BlockDecoder<Q8_0> {
 public:
  HWY_INLINE void open(const std::uint8_t* block) { block_ = block; }
  HWY_INLINE void chunk(std::int64_t /*g*/, Vec<float>* out) const {
    scale_codes<false>(block_ + 2, load_half(block_), 0.0F, out);
  }

 private:
  const std::uint8_t* block_;
};

template <>
class BlockDecoder<Q4_0> {
 public:
  HWY_INLINE void open(const std::uint8_t* block) { block_ = block; }
  HWY_INLINE void chunk(std::int64_t /*g*/, Vec<float>* out) const { decode_nibbles<false, false, 8>(block_, out); }

 private:
  const std::uint8_t* block_;
};

template <>
class BlockDecoder<Q4_1> {
 public:
  HWY_INLINE void open(const std::uint8_t* block) { block_ = block; }
  HWY_INLINE void chunk(std::int64_t /*g*/, Vec<float>* out) const { decode_nibbles<true, false, 0>(block_, out); }

 private:
  const std::uint8_t* block_;
};

template <>
class BlockDecoder<Q5_0> {
 public:
  HWY_INLINE void open(const std::uint8_t* block) { block_ = block; }
  HWY_INLINE void chunk(std::int64_t /*g*/, Vec<float>* out) const { decode_nibbles<false, true, 16>(block_, out); }

 private:
  const std::uint8_t* block_;
};

template <>
class BlockDecoder<Q5_1> {
 public:
  HWY_INLINE void open(const std::uint8_t* block) { block_ = block; }
  HWY_INLINE void chunk(std::int64_t /*g*/, Vec<float>* out) const { decode_nibbles<true, true, 0>(block_, out); }

 private:
  const std::uint8_t* block_;
};

/// Holds d · scale and −dmin · least of the 8 groups of a super-block of Q4_K or Q5_K.
class GroupScales {
 public:
  HWY_INLINE void open(const std::uint8_t* block) {
    // Bytes 4 … 15 have 6 bits for each of 8 scales and 8 minima. Four at a time: the low words' low 6 bits, or a
    // nibble of the last word below the two high bits of a low word.
    std::uint32_t word[3];
    std::memcpy(word, block + 4, sizeof(word));
    constexpr std::uint32_t kSix = 0x3F3F3F3FU, kFour = 0x0F0F0F0FU, kTwo = 0x30303030U;
    const std::uint32_t scales[4] = {word[0] & kSix, (word[2] & kFour) | (word[0] >> 2 & kTwo), word[1] & kSix,
                                     (word[2] >> 4 & kFour) | (word[1] >> 2 & kTwo)};
    HWY_ALIGN std::uint8_t codes[16];
    std::memcpy(codes, scales, sizeof(codes));
    scale(codes, load_half(block), step_);
    scale(codes + 8, -load_half(block + 2), offset_);
  }
  HWY_INLINE float step(std::int64_t g) const { return step_[g]; }
  HWY_INLINE float offset(std::int64_t g) const { return offset_[g]; }

 private:
  static HWY_INLINE void scale(const std::uint8_t* codes, float by, float* out) {
    const hn::CappedTag<float, 8> d;
    const hn::Rebind<std::int32_t, decltype(d)> wide;
    const hn::Rebind<std::uint8_t, decltype(d)> narrow;
    for (std::size_t i = 0; i < 8; i += hn::Lanes(d)) {
      const auto numbers = hn::ConvertTo(d, hn::PromoteTo(wide, hn::LoadU(narrow, codes + i)));
      hn::StoreU(hn::Mul(hn::Set(d, by), numbers), d, out + i);
    }
  }

  HWY_ALIGN float step_[8];
  HWY_ALIGN float offset_[8];
};

/// Decodes Q4_K and Q5_K, whose groups are chunks.
template <bool kFifthBits>
class GroupDecoder {
 public:
  HWY_INLINE void open(const std::uint8_t* block) {
    fifth_ = block + 16;
    low_ = block + (kFifthBits ? 48 : 16);
    scales_.open(block);
  }
  HWY_INLINE void chunk(std::int64_t g, Vec<float>* out) const {
#if HWY_TARGET == HWY_AVX3
    if constexpr (!kFifthBits) {
      const Vec<float> table = nibble_table<true, 0>(scales_.step(g), scales_.offset(g));
      for (int v = 0; v < 2; ++v) {
        const auto* from = reinterpret_cast<const __m128i*>(low_ + g / 2 * kChunk) + v;
        const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(from));
        out[v] = look_up(table, (g & 1) != 0 ? _mm512_srli_epi32(bytes, 4) : bytes);
      }
      return;
    }
#endif
    const Bytes d;
    HWY_ALIGN std::uint8_t codes[kChunk];
    for (std::size_t i = 0; i < kChunk; i += hn::Lanes(d)) {
      const auto nibbles = hn::LoadU(d, low_ + g / 2 * kChunk + i);
      auto code = hn::And(hn::ShiftRightSame(nibbles, static_cast<int>(g % 2 * 4)), hn::Set(d, std::uint8_t{0x0F}));
      if constexpr (kFifthBits) {
        const auto bit = hn::And(hn::LoadU(d, fifth_ + i), hn::Set(d, static_cast<std::uint8_t>(1U << g)));
        const auto sixteen = hn::Set(d, std::uint8_t{16});
        code = hn::Or(code, hn::IfThenZeroElse(hn::Eq(bit, hn::Zero(d)), sixteen));
      }
      hn::StoreU(code, d, codes + i);
    }
    scale_codes<true>(codes, scales_.step(g), scales_.offset(g), out);
  }

 private:
  const std::uint8_t* fifth_;
  const std::uint8_t* low_;
  GroupScales scales_;
};

template <>
class BlockDecoder<Q4_K> : public GroupDecoder<false> {};
template <>
class BlockDecoder<Q5_K> : public GroupDecoder<true> {};

template <>
class BlockDecoder<Q6_K> {
 public:
  HWY_INLINE void open(const std::uint8_t* block) {
    block_ = block;
    const hn::CappedTag<float, 16> d;
    const hn::Rebind<std::int32_t, decltype(d)> wide;
    const hn::Rebind<std::int8_t, decltype(d)> narrow;
    const auto by = hn::Set(d, load_half(block + 208));
    for (std::size_t i = 0; i < 16; i += hn::Lanes(d)) {
      const auto* scales = reinterpret_cast<const std::int8_t*>(block + 192) + i;
      hn::StoreU(hn::Mul(by, hn::ConvertTo(d, hn::PromoteTo(wide, hn::LoadU(narrow, scales)))), d, step_ + i);
    }
  }
  HWY_INLINE void chunk(std::int64_t g, Vec<float>* out) const {
    const Bytes d;
    const std::int64_t half = g / 4, quarter = g % 4;  // of 128 numbers: 64 bytes of low bits, 32 of high ones
    const std::uint8_t* low = block_ + half * 64 + quarter % 2 * kChunk;
    const std::uint8_t* high = block_ + 128 + half * 32;
    HWY_ALIGN std::uint8_t codes[kChunk];
    for (std::size_t i = 0; i < kChunk; i += hn::Lanes(d)) {
      const auto nibble = hn::And(hn::ShiftRightSame(hn::LoadU(d, low + i), static_cast<int>(quarter / 2 * 4)),
                                  hn::Set(d, std::uint8_t{0x0F}));
      const auto two = hn::And(hn::ShiftRightSame(hn::LoadU(d, high + i), static_cast<int>(quarter * 2)),
                               hn::Set(d, std::uint8_t{0x03}));
      hn::StoreU(hn::Sub(hn::Or(nibble, hn::ShiftLeft<4>(two)), hn::Set(d, std::uint8_t{32})), d, codes + i);
    }
    const Tag<float> df;
    const hn::Rebind<std::int32_t, Tag<float>> wide;
    const hn::Rebind<std::int8_t, Tag<float>> narrow;
    for (std::int64_t v = 0; v < kChunkVectors; ++v) {
      const std::int64_t at = v * kLanes<float>;
      const auto step = hn::Set(df, step_[g * 2 + at / 16]);
      const auto* from = reinterpret_cast<const std::int8_t*>(codes) + at;
      out[v] = hn::Mul(step, hn::ConvertTo(df, hn::PromoteTo(wide, hn::LoadU(narrow, from))));
    }
  }

 private:
  const std::uint8_t* block_;
  HWY_ALIGN float step_[16];
};

/// Loads numbers of the formats whose blocks are single numbers, at any alignment.
template <class Format>
HWY_INLINE Vec<float> load_numbers(std::size_t count, const std::uint8_t* from) {
  const Tag<float> d;
  using Stored = typename Format::Number;
  HWY_ALIGN Stored lane[kLanes<float>] = {};
  std::memcpy(lane, from, count * sizeof(Stored));
  if constexpr (std::is_same_v<Stored, float>) {
    return hn::Load(d, lane);
  } else if constexpr (std::is_same_v<Stored, BFloat16>) {
    return load_bf16(lane);
  } else {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, to_f32(lane[0]));
#else
    const hn::Rebind<hwy::float16_t, Tag<float>> half;
    return hn::PromoteTo(d, hn::Load(half, reinterpret_cast<const hwy::float16_t*>(lane)));
#endif
  }
}
template <class Format>
HWY_INLINE Vec<float> load_numbers(const Whole<float>& /*lanes*/, const std::uint8_t* from) {
  return load_numbers<Format>(static_cast<std::size_t>(kLanes<float>), from);
}
template <class Format>
HWY_INLINE Vec<float> load_numbers(const Tail<float>& lanes, const std::uint8_t* from) {
  return load_numbers<Format>(lanes.count, from);
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LAYERS_BLOCKS_INL_
