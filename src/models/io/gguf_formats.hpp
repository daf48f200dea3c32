// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

// Defines the storage formats of tensors in GGUF files. A tensor consists of blocks of elements that share scales.

namespace headgate::io {

/// Storage format of tensors in GGUF files.
struct GgufFormat {
  std::string_view word;  ///< name such as "Q4_K"
  std::uint32_t id;       ///< id of the format in files
  std::int64_t numbers;   ///< number of elements per block; each row of a tensor consists of whole blocks
  std::size_t bytes;      ///< size of a block in bytes
  /// Converts one block, of `bytes` bytes, to `numbers` elements in `out`. Null if the library cannot read the format.
  void (*widen)(float* out, const std::uint8_t* block);
  /// Returns the index of the first block with an infinite element or NaN, or `count`, the number of blocks, if there
  /// is none. In formats with 16-bit scales, reads only the scales, because only a scale can be infinite or NaN. Null
  /// if `widen` is null.
  std::int64_t (*find_not_finite)(const std::uint8_t* blocks, std::int64_t count);
};

/// Returns all formats of ggml, including those that this library cannot read.
std::span<const GgufFormat> gguf_formats();

/// Returns the format with this id or name, or null if it is unknown.
const GgufFormat* find_gguf_format(std::uint32_t id);
const GgufFormat* find_gguf_format(std::string_view word);

/// Returns the names of all readable formats: "F32, F16, …".
std::string widened_gguf_formats();

/// Converts blocks(count · format.bytes) to out(count · format.numbers). Computes in f32 as llama.cpp does, without
/// fused multiply-adds.
void widen_blocks(const GgufFormat& format, float* out, const std::uint8_t* blocks, std::int64_t count);

}  // namespace headgate::io
