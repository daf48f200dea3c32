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

/// Shape of a batch: `batch` sequences of `seq` tokens, N = batch · seq tokens in total.
struct BatchShape {
  std::int64_t batch = 1;
  std::int64_t seq = 1;
};

/// Options for processing a long sequence in parts, which saves memory. Each layer processes all parts in order before
/// the next layer begins. Only the residual stream and one layer's keys and values are stored for the whole sequence.
struct PartOptions {
  std::int64_t tokens = 0;  ///< number of tokens per part; 0 means that sequences are not cut
  /// Whether to store the current layer's delta-rule inputs for the whole sequence. Observers that request
  /// Tap::sequence_delta_inputs need them in models with linear attention.
  bool stores_delta_inputs = false;
  /// Type in which keys and values are stored:
  /// - none: the type of activations
  /// - i8: int8 with one scale per token and head (KvCache). A sequence that fits in a single part is then processed
  ///   like a sequence that is cut.
  DType cache = DType::none;
  /// Number of tokens at the start of the sequence whose keys and values are stored unrounded
  /// (CacheShape::whole_first). Must be 0 if `cache` is none.
  std::int64_t cache_first = 0;
  /// Rounding of the inputs of every product with a weight matrix: projections of attention and linear attention, MLP,
  /// router, experts and vocabulary head. Requirements:
  /// - Any rounding requires Purpose::evaluate, and activations in f32 or f64.
  /// - If tokens share a scale, the batch must be one sequence in one part.
  layers::ActivationRounding activations = layers::ActivationRounding::none;
};

/// Returns the shape of the tokens that pass through a layer together: one part, or the batch if sequences are not cut.
BatchShape part_shape(BatchShape shape, const PartOptions& parts);

/// Selects what a decoder computes:
/// - train: forward and backward passes. Each layer has its own buffers for activations.
/// - train_gates: the same passes, but the gates' matrices are the only matrices that get gradients.
/// - evaluate: forward passes. All layers share buffers for activations.
enum class Purpose { train, train_gates, evaluate };

/// Names a group of LayerView members. An observer requests the groups that it reads (LayerObserver::taps()).
enum class Tap { scores, sequence_delta_inputs, gate_logits, values, head_outputs, output, exit_loss };
using Taps = EnumSet<Tap>;

/// Holds the activations of a layer. An observer receives the view right after the layer's forward pass. The view is
/// valid only during that call.
/// - Members that belong to a Tap are set only if the observer requested this Tap.
/// - In layers of linear attention, shapes have Hv value heads of Dv features instead of Hq query heads of D features.
/// - If the sequence is cut into parts, the view shows the N tokens of one part.
/// - W is f32 or f64. bf16 activations are converted to f32, except the inputs of attention and of the delta rule.
template <typename W>
struct LayerView {
  std::int64_t layer = 0;
  BatchShape shape;                 ///< shape of the tokens in the view
  std::int64_t first_position = 0;  ///< position of the view's first token in its sequence
  std::int64_t seq_len = 1;         ///< length of the whole sequence in tokens
  LayerType type = LayerType::full_attention;
  /// Delta-rule inputs of the view's tokens, for linear_attention_statistics. Set for Tap::scores in layers of linear
  /// attention.
  LinearAttentionInputs delta_inputs;
  LinearAttentionOptions delta_options;  ///< options for linear_attention_statistics, in layers of linear attention
  /// Delta-rule inputs of all tokens of the sequence, without `state`. If the sequence is cut, the values `v` are
  /// placeholders (SequenceMemory::delta_inputs). Set for Tap::sequence_delta_inputs in layers of linear attention, in
  /// the view with the sequence's last token.
  LinearAttentionInputs sequence_delta_inputs;
  // The members from `scale` to `window` are set for Tap::scores in layers of softmax attention.
  double scale = 1.0;  ///< factor that multiplies the scores q·k
  ConstTensorView q;   ///< (B,Hq,T,D) queries after gate, norm and RoPE
  ConstTensorView k;   ///< (B,Hkv,T,D) keys after gate, norm and RoPE
  /// Keys and values of all tokens so far, including those of earlier parts. Null if the sequence is not cut.
  const CacheBatch* cache = nullptr;
  View<const W, 3> lse;    ///< (B,Hq,T) natural log-sum-exp of the scores, including the sink
  View<const W, 1> sinks;  ///< (Hq) sink logits; absent if the model has no sinks
  /// Width of the attention window: the number of keys that a query attends to, including its own. 0 means no window.
  std::int64_t window = 0;
  /// (N,Hkv,D) values after the gate; in linear attention, (N,Hv,Dv) values after the convolution. Set for Tap::values.
  View<const W, 3> v;
  /// (N,heads,features) logits of the gate; in linear attention, (N,Hv,Dv) logits of the output gate. The token stride
  /// is 0 if the gate does not depend on the input. Absent if the model has no gate. Set for Tap::gate_logits.
  View<const W, 3> gate;
  /// (N,Hq,D) input of W_o: the attention output after gate and OutputControl. Set for Tap::head_outputs.
  View<const W, 3> head_outputs;
  View<const W, 2> output;  ///< (N,dim) the residual stream after the layer; set for Tap::output
  /// (B·seq_len,dim) the residual stream of whole sequences. Set for Tap::output in the view with the last token.
  View<const W, 2> sequence_output;
  /// Mean loss, −log p(target), if this layer were the last one. Set for Tap::exit_loss, at the cost of an extra pass
  /// through the last norm and the vocabulary head.
  std::optional<double> exit_loss;

  /// Returns whether the view includes the last token of its sequence.
  bool ends_sequence() const { return first_position + shape.seq == seq_len; }
};

template <typename W>
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  /// Returns which groups of LayerView members the observer reads. The decoder calls this once per forward pass.
  virtual Taps taps() const = 0;
  /// Receives the activations of a layer. The decoder calls this after each layer, or after each part of a sequence in
  /// each layer.
  virtual void after_layer(const LayerView<W>& view) = 0;
};

/// Replaces the outputs of some heads of one layer in a forward pass.
template <typename T>
struct LayerOverride {
  std::int64_t layer = 0;
  layers::HeadOverride<T> heads;
  /// (N,dim), dense: the input of the layer, saved from an earlier pass over the same tokens. If present, the forward
  /// pass skips all layers before this one.
  View<const Wide<T>, 2> input{};
};

/// Names one part of a decoder's working memory, and gives its size in bytes.
using MemoryItem = WorkspaceItem;

/// Runs a model on batches of one shape. This is the common interface of Decoder<T> for all types of activations. W,
/// the type of parameters, gradients and losses, is f32 or f64.
template <typename W>
class SequenceDecoder {
 public:
  virtual ~SequenceDecoder() = default;
  SequenceDecoder(const SequenceDecoder&) = delete;
  SequenceDecoder& operator=(const SequenceDecoder&) = delete;

  virtual const DecoderConfig& config() const = 0;
  virtual const ParameterTable& table() const = 0;
  virtual BatchShape shape() const = 0;
  virtual BatchShape part_shape() const = 0;            ///< shape of the tokens that pass through a layer together
  virtual const ExecutionContext& context() const = 0;  ///< resolved()

  /// Returns the mean of −log p(target) in nats over the targets that are not ignored.
  /// - tokens(N) lie in [0, vocab). targets(N) lie in [0, vocab) or are layers::kIgnoredTarget.
  /// - If `token_losses` is not null, token_losses(N) receives the loss of each token.
  /// - If `observer` is not null, it is called after every layer.
  /// - If `skip` is not null, attention skips query rows whose gate is below AttentionSkip::threshold.
  ///
  /// Throws Error if this threshold is above 0 and the gate does not multiply the attention output.
  virtual double loss(const W* parameters, const std::int32_t* tokens, const std::int32_t* targets,
                      LayerObserver<W>* observer = nullptr, W* token_losses = nullptr,
                      layers::AttentionSkip* skip = nullptr) = 0;

  /// Computes out(N,vocab): row n holds the log-probabilities, in nats, of the token that follows token n.
  virtual void log_probabilities(W* out, const W* parameters, const std::int32_t* tokens) = 0;
  /// Runs tokens(N) through the layers. some_log_probabilities() then reads the results.
  virtual void run(const W* parameters, const std::int32_t* tokens) = 0;
  /// Computes out(count,vocab): rows `first` to `first` + `count` − 1 of log_probabilities(), for the tokens of the
  /// last run(). Throws Error if these tokens are not all in one part of the sequence.
  virtual void some_log_probabilities(W* out, const W* parameters, std::int64_t first, std::int64_t count) = 0;

  /// Returns the same loss as loss(), and adds gradient_scale · its gradient to gradients(total). To accumulate
  /// gradients over A batches, pass gradient_scale = 1/A. With Purpose::train_gates, the gates'
  /// matrices are the only matrices that get gradients. Throws Error if the decoder's purpose is evaluate.
  virtual double loss_and_gradients(W* gradients, const W* parameters, const std::int32_t* tokens,
                                    const std::int32_t* targets, double gradient_scale = 1.0,
                                    W* token_losses = nullptr) = 0;

  /// Returns the size of every buffer. Parameters and gradients are not included. The sizes add up to memory_bytes().
  virtual std::vector<MemoryItem> memory_plan() const = 0;
  virtual std::size_t memory_bytes() const = 0;

 protected:
  SequenceDecoder() = default;
};

/// Runs a model on batches of one shape. The caller owns the parameters and gradients, which are flat buffers in the
/// layout of ParameterTable. Results are bitwise identical for the same number of threads.
///
/// The constructor allocates all working memory. Later calls allocate only:
/// - small tables
/// - argument lists of oneDNN's bf16 products
/// - attention scratch beyond the 32 MiB that the calling thread keeps
///
/// If the context cancels a pass, the pass throws Cancelled between two matrix products or within attention. The
/// gradients are then incomplete, but later passes are not affected.
///
/// T is the type of activations and of matrices in products: f32, f64 or bf16. With bf16:
/// - Parameters and gradients are f32. Each call first rounds the matrices to bf16.
/// - The residual stream, norms, the softmax of the logits and all sums are f32.
/// - Attention uses Precision::native16, and experts compute in f32.
template <typename T>
class Decoder : public SequenceDecoder<Wide<T>> {
 public:
  /// Throws std::bad_alloc if memory runs out. Throws Error in these cases:
  /// - `config` is not valid, or shape.seq exceeds config.seq_len.
  /// - `purpose` includes training, but the model cannot be trained (see reason_not_trained()).
  /// - `parts` cuts sequences, but the batch has several sequences or `purpose` includes training.
  /// - parts.cache is neither none nor i8, or it is i8 and parts.tokens is 0.
  /// - parts.activations or parts.cache_first violates a requirement that PartOptions states.
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

  /// Returns the memory_plan() that a decoder with these arguments would have. Allocates nothing. Throws Error as the
  /// constructor does, but accepts models that cannot be trained.
  static std::vector<MemoryItem> planned_memory(const DecoderConfig& config, BatchShape shape, Purpose purpose,
                                                const PartOptions& parts = {});

  std::vector<MemoryItem> memory_plan() const override;
  std::size_t memory_bytes() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Makes a Decoder<float> or Decoder<BFloat16>. Throws as the constructor of Decoder does.
std::unique_ptr<SequenceDecoder<float>> make_decoder(const DecoderConfig& config, BatchShape shape, Purpose purpose,
                                                     ModelPrecision precision, const ExecutionContext& context = {},
                                                     const PartOptions& parts = {});
/// Returns the memory_plan() that make_decoder() with the same arguments would give. Allocates nothing.
std::vector<MemoryItem> planned_memory(const DecoderConfig& config, BatchShape shape, Purpose purpose,
                                       ModelPrecision precision, const PartOptions& parts = {});

}  // namespace headgate::models
