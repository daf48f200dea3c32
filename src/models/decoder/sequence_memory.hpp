// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headgate/linear_attention.hpp"
#include "library/core/arena.hpp"
#include "library/core/workspace.hpp"
#include "models/decoder/decoder_blocks.hpp"
#include "models/decoder/decoder_buffers.hpp"

namespace headgate::models {

/// Views what a decoder that walks a sequence of T tokens in parts keeps of all of them, beside the cache.
template <typename T>
struct SequenceBuffers {
  SequenceBuffers(Workspace& ws, const DecoderSizes& part, std::int64_t tokens, const PartOptions& parts);

  View<Wide<T>, 2> stream;       ///< (T,C) the residual stream, which each layer overwrites
  View<T, 3> q, k;               ///< (T,Hk,D) what the delta rule of the current layer reads; absent unless kept
  View<Wide<T>, 2> decay, beta;  ///< (T,Hv)
};

/// Holds them, and the cache of the layer that the parts pass through: its keys and values, or its states. Layers take
/// turns, so that the memory does not grow with their number.
template <typename T>
class SequenceMemory {
 public:
  /// `part`: the sizes of a part.
  SequenceMemory(const DecoderSizes& part, std::int64_t tokens, const PartOptions& parts);

  /// Adds what such memory takes, without allocating it.
  static void plan(std::vector<MemoryItem>& items, const DecoderSizes& part, std::int64_t tokens,
                   const PartOptions& parts);
  std::size_t bytes() const;

  const View<Wide<T>, 2>& stream() const { return buffers_->stream; }
  /// Returns the cache of a layer, empty before its first part.
  LayerCache& begin_layer(LayerType type);
  LayerCache& cache(LayerType type) { return type == LayerType::linear_attention ? linear_ : attention_; }

  /// Keeps what the delta rule has read of a part that begins at token `first`.
  void keep_rule(const layers::DeltaNetState<T>& state, std::int64_t first) const;
  /// Returns what it has read of all tokens, as linear_attention_weights takes it: `v`, (P,Hv,Dv), gives its shape
  /// alone.
  LinearAttentionInputs kept_rule(View<const T, 3> v) const;

 private:
  Placed<SequenceBuffers<T>, Block> buffers_;
  LayerCache attention_, linear_;
};

}  // namespace headgate::models
