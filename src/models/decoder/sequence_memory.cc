// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/sequence_memory.hpp"

#include <algorithm>

#include "headgate/tensor.hpp"
#include "models/layers/head_views.hpp"

namespace headgate::models {

namespace {

/// Returns an attention shape from which the cache's size follows, or null if no layer has attention. The shapes of
/// full and of sliding attention give the same size, because both have the same key/value heads.
const layers::GatedAttentionShape* attention_of(const DecoderSizes& sizes) {
  if (sizes.full) return &*sizes.full;
  return sizes.sliding ? &*sizes.sliding : nullptr;
}

/// Returns the type of cached keys and values.
template <typename T>
DType cache_dtype(const PartOptions& parts) {
  return parts.cache == DType::none ? dtype_of<T>() : parts.cache;
}

}  // namespace

template <typename T>
SequenceBuffers<T>::SequenceBuffers(Workspace& ws, const DecoderSizes& part, std::int64_t tokens,
                                    const PartOptions& parts)
    : stream(ws.take<Wide<T>>("residual stream of the sequence", tokens, part.C)) {
  if (!parts.stores_delta_inputs || !part.linear) return;
  constexpr const char* kName = "keys of linear attention, one layer";
  q = ws.take<T>(kName, tokens, part.linear->Hk, part.linear->D);
  k = ws.take<T>(kName, tokens, part.linear->Hk, part.linear->D);
  decay = ws.take<Wide<T>>(kName, tokens, part.linear->Hv);
  beta = ws.take<Wide<T>>(kName, tokens, part.linear->Hv);
}

template <typename T>
SequenceMemory<T>::SequenceMemory(const DecoderSizes& part, std::int64_t tokens, const PartOptions& parts)
    : buffers_(part, tokens, parts) {
  if (const layers::GatedAttentionShape* shape = attention_of(part)) {
    attention_.attention.emplace(*shape, cache_dtype<T>(parts), tokens, parts.cache_first);
    attention_.attention->reserve(tokens);
  }
  if (part.linear) linear_.delta.emplace(*part.linear, dtype_of<Wide<T>>());
}

template <typename T>
void SequenceMemory<T>::plan(std::vector<MemoryItem>& items, const DecoderSizes& part, std::int64_t tokens,
                             const PartOptions& parts) {
  Workspace count(&items);
  const SequenceBuffers<T> counted(count, part, tokens, parts);
  if (const layers::GatedAttentionShape* shape = attention_of(part)) {
    items.push_back({"keys and values, one layer",
                     layers::AttentionCache::planned_bytes(*shape, cache_dtype<T>(parts), tokens, parts.cache_first)});
  }
  if (part.linear) {
    items.push_back({"states, one layer", layers::DeltaNetCache::planned_bytes(*part.linear, dtype_of<Wide<T>>())});
  }
}

template <typename T>
std::size_t SequenceMemory<T>::bytes() const {
  return buffers_.bytes() + (attention_.attention ? attention_.bytes() : 0) + (linear_.delta ? linear_.bytes() : 0);
}

template <typename T>
LayerCache& SequenceMemory<T>::begin_layer(LayerType type) {
  LayerCache& out = cache(type);
  out.truncate(0);
  return out;
}

template <typename T>
void SequenceMemory<T>::store_delta_inputs(const layers::DeltaNetState<T>& state, std::int64_t first) const {
  if (!buffers_->q.present()) return;
  const auto store = [&](const auto& to, const auto& from) {
    const std::int64_t N = from.shape[0];  // copying whole tokens works because the elements of a token are contiguous
    for (std::int64_t n = 0; n < N; ++n) std::copy_n(from.at(n), from[n].count(), to.at(first + n));
  };
  store(buffers_->q, state.q);
  store(buffers_->k, state.k);
  store(buffers_->decay, state.decay);
  store(buffers_->beta, state.beta);
}

template <typename T>
LinearAttentionInputs SequenceMemory<T>::delta_inputs(View<const T, 3> v) const {
  const std::int64_t tokens = buffers_->q.shape[0];
  const auto of = [tokens](const auto& x) { return layers::by_head(x, 1, tokens); };
  LinearAttentionInputs inputs;
  inputs.q = of(buffers_->q);
  inputs.k = of(buffers_->k);
  inputs.v = of(View<const T, 3>(v.data, {tokens, v.shape[1], v.shape[2]}, {0, v.strides[1], v.strides[2]}));
  inputs.decay = of(buffers_->decay.split_last(buffers_->decay.shape[1], 1));
  inputs.beta = of(buffers_->beta.split_last(buffers_->beta.shape[1], 1));
  return inputs;
}

template struct SequenceBuffers<float>;
template struct SequenceBuffers<double>;
template struct SequenceBuffers<BFloat16>;
template class SequenceMemory<float>;
template class SequenceMemory<double>;
template class SequenceMemory<BFloat16>;

}  // namespace headgate::models
