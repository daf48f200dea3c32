// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "models/decoder.hpp"

// What a model does while it is evaluated, gathered layer by layer from q, k and the log-sum-exp: the attention on
// token 0 needs no T×S buffer. Query 0 sees itself alone and is left out of every attention and gate figure of a
// position; sequences of one token therefore have none.

namespace headgate::models {

/// Attention, gate and activation figures of one layer, or of the model.
struct AttentionStatistics {
  double first_token_attention = 0.0;          ///< on token 0, mean over sequences, heads and queries 1 … T−1
  double first_token_attention_uniform = 0.0;  ///< the same mean if every query looked at all it sees alike
  double sink_rate = 0.0;           ///< share of heads whose mean attention to token 0 exceeds kSinkThreshold
  double massive_activation = 0.0;  ///< largest |residual stream| after the layer; model: mean over layers
  std::optional<double> gate_mean;  ///< of g(z) over tokens (all of them), heads and features; none without a gate
  std::optional<double> gate_below_tenth;      ///< share of g(z) below 0.1
  std::optional<double> gate_below_hundredth;  ///< share of g(z) below 0.01
};

inline constexpr double kSinkThreshold = 0.3;

/// A mean loss in the units that people read.
struct LossFigures {
  double nats = 0.0;
  double bits_per_token = 0.0;  ///< nats / ln 2: bits per byte where tokens are bytes
  double perplexity = 0.0;      ///< e^nats
};

/// `loss` of a layer: of the model that ends after it (LayerView::exit_loss).
struct Figures {
  LossFigures loss;
  AttentionStatistics attention;
};

/// False where the layer, or the model, has met a NaN or an infinity.
bool is_finite(const Figures& figures);

/// A NaN in a model's activations is a NaN in each figure that it reaches.
struct EvaluationReport {
  Figures overall;
  std::vector<Figures> layers;
};

/// Bigram-backcopy (arXiv 2410.13835), positions apart by whether their token is a trigger: the next token then copies
/// the one before. Means over layers and heads; query 0 (BOS) is left out of attention and gate.
struct BackcopyReport {
  double bos_attention_trigger = 0.0;
  double bos_attention_other = 0.0;
  std::optional<double> gate_trigger;
  std::optional<double> gate_other;
  double loss_trigger = 0.0;
  double loss_other = 0.0;  ///< position 0 included
  double bos_value_norm_ratio = 0.0;  ///< ‖v₀‖ over the mean ‖v_j‖, j ≥ 1, as the weighted sum sees v; mean over heads
};

/// Evaluates a model on batches, one after the other, and sums up.
template <typename T>
class Evaluator : private LayerObserver<T> {
 public:
  /// `decoder` is used, not kept beyond the evaluator's life.
  explicit Evaluator(Decoder<T>& decoder);
  ~Evaluator() override;

  /// tokens(N), targets(N) as in Decoder::loss. triggers(N), if not null: nonzero where the position's token is a
  /// trigger; every batch or none has them.
  void add(const T* parameters, const std::int32_t* tokens, const std::int32_t* targets,
           const std::uint8_t* triggers = nullptr);

  EvaluationReport report() const;
  /// Empty when no batch had triggers.
  std::optional<BackcopyReport> backcopy() const;

 private:
  void after_layer(const LayerView<T>& view) override;

  struct Sums;
  Decoder<T>& decoder_;
  std::unique_ptr<Sums> sums_;
};

}  // namespace headgate::models
