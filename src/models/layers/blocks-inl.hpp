// SPDX-License-Identifier: Apache-2.0
// Decodes blocks of GGUF formats into vectors of f32; included once per Highway target. Results are bitwise identical
// to io::widen_blocks. The product scale · code is exact in f32, because its factors together have at most 24 bits: 18
// and 6, or 11 and 8. Only the addition of the minimum rounds, whether or not it is fused with the product.
#if defined(HEADGATE_LAYERS_BLOCKS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LAYERS_BLOCKS_INL_
#undef HEADGATE_LAYERS_BLOCKS_INL_
#else
#define HEADGATE_LAYERS_BLOCKS_INL_
#endif

#include <cstring>
#include <type_traits>
#include <utility>

#include "library/core/convert.hpp"
#include "models/layers/block_formats.hpp"
#include "models/layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// Number of values in a chunk, the unit that a decoder returns at a time.
inline constexpr std::int64_t kChunk = 32;
inline constexpr std::int64_t kChunkVectors = kChunk / kLanes<float>;
/// Number of values in a span, for which all scales are decoded at once. A span is one super-block of 256 values, or up
/// to eight blocks of 32.
inline constexpr std::int64_t kSpan = 256;

using Bytes = hn::CappedTag<std::uint8_t, kChunk>;
using HalfBytes = hn::CappedTag<std::uint8_t, kChunk / 2>;

/// Returns the f16 number at `from` as f32.
HWY_INLINE float load_half(const std::uint8_t* from) {
  Float16 half;
  std::memcpy(&half, from, sizeof(half));
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half.bits)));
#else
  return to_f32(half);
#endif
}

/// Converts the f16 number at `from` to f32 and stores it in scales[0]. If kPair, converts the next f16 number too,
/// multiplies it by kSign (1 or −1), and stores it in scales[1]. May read four bytes even if kPair is false.
template <bool kPair, int kSign = 1>
HWY_INLINE void load_scales(const std::uint8_t* from, float* scales) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  // Converts both f16 numbers at once, because moves to and from vector registers take longer than the conversion.
  std::uint32_t halves = 0;
  std::memcpy(&halves, from, sizeof(halves));
  if constexpr (kSign < 0) halves ^= 0x8000'0000U;
  const __m128 numbers = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(halves)));
  if constexpr (kPair) {
    _mm_storel_pi(reinterpret_cast<__m64*>(scales), numbers);
  } else {
    _mm_store_ss(scales, numbers);
  }
#else
  scales[0] = load_half(from);
  if constexpr (kPair) scales[1] = load_half(from + 2) * kSign;
#endif
}

/// Sets out[i] = by · codes[i] for kCount codes.
template <std::size_t kCount, typename Code>
HWY_INLINE void scale_all(const Code* codes, float by, float* out) {
  const hn::CappedTag<float, kCount> d;
  const hn::Rebind<std::int32_t, decltype(d)> wide;
  const hn::Rebind<Code, decltype(d)> narrow;
  for (std::size_t i = 0; i < kCount; i += hn::Lanes(d)) {
    const auto numbers = hn::ConvertTo(d, hn::PromoteTo(wide, hn::LoadU(narrow, codes + i)));
    hn::StoreU(hn::Mul(hn::Set(d, by), numbers), d, out + i);
  }
}

/// Returns vector v of a chunk of signed 8-bit codes, converted to f32.
HWY_INLINE Vec<float> load_codes(const std::uint8_t* codes, std::int64_t v) {
  const hn::Rebind<std::int32_t, Tag<float>> wide;
  const hn::Rebind<std::int8_t, Tag<float>> narrow;
  const auto* from = reinterpret_cast<const std::int8_t*>(codes) + v * kLanes<float>;
  return hn::ConvertTo(Tag<float>(), hn::PromoteTo(wide, hn::LoadU(narrow, from)));
}

/// Converts a chunk of 8-bit codes to the values step · code + offset. Without kOffset, ignores `offset`.
template <bool kOffset>
HWY_INLINE void scale_codes(const std::uint8_t* codes, float step, float offset, Vec<float>* out) {
  const Tag<float> d;
  const auto steps = hn::Set(d, step), offsets = hn::Set(d, offset);
  for (std::int64_t v = 0; v < kChunkVectors; ++v) {
    const auto code = load_codes(codes, v);
    out[v] = kOffset ? hn::MulAdd(steps, code, offsets) : hn::Mul(steps, code);
  }
}

#if HWY_TARGET == HWY_AVX3
/// Returns the values of all 4-bit codes q = 0 … 15: step · (q − kZero) + offset.
template <bool kOffset, int kZero>
HWY_INLINE Vec<float> nibble_table(float step, float offset) {
  const Tag<float> d;
  const auto codes = hn::Iota(d, static_cast<float>(-kZero));
  return kOffset ? hn::MulAdd(hn::Set(d, step), codes, hn::Set(d, offset)) : hn::Mul(hn::Set(d, step), codes);
}

/// Looks up the lanes of `table`: the low 4 bits of each lane of `indices` select a lane.
HWY_INLINE Vec<float> look_up(Vec<float> table, __m512i indices) {
  return Vec<float>{_mm512_permutexvar_ps(indices, table.raw)};
}

/// Loads 16 bytes and zero-extends each to a 32-bit lane.
HWY_INLINE __m512i load_bytes(const std::uint8_t* from) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
#endif

/// Returns the contribution of the fifth bits to 5-bit codes: byte j is 16 if bit i + j of `bits` is set, otherwise 0.
HWY_INLINE hn::Vec<HalfBytes> fifth_bits(std::uint16_t bits, [[maybe_unused]] std::size_t i) {
  [[maybe_unused]] const HalfBytes d;
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

/// Unpacks 32 codes of 4 bits from 16 bytes. The low nibbles give codes 0 to 15, and the high nibbles codes 16 to 31.
/// If kFifth, bit i of `fifth` is the fifth bit of code i. Subtracts kZero from each code.
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

/// Decodes one span of a row. A span consists of units, and a unit consists of kParts chunks of 32 values.
/// - open(blocks, scales, units) begins a span of `units` units and decodes its scales. `scales` points to scales in a
///   separate tensor, and is null if the blocks contain the scales.
/// - chunk<kPart>(unit, out) decodes chunk kPart of a unit to kChunkVectors vectors.
template <class Format>
class SpanDecoder;

/// Decodes blocks of 32 numbers. A block has one scale and 32 codes of 4 bits (8 bits in Q8_0). If kOffset, it also has
/// a minimum. If kFifth, it also has the fifth bits of the codes. The code kZero stands for the value 0.
template <class Format, bool kOffset, bool kFifth, int kZero>
class SmallBlocks {
 public:
  static constexpr int kParts = 1;

  HWY_INLINE void open(const std::uint8_t* blocks, const std::uint8_t* /*scales*/, std::int64_t units) {
    blocks_ = blocks;
    for (std::int64_t u = 0; u < units; ++u) load_scales<kOffset>(blocks + u * Format::kBytes, scales_[u]);
  }
  template <int kPart>
  HWY_INLINE void chunk(std::int64_t unit, Vec<float>* out) const {
    const std::uint8_t* at = blocks_ + unit * Format::kBytes + (kOffset ? 4 : 2);
    const float step = scales_[unit][0], offset = kOffset ? scales_[unit][1] : 0.0F;
    if constexpr (std::is_same_v<Format, Q8_0>) {
      scale_codes<false>(at, step, 0.0F, out);
      return;
    }
#if HWY_TARGET == HWY_AVX3
    if constexpr (!kFifth) {
      const __m512i low = load_bytes(at), high = _mm512_srli_epi32(low, 4);
      const Vec<float> table = nibble_table<kOffset, kZero>(step, offset);
      out[0] = look_up(table, low);
      out[1] = look_up(table, high);
      return;
    }
#endif
    std::uint32_t fifth = 0;
    if constexpr (kFifth) {
      std::memcpy(&fifth, at, sizeof(fifth));
      at += sizeof(fifth);
    }
    HWY_ALIGN std::uint8_t codes[kChunk];
    split_nibbles<kFifth, kZero>(at, fifth, codes);
    scale_codes<kOffset>(codes, step, offset, out);
  }

 private:
  const std::uint8_t* blocks_;
  float scales_[kSpan / kChunk][2];  // scale and minimum of each block
};

template <>
class SpanDecoder<Q8_0> : public SmallBlocks<Q8_0, false, false, 0> {};
template <>
class SpanDecoder<Q4_0> : public SmallBlocks<Q4_0, false, false, 8> {};
template <>
class SpanDecoder<Q4_1> : public SmallBlocks<Q4_1, true, false, 0> {};
template <>
class SpanDecoder<Q5_0> : public SmallBlocks<Q5_0, false, true, 16> {};
template <>
class SpanDecoder<Q5_1> : public SmallBlocks<Q5_1, true, true, 0> {};

/// Decodes super-blocks of Q4_K and Q5_K: 8 groups of 32 numbers. Each 32 bytes hold two groups, one in the low and one
/// in the high nibbles.
template <bool kFifth>
class GroupedBlocks {
 public:
  static constexpr int kParts = 2;

  HWY_INLINE void open(const std::uint8_t* block, const std::uint8_t* /*scales*/, std::int64_t /*units*/) {
    block_ = block;
    // Unpacks 8 scales and 8 minima of 6 bits each from bytes 4 to 15 of the block. These bytes are read as three words
    // of 4 bytes, and byte i of a word belongs to the entries i and 4 + i.
    // - Scales 0 to 3: the low 6 bits of the bytes of word 0.
    // - Scales 4 to 7: the low nibbles of word 2, and above them the top 2 bits of the bytes of word 0.
    // - Minima 0 to 3: the low 6 bits of the bytes of word 1.
    // - Minima 4 to 7: the high nibbles of word 2, and above them the top 2 bits of the bytes of word 1.
    std::uint32_t word[3];
    std::memcpy(word, block + 4, sizeof(word));
    constexpr std::uint32_t kSix = 0x3F3F3F3FU, kFour = 0x0F0F0F0FU, kTwo = 0x30303030U;
    const std::uint64_t steps = (word[0] & kSix) | std::uint64_t{(word[2] & kFour) | (word[0] >> 2 & kTwo)} << 32;
    const std::uint64_t offsets = (word[1] & kSix) | std::uint64_t{(word[2] >> 4 & kFour) | (word[1] >> 2 & kTwo)}
                                                         << 32;
    HWY_ALIGN std::uint8_t step_codes[8], offset_codes[8];
    std::memcpy(step_codes, &steps, sizeof(steps));
    std::memcpy(offset_codes, &offsets, sizeof(offsets));
    float by[2];
    load_scales<true, -1>(block, by);
    scale_all<8>(step_codes, by[0], step_);
    scale_all<8>(offset_codes, by[1], offset_);
  }
  template <int kPart>
  HWY_INLINE void chunk(std::int64_t unit, Vec<float>* out) const {
    const std::uint8_t* low = block_ + (kFifth ? 48 : 16) + unit * kChunk;
    const std::int64_t g = unit * kParts + kPart;
#if HWY_TARGET == HWY_AVX3
    if constexpr (!kFifth) {
      const Vec<float> table = nibble_table<true, 0>(step_[g], offset_[g]);
      for (int v = 0; v < 2; ++v) {
        const __m512i bytes = load_bytes(low + 16 * v);
        out[v] = look_up(table, kPart == 0 ? bytes : _mm512_srli_epi32(bytes, 4));
      }
      return;
    }
#endif
    const Bytes d;
    HWY_ALIGN std::uint8_t codes[kChunk];
    const auto bit = hn::Set(d, static_cast<std::uint8_t>(1U << g));
    for (std::size_t i = 0; i < kChunk; i += hn::Lanes(d)) {
      const auto bytes = hn::LoadU(d, low + i);
      auto code = kPart == 0 ? hn::And(bytes, hn::Set(d, std::uint8_t{0x0F})) : hn::ShiftRight<4>(bytes);
      if constexpr (kFifth) {  // bit g of byte i is the fifth bit of number i in group g
        const auto is_clear = hn::Eq(hn::And(hn::LoadU(d, block_ + 16 + i), bit), hn::Zero(d));
        code = hn::Or(code, hn::IfThenZeroElse(is_clear, hn::Set(d, std::uint8_t{16})));
      }
      hn::StoreU(code, d, codes + i);
    }
    scale_codes<true>(codes, step_[g], offset_[g], out);
  }

 private:
  const std::uint8_t* block_;
  HWY_ALIGN float step_[8];
  HWY_ALIGN float offset_[8];
};

template <>
class SpanDecoder<Q4_K> : public GroupedBlocks<false> {};
template <>
class SpanDecoder<Q5_K> : public GroupedBlocks<true> {};

/// Decodes super-blocks of Q6_K. A super-block consists of two halves of 128 numbers. For each half, 64 bytes hold the
/// low 4 bits of the numbers, and 32 bytes hold the high 2 bits.
template <>
class SpanDecoder<Q6_K> {
 public:
  static constexpr int kParts = 4;

  HWY_INLINE void open(const std::uint8_t* block, const std::uint8_t* /*scales*/, std::int64_t /*units*/) {
    block_ = block;
    scale_all<16>(reinterpret_cast<const std::int8_t*>(block + 192), load_half(block + 208), step_);
  }
  template <int kPart>
  HWY_INLINE void chunk(std::int64_t unit, Vec<float>* out) const {
    const std::uint8_t *low = block_ + unit * 64 + kPart % 2 * kChunk, *high = block_ + 128 + unit * 32;
    const Bytes d;
    const auto nibble = hn::Set(d, std::uint8_t{0x0F}), two = hn::Set(d, std::uint8_t{0x30});
    HWY_ALIGN std::uint8_t codes[kChunk];
    for (std::size_t i = 0; i < kChunk; i += hn::Lanes(d)) {
      const auto lows = hn::LoadU(d, low + i), highs = hn::LoadU(d, high + i);
      const auto low4 = kPart < 2 ? hn::And(lows, nibble) : hn::ShiftRight<4>(lows);
      const auto high2 =
          hn::And(kPart < 2 ? hn::ShiftLeft<4 - 2 * (kPart % 2)>(highs) : hn::ShiftRight<kPart % 2 * 2>(highs), two);
      hn::StoreU(hn::Sub(hn::Or(low4, high2), hn::Set(d, std::uint8_t{32})), d, codes + i);
    }
    for (std::int64_t v = 0; v < kChunkVectors; ++v) {
      const auto step = hn::Set(Tag<float>(), step_[(unit * kParts + kPart) * 2 + v * kLanes<float> / 16]);
      out[v] = hn::Mul(step, load_codes(codes, v));
    }
  }

 private:
  const std::uint8_t* block_;
  HWY_ALIGN float step_[16];
};

/// Decodes 16 bytes of MXFP4 to 32 integers, the doubled values. If kPairs (Hugging Face), byte i holds values 2i and
/// 2i + 1. Otherwise (GGUF), byte i holds values i and i + 16.
template <bool kPairs>
HWY_INLINE void double_mxfp4(const std::uint8_t* from, std::uint8_t* codes) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t i = 0; i < kChunk / 2; ++i) {
    codes[kPairs ? 2 * i : i] = static_cast<std::uint8_t>(io::kMxfp4Doubled[from[i] & 0x0F]);
    codes[kPairs ? 2 * i + 1 : i + kChunk / 2] = static_cast<std::uint8_t>(io::kMxfp4Doubled[from[i] >> 4]);
  }
#else
  const HalfBytes d;
  const auto table = hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(io::kMxfp4Doubled));
  const auto bytes = hn::LoadU(d, from);
  const auto low = hn::TableLookupBytes(table, hn::And(bytes, hn::Set(d, std::uint8_t{0x0F})));
  const auto high = hn::TableLookupBytes(table, hn::ShiftRight<4>(bytes));
  hn::StoreU(kPairs ? hn::InterleaveLower(d, low, high) : low, d, codes);
  hn::StoreU(kPairs ? hn::InterleaveUpper(d, low, high) : high, d, codes + kChunk / 2);
#endif
}

/// Decodes MXFP4. kApart selects the layout of Hugging Face's files, where the scales are in a separate tensor and each
/// byte holds two adjacent values.
template <class Format, bool kApart>
class FourBitFloats {
 public:
  static constexpr int kParts = 1;

  HWY_INLINE void open(const std::uint8_t* blocks, const std::uint8_t* scales, std::int64_t units) {
    blocks_ = blocks;
    for (std::int64_t u = 0; u < units; ++u) {
      const std::uint32_t bits = io::mxfp4_half_scale_bits(kApart ? scales[u] : blocks[u * Format::kBytes]);
      std::memcpy(&scales_[u], &bits, sizeof(bits));
    }
  }
  template <int kPart>
  HWY_INLINE void chunk(std::int64_t unit, Vec<float>* out) const {
    const std::uint8_t* at = blocks_ + unit * Format::kBytes + (kApart ? 0 : 1);
#if HWY_TARGET == HWY_AVX3
    const Tag<float> d;
    HWY_ALIGN static constexpr float kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const Vec<float> table = hn::Mul(hn::Set(d, scales_[unit]), hn::Load(d, kDoubled));
    if constexpr (kApart) {
      for (int v = 0; v < 2; ++v) {
        // Expands each byte to two 32-bit lanes. The low 4 bits of the first lane are the byte's low nibble. The low 4
        // bits of the second lane are its high nibble. look_up() ignores the other bits.
        const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + 8 * v)));
        out[v] = look_up(table, _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28)));
      }
    } else {
      const __m512i bytes = load_bytes(at);
      out[0] = look_up(table, bytes);
      out[1] = look_up(table, _mm512_srli_epi32(bytes, 4));
    }
#else
    HWY_ALIGN std::uint8_t codes[kChunk];
    double_mxfp4<kApart>(at, codes);
    scale_codes<false>(codes, scales_[unit], 0.0F, out);
#endif
  }

 private:
  const std::uint8_t* blocks_;
  float scales_[kSpan / kChunk];  // each block's scale, halved because the decoded values are doubled
};

template <>
class SpanDecoder<MXFP4> : public FourBitFloats<MXFP4, false> {};
template <>
class SpanDecoder<MXFP4Apart> : public FourBitFloats<MXFP4Apart, true> {};

/// Decodes the chunks of a unit in order and calls use(part, vectors) for each chunk.
template <class Format, class Use, int... kPart>
HWY_INLINE void each_chunk_of(const SpanDecoder<Format>& span, std::int64_t unit, const Use& use,
                              std::integer_sequence<int, kPart...> /*parts*/) {
  const auto decode = [&](auto part) HWY_ATTR {
    Vec<float> numbers[kChunkVectors];
    span.template chunk<decltype(part)::value>(unit, numbers);
    use(decltype(part)::value, numbers);
  };
  (decode(std::integral_constant<int, kPart>()), ...);
}
template <class Format, class Use>
HWY_INLINE void each_chunk(const SpanDecoder<Format>& span, std::int64_t unit, const Use& use) {
  each_chunk_of(span, unit, use, std::make_integer_sequence<int, SpanDecoder<Format>::kParts>());
}

/// Loads `count` ≤ kLanes numbers of a format without blocks, at any alignment. Sets the other lanes to 0.
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
