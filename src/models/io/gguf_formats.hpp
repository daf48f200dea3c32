// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

// Defines the storage formats of tensors in GGUF files. A tensor consists of blocks of a few elements that share
// scales.

namespace headgate::io {

/// Storage format of tensors in GGUF files.
struct GgufFormat {
  std::string_view word;  ///< name, such as "Q4_K"
  std::uint32_t id;       ///< id in files
  std::int64_t numbers;   ///< elements per block; a row of a tensor consists of whole blocks
  std::size_t bytes;      ///< bytes per block
  /// Converts one block(bytes) to out(numbers). Null if the library cannot read the format and knows only its size.
  void (*widen)(float* out, const std::uint8_t* block);
  /// Returns the index of the first of `count` blocks with an element that is not finite, or `count` if there is none.
  /// In blocks with 16-bit scales, elements are finite if the scales are, so only the scales are read. Null if `widen`
  /// is null.
  std::int64_t (*find_not_finite)(const std::uint8_t* blocks, std::int64_t count);
};

/// Returns all formats of ggml, including those that cannot be read.
std::span<const GgufFormat> gguf_formats();

/// Returns the format with that id or name, or null if it is unknown.
const GgufFormat* find_gguf_format(std::uint32_t id);
const GgufFormat* find_gguf_format(std::string_view word);

/// Returns the names of the formats that can be read: "F32, F16, …".
std::string widened_gguf_formats();

/// Converts blocks(count · format.bytes) to out(count · format.numbers). Computes in f32 as llama.cpp does, without
/// fused multiply-adds.
void widen_blocks(const GgufFormat& format, float* out, const std::uint8_t* blocks, std::int64_t count);

}  // namespace headgate::io
