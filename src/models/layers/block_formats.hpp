// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/tensor.hpp"
#include "models/io/gguf_formats.hpp"

namespace headgate::layers {

// Types that name GGUF formats, for code that is compiled once for each.

struct F32 {
  using Number = float;
  static constexpr std::uint32_t kId = 0;
};
struct F16 {
  using Number = Float16;
  static constexpr std::uint32_t kId = 1;
};
struct BF16 {
  using Number = BFloat16;
  static constexpr std::uint32_t kId = 30;
};
struct Q4_0 {
  static constexpr std::uint32_t kId = 2;
  static constexpr std::int64_t kNumbers = 32, kBytes = 18;
};
struct Q4_1 {
  static constexpr std::uint32_t kId = 3;
  static constexpr std::int64_t kNumbers = 32, kBytes = 20;
};
struct Q5_0 {
  static constexpr std::uint32_t kId = 6;
  static constexpr std::int64_t kNumbers = 32, kBytes = 22;
};
struct Q5_1 {
  static constexpr std::uint32_t kId = 7;
  static constexpr std::int64_t kNumbers = 32, kBytes = 24;
};
struct Q8_0 {
  static constexpr std::uint32_t kId = 8;
  static constexpr std::int64_t kNumbers = 32, kBytes = 34;
};
struct Q4_K {
  static constexpr std::uint32_t kId = 12;
  static constexpr std::int64_t kNumbers = 256, kBytes = 144;
};
struct Q5_K {
  static constexpr std::uint32_t kId = 13;
  static constexpr std::int64_t kNumbers = 256, kBytes = 176;
};
struct Q6_K {
  static constexpr std::uint32_t kId = 14;
  static constexpr std::int64_t kNumbers = 256, kBytes = 210;
};

template <class Format>
inline constexpr bool kHasBlocks = requires {
  Format::kBytes;
};

/// Calls visit(Format{}) for the format's type; returns whether there is one.
template <class Visit>
bool with_block_format(const io::GgufFormat& format, const Visit& visit) {
  const auto among = [&]<class... Formats>(Formats... formats) {
    return ((format.id == Formats::kId && (visit(formats), true)) || ...);
  };
  return among(F32{}, F16{}, BF16{}, Q4_0{}, Q4_1{}, Q5_0{}, Q5_1{}, Q8_0{}, Q4_K{}, Q5_K{}, Q6_K{});
}

}  // namespace headgate::layers
