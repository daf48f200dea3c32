// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/decoder.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "library/core/check.hpp"
#include "library/core/workspace.hpp"
#include "models/decoder/decoder_blocks.hpp"
#include "models/decoder/decoder_buffers.hpp"
#include "models/decoder/product_weights.hpp"
#include "models/decoder/sequence_memory.hpp"
#include "models/decoder/shown_activations.hpp"
#include "models/decoder/token_parts.hpp"
#include "models/decoder/weights.hpp"
#include "models/layers/activation_rounding.hpp"
#include "models/layers/cross_entropy.hpp"
#include "models/layers/elementwise.hpp"
#include "models/layers/embedding.hpp"
#include "models/layers/head_views.hpp"
#include "models/layers/linear.hpp"
#include "models/layers/parallel.hpp"
#include "models/layers/rmsnorm.hpp"
#include "models/layers/swiglu.hpp"

namespace headgate::models {

namespace {

using layers::Update;

void check_tokens(const char* what, const Tokens& tokens, std::int64_t vocab, std::int32_t least) {
  for (std::int64_t n = 0; n < tokens.shape[0]; ++n) {
    require(tokens(n) >= least && tokens(n) < vocab, "decoder: {}[{}] is {}, outside a vocabulary of {}", what, n,
            tokens(n), vocab);
  }
}

/// Returns the number of targets that are not ignored.
double counted(const Tokens& targets) {
  const std::int32_t* end = targets.data + targets.shape[0];
  return static_cast<double>(targets.shape[0] - std::count(targets.data, end, layers::kIgnoredTarget));
}

/// Returns `config`. Throws Error if `purpose` includes training and the decoder cannot train the model.
const DecoderConfig& require_trainable(const DecoderConfig& config, Purpose purpose) {
  const std::string reason = purpose == Purpose::evaluate ? "" : reason_not_trained(config);
  require(reason.empty(), "decoder: the model cannot be trained: {}", reason);
  return config;
}

}  // namespace

BatchShape part_shape(BatchShape shape, const PartOptions& parts) {
  return is_cut(shape, parts) ? BatchShape{1, parts.tokens} : shape;
}

template <typename T>
struct Decoder<T>::State {
  State(const DecoderConfig& config_in, BatchShape shape_in, Purpose purpose_in, const ExecutionContext& context_in,
        const PartOptions& parts_in)
      : config(require_valid(config_in, shape_in)),
        shape(shape_in),
        purpose(purpose_in),
        context(resolved(context_in)),
        table(config),
        layout(config),
        parts(config, shape, purpose, context, parts_in),
        weights(layout, table.total()),
        sizes(parts.main().sizes),
        memory(parts.main().memory),
        shown(sizes, purpose, context) {}

  DecoderConfig config;
  BatchShape shape;
  Purpose purpose;
  ExecutionContext context;
  ParameterTable table;
  WeightLayout layout;
  TokenParts<T> parts;  // constructed before `weights`: bad options then throw before the weights are allocated
  ProductWeights<T> weights;
  /// Sizes for a pass over one part of a sequence, or over the whole batch if sequences are not cut into parts. A
  /// shorter last part has sizes of its own.
  const DecoderSizes& sizes;
  /// Buffers for the same pass as `sizes`.
  const Placed<DecoderBuffers<T>, Block>& memory;
  CacheBatch keys;  ///< keys and values that observers read through LayerView::cache
  ShownActivations<T> shown;

  /// Returns views of a layer's gradients. With Purpose::train_gates, the gate's projection is the only matrix with a
  /// gradient: its rows of the fused projection attention.in are the view, and other matrices are absent.
  LayerWeights<Wide<T>> gradients_of(std::int64_t layer, Wide<T>* gradients) const {
    LayerWeights<Wide<T>> g = layout.layer(layer, gradients);
    if (purpose != Purpose::train_gates) return g;
    const LayerConfig& here = config_of(layer);
    const std::int64_t rows =
        layers::gate_logits(config.gate, config.dim, here.heads, config.kv_heads, config.head_dim).count();
    const bool reads_input = has_gate(config.gate) && config.gate.source == layers::GateSource::input;
    const View<Wide<T>, 2> none;
    const View<Wide<T>, 2>& in = g.attention.in;
    g.attention.in = in.present() && reads_input ? layers::rows_of(in, here.heads * config.head_dim, rows) : none;
    for (View<Wide<T>, 2>* matrix : {&g.attention.out, &g.delta.in, &g.delta.out, &g.gate_up, &g.down}) *matrix = none;
    return g;
  }
  /// Returns views of the gradients of tensors outside the layers. With Purpose::train_gates, the embedding and the
  /// vocabulary head are absent, because all gates are in layers.
  OuterWeights<Wide<T>> outer_gradients(Wide<T>* gradients) const {
    OuterWeights<Wide<T>> g = layout.outer(gradients);
    if (purpose == Purpose::train_gates) g.embedding = g.head = {};
    return g;
  }
  /// Returns dx in type T for matrix products. If T is bf16, rounds dx into dout and returns dout.
  View<const T, 2> gradient_of_output() const {
    if constexpr (kNarrow<T>) {
      layers::copy_to<T, Wide<T>>(memory->dout.flat(), memory->dx.flat(), context);
      return memory->dout;
    } else {
      return memory->dx;
    }
  }
  std::int64_t tokens() const { return shape.batch * shape.seq; }
  const LayerConfig& config_of(std::int64_t layer) const { return sizes.layers[static_cast<std::size_t>(layer)]; }

  void forward(const Wide<T>* parameters, const Tokens& tokens, const Tokens& targets, LayerObserver<Wide<T>>* observer,
               layers::AttentionSkip* skip, const LayerOverride<T>* replaced = nullptr);
  void check(const LayerOverride<T>& replaced) const;
  LayerView<Wide<T>> view_of(std::int64_t layer, Taps taps, const TokenPart<T>& part, const Wide<T>* parameters,
                             const Tokens& targets);
  void show_attention(LayerView<Wide<T>>& view, Taps taps, const LayerConfig& layer, const TokenPart<T>& part,
                      const layers::AttentionVectors<const Wide<T>>& vectors, const layers::AttentionState<T>& s);
  void show_delta(LayerView<Wide<T>>& view, Taps taps, const TokenPart<T>& part, const layers::DeltaNetState<T>& s);
  double loss(const Wide<T>* parameters, const Tokens& targets, Wide<T>* token_losses);
  void last_norm(const TokenPart<T>& part, ConstView<Wide<T>, 2> x, const Wide<T>* parameters) const;
  double head(Wide<T>* gradients, const TokenPart<T>& part, const Wide<T>* parameters, const Tokens& targets,
              double gradient_scale, Wide<T>* token_losses) const;

  void log_softmax(Wide<T>* out, const TokenPart<T>& part, const Wide<T>* parameters, std::int64_t begin,
                   std::int64_t count) const;

  void backward(Wide<T>* gradients, const Wide<T>* parameters, const Tokens& tokens) const;
  void mlp_backward(const LayerConfig& layer, const LayerWeights<Wide<T>>& g,
                    const LayerWeights<const Wide<T>, const T>& w, const SavedLayer<T>& s) const;
  void mixer_backward(const LayerConfig& layer, const LayerWeights<Wide<T>>& g,
                      const LayerWeights<const Wide<T>, const T>& w, const SavedLayer<T>& s) const;
  void add_input_gradient(const LayerConfig& layer, View<Wide<T>, 1> dw, ConstView<Wide<T>, 2> x,
                          ConstView<Wide<T>, 1> w, ConstView<Wide<T>, 2> rstd) const;

  /// Computes the backward pass of an RMSNorm. X is the element type of x and dx.
  template <typename X>
  void norm_backward(View<X, 2> dx, View<Wide<T>, 1> dw, ConstView<Wide<T>, 2> dy, ConstView<X, 2> x,
                     ConstView<Wide<T>, 1> w, ConstView<Wide<T>, 2> rstd, Update update) const {
    layers::rmsnorm_backward<X, Wide<T>, X>(layers::one_head(dx), dw, layers::one_head(dy), layers::one_head(x), w,
                                            rstd, sizes.norm, update, context);
  }
};

// --- forward -----------------------------------------------------------------------------------------------------

template <typename T>
void Decoder<T>::State::forward(const Wide<T>* parameters, const Tokens& tokens, const Tokens& targets,
                                LayerObserver<Wide<T>>* observer, layers::AttentionSkip* skip,
                                const LayerOverride<T>* replaced) {
  const Taps taps = observer != nullptr ? observer->taps() : Taps{};
  SequenceMemory<T>* const sequence = parts.sequence();
  require(sequence == nullptr || !taps.has(Tap::sequence_delta_inputs) || parts.options().stores_delta_inputs ||
              !sizes.linear,
          "decoder: an observer needs what the delta rule has read, which is not kept of sequences in parts");
  std::int64_t first = 0;
  if (replaced != nullptr && replaced->input.present()) {
    first = replaced->layer;
    layers::copy_to<Wide<T>>(memory->layer(first).x.flat(), replaced->input.flat(), context);
  } else {
    parts.each([&](const TokenPart<T>& part) {
      part.resources.blocks.embed(parts.saved(0, part).x, layout.outer(parameters), part.of(tokens));
    });
  }
  for (std::int64_t layer = first; layer < config.layers; ++layer) {
    const LayerConfig& c = config_of(layer);
    const LayerWeights<const Wide<T>, const T> w = weights.layer(layer, parameters);
    const bool replaces = replaced != nullptr && replaced->layer == layer;
    LayerCache* const cache = sequence != nullptr ? &sequence->begin_layer(c.type) : nullptr;
    parts.each([&](const TokenPart<T>& part) {
      const SavedLayer<T> s = parts.saved(layer, part);
      if (sequence != nullptr) part.resources.blocks.set_first_position(part.first);
      part.resources.blocks.mixer_block(
          c, w, s, {.skip = skip, .cache = cache, .replaced = replaces ? &replaced->heads : nullptr});
      part.resources.blocks.mlp_block(parts.output(layer, part), c, w, s);
      if (observer != nullptr) observer->after_layer(view_of(layer, taps, part, parameters, part.of(targets)));
    });
  }
}

/// Computes h_last = norm(x), and rounds h_last according to DecoderSizes::rounding.
template <typename T>
void Decoder<T>::State::last_norm(const TokenPart<T>& part, ConstView<Wide<T>, 2> x, const Wide<T>* parameters) const {
  const DecoderBuffers<T>& buffers = *part.resources.memory;
  part.resources.blocks.template norm<T, Wide<T>>(buffers.h_last, buffers.rstd_last, x, layout.outer(parameters).norm);
  if constexpr (!kNarrow<T>) layers::round_activations(buffers.h_last, part.resources.sizes.rounding, context);
}

template <typename T>
void Decoder<T>::State::check(const LayerOverride<T>& replaced) const {
  const layers::HeadOverride<T>& heads = replaced.heads;
  require(replaced.layer >= 0 && replaced.layer < config.layers, "decoder: an override of layer {} of {}",
          replaced.layer, config.layers);
  const LayerConfig& layer = config_of(replaced.layer);
  const bool linear = layer.type == LayerType::linear_attention;
  const std::int64_t Hq = linear ? config.linear.value_heads : layer.heads;
  const std::int64_t D = linear ? config.linear.value_dim : config.head_dim;
  require(heads.first >= 0 && heads.count >= 1 && heads.count <= Hq - heads.first,
          "decoder: an override of heads {} to {} of {}", heads.first, heads.first + heads.count - 1, Hq);
  const View<const Wide<T>, 2>& input = replaced.input;
  require(!input.present() || (input.dense() && input.shape == std::array{sizes.N, sizes.C}),
          "decoder: the residual stream of an override has shape ({},{}), not ({},{})", input.shape[0], input.shape[1],
          sizes.N, sizes.C);
  if (!heads.factors.present()) return;
  require(linear || layers::can_skip_attention(config.gate),
          "decoder: an override of gate {}, which does not multiply the attention output",
          layers::gate_name(config.gate));
  require(heads.factors.shape == std::array{heads.count, D} && heads.ungated.shape == std::array{sizes.N, Hq, D},
          "decoder: an override of heads has factors or memory of another shape");
}

template <typename T>
void Decoder<T>::State::show_attention(LayerView<Wide<T>>& view, Taps taps, const LayerConfig& layer,
                                       const TokenPart<T>& part, const layers::AttentionVectors<const Wide<T>>& vectors,
                                       const layers::AttentionState<T>& s) {
  const layers::GatedAttention<T>& attention = part.resources.blocks.attention(layer.type);
  if (taps.has(Tap::scores)) {
    view.scale = attention.scale();
    view.q = layers::by_head<const T>(s.q, view.shape.batch, view.shape.seq);
    view.k = layers::by_head<const T>(s.k, view.shape.batch, view.shape.seq);
    view.lse = s.lse;
    view.sinks = attention.sinks(vectors);
    view.window = layer.window;
    if (SequenceMemory<T>* const sequence = parts.sequence()) {
      keys = sequence->cache(layer.type).attention->latest(view.shape.seq);
      view.cache = &keys;
    }
  }
  if (taps.has(Tap::values)) view.v = shown.values(s.v);
  if (taps.has(Tap::head_outputs)) view.head_outputs = shown.outputs(s.controlled);
  if (taps.has(Tap::gate_logits)) view.gate = shown.gates(attention.logits(vectors, s));
}

template <typename T>
void Decoder<T>::State::show_delta(LayerView<Wide<T>>& view, Taps taps, const TokenPart<T>& part,
                                   const layers::DeltaNetState<T>& s) {
  const layers::DeltaNet<T>& delta = part.resources.blocks.delta();
  SequenceMemory<T>* const sequence = parts.sequence();
  view.delta_options = delta.rule_options();
  if (taps.has(Tap::scores)) {
    view.delta_inputs = delta.rule_inputs(s);
    if (sequence != nullptr) view.delta_inputs.state = sequence->cache(view.type).delta->previous_state();
  }
  if (taps.has(Tap::sequence_delta_inputs)) {
    if (sequence != nullptr) sequence->store_delta_inputs(s, part.first);
    if (view.ends_sequence()) {
      view.sequence_delta_inputs = sequence != nullptr ? sequence->delta_inputs(s.v) : delta.rule_inputs(s);
    }
  }
  if (taps.has(Tap::values)) view.v = shown.values(s.v);
  if (taps.has(Tap::head_outputs)) view.head_outputs = shown.outputs(s.y);
  if (taps.has(Tap::gate_logits)) view.gate = shown.gates(s.z);
}

/// Returns what an observer receives after a layer has processed `part`. `targets` holds the targets of the part's
/// tokens.
template <typename T>
LayerView<Wide<T>> Decoder<T>::State::view_of(std::int64_t layer, Taps taps, const TokenPart<T>& part,
                                              const Wide<T>* parameters, const Tokens& targets) {
  const LayerConfig& c = config_of(layer);
  const SavedLayer<T> s = parts.saved(layer, part);
  LayerView<Wide<T>> view;
  view.layer = layer;
  view.shape = part.resources.shape;
  view.first_position = part.first;
  view.seq_len = shape.seq;
  view.type = c.type;
  if (c.type == LayerType::linear_attention) {
    show_delta(view, taps, part, *s.delta);
  } else {
    show_attention(view, taps, c, part, layout.layer(layer, parameters).attention, *s.attention);
  }
  if (taps.has(Tap::output)) {
    view.output = parts.output(layer, part);
    if (view.ends_sequence()) {
      view.sequence_output = parts.sequence() != nullptr ? parts.sequence()->stream() : view.output;
    }
  }
  if (taps.has(Tap::exit_loss)) {
    last_norm(part, parts.output(layer, part), parameters);
    view.exit_loss = head(nullptr, part, parameters, targets, 0.0, nullptr);
  }
  return view;
}

/// Returns the mean loss over all targets that are not ignored. Must follow a forward pass.
template <typename T>
double Decoder<T>::State::loss(const Wide<T>* parameters, const Tokens& targets, Wide<T>* token_losses) {
  const double total = counted(targets);
  double loss = 0.0;
  parts.each([&](const TokenPart<T>& part) {
    const Tokens here = part.of(targets);
    last_norm(part, parts.output(config.layers - 1, part), parameters);
    Wide<T>* const losses = token_losses == nullptr ? nullptr : token_losses + part.first;
    const double mean = head(nullptr, part, parameters, here, 0.0, losses);
    loss += parts.sequence() != nullptr && total > 0.0 ? counted(here) / total * mean : mean;
  });
  return loss;
}

/// Computes the logits of the tokens of `part` from h_last, a chunk of rows at a time. Returns the mean loss of the
/// part. If `gradients` is not null, also does two things:
/// - adds the gradient of the vocabulary head's matrix to `gradients`
/// - sets dx to the gradient of h_last
template <typename T>
double Decoder<T>::State::head(Wide<T>* gradients, const TokenPart<T>& part, const Wide<T>* parameters,
                               const Tokens& targets, double gradient_scale, Wide<T>* token_losses) const {
  const DecoderBuffers<T>& buffers = *part.resources.memory;
  const std::int64_t N = part.count(), chunk = part.resources.sizes.logit_rows;
  const View<const T, 2> w = weights.head(parameters);
  const View<Wide<T>, 1> losses(token_losses, {N});
  const double total = counted(targets);
  double loss = 0.0;
  for (std::int64_t first = 0; first < N; first += chunk) {
    const std::int64_t rows = std::min(chunk, N - first);
    const Tokens targets_here = targets.range(0, first, rows);
    const double share = total > 0.0 ? counted(targets_here) / total : 0.0;
    const View<T, 2> h = buffers.h_last.range(0, first, rows);
    const View<Wide<T>, 2> logits = buffers.logits.range(0, 0, rows);
    layers::linear_forward(logits, h, w, Update::overwrite, context);
    loss +=
        share * layers::cross_entropy(losses.range(0, first, rows), gradients != nullptr ? logits : View<Wide<T>, 2>(),
                                      logits, targets_here, gradient_scale * share, context);
    if (gradients != nullptr) {
      const View<T, 2> dlogits = buffers.dlogits.range(0, 0, rows);
      if constexpr (kNarrow<T>) layers::copy_to<T, Wide<T>>(dlogits.flat(), logits.flat(), context);
      layers::linear_backward_input(buffers.dx.range(0, first, rows), dlogits, w, Update::overwrite, context);
      layers::linear_backward_weight(outer_gradients(gradients).head, dlogits, h, context);
    }
  }
  return loss;
}

/// Computes the log-softmax of the logits, out(count,V), for `count` tokens of `part`. The first token has the index
/// `begin` in the part.
template <typename T>
void Decoder<T>::State::log_softmax(Wide<T>* out, const TokenPart<T>& part, const Wide<T>* parameters,
                                    std::int64_t begin, std::int64_t count) const {
  using W = Wide<T>;
  const View<const T, 2> w = weights.head(parameters);
  const std::int64_t V = part.resources.sizes.V, chunk = part.resources.sizes.logit_rows;
  for (std::int64_t first = 0; first < count; first += chunk) {
    const std::int64_t rows = std::min(chunk, count - first);
    const View<W, 2> y(out + first * V, {rows, V});
    layers::linear_forward(y, part.resources.memory->h_last.range(0, begin + first, rows), w, Update::overwrite,
                           context);
#pragma omp parallel for schedule(static) num_threads(layers::team_size(context))
    for (std::int64_t r = 0; r < rows; ++r) {
      W* row = y.at(r);
      const W largest = *std::max_element(row, row + V);
      double sum = 0.0;
      for (std::int64_t v = 0; v < V; ++v) sum += std::exp(static_cast<double>(row[v] - largest));
      const double shift = static_cast<double>(largest) + std::log(sum);
      for (std::int64_t v = 0; v < V; ++v) row[v] = static_cast<W>(static_cast<double>(row[v]) - shift);
    }
  }
}

// --- backward ----------------------------------------------------------------------------------------------------

/// Computes the backward pass. At the start, dx holds the gradient of h_last. Adds the gradients of all parameters to
/// `gradients`.
template <typename T>
void Decoder<T>::State::backward(Wide<T>* gradients, const Wide<T>* parameters, const Tokens& tokens) const {
  const View<Wide<T>, 2>& dx = memory->dx;
  norm_backward<Wide<T>>(dx, layout.outer(gradients).norm, dx, memory->x_last, layout.outer(parameters).norm,
                         memory->rstd_last, Update::overwrite);
  for (std::int64_t layer = config.layers - 1; layer >= 0; --layer) {
    const LayerWeights<const Wide<T>, const T> w = weights.layer(layer, parameters);
    const LayerWeights<Wide<T>> g = gradients_of(layer, gradients);
    mlp_backward(config_of(layer), g, w, memory->layer(layer));
    mixer_backward(config_of(layer), g, w, memory->layer(layer));
  }
  const View<Wide<T>, 2> dtable = outer_gradients(gradients).embedding;
  if (!dtable.present()) return;
  if (sizes.embedding_scale != 1.0) layers::scale(dx.flat(), static_cast<Wide<T>>(sizes.embedding_scale), context);
  layers::embedding_backward(dtable, dx, tokens, context);
}

/// Computes the backward pass of a layer's MLP. On entry, dx holds the gradient of the layer's output. On return, dx
/// holds the gradient of x_middle, the residual stream between mixer and MLP.
template <typename T>
void Decoder<T>::State::mlp_backward(const LayerConfig& layer, const LayerWeights<Wide<T>>& g,
                                     const LayerWeights<const Wide<T>, const T>& w, const SavedLayer<T>& s) const {
  const View<T, 2>&activation = memory->activation, &dactivation = memory->dactivation;
  const View<Wide<T>, 2>&dx = memory->dx, &dh = memory->dh;
  View<const T, 2> dout = memory->dout;
  if (layer.has_output_norms) {
    norm_backward<T>(memory->dout, g.mlp_out_norm, dx, s.mlp_out, w.mlp_out_norm, s.mlp_out_rstd, Update::overwrite);
  } else {
    dout = gradient_of_output();
  }
  layers::linear_backward_input(dactivation, dout, w.down, Update::overwrite, context);
  layers::swiglu_backward(s.dgate_up, activation, dactivation, s.gate_up, sizes.activation, context);
  layers::linear_backward_weight(g.down, dout, activation, context);
  layers::linear_backward_input(dh, s.dgate_up, w.gate_up, Update::overwrite, context);
  layers::linear_backward_weight(g.gate_up, s.dgate_up, s.mlp_input(layer), context);
  add_input_gradient(layer, g.middle_norm, s.x_middle, w.middle_norm, s.rstd_middle);
}

/// Computes the backward pass of a layer's mixer. On entry, dx holds the gradient of x_middle, the residual stream
/// between mixer and MLP. On return, dx holds the gradient of the layer's input.
template <typename T>
void Decoder<T>::State::mixer_backward(const LayerConfig& layer, const LayerWeights<Wide<T>>& g,
                                       const LayerWeights<const Wide<T>, const T>& w, const SavedLayer<T>& s) const {
  const View<Wide<T>, 2>&dx = memory->dx, &dh = memory->dh;
  const View<const T, 2> h = s.mixer_input(layer);
  View<const T, 2> dout = memory->dout;
  if (layer.has_output_norms) {
    norm_backward<T>(memory->dout, g.mixer_out_norm, dx, s.mixer_out, w.mixer_out_norm, s.mixer_out_rstd,
                     Update::overwrite);
  } else {
    dout = gradient_of_output();
  }
  if (layer.type == LayerType::linear_attention) {
    parts.main().blocks.delta().backward(dh, g.delta, dout, h, w.delta, *s.delta);
  } else {
    parts.main().blocks.attention(layer.type).backward(dh, g.attention, dout, h, w.attention, *s.attention);
  }
  add_input_gradient(layer, g.input_norm, s.x, w.input_norm, s.rstd);
}

/// Adds the gradient of x to dx. dh is the gradient of norm(x), or of x if the layer has no input norm.
template <typename T>
void Decoder<T>::State::add_input_gradient(const LayerConfig& layer, View<Wide<T>, 1> dw, ConstView<Wide<T>, 2> x,
                                           ConstView<Wide<T>, 1> w, ConstView<Wide<T>, 2> rstd) const {
  if (layer.has_input_norms) {
    norm_backward<Wide<T>>(memory->dx, dw, memory->dh, x, w, rstd, Update::add);
  } else {
    layers::add_to<Wide<T>>(memory->dx.flat(), memory->dh.flat(), context);
  }
}

// --- the class ---------------------------------------------------------------------------------------------------

template <typename T>
Decoder<T>::Decoder(const DecoderConfig& config, BatchShape shape, Purpose purpose, const ExecutionContext& context,
                    const PartOptions& parts)
    : state_(std::make_unique<State>(require_trainable(config, purpose), shape, purpose, context, parts)) {}

template <typename T>
std::vector<MemoryItem> Decoder<T>::planned_memory(const DecoderConfig& config, BatchShape shape, Purpose purpose,
                                                   const PartOptions& parts) {
  require_valid(config, shape);
  require_valid_parts<T>(parts, shape, purpose);
  std::vector<MemoryItem> items;
  Workspace count(&items);
  const DecoderSizes sizes(config, models::part_shape(shape, parts), purpose);
  const DecoderBuffers<T> counted(count, sizes);
  if constexpr (kNarrow<T>) {
    items.push_back({"matrices in bf16", static_cast<std::size_t>(parameter_count(config)) * sizeof(T)});
    if (purpose == Purpose::evaluate) {
      Workspace count_shown(&items);
      const ShownBuffers<T> counted_shown(count_shown, sizes);
    }
  }
  if (!is_cut(shape, parts)) return items;
  if (const std::int64_t rest = shape.seq % parts.tokens) {
    Workspace count_last(&items);
    const DecoderBuffers<T> counted_last(count_last, DecoderSizes(config, {1, rest}, purpose));
  }
  SequenceMemory<T>::plan(items, sizes, shape.seq, parts);
  return items;
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
BatchShape Decoder<T>::part_shape() const {
  return state_->parts.main().shape;
}

template <typename T>
const ExecutionContext& Decoder<T>::context() const {
  return state_->context;
}

template <typename T>
double Decoder<T>::loss(const Wide<T>* parameters, const std::int32_t* tokens, const std::int32_t* targets,
                        LayerObserver<Wide<T>>* observer, Wide<T>* token_losses, layers::AttentionSkip* skip) {
  State& s = *state_;
  const Tokens in(tokens, {s.tokens()}), out(targets, {s.tokens()});
  check_tokens("tokens", in, s.config.vocab, 0);
  check_tokens("targets", out, s.config.vocab, layers::kIgnoredTarget);
  require(skip == nullptr || skip->threshold == 0.0 || layers::can_skip_attention(s.config.gate),
          "decoder: a gate threshold of {} but gate {} does not multiply the attention output",
          skip == nullptr ? 0.0 : skip->threshold, layers::gate_name(s.config.gate));
  s.weights.round(parameters, s.context);
  s.forward(parameters, in, out, observer, skip);
  return s.loss(parameters, out, token_losses);
}

template <typename T>
double Decoder<T>::loss_with(const LayerOverride<T>& replaced, const Wide<T>* parameters, const std::int32_t* tokens,
                             const std::int32_t* targets) {
  State& s = *state_;
  require(s.parts.sequence() == nullptr, "decoder: an override of heads of a sequence in parts");
  const Tokens in(tokens, {s.tokens()}), out(targets, {s.tokens()});
  check_tokens("tokens", in, s.config.vocab, 0);
  check_tokens("targets", out, s.config.vocab, layers::kIgnoredTarget);
  s.check(replaced);
  s.weights.round(parameters, s.context);
  s.forward(parameters, in, out, nullptr, nullptr, &replaced);
  return s.loss(parameters, out, nullptr);
}

template <typename T>
void Decoder<T>::log_probabilities(Wide<T>* out, const Wide<T>* parameters, const std::int32_t* tokens) {
  run(parameters, tokens);
  state_->parts.each([&](const TokenPart<T>& part) {
    some_log_probabilities(out + part.first * state_->sizes.V, parameters, part.first, part.count());
  });
}

template <typename T>
void Decoder<T>::run(const Wide<T>* parameters, const std::int32_t* tokens) {
  State& s = *state_;
  const Tokens in(tokens, {s.tokens()});
  check_tokens("tokens", in, s.config.vocab, 0);
  s.weights.round(parameters, s.context);
  s.forward(parameters, in, {}, nullptr, nullptr);
}

template <typename T>
void Decoder<T>::some_log_probabilities(Wide<T>* out, const Wide<T>* parameters, std::int64_t first,
                                        std::int64_t count) {
  State& s = *state_;
  const TokenPart<T> part = s.parts.at(std::clamp<std::int64_t>(first, 0, s.shape.seq - 1));
  require(first >= 0 && count >= 0 && count <= part.first + part.count() - first,
          "decoder: log-probabilities of {} tokens from token {}, which are not in one part", count, first);
  s.last_norm(part, s.parts.output(s.config.layers - 1, part), parameters);
  s.log_softmax(out, part, parameters, first - part.first, count);
}

template <typename T>
double Decoder<T>::loss_and_gradients(Wide<T>* gradients, const Wide<T>* parameters, const std::int32_t* tokens,
                                      const std::int32_t* targets, double gradient_scale, Wide<T>* token_losses) {
  State& s = *state_;
  require(s.purpose != Purpose::evaluate,
          "decoder: gradients need a decoder for training, but its purpose is to evaluate");
  const Tokens in(tokens, {s.sizes.N}), out(targets, {s.sizes.N});
  check_tokens("tokens", in, s.config.vocab, 0);
  check_tokens("targets", out, s.config.vocab, layers::kIgnoredTarget);
  s.weights.round(parameters, s.context);
  s.forward(parameters, in, out, nullptr, nullptr);
  const TokenPart<T> whole{s.parts.main()};
  s.last_norm(whole, s.memory->x_last, parameters);
  const double loss = s.head(gradients, whole, parameters, out, gradient_scale, token_losses);
  s.backward(gradients, parameters, in);
  return loss;
}

template <typename T>
std::vector<MemoryItem> Decoder<T>::memory_plan() const {
  return planned_memory(state_->config, state_->shape, state_->purpose, state_->parts.options());
}

template <typename T>
std::size_t Decoder<T>::memory_bytes() const {
  const State& s = *state_;
  return s.parts.bytes() + s.weights.bytes() + s.shown.bytes();
}

std::unique_ptr<SequenceDecoder<float>> make_decoder(const DecoderConfig& config, BatchShape shape, Purpose purpose,
                                                     ModelPrecision precision, const ExecutionContext& context,
                                                     const PartOptions& parts) {
  if (precision == ModelPrecision::bf16) {
    return std::make_unique<Decoder<BFloat16>>(config, shape, purpose, context, parts);
  }
  return std::make_unique<Decoder<float>>(config, shape, purpose, context, parts);
}

std::vector<MemoryItem> planned_memory(const DecoderConfig& config, BatchShape shape, Purpose purpose,
                                       ModelPrecision precision, const PartOptions& parts) {
  return precision == ModelPrecision::bf16 ? Decoder<BFloat16>::planned_memory(config, shape, purpose, parts)
                                           : Decoder<float>::planned_memory(config, shape, purpose, parts);
}

template class Decoder<float>;
template class Decoder<double>;
template class Decoder<BFloat16>;

}  // namespace headgate::models
