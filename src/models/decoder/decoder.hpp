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
#include "models/layers/arguments.hpp"
#include "models/layers/attention_skip.hpp"
#include "models/layers/head_override.hpp"

namespace headgate::models {

using layers::Wide;

/// batch sequences of seq tokens; N = batch · seq.
struct BatchShape {
  std::int64_t batch = 1;
  std::int64_t seq = 1;
};

/// How a decoder walks a sequence that is longer than a part: all parts pass through a layer, one after another, before
/// the next layer begins. Of the whole sequence it keeps the residual stream, and the keys and values of one layer.
struct PartOptions {
  std::int64_t tokens = 0;  ///< of a part; 0: sequences are not cut
  /// Keeps, of a sequence in parts, what the delta rule of one layer reads: Tap::kept_rule of models that have such a
  /// layer needs it.
  bool keeps_rule = false;
};

/// Returns the tokens that pass through a layer at a time: those of a part, or the batch if its sequences are not cut.
BatchShape part_shape(BatchShape shape, const PartOptions& parts);

/// train: keeps what the backward pass needs for every layer. train_gates: does so too, but the backward pass computes
/// no gradients of matrices other than the gates'. evaluate: all layers use the same memory in turn.
enum class Purpose { train, train_gates, evaluate };

/// Parts of a LayerView. An observer names those that it needs.
enum class Tap { scores, kept_rule, gate_logits, values, head_outputs, output, exit_loss };
using Taps = EnumSet<Tap>;

/// Shows an observer a layer's activations right after its forward pass. Valid during the call only. Parts that the
/// observer did not name are absent. A layer of linear attention has value heads in place of query heads: Hv, Dv. If
/// sequences are walked in parts, it shows a part of one sequence: N is then its tokens. W: f32 or f64. Activations in
/// bf16 are widened, but for inputs of operations, which are as the layer has read them.
template <typename W>
struct LayerView {
  std::int64_t layer = 0;
  BatchShape shape;                 ///< of the tokens that it shows
  std::int64_t first_position = 0;  ///< position of the first of them in its sequence
  std::int64_t seq_len = 1;         ///< tokens of a whole sequence
  LayerType type = LayerType::full_attention;
  // Tap::scores, of linear attention
  LinearAttentionInputs rule_inputs;    ///< what linear_attention_statistics takes
  LinearAttentionOptions rule_options;  ///< likewise
  // Tap::kept_rule, of linear attention, with the last token of the sequence
  LinearAttentionInputs kept_rule;  ///< rule_inputs of all tokens of the sequence; without its state
  // Tap::scores, of attention
  double scale = 1.0;  ///< of the scores q·k
  ConstTensorView q;   ///< (B,Hq,T,D) after gate, norm and RoPE
  ConstTensorView k;   ///< (B,Hkv,T,D) after gate, norm and RoPE
  /// The keys of all tokens so far, if they are those of an earlier part too; else null.
  const CacheBatch* cache = nullptr;
  View<const W, 3> lse;     ///< (B,Hq,T) natural log-sum-exp of the scores, sink included
  View<const W, 1> sinks;   ///< (Hq) sink logits; absent without sinks
  std::int64_t window = 0;  ///< keys that a query sees, including its own, the last of them; 0: all before it
  // Tap::values
  View<const W, 3> v;  ///< (N,Hkv,D) after the gate; (N,Hv,Dv) after the convolution
  // Tap::gate_logits
  View<const W, 3> gate;  ///< z (N,heads,features), raw logits; absent without a gate. Tokens lie at stride 0 for an
                          ///< input-independent gate. Of linear attention: of the output's gate, (N,Hv,Dv)
  // Tap::head_outputs
  View<const W, 3> head_outputs;  ///< (N,Hq,D) input of W_o: after a gate or control on the attention output
  // Tap::output
  View<const W, 2> output;  ///< (N,dim) the residual stream after the layer
  // Tap::exit_loss, which costs another pass through the last norm and the vocabulary head
  std::optional<double> exit_loss;  ///< mean −log p(target) of the last norm and logits on `output`

  /// Returns whether it shows the last token of a sequence.
  bool ends_sequence() const { return first_position + shape.seq == seq_len; }
};

template <typename W>
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  /// Called once for each pass.
  virtual Taps taps() const = 0;
  /// Called for each part of a layer, in order.
  virtual void after_layer(const LayerView<W>& view) = 0;
};

/// Replaces the outputs of heads of one layer, and starts the pass at it.
template <typename T>
struct LayerOverride {
  std::int64_t layer = 0;
  layers::HeadOverride<T> heads;
  /// (N,dim), dense: the layer's input, the residual stream of a pass over the same tokens. The pass then skips the
  /// layers before it; absent: no layer is skipped.
  View<const Wide<T>, 2> input{};
};

/// Names a part of a decoder's working memory and its size.
using MemoryItem = WorkspaceItem;

/// Runs a model on batches of one shape, whatever its activations are stored in: a Decoder. W: f32 or f64.
template <typename W>
class SequenceDecoder {
 public:
  virtual ~SequenceDecoder() = default;
  SequenceDecoder(const SequenceDecoder&) = delete;
  SequenceDecoder& operator=(const SequenceDecoder&) = delete;

  virtual const DecoderConfig& config() const = 0;
  virtual const ParameterTable& table() const = 0;
  virtual BatchShape shape() const = 0;
  virtual BatchShape part_shape() const = 0;            ///< the tokens that pass through a layer at a time
  virtual const ExecutionContext& context() const = 0;  ///< resolved()

  /// Returns the mean of −log p(target) over the targets that are not ignored, in nats. tokens(N) in [0, vocab);
  /// targets(N) likewise or layers::kIgnoredTarget. token_losses(N) = each token's loss (null: not written). The
  /// observer sees every layer. With `skip`, attention leaves out rows whose gate is closed; throws Error if its
  /// threshold is above 0 and the gate does not multiply the attention output.
  virtual double loss(const W* parameters, const std::int32_t* tokens, const std::int32_t* targets,
                      LayerObserver<W>* observer = nullptr, W* token_losses = nullptr,
                      layers::AttentionSkip* skip = nullptr) = 0;

  /// out(N,vocab) = log p of every token that could follow each of tokens(N), in nats.
  virtual void log_probabilities(W* out, const W* parameters, const std::int32_t* tokens) = 0;

  /// Returns the same loss as loss(); gradients(total) += gradient_scale · its gradient. Needs a purpose that
  /// trains; train_gates leaves all other matrices' gradients as they are. To accumulate gradients over A batches, pass
  /// gradient_scale 1/A.
  virtual double loss_and_gradients(W* gradients, const W* parameters, const std::int32_t* tokens,
                                    const std::int32_t* targets, double gradient_scale = 1.0,
                                    W* token_losses = nullptr) = 0;

  /// Returns the working memory by purpose, without parameters and gradients. The items add up to memory_bytes().
  virtual std::vector<MemoryItem> memory_plan() const = 0;
  virtual std::size_t memory_bytes() const = 0;

 protected:
  SequenceDecoder() = default;
};

/// Runs a model on batches of one shape. The caller owns parameters and gradients, flat, as ParameterTable lays them
/// out. The constructor plans and allocates all working memory. After the first call no call allocates more, except
/// attention scratch beyond the 32 MiB that the calling thread keeps, small tables of sequences in parts, and lists of
/// arguments of oneDNN's products of bf16. Results are bitwise identical at the same number of threads. If the context
/// cancels a pass, it throws Cancelled between two products or within attention; gradients may have been added in part,
/// and the next pass is not affected.
///
/// T is the type of activations and of the matrices in products: f32, f64, or bf16 with parameters and gradients in
/// f32. Decoder<BFloat16> rounds the matrices when a call begins. The residual stream, norms, the softmax of the logits
/// and all sums are f32, and attention multiplies by Precision::native16. Experts multiply in f32.
template <typename T>
class Decoder : public SequenceDecoder<Wide<T>> {
 public:
  /// Throws Error if config is not valid, shape.seq exceeds config.seq_len, or several sequences, or training, are to
  /// be in parts; std::bad_alloc if memory runs out.
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
  /// Returns the same loss with the outputs of some heads of a layer replaced. Throws Error if the layer or a head does
  /// not exist, if sequences are in parts, if factors lack their memory, or if they are factors of a gate that does not
  /// multiply the attention output.
  double loss_with(const LayerOverride<T>& replaced, const Wide<T>* parameters, const std::int32_t* tokens,
                   const std::int32_t* targets);

  void log_probabilities(Wide<T>* out, const Wide<T>* parameters, const std::int32_t* tokens) override;
  double loss_and_gradients(Wide<T>* gradients, const Wide<T>* parameters, const std::int32_t* tokens,
                            const std::int32_t* targets, double gradient_scale = 1.0,
                            Wide<T>* token_losses = nullptr) override;

  /// Returns the memory_plan() that a decoder would have, without allocating. Throws as the constructor does.
  static std::vector<MemoryItem> planned_memory(const DecoderConfig& config, BatchShape shape, Purpose purpose,
                                                const PartOptions& parts = {});

  std::vector<MemoryItem> memory_plan() const override;
  std::size_t memory_bytes() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Makes a Decoder<float> or Decoder<BFloat16>. Throws as its constructor does.
std::unique_ptr<SequenceDecoder<float>> make_decoder(const DecoderConfig& config, BatchShape shape, Purpose purpose,
                                                     ModelPrecision precision, const ExecutionContext& context = {},
                                                     const PartOptions& parts = {});
/// Returns the memory_plan() that it would have, without allocating.
std::vector<MemoryItem> planned_memory(const DecoderConfig& config, BatchShape shape, Purpose purpose,
                                       ModelPrecision precision, const PartOptions& parts = {});

}  // namespace headgate::models
