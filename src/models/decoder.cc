// SPDX-License-Identifier: Apache-2.0
#include "models/decoder.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.hpp"
#include "layers/buffer_plan.hpp"
#include "layers/cross_entropy.hpp"
#include "layers/elementwise.hpp"
#include "layers/embedding.hpp"
#include "layers/gated_attention.hpp"
#include "layers/linear.hpp"
#include "layers/rmsnorm.hpp"
#include "layers/swiglu.hpp"
#include "models/weights.hpp"

namespace headgate::models {

namespace {

using layers::LinearShape;
using layers::rows_view;
using layers::Store;

/// Logits of one chunk: 16 MiB in f32, half of a third-level cache of 32 MiB, in which they are written, turned into
/// their gradient, and read by two products.
constexpr std::int64_t kLogitElements = std::int64_t{1} << 22;
/// Rows of a chunk at least, whatever the vocabulary: each weight of the head, 4 bytes, then serves 128 operations, and
/// a core that does 118 GFLOP/s asks memory for no more than 3.7 GB/s.
constexpr std::int64_t kLeastLogitRows = 64;

layers::GatedAttentionShape attention_shape(const DecoderConfig& config, BatchShape shape) {
  layers::GatedAttentionShape out;
  out.B = shape.batch;
  out.T = shape.seq;
  out.C = config.dim;
  out.Hq = config.heads;
  out.Hkv = config.kv_heads;
  out.D = config.head_dim;
  out.rotary_dim = rotary_dim(config);
  out.rope_base = config.rope_base;
  out.qk_norm = config.qk_norm;
  out.norm = {.kind = config.norm, .eps = config.norm_eps};
  out.gate = config.gate;
  return out;
}

void check_tokens(const char* what, const std::int32_t* tokens, std::int64_t N, std::int64_t vocab,
                  std::int32_t least) {
  for (std::int64_t n = 0; n < N; ++n) {
    require(tokens[n] >= least && tokens[n] < vocab, "decoder: {}[{}] is {}, outside a vocabulary of {}", what, n,
            tokens[n], vocab);
  }
}

}  // namespace

/// What one layer keeps from its forward to its backward pass.
template <typename T>
struct SavedLayer {
  T* x = nullptr;                   // (N,C) the layer's input: the residual stream
  T* rstd = nullptr;                // (N)
  T* h = nullptr;                   // (N,C) normed x
  T* attention_out = nullptr;       // (N,C) before its sandwich norm
  T* attention_out_rstd = nullptr;  // (N)
  T* x_middle = nullptr;            // (N,C) the residual stream after attention
  T* rstd_middle = nullptr;         // (N)
  T* h_middle = nullptr;            // (N,C) normed x_middle
  T* gate_up = nullptr;             // (N,2F); the backward pass leaves its gradient here
  T* mlp_out = nullptr;             // (N,C) before its sandwich norm
  T* mlp_out_rstd = nullptr;        // (N)
  layers::AttentionSavedState<T> attention;
};

template <typename T>
struct Decoder<T>::State {
  State(const DecoderConfig& config_in, BatchShape shape_in, Purpose purpose_in);

  DecoderConfig config;
  ParameterTable table;
  WeightPlaces places;
  BatchShape shape;
  Purpose purpose;
  std::int64_t N, C, F, logit_rows;
  layers::NormOptions norm;
  layers::GatedAttention<T> attention;
  layers::BufferPlan plan;

  std::vector<SavedLayer<T>> saved;  // one a layer; one in all for Purpose::evaluate
  T* x_last = nullptr;               // (N,C) the residual stream after the last layer
  T* rstd_last = nullptr;            // (N)
  T* h_last = nullptr;               // (N,C) normed x_last
  T* activation = nullptr;           // (N,F) silu(gate)∘up; in the backward pass its gradient, then itself again
  T* logits = nullptr;               // (logit_rows,vocab), then their gradient
  T* dx = nullptr;                   // (N,C) gradient of the residual stream
  T* dh = nullptr;                   // (N,C) gradient of a normed tensor
  T* dout = nullptr;                 // (N,C) gradient of an output before its sandwich norm

  bool sandwich() const { return config.norm_placement == NormPlacement::sandwich; }
  SavedLayer<T>& saved_of(std::int64_t layer) {
    return saved[purpose == Purpose::train ? static_cast<std::size_t>(layer) : 0];
  }
  /// Where a layer leaves the residual stream: the next one's input.
  T* output_of(std::int64_t layer) { return layer + 1 < config.layers ? saved_of(layer + 1).x : x_last; }
  layers::HeadShape rows() const { return {N, 1, C}; }

  void plan_memory();
  void take_memory();
  std::vector<MemoryItem> planned() const;
  void plan_layer(SavedLayer<T>& layer);

  void forward(const T* parameters, const std::int32_t* tokens, const std::int32_t* targets,
               LayerObserver<T>* observer);
  void attention_block(const LayerWeights<const T*>& w, SavedLayer<T>& s);
  void mlp_block(T* x_out, const LayerWeights<const T*>& w, SavedLayer<T>& s);
  LayerView<T> view_of(std::int64_t layer, Taps taps, const T* parameters, const std::int32_t* targets);
  double head(T* gradients, const T* parameters, const std::int32_t* targets, double gradient_scale, T* token_losses);

  void backward(T* gradients, const T* parameters, const std::int32_t* tokens);
  void mlp_backward(const LayerWeights<T*>& g, const LayerWeights<const T*>& w, SavedLayer<T>& s);
  void attention_backward(const LayerWeights<T*>& g, const LayerWeights<const T*>& w, SavedLayer<T>& s);

  void norm_forward(T* y, T* rstd, const T* x, const T* w) const {
    layers::rmsnorm_forward(rows_view(y, C), rstd, rows_view(x, C), w, rows(), norm);
  }
  void norm_backward(T* dx_out, T* dw, const T* dy, const T* x, const T* w, const T* rstd, Store store) const {
    layers::rmsnorm_backward(rows_view(dx_out, C), dw, rows_view(dy, C), rows_view(x, C), w, rstd, rows(), norm, store);
  }
};

// --- memory ------------------------------------------------------------------------------------------------------

template <typename T>
Decoder<T>::State::State(const DecoderConfig& config_in, BatchShape shape_in, Purpose purpose_in)
    : config(config_in),
      table(config_in),
      places(config_in),
      shape(shape_in),
      purpose(purpose_in),
      N(shape_in.batch * shape_in.seq),
      C(config_in.dim),
      F(config_in.ffn),
      logit_rows(std::min(N, std::max(kLeastLogitRows, kLogitElements / config_in.vocab))),
      norm{.kind = config_in.norm, .eps = config_in.norm_eps},
      attention(attention_shape(config_in, shape_in)) {
  plan_memory();
}

template <typename T>
void Decoder<T>::State::plan_memory() {
  saved.resize(purpose == Purpose::train ? static_cast<std::size_t>(config.layers) : 1);
  for (SavedLayer<T>& layer : saved) plan_layer(layer);
  attention.plan_shared(plan, purpose == Purpose::train);
  plan.add("residual stream and norms", x_last, N * C);
  plan.add("residual stream and norms", rstd_last, N);
  plan.add("residual stream and norms", h_last, N * C);
  plan.add("MLP, one layer", activation, N * F);
  plan.add("logits, a chunk", logits, logit_rows * config.vocab);
  if (purpose == Purpose::train) {
    plan.add("gradient of the stream", dx, N * C);
    plan.add("gradient of the stream", dh, N * C);
    if (sandwich()) plan.add("gradient of the stream", dout, N * C);
  }
}

template <typename T>
void Decoder<T>::State::take_memory() {
  plan.allocate();
  attention.prepare();
}

template <typename T>
std::vector<MemoryItem> Decoder<T>::State::planned() const {
  std::vector<MemoryItem> items;
  for (const auto& item : plan.items()) items.push_back({item.name, item.bytes});
  return items;
}

template <typename T>
void Decoder<T>::State::plan_layer(SavedLayer<T>& s) {
  const std::string stream = "residual stream and norms";
  plan.add(stream, s.x, N * C);
  plan.add(stream, s.rstd, N);
  plan.add(stream, s.h, N * C);
  plan.add(stream, s.x_middle, N * C);
  plan.add(stream, s.rstd_middle, N);
  plan.add(stream, s.h_middle, N * C);
  if (sandwich()) {
    plan.add(stream, s.attention_out, N * C);
    plan.add(stream, s.attention_out_rstd, N);
    plan.add(stream, s.mlp_out, N * C);
    plan.add(stream, s.mlp_out_rstd, N);
  }
  attention.plan_saved(plan, s.attention);
  plan.add("MLP, saved", s.gate_up, N * 2 * F);
}

// --- forward -----------------------------------------------------------------------------------------------------

template <typename T>
void Decoder<T>::State::forward(const T* parameters, const std::int32_t* tokens, const std::int32_t* targets,
                                LayerObserver<T>* observer) {
  const Taps taps = observer != nullptr ? observer->taps() : Taps{};
  layers::embedding_forward(saved_of(0).x, places.outer(parameters).embedding, tokens, N, C);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const LayerWeights<const T*> w = places.layer(layer, parameters);
    SavedLayer<T>& s = saved_of(layer);
    attention_block(w, s);
    mlp_block(output_of(layer), w, s);
    if (observer != nullptr) observer->after_layer(view_of(layer, taps, parameters, targets));
  }
  norm_forward(h_last, rstd_last, x_last, places.outer(parameters).norm);
}

template <typename T>
void Decoder<T>::State::attention_block(const LayerWeights<const T*>& w, SavedLayer<T>& s) {
  norm_forward(s.h, s.rstd, s.x, w.input_norm);
  if (sandwich()) {
    attention.forward(s.attention_out, s.h, w.attention, s.attention, Store::overwrite);
    norm_forward(s.x_middle, s.attention_out_rstd, s.attention_out, w.attention_out_norm);
    layers::add_to(s.x_middle, s.x, N * C);
  } else {
    layers::copy_to(s.x_middle, s.x, N * C);
    attention.forward(s.x_middle, s.h, w.attention, s.attention, Store::add);
  }
}

template <typename T>
void Decoder<T>::State::mlp_block(T* x_out, const LayerWeights<const T*>& w, SavedLayer<T>& s) {
  norm_forward(s.h_middle, s.rstd_middle, s.x_middle, w.middle_norm);
  layers::linear_forward(s.gate_up, s.h_middle, w.gate_up, {.N = N, .C = C, .O = 2 * F});
  layers::swiglu_forward(activation, s.gate_up, N, F);
  const LinearShape down{.N = N, .C = F, .O = C};
  if (sandwich()) {
    layers::linear_forward(s.mlp_out, activation, w.down, down);
    norm_forward(x_out, s.mlp_out_rstd, s.mlp_out, w.mlp_out_norm);
    layers::add_to(x_out, s.x_middle, N * C);
  } else {
    layers::copy_to(x_out, s.x_middle, N * C);
    layers::linear_forward(x_out, activation, w.down, down, Store::add);
  }
}

template <typename T>
LayerView<T> Decoder<T>::State::view_of(std::int64_t layer, Taps taps, const T* parameters,
                                        const std::int32_t* targets) {
  const layers::AttentionSavedState<T>& s = saved_of(layer).attention;
  LayerView<T> view;
  view.layer = layer;
  view.shape = shape;
  if (taps.has(Tap::scores)) {
    view.scale = attention.scale();
    view.q = attention.query(s);
    view.k = attention.key(s);
    view.lse = s.lse;
  }
  if (taps.has(Tap::values)) view.v = attention.value(s);
  if (taps.has(Tap::gate_logits)) {
    const layers::GateLogits logits_shape =
        layers::gate_logits(config.gate, C, config.heads, config.kv_heads, config.head_dim);
    view.gate = attention.logits(places.layer(layer, parameters).attention, s);
    view.gate_heads = logits_shape.heads;
    view.gate_features = logits_shape.features;
  }
  if (taps.has(Tap::output)) view.output = output_of(layer);
  if (taps.has(Tap::exit_loss)) {
    norm_forward(h_last, rstd_last, output_of(layer), places.outer(parameters).norm);
    view.exit_loss = head(nullptr, parameters, targets, 0.0, nullptr);
  }
  return view;
}

/// The loss from h_last, a chunk of logits at a time. With gradients: the head's weights +=, dx = gradient of h_last.
template <typename T>
double Decoder<T>::State::head(T* gradients, const T* parameters, const std::int32_t* targets, double gradient_scale,
                               T* token_losses) {
  const std::int64_t V = config.vocab;
  const auto counted = [targets](std::int64_t first, std::int64_t last) {
    return static_cast<double>(last - first - std::count(targets + first, targets + last, layers::kIgnoredTarget));
  };
  const double total = counted(0, N);
  double loss = 0.0;
  for (std::int64_t first = 0; first < N; first += logit_rows) {
    const std::int64_t rows_here = std::min(logit_rows, N - first);
    const double share = total > 0.0 ? counted(first, first + rows_here) / total : 0.0;
    const LinearShape read{.N = rows_here, .C = C, .O = V};
    const T* h = h_last + first * C;
    layers::linear_forward(logits, h, places.outer(parameters).head, read);
    loss += share * layers::cross_entropy(token_losses == nullptr ? nullptr : token_losses + first,
                                          gradients == nullptr ? nullptr : logits, logits, targets + first, rows_here,
                                          V, gradient_scale * share);
    if (gradients != nullptr) {
      layers::linear_backward(dx + first * C, places.outer(gradients).head, logits, h, places.outer(parameters).head,
                              read);
    }
  }
  return loss;
}

// --- backward ----------------------------------------------------------------------------------------------------

/// From dx = gradient of h_last to the gradients of all parameters (+=).
template <typename T>
void Decoder<T>::State::backward(T* gradients, const T* parameters, const std::int32_t* tokens) {
  norm_backward(dx, places.outer(gradients).norm, dx, x_last, places.outer(parameters).norm, rstd_last,
                Store::overwrite);
  for (std::int64_t layer = config.layers - 1; layer >= 0; --layer) {
    const LayerWeights<const T*> w = places.layer(layer, parameters);
    const LayerWeights<T*> g = places.layer(layer, gradients);
    mlp_backward(g, w, saved_of(layer));
    attention_backward(g, w, saved_of(layer));
  }
  layers::embedding_backward(places.outer(gradients).embedding, dx, tokens, N, C);
}

/// dx: from the gradient of the layer's output to that of x_middle.
template <typename T>
void Decoder<T>::State::mlp_backward(const LayerWeights<T*>& g, const LayerWeights<const T*>& w, SavedLayer<T>& s) {
  const T* d = dx;
  if (sandwich()) {
    norm_backward(dout, g.mlp_out_norm, dx, s.mlp_out, w.mlp_out_norm, s.mlp_out_rstd, Store::overwrite);
    d = dout;
  }
  const LinearShape down{.N = N, .C = F, .O = C};
  layers::linear_backward<T>(activation, nullptr, d, nullptr, w.down, down);
  layers::swiglu_backward(s.gate_up, activation, activation, s.gate_up, N, F);
  layers::linear_backward<T>(nullptr, g.down, d, activation, w.down, down);
  layers::linear_backward(dh, g.gate_up, s.gate_up, s.h_middle, w.gate_up, {.N = N, .C = C, .O = 2 * F});
  norm_backward(dx, g.middle_norm, dh, s.x_middle, w.middle_norm, s.rstd_middle, Store::add);
}

/// dx: from the gradient of x_middle to that of the layer's input.
template <typename T>
void Decoder<T>::State::attention_backward(const LayerWeights<T*>& g, const LayerWeights<const T*>& w,
                                           SavedLayer<T>& s) {
  const T* d = dx;
  if (sandwich()) {
    norm_backward(dout, g.attention_out_norm, dx, s.attention_out, w.attention_out_norm, s.attention_out_rstd,
                  Store::overwrite);
    d = dout;
  }
  attention.backward(dh, g.attention, d, s.h, w.attention, s.attention);
  norm_backward(dx, g.input_norm, dh, s.x, w.input_norm, s.rstd, Store::add);
}

// --- the class ---------------------------------------------------------------------------------------------------

namespace {

/// Working memory whose bytes can be counted in 63 bits. Bounds the sum of all widths of all layers' rows from above.
void require_countable(const DecoderConfig& c, BatchShape shape) {
  constexpr double kMost = 0x1p57;  // numbers
  const auto of = [](std::int64_t size) { return static_cast<double>(size); };
  const double q_width = of(c.heads) * of(c.head_dim), kv_width = of(c.kv_heads) * of(c.head_dim);
  const double row = 12.0 * of(c.dim) + 10.0 * q_width + 6.0 * kv_width + 3.0 * of(c.ffn);
  const double numbers = of(shape.batch) * of(shape.seq) * of(c.layers + 2) * row;
  require(numbers <= kMost, "decoder: a batch of {} x {} tokens takes about {:.3g} numbers of working memory",
          shape.batch, shape.seq, numbers);
}

/// Before any size is multiplied.
const DecoderConfig& checked(const DecoderConfig& config, BatchShape shape) {
  validate(config);
  require(shape.seq >= 1 && shape.seq <= config.seq_len, "decoder: sequences of {} tokens, the config's seq_len is {}",
          shape.seq, config.seq_len);
  constexpr std::int64_t kMaxBatch = std::int64_t{1} << 20;
  require(shape.batch >= 1 && shape.batch <= kMaxBatch, "decoder: a batch of {}, not between 1 and {}", shape.batch,
          kMaxBatch);
  require_countable(config, shape);
  return config;
}

}  // namespace

template <typename T>
Decoder<T>::Decoder(const DecoderConfig& config, BatchShape shape, Purpose purpose)
    : state_(std::make_unique<State>(checked(config, shape), shape, purpose)) {
  state_->take_memory();
}

template <typename T>
std::vector<MemoryItem> Decoder<T>::planned_memory(const DecoderConfig& config, BatchShape shape, Purpose purpose) {
  return State(checked(config, shape), shape, purpose).planned();
}

template <typename T>
Decoder<T>::~Decoder() = default;

template <typename T>
const DecoderConfig& Decoder<T>::config() const {
  return state_->config;
}

template <typename T>
const ParameterTable& Decoder<T>::table() const {
  return state_->table;
}

template <typename T>
BatchShape Decoder<T>::shape() const {
  return state_->shape;
}

template <typename T>
double Decoder<T>::loss(const T* parameters, const std::int32_t* tokens, const std::int32_t* targets,
                        LayerObserver<T>* observer, T* token_losses) {
  State& s = *state_;
  check_tokens("tokens", tokens, s.N, s.config.vocab, 0);
  check_tokens("targets", targets, s.N, s.config.vocab, layers::kIgnoredTarget);
  s.forward(parameters, tokens, targets, observer);
  return s.head(nullptr, parameters, targets, 0.0, token_losses);
}

template <typename T>
double Decoder<T>::loss_and_gradients(T* gradients, const T* parameters, const std::int32_t* tokens,
                                      const std::int32_t* targets, double gradient_scale, T* token_losses) {
  State& s = *state_;
  require(s.purpose == Purpose::train, "decoder: gradients asked of a decoder made for evaluation");
  check_tokens("tokens", tokens, s.N, s.config.vocab, 0);
  check_tokens("targets", targets, s.N, s.config.vocab, layers::kIgnoredTarget);
  s.forward(parameters, tokens, targets, nullptr);
  const double loss = s.head(gradients, parameters, targets, gradient_scale, token_losses);
  s.backward(gradients, parameters, tokens);
  return loss;
}

template <typename T>
std::vector<MemoryItem> Decoder<T>::memory_plan() const {
  return state_->planned();
}

template <typename T>
std::size_t Decoder<T>::memory_bytes() const {
  return state_->plan.bytes();
}

template class Decoder<float>;
template class Decoder<double>;

}  // namespace headgate::models
