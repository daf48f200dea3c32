// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

// Defines how tensors of a GGUF file are stored: in blocks of a few numbers that share their scales.

namespace headgate::io {

/// A row of the table of storage formats.
struct GgufFormat {
  std::string_view word;  ///< "Q4_K"
  std::uint32_t id;       ///< id in files
  std::int64_t numbers;   ///< of a block; rows of tensors are whole blocks
  std::size_t bytes;      ///< of a block
  /// out(numbers) = one block(bytes). Null: only the format's size is known.
  void (*widen)(float* out, const std::uint8_t* block);
  /// Returns the first of `count` blocks that widens to a number that is not finite, or `count`. Reads the scales: with
  /// finite ones in 16 bits no code makes such a number. Null where widen is.
  std::int64_t (*find_not_finite)(const std::uint8_t* blocks, std::int64_t count);
};

/// Returns all formats of ggml, including those that are not widened.
std::span<const GgufFormat> gguf_formats();

/// Returns null for an unknown id.
const GgufFormat* find_gguf_format(std::uint32_t id);
const GgufFormat* find_gguf_format(std::string_view word);

/// Returns "F32, F16, …": the formats that are widened.
std::string widened_gguf_formats();

/// out(blocks · numbers) = blocks(blocks · bytes), widened as llama.cpp does in f32, without fused multiply-adds.
void widen_blocks(const GgufFormat& format, float* out, const std::uint8_t* blocks, std::int64_t count);

}  // namespace headgate::io
