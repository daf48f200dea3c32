// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/core/enum_set.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"
#include "models/decoder/config.hpp"
#include "models/decoder/parameters.hpp"
#include "models/layers/attention_skip.hpp"
#include "models/layers/head_override.hpp"

namespace headgate::models {

/// batch sequences of seq tokens; N = batch · seq.
struct BatchShape {
  std::int64_t batch = 1;
  std::int64_t seq = 1;
};

/// train: what the backward pass needs is kept for every layer. evaluate: layers take turns in the same memory.
enum class Purpose { train, evaluate };

/// Parts of a LayerView; an observer names those that it wants.
enum class Tap { scores, gate_logits, values, head_outputs, output, exit_loss };
using Taps = EnumSet<Tap>;

/// What a layer holds right after its forward pass, for observers. Valid during the call alone. Parts that the observer
/// did not name are absent.
template <typename T>
struct LayerView {
  std::int64_t layer = 0;
  BatchShape shape;
  // Tap::scores
  double scale = 1.0;       ///< of the scores q·k
  View<const T, 3> q;       ///< (N,Hq,D), as the scores see it: after gate, norm and RoPE
  View<const T, 3> k;       ///< (N,Hkv,D), likewise
  View<const T, 3> lse;     ///< (B,Hq,T) natural log-sum-exp of the scores, sink included
  View<const T, 1> sinks;   ///< (Hq) scores beside those of the keys; absent without
  std::int64_t window = 0;  ///< keys that a query sees, itself the last of them; 0: all before it
  // Tap::values
  View<const T, 3> v;  ///< (N,Hkv,D), as the weighted sum sees it
  // Tap::gate_logits
  View<const T, 3> gate;  ///< z (N,heads,features), raw logits; absent without a gate. Tokens lie at stride 0 for an
                          ///< input-independent gate
  // Tap::head_outputs
  View<const T, 3> head_outputs;  ///< (N,Hq,D) what W_o reads: after a gate on them and a control
  // Tap::output
  View<const T, 2> output;  ///< (N,dim) the residual stream after the layer
  // Tap::exit_loss, which costs the last norm and the head of the vocabulary once more
  std::optional<double>
      exit_loss;  ///< of the model that ends here: last norm and logits on `output`, mean −log p(target)
};

template <typename T>
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  /// Asked once for each pass.
  virtual Taps taps() const = 0;
  virtual void after_layer(const LayerView<T>& view) = 0;
};

/// Heads of one layer that write something else, and where the pass starts.
template <typename T>
struct LayerOverride {
  std::int64_t layer = 0;
  layers::HeadOverride<T> heads;
  /// (N,dim), dense: the residual stream that the layer reads, from a pass over the same tokens. The layers before it
  /// are then left out; absent: none are.
  View<const T, 2> input{};
};

/// One named share of a decoder's working memory.
using MemoryItem = WorkspaceItem;

/// Runs a model on batches of one shape. Parameters and gradients are the caller's, flat, as ParameterTable lays them
/// out. All working memory is planned and taken by the constructor; after the first call no call takes more, but for
/// the attention kernels' scratch where that exceeds the 32 MiB that the calling thread keeps for them. Runs as its
/// context says, with the same bits at the same number of threads. A pass that the context cancels throws Cancelled
/// between two products or within attention; the next pass is not affected, and gradients may have been added in part.
template <typename T>
class Decoder {
 public:
  /// Throws Error when config is not valid or shape.seq exceeds config.seq_len; std::bad_alloc when memory runs out.
  Decoder(const DecoderConfig& config, BatchShape shape, Purpose purpose, const ExecutionContext& context = {});
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const DecoderConfig& config() const;
  const ParameterTable& table() const;
  BatchShape shape() const;
  const ExecutionContext& context() const;  ///< resolved()

  /// Mean over the targets that count of −log p(target), in nats. tokens(N) in [0, vocab); targets(N) likewise or
  /// layers::kIgnoredTarget. token_losses(N) = each token's loss (null: not written). The observer sees every layer.
  /// With `skip`, attention leaves out rows whose gate is closed; throws Error where its threshold is above 0 and the
  /// gate does not multiply the attention output.
  double loss(const T* parameters, const std::int32_t* tokens, const std::int32_t* targets,
              LayerObserver<T>* observer = nullptr, T* token_losses = nullptr, layers::AttentionSkip* skip = nullptr);

  /// The same loss where heads of a layer write something else. Throws Error where the layer or a head does not exist,
  /// and on factors without their memory or of a gate that does not multiply the attention output.
  double loss_with(const LayerOverride<T>& replaced, const T* parameters, const std::int32_t* tokens,
                   const std::int32_t* targets);

  /// out(N,vocab) = log p of every token that could follow each of tokens(N), in nats.
  void log_probabilities(T* out, const T* parameters, const std::int32_t* tokens);

  /// The same loss as loss(); gradients(total) += gradient_scale · its gradient. For Purpose::train. Gradient
  /// accumulation over A batches: gradient_scale 1/A.
  double loss_and_gradients(T* gradients, const T* parameters, const std::int32_t* tokens, const std::int32_t* targets,
                            double gradient_scale = 1.0, T* token_losses = nullptr);

  /// The memory_plan() that a decoder would have, for the asking; throws as the constructor does, but takes nothing.
  static std::vector<MemoryItem> planned_memory(const DecoderConfig& config, BatchShape shape, Purpose purpose);

  /// Working memory by purpose, parameters and gradients not included; the items add up to memory_bytes().
  std::vector<MemoryItem> memory_plan() const;
  std::size_t memory_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headgate::models
