// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"
#include "library/core/view.hpp"
#include "models/decoder/config.hpp"
#include "models/layers/attention_skip.hpp"

// A model that goes on from what it has read: keys and values of earlier tokens stay in a cache, so that a new token
// costs one pass over the weights.

namespace headgate::models {

class ModelFile;

struct CachedDecoderOptions {
  DType weights = DType::bf16;  ///< in memory: f32, or bf16, matrices rounded to nearest even; vectors stay f32
  DType cache = DType::f32;     ///< keys and values: f32, or i8 with a scale for each token and head
  std::int64_t batch = 1;       ///< B sequences, which grow together
  std::int64_t capacity = 0;    ///< tokens that each can get; 0: the config's seq_len
  /// Attention leaves out heads of new tokens whose gate is below it: AttentionOptions::gate_threshold.
  double gate_threshold = 0.0;
  ExecutionContext context{};
};

/// B sequences of one length and the model that reads them. The arithmetic is f32, whatever the types in memory. How
/// tokens are cut into calls changes results by roundings alone: few rows and many have different kernels.
class CachedDecoder {
 public:
  /// Reads the weights tensor by tensor: beside them, one tensor is held in f32 at a time. Throws io::FileError on a
  /// model that does not fit its config, Error on options that do not fit it, std::bad_alloc.
  CachedDecoder(const ModelFile& file, const CachedDecoderOptions& options);
  /// Copies parameters(total), as ParameterTable(config) lays them out. Throws as above.
  CachedDecoder(const DecoderConfig& config, const float* parameters, const CachedDecoderOptions& options);
  ~CachedDecoder();
  CachedDecoder(const CachedDecoder&) = delete;
  CachedDecoder& operator=(const CachedDecoder&) = delete;

  /// Reads T new tokens of each sequence, tokens(B,T), T at least 1. logits(B,V) = of what follows the last of them.
  /// Throws Error, and has then changed nothing, on shapes that do not fit, tokens outside the vocabulary and more than
  /// capacity() tokens. After std::bad_alloc length() says how many of the tokens have been read.
  void append(View<float, 2> logits, View<const std::int32_t, 2> tokens);
  /// The same with the logits of what follows each new token, logits(B,T,V).
  void append_all(View<float, 3> logits, View<const std::int32_t, 2> tokens);

  /// Tokens of each sequence so far.
  std::int64_t length() const;
  /// Leaves the first `length` tokens of each sequence. Throws Error beyond length(), and where attention of the next
  /// token would need keys that a sliding window has dropped; 0 is always right.
  void truncate(std::int64_t length);

  const DecoderConfig& config() const;
  const CachedDecoderOptions& options() const;  ///< with capacity and context resolved
  std::int64_t capacity() const;

  /// Bytes of all weights.
  std::size_t weight_bytes() const;
  /// Bytes that the caches of all layers hold now, free pages included.
  std::size_t cache_bytes() const;
  /// Bytes that the next token of each sequence reads: weights, once, and the keys and values in its sight.
  std::size_t step_bytes() const;
  /// What the gate threshold left out so far, and the time that attention took.
  const layers::AttentionSkip& skipped() const;

 private:
  struct State;
  template <typename M>
  struct StateOf;
  std::unique_ptr<State> state_;
};

}  // namespace headgate::models
