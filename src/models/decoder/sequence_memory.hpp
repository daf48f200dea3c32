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

/// Views the activations that a decoder keeps for all T tokens of a sequence that is processed in parts. Keys and
/// values are in a separate cache.
template <typename T>
struct SequenceBuffers {
  SequenceBuffers(Workspace& ws, const DecoderSizes& part, std::int64_t tokens, const PartOptions& parts);

  View<Wide<T>, 2> stream;  ///< (T,C) the residual stream, overwritten by each layer
  View<T, 3> q, k;          ///< (T,Hk,D) delta-rule inputs of the current layer; absent unless PartOptions::keeps_rule
  View<Wide<T>, 2> decay, beta;  ///< (T,Hv)
};

/// Holds SequenceBuffers and the cache of the current layer: keys and values, or states. All layers reuse the same
/// memory, so its size does not depend on the number of layers.
template <typename T>
class SequenceMemory {
 public:
  /// Allocates the memory for a sequence of `tokens` tokens. `part` holds the sizes of one part.
  SequenceMemory(const DecoderSizes& part, std::int64_t tokens, const PartOptions& parts);

  /// Appends the items of this memory to a memory plan, without allocating.
  static void plan(std::vector<MemoryItem>& items, const DecoderSizes& part, std::int64_t tokens,
                   const PartOptions& parts);
  std::size_t bytes() const;

  const View<Wide<T>, 2>& stream() const { return buffers_->stream; }
  /// Empties and returns the cache for a layer of this type. Called before the layer's first part.
  LayerCache& begin_layer(LayerType type);
  LayerCache& cache(LayerType type) { return type == LayerType::linear_attention ? linear_ : attention_; }

  /// Copies the delta rule's inputs of the part that begins at token `first`.
  void keep_rule(const layers::DeltaNetState<T>& state, std::int64_t first) const;
  /// Returns the delta rule's inputs q, k, decay and beta of all tokens, as arguments of linear_attention_statistics.
  /// The result is valid only for statistics that do not depend on values, which are not kept. Its v repeats the first
  /// token of the argument `v`(P,Hv,Dv), the values of a part of P tokens.
  LinearAttentionInputs kept_rule(View<const T, 3> v) const;

 private:
  Placed<SequenceBuffers<T>, Block> buffers_;
  LayerCache attention_, linear_;
};

}  // namespace headgate::models
