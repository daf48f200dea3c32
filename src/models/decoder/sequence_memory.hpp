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

/// Views what a decoder stores for all T tokens of a sequence that is processed in parts. A separate cache holds the
/// keys and values.
template <typename T>
struct SequenceBuffers {
  SequenceBuffers(Workspace& ws, const DecoderSizes& part, std::int64_t tokens, const PartOptions& parts);

  View<Wide<T>, 2> stream;  ///< (T,C) the residual stream, overwritten by each layer
  /// (T,Hk,D) delta-rule inputs of the current layer; only present if PartOptions::stores_delta_inputs is set.
  View<T, 3> q, k;
  View<Wide<T>, 2> decay, beta;  ///< (T,Hv)
};

/// Holds SequenceBuffers and the cache of the current layer: keys and values, or states. All layers use the same
/// memory, so its size does not depend on their number.
template <typename T>
class SequenceMemory {
 public:
  /// Allocates the memory for a sequence of `tokens` tokens. `part` holds the sizes of one part.
  SequenceMemory(const DecoderSizes& part, std::int64_t tokens, const PartOptions& parts);

  /// Appends to `items` the name and size of each buffer that a SequenceMemory would have. Allocates no buffers.
  static void plan(std::vector<MemoryItem>& items, const DecoderSizes& part, std::int64_t tokens,
                   const PartOptions& parts);
  std::size_t bytes() const;

  const View<Wide<T>, 2>& stream() const { return buffers_->stream; }
  /// Empties the cache for layers of this type, and returns it. Must be called before the layer's first part.
  LayerCache& begin_layer(LayerType type);
  LayerCache& cache(LayerType type) { return type == LayerType::linear_attention ? linear_ : attention_; }

  /// Stores the delta-rule inputs of the part that begins at token `first`.
  void store_delta_inputs(const layers::DeltaNetState<T>& state, std::int64_t first) const;
  /// Returns the stored delta-rule inputs q, k, decay and beta of all tokens, for linear_attention_statistics. Values
  /// are not stored. As a placeholder, every token gets the first row of v(rows,Hv,Dv). The result is thus valid only
  /// for statistics that do not depend on values.
  LinearAttentionInputs delta_inputs(View<const T, 3> v) const;

 private:
  Placed<SequenceBuffers<T>, Block> buffers_;
  LayerCache attention_, linear_;
};

}  // namespace headgate::models
