// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

// How tensors of a GGUF file are stored: in blocks of a few numbers that share their scales.

namespace headgate::io {

/// A row of the table of storage formats.
struct GgufFormat {
  std::string_view word;  ///< "Q4_K"
  std::uint32_t id;       ///< in files
  std::int64_t numbers;   ///< of a block; rows of tensors are whole blocks
  std::size_t bytes;      ///< of a block
  /// out(numbers) = one block(bytes). Null: the format is known by its size alone.
  void (*widen)(float* out, const std::uint8_t* block);
};

/// All formats of ggml, those that are not widened included.
std::span<const GgufFormat> gguf_formats();

/// Null for an id that is none.
const GgufFormat* find_gguf_format(std::uint32_t id);
const GgufFormat* find_gguf_format(std::string_view word);

/// "F32, F16, …": the formats that are widened.
std::string widened_gguf_formats();

/// out(blocks · numbers) = blocks(blocks · bytes), widened as llama.cpp does in f32, without fused multiply-adds.
void widen_blocks(const GgufFormat& format, float* out, const std::uint8_t* blocks, std::int64_t count);

}  // namespace headgate::io
