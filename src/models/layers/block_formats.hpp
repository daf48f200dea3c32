// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "headgate/tensor.hpp"
#include "models/io/gguf_formats.hpp"
#include "models/io/mxfp4.hpp"

namespace headgate::layers {

// Defines one type for each GGUF format, so that decoders can be templates.

/// A format that stores single numbers instead of blocks.
template <std::uint32_t id, typename N>
struct SingleNumbers {
  using Number = N;
  static constexpr std::uint32_t kId = id;
};
/// A format that stores numbers in blocks: its id in GGUF files, the numbers per block and the bytes per block.
template <std::uint32_t id, std::int64_t numbers, std::int64_t bytes>
struct Blocks {
  static constexpr std::uint32_t kId = id;
  static constexpr std::int64_t kNumbers = numbers, kBytes = bytes;
};

struct F32 : SingleNumbers<0, float> {};
struct F16 : SingleNumbers<1, Float16> {};
struct BF16 : SingleNumbers<30, BFloat16> {};
struct Q4_0 : Blocks<2, 32, 18> {};
struct Q4_1 : Blocks<3, 32, 20> {};
struct Q5_0 : Blocks<6, 32, 22> {};
struct Q5_1 : Blocks<7, 32, 24> {};
struct Q8_0 : Blocks<8, 32, 34> {};
struct Q4_K : Blocks<12, 256, 144> {};
struct Q5_K : Blocks<13, 256, 176> {};
struct Q6_K : Blocks<14, 256, 210> {};
struct MXFP4 : Blocks<39, io::kMxfp4Numbers, 1 + io::kMxfp4CodeBytes> {};
/// MXFP4 with the scales of all blocks in a separate tensor, in the order of the blocks.
struct MXFP4Apart : Blocks<io::kMxfp4ApartId, io::kMxfp4Numbers, io::kMxfp4CodeBytes> {};

template <class Format>
inline constexpr bool kHasBlocks = requires {
  Format::kBytes;
};

template <class Format>
inline constexpr bool kHasScalesApart = std::is_same_v<Format, MXFP4Apart>;

/// Calls visit(Format{}), where Format is the type for `format`. Returns false if there is no such type.
template <class Visit>
bool with_block_format(const io::GgufFormat& format, const Visit& visit) {
  const auto among = [&]<class... Formats>(Formats... formats) {
    return ((format.id == Formats::kId && (visit(formats), true)) || ...);
  };
  return among(F32{}, F16{}, BF16{}, Q4_0{}, Q4_1{}, Q5_0{}, Q5_1{}, Q8_0{}, Q4_K{}, Q5_K{}, Q6_K{}, MXFP4{},
               MXFP4Apart{});
}

}  // namespace headgate::layers
