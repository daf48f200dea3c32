// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "headgate/cache.hpp"
#include "headgate/linear_attention.hpp"
#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"
#include "library/core/enum_set.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"
#include "models/decoder/config.hpp"
#include "models/decoder/model_precision.hpp"
#include "models/decoder/parameters.hpp"
#include "models/layers/activation_rounding.hpp"
#include "models/layers/arguments.hpp"
#include "models/layers/attention_skip.hpp"
#include "models/layers/head_override.hpp"

namespace headgate::models {

using layers::kNarrow;
using layers::Wide;

/// Shape of a batch: `batch` sequences of `seq` tokens; N = batch · seq.
struct BatchShape {
  std::int64_t batch = 1;
  std::int64_t seq = 1;
};

/// Cuts a long sequence into parts to save memory. Each layer processes all parts, one after another, before the next
/// layer begins. The decoder keeps the residual stream of the whole sequence, and the keys and values of one layer.
struct PartOptions {
  std::int64_t tokens = 0;  ///< tokens of a part; 0: sequences are not cut
  /// Keeps the inputs of the current layer's delta rule for the whole sequence. An observer that requests
  /// Tap::kept_rule needs them if the model has linear attention.
  bool keeps_rule = false;
  /// Type of the keys and values that attention reads. i8: int8 with a scale for each token and head (KvCache); the
  /// sequence is then processed in parts even if one part holds all its tokens. none: the type of activations.
  DType cache = DType::none;
  /// Number of tokens at the start of the sequence whose keys and values stay unrounded (CacheShape::whole_first). Must
  /// be 0 unless `cache` is i8.
  std::int64_t cache_first = 0;
  /// Rounds the inputs of every product with a weight matrix: projections of attention and of linear attention, MLP,
  /// router, experts and vocabulary head. Requires Purpose::evaluate and activations in f32 or f64. A scale that
  /// several tokens share also requires a batch of one sequence, with all its tokens in one part.
  layers::ActivationRounding activations = layers::ActivationRounding::none;
};

/// Returns the shape of the tokens that pass through a layer at a time: a part, or the batch if sequences are not cut.
BatchShape part_shape(BatchShape shape, const PartOptions& parts);

/// Selects what a decoder computes.
///
///   train       | forward and backward passes; saves the activations of every layer
///   train_gates | as train, but without the gradients of matrices other than the gates'
///   evaluate    | forward passes only; all layers reuse the same buffers
enum class Purpose { train, train_gates, evaluate };

/// Groups of LayerView members that an observer can request.
enum class Tap { scores, kept_rule, gate_logits, values, head_outputs, output, exit_loss };
using Taps = EnumSet<Tap>;

/// Shows an observer a layer's activations right after the layer's forward pass. Valid only during the call. Contains
/// only the members whose taps the observer requested. In linear attention, value heads Hv of Dv features take the
/// place of query heads Hq of D features. If the sequence is processed in parts, a view shows one part, and N is the
/// number of its tokens. W is f32 or f64. bf16 activations are converted to f32, except the inputs of attention and of
/// the delta rule.
template <typename W>
struct LayerView {
  std::int64_t layer = 0;
  BatchShape shape;                 ///< shape of the tokens in the view
  std::int64_t first_position = 0;  ///< position of the view's first token in its sequence
  std::int64_t seq_len = 1;         ///< length of the whole sequence in tokens
  LayerType type = LayerType::full_attention;
  // Tap::scores in layers of linear attention
  LinearAttentionInputs rule_inputs;    ///< arguments for linear_attention_statistics
  LinearAttentionOptions rule_options;  ///< options for linear_attention_statistics
  // Tap::kept_rule in layers of linear attention; absent unless the view includes the last token of the sequence
  LinearAttentionInputs kept_rule;  ///< inputs of the delta rule for all tokens of the sequence; `state` is absent
  // Tap::scores in layers of attention
  double scale = 1.0;  ///< factor of the scores q·k
  ConstTensorView q;   ///< (B,Hq,T,D) queries after gate, norm and RoPE
  ConstTensorView k;   ///< (B,Hkv,T,D) keys after gate, norm and RoPE
  /// Keys and values of all tokens so far, including earlier parts. Null if the sequence is not cut into parts.
  const CacheBatch* cache = nullptr;
  View<const W, 3> lse;     ///< (B,Hq,T) natural log-sum-exp of the scores, sink included
  View<const W, 1> sinks;   ///< (Hq) sink logits; absent without sinks
  std::int64_t window = 0;  ///< keys that a query attends to, its own included; 0: all keys up to its own
  // Tap::values
  View<const W, 3> v;  ///< values: (N,Hkv,D) after the gate, or (N,Hv,Dv) after the convolution of linear attention
  // Tap::gate_logits: logits z (N,heads,features) of the gate, or (N,Hv,Dv) of the output gate in linear attention. The
  // token stride is 0 if the gate does not depend on the input. Absent without a gate.
  View<const W, 3> gate;
  // Tap::head_outputs
  View<const W, 3> head_outputs;  ///< (N,Hq,D) input of W_o, after a gate or control of the attention output
  // Tap::output
  View<const W, 2> output;  ///< (N,dim) the residual stream after the layer
  /// (B·seq_len,dim) the residual stream of whole sequences; set in the view that ends them
  View<const W, 2> sequence_output;
  // Tap::exit_loss: costs an extra pass through the last norm and the vocabulary head
  std::optional<double> exit_loss;  ///< mean −log p(target) if the logits were computed right after this layer

  /// Returns whether the view includes the last token of its sequence.
  bool ends_sequence() const { return first_position + shape.seq == seq_len; }
};

template <typename W>
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  /// Returns the taps that the observer requests. Called once for each forward pass.
  virtual Taps taps() const = 0;
  /// Receives the view of a layer. Called in order for each layer, and for each part of a layer.
  virtual void after_layer(const LayerView<W>& view) = 0;
};

/// Replaces the outputs of some heads of one layer in a forward pass. The pass can start at that layer.
template <typename T>
struct LayerOverride {
  std::int64_t layer = 0;
  layers::HeadOverride<T> heads;
  /// (N,dim), dense: the layer's input, saved from a pass over the same tokens. If present, the forward pass skips the
  /// layers before `layer`.
  View<const Wide<T>, 2> input{};
};

/// Name and size in bytes of a part of a decoder's working memory.
using MemoryItem = WorkspaceItem;

/// Runs a model on batches of one shape: the interface of Decoder<T> for any type of activations. W, the type of
/// parameters, gradients and losses, is f32 or f64.
template <typename W>
class SequenceDecoder {
 public:
  virtual ~SequenceDecoder() = default;
  SequenceDecoder(const SequenceDecoder&) = delete;
  SequenceDecoder& operator=(const SequenceDecoder&) = delete;

  virtual const DecoderConfig& config() const = 0;
  virtual const ParameterTable& table() const = 0;
  virtual BatchShape shape() const = 0;
  virtual BatchShape part_shape() const = 0;            ///< shape of the tokens that pass through a layer at a time
  virtual const ExecutionContext& context() const = 0;  ///< resolved()

  /// Returns the mean of −log p(target) in nats over the targets that are not ignored. tokens(N) lie in [0, vocab);
  /// targets(N) may also be layers::kIgnoredTarget. Writes each token's loss to token_losses(N) unless it is null.
  /// Calls `observer`, unless it is null, after every layer. With `skip`, attention skips rows with a closed gate.
  /// Throws Error if the threshold of `skip` is above 0 and the gate does not multiply the attention output.
  virtual double loss(const W* parameters, const std::int32_t* tokens, const std::int32_t* targets,
                      LayerObserver<W>* observer = nullptr, W* token_losses = nullptr,
                      layers::AttentionSkip* skip = nullptr) = 0;

  /// Computes out(N,vocab) = log-probabilities of the token after each of tokens(N), in nats.
  virtual void log_probabilities(W* out, const W* parameters, const std::int32_t* tokens) = 0;
  /// Runs tokens(N) through the layers, for some_log_probabilities().
  virtual void run(const W* parameters, const std::int32_t* tokens) = 0;
  /// Computes out(count,vocab) from the activations of the last run(): rows first … first + count − 1 of
  /// log_probabilities(). Throws Error if these tokens are not in one part.
  virtual void some_log_probabilities(W* out, const W* parameters, std::int64_t first, std::int64_t count) = 0;

  /// Returns the same loss as loss(), and adds gradient_scale · gradient of the loss to gradients(total). Throws Error
  /// if the decoder's purpose is evaluate. With Purpose::train_gates, gradients of matrices other than the gates' do
  /// not change. To accumulate gradients over A batches, pass gradient_scale 1/A.
  virtual double loss_and_gradients(W* gradients, const W* parameters, const std::int32_t* tokens,
                                    const std::int32_t* targets, double gradient_scale = 1.0,
                                    W* token_losses = nullptr) = 0;

  /// Returns the sizes of all buffers, without parameters and gradients. The items add up to memory_bytes().
  virtual std::vector<MemoryItem> memory_plan() const = 0;
  virtual std::size_t memory_bytes() const = 0;

 protected:
  SequenceDecoder() = default;
};

/// Runs a model on batches of one shape. The caller owns the parameters and gradients, which are flat buffers in the
/// layout of ParameterTable. Results are bitwise identical at the same number of threads.
///
/// The constructor allocates all working memory. Calls after the first allocate only:
/// - small tables
/// - argument lists of oneDNN's bf16 products
/// - attention scratch beyond the 32 MiB that the calling thread keeps
///
/// If the context cancels a pass, the pass throws Cancelled between two products or within attention. The gradients are
/// then incomplete. The next pass is not affected.
///
/// T is the type of activations and of matrices in products: f32, f64 or bf16. With bf16, parameters and gradients are
/// f32, and each call first rounds the matrices. The residual stream, norms, the softmax of the logits and all sums are
/// f32. Attention uses Precision::native16, and experts compute in f32.
template <typename T>
class Decoder : public SequenceDecoder<Wide<T>> {
 public:
  /// Throws std::bad_alloc if memory runs out, and Error in these cases:
  /// - `config` is not valid, or shape.seq exceeds config.seq_len.
  /// - The model has experts, and `purpose` is not evaluate (see reason_not_trained()).
  /// - `parts` cuts a batch of several sequences, or one sequence for a purpose other than evaluate.
  /// - parts.cache is a type other than i8, or it is i8 and parts.tokens is 0.
  /// - parts.activations or parts.cache_first violates the requirements of PartOptions.
  Decoder(const DecoderConfig& config, BatchShape shape, Purpose purpose, const ExecutionContext& context = {},
          const PartOptions& parts = {});
  ~Decoder() override;

  const DecoderConfig& config() const override;
  const ParameterTable& table() const override;
  BatchShape shape() const override;
  BatchShape part_shape() const override;
  const ExecutionContext& context() const override;

  double loss(const Wide<T>* parameters, const std::int32_t* tokens, const std::int32_t* targets,
              LayerObserver<Wide<T>>* observer = nullptr, Wide<T>* token_losses = nullptr,
              layers::AttentionSkip* skip = nullptr) override;
  /// Returns the loss with the outputs of some heads of one layer replaced. Throws Error in these cases:
  /// - The layer or a head does not exist.
  /// - A tensor in `replaced` has a wrong shape.
  /// - Sequences are cut into parts.
  /// - HeadOverride::factors are present without the buffer HeadOverride::ungated.
  /// - HeadOverride::factors are present in a layer of attention, but the gate does not multiply the attention output.
  double loss_with(const LayerOverride<T>& replaced, const Wide<T>* parameters, const std::int32_t* tokens,
                   const std::int32_t* targets);

  void log_probabilities(Wide<T>* out, const Wide<T>* parameters, const std::int32_t* tokens) override;
  void run(const Wide<T>* parameters, const std::int32_t* tokens) override;
  void some_log_probabilities(Wide<T>* out, const Wide<T>* parameters, std::int64_t first, std::int64_t count) override;
  double loss_and_gradients(Wide<T>* gradients, const Wide<T>* parameters, const std::int32_t* tokens,
                            const std::int32_t* targets, double gradient_scale = 1.0,
                            Wide<T>* token_losses = nullptr) override;

  /// Returns the memory_plan() of a decoder with these arguments, without allocating. Throws Error as the constructor
  /// does, but accepts models that cannot be trained.
  static std::vector<MemoryItem> planned_memory(const DecoderConfig& config, BatchShape shape, Purpose purpose,
                                                const PartOptions& parts = {});

  std::vector<MemoryItem> memory_plan() const override;
  std::size_t memory_bytes() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Makes a Decoder<float> or Decoder<BFloat16>. Throws under the same conditions as their constructor.
std::unique_ptr<SequenceDecoder<float>> make_decoder(const DecoderConfig& config, BatchShape shape, Purpose purpose,
                                                     ModelPrecision precision, const ExecutionContext& context = {},
                                                     const PartOptions& parts = {});
/// Returns the memory_plan() of make_decoder() with the same arguments, without allocating.
std::vector<MemoryItem> planned_memory(const DecoderConfig& config, BatchShape shape, Purpose purpose,
                                       ModelPrecision precision, const PartOptions& parts = {});

}  // namespace headgate::models
