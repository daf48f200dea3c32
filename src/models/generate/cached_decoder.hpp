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
// token costs only one pass over the weights.

namespace headgate::models {

class ModelFile;

struct CachedDecoderOptions {
  /// Type of matrices in memory: f32, or bf16 rounded to nearest even. Vectors are always f32. If empty, the type
  /// depends on the model's files:
  /// - GGUF: matrices in a format other than f32 are read in place, without conversion.
  /// - A directory with MXFP4 blocks: matrices are read in place too.
  /// - Any other model: matrices are bf16.
  std::optional<DType> weights = std::nullopt;
  /// Precision of passes over at least 33 new tokens, counted over all sequences. bf16 rounds activations and matrices
  /// to bf16, as Decoder<BFloat16> does. Shorter passes are always computed in f32, and so are logits.
  ModelPrecision precision = ModelPrecision::f32;
  DType cache = DType::f32;  ///< type of keys and values: f32, or i8 with one scale per token and head
  /// Number of tokens at the start of a sequence that stay f32 in an i8 cache (CacheShape::whole_first). Must be 0 if
  /// `cache` is f32. A layer with a sliding window frees these tokens together, once all of them are outside the
  /// window.
  std::int64_t cache_first = 0;
  std::int64_t batch = 1;     ///< number of sequences B, which all have the same length
  std::int64_t capacity = 0;  ///< maximum number of tokens per sequence; 0 means the config's seq_len
  /// Number of last tokens that truncate() can always drop, such as wrong guesses. If at least 1, recurrent layers
  /// store keep + 3 states instead of 2. They compute the last `keep` tokens of a pass one by one.
  std::int64_t keep = 0;
  /// Gate threshold. For a new token, a head skips attention if its gate is below the threshold
  /// (AttentionOptions::gate_threshold).
  double gate_threshold = 0.0;
  ExecutionContext context{};
};

/// Holds a model, and the caches of B sequences of equal length. Computes in f32, whatever the type of the stored
/// weights. The only exception is CachedDecoderOptions::precision = bf16. Results can differ in rounding with the
/// number of tokens per call, because the number of rows selects the kernel.
class CachedDecoder {
 public:
  /// Opens the weights: maps their files, or reads one tensor at a time. Reading needs an extra copy of only one tensor
  /// in f32. A mapped file must not change: append() throws io::FileError if it has become shorter. The constructor
  /// throws:
  /// - io::FileError if the tensors do not fit the model's config
  /// - Error if the options do not fit the config
  /// - std::bad_alloc if memory runs out
  CachedDecoder(const ModelFile& file, const CachedDecoderOptions& options);
  /// Copies parameters(total), which have the layout of ParameterTable(config). Throws Error if `config` is not valid
  /// or does not fit the options. Throws std::bad_alloc if memory runs out.
  CachedDecoder(const DecoderConfig& config, const float* parameters, const CachedDecoderOptions& options);
  ~CachedDecoder();
  CachedDecoder(const CachedDecoder&) = delete;
  CachedDecoder& operator=(const CachedDecoder&) = delete;

  /// Appends T ≥ 1 new tokens, tokens(B,T), to the sequences. Computes logits(B,V) for the token that follows. Throws
  /// Error, without any effect, for wrong shapes, tokens outside the vocabulary, and more than capacity() tokens. After
  /// std::bad_alloc, length() tells how many tokens were appended.
  void append(View<float, 2> logits, View<const std::int32_t, 2> tokens);
  /// Appends tokens as append() does. Computes logits(B,T,V), one row after every new token.
  void append_all(View<float, 3> logits, View<const std::int32_t, 2> tokens);

  /// Returns the current number of tokens per sequence.
  std::int64_t length() const;
  /// Truncates each sequence to its first `length` tokens. The state is then bitwise the same as before the other
  /// tokens were appended. Throws Error unless `length` is in [0, length()] and reachable(length) == length.
  void truncate(std::int64_t length);
  /// Returns the largest number of tokens, at most `length`, to which truncate() can shorten the sequences. It can
  /// always shorten them to 0 tokens, and always drop up to CachedDecoderOptions::keep tokens. Which further lengths
  /// are possible depends on the types of the model's layers:
  /// - full attention: all lengths
  /// - sliding window: lengths after which the next token sees only keys that are still cached
  /// - recurrent: the length before the last pass, and marked lengths
  std::int64_t reachable(std::int64_t length) const;
  /// Saves the current length as a mark, to which truncate() can go back. The number of newest marks that stay valid
  /// depends on the layer:
  /// - recurrent layers: `most` ≥ 1 marks; each mark stores one state
  /// - layers with a sliding window: one mark; all keys and values after the mark are kept
  ///
  /// After std::bad_alloc, only some layers have the mark. Decoding can continue.
  void mark(std::int64_t most);

  const DecoderConfig& config() const;
  /// Returns the options. `capacity` and `context` have actual values in place of defaults.
  const CachedDecoderOptions& options() const;
  std::int64_t capacity() const;
  /// Returns the maximum number of tokens per sequence that one pass still computes in f32.
  std::int64_t most_unrounded() const;

  /// Returns whether matrices are read in place from the model's files.
  bool reads_in_place() const;
  /// Returns the size of all weights in bytes, including mapped weights.
  std::size_t weight_bytes() const;
  /// Returns the size in bytes of the caches of all layers, including free pages.
  std::size_t cache_bytes() const;
  /// Returns the number of bytes read to compute one more token per sequence. These are the weights, and the keys and
  /// values that the token attends to. The number is an upper bound, because it assumes that all sequences choose
  /// different experts.
  std::size_t step_bytes() const;
  /// Returns the number of rows that the gate threshold has skipped so far, and the time spent in attention.
  const layers::AttentionSkip& skipped() const;

 private:
  struct State;
  template <typename M>
  struct StateOf;
  static std::unique_ptr<State> open(const ModelFile& file, CachedDecoderOptions options);
  std::unique_ptr<State> state_;
};

}  // namespace headgate::models
