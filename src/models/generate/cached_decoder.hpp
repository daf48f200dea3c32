// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"
#include "library/core/view.hpp"
#include "models/decoder/config.hpp"
#include "models/decoder/model_precision.hpp"
#include "models/layers/attention_skip.hpp"

// Computes the next tokens of sequences with a model. A cache holds the keys and values of earlier tokens, so a new
// token costs one pass over the weights.

namespace headgate::models {

class ModelFile;

struct CachedDecoderOptions {
  /// Type of matrices in memory: f32 or bf16 (rounded to nearest even); vectors are always f32. If empty, GGUF files
  /// with other formats than f32 and directories with MXFP4 blocks are read in place, without conversion. Matrices of
  /// all other models are then bf16.
  std::optional<DType> weights = std::nullopt;
  /// Precision of passes over at least 33 new tokens, counted over all sequences. bf16 rounds activations and matrices
  /// to bf16, as Decoder<BFloat16> does. Shorter passes and logits are always computed in f32.
  ModelPrecision precision = ModelPrecision::f32;
  DType cache = DType::f32;  ///< type of keys and values: f32, or i8 with a scale for each token and head
  /// Number of tokens at the start whose keys and values stay f32 if `cache` is i8 (CacheShape::whole_first); must be 0
  /// otherwise. A layer with a window keeps all of them until the last one is outside the window.
  std::int64_t cache_first = 0;
  std::int64_t batch = 1;     ///< number of sequences B; all have the same length
  std::int64_t capacity = 0;  ///< largest number of tokens per sequence; 0: the config's seq_len
  /// Number of last tokens that truncate() can drop in any model, for example wrongly guessed tokens. With keep ≥ 1,
  /// recurrent layers store keep + 3 states instead of 2. They compute the last `keep` tokens of a pass one by one.
  std::int64_t keep = 0;
  /// Skips attention of new tokens in heads whose gate is below this threshold; see AttentionOptions::gate_threshold.
  double gate_threshold = 0.0;
  ExecutionContext context{};
};

/// Holds a model and B sequences of equal length. Computes in f32 for any type in memory, unless
/// CachedDecoderOptions::precision is bf16. If the same tokens are appended in other portions, results can differ in
/// rounding, because the number of rows selects the kernel.
class CachedDecoder {
 public:
  /// Maps the weights, or reads them one tensor at a time, so that only one tensor needs an extra copy in f32. A mapped
  /// file must not change: append() throws io::FileError if it has become shorter. The constructor throws:
  /// - io::FileError if the tensors do not fit the model's config
  /// - Error if the options do not fit the config
  /// - std::bad_alloc if memory runs out
  CachedDecoder(const ModelFile& file, const CachedDecoderOptions& options);
  /// Copies parameters(total), laid out as in ParameterTable(config). Throws Error if `config` is not valid or the
  /// options do not fit it. Throws std::bad_alloc if memory runs out.
  CachedDecoder(const DecoderConfig& config, const float* parameters, const CachedDecoderOptions& options);
  ~CachedDecoder();
  CachedDecoder(const CachedDecoder&) = delete;
  CachedDecoder& operator=(const CachedDecoder&) = delete;

  /// Appends T ≥ 1 new tokens to each sequence, tokens(B,T). Computes logits(B,V) of the token that follows. Throws
  /// Error without any effect for wrong shapes, tokens outside the vocabulary, and more than capacity() tokens. After
  /// std::bad_alloc, length() tells how many tokens were appended.
  void append(View<float, 2> logits, View<const std::int32_t, 2> tokens);
  /// Appends tokens as append() does, and computes the logits after each new token, logits(B,T,V).
  void append_all(View<float, 3> logits, View<const std::int32_t, 2> tokens);

  /// Returns the current number of tokens per sequence.
  std::int64_t length() const;
  /// Keeps the first `length` tokens of each sequence, bitwise as if no others had been appended. Throws Error if
  /// `length` is not in [0, length()], or if reachable(length) is smaller.
  void truncate(std::int64_t length);
  /// Returns the largest length ≤ `length` to which truncate() can go. All layers can go back to 0 and to the last
  /// CachedDecoderOptions::keep lengths. Each type of layer can also go back to these lengths:
  /// - full attention: any
  /// - sliding window: lengths after which the next token sees only keys that the cache still has
  /// - recurrent: the length before the last pass, and marked lengths
  std::int64_t reachable(std::int64_t length) const;
  /// Marks the current length, so that truncate() can go back to it. Recurrent layers keep a state for each of the last
  /// `most` ≥ 1 marks. Layers with a sliding window keep only the last mark, and the keys and values appended since.
  /// After std::bad_alloc only some layers have the mark, and decoding can continue.
  void mark(std::int64_t most);

  const DecoderConfig& config() const;
  const CachedDecoderOptions& options() const;  ///< options with capacity and context resolved
  std::int64_t capacity() const;
  /// Returns the largest number of tokens of each sequence that one pass computes in f32 with these options.
  std::int64_t most_unrounded() const;

  /// Returns whether matrices are read in place from the model's files, without conversion.
  bool reads_in_place() const;
  /// Returns the bytes of all weights, including mapped ones.
  std::size_t weight_bytes() const;
  /// Returns the bytes that the caches of all layers currently occupy, including free pages.
  std::size_t cache_bytes() const;
  /// Returns the bytes read to compute one more token per sequence: the weights, and the keys and values that the token
  /// attends to. Counts different experts for every sequence, which is an upper bound.
  std::size_t step_bytes() const;
  /// Returns the counters of rows that the gate threshold has skipped so far, and the time spent in attention.
  const layers::AttentionSkip& skipped() const;

 private:
  struct State;
  template <typename M>
  struct StateOf;
  static std::unique_ptr<State> open(const ModelFile& file, CachedDecoderOptions options);
  std::unique_ptr<State> state_;
};

}  // namespace headgate::models
