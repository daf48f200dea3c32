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

// Continues sequences with a model. Keys and values of earlier tokens stay in a cache, so a new token costs one pass
// over the weights.

namespace headgate::models {

class ModelFile;

struct CachedDecoderOptions {
  /// Type of matrices in memory, f32 or bf16 (rounded to nearest even); vectors are f32. Empty: matrices of a GGUF file
  /// are read in place, in the file's blocks, unless all are f32; those of other models are bf16.
  std::optional<DType> weights = std::nullopt;
  /// How parts of 33 tokens and more are computed, of all sequences together. bf16: with activations and matrices
  /// rounded to bf16, as Decoder<BFloat16>, and the logits after them in f32. Fewer tokens are computed in f32.
  ModelPrecision precision = ModelPrecision::f32;
  DType cache = DType::f32;   ///< type of keys and values: f32, or i8 with a scale for each token and head
  std::int64_t batch = 1;     ///< B sequences, which grow together
  std::int64_t capacity = 0;  ///< most tokens of each sequence; 0: the config's seq_len
  /// Attention leaves out heads of new tokens whose gate is below this: AttentionOptions::gate_threshold.
  double gate_threshold = 0.0;
  ExecutionContext context{};
};

/// Holds B sequences of one length and the model that reads them. Computes in f32, whatever the types in memory, but
/// for CachedDecoderOptions::precision. The number of tokens per call changes results only by rounding, since few rows
/// and many use different kernels.
class CachedDecoder {
 public:
  /// Reads the weights tensor by tensor, so that only one tensor at a time is held in f32 beside them, or maps them:
  /// the file must then stay as it is, and append() throws io::FileError if it has become shorter. Throws io::FileError
  /// on a model that does not fit its config, Error on options that do not fit it, std::bad_alloc.
  CachedDecoder(const ModelFile& file, const CachedDecoderOptions& options);
  /// Copies parameters(total), as ParameterTable(config) lays them out. Throws as above.
  CachedDecoder(const DecoderConfig& config, const float* parameters, const CachedDecoderOptions& options);
  ~CachedDecoder();
  CachedDecoder(const CachedDecoder&) = delete;
  CachedDecoder& operator=(const CachedDecoder&) = delete;

  /// Reads T new tokens of each sequence, tokens(B,T), T at least 1. logits(B,V) = those of the token after the last.
  /// Throws Error, and then changes nothing, on wrong shapes, tokens outside the vocabulary and more than capacity()
  /// tokens. After std::bad_alloc, length() says how many of the tokens have been read.
  void append(View<float, 2> logits, View<const std::int32_t, 2> tokens);
  /// Does the same, with the logits after each new token, logits(B,T,V).
  void append_all(View<float, 3> logits, View<const std::int32_t, 2> tokens);

  /// Returns the number of tokens of each sequence so far.
  std::int64_t length() const;
  /// Keeps the first `length` tokens of each sequence. Throws Error beyond length(), and if attention of the next token
  /// would need keys that a sliding window has dropped. 0 is always allowed.
  void truncate(std::int64_t length);

  const DecoderConfig& config() const;
  const CachedDecoderOptions& options() const;  ///< with capacity and context resolved
  std::int64_t capacity() const;

  /// Returns whether matrices are read in place, in the blocks of a GGUF file.
  bool reads_in_place() const;
  /// Returns the bytes of all weights, mapped ones too.
  std::size_t weight_bytes() const;
  /// Returns the bytes that the caches of all layers hold now, including free pages.
  std::size_t cache_bytes() const;
  /// Returns the bytes that the next token of each sequence reads: all weights once, but of experts only those that its
  /// tokens choose, at most, and the keys and values that it sees.
  std::size_t step_bytes() const;
  /// Returns what the gate threshold left out so far, and the time of attention.
  const layers::AttentionSkip& skipped() const;

 private:
  struct State;
  template <typename M>
  struct StateOf;
  static std::unique_ptr<State> open(const ModelFile& file, CachedDecoderOptions options);
  std::unique_ptr<State> state_;
};

}  // namespace headgate::models
