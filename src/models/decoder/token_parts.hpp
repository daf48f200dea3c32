// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "library/core/check.hpp"
#include "library/core/workspace.hpp"
#include "models/decoder/decoder_blocks.hpp"
#include "models/decoder/decoder_buffers.hpp"
#include "models/decoder/sequence_memory.hpp"

// Runs forward passes over a batch of sequences, or over one sequence part by part.

namespace headgate::models {

/// One id per token: the id of the token itself or of its target.
using Tokens = View<const std::int32_t, 1>;

inline bool is_cut(BatchShape shape, const PartOptions& options) {
  return options.tokens > 0 && (options.tokens < shape.seq || options.cache != DType::none);
}

/// Returns `options`. Throws Error if they are invalid for a decoder with activations of type T.
template <typename T>
const PartOptions& require_valid_parts(const PartOptions& options, BatchShape shape, Purpose purpose) {
  using layers::ActivationRounding;
  require(options.activations == ActivationRounding::none || (purpose == Purpose::evaluate && !kNarrow<T>),
          "decoder: activations are rounded to {}: only to evaluate, and not in bf16", word_of(options.activations));
  require(
      !spans_tokens(options.activations) || (shape.batch == 1 && !(options.tokens > 0 && options.tokens < shape.seq)),
      "decoder: activations are rounded to {}: a batch of {} x {} tokens in parts of {} has no single scale",
      word_of(options.activations), shape.batch, shape.seq, options.tokens);
  require(options.tokens >= 0, "decoder: parts of {} tokens", options.tokens);
  require(options.cache == DType::none || (options.cache == DType::i8 && options.tokens > 0),
          "decoder: a cache of {} for parts of {} tokens: must be i8, and parts at least 1", dtype_name(options.cache),
          options.tokens);
  require(options.cache_first == 0 || (options.cache_first > 0 && options.cache == DType::i8),
          "decoder: {} first tokens that stay unrounded, in a cache of {}: must be at least 0, and the cache i8",
          options.cache_first, dtype_name(options.cache));
  require(!is_cut(shape, options) || (shape.batch == 1 && purpose == Purpose::evaluate),
          "decoder: a batch of {} x {} tokens in parts of {}: only one sequence, to evaluate, can be in parts",
          shape.batch, shape.seq, options.tokens);
  return options;
}

/// Holds the sizes, buffers and blocks for forward passes over batches of one shape.
template <typename T>
struct PassResources {
  PassResources(const DecoderConfig& config, BatchShape shape_in, Purpose purpose, const ExecutionContext& context,
                layers::ActivationRounding rounding)
      : shape(shape_in), sizes(config, shape, purpose, rounding), memory(sizes), blocks(sizes, *memory, context) {}

  BatchShape shape;
  DecoderSizes sizes;
  Placed<DecoderBuffers<T>, Block> memory;
  DecoderBlocks<T> blocks;
};

/// A part of a sequence, or the whole batch if sequences are not cut.
template <typename T>
struct TokenPart {
  PassResources<T>& resources;
  std::int64_t first = 0;  ///< position of the part's first token in its sequence

  std::int64_t count() const { return resources.sizes.N; }
  Tokens of(const Tokens& tokens) const { return tokens.present() ? tokens.range(0, first, count()) : tokens; }
};

/// Divides a decoder's tokens into parts, and owns the buffers for them. If sequences are not cut, the batch is the
/// only part. All parts pass through a layer before the next layer begins.
template <typename T>
class TokenParts {
 public:
  TokenParts(const DecoderConfig& config, BatchShape shape, Purpose purpose, const ExecutionContext& context,
             const PartOptions& options)
      : shape_(shape),
        options_(require_valid_parts<T>(options, shape, purpose)),
        main_(config, part_shape(shape, options), purpose, context, options.activations) {
    if (!is_cut(shape, options)) return;
    sequence_.emplace(main_.sizes, shape.seq, options);
    if (const std::int64_t rest = shape.seq % options.tokens) {
      last_.emplace(config, BatchShape{1, rest}, purpose, context, options.activations);
    }
  }

  const PartOptions& options() const { return options_; }
  /// Returns the sizes and buffers for parts of full length, or for the whole batch if sequences are not cut.
  PassResources<T>& main() { return main_; }
  const PassResources<T>& main() const { return main_; }
  /// Returns the memory of the whole sequence. Returns null if sequences are not cut.
  SequenceMemory<T>* sequence() { return sequence_ ? &*sequence_ : nullptr; }

  /// Calls visit(part) for each part in order.
  template <class Visit>
  void each(const Visit& visit) {
    if (!sequence_) return visit(TokenPart<T>{main_});
    for (std::int64_t first = 0; first < shape_.seq; first += options_.tokens) visit(at(first));
  }
  /// Returns the part that contains token number `token` of the sequence.
  TokenPart<T> at(std::int64_t token) {
    if (!sequence_) return TokenPart<T>{main_};
    const std::int64_t first = token - token % options_.tokens;
    return TokenPart<T>{first + options_.tokens <= shape_.seq ? main_ : *last_, first};
  }

  /// Returns the saved activations of a layer for a part. If the sequence is cut, the member `x` views the part's rows
  /// in the residual stream of the whole sequence.
  SavedLayer<T> saved(std::int64_t layer, const TokenPart<T>& part) const {
    SavedLayer<T> saved = part.resources.memory->layer(layer);
    if (sequence_) saved.x = sequence_->stream().range(0, part.first, part.count());
    return saved;
  }
  /// Returns the residual stream after a layer, which is the next layer's input.
  View<Wide<T>, 2> output(std::int64_t layer, const TokenPart<T>& part) const {
    if (sequence_) return saved(layer, part).x;
    return layer + 1 < static_cast<std::int64_t>(main_.sizes.layers.size()) ? saved(layer + 1, part).x
                                                                            : main_.memory->x_last;
  }

  std::size_t bytes() const {
    return main_.memory.bytes() + (last_ ? last_->memory.bytes() : 0) + (sequence_ ? sequence_->bytes() : 0);
  }

 private:
  BatchShape shape_;
  PartOptions options_;
  PassResources<T> main_;
  std::optional<SequenceMemory<T>> sequence_;
  // Sizes and buffers for a last part that is shorter than the other parts; absent if all parts have the same length.
  std::optional<PassResources<T>> last_;
};

}  // namespace headgate::models
